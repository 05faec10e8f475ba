//! The command line, parsed by hand: a few options need no dependency.

use std::path::PathBuf;

use crate::workloads::Form;
use crate::{systems, workloads};

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Run(Options),
    /// The document made of an earlier run's JSON, to stdout.
    Show(PathBuf),
    /// Hidden: this process is a child of a run.
    Child(Order),
    /// Hidden: this process becomes the driver of a child.
    Drive(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) form: Form,
    pub(crate) rounds: usize,
    /// Names of workloads; all if empty.
    pub(crate) only: Vec<String>,
    /// Names of systems; all if empty.
    pub(crate) systems: Vec<String>,
    /// Also the systems in other languages.
    pub(crate) foreign: bool,
    /// The form's own if empty.
    pub(crate) keys: Vec<u64>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
}

/// What a child is to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) system: String,
    pub(crate) workload: String,
    pub(crate) keys: u64,
}

/// The hidden subcommand; its arguments are system, workload and number of keys.
pub(crate) const CHILD: &str = "child";

/// The hidden subcommand whose arguments are another program and what that gets.
pub(crate) const DRIVE: &str = "drive";

const ROUNDS: [usize; 3] = [5, 3, 1];

pub(crate) fn help() -> String {
    let mut text = String::from(
        "\
Timers of tourbillon and of its peers on the same work, in one run.

Usage: cargo run --release -p benches -- [OPTIONS]

Options:
  --quick          up to 1 M keys, less of everything, 3 rounds: within five minutes
  --smoke          everything once, as small as it goes: shows that it works, measures nothing
  --rounds N       rounds of every figure, interleaved between the systems (default: 5)
  --only W,..      only these workloads
  --system S,..    only these systems
  --foreign        also the systems in other languages; --system takes them too, and --smoke
  --keys N,..      how many keys, where a workload leaves the choice
  --json FILE      writes machine, versions, commit, command and every round
  --markdown FILE  writes the same as a document
  --show FILE      runs nothing: prints the document of a file that --json wrote
  -h, --help       this text

Workloads:
",
    );
    for workload in workloads::ALL {
        text += &format!("  {:<17}  {}\n", workload.name, workload.about);
    }
    text += "\nSystems:\n";
    for system in systems::ALL {
        text += &format!("  {:<17}  {}\n", system.name, system.about);
    }
    text + "\nThe table goes to stdout, progress to stderr.\n"
}

/// Parses the arguments after the program's name; an error is one line for the user.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut args = args.into_iter().peekable();
    if args.next_if(|first| first == CHILD).is_some() {
        return child(&args.collect::<Vec<_>>());
    }
    if args.next_if(|first| first == DRIVE).is_some() {
        let words: Vec<String> = args.collect();
        if words.is_empty() {
            return Err(format!("{DRIVE} is for the program itself"));
        }
        return Ok(Command::Drive(words));
    }
    let mut form = Form::Full;
    let mut rounds = None;
    let mut keys = Vec::new();
    let mut only = Vec::new();
    let mut named = Vec::new();
    let mut foreign = false;
    let mut json = None;
    let mut markdown = None;
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&*arg, None),
        };
        let mut value = || {
            inline
                .clone()
                .or_else(|| args.next())
                .ok_or_else(|| format!("{name} needs a value"))
        };
        match name {
            "-h" | "--help" => return Ok(Command::Help),
            "--quick" => form = Form::Quick,
            "--smoke" => form = Form::Smoke,
            "--foreign" => foreign = true,
            "--rounds" => rounds = Some(number_of(name, &value()?, 1)? as usize),
            "--keys" => {
                for number in value()?.split(',') {
                    keys.push(number_of(name, number, 0)?);
                }
            }
            "--only" => {
                for wanted in value()?.split(',') {
                    let workload = workloads::find(wanted)
                        .ok_or_else(|| format!("no workload is called {wanted:?}; see --help"))?;
                    only.push(workload.name.to_owned());
                }
            }
            "--system" => {
                for wanted in value()?.split(',') {
                    let system = systems::named(wanted)
                        .next()
                        .ok_or_else(|| format!("no system is called {wanted:?}; see --help"))?;
                    named.push(system.name.to_owned());
                }
            }
            "--json" => json = Some(PathBuf::from(value()?)),
            "--markdown" => markdown = Some(PathBuf::from(value()?)),
            "--show" => return Ok(Command::Show(PathBuf::from(value()?))),
            _ => return Err(format!("unknown option {arg}; --help lists the options")),
        }
    }
    Ok(Command::Run(Options {
        form,
        rounds: rounds.unwrap_or(ROUNDS[form as usize]),
        only,
        systems: named,
        foreign,
        keys,
        json,
        markdown,
    }))
}

fn child(args: &[String]) -> Result<Command, String> {
    let [system, workload, keys] = args else {
        return Err(format!("{CHILD} is for the program itself"));
    };
    Ok(Command::Child(Order {
        system: system.clone(),
        workload: workload.clone(),
        keys: number_of("keys", keys, 0)?,
    }))
}

fn number_of(name: &str, text: &str, least: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=1_000_000_000).contains(number))
        .ok_or_else(|| format!("{name} takes numbers from {least} to 1000000000, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_have_defaults_and_the_quick_form_others() {
        let Ok(Command::Run(full)) = parsed("") else {
            panic!("a run");
        };
        assert_eq!(
            (full.form, full.rounds, full.keys.len()),
            (Form::Full, 5, 0)
        );
        let Ok(Command::Run(quick)) =
            parsed("--quick --only=w2 --foreign --rounds 7 --keys 0,5 --json out.json")
        else {
            panic!("a run");
        };
        assert_eq!(
            (quick.form, quick.rounds, &quick.keys[..]),
            (Form::Quick, 7, &[0, 5][..])
        );
        assert_eq!(quick.only, ["W2"]);
        assert!(quick.foreign && !full.foreign);
        assert_eq!(quick.json, Some(PathBuf::from("out.json")));
        assert_eq!(parsed("-h"), Ok(Command::Help));
        let shown = Command::Show(PathBuf::from("x.json"));
        assert_eq!(parsed("--show x.json"), Ok(shown));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "--rounds 0",
            "--keys 1,x",
            "--only W99",
            "--system none",
            "--json",
            "--fast",
            "child a b",
            "drive",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("child tourbillon W2 10").is_ok());
    }
}
