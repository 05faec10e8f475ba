//! The gate: measures, and compares with the baseline or stores it. The library says how.

#[macro_use]
#[path = "../../xtask/src/say.rs"]
mod say;

use std::error::Error;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use lexopt::Parser;
use lexopt::prelude::{Long, Short};

use instruction_counts::{Baseline, Counts, Platform, Verdict};

const HELP: &str = "\
Counts the instructions of hot paths under valgrind, and compares them with the stored counts.

Usage: cargo counts [--store]

  --store     stores the new counts
  -h, --help  this text";

/// Whether to store the counts, or nothing if only help is asked for.
fn parse(mut args: Parser) -> Result<Option<bool>, lexopt::Error> {
    let mut store = false;
    while let Some(arg) = args.next()? {
        match arg {
            Long("store") => store = true,
            Short('h') | Long("help") => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(store))
}

fn main() -> ExitCode {
    let store = match parse(Parser::from_env()) {
        Ok(Some(store)) => store,
        Ok(None) => {
            say!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            complain!("{error}; see --help");
            return ExitCode::from(2);
        }
    };
    match run(store) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain!("instructions: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether the gate passes.
fn run(store: bool) -> Result<bool, Box<dyn Error>> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let baseline = Baseline::new(&package.join("baseline"), &Platform::of_this_machine()?);
    let measured = Counts::from_report(&measure(package)?)?;
    if store {
        baseline.store(&measured, &measured_with())?;
        say!("stored {} paths for {}", measured.0.len(), baseline.name());
        return Ok(true);
    }
    let verdict = Verdict::of(baseline.name(), baseline.read()?.as_ref(), &measured);
    say!("{}", verdict.to_string().trim_end());
    Ok(verdict.passes())
}

/// Builds the paths, executes them under callgrind, and returns the report of the harness.
fn measure(package: &Path) -> io::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(package)
        .args(["bench", "--quiet", "--profile", "instructions"])
        .args(["--package", "instruction-counts", "--bench", "hot_paths"])
        .args(["--locked", "--", "--output-format=json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    // Each of these would change the code that is compiled.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL"] {
        command.env_remove(name);
    }
    let output = command.output()?;
    if !output.status.success() {
        let why = "the paths were not measured: are valgrind and gungraun-runner installed?";
        return Err(io::Error::other(why));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

/// The full versions, for people who look at a baseline.
fn measured_with() -> Vec<String> {
    let versions = ["rustc", "valgrind", "gungraun-runner"].map(|program| {
        let output = Command::new(program).arg("--version").output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    versions.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_an_error_and_help_measures_nothing() {
        let parsed = |line: &str| parse(Parser::from_args(line.split_whitespace()));
        assert_eq!(parsed("").unwrap(), Some(false));
        assert_eq!(parsed("--store").unwrap(), Some(true));
        assert_eq!(parsed("--store --help").unwrap(), None);
        for line in ["store", "--stor", "--store=1", "-x"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
