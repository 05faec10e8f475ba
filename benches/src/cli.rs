//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::prelude::*;
use lexopt::{Error, Parser};

use crate::figures::Made;
use crate::mode::Borders;
use crate::run::Options;
use crate::systems::{Order, SetUp};
use crate::wire::{CHILD, DRIVE};
use crate::workload::Form;
use crate::{systems, workloads};

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Run(Options),
    /// A run of what needs servers.
    Serve(Options),
    /// The document made of an earlier run's rows, to stdout, and its plots.
    Show(PathBuf, Made),
    /// The documents and plots of the repository, from its rows.
    Keep,
    /// The histogram of the ping-pong over this time.
    Modes(Duration, Borders),
    /// Hidden: this process is a child of a run.
    Child(Order),
    /// Hidden: this process becomes the driver of a child.
    Drive(Vec<String>),
}

pub(crate) fn help() -> String {
    let mut text = String::from(
        "\
Timers of tourbillon and of its peers on the same work, in one run.

Usage: cargo run --release -p benches -- [OPTIONS]

Options:
                   (all workloads, up to 10 M keys, 5 rounds of each: within an hour)
  --quick          up to 1 M keys, less of everything, 3 rounds: within five minutes
  --targets        what docs/performance.md needs, 5 rounds, --foreign, --mimalloc: about 50 minutes
  --smoke          everything once, as small as it goes: shows that it works, measures nothing
  --rounds N       rounds of every figure, interleaved between the systems; then the time has no bound
  --minutes N      how long it may take; what does not fit loses rounds, and is named
  --only W,..      only these workloads
  --system S,..    only these systems
  --durable        D1 to D12: durable timers on SQLite and PostgreSQL, about 15 minutes
  --leases         L1 to L5: leases on a Redis server, about five minutes
  --peers PROGRAM  D3 and D4 also with the job queues of that program, benches/durable-peers
  --foreign        also the systems in other languages; --system takes them too, and --smoke
  --mimalloc       W4 and W4i also with our boxed timers in a build with mimalloc
  --lto            W1, W1k, W2 and W3 also with ours in a build with link-time optimisation
  --keys N,..      how many keys, where a workload leaves the choice
  --threads N,..   how many threads, where a workload leaves the choice, and for W1, W1k and W1x
  --shards N,..    the schedulers and maps of tourbillon with so many shards ..
  --stripes N,..   .. and so many stripes, in place of their defaults
  --borders A,B    round trips (ns) below A are of two hyperthreads, from B on of cores that are far apart
                   (default: 45,160)
  --json FILE      writes machine, versions, commit, command and every round, a row a line
  --plots DIR      draws the figures into SVG files
  --keep           with --targets: writes benches/targets.jsonl, and what --keep alone does. Alone: runs
                   nothing, makes the documents and plots of the repository from benches/*.jsonl
  --show FILE      runs nothing: prints the document of a file that --json wrote, draws its --plots
  --modes SECONDS  runs nothing: prints how long round trips between cores take, as a histogram
  -h, --help       this text

Workloads:
",
    );
    for workload in workloads::every() {
        text += &format!("  {:<17}  {}\n", workload.name, workload.about);
    }
    text += "\nSystems:\n";
    for system in systems::ALL {
        text += &format!("  {:<17}  {}\n", system.name, system.about);
    }
    text + "\nThe table goes to stdout, progress to stderr.\n"
}

/// Parses the arguments after the program's name; an error is one line for the user.
pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Command, Error> {
    let mut args = Parser::from_args(args);
    let mut options = Options::default();
    let (mut shards, mut stripes) = (Vec::new(), Vec::new());
    let (mut show, mut modes) = (None, None);
    let made = &mut options.made;
    while let Some(arg) = args.next()? {
        match arg {
            Value(word) if word == CHILD => return child(&mut args),
            Value(word) if word == DRIVE => {
                let words = args.raw_args()?.map(ValueExt::string);
                return Ok(Command::Drive(words.collect::<Result<_, _>>()?));
            }
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("quick") => options.form = Form::Quick,
            Long("smoke") => options.form = Form::Smoke,
            Long("foreign") => options.foreign = true,
            Long("targets") => options.targets = true,
            Long("mimalloc") => options.mimalloc = true,
            Long("lto") => options.lto = true,
            Long("durable") => options.only.extend(servers_of('D')),
            Long("leases") => options.only.extend(servers_of('L')),
            Long("peers") => options.peers = Some(args.value()?.into()),
            Long("keep") => made.keep = true,
            Long("rounds") => options.rounds = Some(number(&mut args, 1)? as usize),
            Long("minutes") => {
                options.time = Some(Duration::from_secs(60 * number(&mut args, 1)?));
            }
            Long("keys") => options.keys.extend(numbers(&mut args, 0, MOST)?),
            Long("threads") => options.threads.extend(counts(&mut args)?),
            Long("shards") => shards.extend(counts(&mut args)?),
            Long("stripes") => stripes.extend(counts(&mut args)?),
            Long("borders") => {
                options.borders = match numbers(&mut args, 0, MOST)?[..] {
                    [low, high] if low < high => Borders::of(low as f64, high as f64),
                    _ => return Err("--borders takes two numbers, the lower one first".into()),
                }
            }
            Long("only") => {
                for wanted in args.value()?.string()?.split(',') {
                    let workload = workloads::find(wanted)
                        .ok_or_else(|| format!("no workload is called {wanted:?}; see --help"))?;
                    options.only.push(workload.name.to_owned());
                }
            }
            Long("system") => {
                for wanted in args.value()?.string()?.split(',') {
                    let system = systems::named(wanted)
                        .next()
                        .ok_or_else(|| format!("no system is called {wanted:?}; see --help"))?;
                    options.systems.push(system.name.to_owned());
                }
            }
            Long("json") => made.json = Some(args.value()?.into()),
            Long("plots") => made.plots = Some(args.value()?.into()),
            Long("show") => show = Some(args.value()?.into()),
            Long("modes") => modes = Some(Duration::from_secs(number(&mut args, 1)?)),
            other => return Err(other.unexpected()),
        }
    }
    options.foreign |= options.targets;
    options.mimalloc |= options.targets;
    options.set_ups = SetUp::all(&shards, &stripes);
    if made.keep && options.targets {
        if options.form != Form::Full {
            return Err("--keep is for the full form of --targets".into());
        }
        options.made = options.made.of_targets();
    }
    let on_servers = |name: &String| workloads::ON_SERVERS.iter().any(|other| other.name == name);
    let serve = options.only.iter().any(on_servers);
    if serve && !options.only.iter().all(on_servers) {
        return Err("D1 to D12 and L1 to L5 are measured in a run of their own".into());
    }
    Ok(match (show, modes) {
        (Some(rows), _) => Command::Show(rows, options.made),
        (_, Some(time)) => Command::Modes(time, options.borders),
        _ if options.made.keep && !options.targets => Command::Keep,
        _ if serve => Command::Serve(options),
        _ => Command::Run(options),
    })
}

fn servers_of(family: char) -> impl Iterator<Item = String> {
    let all = workloads::ON_SERVERS.iter();
    let of_family = all.filter(move |workload| workload.name.starts_with(family));
    of_family.map(|workload| workload.name.to_owned())
}

/// The arguments are system, workload, keys, shards, and stripes, the last two 0 for the default.
fn child(args: &mut Parser) -> Result<Command, Error> {
    let mut text = || args.value()?.string();
    let (system, workload) = (text()?, text()?);
    let keys = number(args, 0)?;
    let counts = [number(args, 0)?, number(args, 0)?];
    let [shards, stripes] = counts.map(|count| Some(count as usize).filter(|count| *count > 0));
    Ok(Command::Child(Order {
        system,
        workload,
        keys,
        set_up: SetUp { shards, stripes },
    }))
}

const MOST: u64 = 1_000_000_000;

fn number(args: &mut Parser, least: u64) -> Result<u64, Error> {
    let value = args.value()?;
    value.parse_with(|text| number_of(text, least, MOST))
}

fn numbers(args: &mut Parser, least: u64, most: u64) -> Result<Vec<u64>, Error> {
    let all = args.value()?.string()?;
    let numbers = all.split(',').map(|text| number_of(text, least, most));
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// Of threads and the like.
fn counts(args: &mut Parser) -> Result<Vec<usize>, Error> {
    let numbers = numbers(args, 1, 65_536)?;
    Ok(numbers.into_iter().map(|number| number as usize).collect())
}

fn number_of(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is no number from {least} to {most}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Error> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn options(line: &str) -> Options {
        match parsed(line) {
            Ok(Command::Run(options)) => options,
            other => panic!("no run: {other:?}"),
        }
    }

    #[test]
    fn options_have_defaults_and_the_quick_form_others() {
        let full = options("");
        assert_eq!((full.form, full.rounds()), (Form::Full, 5));
        let quick = options("--quick --only=w2 --foreign --rounds 7 --keys 0,5 --json out.jsonl");
        assert_eq!((quick.form, quick.rounds()), (Form::Quick, 7));
        assert!(full.keys.is_empty() && quick.keys == [0, 5] && quick.only == ["W2"]);
        assert!(full.is_bounded() && !full.foreign && quick.foreign);
        assert_eq!(quick.made.json, Some("out.jsonl".into()));
        assert!(options("--rounds 9 --minutes 2").is_bounded());
        assert!(!options("--rounds 9").is_bounded());
        let targets = options("--targets --keep");
        assert!(targets.foreign && targets.mimalloc && !targets.lto && targets.made.keep);
        let json = targets.made.json.expect("a file");
        assert!(json.ends_with("benches/targets.jsonl"));
        let swept = options("--threads 1,8 --shards 1,2 --stripes 64 --stripes 128 --borders 1,2");
        assert_eq!(swept.threads, [1, 8]);
        let words: Vec<String> = swept.set_ups.iter().map(SetUp::in_words).collect();
        assert_eq!(words[0], ", 1 shards, 64 stripes");
        assert_eq!((words.len(), &*words[3]), (4, ", 2 shards, 128 stripes"));
        assert_eq!(swept.borders, Borders::of(1.0, 2.0));
    }

    #[test]
    fn some_commands_run_nothing() {
        let made = Made {
            plots: Some("d".into()),
            ..Made::default()
        };
        let modes = Command::Modes(Duration::from_secs(1), Borders::default());
        let drive = Command::Drive(vec!["a".to_owned(), "--b".to_owned()]);
        for (line, command) in [
            ("-h", Command::Help),
            ("--plots d --show x", Command::Show("x".into(), made)),
            ("--keep", Command::Keep),
            ("--modes 1", modes),
            ("drive a --b", drive),
        ] {
            assert_eq!(parsed(line).expect(line), command);
        }
        let Ok(Command::Child(order)) = parsed("child heap W2 10 0 128") else {
            panic!("a child");
        };
        let Order {
            system, workload, ..
        } = &order;
        assert_eq!((&**system, &**workload, order.keys), ("heap", "W2", 10));
        let set_up = order.set_up;
        assert_eq!((set_up.shards, set_up.stripes), (None, Some(128)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, words) in [
            ("--rounds 0", "\"0\" is no number from 1"),
            ("--keys 1,x", "\"x\" is no number"),
            ("--only W2,D1", "a run of their own"),
            ("--only W99", "no workload is called \"W99\""),
            ("--system none", "no system is called"),
            ("--json", "--json"),
            ("--fast", "--fast"),
            ("child a b", "missing argument"),
            ("--threads 100000", "from 1 to 65536"),
            ("--borders 160,45", "two numbers"),
            ("--targets --keep --quick", "full form"),
        ] {
            let error = parsed(line).expect_err(line).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
