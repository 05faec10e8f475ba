//! What was asked for.

use std::time::Duration;

use super::holder::{HOLDER, Sabotage};

pub(crate) const HELP: &str = "\
Locks on Redis servers of this program's own, while servers, connections and holders fail.

    --rounds N    this many; 1,000
    --minutes N   begin no round after this time
    --seed N      chooses the faults; by the clock
    --servers N   run at the same time; 4
    --locks N     of each server; 4
    --teeth       does it wrong on purpose, in each way, and expects that to be found
    --sabotage W  does it wrong in one way: unguarded, deaf, leak

Exit code 1 if two ever held a lock at a time, by what they believed, if a token did not increase, or
if something was left; 2 if it could not run.
";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) limit: Option<Duration>,
    pub(crate) seed: Option<u64>,
    pub(crate) servers: usize,
    pub(crate) locks: usize,
    pub(crate) sabotage: Option<Sabotage>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Help,
    Run(Options),
    Teeth(Options),
    /// One of the holders; its order.
    Holder(String),
}

pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut options = Options {
        rounds: 1_000,
        limit: None,
        seed: None,
        servers: 4,
        locks: 4,
        sabotage: None,
    };
    let mut teeth = false;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            HOLDER => return Ok(Command::Holder(value()?)),
            "--rounds" => options.rounds = number(&value()?, 1, 1_000_000)?,
            "--minutes" => {
                let minutes = number(&value()?, 1, 10_000)?;
                options.limit = Some(Duration::from_secs(60) * minutes as u32);
            }
            "--seed" => {
                let text = value()?;
                let seed = text.parse();
                options.seed = Some(seed.map_err(|_| format!("{text:?} is no seed"))?);
            }
            "--servers" => options.servers = number(&value()?, 1, 64)?,
            "--locks" => options.locks = number(&value()?, 1, 64)?,
            "--teeth" => teeth = true,
            "--sabotage" => {
                let way = value()?;
                let found = WAYS.iter().find(|(name, _)| *name == way);
                let (_, way) = found.ok_or(format!("{way:?} is no sabotage; see --help"))?;
                options.sabotage = Some(*way);
            }
            _ => return Err(format!("unknown option {arg}; --help lists the options")),
        }
    }
    Ok(if teeth {
        Command::Teeth(options)
    } else {
        Command::Run(options)
    })
}

pub(crate) const WAYS: [(&str, Sabotage); 3] = [
    ("unguarded", Sabotage::Unguarded),
    ("deaf", Sabotage::Deaf),
    ("leak", Sabotage::Leak),
];

fn number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or(format!("{text:?} is no number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_have_defaults() {
        let Ok(Command::Run(options)) = parsed("--minutes 2 --seed 42") else {
            panic!("a run");
        };
        assert_eq!((options.rounds, options.seed), (1_000, Some(42)));
        assert_eq!(options.limit, Some(Duration::from_secs(120)));
        let Ok(Command::Teeth(options)) = parsed("--teeth --sabotage deaf") else {
            panic!("teeth");
        };
        assert_eq!(options.sabotage, Some(Sabotage::Deaf));
        assert_eq!(parsed("-h"), Ok(Command::Help));
        assert_eq!(parsed("holder {}"), Ok(Command::Holder("{}".to_owned())));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--rounds 0",
            "--seed x",
            "--minutes",
            "--sabotage none",
            "x",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
