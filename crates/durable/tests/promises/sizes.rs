//! 8 *Idle costs*, 9 *memory holds what starts soon*, 10 *queues do not hold each other up*.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable};

use crate::watched::{Seen, Watched};
use crate::worlds::World;

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn idle_costs_one_read_a_poll_and_one_write_a_beat(world: &impl World) {
    #[derive(Default)]
    struct Counts {
        polls: AtomicU32,
        beats: AtomicU32,
        others: AtomicU32,
    }
    let counts: Arc<Counts> = Arc::default();
    let counted = Arc::clone(&counts);
    let store = Watched::new(world.store(), move |seen| {
        let count = match seen {
            Seen::Poll(_) => &counted.polls,
            Seen::Beat => &counted.beats,
            // The answer to a poll that was counted.
            Seen::Snapshot(..) => return,
            _ => &counted.others,
        };
        count.fetch_add(1, Ordering::SeqCst);
    });
    let (interval, node_lease) = (ms(50), ms(1_000));
    // Timers that are due later cost nothing.
    let client = world.client();
    let many = (0..500).map(|n| (n.to_string(), MINUTE * 60, ()));
    client.schedule_many("q", many).wait().unwrap();
    let start = Instant::now();
    let node = Durable::builder(store)
        .poll_interval(interval)
        .node_lease(node_lease)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    wait::until("30 polls", || counts.polls.load(Ordering::SeqCst) >= 30);
    let passed = start.elapsed();
    // Each call is tried once at the start.
    let most = |each: Duration| passed.as_nanos() / each.as_nanos() + 3;
    let polls = counts.polls.load(Ordering::SeqCst);
    let beats = counts.beats.load(Ordering::SeqCst);
    assert!(
        u128::from(polls) <= most(interval),
        "{polls} polls in {passed:?}"
    );
    assert!(
        u128::from(beats) <= most(node_lease / 5),
        "{beats} beats in {passed:?}"
    );
    // Its join, and the trials of a claim and a settlement.
    assert_eq!(counts.others.load(Ordering::SeqCst), 3);
    assert_eq!(node.stats().runs, 0);
}

pub(crate) fn memory_holds_what_starts_soon(world: &impl World) {
    const TIMERS: u32 = 20_000;
    let gate = Gate::default();
    let pass = gate.clone();
    let client = world.client();
    let many = (0..TIMERS).map(|n| (n.to_string(), ms(0), ()));
    client.schedule_many("q", many).wait().unwrap();
    let later = (0..TIMERS).map(|n| (n.to_string(), MINUTE * 60, ()));
    client.schedule_many("later", later).wait().unwrap();
    let node = world
        .node(MINUTE)
        .handle("q", move |_: &Due<()>| pass.pass())
        .running(10)
        .handle("later", |_: &Due<()>| ())
        .start()
        .unwrap();
    gate.crowd(10);
    let most = AtomicU64::new(0);
    let polls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&polls);
    // Another node polls beside it, so that some polls pass.
    let watched = Watched::new(world.store(), move |seen| {
        if let Seen::Poll(_) = seen {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let _beside = Durable::builder(watched)
        .poll_interval(ms(50))
        .handle("nothing", |_: &Due<()>| ())
        .start()
        .unwrap();
    wait::until("20 polls", || {
        most.fetch_max(node.stats().coming, Ordering::SeqCst);
        polls.load(Ordering::SeqCst) >= 20
    });
    // The bound does not grow with the number of timers.
    let most = most.load(Ordering::SeqCst);
    assert!(most > 0 && most <= 2_100, "{most} of {TIMERS} in memory");
    assert_eq!(node.stats().running, 10);
    // The rest is left in the store when the node stops.
    let stop = node.stop(MINUTE);
    gate.open();
    assert_eq!(stop.wait().unwrap().unfinished, 0);
}

pub(crate) fn queues_do_not_hold_each_other_up(world: &impl World) {
    const BACKLOG: u32 = 5_000;
    let client = world.client();
    for queue in ["paused", "unknown", "slow"] {
        let many = (0..BACKLOG).map(|n| (n.to_string(), ms(0), ()));
        client.schedule_many(queue, many).wait().unwrap();
    }
    client.pause("paused").wait().unwrap();
    let asked: Arc<Mutex<HashSet<String>>> = Arc::default();
    let claimed: Arc<Mutex<HashSet<String>>> = Arc::default();
    let (asks, claims) = (Arc::clone(&asked), Arc::clone(&claimed));
    let polls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&polls);
    let store = Watched::new(world.store(), move |seen| match seen {
        // Before the first answer a node does not know what is paused.
        Seen::Poll(poll) if counted.fetch_add(1, Ordering::SeqCst) > 0 => {
            let queues = poll.ranges.iter().map(|range| range.queue.to_string());
            asks.lock().unwrap().extend(queues);
        }
        Seen::Claim(claim) => {
            let queues = claim.timers.iter().map(|timer| timer.queue.to_string());
            claims.lock().unwrap().extend(queues);
        }
        _ => {}
    });
    let gate = Gate::default();
    let pass = gate.clone();
    let node = Durable::builder(store)
        .poll_interval(ms(50))
        .node_lease(MINUTE)
        .handle("paused", |_: &Due<()>| ())
        .handle("slow", move |_: &Due<()>| pass.pass())
        .running(5)
        .handle("other", |_: &Due<()>| ())
        .start()
        .unwrap();
    gate.crowd(5);
    let many = (0..500).map(|n| (n.to_string(), ms(u64::from(n % 50_u32)), ()));
    client.schedule_many("other", many).wait().unwrap();
    wait::until("the other queue has run", || node.stats().succeeded == 500);
    wait::until("some polls", || polls.load(Ordering::SeqCst) > 10);
    let asked = asked.lock().unwrap().clone();
    let other: HashSet<String> = ["other".to_owned(), "slow".to_owned()].into();
    assert!(
        asked.contains("other") && asked.is_subset(&other),
        "{asked:?}"
    );
    assert!(claimed.lock().unwrap().is_subset(&other));
    let counts = client.counts().wait().unwrap();
    for queue in ["paused", "unknown"] {
        let counts = counts.iter().find(|counts| counts.queue == queue).unwrap();
        assert_eq!(counts.overdue, u64::from(BACKLOG));
    }
    let stop = node.stop(MINUTE);
    gate.open();
    stop.wait().unwrap();
}
