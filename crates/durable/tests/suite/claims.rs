//! Claims.

use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{
    Action, Answer, Claim, ClaimedRun, Epoch, Offset, Outcome, Page, Range, Run, SHARDS, Settled,
    StoreTime,
};

use crate::client::{
    Bench, CRASH_LIMIT, Client, NOW, QUEUE, assert_json, call, claim, ms, payload, range, schedule,
    schedule_text,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn sorted_keys(runs: &[ClaimedRun]) -> Vec<&str> {
    let mut keys: Vec<&str> = runs.iter().map(|claimed| &*claimed.run.key).collect();
    keys.sort_unstable();
    keys
}

pub(crate) fn a_claim_starts_a_run_of_a_due_timer(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    let seen = client.seen(node, "k").expect("it is due");
    let before = client.now();
    let claimed = client.claim(node, &["k"]);
    let after = client.now();
    assert!(!claimed.gone && claimed.dead == 0);
    assert!((before..=after).contains(&claimed.now));
    let [run] = &claimed.runs[..] else {
        panic!("{claimed:?}");
    };
    let expected = Run {
        queue: QUEUE.into(),
        key: "k".into(),
        generation: seen.generation,
        attempt: 1,
    };
    assert_eq!(run.run, expected);
    assert_eq!((run.due, run.planned), (seen.due, seen.due));
    assert_eq!((run.fails, run.crashes), (0, 0));
    assert_json(&run.payload, &payload("first"));
    let timer = client.timer("k");
    assert!(
        timer
            .running
            .is_some_and(|since| (before..=after).contains(&since))
    );
    assert_eq!((timer.due, timer.attempt), (seen.due, 1));
}

pub(crate) fn a_claim_leaves_what_is_not_due_or_not_there(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.call("later", schedule(DueAt::After(HOUR)));
    let before = client.timer("later");
    client.due("due");
    let claimed = client.claim(node, &["later", "due", "unknown"]);
    assert_eq!(sorted_keys(&claimed.runs), ["due"]);
    assert_eq!(client.timer("later"), before);
    assert_eq!(client.get("unknown"), None);
    assert!(client.claim_in(node, "unknown", &["due"]).runs.is_empty());
}

pub(crate) fn a_timer_is_due_at_its_time_and_not_before(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + ms(10);
    client.due_at("k", due);
    bench
        .clock()
        .set(StoreTime::from_micros(due.as_micros() - 1).into());
    assert!(client.claim(node, &["k"]).runs.is_empty());
    bench.clock().set(due.into());
    client.run(node, "k");
}

pub(crate) fn no_claim_is_early_by_the_stores_clock(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + ms(30);
    // On a busy machine it is due by then.
    client.call("k", schedule(DueAt::from(due)));
    client.run_soon(bench, node, "k");
    assert!(client.timer("k").running.is_some_and(|since| since >= due));
}

pub(crate) fn a_claim_takes_nothing_of_a_paused_queue(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join_for(1, &[QUEUE, "other"]);
    client.due("k");
    client.call_in("other", "k", schedule(NOW));
    client.set_paused(QUEUE, true);
    let mut both = claim(node, QUEUE, &["k"]);
    both.timers.extend(claim(node, "other", &["k"]).timers);
    let claimed = client.claim_of(&both);
    let [run] = &claimed.runs[..] else {
        panic!("{claimed:?}");
    };
    assert_eq!(&*run.run.queue, "other");
    assert!(client.timer("k").running.is_none());
    client.set_paused(QUEUE, false);
    client.run(node, "k");
}

pub(crate) fn a_pause_leaves_runs_alone(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.set_paused(QUEUE, true);
    let adopting = Claim {
        adopt: vec![run.clone()],
        ..claim(node, QUEUE, &[] as &[&str])
    };
    assert_eq!(client.claim_of(&adopting).runs.len(), 1);
    let settled = client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
    assert_eq!(settled, Settled::Waits);
    assert!(client.claim(node, &["k"]).runs.is_empty());
}

pub(crate) fn a_node_that_is_gone_or_unknown_claims_nothing(bench: &Bench) {
    let mut client = bench.client();
    let gone = client.join(1);
    let run = client.running(gone, "held");
    client.leave(gone);
    client.due("k");
    let before = client.list(&Page::first(QUEUE, 10));
    for epoch in [gone, Epoch(99), Epoch(0), Epoch(-1)] {
        let mut asked = claim(epoch, QUEUE, &["k", "held"]);
        asked.adopt.push(run.clone());
        let claimed = client.claim_of(&asked);
        assert!(claimed.gone && claimed.runs.is_empty() && claimed.dead == 0);
    }
    assert_eq!(client.list(&Page::first(QUEUE, 10)), before);
}

pub(crate) fn a_timer_that_runs_is_not_claimed(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    client.running(node, "k");
    let before = client.timer("k");
    assert!(client.claim(other, &["k"]).runs.is_empty());
    // Nor by its own node: it would be a second run.
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.timer("k"), before);
}

pub(crate) fn a_claim_counts_the_crash_of_a_gone_node(bench: &Bench) {
    let mut client = bench.client();
    let (gone, node) = (client.join(1), client.join(2));
    let lost = client.running(gone, "k");
    let due = client.timer("k").due;
    assert!(client.declare_gone(node, gone, 0));
    // Not counted before the claim.
    let timer = client.timer("k");
    assert_eq!((timer.crashes, timer.running, timer.due), (0, None, due));
    let claimed = client.run(node, "k");
    assert_eq!((claimed.crashes, claimed.fails, claimed.due), (1, 0, due));
    assert_eq!(claimed.run.generation, lost.generation);
    assert_eq!(claimed.run.attempt, 2);
    // The old run may not settle.
    assert_eq!(client.settle(gone, &lost, &Outcome::Done), Settled::Fenced);
    assert_eq!(client.settle(node, &lost, &Outcome::Done), Settled::Fenced);
    assert_eq!(
        client.settle(node, &claimed.run, &Outcome::Done),
        Settled::Ended
    );
}

pub(crate) fn a_timer_whose_nodes_die_too_often_becomes_a_dead_letter(bench: &Bench) {
    let mut client = bench.client();
    client.due("k");
    client.due("neighbour");
    let planned = client.timer("k").planned;
    for epoch in 1..=i64::from(CRASH_LIMIT) {
        let node = client.join(epoch);
        let claimed = client.run(node, "k");
        assert_eq!(i64::from(claimed.crashes), epoch - 1);
        client.leave(node);
    }
    let node = client.join(100);
    let before = client.now();
    let claimed = client.claim(node, &["k", "neighbour"]);
    let after = client.now();
    assert_eq!(claimed.dead, 1);
    assert_eq!(sorted_keys(&claimed.runs), ["neighbour"]);
    assert_eq!(client.get("k"), None);
    let letters = client.dead();
    let [letter] = &letters[..] else {
        panic!("{letters:?}");
    };
    assert_eq!((&*letter.queue, &*letter.key), (QUEUE, "k"));
    assert_eq!((letter.attempt, letter.fails), (CRASH_LIMIT, 0));
    assert_eq!((letter.crashes, letter.planned), (CRASH_LIMIT, planned));
    assert!((before..=after).contains(&letter.at));
    assert!(letter.error.contains('3'), "{}", letter.error);
    assert_json(&letter.payload, &payload("first"));
}

pub(crate) fn a_claim_decides_what_gone_nodes_left_behind(bench: &Bench) {
    let mut client = bench.client();
    let gone = client.join(1);
    for key in ["followed now", "followed later", "cancelled"] {
        client.running(gone, key);
    }
    let later = client.now() + HOUR;
    client.call("followed now", schedule_text(NOW, "next"));
    client.call("followed later", schedule_text(DueAt::from(later), "next"));
    client.call("cancelled", Action::Cancel);
    let due = client.timer("followed now").due;
    client.leave(gone);
    let node = client.join(2);
    let claimed = client.claim(node, &["followed now", "followed later", "cancelled"]);
    let [run] = &claimed.runs[..] else {
        panic!("{claimed:?}");
    };
    assert_eq!(&*run.run.key, "followed now");
    // The crash was that of the other timer.
    assert_eq!((run.run.attempt, run.crashes), (1, 0));
    // Nobody has to look behind a mark: the end of a node drops them all.
    assert_eq!((run.due, run.planned), (due, due));
    assert_json(&run.payload, &payload("next"));
    let timer = client.timer("followed later");
    assert_eq!(
        (timer.due, timer.planned, timer.follows),
        (later, later, false)
    );
    assert_eq!((timer.attempt, timer.crashes), (0, 0));
    assert_json(&timer.payload, &payload("next"));
    assert_eq!(client.get("cancelled"), None);
    assert_eq!(client.seen(node, "cancelled"), None);
    assert_eq!(client.dead(), []);
}

/// What a gone node left behind is decided before the crash limit.
pub(crate) fn what_follows_or_a_cancel_spares_the_dead_letter(bench: &Bench) {
    let mut client = bench.client();
    let keys = ["followed", "cancelled", "buried"];
    for key in keys {
        client.due(key);
    }
    for epoch in 1..=i64::from(CRASH_LIMIT) {
        let node = client.join(epoch);
        assert_eq!(client.claim(node, &keys).runs.len(), 3);
        if epoch == i64::from(CRASH_LIMIT) {
            client.call("followed", schedule_text(NOW, "next"));
            client.call("cancelled", Action::Cancel);
        }
        client.leave(node);
    }
    let node = client.join(100);
    let claimed = client.claim(node, &keys);
    assert_eq!(
        (claimed.dead, sorted_keys(&claimed.runs)),
        (1, vec!["followed"])
    );
    assert_eq!(client.dead()[0].key, "buried");
}

pub(crate) fn a_claim_after_its_deadline_does_nothing(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let gone = client.join(2);
    let held = client.running(node, "held");
    client.running(gone, "gone");
    client.call("gone", Action::Cancel);
    client.leave(gone);
    client.due("k");
    let now = client.now();
    let mut late = claim(node, QUEUE, &["k", "gone"]);
    late.deadline = now;
    late.adopt.push(held.clone());
    let claimed = client.claim_of(&late);
    assert!(!claimed.gone && claimed.runs.is_empty() && claimed.now >= now);
    assert!(client.timer("k").running.is_none());
    assert!(client.seen(node, "gone").is_some());
    late.deadline = now + HOUR;
    assert_eq!(sorted_keys(&client.claim_of(&late).runs), ["held", "k"]);
}

pub(crate) fn adoption_returns_a_run_whose_answer_was_lost(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    let first = client.run(node, "k");
    client.settle(node, &first.run, &Outcome::Retry(Duration::ZERO));
    let lost = client.run(node, "k");
    let before = client.timer("k");
    let mut adopting = claim(node, QUEUE, &[] as &[&str]);
    adopting.adopt.push(lost.run.clone());
    for _ in 0..2 {
        let adopted = client.claim_of(&adopting);
        assert_eq!(adopted.runs, std::slice::from_ref(&lost));
        assert_eq!(client.timer("k"), before);
    }
    // Beside a claim.
    client.due("new");
    adopting.timers = claim(node, QUEUE, &["new", "k"]).timers;
    assert_eq!(sorted_keys(&client.claim_of(&adopting).runs), ["k", "new"]);
    assert_eq!(
        client.settle(node, &lost.run, &Outcome::Done),
        Settled::Ended
    );
}

pub(crate) fn adoption_needs_the_fence(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let run = client.running(node, "k");
    client.due("free");
    let free = client.seen(node, "free").expect("it is due");
    let mut try_adopt = |epoch, run: Run| {
        let mut adopting = claim(epoch, QUEUE, &[] as &[&str]);
        adopting.adopt.push(run);
        client.claim_of(&adopting).runs.len()
    };
    let with = |change: &dyn Fn(&mut Run)| {
        let mut changed = run.clone();
        change(&mut changed);
        changed
    };
    assert_eq!(try_adopt(node, run.clone()), 1);
    assert_eq!(try_adopt(other, run.clone()), 0);
    assert_eq!(try_adopt(node, with(&|run| run.attempt = 2)), 0);
    assert_eq!(try_adopt(node, with(&|run| run.attempt = 0)), 0);
    assert_eq!(try_adopt(node, with(&|run| run.generation += 1)), 0);
    assert_eq!(try_adopt(node, with(&|run| run.key = "unknown".into())), 0);
    assert_eq!(try_adopt(node, with(&|run| run.queue = "other".into())), 0);
    let not_held = with(&|run| {
        run.key = "free".into();
        run.generation = free.generation;
        run.attempt = 0;
    });
    assert_eq!(try_adopt(node, not_held), 0);
}

/// ROW-4: the row has another payload, or nobody wants the run. So it is given back.
pub(crate) fn adoption_starts_nothing_that_is_over(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let later = client.now() + HOUR;
    let cases: [(&str, &[Action], Option<StoreTime>); 4] = [
        (
            "followed",
            &[schedule_text(DueAt::from(later), "next")],
            Some(later),
        ),
        ("followed now", &[schedule_text(NOW, "next")], None),
        ("cancelled", &[Action::Cancel], None),
        ("both", &[schedule_text(NOW, "next"), Action::Cancel], None),
    ];
    for (key, during, due) in cases {
        let lost = client.running(node, key);
        for action in during {
            client.call(key, action.clone());
        }
        let before = client.timer(key);
        let mut adopting = claim(node, QUEUE, &[] as &[&str]);
        adopting.adopt.push(lost.clone());
        for _ in 0..2 {
            let adopted = client.claim_of(&adopting);
            assert_eq!(
                (adopted.runs, adopted.over),
                (vec![], vec![lost.clone()]),
                "{key}"
            );
            // Nothing is written.
            assert_eq!(client.timer(key), before, "{key}");
        }
        let back = Outcome::GiveBack(Duration::ZERO);
        assert_eq!(client.settle(node, &lost, &back), Settled::Ended, "{key}");
        let left = client.get(key);
        assert_eq!(left.is_some(), key.starts_with("followed"), "{key}");
        if let Some(timer) = left {
            assert_eq!(
                (timer.attempt, timer.running, timer.follows),
                (0, None, false)
            );
            assert_json(&timer.payload, &payload("next"));
            assert_eq!(due.unwrap_or(timer.due), timer.due);
        }
        // The fence is passed.
        let adopted = client.claim_of(&adopting);
        assert_eq!((adopted.runs, adopted.over), (vec![], vec![]), "{key}");
    }
}

/// A row whose claim's answer was lost, and whose key was scheduled for later since, is found by a
/// cancel, and otherwise when it is due.
pub(crate) fn a_lost_run_that_is_followed_is_found_when_it_is_due_or_cancelled(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let seen = |client: &mut Client, key: &str| {
        bench.pass(ms(1));
        let due = |shard| Range {
            until: Offset::Ahead(Duration::ZERO),
            ..range(QUEUE, shard)
        };
        let snapshot = client.poll(node, (0..SHARDS).map(due).collect());
        let mut rows = snapshot.rows.into_iter();
        rows.find(|seen| &*seen.key == key)
    };
    let over = |client: &mut Client, lost: &Run| {
        let mut adopting = claim(node, QUEUE, &[] as &[&str]);
        adopting.adopt.push(lost.clone());
        let adopted = client.claim_of(&adopting);
        assert_eq!((adopted.runs, adopted.over), (vec![], vec![lost.clone()]));
        let back = Outcome::GiveBack(Duration::ZERO);
        assert_eq!(client.settle(node, lost, &back), Settled::Ended);
    };

    // It is cancelled.
    let lost = client.running(node, "cancelled");
    assert!(seen(&mut client, "cancelled").is_some());
    client.call("cancelled", schedule_text(DueAt::After(HOUR), "next"));
    assert_eq!(seen(&mut client, "cancelled"), None);
    let read = client.timer("cancelled");
    assert!(read.running.is_some() && read.follows && !read.cancelled);
    let answer = client.call("cancelled", Action::Cancel);
    assert!(matches!(answer, Answer::Running { attempt: 1, .. }));
    let found = seen(&mut client, "cancelled").expect("it is due");
    assert_eq!(
        (found.generation, found.attempt),
        (lost.generation, lost.attempt)
    );
    let read = client.timer("cancelled");
    assert!(read.running.is_some() && read.cancelled && !read.follows);
    assert_eq!(read.due, read.planned);
    over(&mut client, &lost);
    assert_eq!(client.get("cancelled"), None);

    // It is due.
    let lost = client.running(node, "due");
    let soon = ms(30);
    client.call("due", schedule_text(DueAt::After(soon), "next"));
    bench.pass(soon);
    assert!(seen(&mut client, "due").is_some());
    assert!(client.claim(node, &["due"]).runs.is_empty());
    over(&mut client, &lost);
    let next = client.run_soon(bench, node, "due");
    assert_eq!((next.run.attempt, next.crashes), (1, 0));
    assert_json(&next.payload, &payload("next"));
}

/// A timer that was scheduled during the run of a node that died waits for its own due time, and
/// the run counts as replaced: it is neither repeated nor counted as a crash.
pub(crate) fn what_follows_a_gone_nodes_run_replaces_it(bench: &Bench) {
    let mut client = bench.client();
    let gone = client.join(1);
    let run = client.running(gone, "k");
    let later = client.now() + HOUR;
    client.call("k", schedule_text(DueAt::from(later), "next"));
    client.leave(gone);
    let node = client.join(2);
    // It is read as what it is, before any call has written.
    let timer = client.timer("k");
    assert_eq!((timer.due, timer.planned), (later, later));
    assert_eq!((timer.attempt, timer.crashes), (0, 0));
    assert_eq!((timer.running, timer.follows), (None, false));
    assert_json(&timer.payload, &payload("next"));
    assert_eq!(client.list(&Page::first(QUEUE, 10)), [timer]);
    // A claim that comes too early does not start it.
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.timer("k").due, later);
    // The end of the run comes late, and does it no harm.
    assert_eq!(client.settle(gone, &run, &Outcome::Done), Settled::Fenced);
    client.call("k", Action::Reschedule { when: NOW });
    let next = client.run(node, "k");
    assert_eq!((next.run.attempt, next.crashes), (1, 0));
    assert_ne!(next.run.generation, run.generation);
    assert_json(&next.payload, &payload("next"));
    assert_eq!(client.settle(gone, &run, &Outcome::Done), Settled::Fenced);
    assert_eq!(
        client.settle(node, &next.run, &Outcome::Done),
        Settled::Ended
    );
    assert_eq!(client.get("k"), None);
}

pub(crate) fn a_thousand_timers_are_claimed_and_settled_at_once(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let keys: Vec<String> = (0..1_000)
        .map(|n| format!("order:{}", n * 389 % 1_000))
        .collect();
    let calls: Vec<_> = keys
        .iter()
        .map(|key| call(QUEUE, key, schedule_text(NOW, key)))
        .collect();
    client.write(&calls);
    let claimed = client.claim(node, &keys);
    assert_eq!(claimed.runs.len(), 1_000);
    let mut expected: Vec<&str> = keys.iter().map(|key| &**key).collect();
    expected.sort_unstable();
    assert_eq!(sorted_keys(&claimed.runs), expected);
    for run in &claimed.runs {
        assert_json(&run.payload, &payload(&run.run.key));
    }
    // Every third fails: the answers have the order of the settlements.
    let ends = claimed.runs.into_iter().enumerate();
    let ends = ends.map(|(n, claimed)| match n % 3 {
        0 => (claimed.run, Outcome::Retry(HOUR)),
        1 => (claimed.run, Outcome::Done),
        _ => (claimed.run, Outcome::Dead(format!("number {n}"))),
    });
    let settled = client.settle_all(node, ends.collect());
    let by_third = [Settled::Waits, Settled::Ended, Settled::Buried];
    for (n, settled) in settled.into_iter().enumerate() {
        assert_eq!(settled, by_third[n % 3], "{n}");
    }
    let counts = client.counts();
    assert_eq!((counts[0].waiting, counts[0].dead), (334, 333));
}

pub(crate) fn a_key_that_is_claimed_twice_in_one_call_runs_once(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    assert_eq!(client.claim(node, &["k", "k"]).runs.len(), 1);
    assert_eq!(client.timer("k").attempt, 1);
}

pub(crate) fn each_timer_has_the_crash_limit_of_its_claim(bench: &Bench) {
    let mut client = bench.client();
    let gone = client.join(1);
    for key in ["one", "two"] {
        client.running(gone, key);
    }
    client.leave(gone);
    let node = client.join(2);
    let mut asked = claim(node, QUEUE, &["one", "two"]);
    asked.timers[0].crash_limit = 1;
    asked.timers[1].crash_limit = 2;
    let claimed = client.claim_of(&asked);
    assert_eq!((claimed.dead, sorted_keys(&claimed.runs)), (1, vec!["two"]));
}

/// The clock goes back behind the due time of what a gone node has run.
pub(crate) fn a_crash_is_counted_though_the_clock_was_set_back(bench: &Bench) {
    let mut client = bench.client();
    let (gone, node) = (client.join(1), client.join(2));
    client.running(gone, "k");
    let due = client.timer("k").due;
    client.leave(gone);
    bench.clock().set(due.back_by(HOUR).into());
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.timer("k").crashes, 1);
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.timer("k").crashes, 1);
    bench.clock().set(due.into());
    let claimed: ClaimedRun = client.run(node, "k");
    assert_eq!((claimed.crashes, claimed.run.attempt), (1, 2));
}

pub(crate) fn attempts_never_fall_within_a_generation(bench: &Bench) {
    let mut client = bench.client();
    client.due("k");
    let mut last = 0;
    let mut node = client.join(1);
    let step = |client: &mut Client, node: Epoch, last: &mut u32| {
        let run = client.run(node, "k").run;
        assert_eq!(run.attempt, *last + 1);
        *last = run.attempt;
        run
    };
    for epoch in 2..6 {
        let run = step(&mut client, node, &mut last);
        client.settle(node, &run, &Outcome::Retry(Duration::ZERO));
        let run = step(&mut client, node, &mut last);
        client.settle(node, &run, &Outcome::GiveBack(Duration::ZERO));
        step(&mut client, node, &mut last);
        client.leave(node);
        client.call("k", crate::client::reschedule(NOW));
        node = client.join(epoch);
    }
}
