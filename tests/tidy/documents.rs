//! Names in documents: files and items between backticks must exist. So a document that says where
//! things are changes together with them.

use std::collections::BTreeSet;

use crate::source::Source;

/// The extensions by which a name without a folder is taken for a file.
const EXTENSIONS: &[&str] = &["lua", "md", "patch", "rs", "toml"];

/// Complaints about the names in `text`. `files` are the paths of all files of the repository.
pub(crate) fn complaints(
    path: &str,
    text: &str,
    files: &[String],
    sources: &[&Source],
) -> Vec<String> {
    let mut words: BTreeSet<&str> = BTreeSet::new();
    for source in sources {
        words.extend(source.tokens.iter().filter_map(|token| token.word()));
    }
    let unknown = |name: &&str| {
        if is_file(name) {
            !files.iter().any(|file| lies_at(file, name))
        } else {
            is_path(name) && name.split("::").any(|word| !words.contains(word))
        }
    };
    let mut found = Vec::new();
    for (line, name) in names(text) {
        if unknown(&name) {
            found.push(format!("{path}:{line}: there is no `{name}`"));
        }
    }
    found
}

/// The texts between backticks, with their lines. Blocks of code are left out.
fn names(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (at, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let quoted = line.split('`').skip(1).step_by(2);
            found.extend(quoted.map(|name| (at + 1, name)));
        }
    }
    found
}

/// Whether a name stands for a file or a folder of the repository. `NAME` in it stands for a name
/// that the reader chooses.
fn is_file(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    !name.starts_with('/')
        && !name.contains("NAME")
        && name.chars().all(plain)
        && (name.contains('/') || extension.is_some_and(|known| EXTENSIONS.contains(&known)))
}

/// Whether a file has this name, or lies in a folder of this name. The name may leave out the first
/// folders.
fn lies_at(file: &str, name: &str) -> bool {
    let wanted: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
    let parts: Vec<&str> = file.split('/').collect();
    let is_folder = !wanted.iter().any(|part| part.contains('.'));
    if is_folder {
        parts.windows(wanted.len()).any(|window| window == wanted)
    } else {
        parts.ends_with(&wanted)
    }
}

/// Whether a name stands for an item: a type, or a path of several words. A single word in small
/// letters may be anything.
fn is_path(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let is_type = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.contains(|c: char| c.is_ascii_lowercase());
    !name.is_empty()
        && name.chars().all(plain)
        && name
            .split("::")
            .all(|word| !word.is_empty() && !word.contains(':'))
        && (is_type || name.contains("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        let files = [
            "src/shard/ticker.rs",
            "crates/leases/src/redis/renew.lua",
            "docs/x.md",
        ];
        let source = Source::new(
            "src/shard/ticker.rs",
            "impl Ticker { fn collect_all(&self) {} }",
        );
        complaints("X.md", text, &files.map(str::to_owned), &[&source])
    }

    #[test]
    fn what_exists_may_be_named() {
        let text = "`src/shard/`, `src/shard/ticker.rs`, `shard/ticker.rs`, `ticker.rs`, `renew.lua`,\n\
                    `Ticker`, `Ticker::collect_all`, `cargo test`, `/proc`, `quiet`, `src/NAME.rs`\n\
                    ```\n`Nothing` src/nothing.rs\n```";
        assert_eq!(of(text), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_reported_with_its_line() {
        for name in [
            "src/wheel/",
            "src/ticker.rs",
            "cker.rs",
            "Tocker",
            "Ticker::collect",
        ] {
            assert_eq!(
                of(&format!("one\n`Ticker` and `{name}`")),
                [format!("X.md:2: there is no `{name}`")]
            );
        }
    }
}
