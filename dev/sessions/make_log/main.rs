//! Makes an access log for the program `sessions`. The same seed makes the same log:
//!
//! ```text
//! cargo run --release -p sessions --bin make_log -- --seed 7 --lines 1500 > dev/sessions/data/access.log
//! ```
//!
//! `generate.rs` describes its content. Addresses and names are those reserved for documentation.

#[path = "../about.rs"]
mod about;
mod generate;
#[path = "../rng.rs"]
mod rng;

use std::io::Write;
use std::process::ExitCode;

use lexopt::prelude::*;

const USAGE: &str = "usage: make_log [--seed N] [--lines N] > FILE   (default: 7 and 1500)";

const HELP: &str = "\
Makes an access log for the program `sessions`, the same one for the same seed.

Usage:
  make_log [OPTIONS] > FILE

Options:
  --seed N        what the log follows from (default: 7)
  --lines N       how many lines it has (default: 1500)
  -h, --help      this text
  -V, --version   the version of the crate
";

/// The seed and the number of lines; `None` if an option has been answered.
fn options() -> Result<Option<(u64, u64)>, lexopt::Error> {
    let (mut seed, mut lines) = (7, 1_500);
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                print(HELP);
                return Ok(None);
            }
            Short('V') | Long("version") => {
                print(&about::version("make_log"));
                return Ok(None);
            }
            Long("seed") => seed = args.value()?.parse()?,
            Long("lines") => lines = args.value()?.parse()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some((seed, lines)))
}

/// A reader that closed the pipe has seen enough.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn main() -> ExitCode {
    let (seed, lines) = match options() {
        Ok(Some(options)) => options,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "make_log: {error}; {USAGE}");
            return ExitCode::from(2);
        }
    };
    let made = generate::generate(seed, lines);
    let (requests, broken) = (made.requests.len(), made.broken.len());
    let _ = writeln!(
        std::io::stderr(),
        "{requests} requests, {broken} broken lines"
    );
    match std::io::stdout().write_all(&made.bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
