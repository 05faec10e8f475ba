//! What a node sees.

use std::time::Duration;

use tourbillon_durable::DueAt;
use tourbillon_durable::store::{
    Action, Answer, Band, Epoch, Offset, Outcome, Page, Poll, Range, SHARDS, SeenNode, StoreTime,
};

use crate::client::{Bench, Client, NOW, QUEUE, call, ms, range, schedule, schedule_text};

const HOUR: Duration = Duration::from_secs(3_600);

/// Schedules timers that lie in one shard, due at `from`, a microsecond later, and so on.
fn in_one_shard(client: &mut Client, from: StoreTime, count: usize) -> (u16, Vec<String>) {
    // So many keys that some shard has enough of them.
    let keys: Vec<String> = (0..=usize::from(SHARDS) * count)
        .map(|number| format!("order:{number}"))
        .collect();
    let all = |action: Action| {
        let calls = keys.iter().map(|key| call(QUEUE, key, action.clone()));
        calls.collect::<Vec<_>>()
    };
    let mut shards: Vec<Vec<String>> = vec![Vec::new(); usize::from(SHARDS)];
    let scheduled = client.write(&all(schedule(NOW)));
    for (key, answer) in keys.iter().zip(scheduled) {
        let Answer::Scheduled { shard, .. } = answer else {
            panic!("{answer:?}");
        };
        shards[usize::from(shard)].push(key.clone());
    }
    client.write(&all(Action::Cancel));
    let enough = shards.iter().position(|keys| keys.len() >= count);
    let shard = enough.expect("the keys are more than the shards can have without");
    let mut keys = shards.swap_remove(shard);
    keys.truncate(count);
    for (number, key) in keys.iter().enumerate() {
        let due = from + Duration::from_micros(number as u64);
        assert_eq!(usize::from(client.due_at(key, due)), shard);
    }
    (u16::try_from(shard).expect("there are few shards"), keys)
}

/// The keys that a node sees in a range, and whether its limit cut it.
fn keys(client: &mut Client, epoch: Epoch, range: Range) -> (Vec<String>, bool) {
    let snapshot = client.poll(epoch, vec![range]);
    let rows = snapshot.rows.into_iter();
    let keys = rows.map(|seen| seen.key.into_string()).collect();
    assert!(snapshot.cut.is_empty() || snapshot.cut == [0]);
    (keys, !snapshot.cut.is_empty())
}

pub(crate) fn a_poll_has_the_order_of_due_times(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 5);
    // Their keys have another order than their due times.
    for (key, seconds) in names.iter().zip([30, 10, 40, 20, 50]) {
        client.due_at(key, base + Duration::from_secs(seconds));
    }
    let by_due = [1, 3, 0, 2, 4].map(|index: usize| names[index].clone());
    let seen = keys(&mut client, node, range(QUEUE, shard));
    assert_eq!(seen, (by_due.to_vec(), false));
    for other in (0..SHARDS).filter(|other| *other != shard) {
        assert_eq!(keys(&mut client, node, range(QUEUE, other)).0, [""; 0]);
    }
}

pub(crate) fn a_poll_shows_all_of_a_timer_that_a_claim_needs(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    let shard = client.due("k");
    let fresh = client.seen(node, "k").expect("it is due");
    assert_eq!(
        (&*fresh.queue, &*fresh.key, fresh.shard),
        (QUEUE, "k", shard)
    );
    assert_eq!((fresh.attempt, fresh.crashes, fresh.mine), (0, 0, false));
    assert_eq!(fresh.due, client.timer("k").due);

    let run = client.run(gone, "k").run;
    assert_eq!(run.generation, fresh.generation);
    client.leave(gone);
    client.run(node, "k");
    let mine = client.seen(node, "k").expect("it is mine");
    assert_eq!((mine.attempt, mine.crashes, mine.mine), (2, 1, true));
    assert_eq!((mine.generation, mine.due), (fresh.generation, fresh.due));
}

pub(crate) fn the_limit_of_a_range_cuts_only_what_there_is(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 4);
    for (limit, cut) in [(0, true), (1, true), (3, true), (4, false), (5, false)] {
        let limited = Range {
            limit,
            ..range(QUEUE, shard)
        };
        let expected = names[..names.len().min(limit as usize)].to_vec();
        let seen = keys(&mut client, node, limited);
        assert_eq!(seen, (expected, cut), "a limit of {limit}");
    }
    let empty = Range {
        limit: 0,
        ..range("unknown", shard)
    };
    assert_eq!(keys(&mut client, node, empty), (Vec::new(), false));
}

pub(crate) fn each_range_has_its_own_queue_limit_and_cut(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 3);
    // The backlog of another queue, in the same shard.
    for key in &names {
        client.call_in("backlog", key, schedule(NOW));
    }
    let one = |queue| Range {
        limit: 1,
        ..range(queue, shard)
    };
    let ranges = vec![
        one("backlog"),
        range(QUEUE, shard),
        one(QUEUE),
        one("unknown"),
    ];
    let snapshot = client.poll(node, ranges);
    let mut cut = snapshot.cut;
    cut.sort_unstable();
    assert_eq!(cut, [0, 2]);
    let seen_of = |queue: &str| {
        snapshot
            .rows
            .iter()
            .filter(|seen| &*seen.queue == queue)
            .count()
    };
    assert_eq!((seen_of("backlog"), seen_of(QUEUE)), (1, 4));
    assert_eq!(snapshot.rows.len(), 5);
}

pub(crate) fn a_range_ends_before_its_distance_from_the_clock(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let shard = client.due("k");
    let due = client.timer("k").due;
    bench.pass(ms(20));
    let mut is_seen = |until| {
        let until = Range {
            until,
            ..range(QUEUE, shard)
        };
        keys(&mut client, node, until).0.len() == 1
    };
    assert!(is_seen(Offset::Ahead(Duration::ZERO)));
    assert!(is_seen(Offset::Overdue(ms(5))));
    assert!(!is_seen(Offset::Overdue(HOUR)));
    let mut client = bench.client();
    client.due_at("k", due + 2 * HOUR);
    let mut is_seen = |until| {
        client
            .poll(
                node,
                vec![Range {
                    until,
                    ..range(QUEUE, shard)
                }],
            )
            .rows
            .len()
            == 1
    };
    assert!(!is_seen(Offset::Ahead(HOUR)));
    assert!(is_seen(Offset::Ahead(3 * HOUR)));
    assert!(is_seen(Offset::Ahead(Duration::MAX)));
    assert!(!is_seen(Offset::Overdue(Duration::MAX)));
}

pub(crate) fn a_range_ends_exactly_before_its_distance(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let due = client.now() + Duration::from_secs(2);
    let shard = client.due_at("k", due);
    for (ahead, seen) in [(1_999_999, 0), (2_000_000, 0), (2_000_001, 1)] {
        let until = Offset::Ahead(Duration::from_micros(ahead));
        let range = Range {
            until,
            ..range(QUEUE, shard)
        };
        assert_eq!(client.poll(node, vec![range]).rows.len(), seen, "{ahead}");
    }
}

pub(crate) fn a_range_begins_at_its_mark(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 3);
    let at = |micros| base + Duration::from_micros(micros);
    let marks = [
        (at(0), 0),
        (at(1), 1),
        (at(2), 2),
        (at(3), 3),
        (at(10_000_000_000), 3),
    ];
    for (mark, hidden) in marks {
        let marked = Range {
            mark: Some(mark),
            ..range(QUEUE, shard)
        };
        let seen = keys(&mut client, node, marked);
        assert_eq!(seen, (names[hidden..].to_vec(), false), "{mark:?}");
    }
}

pub(crate) fn a_poll_hides_what_another_node_runs_and_shows_its_own(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let base = client.now() + HOUR;
    let (shard, names) = in_one_shard(&mut client, base, 6);
    // Due now, each a little later than the one before.
    for key in &names {
        client.call(key, Action::Reschedule { when: NOW });
        bench.pass(ms(1));
    }
    client.run(other, &names[0]);
    client.run(other, &names[1]);
    client.run(node, &names[2]);
    // What the other node runs doesn't count towards the limit.
    let four = Range {
        limit: 4,
        ..range(QUEUE, shard)
    };
    let snapshot = client.poll(node, vec![four.clone()]);
    let seen: Vec<_> = snapshot
        .rows
        .iter()
        .map(|seen| (seen.key.to_string(), seen.mine))
        .collect();
    let expected: Vec<_> = (2..6)
        .map(|index| (names[index].clone(), index == 2))
        .collect();
    assert_eq!((seen, snapshot.cut), (expected, Vec::new()));
    assert!(keys(&mut client, other, four).1);
    // A node that the store doesn't know runs nothing.
    let snapshot = client.poll(Epoch(99), vec![range(QUEUE, shard)]);
    assert_eq!(snapshot.rows.len(), 3);
    assert!(snapshot.rows.iter().all(|seen| !seen.mine));
}

pub(crate) fn a_poll_shows_what_gone_nodes_ran(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    for key in ["plain", "followed", "cancelled"] {
        client.running(gone, key);
    }
    client.call("followed", schedule(NOW));
    client.call("cancelled", Action::Cancel);
    for key in ["plain", "followed", "cancelled"] {
        assert_eq!(client.seen(node, key), None);
    }
    client.leave(gone);
    for key in ["plain", "followed", "cancelled"] {
        let seen = client.seen(node, key);
        assert!(
            seen.is_some_and(|seen| !seen.mine),
            "{key}: a claim has to decide it"
        );
        // They are not those of the node that is gone, either.
        assert!(client.seen(gone, key).is_some_and(|seen| !seen.mine));
    }
    let claimed = client.claim(node, &["plain", "followed", "cancelled"]);
    assert_eq!(claimed.runs.len(), 2);
    assert_eq!(client.seen(node, "cancelled"), None);
}

pub(crate) fn a_poll_lists_the_nodes_that_are_not_gone(bench: &Bench) {
    let mut client = bench.client();
    let first = client.join_for(5, &["a", "b"]);
    let second = client.join_for(i64::MAX, &[]);
    let gone = client.join_for(7, &["a"]);
    client.leave(gone);
    client.beats(first);
    client.beats(first);
    let mut before = client.poll(first, Vec::new()).nodes;
    before.sort_by_key(|node| node.epoch);
    let [a, b] = &before[..] else {
        panic!("{before:?}");
    };
    assert_eq!((a.epoch, b.epoch), (first, second));
    let mut queues = a.queues.to_vec();
    queues.sort();
    assert_eq!(queues, ["a", "b"]);
    assert_eq!(*b.queues, [""; 0]);
    client.beats(second);
    let after = client.poll(gone, Vec::new()).nodes;
    let beat = |nodes: &[SeenNode], epoch| {
        let node = nodes.iter().find(|node| node.epoch == epoch);
        node.expect("it is not gone").beat
    };
    assert_eq!(beat(&after, first), beat(&before, first));
    assert_eq!(beat(&after, second), beat(&before, second) + 1);
}

pub(crate) fn a_poll_lists_the_paused_queues(bench: &Bench) {
    let mut client = bench.client();
    let paused = |client: &mut Client| {
        let mut paused = client.poll(Epoch(1), Vec::new()).paused;
        paused.sort();
        paused
    };
    assert_eq!(paused(&mut client), [""; 0]);
    client.set_paused("b", true);
    client.set_paused("a", true);
    client.set_paused("a", true);
    assert_eq!(paused(&mut client), ["a", "b"]);
    client.set_paused("b", false);
    client.set_paused("never paused", false);
    assert_eq!(paused(&mut client), ["a"]);
}

pub(crate) fn a_poll_writes_nothing(bench: &Bench) {
    let mut client = bench.client();
    let (node, gone) = (client.join(1), client.join(2));
    client.running(gone, "k");
    client.leave(gone);
    let before = client.list(&Page::first(QUEUE, 10));
    client.seen(node, "k");
    assert_eq!(client.list(&Page::first(QUEUE, 10)), before);
    assert_eq!(client.run(node, "k").crashes, 1);
}

/// What marks rest on. A store without horizons has none, and nothing to show.
pub(crate) fn writes_before_a_horizon_are_in_a_complete_poll(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let before = client.now();
    client.due("k");
    let beat = client
        .connection
        .beat(node)
        .expect("the store writes")
        .expect("it is not gone");
    let claimed = client.claim(node, &["k"]).horizon;
    assert_eq!(beat.horizon.is_some(), claimed.is_some());
    let snapshot = client.poll(node, Vec::new());
    assert_eq!(snapshot.complete.is_some(), claimed.is_some());
    assert!(beat.now >= before);
    if let (Some(beat), Some(claimed)) = (beat.horizon, claimed) {
        assert!(beat.number < claimed.number);
        assert!(beat.at >= before && beat.at <= claimed.at && claimed.at <= snapshot.now);
        // Nobody else writes timers here.
        let complete = snapshot.complete.expect("it has horizons");
        assert!(complete.below >= claimed.number && complete.at >= claimed.at);
        assert!(complete.at <= snapshot.now);
        // A later write has a later number, and is not due before the horizon.
        client.call("later", schedule(DueAt::from(StoreTime::from_micros(0))));
        assert!(client.timer("later").due >= claimed.at);
        let next = client.connection.beat(node).expect("the store writes");
        let next = next
            .and_then(|beat| beat.horizon)
            .expect("it had one before");
        assert!(next.number > claimed.number);
    }
}

/// ROW-2: whatever writes a due time, it is not earlier than the clock.
pub(crate) fn no_call_writes_a_due_time_of_the_past(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let outcomes = [
        Outcome::Again(Duration::ZERO),
        Outcome::Retry(Duration::ZERO),
        Outcome::GiveBack(Duration::ZERO),
        // What follows it is free then.
        Outcome::Done,
    ];
    for outcome in outcomes {
        let run = client.running(node, "k");
        if outcome == Outcome::Done {
            client.call("k", schedule(NOW));
        }
        bench.pass(ms(2));
        let before = client.now();
        client.settle(node, &run, &outcome);
        assert!(client.timer("k").due >= before, "{outcome:?}");
    }
}

pub(crate) fn a_poll_tells_the_length_of_each_payload(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let text = |length: usize| schedule_text(NOW, &"\u{e9}".repeat(length));
    // A large one is compressed or lies elsewhere, and what it replaces is shorter or longer.
    for length in [0, 7, 100_000, 3] {
        client.call("k", text(length));
        let stored = client.timer("k").payload.len() as u64;
        assert_eq!(client.seen(node, "k").expect("it is due").bytes, stored);
        assert!(stored >= 2 * length as u64);
    }
    // The length is that of the one that follows, before and after the end of the run.
    let length = |client: &mut Client| client.seen(node, "k").expect("it is due").bytes;
    let run = client.run(node, "k").run;
    client.call("k", text(50_000));
    assert!((100_000..100_100).contains(&length(&mut client)));
    client.settle(node, &run, &Outcome::Done);
    assert!((100_000..100_100).contains(&length(&mut client)));
    // Also if the node of the run is gone.
    let gone = client.join(2);
    client.call("k", text(50_000));
    client.run_soon(bench, gone, "k");
    client.call("k", text(10));
    client.leave(gone);
    assert!((20..100).contains(&length(&mut client)));
    client.run_soon(bench, node, "k");
    assert!((20..100).contains(&length(&mut client)));
}

/// A band of this shard, from its beginning to an hour ahead.
fn band(shard: u16) -> Band {
    Band {
        shard,
        mark: None,
        until: Offset::Ahead(HOUR),
        limit: 100,
    }
}

/// The queues that bands show, with the bands and the first due times, and the bands that were cut.
fn survey(
    client: &mut Client,
    epoch: Epoch,
    bands: &[Band],
) -> (Vec<(usize, String, StoreTime)>, Vec<usize>) {
    let poll = Poll {
        epoch,
        ranges: Vec::new(),
        bands: bands.to_vec(),
        complete: true,
    };
    let snapshot = client.connection.poll(&poll).expect("the store reads");
    assert_eq!(snapshot.rows, []);
    let mut survey = snapshot.survey.expect("each store of this crate has bands");
    let parts = survey.parts.into_iter();
    let mut parts: Vec<_> = parts
        .map(|part| (part.band, part.queue.into(), part.first))
        .collect();
    parts.sort();
    survey.cut.sort_unstable();
    (parts, survey.cut)
}

pub(crate) fn a_band_shows_each_queue_that_has_timers_in_its_shard(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 3);
    for key in &names[1..] {
        let when = DueAt::from(base + Duration::from_secs(1));
        client.call_in("other", key, schedule(when));
    }
    let elsewhere = (shard + 1) % SHARDS;
    let second = base + Duration::from_secs(1);
    let shown = survey(&mut client, node, &[band(elsewhere), band(shard)]);
    let expected = vec![(1, QUEUE.to_owned(), base), (1, "other".to_owned(), second)];
    let mut sorted = expected.clone();
    sorted.sort();
    assert_eq!(shown, (sorted, Vec::new()));
    // From a mark on, and up to a time.
    let marked = |mark| Band {
        mark: Some(mark),
        ..band(shard)
    };
    let later = base + Duration::from_micros(1);
    let shown = survey(
        &mut client,
        node,
        &[marked(later), marked(second), marked(second + HOUR)],
    );
    let mut expected = vec![
        (0, QUEUE.to_owned(), later),
        (0, "other".to_owned(), second),
        (1, "other".to_owned(), second),
    ];
    expected.sort();
    assert_eq!(shown, (expected, Vec::new()));
    let until = |until| Band {
        until,
        ..band(shard)
    };
    let bands = [
        until(Offset::Ahead(HOUR / 4)),
        until(Offset::Overdue(HOUR / 4)),
    ];
    assert_eq!(survey(&mut client, node, &bands), (Vec::new(), Vec::new()));
}

pub(crate) fn the_limit_of_a_band_counts_timers_and_cuts_only_what_there_is(bench: &Bench) {
    let mut client = bench.client();
    let node = client.join(1);
    let base = client.now() + HOUR / 2;
    let (shard, names) = in_one_shard(&mut client, base, 3);
    let second = base + Duration::from_secs(1);
    client.call_in("other", &names[0], schedule(DueAt::from(second)));
    for (limit, cut) in [(0, 1), (1, 1), (3, 1), (4, 0), (5, 0)] {
        let limited = Band {
            limit,
            ..band(shard)
        };
        let (parts, cuts) = survey(&mut client, node, &[limited]);
        assert_eq!(cuts.len(), cut, "a limit of {limit}");
        // One that is cut shows the queues of so many timers at least.
        let all = [(0, QUEUE.to_owned(), base), (0, "other".to_owned(), second)];
        let mut all = all.to_vec();
        all.sort();
        assert!(parts.iter().all(|part| all.contains(part)));
        assert!(cut == 1 || parts == all, "{parts:?}");
        assert!(limit == 0 || parts.iter().any(|part| part.1 == QUEUE));
    }
}

pub(crate) fn a_band_shows_what_a_range_of_each_queue_would_show(bench: &Bench) {
    let mut client = bench.client();
    let (node, other) = (client.join(1), client.join(2));
    let shard = client.due("k");
    let is_shown = |client: &mut Client, epoch| !survey(client, epoch, &[band(shard)]).0.is_empty();
    assert!(is_shown(&mut client, node) && is_shown(&mut client, other));
    client.run(other, "k");
    // It shows a node its own runs, and not those of others.
    assert!(!is_shown(&mut client, node) && is_shown(&mut client, other));
    client.leave(other);
    assert!(is_shown(&mut client, node) && is_shown(&mut client, other));
    client.run(node, "k");
    assert!(is_shown(&mut client, node) && !is_shown(&mut client, other));
}

/// The list of a node may be long. A connection that has read it must show a new one.
pub(crate) fn a_poll_shows_the_queues_of_a_node_as_they_are_now(bench: &Bench) {
    let (mut client, mut reader) = (bench.client(), bench.client());
    let node = client.join_for(1, &["a", "b"]);
    let mut queues = || {
        let snapshot = reader.poll(node, Vec::new());
        let nodes = snapshot.nodes.into_iter();
        let mut of: Vec<_> = nodes.map(|node| node.queues.to_vec()).collect();
        of.iter_mut().for_each(|queues| queues.sort());
        of
    };
    assert_eq!(queues(), [["a", "b"]]);
    assert_eq!(queues(), [["a", "b"]]);
    client.join_for(1, &["b", "c"]);
    client.beats(node);
    assert_eq!(queues(), [["b", "c"]]);
    client.join_for(1, &[]);
    assert_eq!(queues(), [[""; 0]]);
    client.leave(node);
    assert_eq!(queues(), Vec::<Vec<String>>::new());
    client.join_for(3, &["a"]);
    assert_eq!(queues(), [["a"]]);
}
