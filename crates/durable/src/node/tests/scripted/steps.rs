//! Runs that start for a later occurrence of their schedule than the one that was claimed.

use std::time::Duration;

use crate::node::tests::scripted::script::{Script, claimed, millis, row, secs};
use crate::node::tests::world::{START, options};
use crate::node::{Input, Reply};
use crate::store::{Outcome, Run, Settled, Settlement, Wanted};
use crate::sync::Arc;

/// A node whose only run has found that its occurrence was missed. Another timer is due.
fn stepping() -> (Script, Run) {
    let mut script = Script::joined(options(&[("a", 1, None)]));
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    let run = script.run_all(millis(1)).remove(0);
    script.rows.retain(|row| row.key != run.key);
    assert_eq!(script.starts, std::slice::from_ref(&run));
    let later = claimed(
        &Wanted {
            queue: run.queue.clone(),
            key: run.key.clone(),
            crash_limit: 3,
        },
        1,
    );
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
    assert!(matches!(call, crate::node::StoreCall::Settle(settle) if steps(&settle.settlements)));
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
fn a_step_that_is_locked_or_lost_is_asked_for_again() {
    let (mut script, run) = stepping();
    let (id, _) = script.settle(secs(1));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Locked)]));
    let (id, settle) = script.settle(secs(2));
    assert!(steps(&settle.settlements));
    script.fail(id);
    let (id, settle) = script.settle(secs(4));
    assert!(steps(&settle.settlements));
    script.reply(id, Reply::Settled(vec![Ok(Settled::Stepped)]));
    assert_eq!(script.starts, [run.clone(), run]);
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
                crate::node::StoreCall::Beat(_) => beat = Some(id),
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
