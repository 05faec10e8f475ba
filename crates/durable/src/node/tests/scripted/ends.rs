//! Ends of runs that the store does not know yet.

use crate::node::tests::scripted::script::{Script, alone, millis, row, secs};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Reply, StoreCall};
use crate::store::{Outcome, Settled, StoreError};

#[test]
fn locked_ends_are_asked_for_again_and_fenced_ones_are_done() {
    // NODE-12
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Done);
    let (first, settle) = script.settle(millis(2));
    assert_eq!(settle.settlements.len(), 1);
    // What ends in the meantime travels with the next call.
    script.finish(&runs[1], Outcome::Done);
    script.reply(first, Reply::Settled(vec![Ok(Settled::Locked)]));
    let (second, settle) = script.settle(millis(3));
    assert_eq!(settle.settlements[0].run, runs[1]);
    script.reply(second, Reply::Settled(vec![Ok(Settled::Fenced)]));
    let (third, settle) = script.settle(millis(40));
    assert_eq!(settle.settlements.len(), 1);
    assert_eq!(settle.settlements[0].run, runs[0]);
    script.reply(third, Reply::Settled(vec![Ok(Settled::Ended)]));
    assert!(script.quiet(secs(2)).is_empty());
}

#[test]
fn an_end_whose_answer_was_lost_is_asked_for_again_until_it_is_answered() {
    // NODE-12
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Retry(secs(9)));
    let mut asked = 0;
    let (mut id, _) = script.settle(millis(1));
    while script.now < secs(5) {
        script.fail(id);
        let until = script.now + secs(1);
        (id, _) = script.settle(until);
        asked += 1;
    }
    assert_eq!(asked, 5);
    script.reply(id, Reply::Settled(vec![Ok(Settled::Waits)]));
    assert!(script.quiet(secs(6)).is_empty());
}

#[test]
fn an_end_that_the_store_refuses_does_not_hold_up_the_others() {
    let mut script = Script::joined(options(&[("a", 64, None)]));
    script.rows = (0..40)
        .map(|number| row("a", &format!("k{number}"), START))
        .collect();
    let runs = script.run_all(millis(1));
    script.rows.clear();
    for run in &runs {
        script.finish(run, Outcome::Done);
    }
    let bad = &runs[17];
    let mut done = 0;
    while done < 39 && script.now < secs(60) {
        let until = script.now + millis(50);
        for (id, call) in script.quiet(until) {
            let StoreCall::Settle(settle) = call else {
                panic!("{call:?}");
            };
            if settle.settlements.iter().any(|end| end.run == *bad) {
                let result = Err(StoreError::Refused("bad".into()));
                script.input(Input::Reply { id, result });
            } else {
                done += settle.settlements.len();
                let ends = vec![Ok(Settled::Ended); settle.settlements.len()];
                script.reply(id, Reply::Settled(ends));
            }
        }
    }
    assert_eq!(done, 39);
}

#[test]
fn an_end_that_is_refused_alone_is_asked_for_less_and_less_often() {
    // NODE-12
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Dead("broken".into()));
    let (mut asked, mut longest, mut last) = (0, secs(0), script.now);
    while script.now < secs(600) {
        let until = script.now + millis(20);
        for (id, call) in script.quiet(until) {
            let StoreCall::Settle(settle) = call else {
                panic!("{call:?}");
            };
            assert_eq!(settle.settlements.len(), 1);
            asked += 1;
            longest = longest.max(script.now - last);
            last = script.now;
            let refused = Err(StoreError::Refused("a trigger".into()));
            script.reply(id, Reply::Settled(vec![refused]));
        }
    }
    // It doubles from 20 ms to half a minute.
    assert!((25..40).contains(&asked), "{asked}");
    assert!((secs(29)..secs(31)).contains(&longest), "{longest:?}");
    let (id, _) = script.settle(secs(640));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Buried)]));
    assert!(script.quiet(secs(700)).is_empty());
}

#[test]
fn an_end_whose_call_fails_alone_is_asked_for_less_and_less_often() {
    // NODE-12
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows.clear();
    script.finish(&runs[0], Outcome::Done);
    let mut asked = 0;
    while script.now < secs(600) {
        let until = script.now + millis(20);
        for (id, call) in script.quiet(until) {
            assert!(matches!(call, StoreCall::Settle(_)), "{call:?}");
            asked += 1;
            let result = Err(StoreError::Refused("no rights".into()));
            script.input(Input::Reply { id, result });
        }
    }
    assert!((25..40).contains(&asked), "{asked}");
}

#[test]
fn ends_that_are_locked_hold_up_neither_other_queues_nor_their_ends() {
    // NODE-12
    let mut script = Script::joined(options(&[("a", 10_000, None), ("b", 4, None)]));
    let (mut next, mut runs_of_a, mut asked_in_last_second) = (0, 0, 0);
    let mut settled_b = None;
    script.input(Input::PollNow);
    while script.now < secs(60) && settled_b.is_none() {
        if script.rows.is_empty() {
            let new = (next..next + 1_000).map(|n| row("a", &format!("k{n}"), START));
            script.rows = new.collect();
            next += 1_000;
            if script.now >= secs(30) {
                // It comes last, and is due last.
                script.rows = vec![row("b", "x", START + secs(30))];
            }
        }
        let until = script.now + millis(10);
        for (id, call) in script.quiet(until) {
            match call {
                StoreCall::Claim(claim) => {
                    let runs = script.grant(id, &claim.timers);
                    script
                        .rows
                        .retain(|row| !runs.iter().any(|run| run.key == row.key));
                    for run in runs {
                        runs_of_a += usize::from(&*run.queue == "a");
                        script.finish(&run, Outcome::Done);
                    }
                }
                StoreCall::Settle(settle) => {
                    let ends = settle.settlements.iter().map(|end| match &*end.run.queue {
                        "a" => Ok(Settled::Locked),
                        _ => Ok(Settled::Ended),
                    });
                    let ends: Vec<_> = ends.collect();
                    if ends.contains(&Ok(Settled::Ended)) {
                        settled_b = Some(script.now);
                    }
                    if (secs(28)..secs(29)).contains(&script.now) {
                        asked_in_last_second += ends.len();
                    }
                    script.reply(id, Reply::Settled(ends));
                }
                other => panic!("{other:?}"),
            }
        }
        if script.now >= secs(29) {
            script.rows.retain(|row| &*row.queue == "b");
        }
    }
    assert!((4_000..6_000).contains(&runs_of_a), "{runs_of_a}");
    // Each of them once an interval, or a little more.
    assert!(
        asked_in_last_second < 3 * runs_of_a,
        "{asked_in_last_second}"
    );
    let settled = settled_b.expect("the queue `b` is not held up");
    assert!(settled < secs(33), "{settled:?}");
}
