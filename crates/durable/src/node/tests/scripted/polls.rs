//! Polls, and the marks that they begin at.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::node::shards::{self, Part};
use crate::node::tests::scripted::script::{Script, alone, millis, other, row, secs, store};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Mono, NodeConfig, Reply, StoreCall};
use crate::store::{
    Beat, Complete, Epoch, Horizon, Offset, Outcome, Poll, Range, SHARDS, Seen, SeenNode, Settled,
    StoreSnapshot, StoreTime, Survey, SurveyedPart,
};

#[test]
fn the_limits_of_a_poll_do_not_depend_on_what_is_stored() {
    // NODE-5
    let mut script = Script::joined(alone());
    script.rows = (0..30_000)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let (id, poll) = script.poll();
    let limits = |poll: &Poll| {
        poll.ranges
            .iter()
            .map(|range| u64::from(range.limit))
            .sum::<u64>()
    };
    assert!(limits(&poll) <= 2 * 4_100, "{}", limits(&poll));
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    script.asks.clear();
    script.now = secs(1);
    let (_, poll) = script.poll();
    // What it knows already is read again, and not more.
    assert!(
        limits(&poll) <= 2 * 4_100 + 64 * 2_000 + 64 * 1_000,
        "{}",
        limits(&poll)
    );
}

#[test]
fn a_paused_queue_is_not_asked_for_until_it_is_resumed() {
    let mut script = Script::joined(alone());
    script.paused = vec!["a".into()];
    let (id, _) = script.poll();
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    script.asks.clear();
    script.now = secs(1);
    let (id, poll) = script.poll();
    assert!(poll.ranges.iter().all(|range| &*range.queue == "b"));
    script.paused.clear();
    script.rows = vec![row("a", "k", START)];
    let mut snapshot = script.snapshot();
    snapshot.rows.clear();
    script.reply(id, Reply::Snapshot(snapshot));
    // The next poll is at once.
    assert_eq!(script.claim(secs(1)).1.timers.len(), 1);
}

/// The mark of a shard of queue `b`, if it is polled.
fn mark(poll: &Poll, shard: u16) -> Option<StoreTime> {
    let mut ranges = poll.ranges.iter();
    let range = ranges.find(|range| range.shard == shard && &*range.queue == "b");
    range.expect("the shard is polled").mark
}

/// Answers the oldest call.
fn answer_next(script: &mut Script) {
    let (id, call) = script.asks.pop_front().unwrap();
    script.answer(id, &call);
}

/// The node joins, and its first beat returns the horizon with the number 10 at [`START`].
fn join_with_horizon(script: &mut Script) {
    script.input(Input::Wake);
    answer_next(script);
    let (id, _) = script.asks.pop_front().unwrap();
    let horizon = Some(Horizon {
        number: 10,
        at: START,
    });
    let now = START;
    script.reply(id, Reply::Beat(Some(Beat { now, horizon })));
}

/// The store has one timer of queue `b`, which has been due for a minute. Returns its due time.
fn row_of_shard(script: &mut Script, shard: u16) -> StoreTime {
    let old = START.back_by(secs(60));
    script.rows = vec![Seen {
        shard,
        ..row("b", "k", old)
    }];
    old
}

/// A snapshot without open writes below this number.
fn complete(below: u64) -> Option<Complete> {
    let at = START + secs(1);
    Some(Complete { below, at })
}

#[test]
fn a_mark_stays_behind_the_horizon_and_the_oldest_timer_and_falls_when_a_node_ends() {
    // NODE-6, NODE-7
    let mut script = Script::new(alone());
    script.others = vec![other(1)];
    join_with_horizon(&mut script);
    answer_next(&mut script);

    let old = row_of_shard(&mut script, 5);
    let poll = |script: &mut Script, complete| {
        script
            .asks
            .retain(|(_, call)| matches!(call, StoreCall::Poll(_)));
        let (id, poll) = match script.asks.pop_front() {
            Some((id, StoreCall::Poll(poll))) => (id, poll),
            _ => script.poll(),
        };
        let mut snapshot = script.snapshot();
        snapshot.complete = complete;
        script.reply(id, Reply::Snapshot(snapshot));
        poll
    };
    for complete in [None, complete(9), complete(10)] {
        let asked = poll(&mut script, complete);
        assert_eq!((mark(&asked, 5), mark(&asked, 40)), (None, None));
    }
    let asked = poll(&mut script, complete(10));
    assert_eq!(mark(&asked, 5), Some(old));
    assert_eq!(mark(&asked, 40), Some(START.back_by(millis(500))));
    // The other node may have held timers that are older than the marks.
    script.others.clear();
    poll(&mut script, complete(10));
    let asked = poll(&mut script, complete(10));
    assert!(asked.ranges.iter().all(|range| range.mark.is_none()));
}

#[test]
fn a_shard_that_a_limit_has_cut_is_marked_at_its_first_timer_and_an_error_drops_all_marks() {
    let mut script = Script::new(alone());
    join_with_horizon(&mut script);
    answer_next(&mut script);
    let Some((id, StoreCall::Poll(asked))) = script.asks.pop_front() else {
        panic!("a poll");
    };
    let ranges = asked.ranges.iter();
    let cut = ranges
        .enumerate()
        .filter(|(_, range)| [40, 42].contains(&range.shard));
    let old = row_of_shard(&mut script, 42);
    let snapshot = StoreSnapshot {
        complete: complete(11),
        cut: cut.map(|(index, _)| index).collect(),
        ..script.snapshot()
    };
    script.reply(id, Reply::Snapshot(snapshot));
    let (id, asked) = script.poll();
    assert_eq!(mark(&asked, 40), None);
    assert_eq!(mark(&asked, 41), Some(START.back_by(millis(500))));
    assert_eq!(mark(&asked, 42), Some(old));
    script.fail(id);
    script.now = secs(1);
    let (_, asked) = script.poll();
    assert!(asked.ranges.iter().all(|range| range.mark.is_none()));
}

/// A poll each second. One that reads a shard whole takes `took`. Returns the numbers of polls
/// without and with such a shard.
fn polls_by_whole_shards(took: Duration) -> [usize; 2] {
    let mut script = Script::new(alone());
    join_with_horizon(&mut script);
    let mut counts = [0; 2];
    for second in 0..100 {
        script.now = secs(second);
        script.input(Input::PollNow);
        while let Some((id, call)) = script.asks.pop_front() {
            let StoreCall::Poll(poll) = call else {
                script.answer(id, &call);
                continue;
            };
            let is_whole = poll.ranges.iter().any(|range| range.mark.is_none());
            counts[usize::from(is_whole)] += 1;
            if is_whole {
                script.now += took;
            }
            let snapshot = StoreSnapshot {
                complete: complete(11),
                ..script.snapshot()
            };
            script.reply(id, Reply::Snapshot(snapshot));
        }
    }
    counts
}

#[test]
fn a_shard_that_takes_long_is_polled_whole_less_often() {
    // NODE-6
    assert_eq!(polls_by_whole_shards(Duration::from_micros(100)), [1, 100]);
    // Ten seconds apart, so that they take a fiftieth of the time.
    assert_eq!(polls_by_whole_shards(millis(200)), [91, 10]);
}

#[test]
fn others_shards_are_polled_for_what_is_overdue() {
    let mut script = Script::new(alone());
    script.others = vec![other(1)];
    script.quiet(Mono::ZERO);
    script.now = secs(1);
    let (_, poll) = script.poll();
    let of = |queue: &str, until| {
        let ranges = poll.ranges.iter();
        ranges
            .filter(|range| &*range.queue == queue && range.until == until)
            .count()
    };
    // The other node handles only the queue `a`.
    assert_eq!(of("b", Offset::Ahead(secs(2))), 64);
    let own = of("a", Offset::Ahead(secs(2)));
    assert!((20..45).contains(&own), "{own}");
    assert!(of("a", Offset::Overdue(millis(1_500))) >= 64 - own - 1);
}

#[test]
fn only_a_real_step_back_of_the_stores_clock_drops_the_marks() {
    // NODE-6
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    let mut behind = Duration::ZERO;
    let mut marked = Vec::new();
    // The clock of the store falls behind by a thousandth, and then steps back.
    while script.now < secs(100) {
        while let Some((id, call)) = script.asks.pop_front() {
            let now = store(script.now).back_by(behind);
            let horizon = Some(Horizon {
                number: 10,
                at: now,
            });
            match call {
                StoreCall::Beat(_) => script.reply(id, Reply::Beat(Some(Beat { now, horizon }))),
                StoreCall::Poll(poll) => {
                    let full = poll.ranges.len() >= 128;
                    let marks = poll.ranges.iter().filter(|range| range.mark.is_some());
                    marked.extend(full.then_some((script.now, marks.count())));
                    let snapshot = StoreSnapshot {
                        now,
                        complete: complete(11),
                        ..script.snapshot()
                    };
                    script.reply(id, Reply::Snapshot(snapshot));
                }
                call => script.answer(id, &call),
            }
        }
        script.now = script.node.next_wake().expect("beats and polls");
        behind = script.now / 1_000;
        if script.now >= secs(50) {
            behind += millis(2_500);
        }
        script.input(Input::Wake);
    }
    let without = marked.iter().filter(|(_, marks)| *marks < 100);
    let without: Vec<u64> = without.map(|(now, _)| now.as_secs()).collect();
    assert_eq!(without[0], 0, "there are none in the beginning");
    assert!(
        without[1..].iter().all(|second| (51..=54).contains(second)),
        "{without:?}"
    );
    assert!(without.len() > 1, "the step was not seen");
}

/// Runs all timers of one shard of queue `a`, and returns how many rows the polls have read for it.
fn rows_read(dues: impl Iterator<Item = StoreTime>) -> usize {
    let mut script = Script::joined(options(&[("a", 2_000, None)]));
    let mut stored: Vec<Seen> = dues
        .enumerate()
        .map(|(number, due)| row("a", &format!("k{number}"), due))
        .collect();
    stored.sort_by_key(|row| row.due);
    let mut claimed = BTreeSet::new();
    let mut read = 0;
    script.asks.clear();
    script.input(Input::PollNow);
    while let Some((id, call)) = script.asks.pop_front() {
        match call {
            StoreCall::Poll(poll) => {
                // A poll for more leaves out the shards that have no more.
                assert!(poll.complete || poll.ranges.len() == 1, "{poll:?}");
                let mut snapshot = script.snapshot();
                for (index, range) in poll.ranges.iter().enumerate() {
                    let from = range.mark.unwrap_or(StoreTime::from_micros(i64::MIN));
                    let of_shard = stored.iter().filter(|row| row.shard == range.shard);
                    let mut rows = of_shard.filter(|row| row.due >= from);
                    let limit = range.limit as usize;
                    snapshot
                        .rows
                        .extend(rows.by_ref().take(limit).map(|row| Seen {
                            mine: claimed.contains(&row.key),
                            bytes: 4,
                            ..row.clone()
                        }));
                    if rows.next().is_some() {
                        snapshot.cut.push(index);
                    }
                }
                read += snapshot.rows.len();
                script.reply(id, Reply::Snapshot(snapshot));
            }
            StoreCall::Claim(claim) => {
                claimed.extend(claim.timers.iter().map(|wanted| wanted.key.clone()));
                let runs = script.grant(id, &claim.timers);
                for run in runs {
                    script.finish(&run, Outcome::Done);
                }
            }
            StoreCall::Settle(settle) => {
                let ends = settle.settlements.iter();
                let ended: BTreeSet<_> = ends.map(|end| &end.run.key).collect();
                stored.retain(|row| !ended.contains(&row.key));
                script.reply(id, Reply::Settled(vec![Ok(Settled::Ended); ended.len()]));
            }
            other => script.answer(id, &other),
        }
    }
    assert_eq!(stored, Vec::new(), "all have run without another interval");
    read
}

#[test]
fn a_poll_for_more_goes_on_where_the_last_one_was_cut() {
    let spread = (0..20_000).map(|number| START.back_by(millis(20_000 - number)));
    let read = rows_read(spread);
    assert!(read < 21_000, "{read}");
}

#[test]
fn a_poll_for_more_gets_past_timers_of_one_instant() {
    let read = rows_read((0..20_000).map(|_| START));
    assert!(read < 50_000, "{read}");
}

/// When a timer runs that is due behind many locked ones of its shard, which nobody can claim.
fn behind_locked(config: NodeConfig, locked: u32, apart: Duration) -> Option<Mono> {
    let mut script = Script::new(config);
    script.is_limited = true;
    let all = (0..locked).map(|n| {
        row(
            "a",
            &format!("k{n:05}"),
            START.back_by(apart * (locked - n)),
        )
    });
    script.rows = all
        .chain([row("a", "x", START), row("b", "y", START)])
        .collect();
    let mut asked = 0;
    while script.now < secs(60) {
        let until = script.now + millis(10);
        for (id, call) in script.quiet(until) {
            let StoreCall::Claim(mut claim) = call else {
                panic!("{call:?}");
            };
            asked += claim.timers.len();
            claim.timers.retain(|wanted| !wanted.key.starts_with('k'));
            let runs = script.grant(id, &claim.timers);
            script
                .rows
                .retain(|row| !runs.iter().any(|run| run.key == row.key));
        }
        if script.starts.iter().any(|run| &*run.key == "x") {
            let polls = u32::try_from(script.now.as_secs()).expect("few") + 1;
            assert!(
                asked < 4 * (locked * polls) as usize,
                "{asked} in {polls} polls"
            );
            return Some(script.now);
        }
    }
    None
}

#[test]
fn locked_timers_hide_none_behind_them() {
    // NODE-5
    for apart in [Duration::ZERO, millis(1)] {
        let at = behind_locked(alone(), 60, apart);
        assert!(at.is_some_and(|at| at < secs(1)), "{at:?}");
        // Each poll shows more of them.
        let at = behind_locked(alone(), 500, apart);
        assert!(at.is_some_and(|at| at < secs(10)), "{at:?}");
        // A node knows fewer timers of a queue with a pace, so it takes more polls.
        let at = behind_locked(options(&[("a", 4, Some(10)), ("b", 4, None)]), 500, apart);
        assert!(at.is_some_and(|at| at < secs(50)), "{at:?}");
    }
}

/// Answers a poll of a store that has nothing but what these parts show.
fn survey(script: &mut Script, id: u64, parts: Vec<SurveyedPart>) {
    let cut = Vec::new();
    let snapshot = StoreSnapshot {
        survey: Some(Survey { parts, cut }),
        ..script.snapshot()
    };
    script.reply(id, Reply::Snapshot(snapshot));
}

/// A node whose parts sleep, among eight others that handle its queue, and the parts that it
/// polls.
fn among_nine() -> (Script, Vec<Part>) {
    let mut script = Script::new(NodeConfig {
        most_awake: 0,
        ..options(&[("a", 4, None)])
    });
    let others: Vec<Epoch> = (1..=8).map(Epoch).collect();
    let seen = others.iter().map(|epoch| SeenNode {
        epoch: *epoch,
        ..other(1)
    });
    script.others = seen.collect();
    script.input(Input::Wake);
    while let Some((id, call)) = script.asks.pop_front() {
        match call {
            StoreCall::Poll(_) => survey(&mut script, id, Vec::new()),
            call => script.answer(id, &call),
        }
    }
    let parts = shards::parts("a", script.node.epoch(), &others);
    (script, parts)
}

fn owned(parts: &[Part]) -> u16 {
    let mut parts = parts.iter().filter(|part| part.rank == 0);
    parts.next().expect("it owns a shard").shard
}

#[test]
fn no_poll_follows_at_once_for_what_a_band_shows_of_others_or_of_a_paused_queue() {
    // NODE-17
    for paused in [false, true] {
        let (mut script, parts) = among_nine();
        let (id, poll) = script.poll();
        let turn = poll.bands.last().expect("bands").shard;
        let is_strange =
            |shard: &u16| *shard != turn && parts.iter().all(|part| part.shard != *shard);
        let shard = match paused {
            false => (0..SHARDS).find(is_strange).expect("one of others"),
            true => owned(&parts),
        };
        script.paused = paused.then(|| "a".into()).into_iter().collect();
        let band = poll.bands.iter().position(|band| band.shard == shard);
        let part = SurveyedPart {
            band: band.expect("a band"),
            queue: "a".into(),
            first: START.back_by(secs(60)),
        };
        survey(&mut script, id, vec![part]);
        assert_eq!(answered_polls(&mut script), []);
    }
}

#[test]
fn a_poll_follows_at_once_for_a_timer_that_is_due_before_the_answer_to_the_next_one() {
    // NODE-17
    let micro = Duration::from_micros(1);
    for (ahead, polls) in [(millis(1_500) - micro, 1), (millis(1_500), 0)] {
        let (mut script, parts) = among_nine();
        let (id, poll) = script.poll();
        let own = owned(&parts);
        let band = poll.bands.iter().position(|band| band.shard == own);
        let part = SurveyedPart {
            band: band.expect("a band"),
            queue: "a".into(),
            first: store(script.now + ahead),
        };
        survey(&mut script, id, vec![part]);
        let asked = answered_polls(&mut script);
        let asked = asked.iter().flat_map(|poll| &poll.ranges);
        let shards: Vec<u16> = asked.map(|range| range.shard).collect();
        assert_eq!(shards, vec![own; polls], "{ahead:?}");
    }
}

#[test]
fn a_part_of_others_that_a_band_shows_is_polled_beside_an_own_part_of_its_queue() {
    // NODE-17
    let (mut script, parts) = among_nine();
    let own = owned(&parts);
    for _ in 0..SHARDS {
        let (id, poll) = script.poll();
        let turn = poll.bands.last().expect("bands").shard;
        if parts.iter().any(|part| part.shard == turn) {
            survey(&mut script, id, Vec::new());
            continue;
        }
        let band_of_own = poll.bands.iter().position(|band| band.shard == own);
        let bands = [poll.bands.len() - 1, band_of_own.expect("a band")];
        let shown = bands.map(|band| SurveyedPart {
            band,
            queue: "a".into(),
            first: START.back_by(secs(60)),
        });
        survey(&mut script, id, shown.into());
        let asked = answered_polls(&mut script);
        let asked = asked.iter().flat_map(|poll| &poll.ranges);
        let asked: BTreeSet<u16> = asked.map(|range| range.shard).collect();
        assert_eq!(asked, [own, turn].into());
        return;
    }
    panic!("it is next to the owners of all shards");
}

// === the doorbell ===

/// The polls among the calls that wait for an answer. They are answered.
fn answered_polls(script: &mut Script) -> Vec<Poll> {
    let mut polls = Vec::new();
    while let Some((id, call)) = script.asks.pop_front() {
        script.answer(id, &call);
        if let StoreCall::Poll(poll) = call {
            polls.push(poll);
        }
    }
    polls
}

#[test]
fn a_ring_makes_the_node_poll_at_once_at_its_own_shards_of_the_queue() {
    // NODE-15
    let mut script = Script::new(alone());
    script.others = vec![other(1)];
    script.quiet(millis(300));
    let due = store(millis(320));
    script.input(Input::Rang(Some("b".into())));
    let (id, poll) = match script.asks.pop_front() {
        Some((id, StoreCall::Poll(poll))) => (id, poll),
        other => panic!("{other:?}"),
    };
    // The other node handles only the queue `a`.
    assert_eq!(poll.ranges.len(), 64);
    let own = |range: &Range| &*range.queue == "b" && range.until == Offset::Ahead(secs(2));
    assert!(poll.ranges.iter().all(own), "{poll:?}");
    script.rows = vec![row("b", "k", due)];
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    assert_eq!(script.claim(millis(320)).1.timers.len(), 1);
    assert_eq!(script.now, millis(320));
}

#[test]
fn a_storm_of_rings_costs_one_poll_in_twenty_milliseconds() {
    // NODE-15
    let mut script = Script::joined(alone());
    script.quiet(millis(100));
    let (mut polls, mut beats) = (0, 0);
    let start = script.now;
    while script.now < start + secs(10) {
        script.input(Input::Rang(Some("a".into())));
        script.input(Input::Rang(None));
        if script
            .node
            .next_wake()
            .is_some_and(|wake| wake <= script.now)
        {
            script.input(Input::Wake);
        }
        beats += script
            .asks
            .iter()
            .filter(|(_, call)| matches!(call, StoreCall::Beat(_)))
            .count();
        polls += answered_polls(&mut script).len();
        script.now += Duration::from_micros(500);
    }
    // Ten polls of everything, and those of the rings.
    assert!((490..=511).contains(&polls), "{polls}");
    assert_eq!(beats, 3, "rings hold up no beat");
    // The last ring is answered without another input.
    let wake = script.node.next_wake().expect("a poll or a beat");
    assert!(wake < script.now + millis(20), "{wake:?}");
}

#[test]
fn a_ring_during_a_poll_is_answered_by_another_poll() {
    // NODE-15: the first poll may be older than the timer.
    let mut script = Script::joined(alone());
    script.quiet(millis(100));
    script.input(Input::Rang(Some("a".into())));
    let (id, _) = script.asks.pop_front().expect("a poll");
    script.now = millis(105);
    script.input(Input::Rang(Some("a".into())));
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    assert!(script.asks.is_empty(), "it waits for its span");
    assert_eq!(script.node.next_wake(), Some(millis(120)));
    script.now = millis(120);
    script.input(Input::Wake);
    assert_eq!(answered_polls(&mut script).len(), 1);
}

#[test]
fn nobody_polls_for_the_ring_of_a_queue_that_is_unknown_paused_or_of_others() {
    // NODE-15
    let mut script = Script::new(options(&[("a", 4, None), ("b", 4, None)]));
    let busy = |number: i64| SeenNode {
        epoch: Epoch(1_000 + number),
        beat: 1,
        queues: ["b".into()].into(),
    };
    // 2,001 nodes share the 64 shards of the queue `b`, so this node owns hardly any of them.
    script.others = (0..2_000).map(busy).collect();
    script.paused = vec!["a".into()];
    script.quiet(millis(100));
    for queue in ["a", "unknown"] {
        script.input(Input::Rang(Some(queue.into())));
        assert!(script.asks.is_empty(), "{queue}");
    }
    script.input(Input::Rang(Some("b".into())));
    let ranges: usize = answered_polls(&mut script)
        .iter()
        .map(|poll| poll.ranges.len())
        .sum();
    assert!(ranges < 5, "{ranges}");
    script.input(Input::Stop { grace: secs(1) });
    answered_polls(&mut script);
    script.input(Input::Rang(None));
    assert!(answered_polls(&mut script).is_empty());
}
