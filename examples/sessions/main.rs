//! Session expiry on an `ExpiryMap`: in real time with a million sessions, or as the replay of an
//! access log on the test kit's clock. `--help` lists the options.

mod app;
mod balance;
mod cli;
mod live;
mod log;
mod progress;
mod replay;
mod rng;
mod zipf;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

fn main() -> ExitCode {
    let console = app::Console {
        out: &mut io::stdout(),
        err: &mut io::stderr(),
        out_is_terminal: io::stdout().is_terminal(),
        err_is_terminal: io::stderr().is_terminal(),
    };
    ExitCode::from(app::run(std::env::args_os().skip(1), console))
}
