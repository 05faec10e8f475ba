//! The workloads. One file each and a line in [`ALL`].

mod brief_tasks;
mod cascade;
mod churn;
mod idle;
mod inserts;
mod long_tasks;
mod mass;
mod memory;
mod paced;
mod session_memory;
mod session_touch;
mod session_touch_many;
mod sleeps;
mod start_stop;
mod timeouts;
mod touch;

pub(crate) use long_tasks::NONE_IS_LONG;

use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::child::Child;
use crate::recorder::{Lateness, take_lateness};
use crate::rng::{Rng, mixed};
use crate::systems::{Handles, Keyed, Pooled, Sessions, Sleeps, System};
use crate::wire::Request;

/// A workload in the table.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// What a round finds out.
    pub(crate) metrics: &'static [Metric],
    /// What is measured on one fill, one after the other.
    pub(crate) cases: &'static [Case],
    /// How many timers are there beforehand, by form. Empty in all forms where that is not a question, and in
    /// one form if the workload has no part in it.
    pub(crate) keys: [&'static [u64]; 3],
    /// How much a round does, in the workload's own measure, by form.
    pub(crate) amount: [u64; 3],
    pub(crate) children: Children,
    /// A quarter of a round goes before those that count.
    pub(crate) warm_up: bool,
    pub(crate) by: By,
}

/// How large a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    Quick,
    /// As small as it goes: it shows that everything works, its figures say nothing.
    Smoke,
}

impl Form {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Form::Full => "full",
            Form::Quick => "quick",
            Form::Smoke => "smoke",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) of_rounds: OfRounds,
}

impl Metric {
    /// Of which less is better and the median counts.
    const fn less(name: &'static str, unit: &'static str) -> Self {
        Metric {
            name,
            unit,
            better: Better::Less,
            of_rounds: OfRounds::Median,
        }
    }

    const fn more(name: &'static str, unit: &'static str) -> Self {
        Metric {
            better: Better::More,
            ..Metric::less(name, unit)
        }
    }

    /// A maximum, of which the least counts.
    const fn longest(name: &'static str, unit: &'static str) -> Self {
        Metric {
            of_rounds: OfRounds::Least,
            ..Metric::less(name, unit)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// Which of the rounds' figures stands for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfRounds {
    Median,
    /// For maxima, since being preempted alone makes some milliseconds.
    Least,
}

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Producers.
    pub(crate) threads: usize,
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
const ONE_AND_TWO_THREADS: &[Case] = &[
    Case {
        name: "1 thread",
        threads: 1,
    },
    Case {
        name: "2 threads",
        threads: 2,
    },
];

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
}

pub(crate) const ALL: &[Workload] = &[
    start_stop::BY_HANDLE,
    start_stop::BY_KEY,
    start_stop::BY_MIXED_KEY,
    touch::ABOUT,
    touch::SINGLE,
    timeouts::ABOUT,
    mass::SPREAD,
    mass::INSTANT,
    mass::INSTANT_BY_HANDLE,
    long_tasks::ABOUT,
    brief_tasks::ABOUT,
    idle::ABOUT,
    memory::ABOUT,
    inserts::ABOUT,
    inserts::OF_MIXED_KEYS,
    cascade::ABOUT,
    churn::ABOUT,
    session_touch::ABOUT,
    session_touch_many::ABOUT,
    session_memory::ABOUT,
    sleeps::ABOUT,
];

pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter()
        .find(|workload| workload.name.eq_ignore_ascii_case(name))
}

/// Whether the number of keys is no question there.
pub(crate) fn has_no_keys(name: &str) -> bool {
    find(name).is_some_and(Workload::has_no_keys)
}

impl Workload {
    /// The numbers of keys in this form; one 0 where there is nothing to choose. Empty if the workload has no part
    /// in the form.
    pub(crate) fn keys_in(&self, form: Form) -> &'static [u64] {
        match self.keys[form as usize] {
            [] if self.has_no_keys() => &[0],
            keys => keys,
        }
    }

    pub(crate) fn has_no_keys(&self) -> bool {
        self.keys.iter().all(|keys| keys.is_empty())
    }

    /// What is measured on one fill: the cases of the table, or those with the chosen numbers of threads where
    /// that is the question.
    pub(crate) fn cases_with(&self, threads: &[usize]) -> Vec<Cased> {
        if self.by_threads() && !threads.is_empty() {
            let chosen = threads.iter().map(|threads| Cased {
                number: self
                    .cases
                    .iter()
                    .position(|case| case.threads == *threads)
                    .unwrap_or(0),
                name: match threads {
                    1 => "1 thread".to_owned(),
                    _ => format!("{threads} threads"),
                },
                threads: *threads,
            });
            return chosen.collect();
        }
        let mut cases = Vec::new();
        for (number, case) in self.cases.iter().enumerate() {
            let chosen = match threads {
                _ if !self.may_have_threads() => &[case.threads][..],
                [] => &[case.threads],
                chosen => chosen,
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

    /// Whether it can be done by any number of threads.
    fn may_have_threads(&self) -> bool {
        let pairs = [
            start_stop::BY_HANDLE,
            start_stop::BY_KEY,
            start_stop::BY_MIXED_KEY,
        ];
        self.by_threads() || pairs.iter().any(|pair| pair.name == self.name)
    }

    /// In how many requests a round is done. With several threads a round of many seconds would hardly ever
    /// be in one mode of the machine.
    pub(crate) fn batches(&self, request: &Request) -> u64 {
        if self.name == timeouts::ABOUT.name && request.threads > 1 {
            (request.amount / timeouts::BATCH).max(1)
        } else {
            1
        }
    }

    pub(crate) fn amount_in(&self, form: Form) -> u64 {
        self.amount[form as usize]
    }
}

/// Serves the child's workload with the system `S`, by key.
pub(crate) fn serve_keyed<S: Keyed>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "W1k" => start_stop::serve_keyed::<S>(child, |number| number),
        "W1x" => start_stop::serve_keyed::<S>(child, mixed),
        "W2" => touch::serve::<S>(child),
        "W2t" => touch::serve_single::<S>(child),
        "W3" => timeouts::serve::<S>(child),
        "W4" => mass::serve_spread::<S>(child),
        "W4i" => mass::serve_instant::<S>(child),
        "W5" => long_tasks::serve::<S>(child),
        "W6" => idle::serve::<S>(child),
        "W7" => memory::serve::<S>(child),
        "W8" => inserts::serve::<S>(child, |number| number),
        "W8x" => inserts::serve::<S>(child, mixed),
        "W9" => cascade::serve::<S>(child),
        "churn" => churn::serve::<S>(child),
        other => unreachable!("{other} is not in the table, or by handle"),
    }
}

/// Serves the child's workload with the system `S`, by handle.
pub(crate) fn serve_handles<S: Handles>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "W1" => start_stop::serve_handles::<S>(child),
        "W4h" => mass::serve_instant_by_handle::<S>(child),
        other => unreachable!("{other} is not in the table, or by key"),
    }
}

/// Serves the child's workload with sessions in `S`.
pub(crate) fn serve_sessions<S: Sessions>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "S1" => session_touch::serve::<S>(child),
        "S2" => session_touch_many::serve::<S>(child),
        "S3" => session_memory::serve::<S>(child),
        other => unreachable!("{other} is not in the table, or not of sessions"),
    }
}

/// Serves the child's workload with the system `S`, whose workers can be counted.
pub(crate) fn serve_pooled<S: Pooled>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "W5b" => brief_tasks::serve::<S>(child),
        other => unreachable!("{other} is not in the table, or not of pools"),
    }
}

/// Serves the child's workload with the sleeps of `S`.
pub(crate) fn serve_sleeps<S: Sleeps>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "S4" => sleeps::serve::<S>(child),
        other => unreachable!("{other} is not in the table, or not of sleeps"),
    }
}

/// Arms the keys from one thread, each `delay` from now.
fn fill<S: Keyed>(
    system: &S,
    keys: impl IntoIterator<Item = u64>,
    mut delay: impl FnMut(&mut Rng) -> Duration,
) {
    let mut rng = Rng::new(0xf111);
    let mut count = 0;
    system.on_thread(|| {
        for key in keys {
            system.start(key, delay(&mut rng));
            count += 1;
        }
    });
    filled(system, count);
}

/// How long a session may be idle: none expires while it is measured.
const IDLE: Duration = minutes(30);
/// So many of the sessions are looked at after a fill.
const LOOKS: u64 = 16;

/// Inserts sessions with keys below `keys` from one thread; their values are the keys.
fn fill_sessions<S: Sessions>(system: &S, keys: u64) {
    system.on_thread(|| {
        for key in 0..keys {
            system.insert(key, key);
        }
        for key in 0..LOOKS.min(keys) {
            assert_eq!(system.get(key), Some(key), "it was inserted");
            assert_eq!(system.remove(key), Some(key), "it was there a moment ago");
            assert_eq!(system.get(key), None, "it was taken out");
            system.insert(key, key);
        }
    });
    filled(system, keys);
}

/// Waits for the end of a fill, and looks at it.
fn filled<S: System>(system: &S, keys: u64) {
    system.settle();
    assert_eq!(
        system.pending() as u64,
        keys,
        "nothing fires while it fills"
    );
}

/// Evenly from `from` to `to`.
fn between(rng: &mut Rng, from: Duration, to: Duration) -> Duration {
    from + Duration::from_nanos(rng.below((to - from).as_nanos() as u64))
}

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Runs `work` on so many threads, which begin together; each gets its number. Says how long all of
/// it took, what was left to others included.
fn producers<S: System, R: Send>(
    system: &S,
    threads: usize,
    work: impl Fn(u64) -> R + Sync,
) -> (Duration, Vec<R>) {
    let barrier = Barrier::new(threads);
    let timed = |number| {
        system.on_thread(|| {
            barrier.wait();
            let began = Instant::now();
            let result = work(number);
            (began, Instant::now(), result)
        })
    };
    let results: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads as u64)
            .map(|number| {
                let timed = &timed;
                scope.spawn(move || timed(number))
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        ended.map(|result| result.expect("no call fails")).collect()
    });
    let settling = Instant::now();
    system.settle();
    let settled = settling.elapsed();
    let began = results.iter().map(|(began, ..)| *began).min();
    let ended = results.iter().map(|(_, ended, _)| *ended).max();
    let took = began
        .zip(ended)
        .map_or(settled, |(began, ended)| ended - began + settled);
    let results = results.into_iter().map(|(.., result)| result);
    (took, results.collect())
}

/// What was recorded of `count` timers with stamps, all of which have fired.
fn lateness_of<S: System>(count: u64) -> Lateness {
    let lateness = take_lateness();
    assert_eq!(lateness.count(), count, "each of them fires once");
    assert!(
        S::MAY_BE_EARLY || lateness.early().is_zero(),
        "{} ran a timer {:?} before it was due",
        S::NAME,
        lateness.early()
    );
    lateness
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(workload: &str, threads: &[usize]) -> Vec<(usize, String, usize)> {
        let workload = find(workload).expect("a workload");
        let cases = workload.cases_with(threads).into_iter();
        cases
            .map(|case| (case.number, case.name, case.threads))
            .collect()
    }

    #[test]
    fn threads_are_chosen_where_they_are_a_question() {
        let table = [
            (0, "1 thread".to_owned(), 1),
            (1, "2 threads".to_owned(), 2),
        ];
        assert_eq!(cases("W2", &[]), table);
        let chosen = cases("W2", &[2, 8]);
        let expected = [
            (1, "2 threads".to_owned(), 2),
            (0, "8 threads".to_owned(), 8),
        ];
        assert_eq!(chosen, expected);
        let pairs: Vec<String> = cases("W1", &[1, 4])
            .into_iter()
            .map(|case| case.1)
            .collect();
        let both = ["1 ms - 60 s", "1 ms - 60 s, 4 threads"];
        assert_eq!(pairs[..2], both);
        assert_eq!(pairs.len(), 4);
        assert_eq!(cases("W4", &[8]), cases("W4", &[]));
    }

    #[test]
    fn only_a_long_round_with_several_threads_has_batches() {
        let batches = |workload: &str, threads, amount| {
            let request = Request {
                case: 0,
                threads,
                amount,
                seed: 1,
            };
            find(workload).expect("a workload").batches(&request)
        };
        assert_eq!(batches("W3", 2, 10_000), 10);
        assert_eq!(batches("W3", 2, 600), 1);
        assert_eq!(batches("W3", 1, 10_000), 1);
        assert_eq!(batches("W2", 2, 2_000_000), 1);
    }
}
