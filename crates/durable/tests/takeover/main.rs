//! What happens to the timers of three processes on one store when one of them is killed, or stands
//! still. The lease and the poll interval are the defaults.
//!
//! No test measures lateness, which a busy machine makes as long as it likes. A test waits until
//! the polls of the others say that they read all shards, and compares the timers of one process
//! with those of the others in the same moments. `cargo test --test takeover -- --nocapture` prints
//! the lateness.

#![cfg(unix)]

#[cfg(feature = "postgres")]
#[path = "../kit/postgres.rs"]
mod cluster;
mod place;
mod process;
#[path = "../kit/watched.rs"]
mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use kit::wait;
use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, Answer, Call};

use crate::place::Place;
use crate::process::{Process, Ran};

const QUEUE: &str = "pay-by";
const POLL: Duration = Duration::from_secs(1);
const ALL_SHARDS: u64 = u64::MAX;

fn three_processes(place: &Place) -> [Process; 3] {
    [(); 3].map(|()| Process::start(place))
}

/// Waits until each shard belongs to one of the processes, and each of them has some.
fn wait_until_shards_are_shared_out(processes: &mut [&mut Process]) {
    wait::until("the shards are shared out", || {
        let own = processes.iter_mut().map(|process| process.last_poll().own);
        let own: Vec<u64> = own.collect();
        let number: u32 = own.iter().map(|own| own.count_ones()).sum();
        let all = own.iter().fold(0, |all, own| all | own);
        all == ALL_SHARDS && number == u64::BITS && own.iter().all(|own| *own != 0)
    });
}

/// Waits until these two read all shards as their own. That must come before the third is declared
/// gone.
fn wait_until_the_others_poll_all_shards(others: &mut [&mut Process]) {
    let mut nodes = BTreeSet::new();
    wait::until("the others poll all shards", || {
        let polls = others.iter_mut().map(|process| process.last_poll());
        let polls: Vec<_> = polls.collect();
        nodes = polls.iter().map(|poll| poll.nodes).collect();
        polls.iter().fold(0, |all, poll| all | poll.own) == ALL_SHARDS
    });
    assert_eq!(
        nodes,
        BTreeSet::from([3]),
        "the processes that the polls show"
    );
}

/// Schedules 240 timers: the first after `first`, the others evenly within `spread` after it.
/// Returns the shard of each key.
fn schedule(place: &Place, name: &str, first: Duration, spread: Duration) -> BTreeMap<String, u16> {
    let calls = (0..240).map(|number| Call {
        queue: QUEUE.into(),
        key: format!("{name}-{number}").into(),
        action: Action::Schedule {
            when: DueAt::After(first + spread * number / 240),
            payload: "null".into(),
        },
    });
    let calls: Vec<Call> = calls.collect();
    let answers = place.connect().write(&calls).expect("they are accepted");
    let shards = calls.iter().zip(answers).map(|(call, answer)| {
        let Ok(Answer::Scheduled { shard, .. }) = answer else {
            panic!("{answer:?}");
        };
        (call.key.to_string(), shard)
    });
    shards.collect()
}

fn wait_until_nothing_is_left(place: &Place) {
    let mut connection = place.connect();
    wait::until("no timer is left", || {
        let counts = connection.counts();
        let left = counts.map(|counts| {
            counts
                .iter()
                .map(|of| of.waiting + of.overdue + of.running + of.dead)
                .sum()
        });
        left == Ok(0_u64)
    });
}

fn latest<'a>(runs: impl Iterator<Item = &'a Ran>) -> Duration {
    runs.map(|ran| ran.late).max().unwrap_or_default()
}

fn median<'a>(runs: impl Iterator<Item = &'a Ran>) -> Duration {
    let mut late: Vec<Duration> = runs.map(|ran| ran.late).collect();
    late.sort_unstable();
    late[late.len() / 2]
}

fn after_a_kill_the_others_have_the_shards_before_the_process_is_declared_gone(place: &Place) {
    let [mut dead, mut one, mut other] = three_processes(place);
    wait_until_shards_are_shared_out(&mut [&mut dead, &mut one, &mut other]);
    let lost = dead.last_poll().own;
    // The others notice the death as late as they can.
    dead.wait_for_a_beat();
    let mut shards = schedule(place, "before", POLL, 14 * POLL);
    let killed = SystemTime::now();
    let by_dead = dead.kill();
    wait_until_the_others_poll_all_shards(&mut [&mut one, &mut other]);
    // From here on it makes no difference whose shard it was.
    shards.extend(schedule(place, "after", 3 * POLL, 6 * POLL));
    wait_until_nothing_is_left(place);

    let by_others: Vec<Ran> = [one.stop(), other.stop()].concat();
    let keys = by_dead.iter().chain(&by_others).map(|ran| &ran.key);
    assert_eq!(keys.collect::<BTreeSet<_>>(), shards.keys().collect());
    let runs: BTreeSet<_> = by_others
        .iter()
        .map(|ran| (&ran.key, ran.attempt))
        .collect();
    assert_eq!(runs.len(), by_others.len(), "{by_others:?}");

    // What the dead process had claimed waits for the end of its lease.
    let first = || by_others.iter().filter(|ran| ran.attempt == 1);
    let is_lost = |ran: &&Ran| lost & (1 << shards[&ran.key]) != 0;
    let after = || first().filter(|ran| ran.key.starts_with("after"));
    let before = || first().filter(|ran| ran.key.starts_with("before"));
    let soon = |ran: &&Ran| ran.due < killed + 5 * POLL;
    eprintln!(
        "greatest lateness: {:?} of what was due within 5 s after the kill, {:?} of what was due later; \
         of what was scheduled later {:?} in the shards of the dead process, {:?} in other shards",
        latest(before().filter(soon)),
        latest(before().filter(|ran| !soon(ran))),
        latest(after().filter(is_lost)),
        latest(after().filter(|ran| !is_lost(ran)))
    );
    // A timer that is left to its owner runs one and a half polls late.
    let (lost, kept) = (
        median(after().filter(is_lost)),
        median(after().filter(|ran| !is_lost(ran))),
    );
    assert!(lost < kept + POLL, "{lost:?} and {kept:?}");
}

fn a_process_that_stands_still_costs_at_most_twice_the_polls_and_no_second_run(place: &Place) {
    let [mut late, mut one, mut other] = three_processes(place);
    wait_until_shards_are_shared_out(&mut [&mut late, &mut one, &mut other]);
    let shards = schedule(place, "k", POLL, 12 * POLL);
    late.wait_for_a_beat();
    let before = [one.polls(), other.polls()];
    // On SQLite nobody writes while somebody stands still within a transaction.
    place.while_nobody_writes(|| late.stand_still());
    wait_until_the_others_poll_all_shards(&mut [&mut one, &mut other]);
    late.go_on();
    wait_until_shards_are_shared_out(&mut [&mut late, &mut one, &mut other]);
    for (process, before) in [&mut one, &mut other].into_iter().zip(before) {
        let (polls, took) = process.polls_since(before);
        // One interval is not over yet.
        let usual = took.as_secs_f64() / POLL.as_secs_f64() + 1.0;
        eprintln!("{polls} polls, usually {usual:.1}");
        assert!(f64::from(polls) <= 2.0 * usual, "{polls} polls in {took:?}");
    }
    wait_until_nothing_is_left(place);
    let runs: Vec<Ran> = [late.stop(), one.stop(), other.stop()].concat();
    assert!(runs.iter().all(|ran| ran.attempt == 1), "{runs:?}");
    assert_eq!(runs.len(), shards.len());
    let keys = runs.iter().map(|ran| &ran.key);
    assert_eq!(keys.collect::<BTreeSet<_>>(), shards.keys().collect());
}

macro_rules! on {
    ($store:ident, $place:expr $(, $also:meta)?) => {
        mod $store {
            use crate::place::Place;

            #[test]
            $(#[$also])?
            fn after_a_kill_the_others_have_the_shards_before_the_process_is_declared_gone() {
                super::after_a_kill_the_others_have_the_shards_before_the_process_is_declared_gone(&$place);
            }

            #[test]
            $(#[$also])?
            fn a_process_that_stands_still_costs_at_most_twice_the_polls_and_no_second_run() {
                super::a_process_that_stands_still_costs_at_most_twice_the_polls_and_no_second_run(&$place);
            }
        }
    };
}

on!(sqlite, Place::sqlite());
#[cfg(feature = "postgres")]
on!(
    postgres,
    Place::postgres(),
    cfg_attr(
        not(has_postgres),
        ignore = "needs: apt-get install postgresql"
    )
);
