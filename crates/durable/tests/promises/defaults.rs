//! The default lease and poll interval, on the memory alone.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable, Memory};

/// `cargo test -p tourbillon-durable --all-features --test promises -- --ignored at_the_defaults`
#[test]
#[ignore = "it waits for 16 s, the default node lease: a step of its own in .ci/run, with --ignored"]
fn at_the_defaults_unclaimed_timers_run_within_3_s_and_claimed_ones_within_20_s() {
    let store = Memory::new();
    let gate = Gate::default();
    let pass = gate.clone();
    let first = Durable::builder(store.clone())
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    first
        .schedule("q", "claimed", Duration::ZERO, &())
        .wait()
        .unwrap();
    gate.crowd(1);
    let (sender, receiver) = mpsc::channel();
    let _second = Durable::builder(store.clone())
        .handle("q", move |due: &Due<()>| {
            let since_due = due.due().elapsed().unwrap_or_default();
            sender.send((due.key().to_owned(), since_due)).unwrap();
        })
        .start()
        .unwrap();
    first.crash();
    let crash = Instant::now();
    let client = Durable::builder(store).start().unwrap();
    let many = (0..50).map(|n| (format!("unclaimed-{n}"), Duration::from_secs(1), ()));
    client.schedule_many("q", many).wait().unwrap();
    // What a busy machine may add.
    let slack = Duration::from_secs(2);
    for _ in 0..50 {
        let (key, late) = wait::next(&receiver);
        assert!(key.starts_with("unclaimed"), "{key}");
        assert!(late < Duration::from_secs(3) + slack, "{late:?}");
    }
    let (key, _) = wait::next(&receiver);
    assert_eq!(key, "claimed");
    let took = crash.elapsed();
    assert!(took < Duration::from_secs(20) + slack, "{took:?}");
    assert!(took > Duration::from_secs(12), "{took:?}");
    gate.open();
}
