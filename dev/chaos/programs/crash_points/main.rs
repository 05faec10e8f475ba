//! Kills, stops and cuts off processes at the points where it hurts, over and over, and compares
//! the answers that they got with what happened.
//!
//! ```sh
//! cargo run --release -p chaos --bin crash-points -- 1000
//! cargo run --release -p chaos --bin crash-points -- 1000 --postgres
//! ```
//!
//! The arguments are the number of rounds (50 by default), a seed, and where the timers are: in a
//! SQLite file by default, with `--postgres` on a PostgreSQL server that this program starts and
//! ends, and with `--postgres postgres://user@host:port/database` in a database to play with, whose
//! server is then left running.
//!
//! Each round is a process that schedules, moves and cancels timers, runs timers, and meets one
//! [point]. Two such processes share the timers at any time, with a third one that lives through
//! all rounds, so that each takes over what the others leave behind. All write their answers, and
//! each run, into [journals](chaos::journal).
//!
//! After the rounds one more process runs the remaining timers. Then the last line of the output is
//! `lost 0 early 0 doubled effects 0`. Anything else is exit code 1:
//!
//! - *lost*: a timer was accepted and not cancelled, and it never ran.
//! - *early*: a run started before the time that the store had accepted.
//! - *doubled effects*: an effect that was committed together with the end of its run is there
//!   twice.
//! - *wrong answers*, in a line before: a cancelled timer started afterwards, or one whose commit
//!   never began exists.
//!
//! With `--sabotage` the effects are committed without `complete_in`. Then some are doubled, which
//! shows that the comparison finds such errors.

#[macro_use]
#[path = "../../../xtask/src/say.rs"]
mod say;

mod child;
mod database;
mod entry;
mod failing;
mod host;
mod point;
mod postgres;
mod rounds;
mod sqlite;
mod verdict;

use std::io;
use std::process::ExitCode;

use chaos::command_line::{self, Values};
use chaos::crew;

use crate::child::Order;
use crate::rounds::{Options, Place};

const HELP: &str = "\
usage: crash-points [ROUNDS [SEED]] [--postgres [URL]] [--sabotage]

  ROUNDS            how many processes are killed, stopped or cut off; 50 by default
  SEED              decides who meets what; 7 by default
  --postgres        on a PostgreSQL server of its own, in place of a SQLite file
  --postgres URL    in this database of a server that runs
  --sabotage        without the fence: effects are doubled, and the comparison finds that
  -h, --help        this text
  -V, --version     the version
";

fn main() -> ExitCode {
    let lived = crew::serve(|order: Order, calls, _: &dyn Fn(())| {
        child::run(&order, calls).map_err(io::Error::other)
    });
    lived.unwrap_or_else(|| {
        let options = Options {
            rounds: 50,
            seed: 7,
            place: Place::File,
            is_fenced: true,
        };
        let mut numbers = 0;
        let option = |options: &mut Options, word: &str, values: &mut Values| {
            match word {
                "--postgres" => {
                    let url = values.optional(|next| next.contains("://"));
                    options.place = url.map_or(Place::OwnServer, Place::Url);
                }
                "--sabotage" => options.is_fenced = false,
                _ if word.starts_with('-') || numbers == 2 => return Ok(false),
                number => {
                    let most = [u64::from(u32::MAX), u64::MAX][numbers];
                    let number = command_line::number(number, 0..=most)
                        .map_err(|what| format!("ROUNDS and SEED are each {what}"))?;
                    match numbers {
                        0 => options.rounds = u32::try_from(number).expect("it is small"),
                        _ => options.seed = number,
                    }
                    numbers += 1;
                }
            }
            Ok(true)
        };
        command_line::run("crash-points", HELP, options, option, |options| {
            rounds::run(&options)
        })
    })
}
