//! 4 *One key, one run*, 5 *exactly-once effect*.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable, DurableEvent, RetryPolicy};

use crate::watched::{Seen, Watched};
use crate::worlds::World;

const MINUTE: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Keys are scheduled again and again while they run, on two nodes.
pub(crate) fn one_key_one_run(world: &impl World) {
    const KEYS: usize = 6;
    let in_run: Arc<[AtomicU32; KEYS]> = Arc::default();
    let (twice, runs) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU32::new(0)),
    );
    let nodes: Vec<Durable> = (0..2)
        .map(|_| {
            let (in_run, twice, runs) =
                (Arc::clone(&in_run), Arc::clone(&twice), Arc::clone(&runs));
            world
                .node(MINUTE)
                .handle("q", move |due: &Due<usize>| {
                    let own = &in_run[*due.payload()];
                    if own.fetch_add(1, Ordering::SeqCst) > 0 {
                        twice.store(true, Ordering::SeqCst);
                    }
                    thread::yield_now();
                    own.fetch_sub(1, Ordering::SeqCst);
                    runs.fetch_add(1, Ordering::SeqCst);
                })
                .start()
                .unwrap()
        })
        .collect();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let node = nodes[thread % 2].clone();
            thread::spawn(move || {
                for n in 0..150 {
                    let key = (n * 5 + thread) % KEYS;
                    node.schedule("q", &key.to_string(), ms(0), &key)
                        .wait()
                        .unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let client = world.client();
    wait::until("all have ended", || {
        let counts = client.counts().wait().unwrap();
        counts
            .iter()
            .all(|one| one.waiting + one.overdue + one.running == 0)
    });
    assert!(!twice.load(Ordering::SeqCst), "a key ran twice at one time");
    assert!(runs.load(Ordering::SeqCst) >= KEYS as u32);
}

/// The beats of a node hang while it runs a timer. Another node takes the timer over.
pub(crate) fn a_node_that_lost_its_term_settles_nothing(world: &impl World) {
    let silent = Arc::new(AtomicBool::new(false));
    let (hang, is_silent) = (Gate::default(), Arc::clone(&silent));
    let beats = hang.clone();
    let store = Watched::new(world.store(), move |seen| {
        if let Seen::Beat = seen
            && is_silent.load(Ordering::SeqCst)
        {
            beats.pass();
        }
    });
    let gate = Gate::default();
    let pass = gate.clone();
    let (sender, events) = mpsc::channel();
    let first = Durable::builder(store)
        .poll_interval(ms(50))
        .node_lease(ms(500))
        .on_event(move |event| drop(sender.send(event.clone())))
        .handle("q", move |due: &Due<()>| {
            if due.attempt() == 1 {
                pass.pass();
                assert!(!due.is_held(), "the lease is over");
            }
        })
        .start()
        .unwrap();
    first.schedule("q", "k", ms(0), &()).wait().unwrap();
    gate.crowd(1);
    silent.store(true, Ordering::SeqCst);
    hang.crowd(1);

    let (holds, held) = mpsc::channel();
    let second_gate = Gate::default();
    let second_pass = second_gate.clone();
    let second = world
        .node(ms(500))
        .handle("q", move |due: &Due<()>| {
            holds.send((due.attempt(), due.crashes())).unwrap();
            second_pass.pass();
        })
        .start()
        .unwrap();
    assert_eq!(wait::next(&held), (2, 1));
    // The first run ends while the second one goes on, and its node is back.
    gate.open();
    wait::until("the first run has ended", || first.stats().running == 0);
    silent.store(false, Ordering::SeqCst);
    hang.open();
    loop {
        if let DurableEvent::NodeGone | DurableEvent::Fenced { .. } = wait::next(&events) {
            break;
        }
    }
    assert_eq!(first.stats().panicked, 0);
    let timer = second
        .get("q", "k")
        .wait()
        .unwrap()
        .expect("the second run is not settled");
    assert_eq!(timer.attempt, 2);
    second_gate.open();
    wait::until("the second run is settled", || {
        second.get("q", "k").wait().unwrap().is_none()
    });
}

/// Nodes crash before, during and after the transaction of a run.
pub(crate) fn exactly_once_effect_through_complete_in(world: &impl World) {
    // A node that has crashed may still end the 64 runs that it had, and each of the three needs ten of its own.
    const TIMERS: usize = 300;
    let client = world.client();
    let many = (0..TIMERS).map(|n| (n.to_string(), ms(n as u64 * 3), ()));
    client.schedule_many("q", many).wait().unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    // Each node crashes in one of its own runs, at another place each time.
    for place in 0..3 {
        let (crashed, is_crashed) = mpsc::channel();
        let own: Arc<OnceLock<Durable>> = Arc::default();
        let (this, counted, effects) = (Arc::clone(&own), Arc::clone(&runs), world.clone());
        let node = world
            .node(ms(500))
            .handle("q", move |due: &Due<()>| {
                let n = counted.fetch_add(1, Ordering::SeqCst);
                let crash_at = |at| {
                    if n % 10 == 9 && at == place {
                        this.wait().crash();
                        let _ = crashed.send(());
                    }
                };
                crash_at(0);
                let result = effects.effect(due);
                crash_at(1);
                // An effect whose run was not completed must not be.
                if n % 4 == 0 && result.is_ok() {
                    return Err("an error after the commit".to_owned());
                }
                crash_at(2);
                result.map_err(|error| error.to_string())
            })
            .retry(RetryPolicy::fixed(ms(1)).attempts(1_000))
            .crash_limit(1_000)
            .start()
            .unwrap();
        own.set(node).unwrap();
        wait::next(&is_crashed);
    }
    let effects = world.clone();
    let _last = world
        .node(ms(500))
        .handle("q", move |due: &Due<()>| effects.effect(due))
        .retry(RetryPolicy::fixed(ms(1)).attempts(1_000))
        .crash_limit(1_000)
        .start()
        .unwrap();
    wait::until("all timers have ended", || {
        let counts = client.counts().wait().unwrap();
        counts
            .iter()
            .all(|one| one.waiting + one.overdue + one.running == 0)
    });
    let effects = world.effects();
    assert_eq!(effects.len(), TIMERS, "an effect is missing");
    assert!(effects.values().all(|times| *times == 1), "{effects:?}");
    assert_eq!(client.dead("q", 0, 10).wait().unwrap(), []);
}
