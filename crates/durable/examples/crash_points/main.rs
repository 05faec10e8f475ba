//! Kills, stops and cuts off processes at the points where it hurts, over and over, and compares the
//! answers that they got with what happened.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example crash_points -- 1000
//! cargo run --release -p tourbillon-durable --example crash_points --features postgres -- 1000 --postgres
//! ```
//!
//! The arguments are the number of rounds (50 by default), a seed, and where the timers are: in a SQLite
//! file by default, with `--postgres` on a PostgreSQL server that this program starts and ends, and
//! with `--postgres postgres://user@host:port/database` in a database to play with, whose server is
//! then left running.
//!
//! Each round is a process that schedules, moves and cancels timers, runs timers, and meets one
//! [point]. Two such processes share the timers at any time, with a third one that lives through all
//! rounds, so that each takes over what the others leave behind. All write their answers, and each run,
//! into [journals](journal).
//!
//! After the rounds one more process runs the remaining timers. Then the last line of the output is
//! `lost 0 early 0 doubled effects 0`. Anything else is exit code 1:
//!
//! - *lost*: a timer was accepted and not cancelled, and it never ran.
//! - *early*: a run started before the time that the store had accepted.
//! - *doubled effects*: an effect that was committed together with the end of its run is there twice.
//! - *wrong answers*, in a line before: a cancelled timer started afterwards, or one whose commit
//!   never began exists.
//!
//! With `--sabotage` the effects are committed without `complete_in`. Then some are doubled, which
//! shows that the comparison finds such errors.

#[macro_use]
#[path = "../../../../dev/xtask/src/say.rs"]
mod say;

mod child;
#[cfg(all(feature = "postgres", has_postgres))]
#[path = "../../tests/kit/postgres.rs"]
mod cluster;
mod database;
mod failing;
mod host;
mod journal;
mod point;
#[cfg(feature = "postgres")]
mod postgres;
mod random;
mod rounds;
mod sqlite;
mod verdict;

use std::env;
use std::process::ExitCode;

use crate::database::Fault;
use crate::rounds::{Options, Place};

const USAGE: &str = "\
usage: crash_points [ROUNDS [SEED]] [--postgres [URL]] [--sabotage]

  ROUNDS            how many processes are killed, stopped or cut off; 50 by default
  SEED              decides who meets what; 7 by default
  --postgres        on a PostgreSQL server of its own, in place of a SQLite file
  --postgres URL    in this database of a server that runs
  --sabotage        without the fence: effects are doubled, and the comparison finds that
  -h, --help        this text";

fn main() -> Result<ExitCode, Fault> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "child"
    {
        child::run(rest)?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments
        .iter()
        .any(|argument| matches!(&**argument, "-h" | "--help"))
    {
        say!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    }
    match options(&arguments) {
        Ok(options) => rounds::run(&options),
        Err(error) => {
            complain!("{error}");
            complain!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let (mut numbers, mut place, mut is_fenced) = (Vec::new(), Place::File, true);
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        match &**argument {
            "--postgres" => {
                let url = arguments.next_if(|next| next.contains("://"));
                place = url.map_or(Place::OwnServer, |url| Place::Url(url.clone()));
            }
            "--sabotage" => is_fenced = false,
            number => {
                let number = number.parse::<u64>();
                numbers.push(number.map_err(|_| format!("{argument:?} is no number"))?);
            }
        }
    }
    let (rounds, seed) = match numbers[..] {
        [] => (50, 7),
        [rounds] => (rounds, 7),
        [rounds, seed] => (rounds, seed),
        _ => return Err("more than two numbers".to_owned()),
    };
    Ok(Options {
        rounds: u32::try_from(rounds).map_err(|_| format!("{rounds} rounds are too many"))?,
        seed,
        place,
        is_fenced,
    })
}
