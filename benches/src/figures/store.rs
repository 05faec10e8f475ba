//! Files: rows as JSON lines, and the documents and pictures of the repository that are made of
//! them.
//!
//! In a document, everything between a line that names a table and the line that ends it is made
//! by the program, so that no figure is copied by hand:
//!
//! ```text
//! <!-- benches: targets -->       where each target stands        targets.jsonl
//! <!-- benches: summary -->       the targets that are quoted     targets.jsonl
//! <!-- benches: model -->         the model, fitted               model.jsonl
//! <!-- benches: figures lto -->   all figures of a run            lto.jsonl
//! <!-- benches: end -->
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::row::Run;
use super::{model, plots, table};

/// Where the rows of the targets lie in the repository.
const TARGETS: &str = "benches/targets.jsonl";
const DOCUMENTS: [&str; 4] = [
    "benches/FIGURES.md",
    "docs/model.md",
    "docs/performance.md",
    "README.md",
];
const PLACE: &str = "<!-- benches: ";
const END: &str = "<!-- benches: end -->";

/// The files that a run writes, besides what it prints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// A file for the rows.
    pub(crate) json: Option<PathBuf>,
    /// A folder for the plots.
    pub(crate) plots: Option<PathBuf>,
    /// The documents and plots of the repository.
    pub(crate) keep: bool,
}

impl Made {
    /// Those of the repository, with the rows of the targets.
    pub(crate) fn of_targets(self) -> Self {
        let json = self.json.or_else(|| Some(root().join(TARGETS)));
        Made { json, ..self }
    }

    /// Looks whether the rows can be written: a run of half an hour should not end with a file that
    /// can't be.
    pub(crate) fn check(&self) -> io::Result<()> {
        if let Some(path) = &self.json {
            let opened = fs::OpenOptions::new().append(true).create(true).open(path);
            opened.map_err(|error| named(&error, path))?;
        }
        Ok(())
    }

    /// Writes the rows, also in the middle of a run.
    pub(crate) fn keep(&self, run: &Run) -> io::Result<()> {
        let write = |path: &PathBuf| replace(path, &run.text()?);
        self.json.as_ref().map_or(Ok(()), write)
    }

    /// Draws, and writes documents.
    pub(crate) fn publish(&self, run: &Run) -> io::Result<()> {
        for plot in self.plots.iter().flat_map(|_| plots::of(run)) {
            let folder = self.plots.as_deref().unwrap_or(Path::new("."));
            write(&folder.join(format!("{}.svg", plot.name)), &plot.svg)?;
        }
        if self.keep { remake() } else { Ok(()) }
    }
}

/// Makes the documents and plots of the repository again from its rows.
pub(crate) fn remake() -> io::Result<()> {
    all()?.iter().try_for_each(|(path, text)| write(path, text))
}

/// Each file of the repository that is made of rows, and what it has to be.
fn all() -> io::Result<Vec<(PathBuf, String)>> {
    let targets = read(&root().join(TARGETS))?;
    let mut all = vec![(root().join("benches/TARGETS.md"), table::document(&targets))];
    for plot in plots::of(&targets) {
        let path = root().join(format!("docs/plots/{}.svg", plot.name));
        all.push((path, plot.svg));
    }
    for name in DOCUMENTS {
        let path = root().join(name);
        let text = fs::read_to_string(&path).map_err(|error| named(&error, &path))?;
        let filled = filled(&text, made).map_err(|error| named(&io::Error::other(error), &path))?;
        all.push((path, filled));
    }
    Ok(all)
}

/// The text of a place.
fn made(name: &str) -> Result<String, String> {
    let of = |name: &str| {
        let path = root().join(format!("benches/{name}.jsonl"));
        read(&path).map_err(|error| error.to_string())
    };
    match name.split_once(' ').unwrap_or((name, "")) {
        ("targets", "") => table::targets(&of("targets")?).ok_or_else(|| "no full run".to_owned()),
        ("summary", "") => Ok(table::summary(&of("targets")?)),
        ("model", "") => model::of(&of("model")?),
        ("figures", run) => Ok(table::section(&of(run)?)),
        _ => Err(format!("no table is called {name:?}")),
    }
}

/// The document with what `made` returns behind each line that names a table.
fn filled(document: &str, made: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut text = String::new();
    let (mut open, mut count) = (false, 0);
    for line in document.lines() {
        let name = line.trim().strip_prefix(PLACE);
        let name = name.and_then(|rest| rest.strip_suffix(" -->"));
        if open && name != Some("end") {
            if name.is_some() {
                return Err(format!("a table without {END}"));
            }
            continue;
        }
        text += line;
        text.push('\n');
        open = match name {
            Some("end") if !open => return Err(format!("{END} without a beginning")),
            Some("end") | None => false,
            Some(name) => {
                text += &made(name)?;
                count += 1;
                true
            }
        };
    }
    match (open, count) {
        (true, _) => Err(format!("a table without {END}")),
        (false, 0) => Err("it has no place for a table".to_owned()),
        (false, _) => Ok(text),
    }
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub(crate) fn read(path: &Path) -> io::Result<Run> {
    let text = fs::read_to_string(path).map_err(|error| named(&error, path))?;
    Run::parse(&text).map_err(|error| named(&io::Error::other(error), path))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| named(&error, folder))?;
    }
    replace(path, text)?;
    complain!("wrote {}", path.display());
    Ok(())
}

/// All of it or nothing, whenever the program is interrupted.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.map_err(|error| named(&error, path))
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So a change of a table, a plot or the model shows here, as does a figure that was edited.
    #[test]
    fn the_repository_has_what_is_made_of_its_rows() {
        let all = all().expect("every file is read");
        assert!(all.len() > 10, "plots and documents: {}", all.len());
        for (path, expected) in all {
            let found = fs::read_to_string(&path).expect("it was made");
            let mut lines = found.lines().zip(expected.lines());
            let differs = lines.find(|(one, other)| one != other);
            let to_do = format!("{}: run `benches -- --keep`", path.display());
            assert!(found == expected, "{to_do}; {differs:?}");
        }
    }

    #[test]
    fn only_what_lies_between_the_lines_is_replaced() {
        let made = |name: &str| match name {
            "a" => Ok("new\n".to_owned()),
            other => Err(format!("no {other}")),
        };
        let place = "<!-- benches: a -->";
        let document = format!("head\n{place}\nold\nold\n{END}\ntail\n{place}\n{END}\n");
        let once = filled(&document, made).expect("there are places");
        let expected = format!("head\n{place}\nnew\n{END}\ntail\n{place}\nnew\n{END}\n");
        assert_eq!(once, expected);
        assert_eq!(filled(&once, made), Ok(once.clone()), "it stays so");
        let without = "without <!-- benches: end";
        for (document, words) in [
            ("text\n".to_owned(), "no place"),
            (format!("{place}\n"), without),
            (format!("{END}\n"), "without a beginning"),
            (format!("{place}\n{place}\n{END}\n"), without),
            (format!("<!-- benches: b -->\n{END}\n"), "no b"),
        ] {
            let error = filled(&document, made).expect_err(&document);
            assert!(error.contains(words), "{error}");
        }
    }
}
