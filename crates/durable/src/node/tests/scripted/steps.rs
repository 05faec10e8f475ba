//! Runs that start for a later occurrence of their schedule than the one that was claimed.

use std::time::Duration;

use crate::node::tests::scripted::script::{Script, claimed, millis, row, secs};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Reply, StoreCall};
use crate::store::{Meta, Outcome, Run, Settled, Settlement, Wanted};
use crate::sync::Arc;

/// A node whose only run has found that its occurrence was missed. Another timer is due.
fn stepping() -> (Script, Run) {
    let mut script = Script::joined(options(&[("a", 1, None)]));
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    let run = script.run_all(millis(1)).remove(0);
    script.rows.retain(|row| row.key != run.key);
    assert_eq!(script.starts, std::slice::from_ref(&run));
    let mut later = claimed(
        &Wanted {
            queue: run.queue.clone(),
            key: run.key.clone(),
            crash_limit: 3,
        },
        1,
    );
    later.payload.meta = Some(Meta::of_json(r#"{"cron": {}}"#));
    script.finish(&run, Outcome::Step(Arc::new(later)));
    (script, run)
}

fn steps(settlements: &[Settlement]) -> bool {
    matches!(settlements, [one] if matches!(one.outcome, Outcome::Step(_)))
}

#[test]
fn a_step_keeps_its_place_and_starts_the_run() {
    let (mut script, run) = stepping();
    // No other timer of the queue is claimed meanwhile: one may run.
    let mut calls = script.quiet(secs(3));
    let (id, call) = calls.remove(0);
    assert!(matches!(call, StoreCall::Settle(settle) if steps(&settle.settlements)));
    assert!(calls.is_empty(), "{calls:?}");
    script.reply(id, Reply::Settled(vec![Ok(Settled::Stepped)]));
    assert_eq!(script.starts, [run.clone(), run.clone()]);
    assert!(script.quiet(secs(6)).is_empty());
    // It ends like any other one, and the next timer comes.
    script.finish(&run, Outcome::Done);
    let mut calls = script.quiet(secs(6));
    calls.sort_by_key(|(id, _)| *id);
    assert_eq!(calls.len(), 2, "{calls:?}");
}

#[test]
fn a_step_that_starts_nothing_frees_its_place() {
    for settled in [Settled::Waits, Settled::Ended, Settled::Fenced] {
        let (mut script, run) = stepping();
        let (id, _) = script.settle(secs(1));
        script.reply(id, Reply::Settled(vec![Ok(settled)]));
        let (_, claim) = script.claim(secs(3));
        assert_ne!(claim.timers[0].key, run.key, "{settled:?}");
        assert_eq!(script.starts.len(), 1);
    }
}

#[test]
fn a_step_that_is_locked_or_lost_frees_its_place_and_waits() {
    for is_lost in [false, true] {
        let (mut script, run) = stepping();
        let (id, _) = script.settle(secs(1));
        match is_lost {
            true => script.fail(id),
            false => script.reply(id, Reply::Settled(vec![Ok(Settled::Locked)])),
        }
        let (mut asked, mut claimed) = (None, None);
        for (id, call) in script.quiet(secs(3)) {
            match call {
                StoreCall::Settle(settle) => asked = Some((id, settle)),
                StoreCall::Claim(claim) => claimed = Some(claim),
                other => panic!("{other:?}"),
            }
        }
        assert_ne!(claimed.expect("the place is free").timers[0].key, run.key);
        // If the store has taken the step after all, this takes it back.
        let (id, settle) = asked.expect("it is asked again");
        let outcome = &settle.settlements[0].outcome;
        assert!(
            matches!(outcome, Outcome::Next(next) if next.due == START),
            "{outcome:?}"
        );
        script.reply(id, Reply::Settled(vec![Ok(Settled::Waits)]));
        assert_eq!(script.starts, [run]);
    }
}

#[test]
fn a_node_that_stops_gives_back_what_it_has_stepped() {
    let (mut script, _) = stepping();
    let (id, _) = script.settle(secs(1));
    script.input(Input::Stop { grace: secs(5) });
    script.reply(id, Reply::Settled(vec![Ok(Settled::Stepped)]));
    let (id, settle) = script.settle(secs(2));
    let outcome = &settle.settlements[0].outcome;
    assert_eq!(*outcome, Outcome::GiveBack(Duration::ZERO));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Waits)]));
    script.quiet(secs(3));
    assert_eq!(script.starts.len(), 1);
    assert_eq!(script.stopped.expect("it has stopped").unfinished, 0);
}

#[test]
fn a_node_that_is_gone_forgets_a_step() {
    let (mut script, run) = stepping();
    let (id, _) = script.settle(millis(2));
    // Its next beat says that it is gone, and it comes back as another one.
    let beat = loop {
        script.now += millis(100);
        script.input(Input::Wake);
        let asks = std::mem::take(&mut script.asks);
        let mut beat = None;
        for (id, call) in asks {
            match call {
                StoreCall::Beat(_) => beat = Some(id),
                call => script.answer(id, &call),
            }
        }
        if let Some(beat) = beat {
            break beat;
        }
    };
    script.reply(beat, Reply::Beat(None));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Stepped)]));
    // The place is free again: the other timer runs.
    let (_, claim) = script.claim(secs(30));
    assert_ne!(claim.timers[0].key, run.key);
    assert_eq!(script.starts.len(), 1);
}
