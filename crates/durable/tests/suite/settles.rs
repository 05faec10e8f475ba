//! The ends of runs.

use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{Action, Outcome, Page, Run, Settled};

use crate::client::{Bench, NOW, QUEUE, assert_json, ms, payload, schedule, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);

fn broken() -> Outcome {
    Outcome::Dead("broken: '\"\\ \n é 🔑".to_owned())
}

fn every_outcome() -> [Outcome; 5] {
    [
        Outcome::Done,
        Outcome::Again(HOUR),
        Outcome::Retry(HOUR),
        broken(),
        Outcome::GiveBack(HOUR),
    ]
}

pub(crate) fn done_deletes_the_timer(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.due("neighbour");
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
    assert_eq!(client.get("k"), None);
    assert_eq!(client.seen(node, "k"), None);
    assert!(client.get("neighbour").is_some());
    assert_eq!(client.dead(), []);
}

pub(crate) fn again_is_a_new_timer(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let first = client.running(node, "k");
    client.settle(node, &first, &Outcome::Retry(Duration::ZERO));
    let run = client.run(node, "k").run;
    let before = client.now();
    assert_eq!(
        client.settle(node, &run, &Outcome::Again(ms(20))),
        Settled::Waits
    );
    let after = client.now();
    let timer = client.timer("k");
    assert!((before + ms(20)..=after + ms(20)).contains(&timer.due));
    assert_eq!(timer.planned, timer.due);
    assert_eq!((timer.attempt, timer.fails, timer.crashes), (0, 0, 0));
    assert_eq!(timer.running, None);
    let run_again = client.run_soon(bench, node, "k");
    assert!(client.now() >= timer.due);
    assert_ne!(run_again.run.generation, run.generation);
    assert_eq!(run_again.run.attempt, 1);
    assert_json(&run_again.payload, &payload("first"));
}

pub(crate) fn retry_waits_and_counts_the_failure(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    client.due("k");
    let planned = client.timer("k").planned;
    for failed in 1..=5 {
        let claimed = client.run(node, "k");
        assert_eq!((claimed.run.attempt, claimed.fails), (failed, failed - 1));
        assert_eq!(claimed.planned, planned);
        let before = client.now();
        let settled = client.settle(node, &claimed.run, &Outcome::Retry(ms(5)));
        assert_eq!(settled, Settled::Waits);
        let after = client.now();
        let timer = client.timer("k");
        assert!((before + ms(5)..=after + ms(5)).contains(&timer.due));
        assert_eq!(
            (timer.attempt, timer.fails, timer.crashes),
            (failed, failed, 0)
        );
        assert_eq!((timer.planned, timer.running), (planned, None));
        bench.pass(ms(6));
    }
}

pub(crate) fn retry_waits_its_span(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.settle(node, &run, &Outcome::Retry(HOUR));
    assert!(client.claim(node, &["k"]).runs.is_empty());
    assert_eq!(client.counts()[0].waiting, 1);
    let run = client.running(node, "far");
    client.settle(node, &run, &Outcome::Retry(Duration::MAX));
    assert_eq!(
        client.timer("far").due,
        tourbillon_durable::store::StoreTime::LATEST
    );
}

pub(crate) fn dead_is_a_dead_letter(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    let planned = client.timer("k").planned;
    let before = client.now();
    assert_eq!(client.settle(node, &run, &broken()), Settled::Buried);
    let after = client.now();
    assert_eq!(client.get("k"), None);
    let letters = client.dead();
    let [letter] = &letters[..] else {
        panic!("{letters:?}");
    };
    assert_eq!((&*letter.queue, &*letter.key), (QUEUE, "k"));
    assert_eq!((letter.attempt, letter.fails, letter.crashes), (1, 1, 0));
    assert_eq!(letter.planned, planned);
    assert!((before..=after).contains(&letter.at));
    assert_eq!(Outcome::Dead(letter.error.clone()), broken());
    assert_json(&letter.payload, &payload("first"));
}

pub(crate) fn a_timer_that_is_given_back_has_not_failed(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let run = client.running(node, "k");
    let before = client.timer("k");
    let from = client.now();
    let settled = client.settle(node, &run, &Outcome::GiveBack(Duration::ZERO));
    assert_eq!(settled, Settled::Waits);
    let timer = client.timer("k");
    assert!(timer.due >= from);
    assert_eq!(timer.planned, before.planned);
    assert_eq!((timer.fails, timer.crashes, timer.running), (0, 0, None));
    // The number of the run stays used: it is part of the fence.
    let claimed = client.run(other, "k");
    assert_eq!(
        (claimed.run.generation, claimed.run.attempt),
        (run.generation, 2)
    );
    let settled = client.settle(other, &claimed.run, &Outcome::GiveBack(HOUR));
    assert_eq!(settled, Settled::Waits);
    assert!(client.timer("k").due >= from + HOUR);
    assert!(client.claim(node, &["k"]).runs.is_empty());
}

pub(crate) fn every_end_makes_room_for_what_follows(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for outcome in every_outcome() {
        let run = client.running(node, "k");
        let due = client.now() + HOUR;
        client.call("k", schedule_text(DueAt::from(due), "next"));
        assert_eq!(
            client.settle(node, &run, &outcome),
            Settled::Ended,
            "{outcome:?}"
        );
        let timer = client.timer("k");
        assert_eq!((timer.due, timer.planned), (due, due), "{outcome:?}");
        assert_eq!((timer.attempt, timer.fails, timer.follows), (0, 0, false));
        assert_eq!(timer.running, None);
        assert_json(&timer.payload, &payload("next"));
        // A repeated settlement doesn't touch it.
        assert_eq!(client.settle(node, &run, &outcome), Settled::Fenced);
        assert_eq!(client.timer("k"), timer);
    }
    assert_eq!(client.dead(), []);
}

pub(crate) fn every_end_deletes_a_cancelled_timer(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for outcome in every_outcome() {
        let run = client.running(node, "k");
        client.call("k", Action::Cancel);
        assert_eq!(
            client.settle(node, &run, &outcome),
            Settled::Ended,
            "{outcome:?}"
        );
        assert_eq!(client.get("k"), None, "{outcome:?}");
    }
    assert_eq!(client.dead(), []);
    assert_eq!(client.counts(), []);
}

pub(crate) fn a_settlement_needs_the_whole_fence(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let run = client.running(node, "k");
    client.due("free");
    let free = client.seen(node, "free").expect("it is due");
    let before = client.list(&Page::first(QUEUE, 10));
    let with = |change: &dyn Fn(&mut Run)| {
        let mut changed = run.clone();
        change(&mut changed);
        changed
    };
    let wrong = [
        (other, run.clone()),
        (tourbillon_durable::store::Epoch(99), run.clone()),
        (node, with(&|run| run.attempt = 0)),
        (node, with(&|run| run.attempt = 2)),
        (node, with(&|run| run.generation += 1)),
        (node, with(&|run| run.generation = 0)),
        (node, with(&|run| run.key = "unknown".into())),
        (node, with(&|run| run.key = "K".into())),
        (node, with(&|run| run.queue = "other".into())),
        (
            node,
            with(&|run| {
                run.key = "free".into();
                run.generation = free.generation;
                run.attempt = 0;
            }),
        ),
    ];
    for (epoch, run) in wrong {
        for outcome in every_outcome() {
            let settled = client.settle(epoch, &run, &outcome);
            assert_eq!(settled, Settled::Fenced, "{epoch:?} {run:?} {outcome:?}");
        }
    }
    assert_eq!(client.list(&Page::first(QUEUE, 10)), before);
    assert_eq!(client.dead(), []);
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
}

pub(crate) fn a_second_settlement_is_fenced(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    for outcome in every_outcome() {
        let run = client.running(node, "k");
        assert_ne!(client.settle(node, &run, &outcome), Settled::Fenced);
        let after = client.get("k");
        for second in every_outcome() {
            assert_eq!(client.settle(node, &run, &second), Settled::Fenced);
        }
        assert_eq!(client.get("k"), after);
    }
    assert_eq!(client.dead().len(), 1);
}

pub(crate) fn a_gone_node_settles_nothing(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.leave(node);
    let before = client.timer("k");
    for outcome in every_outcome() {
        assert_eq!(client.settle(node, &run, &outcome), Settled::Fenced);
    }
    assert_eq!(client.timer("k"), before);
}

pub(crate) fn a_run_that_was_replaced_after_its_nodes_end_is_fenced(bench: &Bench) {
    let mut client = bench.client();
    let (gone, node) = (client.join(1), client.join(2));
    let run = client.running(gone, "k");
    client.leave(gone);
    client.due("k");
    let again = client.run(node, "k").run;
    assert_ne!(again.generation, run.generation);
    assert_eq!(client.settle(gone, &run, &Outcome::Done), Settled::Fenced);
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Fenced);
    assert!(client.timer("k").running.is_some());
    assert_eq!(client.settle(node, &again, &Outcome::Done), Settled::Ended);
}

pub(crate) fn good_and_fenced_settlements_share_a_batch(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let names = [
        "z",
        "done",
        "again",
        "retry",
        "dead",
        "back",
        "followed",
        "cancelled",
        "a",
    ];
    let runs = names.map(|key| client.running(node, key));
    let [z, done, again, retry, dead, back, followed, cancelled, a] = runs;
    client.call("followed", schedule(NOW));
    client.call("cancelled", Action::Cancel);
    let stale = |run: Run| Run { attempt: 9, ..run };
    let ends = vec![
        (stale(z), Outcome::Done),
        (done, Outcome::Done),
        (again, Outcome::Again(HOUR)),
        (retry, Outcome::Retry(HOUR)),
        (dead, broken()),
        (back, Outcome::GiveBack(HOUR)),
        (followed, Outcome::Done),
        (cancelled, Outcome::Retry(HOUR)),
        (stale(a), broken()),
    ];
    let settled = client.settle_all(node, ends);
    assert_eq!(
        settled,
        [
            Settled::Fenced,
            Settled::Ended,
            Settled::Waits,
            Settled::Waits,
            Settled::Buried,
            Settled::Waits,
            Settled::Ended,
            Settled::Ended,
            Settled::Fenced,
        ]
    );
    let counts = client.counts();
    let counts = (
        counts[0].waiting,
        counts[0].overdue,
        counts[0].running,
        counts[0].dead,
    );
    assert_eq!(counts, (3, 1, 2, 1));
}
