//! 1 *Accepted is kept*, 2 *never early*, 3 *the answer is the truth*.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, SystemTime};

use kit::wait;
use tourbillon_durable::{CancelAnswer, Due, Durable, RescheduleAnswer, Store};

use crate::worlds::World;

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until the store has no timer any more.
fn empty(client: &Durable) {
    wait::until("all timers have ended", || {
        let counts = client.counts().wait().unwrap();
        counts
            .iter()
            .all(|counts| counts.waiting + counts.overdue + counts.running == 0)
    });
}

/// Nodes crash while timers are scheduled, cancelled and run.
pub(crate) fn accepted_is_kept(world: &impl World) {
    let seen: Arc<Mutex<HashSet<String>>> = Arc::default();
    let start_node = || {
        let seen = Arc::clone(&seen);
        world
            .node(ms(500))
            .handle("q", move |due: &Due<()>| {
                seen.lock().unwrap().insert(due.key().to_owned());
            })
            .start()
            .unwrap()
    };
    let client = world.client();
    let first = start_node();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let client = client.clone();
            thread::spawn(move || {
                let mut cancelled = Vec::new();
                let mut kept = Vec::new();
                for n in 0..200_u64 {
                    let key = format!("{writer}-{n}");
                    client
                        .schedule("q", &key, ms(n * 37 % 600), &())
                        .wait()
                        .unwrap();
                    let is_cancelled =
                        n % 3 == 0 && client.cancel("q", &key).wait().unwrap().is_cancelled();
                    match is_cancelled {
                        true => cancelled.push(key),
                        false => kept.push(key),
                    }
                }
                (cancelled, kept)
            })
        })
        .collect();
    let count = || seen.lock().unwrap().len();
    wait::until("some have run", || count() > 50);
    first.crash();
    let second = start_node();
    wait::until("more have run", || count() > 200);
    second.crash();
    let _last = start_node();
    let results: Vec<_> = writers.into_iter().map(|one| one.join().unwrap()).collect();
    empty(&client);
    let seen = seen.lock().unwrap();
    for (cancelled, kept) in results {
        assert!(
            kept.iter().all(|key| seen.contains(key)),
            "a timer was lost"
        );
        assert!(!cancelled.iter().any(|key| seen.contains(key)));
    }
    assert_eq!(client.dead("q", 0, 10).wait().unwrap(), []);
}

/// All clocks are one clock here: that of this machine.
pub(crate) fn never_early(world: &impl World) {
    let early: Arc<Mutex<Vec<(String, Duration)>>> = Arc::default();
    let found = Arc::clone(&early);
    let node = world
        .node(MINUTE)
        .handle("q", move |due: &Due<u32>| {
            if let Err(error) = SystemTime::now().duration_since(due.due()) {
                found
                    .lock()
                    .unwrap()
                    .push((due.key().to_owned(), error.duration()));
            }
            match (due.attempt(), due.payload() % 5) {
                (1, 0) => Err("not now"),
                _ => Ok(()),
            }
        })
        .retry(tourbillon_durable::RetryPolicy::fixed(ms(7)).jitter(0.9))
        .start()
        .unwrap();
    for n in 0..100_u32 {
        node.schedule("q", &format!("one-{n}"), ms(u64::from(n % 50)), &n)
            .wait()
            .unwrap();
    }
    let client = world.client();
    let many = (0..900_u32).map(|n| (n.to_string(), ms(u64::from(n % 300)), n));
    client.schedule_many("q", many).wait().unwrap();
    empty(&client);
    assert_eq!(*early.lock().unwrap(), []);
    wait::until("all runs are counted", || node.stats().succeeded >= 1_000);
}

/// Cancels and moves race with the starts.
pub(crate) fn the_answer_is_the_truth(world: &impl World) {
    let starts: Arc<Mutex<HashMap<String, Vec<SystemTime>>>> = Arc::default();
    let journal = Arc::clone(&starts);
    let node = world
        .node(MINUTE)
        .handle("q", move |due: &Due<()>| {
            let mut journal = journal.lock().unwrap();
            journal
                .entry(due.key().to_owned())
                .or_default()
                .push(due.due());
        })
        .start()
        .unwrap();
    let racers: Vec<_> = (0..4_u64)
        .map(|racer| {
            let node = node.clone();
            thread::spawn(move || {
                let (mut cancels, mut moves) = (Vec::new(), Vec::new());
                for n in 0..100 {
                    let key = format!("{racer}-{n}");
                    node.schedule("q", &key, ms(n % 4), &()).wait().unwrap();
                    // The starts come from now on.
                    let until = SystemTime::now() + ms(n * 7 % 5);
                    while SystemTime::now() < until {
                        thread::yield_now();
                    }
                    match (racer + n) % 2 {
                        0 => cancels.push((key.clone(), node.cancel("q", &key).wait().unwrap())),
                        _ => {
                            let moved = node.reschedule("q", &key, ms(30)).wait().unwrap();
                            moves.push((key.clone(), moved));
                        }
                    }
                }
                (cancels, moves)
            })
        })
        .collect();
    let results: Vec<_> = racers.into_iter().map(|one| one.join().unwrap()).collect();
    empty(&world.client());
    let starts = starts.lock().unwrap();
    let starts_of = |key: &String| starts.get(key).cloned().unwrap_or_default();
    let (mut before, mut after) = (0, 0);
    for (cancels, moves) in results {
        for (key, cancelled) in cancels {
            let starts = starts_of(&key).len();
            match cancelled {
                CancelAnswer::Cancelled { .. } => assert_eq!(starts, 0, "{key}"),
                _ => assert_eq!(starts, 1, "{key} {cancelled:?}"),
            }
            before += u32::from(cancelled.is_cancelled());
            after += u32::from(!cancelled.is_cancelled());
        }
        for (key, moved) in moves {
            let starts = starts_of(&key);
            match moved {
                RescheduleAnswer::Moved { to, .. } => assert_eq!(starts, [to], "{key}"),
                _ => assert_eq!(starts.len(), 1, "{key} {moved:?}"),
            }
        }
    }
    assert!(
        before > 0 && after > 0,
        "a race has two ends: {before} and {after}"
    );
}

/// A store that was chosen at run time keeps the same promises: a client and a node have one each.
pub(crate) fn a_store_may_be_chosen_at_run_time(world: &impl World) {
    let chosen = || -> Box<dyn Store> { Box::new(world.store()) };
    let client = Durable::builder(chosen()).start().unwrap();
    let (sender, runs) = mpsc::channel();
    let node = Durable::builder(chosen())
        .poll_interval(ms(50))
        .handle("q", move |due: &Due<u64>| {
            sender.send(*due.payload()).unwrap();
        })
        .start()
        .unwrap();
    client.schedule("q", "a", ms(20), &1).wait().unwrap();
    client.schedule("q", "b", MINUTE, &2).wait().unwrap();
    assert_eq!(wait::next(&runs), 1);
    let cancelled = client.cancel("q", "b").wait().unwrap();
    assert!(cancelled.is_cancelled(), "{cancelled:?}");
    assert_eq!(node.stop(MINUTE).wait().unwrap().unfinished, 0);
    empty(&client);
}
