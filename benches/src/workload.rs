//! What a workload is: how its rounds are done, and what they find out.

use serde::{Deserialize, Serialize};

/// A workload in the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What a round finds out.
    pub(crate) metrics: &'static [Metric],
    /// What is measured on one fill, one after the other.
    pub(crate) cases: &'static [Case],
    /// How many timers are there beforehand, by form. Empty in all forms where that is not a
    /// question, and in one form if the workload has no part in it.
    pub(crate) keys: [&'static [u64]; 3],
    /// How much a round does, in the workload's own measure, by form.
    pub(crate) amount: [u64; 3],
    pub(crate) children: Children,
    /// A quarter of a round goes before those that count.
    pub(crate) warm_up: bool,
    pub(crate) by: By,
}

/// How large a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Form {
    #[default]
    Full,
    Quick,
    /// As small as it goes: it shows that everything works, its figures say nothing.
    Smoke,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        ["full", "quick", "smoke"][self as usize]
    }
}

#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) less_is_better: bool,
    /// The least of the rounds stands for them, not the median. For maxima, since being preempted
    /// alone makes some milliseconds.
    pub(crate) least: bool,
}

impl Metric {
    /// Of which less is better and the median counts.
    pub(crate) const fn less(name: &'static str, unit: &'static str) -> Self {
        Metric::of(name, unit, true, false)
    }

    pub(crate) const fn more(name: &'static str, unit: &'static str) -> Self {
        Metric::of(name, unit, false, false)
    }

    /// A maximum, of which the least counts.
    pub(crate) const fn longest(name: &'static str, unit: &'static str) -> Self {
        Metric::of(name, unit, true, true)
    }

    const fn of(name: &'static str, unit: &'static str, less_is_better: bool, least: bool) -> Self {
        Metric {
            name,
            unit,
            less_is_better,
            least,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Producers.
    pub(crate) threads: usize,
}

impl Case {
    pub(crate) const fn of(name: &'static str, threads: usize) -> Self {
        Case { name, threads }
    }
}

/// A case in a run, where `--threads` may have chosen other numbers of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cased {
    /// Of the case in the workload's table.
    pub(crate) number: usize,
    pub(crate) name: String,
    pub(crate) threads: usize,
}

/// Which processes do the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Children {
    /// One per system does them all.
    Kept,
    /// Every round needs a new one.
    Fresh,
    /// One per system, and all at the same time: they hardly use the machine.
    Together,
}

/// The cases of a workload that asks what a second producer does to it.
pub(crate) const ONE_AND_TWO_THREADS: &[Case] =
    &[Case::of("1 thread", 1), Case::of("2 threads", 2)];

/// How a workload names its timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// By the caller's key.
    Key,
    /// By what the system returned when it was started.
    Handle,
    /// They are entries of a map, by key.
    Session,
    /// They are futures.
    Sleep,
    /// By the caller's key, and the number of workers is a figure.
    Pool,
    /// They lie on a server, or in a file.
    Server,
}

impl Workload {
    /// What most have: a process for each round, and nothing to choose.
    pub(crate) const DEFAULT: Self = Workload {
        name: "",
        about: "",
        metrics: &[],
        cases: &[],
        keys: [&[]; 3],
        amount: [0; 3],
        children: Children::Fresh,
        warm_up: false,
        by: By::Key,
    };

    /// The numbers of keys in this form; one 0 where there is nothing to choose. Empty if the
    /// workload has no part in the form.
    pub(crate) fn keys_in(&self, form: Form) -> &'static [u64] {
        match self.keys[form as usize] {
            [] if self.has_no_keys() => &[0],
            keys => keys,
        }
    }

    pub(crate) fn has_no_keys(&self) -> bool {
        self.keys.iter().all(|keys| keys.is_empty())
    }

    /// What is measured on one fill: the cases of the table, or those with the chosen numbers of
    /// threads where that is the question.
    pub(crate) fn cases_with(&self, threads: &[usize]) -> Vec<Cased> {
        if self.by_threads() && !threads.is_empty() {
            let chosen = threads.iter().map(|threads| {
                let mut cases = self.cases.iter();
                let number = cases.position(|case| case.threads == *threads);
                let plural = if *threads == 1 { "" } else { "s" };
                Cased {
                    number: number.unwrap_or(0),
                    name: format!("{threads} thread{plural}"),
                    threads: *threads,
                }
            });
            return chosen.collect();
        }
        // Pairs of a start and a stop can be done by any number of threads.
        let by_any = self.by_threads() || ["W1", "W1k", "W1x"].contains(&self.name);
        let mut cases = Vec::new();
        for (number, case) in self.cases.iter().enumerate() {
            let chosen = match threads {
                chosen if by_any && !chosen.is_empty() => chosen,
                _ => &[case.threads],
            };
            for threads in chosen {
                let mut name = case.name.to_owned();
                if *threads != case.threads {
                    name += &format!(", {threads} threads");
                }
                cases.push(Cased {
                    number,
                    name,
                    threads: *threads,
                });
            }
        }
        cases
    }

    /// Whether its cases differ in their threads only.
    fn by_threads(&self) -> bool {
        let names = |cases: &'static [Case]| cases.iter().map(|case| case.name);
        names(self.cases).eq(names(ONE_AND_TWO_THREADS))
    }

    pub(crate) fn amount_in(&self, form: Form) -> u64 {
        self.amount[form as usize]
    }
}
