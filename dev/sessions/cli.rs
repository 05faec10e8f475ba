//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use lexopt::{Error, Parser};

pub(crate) const HELP: &str = "\
Session expiry on the map of tourbillon.

Usage:
  sessions [OPTIONS]            producers create and touch sessions in real time
  sessions PATH [--idle TIME]   replays an access log; `-` is standard input

A log is in the Common or the Combined Log Format, with or without the virtual
host in front.

Options:
  --idle TIME     a session ends after this time without a request: 3600s, 30m, 1h, 500ms
                  (default: 30m for a log, 5s in real time)
  --seconds N     how long the run in real time takes, its end included (default: 30)
  --sessions N    how many sessions there are to create and touch (default: 1000000)
  --producers N   threads that create and touch them (default: one per core, at least 2)
  --flat-out      producers do all that they can, and leave no core to the engine;
                  without it they do about 200,000 operations a second in all
  --slow N        N handlers sleep 500 ms each, spread over the run (default: 0)
  -h, --help      this text
  -V, --version   the version of the crate

A replay prints one line on stdout:
  requests N clients N sessions N longest SECONDS total_duration SECONDS max_hits N
A run in real time shows how it goes: how many sessions there are, and of the last
second the rates, and how late handlers began (half of them, and 99 %). It ends
with a table of lateness and one of what happened to every session. An
interrupt (Ctrl-C) ends it early, with its table; a second one kills it.

Exit code: 0 if all went well, 1 if sessions were lost, 2 if the command line is
at fault, the log cannot be read, or none of its lines parses.
";

/// The longest idle time. Together with the years that a log may span it stays below the 584 years
/// of the engine's clock.
const LONGEST_IDLE: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The request of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Live(LiveOptions),
    Replay { path: PathBuf, idle: Duration },
}

/// The options of a run in real time. Only `slow` may be zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveOptions {
    pub(crate) idle: Duration,
    pub(crate) seconds: u64,
    pub(crate) sessions: u64,
    pub(crate) producers: u64,
    pub(crate) slow: u64,
    /// Whether producers never rest.
    pub(crate) flat_out: bool,
}

/// Parses the arguments after the program's name. An error is one line for the user.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = Parser::from_args(args);
    let mut paths: Vec<OsString> = Vec::new();
    // The last of two values could win silently, which would hide a typing error.
    let mut given: Vec<(&str, String)> = Vec::new();
    while let Some(arg) = parser.next().map_err(|error| fault(&error))? {
        let name = match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("idle") => "--idle",
            Long("seconds") => "--seconds",
            Long("sessions") => "--sessions",
            Long("producers") => "--producers",
            Long("slow") => "--slow",
            Long("flat-out") => FLAT_OUT,
            // A path need not be UTF-8.
            Value(path) => {
                paths.push(path);
                continue;
            }
            other => return Err(fault(&other.unexpected())),
        };
        let value = match name {
            FLAT_OUT => OsString::new(),
            _ => parser.value().map_err(|error| fault(&error))?,
        };
        if given.iter().any(|(earlier, _)| *earlier == name) {
            return Err(format!("{name} is given twice"));
        }
        given.push((name, value.to_string_lossy().into_owned()));
    }
    let find = |name: &str| {
        let found = given.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| &**value)
    };
    // The two kinds of runs have different defaults.
    let idle = |default: u64| find("--idle").map_or(Ok(Duration::from_secs(default)), parse_idle);
    // A path asks for a replay, which takes no option of a run in real time.
    let mut paths = paths.into_iter();
    if let Some(path) = paths.next() {
        if paths.next().is_some() {
            return Err("more than one log is given".to_owned());
        }
        if let Some((name, _)) = given.iter().find(|(name, _)| *name != "--idle") {
            return Err(format!(
                "{name} is for runs in real time and makes no sense with a log"
            ));
        }
        return Ok(Command::Replay {
            path: path.into(),
            idle: idle(30 * 60)?,
        });
    }
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get() as u64);
    let number = |name: &str, default: u64, least: u64, most: u64| {
        let Some(value) = find(name) else {
            return Ok(default);
        };
        // `parse` alone would also accept a leading `+`.
        let valid = value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value
            .parse()
            .ok()
            .filter(|n| valid && (least..=most).contains(n));
        number.ok_or_else(|| format!("{name} takes a number from {least} to {most}, not {value:?}"))
    };
    Ok(Command::Live(LiveOptions {
        idle: idle(5)?,
        seconds: number("--seconds", 30, 1, 86_400)?,
        sessions: number("--sessions", 1_000_000, 1, 100_000_000)?,
        producers: number("--producers", cores.clamp(2, 64), 1, 256)?,
        slow: number("--slow", 0, 0, 100_000)?,
        flat_out: find(FLAT_OUT).is_some(),
    }))
}

const FLAT_OUT: &str = "--flat-out";

/// One line for the user.
fn fault(error: &Error) -> String {
    match error {
        Error::UnexpectedOption(name) => {
            format!("unknown option {name}; --help lists the options")
        }
        Error::MissingValue { option: Some(name) } => format!("{name} needs a value"),
        Error::UnexpectedValue { option, .. } => format!("{option} takes no value"),
        error => error.to_string(),
    }
}

fn parse_idle(value: &str) -> Result<Duration, String> {
    let idle = parse_duration(value).ok_or_else(|| {
        format!("--idle takes a time such as 3600s, 30m, 1h or 500ms, not {value:?}")
    })?;
    if idle.is_zero() {
        return Err("--idle takes a time above zero".to_owned());
    }
    if idle > LONGEST_IDLE {
        return Err(format!("--idle takes at most 100 years, not {value:?}"));
    }
    Ok(idle)
}

/// Parses a whole number with its unit: `ms`, `s`, `m`, `h` or `d`. A number without a unit is
/// refused, since the unit would be a guess.
fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit_at].parse().ok()?;
    let seconds = match &text[unit_at..] {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Command, String> {
        parse(words.iter().map(OsString::from))
    }

    #[test]
    fn no_argument_runs_in_real_time() {
        let Ok(Command::Live(options)) = parse_words(&[]) else {
            panic!("no argument is the live mode");
        };
        assert!((2..=64).contains(&options.producers));
        let producers = options.producers;
        let expected = LiveOptions {
            idle: Duration::from_secs(5),
            seconds: 30,
            sessions: 1_000_000,
            producers,
            slow: 0,
            flat_out: false,
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn options_take_their_value_in_both_ways() {
        let expected = Ok(Command::Live(LiveOptions {
            idle: Duration::from_millis(500),
            seconds: 4,
            sessions: 1_000,
            producers: 3,
            slow: 2,
            flat_out: true,
        }));
        let words = "--idle 500ms --seconds 4 --sessions 1000 --producers 3 --slow 2 --flat-out";
        let words: Vec<_> = words.split(' ').collect();
        assert_eq!(parse_words(&words), expected);
        let words = "--flat-out --slow=2 --producers=3 --sessions=1000 --seconds=4 --idle=500ms";
        let words: Vec<_> = words.split(' ').collect();
        assert_eq!(parse_words(&words), expected);
    }

    #[test]
    fn a_path_is_replayed() {
        let replay = |path: &str, seconds| {
            Ok(Command::Replay {
                path: path.into(),
                idle: Duration::from_secs(seconds),
            })
        };
        assert_eq!(parse_words(&["a.log"]), replay("a.log", 1_800));
        assert_eq!(parse_words(&["-"]), replay("-", 1_800));
        assert_eq!(
            parse_words(&["a.log", "--idle", "1h"]),
            replay("a.log", 3_600)
        );
        assert_eq!(
            parse_words(&["--idle", "2d", "a.log"]),
            replay("a.log", 172_800)
        );
        assert_eq!(
            parse_words(&["--idle", "90s", "--", "--slow"]),
            replay("--slow", 90)
        );
    }

    #[test]
    fn help_wins() {
        assert_eq!(parse_words(&["--help"]), Ok(Command::Help));
        assert_eq!(parse_words(&["a.log", "-h"]), Ok(Command::Help));
        assert_eq!(parse_words(&["--version"]), Ok(Command::Version));
        assert_eq!(parse_words(&["a.log", "-V"]), Ok(Command::Version));
    }

    #[test]
    fn faults_are_named() {
        for (words, fault) in [
            (&["--fast"][..], "unknown option --fast"),
            (&["-x"], "unknown option -x"),
            (&["--idle"], "--idle needs a value"),
            (&["a.log", "--idle", "3600"], "\"3600\""),
            (&["a.log", "--idle", ""], "\"\""),
            (&["a.log", "--idle", "s"], "\"s\""),
            (&["a.log", "--idle", "1.5h"], "\"1.5h\""),
            (&["a.log", "--idle", "-5s"], "\"-5s\""),
            (&["a.log", "--idle", "5 s"], "\"5 s\""),
            (&["a.log", "--idle", "1week"], "\"1week\""),
            (
                &["a.log", "--idle", "99999999999999999999s"],
                "\"99999999999999999999s\"",
            ),
            (
                &["a.log", "--idle", "999999999999999999d"],
                "\"999999999999999999d\"",
            ),
            (&["a.log", "--idle", "0s"], "above zero"),
            (&["a.log", "--idle", "36501d"], "100 years"),
            (&["a.log", "b.log"], "more than one log"),
            (&["a.log", "--slow", "3"], "--slow is for runs in real time"),
            (&["--slow", "1", "--slow", "2"], "--slow is given twice"),
            (&["--flat-out=yes"], "--flat-out takes no value"),
            (
                &["a.log", "--flat-out"],
                "--flat-out is for runs in real time",
            ),
            (&["--seconds", "0"], "--seconds takes a number from 1"),
            (&["--seconds", "+5"], "\"+5\""),
            (&["--producers", "x"], "--producers takes a number"),
            (&["--sessions="], "--sessions takes a number"),
        ] {
            let answer = parse_words(words).expect_err("a fault");
            assert!(answer.contains(fault), "{words:?}: {answer}");
        }
    }
}
