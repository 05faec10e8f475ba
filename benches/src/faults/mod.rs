//! The randomised fault run.
//!
//! ```text
//!  server, of our own ---- MONITOR --> watch -----------------.
//!     ^   ^                                                    v
//!     |   '--- killed, stopped, paused: its conductor        judge <-- beliefs, a file each
//!     |                                                        ^
//!  path, a proxy: cut, delayed, held, swallowed                |
//!     |                                                        |
//!  holders: processes and threads that compete  --- words --> arena: one lock, its rounds;
//!                                                             stops and kills holders
//! ```
//!
//! The locks of one server go from round to round together. What happens when is the machine's
//! affair; what befalls whom is the seed's.

mod arena;
mod cli;
mod clock;
mod crew;
mod holder;
mod judge;
mod plan;
// The file of the tests, without their crate: that would change the features of what is measured.
#[path = "../../../tests/kit/proxy.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is public in the crate of the tests, which uses all of it"
)]
mod proxy;
mod run;
mod tally;
mod watch;

use std::process::{Command as Program, ExitCode, Stdio};

use cli::{Command, Options, WAYS};
use run::run;

pub(crate) fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            say!("{}", cli::HELP.trim_end());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Holder(order)) => holder::serve(&order)
            .map(|()| true)
            .map_err(|error| format!("a holder could not hold: {error}")),
        Ok(Command::Run(options)) => server_is_there().map(|()| told(&options).is_well()),
        Ok(Command::Teeth(options)) => server_is_there().map(|()| teeth(&options)),
        Err(fault) => Err(fault),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            complain!("faults: {fault}");
            ExitCode::from(2)
        }
    }
}

fn server_is_there() -> Result<(), String> {
    let version = Program::new("redis-server")
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    match version {
        Ok(_) => Ok(()),
        Err(_) => Err("there is no redis-server: apt-get install redis-server".to_owned()),
    }
}

/// Runs, and tells what came of it.
fn told(options: &Options) -> tally::Tally {
    let (tally, seed, took) = run(options);
    say!(
        "{} locks on {} servers, {} s",
        options.servers * options.locks,
        options.servers,
        took.as_secs()
    );
    say!("{tally}");
    say!("{}", tally.line(seed));
    tally
}

/// Does it wrong in every way. Whether each was found, and for what it is.
fn teeth(options: &Options) -> bool {
    let rounds = options.rounds.min(options.servers * options.locks * 4);
    WAYS.iter().all(|&(name, way)| {
        say!("-- {name}");
        let tally = told(&Options {
            rounds,
            sabotage: Some(way),
            ..options.clone()
        });
        let [overlaps, _, leftovers] = tally.found();
        let found = match way {
            holder::Sabotage::Unguarded | holder::Sabotage::Deaf => overlaps > 0,
            holder::Sabotage::Leak => leftovers > 0,
        };
        if !found {
            complain!("faults: {name} was not found");
        }
        found
    })
}
