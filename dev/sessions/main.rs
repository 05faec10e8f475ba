//! Session expiry with an `ExpiryMap`, in real time with a million sessions, or as the replay of an
//! access log on the clock of the test kit. `--help` lists the options.

mod about;
mod app;
mod balance;
mod cli;
mod lateness;
mod live;
mod log;
mod progress;
mod replay;
mod rng;
mod terminal;
mod zipf;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

fn main() -> ExitCode {
    let console = app::Console {
        input: &mut io::stdin(),
        out: &mut io::stdout(),
        err: &mut io::stderr(),
        out_is_terminal: io::stdout().is_terminal(),
        err_is_terminal: io::stderr().is_terminal(),
        columns: terminal::columns,
        interrupts: &terminal::interrupts,
    };
    ExitCode::from(app::run(std::env::args_os().skip(1), console))
}
