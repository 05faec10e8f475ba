//! The run: children are filled, then asked for one round after the other, so that whatever the
//! machine does meanwhile hits all systems alike.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;

use crate::cli::{self, Options};
use crate::document;
use crate::foreign;
use crate::machine::{self, Machine, Version};
use crate::pingpong;
use crate::report::{Figure, Report, Round, short};
use crate::systems::{self, Entry};
use crate::wire::{Filled, Reply, Request};
use crate::workloads::{self, Children, Form, Workload};

/// A ping-pong that takes so many times an ordinary one shows the machine's slow mode.
const SLOW: f64 = 2.0;
/// So long a round waits at most for others to leave the machine alone.
const PATIENCE: Duration = Duration::from_secs(10);
/// So long a system that was stopped has to do what it missed.
const CATCH_UP: Duration = Duration::from_secs(3);
/// So long a run may take longer in all because others keep the machine busy: waits, and rounds that
/// are done again. The quick form has to end soon on a busy machine, too.
const DELAY: [Duration; 3] = [
    Duration::from_secs(300),
    Duration::from_secs(20),
    Duration::ZERO,
];

/// Runs what the options ask for, and reports.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    for path in [&options.json, &options.markdown].into_iter().flatten() {
        // A run of minutes should not end with a path that can't be written.
        let mut file = OpenOptions::new();
        file.append(true).create(true);
        file.open(path).map_err(|error| named(&error, path))?;
    }
    let mut run = Run {
        options,
        began: Instant::now(),
        pings_ns: Vec::new(),
        seed: 1,
        delay_left: DELAY[options.form as usize],
        skipped: Vec::new(),
    };
    let (drivers, skipped) = run.prepare_drivers();
    let mut report = Report {
        machine: Machine::here(),
        versions: machine::versions().into_iter().chain(drivers).collect(),
        commit: machine::commit(),
        command: command(),
        form: options.form.name().to_owned(),
        started_unix: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        seconds: 0.0,
        ping_ns: None,
        figures: Vec::new(),
        failures: Vec::new(),
        skipped,
    };
    for _ in 0..3 {
        run.wait_for_calm();
        run.pings_ns.extend(pingpong::round_trip_ns());
    }
    for workload in workloads::ALL {
        if !run.chosen(workload) {
            continue;
        }
        let form = workload.keys_in(options.form);
        let keys = match &options.keys[..] {
            [] => form,
            // Where the number is no question it stays as it is.
            _ if form == [0] => form,
            chosen => chosen,
        };
        for keys in keys {
            if *keys == 0 && !form.contains(&0) {
                eprintln!("{} needs keys: 0 is left out", workload.name);
                continue;
            }
            match run.workload(workload, *keys) {
                Ok(figures) => report.figures.extend(figures),
                // What was measured so far is not lost with it.
                Err(error) => {
                    let failure = format!("{}: {error}", point(workload, *keys));
                    eprintln!("benches: {failure}");
                    report.failures.push(failure);
                }
            }
            report.seconds = run.began.elapsed().as_secs_f64();
            report.ping_ns = run.ordinary_ping_ns();
            keep(&report, options)?;
        }
    }
    if report.figures.is_empty() && report.failures.is_empty() {
        let error = "none of these systems does any of these workloads; see --help";
        return Err(io::Error::other(error));
    }
    say(&report.table())?;
    match report.failures.len() {
        0 => Ok(()),
        count => Err(io::Error::other(format!("{count} of the points failed"))),
    }
}

/// Writes what there is into the files that were asked for.
fn keep(report: &Report, options: &Options) -> io::Result<()> {
    if let Some(path) = &options.json {
        let mut json = serde_json::to_string_pretty(report)?;
        json.push('\n');
        replace(path, &json)?;
    }
    if let Some(path) = &options.markdown {
        replace(path, &document::of(report))?;
    }
    Ok(())
}

/// All of it or nothing, whenever the program is interrupted.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| named(&error, path))
}

/// Prints the document of an earlier run.
pub(crate) fn show(path: &Path) -> io::Result<()> {
    let json = std::fs::read_to_string(path).map_err(|error| named(&error, path))?;
    let report: Report = serde_json::from_str(&json)?;
    say(&document::of(&report))
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// What was asked for, in the words of the README.
fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        "--release "
    };
    format!("cargo run {profile}-p benches -- {}", args.join(" "))
        .trim_end_matches(" -- ")
        .to_owned()
}

/// A workload and how many keys it has, if that is a question.
fn point(workload: &Workload, keys: u64) -> String {
    if workload.has_no_keys() {
        workload.name.to_owned()
    } else {
        format!("{} {}", workload.name, short(keys))
    }
}

struct Run<'a> {
    options: &'a Options,
    began: Instant,
    /// All so far.
    pings_ns: Vec<f64>,
    seed: u64,
    delay_left: Duration,
    /// Names of systems that cannot run here.
    skipped: Vec<&'static str>,
}

impl Run<'_> {
    fn systems(&self, workload: &Workload) -> Vec<&'static Entry> {
        let wanted = &self.options.systems;
        systems::ALL
            .iter()
            .filter(|system| system.serves(workload).is_some())
            .filter(|system| wanted.is_empty() || wanted.iter().any(|n| n == system.name))
            .filter(|system| !self.skipped.contains(&system.name))
            .filter(|system| system.driver.is_none() || self.drivers_take_part())
            .collect()
    }

    fn chosen(&self, workload: &Workload) -> bool {
        let only = &self.options.only;
        only.is_empty() || only.iter().any(|name| name == workload.name)
    }

    /// A run of everything has to end within its hour, so drivers take part if somebody asks for them.
    fn drivers_take_part(&self) -> bool {
        let options = self.options;
        options.foreign || !options.systems.is_empty() || options.form == Form::Smoke
    }

    /// Compiles the drivers that this run needs. Returns their versions, and a line for each driver that
    /// cannot run.
    fn prepare_drivers(&mut self) -> (Vec<Version>, Vec<String>) {
        let workloads = workloads::ALL
            .iter()
            .filter(|workload| self.chosen(workload));
        let systems = workloads.flat_map(|workload| self.systems(workload));
        let mut drivers: Vec<_> = systems.filter_map(|system| system.driver).collect();
        drivers.sort_by_key(|driver| driver.name);
        drivers.dedup_by_key(|driver| driver.name);
        let mut versions = Vec::new();
        let mut lines = Vec::new();
        for driver in drivers {
            match foreign::prepare(driver) {
                Ok(found) => versions.extend(found),
                Err(trouble) => {
                    eprintln!("         {}", trouble.line(driver));
                    lines.push(trouble.line(driver));
                    self.skipped.push(driver.name);
                }
            }
        }
        versions.sort_by(|one, other| one.name.cmp(&other.name));
        versions.dedup_by(|one, other| one.name == other.name);
        (versions, lines)
    }

    fn workload(&mut self, workload: &'static Workload, keys: u64) -> io::Result<Vec<Figure>> {
        let systems = self.systems(workload);
        let form = self.options.form;
        let mut figures = Vec::new();
        let mut children = Vec::new();
        if workload.children != Children::Fresh {
            for system in &systems {
                let child = Filling::start(system, workload, keys, form)?;
                if workload.children == Children::Kept {
                    child.pause();
                }
                children.push(child);
            }
        }
        for case in 0..workload.cases.len() {
            let mut of_case: Vec<Figure> = systems
                .iter()
                .map(|system| Figure::new(workload, case, keys, system.name))
                .collect();
            for figure in &mut of_case {
                figure.amount = workload.amount_in(self.options.form);
            }
            if workload.children == Children::Kept && workload.warm_up {
                for child in &mut children {
                    // Unmeasured: caches, branch predictors, page tables.
                    let request = self.request(workload, case, 4);
                    child.go_on();
                    self.let_catch_up();
                    child.ask(&request)?;
                    child.pause();
                }
            }
            for round in 0..self.options.rounds {
                self.progress(workload, case, keys, round);
                // The same seed for all systems; the order turns round.
                let request = self.request(workload, case, 1);
                if workload.children == Children::Together {
                    self.wait_for_calm();
                    for child in &mut children {
                        child.send(&request)?;
                    }
                    for (child, figure) in children.iter_mut().zip(&mut of_case) {
                        figure.rounds.push(Round::of(child.hear()?));
                    }
                    continue;
                }
                let count = of_case.len();
                for turn in 0..count {
                    let at = if round % 2 == 0 {
                        turn
                    } else {
                        count - 1 - turn
                    };
                    let figure = &mut of_case[at];
                    if workload.children == Children::Fresh {
                        let filled = self.round(figure, || {
                            let mut child = Filling::start(systems[at], workload, keys, form)?;
                            Ok((child.ask(&request)?, child.filled))
                        })?;
                        figure.fills.push(filled);
                    } else {
                        let child = &mut children[at];
                        child.go_on();
                        self.let_catch_up();
                        self.round(figure, || Ok((child.ask(&request)?, child.filled)))?;
                        child.pause();
                    }
                }
            }
            for (figure, child) in of_case.iter_mut().zip(&children) {
                figure.fills.push(child.filled);
            }
            figures.extend(of_case);
        }
        Ok(figures)
    }

    fn progress(&self, workload: &Workload, case: usize, keys: u64, round: usize) {
        eprintln!(
            "{:>5.0} s  {}, {}: round {} of {}",
            self.began.elapsed().as_secs_f64(),
            point(workload, keys),
            workload.cases[case].name,
            round + 1,
            self.options.rounds
        );
    }

    fn request(&mut self, workload: &Workload, case: usize, divisor: u64) -> Request {
        self.seed += 1;
        Request {
            case,
            amount: workload.amount_in(self.options.form) / divisor,
            seed: self.seed,
        }
    }

    /// The lower quartile so far. Not the least: at rare moments a trip takes a seventh of what it
    /// takes otherwise.
    fn ordinary_ping_ns(&self) -> Option<f64> {
        let mut sorted = self.pings_ns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 4).copied()
    }

    /// What a child missed while it stood still it does before its round. Not at the expense of what
    /// is left for others.
    fn let_catch_up(&self) {
        if self.options.form != Form::Smoke {
            machine::wait_for_calm(CATCH_UP);
        }
    }

    fn wait_for_calm(&mut self) {
        let waited = machine::wait_for_calm(PATIENCE.min(self.delay_left));
        self.delay_left = self.delay_left.saturating_sub(waited);
    }

    /// One round that counts, and before it those that the machine disturbed: on average one for
    /// each that counts, and only while there is time left for it.
    fn round(
        &mut self,
        figure: &mut Figure,
        mut ask: impl FnMut() -> io::Result<(Reply, Filled)>,
    ) -> io::Result<Filled> {
        loop {
            self.wait_for_calm();
            let began = Instant::now();
            let (reply, filled) = ask()?;
            self.pings_ns.extend(reply.ping_ns);
            let ordinary = self.ordinary_ping_ns();
            let slow = reply
                .ping_ns
                .zip(ordinary)
                .is_some_and(|(ping, ordinary)| ping > SLOW * ordinary);
            let disturbed = reply.disturbed;
            let repeated = figure.repeated_slow + figure.repeated_disturbed;
            let may_repeat = repeated < self.options.rounds as u32 && !self.delay_left.is_zero();
            if (slow || disturbed) && may_repeat {
                self.delay_left = self.delay_left.saturating_sub(began.elapsed());
                figure.repeated_slow += u32::from(slow);
                figure.repeated_disturbed += u32::from(disturbed && !slow);
                figure.discarded.push(Round::of(reply));
                continue;
            }
            figure.kept_disturbed += u32::from(slow || disturbed);
            figure.rounds.push(Round::of(reply));
            return Ok(filled);
        }
    }
}

/// A child that is filled.
struct Filling {
    system: &'static str,
    process: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    filled: Filled,
}

impl Filling {
    fn start(system: &Entry, workload: &Workload, keys: u64, form: Form) -> io::Result<Self> {
        eprint!("         {}: {} .. ", point(workload, keys), system.name);
        // The very file that runs, even if it was built anew meanwhile.
        let program = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut process = machine::lead_a_group(&mut Command::new(program))
            .args([cli::CHILD, system.name, workload.name])
            .arg(keys.to_string())
            .env(foreign::WARM_UP, foreign::warm_up_ms(form))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = process.stdin.take();
        let replies = process.stdout.take().expect("it is piped");
        let mut replies = BufReader::new(replies);
        let filled: Filled =
            hear(&mut replies).map_err(|error| of_child(system.name, &error, &mut process))?;
        eprintln!("filled in {:.1} s", filled.seconds);
        Ok(Filling {
            system: system.name,
            process,
            requests,
            replies,
            filled,
        })
    }

    /// Stands still while others have their turn: some systems are busy for a minute with what was
    /// stopped long ago.
    fn pause(&self) {
        machine::pause(&self.process, true);
    }

    fn go_on(&self) {
        machine::pause(&self.process, false);
    }

    fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.send(request)?;
        self.hear()
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let requests = self.requests.as_mut().expect("open until the end");
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        requests
            .write_all(line.as_bytes())
            .and_then(|()| requests.flush())
            .map_err(|error| of_child(self.system, &error, &mut self.process))
    }

    fn hear(&mut self) -> io::Result<Reply> {
        hear(&mut self.replies).map_err(|error| of_child(self.system, &error, &mut self.process))
    }
}

/// Says whose fault it is, and how the child ended, if it did.
fn of_child(system: &str, error: &io::Error, process: &mut Child) -> io::Error {
    // Its output ends a moment before it does.
    for _ in 0..100 {
        if let Ok(Some(status)) = process.try_wait() {
            return io::Error::other(format!("{system}: {error} ({status})"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    io::Error::other(format!("{system}: {error}"))
}

fn hear<T: DeserializeOwned>(replies: &mut impl BufRead) -> io::Result<T> {
    let mut line = String::new();
    if replies.read_line(&mut line)? == 0 {
        return Err(io::Error::other("a child ended early; see above"));
    }
    Ok(serde_json::from_str(&line)?)
}

impl Drop for Filling {
    /// The end of its input is the end of the child.
    fn drop(&mut self) {
        self.requests = None;
        self.go_on();
        let _ = self.process.wait();
    }
}
