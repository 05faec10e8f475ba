//! The program from its arguments to its exit code. Tests can replace the console.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::about;
use crate::cli::{self, Command};
use crate::log::{Log, Packed};
use crate::progress::Bar;
use crate::{live, replay};

/// The run succeeded.
pub(crate) const FINE: u8 = 0;
/// The engine lost something, or the output could not be written.
pub(crate) const FAILED: u8 = 1;
/// The command line or the log is invalid.
pub(crate) const USAGE: u8 = 2;

/// The path that stands for standard input.
const STDIN: &str = "-";

/// The seed for the order in which a replay's shards and workers take steps. Any other seed gives
/// the same summary.
const SEED: u64 = 1;

/// Standard input, standard output and standard error, and the terminal behind them.
pub(crate) struct Console<'a> {
    pub(crate) input: &'a mut dyn Read,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) err: &'a mut dyn Write,
    pub(crate) out_is_terminal: bool,
    pub(crate) err_is_terminal: bool,
    /// Returns the current width of the terminal.
    pub(crate) columns: fn() -> usize,
    /// Makes an interrupt set the flag from now on. A second interrupt ends the program.
    pub(crate) interrupts: &'a dyn Fn() -> io::Result<Arc<AtomicBool>>,
}

impl Console<'_> {
    /// Writes one line to standard error. An error is ignored, since it could not be reported.
    fn complain(&mut self, line: &str) {
        let _ = writeln!(self.err, "sessions: {line}");
    }
}

/// Runs the program with the arguments after its name, and returns its exit code.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>, mut console: Console<'_>) -> u8 {
    let outcome = match cli::parse(args) {
        Err(fault) => {
            console.complain(&fault);
            return USAGE;
        }
        Ok(Command::Help) => console.out.write_all(cli::HELP.as_bytes()).map(|()| FINE),
        Ok(Command::Version) => {
            let version = about::version("sessions");
            console.out.write_all(version.as_bytes()).map(|()| FINE)
        }
        Ok(Command::Replay { path, idle }) => replay_file(&path, idle, &mut console),
        Ok(Command::Live(options)) => live::run(&options, &mut console).map(|kept| match kept {
            true => FINE,
            false => FAILED,
        }),
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

/// Replays a log. The errors are those of writing.
fn replay_file(path: &Path, idle: Duration, console: &mut Console<'_>) -> io::Result<u8> {
    let log = match read_file(path, console) {
        Ok(log) => log,
        Err(error) => {
            console.complain(&format!("cannot read {}: {error}", path.display()));
            return Ok(USAGE);
        }
    };
    if let Some(fault) = unusable(path, &log) {
        console.complain(&fault);
        return Ok(USAGE);
    }
    if let Some(first) = log.first_broken {
        let lines = if log.broken == 1 {
            "line does"
        } else {
            "lines do"
        };
        let line = format!(
            "{} {lines} not parse, the first is line {first}",
            log.broken
        );
        console.complain(&line);
    }
    let total = log.requests.len() as u64;
    let mut bar = bar("replaying", total, console);
    let summary = replay::replay(&log, idle, SEED, |done| bar.show(done));
    drop(bar);
    match summary {
        Ok(summary) => writeln!(console.out, "{summary}").map(|()| FINE),
        Err(fault) => {
            console.complain(&fault);
            Ok(FAILED)
        }
    }
}

fn read_file(path: &Path, console: &mut Console<'_>) -> io::Result<Log> {
    if path == Path::new(STDIN) {
        // The length of the input is unknown, so there is no progress bar.
        return Log::read(BufReader::new(&mut *console.input), |_| ());
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut bar = bar("reading", size, console);
    Log::read(BufReader::new(file), |read| bar.show(read))
}

fn bar<'a>(label: &'static str, total: u64, console: &'a mut Console<'_>) -> Bar<'a> {
    let columns = (console.columns)();
    Bar::new(
        label,
        total,
        console.err,
        console.err_is_terminal.then_some(columns),
    )
}

/// Returns why a log can't be replayed as a whole, as one line for the user. An empty log is valid.
fn unusable(path: &Path, log: &Log) -> Option<String> {
    let name = match path {
        path if path == Path::new(STDIN) => "standard input".into(),
        path => path.to_string_lossy(),
    };
    if let Some(Packed { format, unpack }) = log.packed {
        let advice = match path {
            path if path == Path::new(STDIN) => format!("unpack it with `{unpack}` first"),
            _ => format!("unpack it first: {unpack} {name} | sessions -"),
        };
        return Some(format!("{name} is compressed with {format}; {advice}"));
    }
    if !log.requests.is_empty() || log.broken == 0 {
        return None;
    }
    let excerpt = String::from_utf8_lossy(&log.excerpt);
    let excerpt = excerpt.trim();
    let what = if excerpt.starts_with(['{', '[']) {
        "this is JSON".to_owned()
    } else {
        // Escaped, so that the message stays on one line.
        let start: String = excerpt.chars().take(60).collect();
        format!("the first line begins with {start:?}")
    };
    let none = match log.broken {
        1 => format!("the only line of {name} is not"),
        broken => format!("none of the {broken} lines of {name} is"),
    };
    Some(format!(
        "{none} in the Common or Combined Log Format: {what}"
    ))
}
