//! The lease, the epochs, and what a node observes of the others.

use crate::node::tests::scripted::script::{Script, alone, millis, other, row, secs, store};
use crate::node::tests::world::options;
use crate::node::{Input, Mono, Near, Reply, StoreCall};
use crate::store::{Beat, Claimed, Offset, Outcome, SHARDS, StoreError};

#[test]
fn the_term_counts_from_the_sending_of_the_last_good_beat() {
    // NODE-1
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    let (id, _) = script.asks.pop_front().unwrap();
    script.now = secs(1);
    script.reply(id, Reply::Joined);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)));
    assert_eq!(script.node.lease_end(), None);
    script.now = secs(4);
    let beat = Beat {
        now: store(secs(2)),
        horizon: None,
    };
    script.reply(id, Reply::Beat(Some(beat)));
    assert_eq!(script.node.lease_end(), Some(secs(16)));
    assert!(script.node.is_held(secs(16) - millis(1)));
    assert!(!script.node.is_held(secs(16)));
}

#[test]
fn a_run_that_is_claimed_at_the_end_of_the_term_waits_for_the_next_good_beat() {
    // NODE-2
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(2)))];
    let (id, claim) = script.claim(secs(2));
    let end = script.node.lease_end().unwrap();
    assert!(claim.deadline <= store(end), "{claim:?}");
    script.rows.clear();
    // The answer comes when the lease is over.
    script.now = end;
    script.grant(id, &claim.timers);
    assert_eq!(script.starts, []);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.answer(id, &call);
    assert_eq!(script.starts.len(), 1);
}

#[test]
fn nothing_is_claimed_after_the_end_of_the_term() {
    // NODE-1
    let mut script = Script::joined(alone());
    let end = script.node.lease_end().unwrap();
    let due = store(end) + secs(1);
    script.now = end - millis(500);
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 0,
        due,
        bytes: Some(4),
    }]));
    script.now = end + secs(2);
    script.input(Input::Wake);
    let claims = script.asks.iter();
    let claims = claims.filter(|(_, call)| matches!(call, StoreCall::Claim(_)));
    assert_eq!(claims.count(), 0);
    assert_eq!(script.claim(end + secs(2)).1.timers.len(), 1);
}

#[test]
fn a_node_that_is_gone_joins_as_another_one_and_drops_the_ends_of_its_runs() {
    // NODE-4
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let runs = script.run_all(secs(1));
    script.rows.clear();
    let before = script.node.epoch();
    script.now = secs(4);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.reply(id, Reply::Beat(None));
    assert!(!script.node.is_held(secs(4)));
    assert_ne!(script.node.epoch(), before);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(&call, StoreCall::Join(node) if node.epoch != before));
    script.answer(id, &call);
    script.finish(&runs[0], Outcome::Done);
    assert!(script.quiet(secs(8)).is_empty(), "nothing is settled");
}

#[test]
fn a_run_that_never_started_leaves_its_place_to_the_next_epoch() {
    // NODE-4
    let mut script = Script::joined(options(&[("a", 1, None)]));
    script.rows = vec![row("a", "k", store(secs(2)))];
    let (id, claim) = script.claim(secs(2));
    // The answer comes when the lease is over, so the run waits for a beat.
    script.now = script.node.lease_end().unwrap();
    script.grant(id, &claim.timers);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.reply(id, Reply::Beat(None));
    assert_eq!(script.starts, []);
    let (_, claim) = script.claim(script.now + secs(1));
    assert_eq!(claim.timers.len(), 1);
}

#[test]
fn a_claim_that_says_gone_ends_the_epoch() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let (id, _) = script.claim(secs(1));
    let before = script.node.epoch();
    let gone = Claimed {
        gone: true,
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(gone));
    assert_ne!(script.node.epoch(), before);
    assert!(!script.node.is_held(script.now));
}

#[test]
fn another_store_ends_the_term_at_once_whoever_finds_it() {
    // NODE-1
    let replaced = || Err(StoreError::Replaced("older".into()));
    for lane in ["poll", "claim", "settle"] {
        let mut script = Script::joined(alone());
        script.rows = vec![row("a", "k", store(secs(1)))];
        let (id, claim) = script.claim(secs(1));
        let id = match lane {
            "poll" => script.poll().0,
            "claim" => id,
            _ => {
                let runs = script.grant(id, &claim.timers);
                script.finish(&runs[0], Outcome::Done);
                script.settle(secs(1)).0
            }
        };
        script.asks.clear();
        script.now = secs(2);
        assert!(script.node.is_held(secs(2)));
        let result = replaced();
        script.input(Input::Reply { id, result });
        assert!(!script.node.is_held(secs(2)), "{lane}");
    }
}

#[test]
fn a_beat_that_was_sent_before_another_store_was_found_begins_no_term() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let (claim, _) = script.claim(secs(1));
    script.rows.clear();
    script.now = secs(3);
    script.input(Input::Wake);
    let (beat, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.now = secs(4);
    let result = Err(StoreError::Replaced("older".into()));
    script.input(Input::Reply { id: claim, result });
    script.answer(beat, &call);
    assert!(!script.node.is_held(secs(4)));
    // The next one is sent at once, and says whether the right store is back.
    let (beat, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.answer(beat, &call);
    assert!(script.node.is_held(secs(4)));
}

/// Runs until a node is declared gone, or until this time. The store answers all.
fn declared(script: &mut Script, until: Mono) -> Option<Mono> {
    loop {
        while let Some((id, call)) = script.asks.pop_front() {
            if matches!(call, StoreCall::DeclareGone { .. }) {
                return Some(script.now);
            }
            script.answer(id, &call);
        }
        let wake = script.node.next_wake().expect("beats and polls");
        if wake > until {
            return None;
        }
        script.now = wake;
        script.input(Input::Wake);
    }
}

#[test]
fn a_silent_node_is_declared_gone_after_sixteen_seconds() {
    // NODE-3
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    let at = declared(&mut script, secs(60)).expect("declared gone");
    assert!(at >= secs(16) && at <= secs(18), "{at:?}");
}

#[test]
fn a_node_that_beats_is_never_declared_gone() {
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    for beat in 0..10 {
        script.others = vec![other(beat)];
        assert_eq!(declared(&mut script, secs(14 * (beat as u64 + 1))), None);
    }
}

#[test]
fn an_outage_longer_than_the_term_makes_nobody_gone() {
    // NODE-3
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(10)), None);
    // The store is down for 30 s: nobody can beat.
    while script.now < secs(40) {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
        }
        script.now = script.node.next_wake().expect("it tries again");
        script.input(Input::Wake);
    }
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(40 + 16), "{at:?}");
}

#[test]
fn one_failed_beat_begins_the_observation_anew() {
    // NODE-3
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(12) - millis(1)), None);
    script.now = secs(12);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.fail(id);
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(12 + 16), "{at:?}");
}

#[test]
fn a_node_that_stood_still_observes_anew() {
    // NODE-3
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    assert_eq!(declared(&mut script, secs(12)), None);
    // The whole machine stood still, the other node with it.
    script.now = secs(42);
    script.input(Input::Wake);
    let at = declared(&mut script, secs(100)).expect("it does not come back");
    assert!(at >= secs(42 + 16), "{at:?}");
}

#[test]
fn a_node_declares_another_one_gone_after_five_good_beats_however_rare_they_are() {
    // NODE-3
    let mut script = Script::joined(alone());
    // It has beaten often before it sees the other node.
    script.quiet(secs(30));
    script.others = vec![other(5)];
    let (mut beats, mut at_polls) = (0, Vec::new());
    loop {
        let (id, call) = script.asks.pop_front().unwrap_or_else(|| {
            script.now = script.node.next_wake().expect("beats and polls");
            script.input(Input::Wake);
            script.asks.pop_front().expect("a call")
        });
        match &call {
            StoreCall::DeclareGone { .. } => break,
            StoreCall::Beat(_) => beats += 1,
            // A poll holds up the next beat, so that five beats take longer than the lease.
            StoreCall::Poll(_) => {
                script.now += secs(6);
                at_polls.push(beats);
            }
            other => panic!("{other:?}"),
        }
        script.answer(id, &call);
        assert!(script.now < secs(120), "it is never declared gone");
    }
    assert_eq!(at_polls.last().map(|last| last - at_polls[0]), Some(5));
}

/// How many shards of a queue the node reads as its own.
fn own(script: &mut Script) -> usize {
    let (id, poll) = script.poll();
    let ahead = |until| matches!(until, Offset::Ahead(span) if !span.is_zero());
    let ranges = poll.ranges.iter().filter(|range| &*range.queue == "a");
    let own = ranges.filter(|range| ahead(range.until)).count();
    script.answer(id, &StoreCall::Poll(poll));
    own
}

const ALL: usize = SHARDS as usize;

#[test]
fn a_node_that_joins_has_a_rank_once_it_knows_whose_beats_are_overdue() {
    let mut script = Script::new(alone());
    script.others = vec![other(0)];
    script.input(Input::Wake);
    script.quiet(secs(2));
    // It was there before.
    assert!(own(&mut script) < ALL);
    let mut script = Script::new(alone());
    script.input(Input::Wake);
    script.quiet(secs(2));
    script.others = vec![other(0)];
    script.quiet(secs(5));
    script.others = vec![other(1)];
    script.quiet(secs(6));
    assert_eq!(own(&mut script), ALL);
    script.quiet(secs(8));
    assert!(own(&mut script) < ALL);
}

#[test]
fn a_failed_beat_does_not_make_the_overdue_beat_of_another_node_punctual() {
    let mut script = Script::new(alone());
    script.others = vec![other(5)];
    script.input(Input::Wake);
    script.quiet(secs(6) - millis(1));
    assert_eq!(own(&mut script), ALL);
    script.now = secs(6);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.fail(id);
    script.quiet(secs(7));
    assert_eq!(own(&mut script), ALL);
    script.others = vec![other(6)];
    script.quiet(secs(9));
    assert!(own(&mut script) < ALL);
}
