//! Pauses of one schedule, lists of schedules, and the names that nodes tell.

use std::time::Duration;

use serde_json::{Value, json};
use tourbillon_durable::store::{
    Action, Answer, Epoch, NewNode, Next, Outcome, Page, Payload, Settled, StoreTime, StoredState,
};
use tourbillon_durable::{DueAt, Meta};

use crate::client::{Bench, Client, NOW, QUEUE, payload, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);
const LATEST: StoreTime = StoreTime::LATEST;

fn daily() -> Value {
    json!({ "expression": "@daily", "zone": "UTC", "at": "2026-12-01T00:00:00Z" })
}

fn with(mut cron: Value, name: &str, value: Value) -> Value {
    cron[name] = value;
    cron
}

fn paused(cron: Value) -> Value {
    with(cron, "paused", json!(true))
}

fn carried(cron: &Value) -> Payload {
    Payload {
        meta: Some(Meta::of_json(json!({ "cron": cron }).to_string())),
        ..payload("first")
    }
}

fn scheduled(when: DueAt, cron: &Value) -> Action {
    let payload = carried(cron);
    Action::Schedule { when, payload }
}

fn declared(when: DueAt, cron: &Value) -> Action {
    let payload = carried(cron);
    Action::Declare { when, payload }
}

fn next(due: StoreTime, cron: &Value) -> Box<Next> {
    let meta = Meta::of_json(json!({ "cron": cron }).to_string());
    Box::new(Next { due, meta })
}

fn pause(client: &mut Client, key: &str, paused: bool) -> bool {
    client
        .connection
        .pause_schedule(QUEUE, key, paused)
        .expect("the store writes")
}

#[track_caller]
fn cron(client: &mut Client, key: &str) -> Value {
    let meta = client.timer(key).meta.expect("it has a meta");
    let meta: Value = meta.parse().expect("it is JSON");
    meta["cron"].clone()
}

/// It waits for the end of a pause, with this planned time.
#[track_caller]
fn assert_held(client: &mut Client, key: &str, planned: StoreTime) {
    let timer = client.timer(key);
    assert_eq!(
        (timer.due, timer.planned, timer.state),
        (LATEST, planned, StoredState::Paused)
    );
    assert_eq!(cron(client, key)["paused"], json!(true));
}

pub(crate) fn a_paused_schedule_waits_until_it_is_resumed(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + HOUR;
    client.call("k", scheduled(due.into(), &daily()));
    for _ in 0..2 {
        assert!(pause(&mut client, "k", true));
        assert_held(&mut client, "k", due);
    }
    for _ in 0..2 {
        assert!(pause(&mut client, "k", false));
        let timer = client.timer("k");
        assert_eq!((timer.due, timer.planned), (due, due));
        assert_eq!(timer.state, StoredState::Waiting);
        assert_eq!(cron(&mut client, "k"), daily());
    }
    // One whose time has passed meanwhile is due at once, and has its own time.
    client.call("k", scheduled(NOW, &daily()));
    let planned = client.timer("k").planned;
    pause(&mut client, "k", true);
    assert!(client.claim(node, &["k"]).runs.is_empty());
    let before = client.now();
    pause(&mut client, "k", false);
    let resumed = client.timer("k");
    assert!(resumed.due >= before.max(planned) && resumed.due <= client.now());
    assert_eq!(resumed.planned, planned);
    let claimed = client.run_soon(bench, node, "k");
    assert_eq!((claimed.planned, claimed.run.attempt), (planned, 1));
}

pub(crate) fn only_a_schedule_is_paused(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for paused in [true, false] {
        assert!(!pause(&mut client, "none", paused));
    }
    client.call("plain", schedule_text(NOW, "plain"));
    for (key, cron) in [
        ("text", json!("@daily")),
        ("name", json!("expression")),
        ("names", json!(["expression"])),
        ("list", json!([{ "expression": "@daily" }])),
        (
            "letter",
            json!({ "at": "2026-12-01T00:00:00Z", "paused": true }),
        ),
    ] {
        client.call(key, scheduled(NOW, &cron));
    }
    for key in ["plain", "text", "name", "names", "list", "letter"] {
        let before = client.timer(key);
        assert!(!pause(&mut client, key, true), "{key}");
        assert!(!pause(&mut client, key, false), "{key}");
        assert_eq!(client.timer(key), before);
        // It runs and ends like all others.
        let run = client.run_soon(bench, node, key).run;
        let settled = client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
        assert_eq!(settled, Settled::Waits, "{key}");
        let run = client.run_soon(bench, node, key).run;
        assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
        assert_eq!(client.get(key), None, "{key}");
    }
    client.call("k", scheduled(NOW, &daily()));
    client.run(node, "k");
    client.call("k", Action::Cancel);
    assert!(!pause(&mut client, "k", true));
    // What somebody has written by hand is no pause, and can be paused.
    client.call(
        "odd",
        scheduled(NOW, &with(daily(), "paused", json!("yes"))),
    );
    let planned = client.timer("odd").planned;
    assert_ne!(client.timer("odd").state, StoredState::Paused);
    assert!(pause(&mut client, "odd", true));
    assert_held(&mut client, "odd", planned);
}

pub(crate) fn a_pause_ends_with_the_cancel_of_its_schedule(bench: &Bench) {
    let mut client = bench.client();
    for (epoch, key, dies) in [(1, "lives", false), (2, "dies", true)] {
        let node = client.join(epoch);
        client.call(key, scheduled(NOW, &daily()));
        let run = client.run(node, key).run;
        assert!(pause(&mut client, key, true));
        client.call(key, Action::Cancel);
        if dies {
            client.leave(node);
        }
        let due = client.now() + HOUR;
        client.call(key, declared(due.into(), &daily()));
        if !dies {
            client.settle(node, &run, &Outcome::Done);
        }
        let timer = client.timer(key);
        assert_eq!(
            (timer.due, timer.state),
            (due, StoredState::Waiting),
            "{key}"
        );
        assert_eq!(cron(&mut client, key)["paused"], Value::Null);
    }
}

pub(crate) fn a_pause_during_a_run_holds_what_follows(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + HOUR;
    let dead = |next| Outcome::DeadThen("broken".to_owned(), next);
    for (key, outcome) in [
        ("next", Outcome::Next(next(due, &daily()))),
        ("dead", dead(next(due, &daily()))),
    ] {
        client.call(key, scheduled(NOW, &daily()));
        let run = client.run(node, key).run;
        assert!(pause(&mut client, key, true));
        assert_eq!(client.timer(key).state, StoredState::Running);
        client.settle(node, &run, &outcome);
        assert_held(&mut client, key, due);
        pause(&mut client, key, false);
        let timer = client.timer(key);
        assert_eq!((timer.due, timer.planned), (due, due), "{key}");
        assert_eq!(cron(&mut client, key), daily());
    }
    let letter = client.dead().remove(0).meta.expect("it has a meta");
    assert!(!letter.as_str().contains("paused"), "{letter}");
    for (key, outcome, fails) in [
        ("retry", Outcome::Retry(HOUR), 1),
        ("give back", Outcome::GiveBack(Duration::ZERO), 0),
    ] {
        client.call(key, scheduled(NOW, &daily()));
        let planned = client.timer(key).planned;
        let run = client.run(node, key).run;
        pause(&mut client, key, true);
        client.settle(node, &run, &outcome);
        assert_held(&mut client, key, planned);
        pause(&mut client, key, false);
        assert_eq!(client.timer(key).fails, fails);
        client.run_soon(bench, node, key);
    }
    // Nobody has told the next occurrence.
    client.call("done", scheduled(NOW, &daily()));
    let run = client.run(node, "done").run;
    pause(&mut client, "done", true);
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Waits);
    assert_eq!(client.timer("done").due, LATEST);
    assert_eq!(
        cron(&mut client, "done")["last"],
        json!({ "at": "2026-12-01T00:00:00Z" })
    );
}

pub(crate) fn a_resume_during_a_run_holds_nothing(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(DueAt::After(HOUR), &daily()));
    pause(&mut client, "k", true);
    // A move runs it in addition, though it is paused.
    client.call("k", Action::Reschedule { when: NOW });
    let run = client.run(node, "k").run;
    pause(&mut client, "k", false);
    let due = client.now() + HOUR;
    // The node has the meta of the claim.
    let outcome = Outcome::Next(next(due, &paused(daily())));
    client.settle(node, &run, &outcome);
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.state), (due, StoredState::Waiting));
    assert_eq!(cron(&mut client, "k"), daily());
    // Without the resume it is held again.
    pause(&mut client, "k", true);
    client.call("k", Action::Reschedule { when: NOW });
    let run = client.run(node, "k").run;
    client.settle(node, &run, &outcome);
    assert_held(&mut client, "k", due);
}

pub(crate) fn what_a_gone_node_left_paused_is_held(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, &daily()));
    let planned = client.timer("k").planned;
    client.run(node, "k");
    pause(&mut client, "k", true);
    client.leave(node);
    let other = client.join(2);
    assert!(client.claim(other, &["k"]).runs.is_empty());
    assert_held(&mut client, "k", planned);
    pause(&mut client, "k", false);
    let claimed = client.run_soon(bench, other, "k");
    assert_eq!((claimed.crashes, claimed.planned), (1, planned));
    // Resumed before anybody has looked, it runs again.
    pause(&mut client, "k", true);
    client.leave(other);
    pause(&mut client, "k", false);
    let third = client.join(3);
    assert_eq!(client.run_soon(bench, third, "k").crashes, 2);
}

pub(crate) fn a_declaration_leaves_a_pause(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    client.call("k", declared(due.into(), &daily()));
    pause(&mut client, "k", true);
    let same = client.call("k", declared((due + HOUR).into(), &daily()));
    assert!(matches!(same, Answer::Exists { .. }), "{same:?}");
    assert_held(&mut client, "k", due);
    let hourly = with(daily(), "expression", json!("@hourly"));
    let other = client.call("k", declared((due + HOUR).into(), &hourly));
    assert!(matches!(other, Answer::Scheduled { .. }), "{other:?}");
    assert_held(&mut client, "k", due + HOUR);
    assert_eq!(cron(&mut client, "k"), paused(hourly.clone()));
    pause(&mut client, "k", false);
    assert_eq!(client.timer("k").due, due + HOUR);
    assert_eq!(cron(&mut client, "k"), hourly);
    // Another timer in its place is not paused.
    pause(&mut client, "k", true);
    client.call("k", scheduled(due.into(), &daily()));
    assert_eq!(client.timer("k").due, due);
    pause(&mut client, "k", true);
    assert!(matches!(
        client.call("k", Action::Cancel),
        Answer::Cancelled { .. }
    ));
}

pub(crate) fn a_revision_that_is_no_number_counts_as_none(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    for odd in [
        json!("two"),
        json!(null),
        json!([1]),
        json!({}),
        json!(-1),
        json!(0.5),
    ] {
        client.call(
            "k",
            scheduled(due.into(), &with(daily(), "revision", odd.clone())),
        );
        let new = with(daily(), "revision", json!(1));
        let answer = client.call("k", declared((due + HOUR).into(), &new));
        assert!(
            matches!(answer, Answer::Scheduled { .. }),
            "{odd}: {answer:?}"
        );
        let answer = client.call("k", declared(due.into(), &with(daily(), "revision", odd)));
        assert!(matches!(answer, Answer::Exists { .. }), "{answer:?}");
        assert_eq!(cron(&mut client, "k"), new);
    }
}

pub(crate) fn a_list_has_the_schedules_alone(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    client.call("a", scheduled(due.into(), &daily()));
    client.call("b", schedule_text(due.into(), "plain"));
    client.call("c", scheduled(due.into(), &json!("@daily")));
    client.call("d", scheduled(due.into(), &daily()));
    pause(&mut client, "d", true);
    let mut page = Page::first(QUEUE, 100);
    assert_eq!(client.keys(&page), ["a", "b", "c", "d"]);
    page.schedules = true;
    assert_eq!(client.keys(&page), ["a", "d"]);
    page.queue = None;
    assert_eq!(client.keys(&page), ["a", "d"]);
    page.prefix = "d".to_owned();
    assert_eq!(client.keys(&page), ["d"]);
    for (state, keys) in [
        (StoredState::Paused, vec!["d"]),
        (StoredState::Waiting, vec!["a"]),
        (StoredState::Overdue, vec![]),
    ] {
        page.prefix = String::new();
        page.state = Some(state);
        assert_eq!(client.keys(&page), keys, "{state}");
    }
}

pub(crate) fn a_node_tells_the_schedules_of_its_program(bench: &Bench) {
    let mut client = bench.client();
    let mut node = NewNode {
        epoch: Epoch(1),
        name: "shop".to_owned(),
        queues: vec![QUEUE.into()],
        schedules: Default::default(),
    };
    for key in ["a", "$.\"'[0]\u{202e}\u{1b}", "a"] {
        let keys = node.schedules.entry(QUEUE.to_owned()).or_default();
        keys.insert(key.to_owned());
    }
    for _ in 0..2 {
        client.connection.join(&node).expect("the store writes");
        let nodes = client.connection.nodes().expect("the store reads");
        assert_eq!(nodes.len(), 1);
        assert_eq!(nodes[0].schedules, node.schedules);
        // A node that stops handles nothing.
        node.queues.clear();
    }
}
