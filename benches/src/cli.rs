//! The command line, parsed by hand: a few options need no dependency.

use std::path::PathBuf;
use std::time::Duration;

use crate::mode::Borders;
use crate::other_build::OtherBuild;
use crate::systems::SetUp;
use crate::workloads::Form;
use crate::{systems, workloads};

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Run(Options),
    /// The document made of an earlier run's JSON, to stdout, and the plots.
    Show(Shown),
    /// The model fitted to an earlier run's JSON, to stdout, and documents that get it.
    Model(PathBuf, Vec<PathBuf>),
    /// The histogram of the ping-pong over this time.
    Modes(Duration, Borders),
    /// Hidden: this process is a child of a run.
    Child(Order),
    /// Hidden: this process becomes the driver of a child.
    Drive(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) json: PathBuf,
    /// A folder for the plots.
    pub(crate) plots: Option<PathBuf>,
    /// Documents that get its tables.
    pub(crate) into: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) form: Form,
    /// The form's own if `None`.
    pub(crate) rounds: Option<usize>,
    /// The form's own if `None`.
    pub(crate) time: Option<Duration>,
    /// Names of workloads; all if empty.
    pub(crate) only: Vec<String>,
    /// Names of systems; all if empty.
    pub(crate) systems: Vec<String>,
    /// Also the systems in other languages.
    pub(crate) foreign: bool,
    /// The points of the table of targets, with the peers that are needed for it.
    pub(crate) targets: bool,
    /// Our boxed timers in a build with mimalloc, too.
    pub(crate) mimalloc: bool,
    /// Ours in a build with link-time optimisation, too.
    pub(crate) lto: bool,
    /// The form's own if empty.
    pub(crate) keys: Vec<u64>,
    /// The cases' own if empty.
    pub(crate) threads: Vec<usize>,
    /// How ours are set up. With its defaults if empty.
    pub(crate) set_ups: Vec<SetUp>,
    pub(crate) borders: Borders,
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
    /// A folder for the plots.
    pub(crate) plots: Option<PathBuf>,
    /// Documents that get its tables.
    pub(crate) into: Vec<PathBuf>,
}

/// What a child is to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) system: String,
    pub(crate) workload: String,
    pub(crate) keys: u64,
    pub(crate) set_up: SetUp,
}

/// The hidden subcommand; its arguments are system, workload, number of keys and set-up.
pub(crate) const CHILD: &str = "child";

/// The hidden subcommand whose arguments are another program and what that gets.
pub(crate) const DRIVE: &str = "drive";

const ROUNDS: [usize; 3] = [5, 3, 1];

impl Options {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(ROUNDS[self.form as usize])
    }

    /// Other builds of this program in which ours take part, too.
    pub(crate) fn builds(&self) -> impl Iterator<Item = OtherBuild> + use<> {
        let chosen = [
            (OtherBuild::Mimalloc, self.mimalloc),
            (OtherBuild::Lto, self.lto),
        ];
        let chosen = chosen.into_iter().filter(|(_, chosen)| *chosen);
        chosen.map(|(build, _)| build)
    }

    /// Whether the run has to end in its time: a number of rounds that somebody asks for is not cut down.
    pub(crate) fn is_bounded(&self) -> bool {
        self.time.is_some() || self.rounds.is_none()
    }
}

pub(crate) fn help() -> String {
    let mut text = String::from(
        "\
Timers of tourbillon and of its peers on the same work, in one run.

Usage: cargo run --release -p benches -- [OPTIONS]

Options:
                   (all workloads, up to 10 M keys, 5 rounds of each: within an hour)
  --quick          up to 1 M keys, less of everything, 3 rounds: within five minutes
  --targets        what docs/targets.md needs, 5 rounds, --foreign, --mimalloc: about 40 minutes
  --smoke          everything once, as small as it goes: shows that it works, measures nothing
  --rounds N       rounds of every figure, interleaved between the systems; then the time has no bound
  --minutes N      how long it may take; what does not fit loses rounds, and is named
  --only W,..      only these workloads
  --system S,..    only these systems
  --foreign        also the systems in other languages; --system takes them too, and --smoke
  --mimalloc       W4 and W4i also with our boxed timers in a build with mimalloc
  --lto            W1, W1k, W2 and W3 also with ours in a build with link-time optimisation
  --keys N,..      how many keys, where a workload leaves the choice
  --threads N,..   how many threads, where a workload leaves the choice, and for W1, W1k and W1x
  --shards N,..    the schedulers and maps of tourbillon with so many shards ..
  --stripes N,..   .. and so many stripes, in place of their defaults
  --borders A,B    round trips (ns) below A are of two hyperthreads, from B on of cores that are far apart
                   (default: 45,160)
  --json FILE      writes machine, versions, commit, command and every round
  --markdown FILE  writes the same as a document
  --plots DIR      draws the figures into SVG files
  --into FILE,..   writes the tables of targets into documents that have places for them
  --keep           the files of the repository: benches/targets.json, benches/TARGETS.md, docs/plots,
                   docs/targets.md and README.md
  --show FILE      runs nothing: prints the document of a file that --json wrote, draws its --plots
                   and writes its tables --into documents
  --model FILE     runs nothing: fits the model of docs/model.md to a file that --json wrote
  --modes SECONDS  runs nothing: prints how long round trips between cores take, as a histogram
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
    let mut minutes = None;
    let mut keys = Vec::new();
    let mut threads = Vec::new();
    let (mut shards, mut stripes) = (Vec::new(), Vec::new());
    let mut borders = Borders::default();
    let (mut show, mut modes) = (None, None);
    let mut only = Vec::new();
    let mut named = Vec::new();
    let (mut foreign, mut targets) = (false, false);
    let (mut mimalloc, mut lto) = (false, false);
    let (mut into, mut keep, mut model) = (Vec::new(), false, None);
    let mut json = None;
    let mut markdown = None;
    let mut plots = None;
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
            "--targets" => targets = true,
            "--mimalloc" => mimalloc = true,
            "--lto" => lto = true,
            "--keep" => keep = true,
            "--into" => into.extend(value()?.split(',').map(PathBuf::from)),
            "--model" => model = Some(PathBuf::from(value()?)),
            "--rounds" => rounds = Some(number_of(name, &value()?, 1)? as usize),
            "--minutes" => minutes = Some(number_of(name, &value()?, 1)?),
            "--keys" => keys.extend(numbers_of(name, &value()?, 0)?),
            "--threads" => threads.extend(counts_of(name, &value()?)?),
            "--shards" => shards.extend(counts_of(name, &value()?)?),
            "--stripes" => stripes.extend(counts_of(name, &value()?)?),
            "--borders" => borders = borders_of(name, &value()?)?,
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
            "--plots" => plots = Some(PathBuf::from(value()?)),
            "--show" => show = Some(PathBuf::from(value()?)),
            "--modes" => modes = Some(Duration::from_secs(number_of(name, &value()?, 1)?)),
            _ => return Err(format!("unknown option {arg}; --help lists the options")),
        }
    }
    if keep {
        if form != Form::Full || !targets && show.is_none() {
            return Err("--keep is for the full form of --targets, and for --show".to_owned());
        }
        if show.is_none() {
            json = json.or_else(|| Some(in_the_repository("benches/targets.json")));
            markdown = markdown.or_else(|| Some(in_the_repository("benches/TARGETS.md")));
        }
        plots = plots.or_else(|| Some(in_the_repository("docs/plots")));
        into.extend(["docs/targets.md", "README.md"].map(in_the_repository));
    }
    if let Some(json) = show {
        return Ok(Command::Show(Shown { json, plots, into }));
    }
    if let Some(json) = model {
        return Ok(Command::Model(json, into));
    }
    if let Some(time) = modes {
        return Ok(Command::Modes(time, borders));
    }
    Ok(Command::Run(Options {
        form,
        rounds,
        time: minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        only,
        systems: named,
        foreign: foreign || targets,
        targets,
        mimalloc: mimalloc || targets,
        lto,
        keys,
        threads,
        set_ups: SetUp::all(&shards, &stripes),
        borders,
        json,
        markdown,
        plots,
        into,
    }))
}

fn in_the_repository(path: &str) -> PathBuf {
    let mut full = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    full.pop();
    full.join(path)
}

fn child(args: &[String]) -> Result<Command, String> {
    let [system, workload, keys, shards, stripes] = args else {
        return Err(format!("{CHILD} is for the program itself"));
    };
    // 0 is the default.
    let count = |name, text| -> Result<Option<usize>, String> {
        let count = number_of(name, text, 0)? as usize;
        Ok(Some(count).filter(|count| *count > 0))
    };
    Ok(Command::Child(Order {
        system: system.clone(),
        workload: workload.clone(),
        keys: number_of("keys", keys, 0)?,
        set_up: SetUp {
            shards: count("shards", shards)?,
            stripes: count("stripes", stripes)?,
        },
    }))
}

fn number_of(name: &str, text: &str, least: u64) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=1_000_000_000).contains(number))
        .ok_or_else(|| format!("{name} takes numbers from {least} to 1000000000, not {text:?}"))
}

fn numbers_of(name: &str, text: &str, least: u64) -> Result<Vec<u64>, String> {
    text.split(',')
        .map(|number| number_of(name, number, least))
        .collect()
}

/// Of threads and the like.
fn counts_of(name: &str, text: &str) -> Result<Vec<usize>, String> {
    let numbers = numbers_of(name, text, 1)?;
    match numbers.iter().find(|number| **number > 65_536) {
        Some(number) => Err(format!("{name} takes numbers up to 65536, not {number}")),
        None => Ok(numbers.into_iter().map(|number| number as usize).collect()),
    }
}

fn borders_of(name: &str, text: &str) -> Result<Borders, String> {
    match numbers_of(name, text, 0)?[..] {
        [shared_core, far] if shared_core < far => Ok(Borders {
            shared_core_ns: shared_core as f64,
            far_ns: far as f64,
        }),
        _ => Err(format!(
            "{name} takes two numbers, the lower one first, not {text:?}"
        )),
    }
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
            (full.form, full.rounds(), full.keys.len(), full.is_bounded()),
            (Form::Full, 5, 0, true)
        );
        let Ok(Command::Run(quick)) =
            parsed("--quick --only=w2 --foreign --rounds 7 --keys 0,5 --json out.json")
        else {
            panic!("a run");
        };
        assert_eq!(
            (
                quick.form,
                quick.rounds(),
                &quick.keys[..],
                quick.is_bounded()
            ),
            (Form::Quick, 7, &[0, 5][..], false)
        );
        assert_eq!(quick.only, ["W2"]);
        assert!(quick.foreign && !full.foreign);
        assert_eq!(quick.json, Some(PathBuf::from("out.json")));
        assert_eq!(parsed("-h"), Ok(Command::Help));
        let shown = |plots: Option<&str>| {
            let (json, plots) = (PathBuf::from("x.json"), plots.map(PathBuf::from));
            let into = Vec::new();
            Ok(Command::Show(Shown { json, plots, into }))
        };
        assert_eq!(parsed("--show x.json"), shown(None));
        assert_eq!(parsed("--plots d --show x.json"), shown(Some("d")));
    }

    #[test]
    fn the_files_of_the_repository_are_for_the_targets() {
        let Ok(Command::Run(targets)) = parsed("--targets --keep --json x.json") else {
            panic!("a run");
        };
        assert!(targets.targets && targets.foreign);
        assert!(targets.builds().eq([OtherBuild::Mimalloc]));
        assert_eq!(targets.json, Some(PathBuf::from("x.json")));
        assert!(
            targets
                .plots
                .is_some_and(|folder| folder.ends_with("docs/plots"))
        );
        let ends = |path: &PathBuf, end| path.ends_with(end) && path.exists();
        assert!(
            targets
                .into
                .iter()
                .any(|path| ends(path, "docs/targets.md"))
        );
        assert!(targets.into.iter().any(|path| ends(path, "README.md")));
        // Less than all of it does not get there.
        for line in ["--keep", "--targets --keep --quick", "--foreign --keep"] {
            assert!(parsed(line).is_err(), "{line}");
        }
        let Ok(Command::Show(shown)) = parsed("--show x.json --into a.md,b.md") else {
            panic!("a document");
        };
        assert_eq!(shown.into, ["a.md", "b.md"].map(PathBuf::from));
        let model = Command::Model(PathBuf::from("x"), Vec::new());
        assert_eq!(parsed("--model x"), Ok(model));
    }

    #[test]
    fn sweeps_try_all_set_ups() {
        let Ok(Command::Run(swept)) = parsed(
            "--only W2 --threads 1,8 --shards 1,2 --stripes 64,128 --borders 10,20 --minutes 2 --rounds 9",
        ) else {
            panic!("a run");
        };
        assert_eq!(swept.threads, [1, 8]);
        let words: Vec<String> = swept.set_ups.iter().map(SetUp::in_words).collect();
        let expected = [
            ", 1 shards, 64 stripes",
            ", 1 shards, 128 stripes",
            ", 2 shards, 64 stripes",
            ", 2 shards, 128 stripes",
        ];
        assert_eq!(words, expected);
        let (shared_core_ns, far_ns) = (10.0, 20.0);
        assert_eq!(
            swept.borders,
            Borders {
                shared_core_ns,
                far_ns
            }
        );
        assert!(swept.is_bounded());
        let one = Duration::from_secs(1);
        let modes = Command::Modes(one, Borders::default());
        assert_eq!(parsed("--modes 1"), Ok(modes));
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
            "--threads 0",
            "--threads 100000",
            "--borders 160,45",
            "--borders 45",
            "--minutes 0",
            "drive",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
        assert!(parsed("child tourbillon W2 10 0 128").is_ok());
    }
}
