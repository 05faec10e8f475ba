//! Claims: what a node asks for, and when.

use std::time::Duration;

use crate::node::tests::scripted::script::{Script, alone, claimed, millis, row, secs, store};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Mono, Near, QueueConfig, Reply, StoreCall};
use crate::store::{Claimed, ClaimedRun, Outcome, RefusedClaim, Seen, Settled, StoreError, Wanted};

#[test]
fn suspects_are_claimed_alone_and_one_at_a_time() {
    // NODE-11
    let mut script = Script::joined(alone());
    let suspect = |key| Seen {
        crashes: 2,
        ..row("a", key, store(secs(1)))
    };
    script.rows = vec![
        row("a", "x", store(secs(1))),
        suspect("s"),
        suspect("t"),
        row("b", "y", store(secs(1))),
    ];
    let (id, first) = script.claim(secs(1));
    assert_eq!(first.timers.len(), 1);
    assert_eq!(&*first.timers[0].key, "s");
    let mut run = claimed(&first.timers[0], 3);
    run.crashes = 2;
    let answer = Claimed {
        now: store(secs(1)),
        runs: vec![run.clone()],
        ..Claimed::default()
    };
    script.rows.retain(|row| &*row.key != "s");
    script.reply(id, Reply::Claimed(answer));
    let (id, second) = script.claim(secs(1));
    let keys: Vec<&str> = second.timers.iter().map(|timer| &*timer.key).collect();
    assert_eq!((keys.len(), keys.contains(&"t")), (2, false));
    script.grant(id, &second.timers);
    script.rows = vec![suspect("t")];
    assert!(script.quiet(secs(3)).is_empty(), "one suspect runs");
    script.finish(&run.run, Outcome::Done);
    let calls = script.quiet(secs(3));
    let claims = calls.iter().filter_map(|(_, call)| match call {
        StoreCall::Claim(claim) => Some(claim.timers.len()),
        _ => None,
    });
    assert_eq!(claims.collect::<Vec<_>>(), [1]);
}

#[test]
fn a_suspect_is_not_claimed_while_its_queue_is_full() {
    let mut script = Script::joined(options(&[("a", 1, None)]));
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows = vec![Seen {
        crashes: 2,
        ..row("a", "s", START)
    }];
    script.input(Input::PollNow);
    assert!(script.quiet(secs(2)).is_empty());
    script.finish(&runs[0], Outcome::Done);
    let claims = script.quiet(secs(2)).into_iter();
    let claims = claims.filter(|(_, call)| matches!(call, StoreCall::Claim(_)));
    assert_eq!(claims.count(), 1);
}

#[test]
fn a_backlog_in_one_queue_keeps_no_other_queue_out_of_a_claim() {
    let config = options(&[("a", 5_000, None), ("b", 5_000, None)]);
    let mut script = Script::joined(config);
    let backlog = (0..2_000).map(|number| row("a", &format!("k{number:04}"), START));
    script.rows = backlog.chain([row("b", "x", store(millis(900)))]).collect();
    let (_, claim) = script.claim(secs(1));
    assert_eq!(claim.timers.len(), 1_000);
    assert!(claim.timers.iter().any(|timer| &*timer.queue == "b"));
}

#[test]
fn no_more_than_its_limit_runs_in_a_queue_and_an_end_frees_a_place_before_it_is_settled() {
    let mut script = Script::joined(alone());
    script.rows = (0..9)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let runs = script.run_all(millis(1));
    assert_eq!(runs.len(), 4);
    script.rows.drain(..4);
    assert!(script.quiet(secs(3)).is_empty());
    script.finish(&runs[0], Outcome::Done);
    let calls = script.quiet(secs(3));
    assert!(matches!(&calls[0].1, StoreCall::Claim(claim) if claim.timers.len() == 1));
    assert!(matches!(&calls[1].1, StoreCall::Settle(settle) if settle.settlements.len() == 1));
}

#[test]
fn the_greatest_pace_starts_what_is_due() {
    let mut script = Script::joined(options(&[("a", 4, Some(u32::MAX))]));
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    script.input(Input::PollNow);
    let (_, claim) = script.claim(millis(1));
    assert_eq!(claim.timers.len(), 2);
}

#[test]
fn a_pace_bounds_the_starts_within_any_second() {
    let mut script = Script::joined(options(&[("a", 1_000, Some(100))]));
    let mut starts: Vec<Mono> = Vec::new();
    let mut next = 0;
    let mut refill = |script: &mut Script, known: &mut Vec<Seen>| {
        known.clear();
        known.extend((next..next + 300).map(|number| row("a", &format!("k{number:06}"), START)));
        next += 300;
        script.rows.clone_from(known);
    };
    let mut known = Vec::new();
    refill(&mut script, &mut known);
    script.input(Input::PollNow);
    while script.now < secs(5) {
        let until = script.now + millis(10);
        for (id, call) in script.quiet(until) {
            match call {
                StoreCall::Claim(claim) => {
                    let runs = script.grant(id, &claim.timers);
                    starts.extend(runs.iter().map(|_| script.now));
                    script
                        .rows
                        .retain(|row| !runs.iter().any(|run| run.key == row.key));
                    for run in runs {
                        script.finish(&run, Outcome::Done);
                    }
                    if script.rows.len() < 150 {
                        refill(&mut script, &mut known);
                    }
                }
                StoreCall::Settle(settle) => {
                    let ends = vec![Ok(Settled::Ended); settle.settlements.len()];
                    script.reply(id, Reply::Settled(ends));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(starts.len() >= 450, "{}", starts.len());
    for (index, start) in starts.iter().enumerate() {
        let within = starts[index..]
            .iter()
            .take_while(|other| **other - *start < secs(1));
        assert!(within.count() <= 106);
    }
}

#[test]
fn a_timer_that_is_not_due_by_the_stores_clock_is_asked_for_again() {
    // NODE-8
    let mut script = Script::joined(alone());
    let due = store(secs(1));
    script.rows = vec![row("a", "k", due)];
    let (id, _) = script.claim(secs(1));
    script.rows.clear();
    // The store's clock is slower than it was.
    let answer = Claimed {
        now: due.back_by(millis(2)),
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(answer));
    assert!(script.quiet(secs(1) + millis(1)).is_empty());
    let (_, again) = script.claim(secs(1) + millis(3));
    assert_eq!(again.timers.len(), 1);
}

#[test]
fn a_timer_that_is_not_due_within_two_intervals_by_the_stores_clock_is_forgotten() {
    // NODE-8: a poll shows it when its time has come.
    let micro = Duration::from_micros(1);
    for (ahead, claims) in [(secs(2) - micro, 1), (secs(2), 0)] {
        let mut script = Script::joined(alone());
        let due = store(secs(1));
        script.rows = vec![row("a", "k", due)];
        let (id, _) = script.claim(secs(1));
        script.rows.clear();
        // The store's clock was set back.
        let answer = Claimed {
            now: due.back_by(ahead),
            ..Claimed::default()
        };
        script.reply(id, Reply::Claimed(answer));
        assert_eq!(script.quiet(secs(10)).len(), claims, "{ahead:?}");
    }
}

#[test]
fn a_hint_is_claimed_without_a_poll() {
    let mut script = Script::joined(alone());
    let polls = script.asks.len();
    script.input(Input::Near(vec![Near {
        queue: "b".into(),
        key: "k".into(),
        shard: 9,
        due: store(millis(50)),
        bytes: Some(4),
    }]));
    assert_eq!(script.asks.len(), polls);
    let (_, claim) = script.claim(millis(50));
    assert_eq!((claim.timers.len(), script.now), (1, millis(50)));
}

#[test]
fn a_timer_that_was_scheduled_during_a_run_of_its_key_is_claimed_after_the_run() {
    // NODE-10
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.input(Input::Near(vec![Near {
        queue: "a".into(),
        key: "k".into(),
        shard: 3,
        due: store(millis(100)),
        bytes: Some(4),
    }]));
    assert!(script.quiet(millis(200)).is_empty());
    script.finish(&runs[0], Outcome::Done);
    let (id, _) = script.settle(millis(201));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Ended)]));
    assert_eq!(script.claim(millis(202)).1.timers.len(), 1);
}

#[test]
fn no_queue_has_a_limit_of_zero_places_that_blocks_another_one() {
    let mut config = alone();
    config.queues.push(QueueConfig {
        name: "c".into(),
        running: 0,
        pace: None,
        crash_limit: 3,
    });
    let mut script = Script::joined(config);
    script.rows = vec![row("c", "x", START), row("a", "k", START)];
    script.input(Input::PollNow);
    let (_, claim) = script.claim(millis(1));
    assert_eq!(claim.timers.len(), 1);
}

#[test]
fn claims_are_halved_after_any_error_and_doubled_after_an_answer() {
    type Fault = fn(String) -> StoreError;
    let faults: [Fault; 4] = [
        StoreError::Unavailable,
        StoreError::Unknown,
        StoreError::Refused,
        StoreError::Locked,
    ];
    for fault in faults {
        let mut script = Script::joined(options(&[("a", 100, None)]));
        let rows = (0..100).map(|number| row("a", &format!("k{number:03}"), START));
        script.rows = rows.collect();
        let mut at = 0;
        let mut next = |script: &mut Script| {
            at += 10;
            script.claim(secs(at))
        };
        for expected in [100, 50, 25, 12] {
            let (id, claim) = next(&mut script);
            assert_eq!(claim.timers.len(), expected, "{:?}", fault(String::new()));
            let result = Err(fault("it fails".to_owned()));
            script.input(Input::Reply { id, result });
        }
        for expected in [6, 12, 24] {
            let (id, claim) = next(&mut script);
            assert_eq!(claim.timers.len(), expected, "{:?}", fault(String::new()));
            // Others have claimed them.
            let now = store(script.now);
            let others = Claimed {
                now,
                ..Claimed::default()
            };
            script.reply(id, Reply::Claimed(others));
        }
    }
}

#[test]
fn a_timer_whose_claim_fails_holds_up_no_other_one() {
    // NODE-8
    let mut script = Script::joined(options(&[("a", 100, None)]));
    let rows = (0..40).map(|number| row("a", &format!("k{number:02}"), START));
    script.rows = rows.collect();
    // It would be the first one of each claim.
    let is_bad = |timer: &Wanted| &*timer.key == "k00";
    while script.rows.len() > 1 && script.now < secs(60) {
        let until = script.now + millis(50);
        for (id, call) in script.quiet(until) {
            let StoreCall::Claim(claim) = call else {
                panic!("{call:?}");
            };
            if claim.timers.iter().any(is_bad) {
                let result = Err(StoreError::Refused("bad".into()));
                script.input(Input::Reply { id, result });
            } else {
                let is_it = |row: &Seen| claim.timers.iter().any(|timer| timer.key == row.key);
                script.rows.retain(|row| !is_it(row));
                script.grant(id, &claim.timers);
            }
        }
    }
    assert_eq!(script.rows.len(), 1, "{:?}", script.rows);
}

#[test]
fn a_queue_without_room_in_a_claim_is_the_first_one_of_the_next() {
    // NODE-16
    let queues = [
        ("a", 1_000, None),
        ("b", 1_000, None),
        ("huge", 1_000, None),
    ];
    let mut script = Script::joined(options(&queues));
    // More than a claim has.
    let small = |queue| (0..900).map(move |key| long(queue, key, 100));
    let huge = (0..3).map(|key| long("huge", key, 10 * 1024 * 1024));
    script.rows = small("a").chain(small("b")).chain(huge).collect();
    script.input(Input::PollNow);
    let mut claims = Vec::new();
    for _ in 0..4 {
        let (id, claim) = script.claim(secs(1));
        let huge = claim.timers.iter().filter(|timer| &*timer.queue == "huge");
        claims.push((huge.count(), claim.timers.len()));
        let is_it = |row: &Seen| {
            let mut timers = claim.timers.iter();
            timers.any(|timer| (&timer.queue, &timer.key) == (&row.queue, &row.key))
        };
        script.rows.retain(|row| !is_it(row));
        script.grant(id, &claim.timers);
    }
    let first = claims.iter().position(|claim| *claim == (1, 1));
    assert!(first.is_some_and(|at| at < 2), "{claims:?}");
    let in_turn = claims.windows(2).all(|pair| pair[0].0 != pair[1].0);
    assert!(in_turn, "{claims:?}");
}

/// A timer with a payload of this length.
fn long(queue: &str, key: usize, bytes: u64) -> Seen {
    Seen {
        bytes,
        ..row(queue, &format!("{key:03}"), START)
    }
}

#[test]
fn huge_payloads_are_claimed_one_by_one_and_hold_up_no_other_queue() {
    // NODE-16
    const HUGE: u64 = 10 * 1024 * 1024;
    let mut script = Script::joined(options(&[("a", 1_000, None), ("b", 1_000, None)]));
    let huge = (0..20).map(|key| long("a", key, HUGE));
    script.rows = huge
        .chain((0..500).map(|key| long("b", key, 100)))
        .collect();
    script.input(Input::PollNow);
    let mut claims = Vec::new();
    while script.rows.len() > 15 {
        let (id, claim) = script.claim(secs(1));
        let of_a = claim.timers.iter().filter(|timer| &*timer.queue == "a");
        let of_a = of_a.count();
        claims.push((of_a, claim.timers.len() - of_a));
        script.rows.retain(|row| {
            let is_it = |timer: &Wanted| (&timer.queue, &timer.key) == (&row.queue, &row.key);
            !claim.timers.iter().any(is_it)
        });
        script.grant(id, &claim.timers);
    }
    assert_eq!(
        claims.iter().filter(|claim| claim.1 > 0).count(),
        1,
        "{claims:?}"
    );
    assert!(claims[..2].contains(&(0, 500)), "{claims:?}");
    assert!(
        claims.iter().all(|(a, b)| *a == 0 || (*a, *b) == (1, 0)),
        "{claims:?}"
    );
}

#[test]
fn a_claim_carries_two_mebibytes() {
    // NODE-16
    let mut script = Script::joined(options(&[("a", 1_000, None)]));
    script.rows = (0..10).map(|key| long("a", key, 600 * 1024)).collect();
    script.input(Input::PollNow);
    for expected in [3, 3, 3, 1] {
        let (id, claim) = script.claim(secs(1));
        assert_eq!(claim.timers.len(), expected);
        script.grant(id, &claim.timers);
    }
}

#[test]
fn a_moved_timer_counts_as_much_as_its_queue_is_used_to() {
    // NODE-16
    let mut script = Script::joined(options(&[("a", 1_000, None)]));
    let moved = |keys: std::ops::Range<u32>| {
        let near = keys.map(|key| Near {
            queue: "a".into(),
            key: format!("{key:03}").into(),
            shard: 3,
            due: START,
            bytes: None,
        });
        Input::Near(near.collect())
    };
    script.input(moved(0..9));
    for expected in [8, 1] {
        let (id, claim) = script.claim(secs(1));
        assert_eq!(claim.timers.len(), expected);
        script.grant(id, &claim.timers);
    }
    script.input(moved(10..110));
    assert_eq!(script.claim(secs(1)).1.timers.len(), 100);
}

#[test]
fn ends_of_runs_with_huge_payloads_are_settled_in_small_calls() {
    // NODE-16
    let mut script = Script::joined(options(&[("a", 1_000, None)]));
    script.rows = (0..5).map(|key| long("a", key, 100)).collect();
    script.input(Input::PollNow);
    let (id, claim) = script.claim(secs(1));
    script.rows.clear();
    let with_payload = |wanted| ClaimedRun {
        stepped: false,
        payload: "x".repeat(900 * 1024).into(),
        ..claimed(wanted, 1)
    };
    let runs: Vec<ClaimedRun> = claim.timers.iter().map(with_payload).collect();
    let answer = Claimed {
        now: store(script.now),
        runs: runs.clone(),
        ..Claimed::default()
    };
    script.reply(id, Reply::Claimed(answer));
    for run in runs {
        script.finish(&run.run, Outcome::Done);
    }
    // The first end is sent at once.
    for expected in [1, 2, 2] {
        let (id, settle) = script.settle(secs(1));
        assert_eq!(settle.settlements.len(), expected);
        let ends = vec![Ok(Settled::Ended); expected];
        script.reply(id, Reply::Settled(ends));
    }
}

/// Runs until this time with a store that refuses a timer of a claim alone, or the whole claim.
/// Returns how often the timer was claimed.
fn refused(script: &mut Script, until: Mono, is_alone: bool) -> usize {
    let mut claims = 0;
    while script.now < until {
        for (id, call) in script.quiet(script.now + millis(50)) {
            let StoreCall::Claim(claim) = call else {
                panic!("{call:?}");
            };
            claims += claim.timers.iter().filter(|one| &*one.key == "bad").count();
            let error = StoreError::Refused("a trigger".into());
            if !is_alone {
                let result = Err(error);
                script.input(Input::Reply { id, result });
                continue;
            }
            let (bad, good): (Vec<_>, Vec<_>) =
                claim.timers.into_iter().partition(|one| &*one.key == "bad");
            let refused = bad.into_iter().map(|one| RefusedClaim {
                queue: one.queue,
                key: one.key,
                error: error.clone(),
            });
            let answer = Claimed {
                now: store(script.now),
                runs: good.iter().map(|one| claimed(one, 1)).collect(),
                refused: refused.collect(),
                ..Claimed::default()
            };
            script.reply(id, Reply::Claimed(answer));
        }
    }
    claims
}

#[test]
fn a_timer_that_the_store_refuses_is_claimed_less_and_less_often() {
    for is_alone in [true, false] {
        let mut script = Script::joined(alone());
        script.rows = vec![row("a", "bad", store(secs(1)))];
        // The pauses double up to 30 s, and each of the polls comes a second after the other.
        let first = refused(&mut script, secs(61), is_alone);
        assert!((9..=13).contains(&first), "{first} in the first minute");
        let later = refused(&mut script, secs(661), is_alone);
        assert!((18..=22).contains(&later), "{later} in ten minutes");
        // It was moved: the new timer may be a good one.
        script.rows = vec![row("a", "bad", store(secs(662)))];
        let moved = refused(&mut script, secs(664), is_alone);
        assert!(moved >= 1, "{moved} after the move");
    }
}

#[test]
fn a_timer_that_is_refused_holds_up_no_other_one() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "bad", store(secs(1)))];
    refused(&mut script, secs(40), true);
    script.rows.push(row("a", "good", store(secs(41))));
    refused(&mut script, secs(43), true);
    let started: Vec<&str> = script.starts.iter().map(|run| &*run.key).collect();
    assert_eq!(started, ["good"]);
}

#[test]
fn a_timer_whose_row_is_locked_is_claimed_with_each_poll() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", store(secs(1)))];
    let mut claims = 0;
    while script.now < secs(60) {
        for (id, call) in script.quiet(script.now + millis(50)) {
            assert!(matches!(call, StoreCall::Claim(_)), "{call:?}");
            claims += 1;
            // Nothing is returned.
            script.grant(id, &[]);
        }
    }
    assert!((55..=62).contains(&claims), "{claims} in a minute");
}
