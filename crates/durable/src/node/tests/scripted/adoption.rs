//! Claims whose answers were lost.

use std::time::Duration;

use crate::node::tests::scripted::script::{Script, alone, claimed, millis, row, secs, store};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Mono, Near, Reply, StoreCall};
use crate::store::{Claimed, ClaimedRun, Epoch, Outcome, Run, Seen, SeenNode, Settled, Wanted};

fn mine(key: &str) -> Seen {
    Seen {
        attempt: 1,
        mine: true,
        bytes: 4,
        ..row("a", key, START)
    }
}

#[test]
fn a_claimed_row_that_is_not_held_is_adopted_after_two_polls() {
    // NODE-9
    let mut script = Script::joined(alone());
    script.rows = vec![mine("k")];
    let (id, _) = script.poll();
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    let claims = |script: &Script| {
        let asks = script.asks.iter();
        asks.filter(|(_, call)| matches!(call, StoreCall::Claim(_)))
            .count()
    };
    assert_eq!(claims(&script), 0, "one poll is no proof");
    let (id, _) = script.poll();
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    assert_eq!(claims(&script), 1);
    let (id, call) = script.asks.pop_back().unwrap();
    let StoreCall::Claim(claim) = call else {
        panic!("{call:?}");
    };
    assert_eq!((claim.timers.len(), claim.adopt.len()), (0, 1));
    let wanted = Wanted {
        queue: "a".into(),
        key: "k".into(),
        crash_limit: 3,
    };
    script.grant(id, &[wanted]);
    assert_eq!(script.starts, claim.adopt);
}

#[test]
fn what_a_failed_claim_was_to_adopt_is_adopted_by_another_one() {
    // NODE-9
    let mut script = Script::joined(alone());
    script.rows = vec![mine("k")];
    for failures in 0..3 {
        let calls = script.quiet(secs(5 * (failures + 1)));
        let [(id, StoreCall::Claim(claim))] = &calls[..] else {
            panic!("{calls:?}");
        };
        assert_eq!((claim.timers.len(), claim.adopt.len()), (0, 1));
        script.fail(*id);
    }
}

#[test]
fn what_is_adopted_waits_until_its_queue_has_room() {
    let mut script = Script::joined(options(&[("a", 2, None)]));
    script.rows = vec![mine("k"), mine("l"), mine("m")];
    for _ in 0..2 {
        let (id, _) = script.poll();
        let snapshot = script.snapshot();
        script.reply(id, Reply::Snapshot(snapshot));
    }
    let (id, first) = script.claim(script.now);
    assert_eq!((first.timers.len(), first.adopt.len()), (0, 2));
    let runs: Vec<ClaimedRun> = first.adopt.iter().map(adopted).collect();
    let answer = |script: &Script, runs: Vec<ClaimedRun>| {
        Reply::Claimed(Claimed {
            now: store(script.now),
            runs,
            ..Claimed::default()
        })
    };
    let reply = answer(&script, runs);
    script.reply(id, reply);
    assert_eq!(script.starts, first.adopt);
    let claims = script.asks.iter();
    let claims = claims.filter(|(_, call)| matches!(call, StoreCall::Claim(_)));
    assert_eq!(claims.count(), 0, "the queue is full");
    script.finish(&first.adopt[0], Outcome::Done);
    let (id, second) = script.claim(script.now);
    assert_eq!(second.adopt.len(), 1);
    assert!(!first.adopt.contains(&second.adopt[0]));
    let reply = answer(&script, second.adopt.iter().map(adopted).collect());
    script.reply(id, reply);
    assert_eq!(script.starts.len(), 3);
}

#[test]
fn what_is_adopted_is_bounded_by_its_bytes_and_holds_up_no_other_queue() {
    // NODE-16
    for (bytes, at_once) in [
        (900 * 1024, [2, 2, 1].as_slice()),
        (10 << 20, &[1, 1, 1, 1, 1]),
    ] {
        let mut script = Script::joined(options(&[("a", 10, None), ("b", 10, None)]));
        let large = |key: u32| Seen {
            bytes,
            ..mine(&format!("k{key}"))
        };
        script.rows = (0..5).map(large).collect();
        script.rows.push(row("b", "small", START));
        // The timer of the other queue is claimed at the first poll, the rest is no orphan for
        // certain.
        let (id, _) = script.poll();
        let snapshot = script.snapshot();
        script.reply(id, Reply::Snapshot(snapshot));
        let (id, claim) = script.claim(script.now);
        assert_eq!((claim.timers.len(), claim.adopt.len()), (1, 0));
        script.grant(id, &claim.timers);
        // While they are adopted, one after the other, further small ones come.
        script.rows.pop();
        script
            .rows
            .extend((0..4).map(|key| row("b", &format!("s{key}"), START)));
        let (id, _) = script.poll();
        let snapshot = script.snapshot();
        script.reply(id, Reply::Snapshot(snapshot));
        let mut claims = Vec::new();
        let mut starts = script.starts.len();
        for _ in 0..at_once.len() + 1 {
            let (id, claim) = script.claim(script.now);
            claims.push((claim.adopt.len(), claim.timers.len()));
            let wanted = claim.timers.iter().map(|wanted| claimed(wanted, 1));
            let runs: Vec<ClaimedRun> = claim.adopt.iter().map(adopted).chain(wanted).collect();
            starts += runs.len();
            let answer = Claimed {
                now: store(script.now),
                runs,
                ..Claimed::default()
            };
            script.reply(id, Reply::Claimed(answer));
            if script.starts.len() == 10 {
                break;
            }
        }
        assert_eq!(script.starts.len(), starts);
        let adopted = claims.iter().map(|claim| claim.0);
        let adopted: Vec<usize> = adopted.filter(|adopted| *adopted > 0).collect();
        assert_eq!(adopted, at_once, "{claims:?}");
        let small = claims.iter().position(|claim| claim.1 > 0);
        assert!(small.is_some_and(|at| at < 2), "{claims:?}");
    }
}

#[test]
fn what_was_scheduled_or_cancelled_since_a_lost_claim_is_given_back() {
    // ROW-4
    let mut script = Script::joined(options(&[("a", 1, None)]));
    script.rows = vec![mine("k")];
    for _ in 0..2 {
        let (id, _) = script.poll();
        let snapshot = script.snapshot();
        script.reply(id, Reply::Snapshot(snapshot));
    }
    let (id, claim) = script.claim(script.now);
    let answer = Claimed {
        now: store(script.now),
        over: claim.adopt.clone(),
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(answer));
    assert_eq!(script.starts, []);
    let (id, settle) = script.settle(script.now);
    let [end] = &settle.settlements[..] else {
        panic!("{settle:?}");
    };
    assert_eq!(end.run, claim.adopt[0]);
    assert_eq!(end.outcome, Outcome::GiveBack(Duration::ZERO));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Ended)]));
    // It has taken no room of the queue, and the key is free.
    script.rows = vec![row("a", "k", START)];
    let (id, _) = script.poll();
    let snapshot = script.snapshot();
    script.reply(id, Reply::Snapshot(snapshot));
    let (_, claim) = script.claim(script.now);
    assert_eq!((claim.timers.len(), claim.adopt.len()), (1, 0));
}

/// What a store returns for a run that is to be adopted.
fn adopted(run: &Run) -> ClaimedRun {
    ClaimedRun {
        run: run.clone(),
        due: START,
        planned: START,
        fails: 0,
        crashes: 0,
        stepped: false,
        payload: "0".into(),
    }
}

#[test]
fn a_poll_that_saw_a_claim_under_way_is_no_proof() {
    // NODE-9
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let (claim, _) = script.claim(secs(1));
    // Two polls see the row of the claim whose answer is still on its way.
    script.rows = vec![mine("k")];
    for _ in 0..2 {
        script.asks.clear();
        let (id, _) = script.poll();
        let snapshot = script.snapshot();
        script.reply(id, Reply::Snapshot(snapshot));
    }
    let wanted = Wanted {
        queue: "a".into(),
        key: "k".into(),
        crash_limit: 3,
    };
    script.grant(claim, &[wanted]);
    assert_eq!(script.starts.len(), 1);
    let later = script.quiet(secs(3));
    assert!(later.is_empty(), "{later:?}");
}

#[test]
fn a_shard_of_a_lost_claim_is_polled_until_nothing_is_in_doubt() {
    // NODE-9
    let mut script = Script::new(alone());
    // There are a hundred other nodes, so this one is not likely to poll shard 3.
    script.others = (0..100)
        .map(|number| SeenNode {
            epoch: Epoch(1_000 + number),
            beat: 1,
            queues: ["a".into(), "b".into()].into(),
        })
        .collect();
    script.quiet(Mono::ZERO);
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 3,
        due: store(millis(100)),
        bytes: Some(4),
    }]));
    let (id, _) = script.claim(millis(100));
    script.rows = vec![mine("k")];
    script.fail(id);
    let later = script.claim(secs(1)).1;
    assert_eq!(later.adopt.len(), 1);
}
