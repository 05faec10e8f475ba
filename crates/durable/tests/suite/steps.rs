//! Steps of a claimed schedule from an occurrence that was missed to a later one that is due.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tourbillon_durable::store::{
    Action, ClaimedRun, Epoch, Next, Outcome, Payload, Settled, StoreTime, StoredState,
};
use tourbillon_durable::{DueAt, Meta};

use crate::client::{Bench, CRASH_LIMIT, Client, NOW, QUEUE, assert_json, payload, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);

fn hourly(at: &str) -> Value {
    json!({ "expression": "@hourly", "zone": "UTC", "at": at, "offset": 0 })
}

fn first() -> Value {
    hourly("2026-12-01T05:00:00Z")
}

fn later() -> Value {
    hourly("2026-12-01T09:00:00Z")
}

fn meta(cron: &Value) -> Meta {
    Meta::of_json(json!({ "tenant": "acme", "cron": cron }).to_string())
}

fn scheduled(when: DueAt) -> Action {
    let payload = Payload {
        meta: Some(meta(&first())),
        ..payload("first")
    };
    Action::Schedule { when, payload }
}

fn step(run: &ClaimedRun, due: StoreTime) -> Outcome {
    let mut stepped = run.clone();
    (stepped.due, stepped.planned) = (due, due);
    stepped.payload.meta = Some(meta(&later()));
    Outcome::Step(Arc::new(stepped))
}

fn next(due: StoreTime) -> Outcome {
    let meta = meta(&hourly("2026-12-01T10:00:00Z"));
    Outcome::Next(Box::new(Next { due, meta }))
}

/// Schedules and claims a timer, whose later occurrence was due a moment ago.
fn claimed(client: &mut Client, node: Epoch, key: &str) -> (ClaimedRun, StoreTime) {
    client.call(key, scheduled(NOW));
    let run = client.run(node, key);
    (run, client.now().back_by(Duration::from_millis(1)))
}

fn pause(client: &mut Client, key: &str) {
    let paused = client.connection.pause_schedule(QUEUE, key, true);
    assert_eq!(paused, Ok(true));
}

#[track_caller]
fn cron(client: &mut Client, key: &str) -> Value {
    let meta: Value = client.timer(key).meta.expect("it has one").parse().unwrap();
    assert_eq!(meta["tenant"], "acme");
    meta["cron"].clone()
}

pub(crate) fn a_step_keeps_the_claim_for_a_later_occurrence(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let (run, due) = claimed(&mut client, node, "k");
    let since = client.timer("k").running;
    // An answer may be lost, so it is asked for again.
    for _ in 0..2 {
        let settled = client.settle(node, &run.run, &step(&run, due));
        assert_eq!(settled, Settled::Stepped);
        let timer = client.timer("k");
        assert_eq!((timer.due, timer.planned), (due, due));
        assert_eq!((timer.attempt, timer.fails, timer.crashes), (1, 0, 0));
        assert_eq!(
            (timer.running, timer.state, timer.cancelled, timer.follows),
            (since, StoredState::Running, false, false)
        );
        assert_json(&timer.payload, &payload("first"));
        assert_eq!(cron(&mut client, "k"), later());
    }
    // Nobody else has it meanwhile, and its node sees it as its own.
    let other = client.join(2);
    assert!(client.claim(other, &["k"]).runs.is_empty());
    assert!(client.seen(node, "k").expect("it is polled").mine);
    assert_eq!(client.seen(other, "k"), None);
    assert_eq!(client.dead(), []);
}

pub(crate) fn a_run_that_was_stepped_ends_as_the_later_occurrence(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let ends = [
        ("next", None, Settled::Waits),
        ("done", Some(Outcome::Done), Settled::Waits),
        (
            "dead",
            Some(Outcome::Dead("broken".to_owned())),
            Settled::Buried,
        ),
    ];
    for (key, end, settled) in ends {
        let (run, due) = claimed(&mut client, node, key);
        client.settle(node, &run.run, &step(&run, due));
        let following = client.now() + HOUR;
        let end = end.unwrap_or_else(|| next(following));
        assert_eq!(client.settle(node, &run.run, &end), settled, "{key}");
        assert_eq!(
            client.timer(key).state == StoredState::Waiting,
            key == "next"
        );
        let told = match key {
            "next" => Value::Null,
            _ => json!({ "at": later()["at"] }),
        };
        assert_eq!(cron(&mut client, key)["last"], told);
    }
    let letters = client.dead();
    assert_eq!(letters.len(), 1);
    assert_eq!(&*letters[0].key, "dead@2026-12-01T09:00:00Z");
    // A retry is one of the later occurrence, too.
    let (run, due) = claimed(&mut client, node, "retry");
    client.settle(node, &run.run, &step(&run, due));
    client.settle(node, &run.run, &Outcome::Retry(Duration::ZERO));
    let again = client.run_soon(bench, node, "retry");
    assert_eq!((again.planned, again.fails, again.run.attempt), (due, 1, 2));
    assert_eq!(cron(&mut client, "retry"), later());
}

pub(crate) fn a_step_to_what_is_not_due_or_paused_waits(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let (run, _) = claimed(&mut client, node, "early");
    // The clock of the node was ahead, or the store's was set back.
    let due = client.now() + HOUR;
    let settled = client.settle(node, &run.run, &step(&run, due));
    assert_eq!(settled, Settled::Waits);
    let timer = client.timer("early");
    assert_eq!((timer.due, timer.planned), (due, due));
    assert_eq!((timer.attempt, timer.state), (0, StoredState::Waiting));
    assert_eq!(cron(&mut client, "early"), later());
    let (run, due) = claimed(&mut client, node, "paused");
    pause(&mut client, "paused");
    let settled = client.settle(node, &run.run, &step(&run, due));
    assert_eq!(settled, Settled::Waits);
    let timer = client.timer("paused");
    assert_eq!((timer.due, timer.planned), (StoreTime::LATEST, due));
    assert_eq!((timer.attempt, timer.state), (0, StoredState::Paused));
    let mut expected = later();
    expected["paused"] = json!(true);
    assert_eq!(cron(&mut client, "paused"), expected);
    // A pause after the step leaves the run alone.
    let (run, due) = claimed(&mut client, node, "runs");
    client.settle(node, &run.run, &step(&run, due));
    pause(&mut client, "runs");
    assert_eq!(client.timer("runs").state, StoredState::Running);
    let following = client.now() + HOUR;
    let settled = client.settle(node, &run.run, &next(following));
    assert_eq!(settled, Settled::Waits);
    assert_eq!(client.timer("runs").state, StoredState::Paused);
}

pub(crate) fn what_follows_or_a_cancel_wins_over_a_step(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for is_repeated in [false, true] {
        let (cancelled, due) = claimed(&mut client, node, "cancelled");
        let (followed, _) = claimed(&mut client, node, "followed");
        let ends = [cancelled, followed].map(|run| (run.run.clone(), step(&run, due)));
        if is_repeated {
            let settled = client.settle_all(node, ends.to_vec());
            assert_eq!(settled, [Settled::Stepped; 2]);
        }
        client.call("cancelled", Action::Cancel);
        client.call("followed", schedule_text(DueAt::After(HOUR), "plain"));
        let settled = client.settle_all(node, ends.to_vec());
        assert_eq!(settled, [Settled::Ended; 2]);
        assert_eq!(client.get("cancelled"), None);
        let timer = client.timer("followed");
        assert_eq!((timer.meta, timer.attempt), (None, 0));
        assert_json(&timer.payload, &payload("plain"));
        client.call("followed", Action::Cancel);
    }
}

pub(crate) fn a_crash_after_a_step_is_one_of_the_later_occurrence(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let (run, due) = claimed(&mut client, node, "k");
    client.settle(node, &run.run, &step(&run, due));
    client.leave(node);
    let other = client.join(2);
    let again = client.run(other, "k");
    assert_eq!((again.due, again.planned), (due, due));
    assert_eq!((again.run.attempt, again.crashes, again.fails), (2, 1, 0));
    assert_eq!(cron(&mut client, "k"), later());
    let fenced = client.settle(node, &run.run, &step(&run, due));
    assert_eq!(fenced, Settled::Fenced);
    assert!(CRASH_LIMIT > 1 && client.dead().is_empty());
}

pub(crate) fn a_step_needs_the_whole_fence_and_a_schedule(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let (run, due) = claimed(&mut client, node, "k");
    let before = client.timer("k");
    let mut older = run.run.clone();
    older.attempt += 1;
    let mut strange = run.run.clone();
    strange.generation += 1;
    for (epoch, fence) in [(node, &older), (node, &strange), (other, &run.run)] {
        let fenced = client.settle(epoch, fence, &step(&run, due));
        assert_eq!(fenced, Settled::Fenced);
    }
    assert_eq!(client.timer("k"), before);
    client.call("plain", schedule_text(NOW, "plain"));
    let plain = client.run(node, "plain");
    let settled = client.settle(node, &plain.run, &step(&plain, due));
    assert_eq!(settled, Settled::Waits);
    let timer = client.timer("plain");
    assert_eq!((timer.meta, timer.attempt, timer.running), (None, 1, None));
}

pub(crate) fn steps_and_other_ends_share_a_batch(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let (stepped, due) = claimed(&mut client, node, "stepped");
    let (waits, _) = claimed(&mut client, node, "waits");
    client.call("plain", schedule_text(NOW, "plain"));
    let plain = client.run(node, "plain");
    let following = client.now() + HOUR;
    let ends = vec![
        (plain.run, Outcome::Done),
        (stepped.run.clone(), step(&stepped, due)),
        (waits.run.clone(), next(following)),
    ];
    let settled = client.settle_all(node, ends);
    assert_eq!(settled, [Settled::Ended, Settled::Stepped, Settled::Waits]);
    assert_eq!(client.get("plain"), None);
    assert_eq!(client.timer("stepped").state, StoredState::Running);
    assert_eq!(client.timer("waits").due, following);
}
