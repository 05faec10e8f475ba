//! Nodes: their beats and their ends.

use std::time::Duration;

use tourbillon_durable::store::{Epoch, Outcome, Settled};

use crate::client::{Bench, Client, QUEUE, ms};

const DAY: Duration = Duration::from_secs(86_400);

fn queues_of(client: &mut Client, epoch: Epoch) -> Vec<String> {
    let nodes = client.poll(epoch, Vec::new()).nodes;
    let node = nodes.into_iter().find(|node| node.epoch == epoch);
    node.expect("it is not gone").queues.to_vec()
}

fn beat_of(client: &mut Client, epoch: Epoch) -> Option<i64> {
    let nodes = client.poll(epoch, Vec::new()).nodes;
    let node = nodes.into_iter().find(|node| node.epoch == epoch);
    node.map(|node| node.beat)
}

pub(crate) fn a_second_join_sets_the_queues_and_nothing_else(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    assert!(client.beats(node));
    let beat = beat_of(&mut client, node);
    client.join_for(1, &[QUEUE, "another"]);
    assert_eq!(beat_of(&mut client, node), beat);
    assert_eq!(queues_of(&mut client, node), [QUEUE, "another"]);
    client.join_for(1, &[]);
    assert!(queues_of(&mut client, node).is_empty());
    assert_eq!(beat_of(&mut client, node), beat);
    client.leave(node);
    client.join(1);
    assert_eq!(beat_of(&mut client, node), None);
    assert!(!client.beats(node));
}

pub(crate) fn a_beat_is_counted_until_the_node_is_gone(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let first = beat_of(&mut client, node).expect("it has joined");
    for number in 1..=3 {
        let before = client.now();
        let beat = client.connection.beat(node).expect("the store writes");
        assert!(beat.is_some_and(|beat| beat.now >= before));
        assert_eq!(beat_of(&mut client, node), Some(first + number));
    }
    assert!(!client.beats(Epoch(99)));
    assert_eq!(beat_of(&mut client, Epoch(99)), None);
    client.leave(node);
    assert!(!client.beats(node));
    assert!(client.beats(other));
}

pub(crate) fn a_silent_node_is_declared_gone_once(bench: &Bench) {
    let mut client = bench.client();
    let (asking, silent) = (client.join(1), client.join(2));
    client.beats(silent);
    let beat = beat_of(&mut client, silent).expect("it has joined");
    assert!(!client.declare_gone(asking, silent, beat - 1));
    assert!(!client.declare_gone(asking, silent, beat + 1));
    client.beats(silent);
    assert!(
        !client.declare_gone(asking, silent, beat),
        "it has beaten since"
    );
    assert!(client.beats(silent));
    let beat = beat_of(&mut client, silent).expect("it is not gone");
    assert!(client.declare_gone(asking, silent, beat));
    assert_eq!(beat_of(&mut client, silent), None);
    assert!(!client.beats(silent));
    assert!(
        !client.declare_gone(asking, silent, beat),
        "it is gone already"
    );
}

pub(crate) fn only_a_living_node_declares_another_one_gone(bench: &Bench) {
    let mut client = bench.client();
    let (gone, node) = (client.join(1), client.join(2));
    client.leave(gone);
    let beat = beat_of(&mut client, node).expect("it has joined");
    assert!(!client.declare_gone(gone, node, beat));
    assert!(!client.declare_gone(Epoch(99), node, beat));
    assert!(!client.declare_gone(node, node, beat));
    assert!(!client.declare_gone(node, Epoch(98), 0));
    assert!(client.beats(node));
}

pub(crate) fn the_claims_of_a_node_end_with_it(bench: &Bench) {
    let mut client = bench.client();
    let (first, second, node) = (client.join(1), client.join(2), client.join(3));
    client.running(first, "left");
    client.running(second, "declared");
    assert!(client.claim(node, &["left", "declared"]).runs.is_empty());
    client.leave(first);
    assert!(client.declare_gone(node, second, 0));
    assert_eq!(client.claim(node, &["left", "declared"]).runs.len(), 2);
    let timer = client.timer("left");
    assert_eq!((timer.attempt, timer.crashes), (2, 1));
}

pub(crate) fn to_leave_twice_or_unknown_is_harmless(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    client.leave(node);
    client.leave(node);
    client.leave(Epoch(99));
    assert_eq!(beat_of(&mut client, node), None);
    assert!(client.beats(other));
}

pub(crate) fn epochs_and_beats_have_all_their_bits(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(i64::MAX), client.join(i64::MAX - 1));
    let run = client.running(node, "k");
    assert!(client.claim(other, &["k"]).runs.is_empty());
    assert!(client.seen(node, "k").is_some_and(|seen| seen.mine));
    assert_eq!(client.settle(other, &run, &Outcome::Done), Settled::Fenced);
    assert_eq!(client.settle(node, &run, &Outcome::Done), Settled::Ended);
}

/// A claim must not become live again because its node's row was deleted and its epoch came back.
pub(crate) fn a_gone_node_is_kept_a_day_and_until_nothing_refers_to_it(bench: &Bench) {
    let mut client = bench.client();
    let (gone, node) = (client.join(1), client.join(2));
    client.running(gone, "k");
    client.leave(gone);
    // A node that was forgotten could join with the same epoch again.
    let is_forgotten = |client: &mut Client| {
        assert!(!client.declare_gone(node, Epoch(99), 0));
        client.join(1);
        client.beats(gone)
    };
    assert!(!is_forgotten(&mut client));
    bench.clock().advance(2 * DAY);
    assert!(!is_forgotten(&mut client), "a timer has its claim");
    let claimed = client.run(node, "k");
    assert_eq!(claimed.crashes, 1);
    assert!(is_forgotten(&mut client));

    // Without a claim it is kept for a day.
    client.leave(gone);
    bench.clock().advance(DAY - ms(1));
    assert!(!is_forgotten(&mut client));
    bench.clock().advance(ms(1));
    assert!(is_forgotten(&mut client));
}

pub(crate) fn a_clock_that_is_set_back_ends_no_run(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let run = client.running(node, "k");
    client.due("due");
    let now = client.now();
    bench.clock().set(now.back_by(DAY).into());
    assert!(client.beats(node));
    assert!(
        client.claim(node, &["due"]).runs.is_empty(),
        "it is not due any more"
    );
    assert!(client.timer("k").running.is_some());
    let settled = client.settle(node, &run, &Outcome::Retry(ms(1)));
    assert_eq!(settled, Settled::Waits);
    assert_eq!(client.timer("k").due, now.back_by(DAY) + ms(1));
    bench.clock().set(now.into());
    assert_eq!(client.claim(node, &["k", "due"]).runs.len(), 2);
}
