//! 6 *With one dead node its timers run soon*, 7 *a crash counts*.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::Due;

use crate::worlds::World;

/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(10);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The lease is an hour, so the others do not wait for its end.
pub(crate) fn timers_of_a_dead_node_run_soon_if_unclaimed(world: &impl World) {
    let hour = Duration::from_secs(3_600);
    let (sender, receiver) = mpsc::channel();
    let from_first = sender.clone();
    let first = world
        .node(hour)
        .handle("q", move |_: &Due<()>| {
            from_first.send(1).unwrap_or_default();
        })
        .start()
        .unwrap();
    let second = world
        .node(hour)
        .handle("q", move |_: &Due<()>| {
            sender.send(2).unwrap_or_default();
        })
        .start()
        .unwrap();
    // Both have their parts of the queue when both have run some.
    let client = world.client();
    let mut rounds = 0;
    let mut by = [0, 0];
    while by.contains(&0) {
        let many = (0..100).map(|n| (format!("{rounds}-{n}"), ms(100), ()));
        client.schedule_many("q", many).wait().unwrap();
        for _ in 0..100 {
            by[wait::next(&receiver) - 1] += 1;
        }
        rounds += 1;
    }
    let many = (0..200).map(|n| (format!("last-{n}"), ms(300), ()));
    client.schedule_many("q", many).wait().unwrap();
    first.crash();
    let start = Instant::now();
    for _ in 0..200 {
        assert_eq!(wait::next(&receiver), 2);
    }
    let took = start.elapsed();
    assert!(took < ms(300) + ms(150) + SLACK, "{took:?}");
    drop(second);
}

pub(crate) fn timers_of_a_dead_node_run_after_its_term_if_claimed(world: &impl World) {
    let node_lease = ms(1_500);
    let gate = Gate::default();
    let pass = gate.clone();
    let first = world
        .node(node_lease)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    let many = (0..20).map(|n| (n.to_string(), ms(0), ()));
    first.schedule_many("q", many).wait().unwrap();
    gate.crowd(20);
    let (sender, receiver) = mpsc::channel();
    let second = world
        .node(node_lease)
        .handle("q", move |due: &Due<()>| {
            drop(sender.send((due.key().to_owned(), due.crashes())));
        })
        .start()
        .unwrap();
    first.crash();
    let start = Instant::now();
    let mut keys: Vec<String> = (0..20)
        .map(|_| {
            let (key, crashes) = wait::next(&receiver);
            assert_eq!(crashes, 1);
            key
        })
        .collect();
    let took = start.elapsed();
    // As 20 s to a lease of 15 s.
    assert!(took < ms(2_000) + SLACK, "{took:?}");
    // The last beat was at most a fifth of the lease before the crash.
    assert!(took > node_lease - node_lease / 5 - ms(200), "{took:?}");
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 20);
    gate.open();
    drop(second);
}

pub(crate) fn a_crash_counts_towards_the_crash_limit(world: &impl World) {
    let client = world.client();
    client.schedule("q", "poison", ms(0), &()).wait().unwrap();
    client
        .schedule("q", "neighbour", ms(0), &())
        .wait()
        .unwrap();
    let gate = Gate::default();
    let mut dead = Vec::new();
    for crashes in 0..2 {
        let (sender, receiver) = mpsc::channel();
        let pass = gate.clone();
        let node = world
            .node(ms(500))
            .handle("q", move |due: &Due<()>| {
                if due.key() == "poison" {
                    let _ = sender.send(due.crashes());
                    pass.pass();
                }
            })
            .crash_limit(2)
            .start()
            .unwrap();
        assert_eq!(wait::next(&receiver), crashes);
        // A run whose end is not settled yet would count as lost with its node.
        wait::until("the neighbour has run", || {
            client.get("q", "neighbour").wait().unwrap().is_none()
        });
        node.crash();
        dead.push(node);
    }
    let last = world
        .node(ms(500))
        .handle("q", |_: &Due<()>| ())
        .crash_limit(2)
        .start()
        .unwrap();
    wait::until("the timer is dead", || {
        !client.dead("q", 0, 10).wait().unwrap().is_empty()
    });
    let letters = client.dead("q", 0, 10).wait().unwrap();
    assert_eq!((letters.len(), letters[0].key.as_str()), (1, "poison"));
    assert_eq!((letters[0].crashes, letters[0].fails), (2, 0));
    assert_eq!(last.stats().runs, 0);
    gate.open();
}
