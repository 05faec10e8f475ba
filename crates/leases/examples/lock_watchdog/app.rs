//! The program from its arguments to its exit code. Tests can replace the console.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};

use tourbillon::Clock;

use crate::cli::{self, Command, Options};
use crate::contest::{Contest, Failure, Place, Summary};
use crate::holder::Millis;
#[cfg(feature = "redis")]
use crate::processes;
use crate::threads::Threads;

/// The run succeeded.
pub(crate) const FINE: u8 = 0;
/// There was an overlap, or the run did not reach its end.
pub(crate) const FAILED: u8 = 1;
/// The command line is invalid, or there is no server.
pub(crate) const USAGE: u8 = 2;

/// Standard output and standard error.
pub(crate) struct Console<'a> {
    pub(crate) out: &'a mut dyn Write,
    pub(crate) err: &'a mut dyn Write,
}

impl Console<'_> {
    /// Writes one line to standard error. An error is ignored, since it could not be reported.
    fn complain(&mut self, line: &str) {
        let _ = writeln!(self.err, "lock_watchdog: {line}");
    }
}

/// Runs the program with the arguments after its name, and returns its exit code. Holders that are
/// processes run `program`.
pub(crate) fn run(
    program: &OsStr,
    args: impl IntoIterator<Item = OsString>,
    mut console: Console<'_>,
) -> u8 {
    let words = args.into_iter().map(OsString::into_string);
    let words: Result<Vec<_>, _> = words.collect();
    let command = match words {
        Ok(words) => cli::parse(words),
        Err(word) => Err(format!("{} is no text", word.display())),
    };
    let outcome = match command {
        Err(fault) => {
            console.complain(&fault);
            return USAGE;
        }
        Ok(Command::Help) => console.out.write_all(cli::HELP.as_bytes()).map(|()| FINE),
        Ok(Command::Version) => {
            let version = env!("CARGO_PKG_VERSION");
            writeln!(console.out, "lock_watchdog (tourbillon-leases) {version}").map(|()| FINE)
        }
        Ok(Command::Contest(options)) => contest(program, &options, &mut console),
        #[cfg(feature = "redis")]
        Ok(Command::Hold {
            name,
            lock,
            options,
        }) => return processes::hold(name, lock, &options),
        #[cfg(not(feature = "redis"))]
        Ok(Command::Hold { name, lock, .. }) => {
            console.complain(&format!("{name} can't hold {lock}: {WITHOUT}"));
            return USAGE;
        }
    };
    match outcome.and_then(|code| console.out.flush().map(|()| code)) {
        Ok(code) => code,
        // A reader that closed the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => FINE,
        Err(error) => {
            console.complain(&format!("cannot write: {error}"));
            FAILED
        }
    }
}

#[cfg(not(feature = "redis"))]
const WITHOUT: &str = "this was built without Redis: run it with `--features redis`, as in \
    `cargo run --release -p tourbillon-leases --example lock_watchdog --features redis -- \
    --redis redis://127.0.0.1/`";

/// Runs the contest. The errors are those of writing.
fn contest(program: &OsStr, options: &Options, console: &mut Console<'_>) -> io::Result<u8> {
    let clock = Clock::boottime();
    let place = match place(program, options, &clock, console)? {
        Ok(place) => place,
        Err(fault) => {
            console.complain(&fault);
            return Ok(USAGE);
        }
    };
    let (rounds, lease) = (options.rounds, Millis(options.lease));
    writeln!(
        console.out,
        "{}: leases of {lease}, {rounds} rounds",
        match &options.redis {
            Some(_) => "two processes fight for one lock on a Redis server",
            None => "two threads fight for one lock on the embedded store",
        }
    )?;
    match Contest::new(place.as_ref(), &clock, options.lease, console.out).run(rounds) {
        Ok(summary) => conclude(&summary, console),
        Err(Failure::Output(error)) => Err(error),
        Err(Failure::Contest(fault)) => {
            console.complain(&fault);
            Ok(FAILED)
        }
    }
}

#[allow(
    clippy::unnecessary_wraps,
    reason = "with the feature `redis` it can fail"
)]
fn place(
    program: &OsStr,
    options: &Options,
    clock: &Clock,
    console: &mut Console<'_>,
) -> io::Result<Result<Box<dyn Place>, String>> {
    let Some(url) = &options.redis else {
        let threads = Threads::new(clock, options.lease, options.sabotage);
        return Ok(Ok(Box::new(threads)));
    };
    #[cfg(feature = "redis")]
    let place = processes::place(program, url, options, clock, console.out)?;
    #[cfg(not(feature = "redis"))]
    let place = {
        let _ = (program, url, console);
        Err(WITHOUT.to_owned())
    };
    Ok(place)
}

/// Writes the last lines.
fn conclude(summary: &Summary, console: &mut Console<'_>) -> io::Result<u8> {
    let verdict = &summary.verdict;
    if let Some(closest) = verdict.closest {
        let closest = Millis(closest);
        writeln!(
            console.out,
            "from the last yes of one that was killed to the call that was granted next: {closest} at least"
        )?;
    }
    if verdict.undecided > 0 {
        let undecided = verdict.undecided;
        writeln!(
            console.out,
            "last yeses while the call that was granted next was under way, which proves nothing: {undecided}"
        )?;
    }
    if verdict.out_of_order > 0 {
        let line = format!("{} tokens did not grow", verdict.out_of_order);
        console.complain(&line);
    }
    writeln!(console.out, "{summary}")?;
    let fine = verdict.overlaps == 0 && verdict.out_of_order == 0;
    Ok(if fine { FINE } else { FAILED })
}
