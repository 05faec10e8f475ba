//! Tasks for developers of this repository.
//!
//! `cargo run -p xtask -- teeth [name..]` breaks the code on purpose, once per patch in
//! `loom-tests/teeth`, and expects the test that each patch names to fail.
//!
//! With `--tested` these tests are not run on the unbroken tree first. That is enough only where
//! they are run elsewhere, as by all steps of `.ci/run`.
//!
//! `cargo run -p xtask -- teeth --refresh [name..]` brings patches that no longer apply up to date
//! with the last commit. It prints `refreshed NAME`, or `CANNOT NAME` with the files that have to
//! be looked at by hand, and then ends with 1. Run the teeth afterwards: only a run shows whether
//! the new patches are still caught.

#[macro_use]
mod say;

use std::path::Path;
use std::process::ExitCode;

use lexopt::Parser;
use lexopt::prelude::{Long, Short, Value, ValueExt};

mod teeth;

use teeth::Way;

const HELP: &str = "\
Breaks the code on purpose, and expects the tests to notice.

Usage: cargo teeth [--tested | --refresh] [NAME..]

  NAME..      only these patches of loom-tests/teeth
  --tested    the tests are run elsewhere, so not on the unbroken tree first
  --refresh   runs nothing: brings patches that no longer apply up to date with the last commit
  -h, --help  this text";

/// What to do and the names; nothing if only help is asked for.
fn parse(mut args: Parser) -> Result<Option<(Way, Vec<String>)>, lexopt::Error> {
    let (mut command, mut way, mut names) = (None, Way::Run, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Value(word) if command.is_none() && word == "teeth" => command = Some(()),
            Value(name) if command.is_some() => names.push(name.string()?),
            Long("tested") if way == Way::Run => way = Way::RunTested,
            Long("refresh") if way == Way::Run => way = Way::Refresh,
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    command.ok_or("the command is missing: teeth")?;
    Ok(Some((way, names)))
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("a tool lies two folders below the workspace's root");
    let outcome = match parse(Parser::from_env()) {
        Ok(Some((way, names))) => teeth::run(root, way, &names),
        Ok(None) => {
            say!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => Err(format!("{error}; see --help")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(reason) => {
            complain!("xtask: {reason}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_an_error_and_help_runs_nothing() {
        let parsed = |line: &str| parse(Parser::from_args(line.split_whitespace()));
        assert_eq!(parsed("teeth").unwrap(), Some((Way::Run, Vec::new())));
        let named = |way| Some((way, vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(parsed("teeth a --refresh b").unwrap(), named(Way::Refresh));
        assert_eq!(parsed("teeth --tested a b").unwrap(), named(Way::RunTested));
        assert_eq!(parsed("-h").unwrap(), None);
        for line in [
            "",
            "tooth",
            "teeth --fresh",
            "teeth --refresh --tested",
            "teeth --tested --refresh",
            "teeth --refresh=1",
            "--refresh",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
