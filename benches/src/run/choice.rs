//! What the options choose: points, cases, and the systems that take part.

use std::path::PathBuf;
use std::time::Duration;

use super::filling::Candidate;
use super::other_build::OtherBuild;
use super::plan::{Plan, Point};
use super::preset::{self, Part};
use crate::figures::Made;
use crate::mode::Borders;
use crate::systems::{self, Entry, SetUp};
use crate::workload::{Cased, Form, Workload};
use crate::workloads;

/// What a run is to measure.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// The program of other job queues.
    pub(crate) peers: Option<PathBuf>,
    pub(crate) made: Made,
}

impl Options {
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.unwrap_or([5, 3, 1][self.form as usize])
    }

    /// Other builds of this program in which ours take part, too.
    pub(super) fn builds(&self) -> impl Iterator<Item = OtherBuild> + use<> {
        let mimalloc = self.mimalloc.then_some(OtherBuild::Mimalloc);
        let lto = self.lto.then_some(OtherBuild::Lto);
        mimalloc.into_iter().chain(lto)
    }

    /// Whether the run has to end in its time: a number of rounds that somebody asks for is not cut
    /// down.
    pub(crate) fn is_bounded(&self) -> bool {
        self.time.is_some() || self.rounds.is_none()
    }
}

/// All points that the options ask for.
pub(super) fn plan(options: &Options, skipped: &[&str]) -> Plan {
    let mut points = Vec::new();
    for workload in workloads::ALL {
        if !is_chosen(options, workload) {
            continue;
        }
        let form = match options.targets && options.form == Form::Full {
            true => preset::keys(workload),
            false => workload.keys_in(options.form).to_vec(),
        };
        let keys = match &options.keys[..] {
            [] => &form,
            // Where the number is no question it stays as it is.
            _ if form == [0] => &form,
            chosen => chosen,
        };
        if keys.is_empty() {
            let (name, form) = (workload.name, options.form.name());
            complain!("{name} has no part in the {form} form; --keys chooses how many");
        }
        for keys in keys {
            if *keys == 0 && !form.contains(&0) {
                complain!("{} needs keys: 0 is left out", workload.name);
                continue;
            }
            let systems = candidates(options, skipped, workload, *keys).len();
            if systems == 0 {
                continue;
            }
            let cases = cases(options, workload, *keys).len();
            let counts = (systems, cases, options.rounds());
            let amount = amount(options, workload);
            points.push(Point::new(workload, *keys, amount, counts));
        }
    }
    let time = options.time.or(match options.form {
        Form::Full if options.targets => Some(preset::TIME),
        _ => None,
    });
    let plan = Plan::new(options.form, time, points);
    match options.is_bounded() {
        true => plan,
        false => plan.unbounded(),
    }
}

/// Returns whether a system is left out because it can't hold `keys` timers in reasonable memory. A
/// system that the command names is never left out.
pub(super) fn is_too_many_for(system: &Entry, options: &Options, keys: u64) -> bool {
    options.systems.is_empty() && keys > system.most_keys
}

/// The part of the run that a point belongs to, where only targets are measured.
pub(super) fn part(options: &Options, workload: &Workload, keys: u64) -> Option<&'static Part> {
    let part = options.targets.then(|| preset::find(workload, keys));
    part.flatten()
}

/// Returns the cases that are measured on one fill.
pub(super) fn cases(options: &Options, workload: &Workload, keys: u64) -> Vec<Cased> {
    let mut cases = workload.cases_with(&options.threads);
    if let Some(part) = part(options, workload, keys) {
        cases.retain(|case| part.has_case(case.number));
    }
    cases
}

/// How much a round does, in the workload's own measure.
pub(super) fn amount(options: &Options, workload: &Workload) -> u64 {
    match options.targets {
        true => preset::amount(workload, options.form),
        false => workload.amount_in(options.form),
    }
}

/// Whether a system of this workload also runs in this build.
pub(super) fn has_other_build(options: &Options, workload: &Workload, build: OtherBuild) -> bool {
    let candidates = candidates(options, &[], workload, 0);
    let mut names = candidates.iter().map(|candidate| candidate.entry.name);
    names.any(|name| build.has(name, workload))
}

pub(super) fn is_chosen(options: &Options, workload: &Workload) -> bool {
    if options.targets && preset::find(workload, 0).is_none() {
        return false;
    }
    options.only.is_empty() || options.only.iter().any(|name| name == workload.name)
}

/// Rounds of other languages take long, so drivers take part if somebody asks for them. They know a
/// case by its number, so their threads cannot be chosen.
fn drivers_take_part(options: &Options) -> bool {
    let asked_for = options.foreign || !options.systems.is_empty() || options.form == Form::Smoke;
    asked_for && options.threads.is_empty()
}

/// The systems that do a workload, ours in each set-up.
pub(super) fn candidates(
    options: &Options,
    skipped: &[&str],
    workload: &Workload,
    keys: u64,
) -> Vec<Candidate> {
    let wanted = &options.systems;
    let serving = systems::ALL
        .iter()
        .filter(|system| system.serves(workload).is_some())
        .filter(|system| wanted.is_empty() || wanted.iter().any(|name| name == system.name))
        .filter(|system| !is_too_many_for(system, options, keys))
        .filter(|system| part(options, workload, keys).is_none_or(|part| part.has(system.name)))
        .filter(|system| !skipped.contains(&system.name))
        .filter(|system| system.driver.is_none() || drivers_take_part(options));
    let in_set_ups = |entry: &'static Entry| {
        let set_ups = match entry.name.starts_with("tourbillon") {
            true => options.set_ups.clone(),
            false => vec![SetUp::default()],
        };
        let has = |build: &OtherBuild| build.program().is_some() && build.has(entry.name, workload);
        let mut candidates = Vec::new();
        for set_up in set_ups {
            for build in [None]
                .into_iter()
                .chain(options.builds().filter(has).map(Some))
            {
                candidates.push(Candidate {
                    entry,
                    set_up,
                    build,
                });
            }
        }
        candidates
    };
    serving.flat_map(in_set_ups).collect()
}
