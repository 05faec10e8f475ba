//! The command lines of the programs.
//!
//! `--help` and `--version` end with 0. A fault of the command line, or a server that is missing,
//! is one line and exit code 2; what was found or has failed is exit code 1.

use std::ops::RangeInclusive;
use std::process::ExitCode;

use lexopt::{Arg, Parser, ValueExt};

/// Why a program ends with another code than 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It has found what it looks for, and has said so.
    Found,
    /// It did not reach its end.
    Failed(String),
    /// It could not begin.
    Unusable(String),
}

/// The values of options.
#[derive(Debug)]
pub struct Values {
    parser: Parser,
    /// The option that was read last.
    option: String,
}

impl Values {
    /// The value of the option: a text.
    pub fn text(&mut self) -> Result<String, String> {
        let value = self.parser.value().and_then(ValueExt::string);
        value.map_err(|error| error.to_string())
    }

    /// The value of the option, if the next word can be one.
    pub fn optional(&mut self, can_be: impl FnOnce(&str) -> bool) -> Option<String> {
        let mut rest = self.parser.try_raw_args()?;
        rest.next_if(|next| next.to_str().is_some_and(can_be))
            .and_then(|word| word.into_string().ok())
    }

    /// The value of the option: a number of this range.
    pub fn number(&mut self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let text = self.text()?;
        number(&text, range).map_err(|what| format!("{} takes {what}", self.option))
    }
}

/// A number of this range.
pub fn number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    // `parse` alone would also accept a leading `+`.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|n| digits && range.contains(n));
    let (least, most) = range.into_inner();
    number.ok_or_else(|| format!("a number from {least} to {most}, not {text:?}"))
}

/// Reads the command line and runs the program. `option` is called with each word, and answers
/// whether it knows it.
pub fn run<O>(
    program: &str,
    help: &str,
    mut options: O,
    option: impl FnMut(&mut O, &str, &mut Values) -> Result<bool, String>,
    run: impl FnOnce(O) -> Result<(), Stop>,
) -> ExitCode {
    let ended = match read(Parser::from_env(), &mut options, option) {
        Ok(Asked::Help) => {
            say!("{}", help.trim_end());
            Ok(())
        }
        Ok(Asked::Version) => {
            say!("{program} (tourbillon) {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Ok(Asked::Run) => run(options),
        Err(fault) => Err(Stop::Unusable(format!("{fault}; --help lists the options"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Found) => ExitCode::FAILURE,
        Err(Stop::Failed(why)) => {
            complain!("{program}: {why}");
            ExitCode::FAILURE
        }
        Err(Stop::Unusable(why)) => {
            complain!("{program}: {why}");
            ExitCode::from(2)
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Asked {
    Help,
    Version,
    Run,
}

fn read<O>(
    parser: Parser,
    options: &mut O,
    mut option: impl FnMut(&mut O, &str, &mut Values) -> Result<bool, String>,
) -> Result<Asked, String> {
    let mut given: Vec<String> = Vec::new();
    let mut values = Values {
        parser,
        option: String::new(),
    };
    loop {
        let word = match values.parser.next().map_err(|error| error.to_string())? {
            None => return Ok(Asked::Run),
            Some(Arg::Short('h') | Arg::Long("help")) => return Ok(Asked::Help),
            Some(Arg::Short('V') | Arg::Long("version")) => return Ok(Asked::Version),
            Some(Arg::Short(letter)) => format!("-{letter}"),
            Some(Arg::Long(name)) => format!("--{name}"),
            Some(Arg::Value(word)) => word.string().map_err(|error| error.to_string())?,
        };
        // The last of two values could win silently, which would hide a typing error.
        if word.starts_with('-') && given.contains(&word) {
            return Err(format!("{word} is given twice"));
        }
        values.option.clone_from(&word);
        if !option(options, &word, &mut values)? {
            let kind = if word.starts_with('-') {
                "unknown option"
            } else {
                "unexpected word"
            };
            return Err(format!("{kind} {word}"));
        }
        given.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, PartialEq, Debug)]
    struct Options {
        size: u64,
        url: Option<String>,
        loud: bool,
        words: Vec<String>,
    }

    fn parsed(line: &str) -> Result<(Asked, Options), String> {
        let mut options = Options::default();
        let parser = Parser::from_args(line.split_whitespace());
        let asked = read(parser, &mut options, |options, word, values| {
            match word {
                "--size" => options.size = values.number(1..=9)?,
                "--url" => options.url = values.optional(|word| word.contains(':')),
                "--loud" => options.loud = true,
                _ if word.starts_with('-') => return Ok(false),
                _ => options.words.push(word.to_owned()),
            }
            Ok(true)
        })?;
        Ok((asked, options))
    }

    #[test]
    fn options_take_their_value_in_both_ways() {
        let (_, options) = parsed("--size 3 a --url x:y --loud b").unwrap();
        let expected = Options {
            size: 3,
            url: Some("x:y".to_owned()),
            loud: true,
            words: vec!["a".to_owned(), "b".to_owned()],
        };
        assert_eq!(options, expected);
        assert_eq!(parsed("--size=7 --url a").unwrap().1.size, 7);
        assert_eq!(parsed("--url a").unwrap().1.words, ["a"]);
        for (line, asked) in [
            ("--size 3 -h", Asked::Help),
            ("--help", Asked::Help),
            ("-V", Asked::Version),
            ("--version", Asked::Version),
            ("", Asked::Run),
        ] {
            assert_eq!(parsed(line).unwrap().0, asked, "{line}");
        }
    }

    #[test]
    fn faults_are_named() {
        for (line, fault) in [
            ("--fast", "unknown option --fast"),
            ("--size", "--size"),
            ("--size 0", "--size takes a number from 1 to 9, not \"0\""),
            ("--size +1", "\"+1\""),
            ("--size 1s", "\"1s\""),
            ("--size 1 --size 1", "--size is given twice"),
            ("--loud=1", "--loud"),
        ] {
            let answer = parsed(line).expect_err("a fault");
            assert!(answer.contains(fault), "{line:?}: {answer}");
        }
    }
}
