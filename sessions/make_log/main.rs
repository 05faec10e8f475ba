//! Makes an access log for the `sessions` example. The same seed makes the same log:
//!
//! ```text
//! cargo run --release -p sessions --bin make_log -- --seed 7 --lines 1500 > sessions/data/access.log
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

const USAGE: &str = "usage: make_log [--seed N] [--lines N] > FILE   (default: 7 and 1500)";

const HELP: &str = "\
Makes an access log for the example `sessions`, the same one for the same seed.

Usage:
  make_log [OPTIONS] > FILE

Options:
  --seed N        what the log follows from (default: 7)
  --lines N       how many lines it has (default: 1500)
  -h, --help      this text
  -V, --version   the version of the crate
";

fn main() -> ExitCode {
    let (mut seed, mut lines) = (7, 1_500);
    let mut args = std::env::args().skip(1);
    while let Some(option) = args.next() {
        if matches!(&*option, "-h" | "--help" | "-V" | "--version") {
            let asked = std::iter::once(option.into());
            return about::answer("make_log", HELP, asked).unwrap_or(ExitCode::SUCCESS);
        }
        let value = args.next().and_then(|value| value.parse().ok());
        match (&*option, value) {
            ("--seed", Some(value)) => seed = value,
            ("--lines", Some(value)) => lines = value,
            _ => {
                let _ = writeln!(std::io::stderr(), "{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
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
