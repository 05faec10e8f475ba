//! The benchmark program: keyed timers of this crate and of its peers, on the same work, in one
//! run.
//!
//! ```text
//! parent                                        child: one system, one fill, a process of its own
//!   starts a child per system and size  ----->    fills, says how long it took and what it weighs
//!   waits until the machine is calm
//!   ping-pong
//!   asks one child after the other      ----->    the work
//!   ping-pong                           <-----    figure, what others did on the machine
//!   repeats what was disturbed
//! ```
//!
//! Modules point one way. `run` lets `systems` do `workloads` and makes rows of what it finds
//! out. `figures` reads rows, and makes tables, plots and verdicts of them.
//!
//! A system is a file in `systems` and a line in its table; a workload is a file in `workloads`, a
//! line in its table and an arm where it is served.

#[macro_use]
#[path = "../../dev/xtask/src/say.rs"]
mod say;

mod child;
mod cli;
mod figures;
mod foreign;
mod machine;
mod mode;
mod pingpong;
mod recorder;
mod run;
mod servers;
mod system;
mod systems;
mod wire;
mod workload;
mod workloads;

use std::process::ExitCode;

/// For runs that ask what another allocator changes.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cli::Command;

fn main() -> ExitCode {
    if let Some(code) = servers::other() {
        return code;
    }
    let outcome = match cli::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            say!("{}", cli::help().trim_end());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Run(options)) => run::run(&options),
        Ok(Command::Serve(options)) => {
            servers::run(options.form, &options.only, options.peers, &options.made)
        }
        Ok(Command::Show(rows, made)) => figures::show(&rows, &made),
        Ok(Command::Keep) => figures::remake(),
        Ok(Command::Modes(time, borders)) => run::modes(time, borders),
        Ok(Command::Child(order)) => systems::serve(&order),
        Ok(Command::Drive(words)) => foreign::drive(&words),
        Err(fault) => {
            complain!("benches: {fault}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("benches: {error}");
            ExitCode::FAILURE
        }
    }
}
