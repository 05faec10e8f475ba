//! The workloads. One file each and a line in [`ALL`].

mod brief_tasks;
mod cascade;
mod churn;
mod idle;
mod inserts;
mod kit;
mod long_tasks;
mod many;
mod mass;
mod memory;
mod on_servers;
mod paced;
mod session_touch_many;
mod sleeps;
mod start_stop;
mod timeouts;
mod touch;

pub(crate) use long_tasks::NONE_IS_LONG;
pub(crate) use on_servers::ALL as ON_SERVERS;

use std::io;

use crate::child::Child;
use crate::system::{Handles, Keyed, Pooled, Sessions, Sleeps};
use crate::wire::Request;
use crate::workload::Workload;
use chaos::random::mixed;

pub(crate) const ALL: &[Workload] = &[
    start_stop::BY_HANDLE,
    start_stop::BY_KEY,
    start_stop::BY_COUNTED_KEY,
    touch::ABOUT,
    touch::SINGLE,
    timeouts::ABOUT,
    mass::SPREAD,
    mass::INSTANT,
    mass::INSTANT_BY_HANDLE,
    long_tasks::ABOUT,
    brief_tasks::ABOUT,
    idle::ABOUT,
    memory::TIMERS,
    inserts::ABOUT,
    inserts::OF_COUNTED_KEYS,
    cascade::ABOUT,
    many::TIMERS,
    churn::ABOUT,
    touch::SESSIONS,
    session_touch_many::ABOUT,
    memory::SESSIONS,
    many::SESSIONS,
    sleeps::ABOUT,
];

/// All that rows can be of.
pub(crate) fn every() -> impl Iterator<Item = &'static Workload> {
    ALL.iter().chain(ON_SERVERS)
}

pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    every().find(|workload| workload.name.eq_ignore_ascii_case(name))
}

/// In how many requests a round is done. With several threads a round of many seconds would hardly
/// ever be in one mode of the machine.
pub(crate) fn batches(workload: &Workload, request: &Request) -> u64 {
    if workload.name == timeouts::ABOUT.name && request.threads > 1 {
        (request.amount / timeouts::BATCH).max(1)
    } else {
        1
    }
}

/// Serves the child's workload with the system `S`, by key.
pub(crate) fn serve_keyed<S: Keyed>(child: &mut Child) -> io::Result<()> {
    match child.workload.name {
        "W1k" => start_stop::serve_keyed::<S>(child, |number| number),
        "W1x" => start_stop::serve_keyed::<S>(child, mixed),
        "W2" => touch::serve_keyed::<S>(child),
        "W2t" => touch::serve_single::<S>(child),
        "W3" => timeouts::serve::<S>(child),
        "W4" => mass::serve_spread::<S>(child),
        "W4i" => mass::serve_instant::<S>(child),
        "W5" => long_tasks::serve::<S>(child),
        "W6" => idle::serve::<S>(child),
        "W7" => memory::serve_keyed::<S>(child),
        "W8" => inserts::serve::<S>(child, |number| number),
        "W8x" => inserts::serve::<S>(child, mixed),
        "W9" => cascade::serve::<S>(child),
        "W10" => many::serve_keyed::<S>(child),
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
        "S1" => touch::serve_sessions::<S>(child),
        "S2" => session_touch_many::serve::<S>(child),
        "S3" => memory::serve_sessions::<S>(child),
        "S5" => many::serve_sessions::<S>(child),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(workload: &str, threads: &[usize]) -> Vec<(usize, String, usize)> {
        let workload = find(workload).expect("a workload");
        let cases = workload.cases_with(threads).into_iter();
        let cases = cases.map(|case| (case.number, case.name, case.threads));
        cases.collect()
    }

    #[test]
    fn threads_are_chosen_where_they_are_a_question() {
        let of = |number, threads, name: &str| (number, name.to_owned(), threads);
        let table = [of(0, 1, "1 thread"), of(1, 2, "2 threads")];
        assert_eq!(cases("W2", &[]), table);
        let expected = [of(1, 2, "2 threads"), of(0, 8, "8 threads")];
        assert_eq!(cases("W2", &[2, 8]), expected);
        let pairs = cases("W1", &[1, 4]);
        let both = [of(0, 1, "1 ms - 60 s"), of(0, 4, "1 ms - 60 s, 4 threads")];
        assert_eq!((&pairs[..2], pairs.len()), (&both[..], 4));
        assert_eq!(cases("W4", &[8]), cases("W4", &[]));
    }

    #[test]
    fn only_a_long_round_with_several_threads_has_batches() {
        let batches = |workload: &str, threads, amount| {
            let request = Request {
                threads,
                amount,
                ..Request::default()
            };
            batches(find(workload).expect("a workload"), &request)
        };
        assert_eq!(batches("W3", 2, 10_000), 10);
        assert_eq!(batches("W3", 2, 600), 1);
        assert_eq!(batches("W3", 1, 10_000), 1);
        assert_eq!(batches("W2", 2, 2_000_000), 1);
    }
}
