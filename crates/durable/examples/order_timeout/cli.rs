//! The command line, parsed by hand: a few options are not worth a dependency.

use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Orders are paid in time, or their durable timers cancel them, while worker processes are killed.

Usage:
  order_timeout [OPTIONS]

Options:
  --seconds N            how long the shops take orders, 1 to 600 (default: 10); the run ends a few
                         seconds later, when the last order is paid or cancelled
  --orders-per-second N  how many orders all shops create, 1 to 2000 (default: 200)
  --workers N            the number of worker processes, 1 to 16 (default: 3); one of them is killed
                         every second or two, and started again
  --file PATH            the SQLite file (default: one in a temporary folder, which is removed);
                         orders that an earlier run left in it are ended, too
  --postgres URL         a PostgreSQL server instead (feature `postgres`); its schema order_timeout
                         is dropped and created anew
  --sabotage             payments leave the timers alone and handlers do not look at payments, to
                         show that this is noticed
  -h, --help             this text
  -V, --version          the version of the crate

The last line on stdout is
  orders N paid N cancelled N both N neither N
counted in the tables of the database. Both: orders that were paid and cancelled. Neither: orders
that were neither.

SIGTERM and SIGINT end the shops; the last orders are still paid or cancelled. The second signal
ends the program at once, and its workers with it.

Exit code: 0 if each order was either paid or cancelled, and once; 1 if not, or if the run failed;
2 if the command line is at fault.
";

/// The request of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Version,
    Run(Options),
    /// The program was started by itself, as the worker with this number.
    Work {
        number: u32,
        options: Options,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) seconds: u32,
    pub(crate) orders_per_second: u32,
    pub(crate) workers: u32,
    pub(crate) file: Option<PathBuf>,
    pub(crate) postgres: Option<String>,
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
            "--seconds"
            | "--orders-per-second"
            | "--workers"
            | "--file"
            | "--postgres"
            | "--work" => value
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
    let file = find("--file").map(PathBuf::from);
    if file
        .as_ref()
        .is_some_and(|file| file.as_os_str().is_empty())
    {
        return Err("--file takes the path of a file, not \"\"".to_owned());
    }
    if file.is_some() && find("--postgres").is_some() {
        return Err("--file and --postgres exclude each other".to_owned());
    }
    let options = Options {
        seconds: number("--seconds", 10, 1, 600)?,
        orders_per_second: number("--orders-per-second", 200, 1, 2_000)?,
        workers: number("--workers", 3, 1, 16)?,
        file,
        postgres: find("--postgres").cloned(),
        sabotage: find("--sabotage").is_some(),
    };
    // Only a parent process uses this option, to start a worker.
    match find("--work") {
        None => Ok(Command::Run(options)),
        Some(_) => Ok(Command::Work {
            number: number("--work", 0, 0, u32::MAX)?,
            options,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &str) -> Result<Command, String> {
        parse(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_have_defaults_and_take_their_value_in_both_ways() {
        let defaults = Options {
            seconds: 10,
            orders_per_second: 200,
            workers: 3,
            file: None,
            postgres: None,
            sabotage: false,
        };
        assert_eq!(parse_words(""), Ok(Command::Run(defaults)));
        let given = Options {
            seconds: 2,
            orders_per_second: 50,
            workers: 1,
            file: Some(PathBuf::from("x.db")),
            postgres: None,
            sabotage: true,
        };
        let words = "--seconds 2 --orders-per-second=50 --workers 1 --file=x.db --sabotage";
        assert_eq!(parse_words(words), Ok(Command::Run(given.clone())));
        assert_eq!(parse_words("--seconds 3 -h"), Ok(Command::Help));
        assert_eq!(parse_words("--version"), Ok(Command::Version));
        let expected = Command::Work {
            number: 7,
            options: given,
        };
        assert_eq!(parse_words(&format!("{words} --work 7")), Ok(expected));
    }

    #[test]
    fn faults_are_named() {
        for (words, fault) in [
            ("--fast", "unknown option --fast"),
            ("shop.db", "is no option"),
            ("--seconds", "--seconds needs a value"),
            ("--seconds 0", "a number from 1 to 600, not \"0\""),
            ("--seconds +1", "\"+1\""),
            ("--orders-per-second 2001", "a number from 1 to 2000"),
            ("--workers 17", "a number from 1 to 16"),
            ("--workers 1 --workers 1", "--workers is given twice"),
            ("--file=", "the path of a file"),
            ("--file x.db --postgres host=x", "exclude each other"),
            ("--sabotage=1", "--sabotage takes no value"),
        ] {
            let answer = parse_words(words).expect_err("a fault");
            assert!(answer.contains(fault), "{words:?}: {answer}");
        }
    }
}
