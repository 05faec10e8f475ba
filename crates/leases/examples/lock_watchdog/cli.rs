//! The command line, parsed by hand: four options are not worth a dependency.

use std::time::Duration;

pub(crate) const HELP: &str = "\
Two holders fight for one lock; who holds it is killed, and the other takes over.

Usage:
  lock_watchdog [OPTIONS]

Options:
  --rounds N      how many times the lock changes hands, 1 to 1000 (default: 14); every fourth time
                  it is given back, in the others its holder is killed
  --lease MS      how long a lease is, 100 to 10000 (default: 500)
  --redis URL     on this Redis server, with holders that are processes (feature `redis`); without
                  it on the embedded store, with holders that are threads
  --sabotage      holders go on when they have lost the lock, to show that this is noticed
  -h, --help      this text
  -V, --version   the version of the crate

The last line on stdout is
  rounds N takeovers N overlaps N
An overlap: a holder's is_held() said yes when the next holder had the lock already.

Exit code: 0 if all went well, 1 if there was an overlap or a takeover failed, 2 if the command line
is at fault or there is no server.
";

/// The request of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Contest(Options),
    /// The program was started by itself, as a holder whose orders come from stdin.
    Hold {
        name: String,
        lock: String,
        options: Options,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) lease: Duration,
    pub(crate) redis: Option<String>,
    pub(crate) sabotage: bool,
}

/// Parses the arguments after the program's name. An error is one line for the user.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut args = args.into_iter();
    let mut given: Vec<(String, String)> = Vec::new();
    while let Some(arg) = args.next() {
        if matches!(&*arg, "-h" | "--help") {
            return Ok(Command::Help);
        }
        if matches!(&*arg, "-V" | "--version") {
            return Ok(Command::Version);
        }
        // Both `--name=value` and `--name value` are accepted.
        let (name, value) = match arg.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        let value = match &*name {
            "--sabotage" if value.is_none() => String::new(),
            "--sabotage" => return Err("--sabotage takes no value".to_owned()),
            "--rounds" | "--lease" | "--redis" | "--hold" | "--lock" => value
                .or_else(|| args.next())
                .ok_or_else(|| format!("{name} needs a value"))?,
            _ if name.starts_with('-') => {
                return Err(format!("unknown option {name}; --help lists the options"));
            }
            _ => return Err(format!("{name:?} is no option; --help lists the options")),
        };
        // The last of two values could win silently, which would hide a typing error.
        if given.iter().any(|(earlier, _)| *earlier == name) {
            return Err(format!("{name} is given twice"));
        }
        given.push((name, value));
    }
    let find = |name: &str| {
        given
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value)
    };
    let number = |name: &str, default: u32, least: u32, most: u32| {
        let Some(value) = find(name) else {
            return Ok(default);
        };
        // `parse` alone would also accept a leading `+`.
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value
            .parse()
            .ok()
            .filter(|n| digits && (least..=most).contains(n));
        number.ok_or_else(|| format!("{name} takes a number from {least} to {most}, not {value:?}"))
    };
    let options = Options {
        rounds: number("--rounds", 14, 1, 1_000)?,
        lease: Duration::from_millis(number("--lease", 500, 100, 10_000)?.into()),
        redis: find("--redis").cloned(),
        sabotage: find("--sabotage").is_some(),
    };
    // Only a parent process uses these two options, to start a holder.
    match (find("--hold"), find("--lock")) {
        (None, None) => Ok(Command::Contest(options)),
        (Some(name), Some(lock)) => Ok(Command::Hold {
            name: name.clone(),
            lock: lock.clone(),
            options,
        }),
        _ => Err("a holder needs --hold and --lock".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, String> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    fn options(rounds: u32, millis: u64, redis: Option<&str>, sabotage: bool) -> Options {
        Options {
            rounds,
            lease: Duration::from_millis(millis),
            redis: redis.map(str::to_owned),
            sabotage,
        }
    }

    #[test]
    fn options_have_defaults_and_take_their_value_in_both_ways() {
        let contest = |options| Ok(Command::Contest(options));
        assert_eq!(parse_words(""), contest(options(14, 500, None, false)));
        let given = options(3, 200, Some("redis://127.0.0.1/"), true);
        let words = "--rounds 3 --lease=200 --sabotage --redis redis://127.0.0.1/";
        assert_eq!(parse_words(words), contest(given.clone()));
        assert_eq!(parse_words("--rounds 3 -h"), Ok(Command::Help));
        assert_eq!(parse_words("--rounds 3 -V"), Ok(Command::Version));
        assert_eq!(parse_words("--version"), Ok(Command::Version));
        let hold = format!("{words} --hold A --lock x");
        let expected = Command::Hold {
            name: "A".to_owned(),
            lock: "x".to_owned(),
            options: given,
        };
        assert_eq!(parse_words(&hold), Ok(expected));
    }

    #[test]
    fn faults_are_named() {
        for (words, fault) in [
            ("--fast", "unknown option --fast"),
            ("redis://127.0.0.1/", "is no option"),
            ("--rounds", "--rounds needs a value"),
            ("--rounds 0", "a number from 1 to 1000, not \"0\""),
            ("--rounds +1", "\"+1\""),
            ("--lease 99", "a number from 100 to 10000"),
            ("--lease 1s", "\"1s\""),
            ("--lease 100 --lease 100", "--lease is given twice"),
            ("--sabotage=1", "--sabotage takes no value"),
            ("--hold A", "--hold and --lock"),
        ] {
            let answer = parse_words(words).expect_err("a fault");
            assert!(answer.contains(fault), "{words:?}: {answer}");
        }
    }
}
