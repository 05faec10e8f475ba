//! Timers with a schedule: what their ends leave, and what a declaration changes.

use std::time::Duration;

use serde_json::{Value, json};
use tourbillon_durable::store::{
    Action, Answer, DeadLetter, Next, Outcome, Payload, Revived, Settled, StoreTime,
};
use tourbillon_durable::{DueAt, Meta};

use crate::client::{Bench, CRASH_LIMIT, Client, NOW, assert_json, payload, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);
const FIRST: &str = "2026-12-01T05:00:00Z";
const SECOND: &str = "2027-01-01T05:00:00Z";

fn meta(cron: Value) -> Meta {
    let mut meta = json!({ "tenant": "acme" });
    meta["cron"] = cron;
    Meta::of_json(meta.to_string())
}

/// A monthly schedule that waits for this occurrence.
fn monthly(at: &str) -> Value {
    json!({ "expression": "0 6 1 * *", "zone": "Europe/Berlin", "at": at, "offset": 3600 })
}

fn with(mut cron: Value, name: &str, value: Value) -> Value {
    cron[name] = value;
    cron
}

fn carried(text: &str, cron: Value) -> Payload {
    Payload {
        meta: Some(meta(cron)),
        ..payload(text)
    }
}

fn scheduled(when: DueAt, cron: Value) -> Action {
    let payload = carried("first", cron);
    Action::Schedule { when, payload }
}

fn declared(when: DueAt, text: &str, cron: Value) -> Action {
    let payload = carried(text, cron);
    Action::Declare { when, payload }
}

fn next(due: StoreTime, cron: Value) -> Box<Next> {
    Box::new(Next {
        due,
        meta: meta(cron),
    })
}

fn cron_of(meta: Option<&Meta>) -> Value {
    let meta: Value = meta.expect("it has a meta").parse().expect("it is JSON");
    assert_eq!(meta["tenant"], "acme");
    meta["cron"].clone()
}

#[track_caller]
fn assert_waits(client: &mut Client, key: &str, due: StoreTime, planned: StoreTime, cron: &Value) {
    let timer = client.timer(key);
    assert_eq!((timer.due, timer.planned), (due, planned));
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (0, 0, 0));
    assert_eq!(
        (timer.running, timer.cancelled, timer.follows),
        (None, false, false)
    );
    assert_eq!(&cron_of(timer.meta.as_ref()), cron);
    assert_json(&timer.payload, &payload("first"));
}

#[track_caller]
fn only_letter(client: &mut Client) -> DeadLetter {
    let mut letters = client.dead();
    assert_eq!(letters.len(), 1, "{letters:?}");
    letters.remove(0)
}

pub(crate) fn the_end_of_an_occurrence_goes_on_to_the_next(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, monthly(FIRST)));
    let mut run = client.run(node, "k").run;
    client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
    run = client.run_soon(bench, node, "k").run;
    let due = client.now() + HOUR;
    let after = with(
        monthly(SECOND),
        "last",
        json!({ "at": FIRST, "outcome": "done" }),
    );
    let outcome = Outcome::Next(next(due, after.clone()));
    assert_eq!(client.settle(node, &run, &outcome), Settled::Waits);
    assert_waits(&mut client, "k", due, due, &after);
    assert_eq!(client.settle(node, &run, &outcome), Settled::Fenced);
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.dead(), []);
}

pub(crate) fn an_occurrence_that_has_passed_is_due_at_once_and_keeps_its_time(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, monthly(FIRST)));
    let run = client.run(node, "k").run;
    let passed = client.now().back_by(HOUR);
    let before = client.now();
    client.settle(node, &run, &Outcome::Next(next(passed, monthly(SECOND))));
    let after = client.now();
    let timer = client.timer("k");
    assert!((before..=after).contains(&timer.due));
    assert_eq!(timer.planned, passed);
    let claimed = client.run_soon(bench, node, "k");
    assert_ne!(claimed.run.generation, run.generation);
    assert_eq!((claimed.run.attempt, claimed.planned), (1, passed));
}

pub(crate) fn an_end_without_a_next_one_leaves_the_mark(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let marked = with(monthly(FIRST), "last", json!({ "at": FIRST }));
    for (key, outcome, settled) in [
        ("done", Outcome::Done, Settled::Waits),
        ("dead", Outcome::Dead("broken".to_owned()), Settled::Buried),
    ] {
        client.call(key, scheduled(NOW, monthly(FIRST)));
        let run = client.run(node, key).run;
        let before = client.now();
        assert_eq!(client.settle(node, &run, &outcome), settled);
        let after = client.now();
        let timer = client.timer(key);
        assert!((before..=after).contains(&timer.due), "{key}");
        assert_waits(&mut client, key, timer.due, timer.due, &marked);
    }
    assert_eq!(only_letter(&mut client).key, format!("dead@{FIRST}"));
}

pub(crate) fn a_dead_occurrence_is_a_letter_beside_its_schedule(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, monthly(FIRST)));
    let planned = client.timer("k").planned;
    let run = client.run(node, "k").run;
    let due = client.now() + HOUR;
    let outcome = Outcome::DeadThen("broken".to_owned(), next(due, monthly(SECOND)));
    assert_eq!(client.settle(node, &run, &outcome), Settled::Buried);
    assert_waits(&mut client, "k", due, due, &monthly(SECOND));
    let letter = only_letter(&mut client);
    let key = format!("k@{FIRST}");
    assert_eq!((&*letter.key, &*letter.error), (&*key, "broken"));
    assert_eq!(
        (letter.planned, letter.attempt, letter.fails),
        (planned, 1, 1)
    );
    assert!(!letter.has_timer);
    assert_eq!(cron_of(letter.meta.as_ref()), json!({ "at": FIRST }));
    // So it is revived as a timer of its own, which is no schedule.
    let revived = client
        .connection
        .revive(letter.id)
        .expect("the store writes");
    assert!(matches!(revived, Revived::Revived { .. }));
    let run = client.run(node, &key).run;
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
    assert_eq!(client.get(&key), None);
    assert_waits(&mut client, "k", due, due, &monthly(SECOND));
}

pub(crate) fn what_follows_or_a_cancel_wins_over_the_next_occurrence(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + HOUR;
    for outcome in [
        Outcome::Next(next(due, monthly(SECOND))),
        Outcome::DeadThen("broken".to_owned(), next(due, monthly(SECOND))),
        Outcome::Done,
    ] {
        for key in ["cancelled", "followed"] {
            client.call(key, scheduled(NOW, monthly(FIRST)));
        }
        let cancelled = client.run(node, "cancelled").run;
        let followed = client.run(node, "followed").run;
        client.call("cancelled", Action::Cancel);
        client.call("followed", schedule_text(DueAt::After(HOUR * 2), "plain"));
        let ends = vec![(cancelled, outcome.clone()), (followed, outcome)];
        assert_eq!(client.settle_all(node, ends), [Settled::Ended; 2]);
        assert_eq!(client.get("cancelled"), None);
        let timer = client.timer("followed");
        assert_eq!(timer.meta, None);
        assert_json(&timer.payload, &payload("plain"));
        assert!(timer.due > due);
        client.call("followed", Action::Cancel);
    }
    assert_eq!(client.dead(), []);
}

pub(crate) fn a_schedule_whose_nodes_die_too_often_is_still_claimed(bench: &Bench) {
    let mut client = bench.client();
    client.call("k", scheduled(NOW, monthly(FIRST)));
    for epoch in 1..=i64::from(CRASH_LIMIT) + 2 {
        let node = client.join(epoch);
        let claimed = client.claim(node, &["k"]);
        assert_eq!(claimed.dead, 0);
        assert_eq!(i64::from(claimed.runs[0].crashes), epoch - 1);
        client.leave(node);
    }
    assert_eq!(client.dead(), []);
}

pub(crate) fn a_declaration_is_stored_once(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    let first = client.call("k", declared(due.into(), "first", monthly(FIRST)));
    assert!(matches!(
        first,
        Answer::Scheduled {
            replaced: None,
            running: false,
            ..
        }
    ));
    // Its state is no part of the definition.
    let again = with(
        with(monthly(SECOND), "last", json!({ "at": FIRST })),
        "offset",
        json!(7200),
    );
    let again = client.call("k", declared((due + HOUR).into(), "first", again));
    assert_eq!(
        again,
        Answer::Exists {
            due,
            running: false
        }
    );
    assert_waits(&mut client, "k", due, due, &monthly(FIRST));
    let node = client.join(1);
    client.call("k", Action::Reschedule { when: NOW });
    let run = client.run(node, "k");
    let during = client.call("k", declared((due + HOUR).into(), "first", monthly(SECOND)));
    assert_eq!(
        during,
        Answer::Exists {
            due: run.due,
            running: true
        }
    );
    client.settle(node, &run.run, &Outcome::Next(next(due, monthly(SECOND))));
    assert_waits(&mut client, "k", due, due, &monthly(SECOND));
    // A plain timer gives way.
    client.call("plain", schedule_text(DueAt::After(HOUR), "first"));
    client.call("plain", declared(due.into(), "first", monthly(FIRST)));
    assert_waits(&mut client, "plain", due, due, &monthly(FIRST));
}

pub(crate) fn a_declaration_that_differs_replaces_the_definition(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    let last = json!({ "at": "2026-11-01T05:00:00Z", "outcome": "done" });
    let old = with(monthly(FIRST), "last", last.clone());
    for (text, new) in [
        ("second", monthly(SECOND)),
        (
            "first",
            with(monthly(SECOND), "expression", json!("0 7 1 * *")),
        ),
        ("first", with(monthly(SECOND), "zone", json!("UTC"))),
        ("first", with(monthly(SECOND), "overlap", json!("skip"))),
        ("first", with(monthly(SECOND), "revision", json!(1))),
    ] {
        client.call("k", scheduled(due.into(), old.clone()));
        let answer = client.call("k", declared((due + HOUR).into(), text, new.clone()));
        let Answer::Scheduled {
            replaced, running, ..
        } = answer
        else {
            panic!("{new}: {answer:?}");
        };
        assert_eq!((replaced, running), (Some(due), false));
        let timer = client.timer("k");
        assert_eq!((timer.due, timer.planned), (due + HOUR, due + HOUR));
        assert_json(&timer.payload, &payload(text));
        // The row still knows its last occurrence.
        assert_eq!(
            cron_of(timer.meta.as_ref()),
            with(new, "last", last.clone())
        );
    }
}

pub(crate) fn a_declaration_of_a_lower_revision_changes_nothing(bench: &Bench) {
    let mut client = bench.client();
    let due = client.now() + HOUR;
    let new = with(monthly(FIRST), "revision", json!(10));
    client.call("k", declared(due.into(), "first", new.clone()));
    for old in [monthly(SECOND), with(monthly(SECOND), "revision", json!(9))] {
        let answer = client.call("k", declared((due + HOUR).into(), "other", old));
        assert_eq!(
            answer,
            Answer::Exists {
                due,
                running: false
            }
        );
        assert_waits(&mut client, "k", due, due, &new);
    }
}

pub(crate) fn a_declaration_during_a_run_follows_it(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, monthly(FIRST)));
    let run = client.run(node, "k").run;
    let due = client.now() + HOUR;
    let new = with(monthly(SECOND), "zone", json!("UTC"));
    for _ in 0..2 {
        // The second one finds what the first has left, and the run is the same.
        let answer = client.call("k", declared(due.into(), "first", new.clone()));
        match answer {
            Answer::Scheduled { running: true, .. } | Answer::Exists { running: true, .. } => {}
            answer => panic!("{answer:?}"),
        }
        assert!(client.timer("k").follows);
    }
    client.settle(
        node,
        &run,
        &Outcome::Next(next(due + HOUR, monthly(SECOND))),
    );
    // The occurrence that ran counts as ended.
    let expected = with(new, "last", json!({ "at": FIRST }));
    assert_waits(&mut client, "k", due, due, &expected);
}

pub(crate) fn a_declaration_lifts_a_cancel(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", scheduled(NOW, monthly(FIRST)));
    let run = client.run(node, "k").run;
    client.call("k", Action::Cancel);
    let due = client.now() + HOUR;
    client.call("k", declared(due.into(), "first", monthly(SECOND)));
    assert!(client.timer("k").follows);
    client.settle(
        node,
        &run,
        &Outcome::Next(next(due + HOUR, monthly(SECOND))),
    );
    let expected = with(monthly(SECOND), "last", json!({ "at": FIRST }));
    assert_waits(&mut client, "k", due, due, &expected);
}

pub(crate) fn schedules_and_other_ends_share_a_batch(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + HOUR;
    let mut ends = Vec::new();
    for number in 0..40 {
        let key = format!("k{number:02}");
        match number % 2 {
            0 => client.call(&key, scheduled(NOW, monthly(FIRST))),
            _ => client.call(&key, schedule_text(NOW, "plain")),
        };
        let outcome = match number % 4 {
            0 => Outcome::Next(next(due, monthly(SECOND))),
            2 => Outcome::DeadThen("broken".to_owned(), next(due, monthly(SECOND))),
            1 => Outcome::Done,
            _ => Outcome::Dead("broken".to_owned()),
        };
        ends.push((client.run(node, &key).run, outcome));
    }
    let settled = client.settle_all(node, ends);
    for (number, settled) in settled.into_iter().enumerate() {
        let expected = [
            Settled::Waits,
            Settled::Ended,
            Settled::Buried,
            Settled::Buried,
        ];
        assert_eq!(settled, expected[number % 4], "{number}");
        let key = format!("k{number:02}");
        match number % 2 {
            0 => assert_waits(&mut client, &key, due, due, &monthly(SECOND)),
            _ => assert_eq!(client.get(&key), None),
        }
    }
    let keys: Vec<String> = client.dead().into_iter().map(|letter| letter.key).collect();
    let at = format!("@{FIRST}");
    assert_eq!(keys.iter().filter(|key| key.ends_with(&at)).count(), 10);
    assert_eq!(keys.len(), 20);
}
