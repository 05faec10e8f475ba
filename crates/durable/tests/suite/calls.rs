//! What the calls of users do to a timer, in every state of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tourbillon_durable::store::{
    Action, Answer, Epoch, Outcome, Page, Payload, SHARDS, Settled, StoreTime,
};
use tourbillon_durable::{DueAt, Meta};

use crate::client::{
    Bench, CRASH_LIMIT, Client, NOW, QUEUE, assert_json, call, claim, if_absent, ms, payload,
    reschedule, schedule, schedule_text,
};

const HOUR: Duration = Duration::from_secs(3_600);
const LATER: DueAt = DueAt::After(HOUR);

/// The answer of a call whose time is `HOUR` from the call.
#[track_caller]
fn assert_in_an_hour(before: StoreTime, due: StoreTime, after: StoreTime) {
    assert!((before + HOUR..=after + HOUR).contains(&due), "{due:?}");
}

/// A timer that a gone node has run, and what was called during the run.
fn left_behind(client: &mut Client, key: &str, during: &[Action]) -> Epoch {
    let gone = client.join(77);
    client.running(gone, key);
    for action in during {
        client.call(key, action.clone());
    }
    client.leave(gone);
    gone
}

// === schedule ===

pub(crate) fn schedule_stores_a_timer(bench: &Bench) {
    let mut client = bench.client();
    let (before, answer, after) = client.timed("k", schedule(LATER));
    let Answer::Scheduled {
        due,
        shard,
        replaced: None,
        running: false,
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_in_an_hour(before, due, after);
    assert!(shard < SHARDS);

    let timer = bench.client().timer("k");
    assert_eq!((&*timer.queue, &*timer.key), (QUEUE, "k"));
    assert_eq!((timer.due, timer.planned), (due, due));
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (0, 0, 0));
    assert_eq!((timer.running, timer.follows), (None, false));
    assert!(!timer.cancelled);
    assert_json(&timer.payload, &payload("first"));
}

pub(crate) fn schedule_replaces_a_waiting_timer(bench: &Bench) {
    let mut client = bench.client();
    let Answer::Scheduled { due: old, .. } = client.call("k", schedule(DueAt::After(2 * HOUR)))
    else {
        panic!();
    };
    let (before, answer, after) = client.timed("k", schedule_text(LATER, "new"));
    let Answer::Scheduled {
        due,
        replaced,
        running: false,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(replaced, Some(old));
    assert_in_an_hour(before, due, after);
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned), (due, due));
    assert_json(&timer.payload, &payload("new"));
    assert_eq!(client.counts()[0].waiting, 1);
}

pub(crate) fn schedule_replaces_a_timer_that_failed_and_its_counts(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    let settled = client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
    assert_eq!(settled, Settled::Waits);
    let overdue = client.timer("k");
    assert_eq!((overdue.attempt, overdue.fails), (1, 1));

    let answer = client.call("k", schedule(NOW));
    assert!(
        matches!(answer, Answer::Scheduled { replaced, running: false, .. } if replaced == Some(overdue.due)),
        "{answer:?}"
    );
    let timer = client.timer("k");
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (0, 0, 0));
    let again = client.run(node, "k").run;
    assert_ne!(again.generation, run.generation);
    assert_eq!(again.attempt, 1);
}

pub(crate) fn schedule_during_a_run_waits_for_its_end(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    let before = client.timer("k");
    let answer = client.call("k", schedule_text(LATER, "next"));
    let Answer::Scheduled {
        due: first,
        replaced: None,
        running: true,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    // The timer that follows is read together with the run.
    let during = client.timer("k");
    assert_eq!((during.due, during.planned), (first, first));
    assert_json(&during.payload, &payload("next"));
    assert!(during.follows && during.running.is_some());
    let counted = |timer: &tourbillon_durable::store::Timer| {
        (timer.attempt, timer.fails, timer.crashes, timer.running)
    };
    assert_eq!(counted(&during), counted(&before));
    // So is its due time where the key is taken.
    let exists = Answer::Exists {
        due: first,
        running: true,
    };
    assert_eq!(client.call("k", if_absent(LATER)), exists);
    assert_eq!(client.timer("k"), during);

    let (from, answer, to) = client.timed("k", schedule_text(LATER, "last"));
    let Answer::Scheduled {
        due,
        replaced,
        running: true,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(replaced, Some(first));
    assert_in_an_hour(from, due, to);

    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned), (due, due));
    assert!(!timer.follows);
    assert_eq!((timer.attempt, timer.running), (0, None));
    assert_json(&timer.payload, &payload("last"));
}

pub(crate) fn schedule_lifts_the_cancel_of_a_run(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.call("k", Action::Cancel);
    assert!(client.timer("k").cancelled);
    let answer = client.call("k", schedule_text(NOW, "next"));
    assert!(matches!(
        answer,
        Answer::Scheduled {
            replaced: None,
            running: true,
            ..
        }
    ));
    let timer = client.timer("k");
    assert!(!timer.cancelled && timer.follows);
    client.settle(node, &run, &Outcome::Retry(HOUR));
    assert_json(&client.run(node, "k").payload, &payload("next"));
}

pub(crate) fn schedule_replaces_what_a_gone_node_ran(bench: &Bench) {
    let mut client = bench.client();
    left_behind(&mut client, "plain", &[]);
    let answer = client.call("plain", schedule_text(LATER, "new"));
    assert!(matches!(
        answer,
        Answer::Scheduled {
            replaced: Some(_),
            running: false,
            ..
        }
    ));
    let timer = client.timer("plain");
    assert_eq!((timer.attempt, timer.crashes, timer.running), (0, 0, None));
    assert_json(&timer.payload, &payload("new"));
}

pub(crate) fn schedule_replaces_what_followed_a_gone_nodes_run(bench: &Bench) {
    let mut client = bench.client();
    let when = client.now() + HOUR;
    left_behind(
        &mut client,
        "k",
        &[schedule_text(DueAt::from(when), "next")],
    );
    let answer = client.call("k", schedule_text(DueAt::from(when + HOUR), "new"));
    assert!(
        matches!(answer, Answer::Scheduled { replaced, running: false, due, .. } if replaced == Some(when) && due == when + HOUR),
        "{answer:?}"
    );
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.follows), (when + HOUR, false));
    assert_json(&timer.payload, &payload("new"));
}

pub(crate) fn schedule_finds_nothing_where_a_gone_nodes_run_was_cancelled(bench: &Bench) {
    let mut client = bench.client();
    left_behind(&mut client, "k", &[Action::Cancel]);
    assert_eq!(client.get("k"), None);
    let answer = client.call("k", schedule_text(LATER, "new"));
    assert!(matches!(
        answer,
        Answer::Scheduled {
            replaced: None,
            running: false,
            ..
        }
    ));
    let timer = client.timer("k");
    assert!(!timer.cancelled);
    assert_json(&timer.payload, &payload("new"));
}

// === schedule if absent ===

pub(crate) fn if_absent_schedules_where_there_is_no_timer(bench: &Bench) {
    let mut client = bench.client();
    let (before, answer, after) = client.timed("k", if_absent(LATER));
    let Answer::Scheduled {
        due,
        replaced: None,
        running: false,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_in_an_hour(before, due, after);
    assert_eq!(client.timer("k").due, due);
}

pub(crate) fn if_absent_leaves_a_timer_that_waits_or_runs(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    let before = client.timer("k");
    let exists = |running| Answer::Exists {
        due: before.due,
        running,
    };
    assert_eq!(client.call("k", if_absent(LATER)), exists(false));
    assert_eq!(client.timer("k"), before);

    client.run(node, "k");
    let running = client.timer("k");
    assert_eq!(client.call("k", if_absent(LATER)), exists(true));
    assert_eq!(client.timer("k"), running);

    client.call("k", Action::Cancel);
    assert_eq!(client.call("k", if_absent(LATER)), exists(true));
    assert!(client.timer("k").cancelled);
}

pub(crate) fn if_absent_leaves_what_a_gone_node_ran(bench: &Bench) {
    let mut client = bench.client();
    left_behind(&mut client, "plain", &[]);
    let before = client.timer("plain");
    let exists = Answer::Exists {
        due: before.due,
        running: false,
    };
    assert_eq!(client.call("plain", if_absent(LATER)), exists);
    // The crash is still to be counted.
    let node = client.join(1);
    assert_eq!(client.run(node, "plain").crashes, 1);

    let when = client.now() + HOUR;
    let gone = client.join(78);
    client.running(gone, "k");
    client.call("k", schedule_text(DueAt::from(when), "next"));
    client.leave(gone);
    let exists = Answer::Exists {
        due: when,
        running: false,
    };
    assert_eq!(client.call("k", if_absent(LATER)), exists);
    let timer = client.timer("k");
    assert_json(&timer.payload, &payload("next"));
    assert_eq!((timer.due, timer.attempt, timer.follows), (when, 0, false));
}

pub(crate) fn if_absent_schedules_where_a_gone_nodes_run_was_cancelled(bench: &Bench) {
    let mut client = bench.client();
    left_behind(&mut client, "k", &[Action::Cancel]);
    let answer = client.call("k", if_absent(LATER));
    assert!(matches!(
        answer,
        Answer::Scheduled {
            replaced: None,
            running: false,
            ..
        }
    ));
    assert_json(&client.timer("k").payload, &payload("second"));
}

// === reschedule ===

pub(crate) fn reschedule_moves_a_timer_and_forgets_its_failures(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let gone = client.join(2);
    client.running(gone, "k");
    client.leave(gone);
    let run = client.run(node, "k").run;
    client.settle(node, &run, &Outcome::Retry(ms(1)));
    let before = client.timer("k");
    assert_eq!((before.attempt, before.fails, before.crashes), (2, 1, 1));

    let to = client.now() + HOUR;
    let answer = client.call("k", reschedule(DueAt::from(to)));
    let Answer::Moved {
        from,
        to: moved,
        running: false,
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!((from, moved), (before.due, to));
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned), (to, to));
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (2, 0, 0));
    assert_json(&timer.payload, &payload("first"));

    client.call("k", reschedule(NOW));
    let again = client.run(node, "k").run;
    assert_eq!((again.generation, again.attempt), (run.generation, 3));
}

pub(crate) fn reschedule_moves_to_an_earlier_time(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("k", schedule(DueAt::After(2 * HOUR)));
    assert!(client.claim(node, &["k"]).runs.is_empty());
    let (before, answer, after) = client.timed("k", reschedule(NOW));
    assert!(
        matches!(answer, Answer::Moved { to, running: false, .. } if (before..=after).contains(&to))
    );
    client.run(node, "k");
}

pub(crate) fn reschedule_of_nothing_is_not_found(bench: &Bench) {
    let mut client = bench.client();
    assert_eq!(client.call("k", reschedule(LATER)), Answer::NotFound);
    assert_eq!(client.get("k"), None);
    left_behind(&mut client, "cancelled", &[Action::Cancel]);
    assert_eq!(
        client.call("cancelled", reschedule(LATER)),
        Answer::NotFound
    );
    assert_eq!(client.get("cancelled"), None);
}

pub(crate) fn reschedule_of_a_run_answers_running(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    client.run(node, "k");
    let before = client.timer("k");
    let running = Answer::Running {
        attempt: 1,
        since: before.running.expect("it runs"),
    };
    assert_eq!(client.call("k", reschedule(LATER)), running);
    assert_eq!(client.timer("k"), before);
    client.call("k", Action::Cancel);
    assert_eq!(client.call("k", reschedule(LATER)), running);
    assert!(client.timer("k").cancelled);
}

pub(crate) fn reschedule_moves_the_timer_that_waits_for_a_run(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    let from = client.now() + HOUR;
    let to = from + HOUR;
    client.call("k", schedule_text(DueAt::from(from), "next"));
    let answer = client.call("k", reschedule(DueAt::from(to)));
    assert!(
        matches!(answer, Answer::Moved { from: f, to: t, running: true, .. } if (f, t) == (from, to)),
        "{answer:?}"
    );
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned, timer.follows), (to, to, true));
    client.settle(node, &run, &Outcome::Done);
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned), (to, to));
    assert_json(&timer.payload, &payload("next"));
}

pub(crate) fn reschedule_moves_what_a_gone_node_ran(bench: &Bench) {
    let mut client = bench.client();
    let gone = left_behind(&mut client, "k", &[]);
    let from = client.timer("k").due;
    let to = client.now() + HOUR;
    let answer = client.call("k", reschedule(DueAt::from(to)));
    assert!(
        matches!(answer, Answer::Moved { from: f, to: t, running: false, .. } if (f, t) == (from, to)),
        "{answer:?}"
    );
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.attempt, timer.crashes), (to, 1, 0));
    assert!(!client.beats(gone));

    let gone = client.join(78);
    client.running(gone, "followed");
    client.call("followed", schedule_text(LATER, "next"));
    client.leave(gone);
    let answer = client.call("followed", reschedule(DueAt::from(to)));
    assert!(matches!(answer, Answer::Moved { to: t, running: false, .. } if t == to));
    let timer = client.timer("followed");
    assert_eq!((timer.due, timer.attempt, timer.follows), (to, 0, false));
    assert_json(&timer.payload, &payload("next"));
}

// === cancel ===

pub(crate) fn cancel_deletes_a_timer_that_waits(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for (key, when) in [("waiting", LATER), ("due", NOW)] {
        client.call(key, schedule(when));
        let due = client.timer(key).due;
        assert_eq!(client.call(key, Action::Cancel), Answer::Cancelled { due });
        assert_eq!(client.get(key), None);
        assert_eq!(client.call(key, Action::Cancel), Answer::NotFound);
    }
    assert!(client.claim(node, &["waiting", "due"]).runs.is_empty());
    assert_eq!(client.counts(), []);
}

pub(crate) fn cancel_of_a_run_ends_the_timer_with_it(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    let since = client.timer("k").running.expect("it runs");
    client.call("k", schedule_text(LATER, "next"));
    let running = Answer::Running { attempt: 1, since };
    assert_eq!(client.call("k", Action::Cancel), running);
    let timer = client.timer("k");
    assert!(timer.cancelled && !timer.follows);
    assert_eq!(client.call("k", Action::Cancel), running);
    let settled = client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
    assert_eq!(settled, Settled::Ended);
    assert_eq!(client.get("k"), None);
}

pub(crate) fn cancel_deletes_what_a_gone_node_ran(bench: &Bench) {
    let mut client = bench.client();
    let next = client.now() + HOUR;
    let gone = client.join(1);
    for key in ["plain", "followed", "cancelled"] {
        client.running(gone, key);
    }
    client.call("followed", schedule(DueAt::from(next)));
    client.call("cancelled", Action::Cancel);
    client.leave(gone);

    let due = client.timer("plain").due;
    assert_eq!(
        client.call("plain", Action::Cancel),
        Answer::Cancelled { due }
    );
    let cancelled = Answer::Cancelled { due: next };
    assert_eq!(client.call("followed", Action::Cancel), cancelled);
    assert_eq!(client.call("cancelled", Action::Cancel), Answer::NotFound);
    assert_eq!(client.counts(), []);
    let node = client.join(2);
    for key in ["plain", "followed", "cancelled"] {
        assert_eq!(client.seen(node, key), None, "{key}");
    }
}

// === due times ===

pub(crate) fn a_due_time_in_the_past_is_now(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let long_ago = [0, -1, i64::MIN].map(StoreTime::from_micros);
    for past in long_ago {
        let (before, answer, after) = client.timed("k", schedule(DueAt::from(past)));
        let Answer::Scheduled { due, .. } = answer else {
            panic!("{answer:?}");
        };
        assert!((before..=after).contains(&due), "{past:?}: {due:?}");
        assert_eq!(client.timer("k").planned, due);
        let (before, answer, after) = client.timed("k", reschedule(DueAt::from(past)));
        assert!(matches!(answer, Answer::Moved { to, .. } if (before..=after).contains(&to)));
    }
    client.run(node, "k");
}

pub(crate) fn far_due_times_are_the_latest_one(bench: &Bench) {
    let mut client = bench.client();
    let far = [
        DueAt::from(StoreTime::LATEST),
        DueAt::from(StoreTime::from_micros(i64::MAX)),
        DueAt::After(Duration::MAX),
        DueAt::After(Duration::from_secs(8_000 * 366 * 86_400)),
    ];
    for when in far {
        let answer = client.call("k", schedule(when));
        assert!(
            matches!(
                answer,
                Answer::Scheduled {
                    due: StoreTime::LATEST,
                    ..
                }
            ),
            "{when:?}: {answer:?}"
        );
        assert_eq!(client.timer("k").due, StoreTime::LATEST);
        client.call("k", reschedule(LATER));
        let answer = client.call("k", reschedule(when));
        assert!(matches!(
            answer,
            Answer::Moved {
                to: StoreTime::LATEST,
                ..
            }
        ));
    }
}

pub(crate) fn due_times_are_kept_to_the_microsecond(bench: &Bench) {
    let mut client = bench.client();
    let base = client.now() + HOUR;
    for micros in [0, 1, 333_333, 999_999] {
        let due = base + Duration::from_micros(micros);
        client.due_at("k", due);
        assert_eq!(client.timer("k").due, due);
    }
    // A part of a microsecond is rounded up: never early.
    let (before, answer, _) = client.timed("k", schedule(DueAt::After(Duration::from_nanos(1))));
    assert!(
        matches!(answer, Answer::Scheduled { due, .. } if due >= before + Duration::from_micros(1))
    );
}

// === batches, keys, payloads ===

pub(crate) fn answers_have_the_order_of_their_calls(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for key in ["z", "m", "b"] {
        client.call(key, schedule(LATER));
    }
    client.running(node, "a");
    let calls = [
        call(QUEUE, "z", Action::Cancel),
        call(QUEUE, "new", schedule(LATER)),
        call(QUEUE, "a", Action::Cancel),
        call(QUEUE, "m", reschedule(NOW)),
        call("other", "z", Action::Cancel),
        call(QUEUE, "b", if_absent(NOW)),
        call(QUEUE, "c", if_absent(NOW)),
    ];
    let answers = client.write(&calls);
    assert!(matches!(answers[0], Answer::Cancelled { .. }));
    assert!(matches!(
        answers[1],
        Answer::Scheduled { replaced: None, .. }
    ));
    assert!(matches!(answers[2], Answer::Running { attempt: 1, .. }));
    assert!(matches!(answers[3], Answer::Moved { .. }));
    assert_eq!(answers[4], Answer::NotFound);
    assert!(matches!(answers[5], Answer::Exists { running: false, .. }));
    assert!(matches!(answers[6], Answer::Scheduled { .. }));
}

pub(crate) fn an_empty_batch_has_no_answers(bench: &Bench) {
    let mut client = bench.client();
    assert_eq!(client.write(&[]), []);
    let node = client.join(1);
    assert_eq!(client.settle_all(node, Vec::new()), []);
    let claimed = client.claim(node, &[] as &[&str]);
    assert!(!claimed.gone && claimed.runs.is_empty());
}

pub(crate) fn a_thousand_calls_travel_in_one_batch(bench: &Bench) {
    let mut client = bench.client();
    // Not in the order of the keys.
    let keys: Vec<String> = (0..1_000)
        .map(|n| format!("order:{}", n * 389 % 1_000))
        .collect();
    let at = client.now() + HOUR;
    let due_of = |n: usize| at + Duration::from_micros(n as u64);
    let batch = |action: &dyn Fn(usize) -> Action| {
        let calls = keys.iter().enumerate();
        let calls = calls.map(|(n, key)| call(QUEUE, key, action(n)));
        calls.collect::<Vec<_>>()
    };
    let scheduled = client.write(&batch(&|n| {
        schedule_text(DueAt::from(due_of(n)), &n.to_string())
    }));
    for (n, answer) in scheduled.into_iter().enumerate() {
        assert!(
            matches!(answer, Answer::Scheduled { due, replaced: None, .. } if due == due_of(n)),
            "{n}: {answer:?}"
        );
    }
    assert_eq!(client.counts()[0].waiting, 1_000);
    let timer = client.timer(&keys[777]);
    assert_json(&timer.payload, &payload("777"));
    assert_eq!(timer.due, due_of(777));

    let moved = client.write(&batch(&|n| reschedule(DueAt::from(due_of(n) + HOUR))));
    for (n, answer) in moved.into_iter().enumerate() {
        assert!(
            matches!(answer, Answer::Moved { from, to, .. } if (from, to) == (due_of(n), due_of(n) + HOUR)),
            "{n}: {answer:?}"
        );
    }
    let cancelled = client.write(&batch(&|_| Action::Cancel));
    for (n, answer) in cancelled.into_iter().enumerate() {
        let due = due_of(n) + HOUR;
        assert_eq!(answer, Answer::Cancelled { due }, "{n}");
    }
    assert_eq!(client.counts(), []);
}

pub(crate) fn a_key_may_have_any_character(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let long = "k".repeat(512);
    let long_unicode = "é".repeat(256);
    let keys = [
        "a",
        "A",
        " ",
        "  ",
        "a ",
        " a",
        "'",
        "''",
        "\"",
        "\\",
        "\\\\",
        "\\'",
        "\n",
        "\r\n",
        "\t",
        "\u{1}",
        "\u{7f}",
        "%",
        "_",
        "?",
        "$1",
        ":key",
        "{}",
        "[]",
        "null",
        "NULL",
        "0",
        "00",
        "-- x",
        "; drop table timer",
        "/* */",
        "é",
        "e\u{301}",
        "ключ",
        "鍵",
        "🔑",
        "\u{feff}",
        "\u{202e}",
        "\u{fffd}",
        "\u{10ffff}",
        &long,
        &long_unicode,
    ];
    let mut shards = Vec::new();
    for key in keys {
        let answer = client.call(key, schedule_text(NOW, "here"));
        let Answer::Scheduled {
            shard,
            replaced: None,
            ..
        } = answer
        else {
            panic!("{key:?}: {answer:?}");
        };
        shards.push(shard);
    }
    let mut listed = client.keys(&Page::first(QUEUE, 1_000));
    listed.sort_unstable();
    let mut sorted = keys.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(listed, sorted);
    let claimed = client.claim(node, &keys);
    assert_eq!(claimed.runs.len(), keys.len());
    for (key, shard) in keys.into_iter().zip(shards) {
        assert_eq!(client.timer(key).key, key);
        let seen = client
            .seen(node, key)
            .unwrap_or_else(|| panic!("{key:?} is not seen"));
        assert_eq!((seen.shard, seen.mine), (shard, true));
        let run = claimed.runs.iter().find(|claimed| &*claimed.run.key == key);
        let run = &run.unwrap_or_else(|| panic!("{key:?} was not claimed")).run;
        assert_eq!(client.settle(node, run, &Outcome::Done), Settled::Ended);
        assert_eq!(client.get(key), None);
    }
}

pub(crate) fn a_key_of_two_queues_is_two_timers(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join_for(1, &["q", "Q"]);
    for queue in ["q", "Q", "q ", "очередь", "'\"\\"] {
        let answer = client.call_in(queue, "k", schedule_text(NOW, "x"));
        assert!(
            matches!(answer, Answer::Scheduled { replaced: None, .. }),
            "{queue}"
        );
    }
    let run = client.run(node, "k").run;
    assert_eq!(&*run.queue, "q");
    assert!(client.get_in("q", "k").expect("it runs").running.is_some());
    assert!(client.get_in("Q", "k").expect("it waits").running.is_none());
    assert!(matches!(
        client.call_in("Q", "k", Action::Cancel),
        Answer::Cancelled { .. }
    ));
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
    let left: Vec<_> = client
        .counts()
        .into_iter()
        .map(|of| (of.queue, of.overdue))
        .collect();
    let expected = ["'\"\\", "q ", "очередь"].map(|queue| (queue.to_owned(), 1));
    assert_eq!(left, expected);
}

pub(crate) fn payloads_come_back_as_they_were_given(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let long = format!("{{\"long\":\"{}\"}}", "é'\\\\\\\"".repeat(8_000));
    let payloads = [
        "null",
        "true",
        "false",
        "0",
        "-1",
        "0.1",
        "1e300",
        "{}",
        "[]",
        "\"\"",
        "\"text\"",
        "9007199254740993",
        "18446744073709551615",
        "-9223372036854775808",
        "{\"id\":9007199254740993,\"list\":[1,[2,{\"three\":null}]]}",
        "{\"a\":{\"b\":{\"c\":[{},[],\"\"]}}}",
        "\"\\u00e9 \\ud83d\\udd11 \\n \\t \\\" \\\\ \\/ \\u0001 \\u007f\"",
        "\"é 🔑 ' '' ; -- $1 :x ?\"",
        "{\"\":1,\" \":2,\"'\":3,\"\\\"\":4}",
        &deep,
        &long,
    ];
    for given in payloads {
        let payload = Payload::from(given);
        client.call("k", Action::Schedule { when: NOW, payload });
        assert_json(&client.timer("k").payload, given);
        let page = Page::first(QUEUE, 10);
        assert_json(&client.list(&page)[0].payload, given);
        let claimed = client.run(node, "k");
        assert_json(&claimed.payload, given);
        // As one that follows, as a dead letter, and revived.
        let payload = Payload::from(given);
        client.call("k", Action::Schedule { when: NOW, payload });
        client.settle(node, &claimed.run, &Outcome::Done);
        let next = client.run(node, "k");
        assert_json(&next.payload, given);
        client.settle(node, &next.run, &Outcome::Dead("broken".to_owned()));
        let letter = client.dead().remove(0);
        assert_json(&letter.payload, given);
        client
            .connection
            .revive(letter.id)
            .expect("the store writes");
        let revived = client.run(node, "k");
        assert_json(&revived.payload, given);
        client.settle(node, &revived.run, &Outcome::Again(Duration::ZERO));
        assert_json(&client.timer("k").payload, given);
    }
}

/// A meta stays with its timer in all that happens to it, and a schedule replaces it.
pub(crate) fn a_meta_goes_with_its_timer(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let meta =
        |tenant: &str| Some(Meta::new(&BTreeMap::from([("tenant", tenant)])).expect("an object"));
    let with = |meta: Option<Meta>| Payload {
        meta,
        ..payload("p")
    };
    let same = |stored: Option<&Meta>, tenant: &str| {
        let stored = stored.unwrap_or_else(|| panic!("{tenant} is not there"));
        let read: BTreeMap<String, String> = stored.parse().expect("a map");
        assert_eq!(
            read,
            BTreeMap::from([("tenant".to_owned(), tenant.to_owned())])
        );
    };
    let first = Action::Schedule {
        when: LATER,
        payload: with(meta("first")),
    };
    client.call("k", first);
    same(client.timer("k").meta.as_ref(), "first");
    // Where a timer is, `schedule_if_absent` changes nothing; a move keeps it.
    let other = Action::ScheduleIfAbsent {
        when: LATER,
        payload: with(meta("other")),
    };
    client.call("k", other.clone());
    client.call("k", reschedule(NOW));
    same(
        client.list(&Page::first(QUEUE, 10))[0].meta.as_ref(),
        "first",
    );
    let bytes = client.seen(node, "k").expect("it is due").bytes;
    let timer = client.timer("k");
    let meta_bytes = timer.meta.as_ref().map_or(0, |meta| meta.as_str().len());
    assert_eq!(bytes, (timer.payload.len() + meta_bytes) as u64);
    // Through runs and their ends.
    let mut claimed = client.run(node, "k");
    same(claimed.payload.meta.as_ref(), "first");
    for outcome in [
        Outcome::Retry(Duration::ZERO),
        Outcome::GiveBack(Duration::ZERO),
        Outcome::Again(Duration::ZERO),
    ] {
        client.settle(node, &claimed.run, &outcome);
        same(client.timer("k").meta.as_ref(), "first");
        claimed = client.run(node, "k");
        same(claimed.payload.meta.as_ref(), "first");
    }
    // What is adopted has it, and so has what gone nodes have left behind.
    let mut adopting = claim(node, QUEUE, &[] as &[&str]);
    adopting.adopt.push(claimed.run.clone());
    same(
        client.claim_of(&adopting).runs[0].payload.meta.as_ref(),
        "first",
    );
    client.leave(node);
    let node = client.join(2);
    claimed = client.run(node, "k");
    same(claimed.payload.meta.as_ref(), "first");
    // As a dead letter, and revived.
    client.settle(node, &claimed.run, &Outcome::Dead("broken".to_owned()));
    let letter = client.dead().remove(0);
    same(letter.meta.as_ref(), "first");
    client
        .connection
        .revive(letter.id)
        .expect("the store writes");
    same(client.timer("k").meta.as_ref(), "first");
    // Through crashes to a dead letter.
    for epoch in 10..10 + i64::from(CRASH_LIMIT) {
        let node = client.join(epoch);
        client.run(node, "k");
        client.leave(node);
    }
    let node = client.join(3);
    assert_eq!(client.claim(node, &["k"]).dead, 1);
    let letter = client.dead().remove(0);
    same(letter.meta.as_ref(), "first");
    // A schedule replaces it, waiting or running, by another one or by none.
    client.call("k", other);
    same(client.timer("k").meta.as_ref(), "other");
    client.call("k", schedule(NOW));
    assert_eq!(client.timer("k").meta, None);
    let run = client.run(node, "k");
    assert_eq!(run.payload.meta, None);
    let last = Action::Schedule {
        when: NOW,
        payload: with(meta("last")),
    };
    client.call("k", last);
    same(client.timer("k").meta.as_ref(), "last");
    client.call("k", schedule(LATER));
    client.settle(node, &run.run, &Outcome::Done);
    assert_eq!(client.timer("k").meta, None);
}

/// What JSON allows comes back with the same values, up to the limits.
pub(crate) fn every_meta_comes_back(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let deep = format!("{}{}", "{\"a\":".repeat(126) + "{", "}".repeat(127));
    let long = format!("{{\"long\":\"{}\"}}", "x".repeat(8 * 1024 - 11));
    for given in [
        "{}",
        "{\"b\":1,\"a\":{\"\":[null,true,1.5,\"'\"]}}",
        "{\"é 🔑\":\"\\u0001\\n\"}",
        &deep,
        &long,
    ] {
        let value: serde_json::Value = serde_json::from_str(given).expect("JSON");
        let meta = Meta::new(&value).expect("an object within the limits");
        let payload = Payload {
            meta: Some(meta),
            ..payload("p")
        };
        client.call("k", Action::Schedule { when: NOW, payload });
        let read = |meta: Option<&Meta>| assert_json(meta.expect("it has one").as_str(), given);
        read(client.timer("k").meta.as_ref());
        let claimed = client.run(node, "k");
        read(claimed.payload.meta.as_ref());
        client.settle(node, &claimed.run, &Outcome::Done);
    }
}

pub(crate) fn numbers_of_any_length_keep_their_digits(bench: &Bench) {
    let mut client = bench.client();
    for given in [
        "123456789012345678901234567890",
        "0.1234567890123456789012345",
    ] {
        let payload = Payload::from(given);
        client.call("k", Action::Schedule { when: NOW, payload });
        assert_eq!(client.timer("k").payload, given);
    }
}

pub(crate) fn a_timer_keeps_its_shard(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let keys: Vec<String> = (0..200).map(|number| format!("order:{number}")).collect();
    let mut shards_of = |action: Action| -> Vec<u16> {
        let calls = keys.iter().map(|key| call(QUEUE, key, action.clone()));
        let answers = client.write(&calls.collect::<Vec<_>>());
        let shard_of = |answer| match answer {
            Answer::Scheduled { shard, .. } | Answer::Moved { shard, .. } => shard,
            answer => panic!("{answer:?}"),
        };
        answers.into_iter().map(shard_of).collect()
    };
    let shards = shards_of(schedule(NOW));
    assert_eq!(shards_of(reschedule(NOW)), shards);
    assert_eq!(shards_of(schedule(NOW)), shards);
    let used: BTreeSet<u16> = shards.iter().copied().collect();
    assert!(
        used.len() > 50,
        "200 keys lie in {} of {SHARDS} shards",
        used.len()
    );
    assert!(used.iter().all(|shard| *shard < SHARDS));
    for (key, shard) in keys.iter().zip(shards).take(10) {
        assert_eq!(client.seen(node, key).expect("it is due").shard, shard);
    }
}

pub(crate) fn crashes_are_forgotten_by_a_new_timer(bench: &Bench) {
    let mut client = bench.client();
    client.due("k");
    for epoch in 1..10 {
        // Without the new timer the third crash would bury it.
        assert!(epoch <= i64::from(CRASH_LIMIT) || client.dead().is_empty());
        let node = client.join(epoch);
        let claimed = client.run(node, "k");
        assert_eq!((claimed.crashes, claimed.run.attempt), (0, 1));
        client.leave(node);
        client.due("k");
    }
}
