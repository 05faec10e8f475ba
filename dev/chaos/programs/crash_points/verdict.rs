//! Compares the answers with what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use chaos::journal;

use crate::child;
use crate::database::{Database, Fault};
use crate::entry::Entry;

/// What happened to all timers.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    accepted: usize,
    cancelled: usize,
    moved: usize,
    runs: usize,
    repeated: usize,
    effects: usize,
    unheld: usize,
    gone: usize,
    lost: usize,
    early: usize,
    doubled: usize,
    wrong: usize,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.lost + self.early + self.doubled + self.wrong == 0
    }
}

/// The last line, or, with `#`, the one before.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            let (lost, early, doubled) = (self.lost, self.early, self.doubled);
            return write!(f, "lost {lost} early {early} doubled effects {doubled}");
        }
        write!(
            f,
            "accepted {} moved {} cancelled {} runs {} repeated {} after the lease {} effects {} nodes \
             declared gone {} wrong answers {}",
            self.accepted,
            self.moved,
            self.cancelled,
            self.runs,
            self.repeated,
            self.unheld,
            self.effects,
            self.gone,
            self.wrong
        )
    }
}

/// What is known about one timer.
#[derive(Default)]
struct Known {
    accepted: Option<u64>,
    moved: Option<(u64, u64)>,
    is_cancelling: bool,
    cancelled: Option<u64>,
    /// The number of the run that was under way when the timer was cancelled.
    ending: Option<u32>,
    never: bool,
    /// When each run began, and its number.
    runs: Vec<(u64, u32)>,
    tokens: BTreeSet<String>,
    /// How often each token has had its effect.
    effects: BTreeMap<String, usize>,
}

pub(crate) fn of(folder: &Path, database: &dyn Database) -> Result<Verdict, Fault> {
    let mut verdict = Verdict::default();
    let mut timers: BTreeMap<String, Known> = BTreeMap::new();
    for entry in journal::read_all(folder)? {
        match entry {
            Entry::Accepted { key, due } => timers.entry(key).or_default().accepted = Some(due),
            Entry::Cancelling { key } => timers.entry(key).or_default().is_cancelling = true,
            Entry::Cancelled { key, at } => timers.entry(key).or_default().cancelled = Some(at),
            Entry::Moved { key, at, due } => {
                timers.entry(key).or_default().moved = Some((at, due));
            }
            Entry::Never { key } => timers.entry(key).or_default().never = true,
            Entry::Ending { key, attempt } => {
                timers.entry(key).or_default().ending = Some(attempt);
            }
            Entry::Ran {
                key,
                at,
                attempt,
                token,
            } => {
                let known = timers.entry(key).or_default();
                known.runs.push((at, attempt));
                known.tokens.insert(token);
            }
            Entry::Unheld { .. } => verdict.unheld += 1,
            Entry::Gone => verdict.gone += 1,
        }
    }
    for (key, token) in database.effects()? {
        let known = timers.entry(key).or_default();
        *known.effects.entry(token).or_insert(0) += 1;
    }
    for (key, known) in &timers {
        verdict.add(key, known);
    }
    Ok(verdict)
}

impl Verdict {
    fn add(&mut self, key: &str, known: &Known) {
        let effects: usize = known.effects.values().sum();
        self.accepted += usize::from(known.accepted.is_some());
        self.moved += usize::from(known.moved.is_some());
        self.cancelled += usize::from(known.cancelled.is_some());
        self.runs += known.runs.len();
        self.repeated += known.runs.len().saturating_sub(1);
        self.effects += effects;

        let problem = |count: &mut usize, what: &str| {
            *count += 1;
            complain!("{key}: {what}");
        };
        if known.accepted.is_some() && !known.is_cancelling {
            let is_exact = key.starts_with(child::EXACT);
            if known.runs.is_empty() {
                problem(&mut self.lost, "accepted, and never ran");
            } else if is_exact && effects == 0 {
                problem(&mut self.lost, "ran, and its effect is not there");
            }
        }
        for &(run, attempt) in &known.runs {
            let is_early = known.accepted.is_some_and(|due| run < due)
                || known.moved.is_some_and(|(at, due)| run >= at && run < due);
            if is_early {
                problem(&mut self.early, "ran early");
            }
            if known.cancelled.is_some_and(|at| run > at) {
                problem(&mut self.wrong, "started after it was cancelled");
            }
            if known.ending.is_some_and(|last| attempt > last) {
                problem(
                    &mut self.wrong,
                    "ran again after it was cancelled during a run",
                );
            }
        }
        if effects > 1 {
            problem(&mut self.doubled, "has more than one effect");
        }
        if known.tokens.len() > 1
            || known
                .effects
                .keys()
                .any(|token| !known.tokens.contains(token))
        {
            problem(&mut self.wrong, "runs of another token");
        }
        if known.never && (effects > 0 || !known.runs.is_empty()) {
            problem(&mut self.wrong, "ran, though its commit had not begun");
        }
    }
}
