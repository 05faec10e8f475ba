//! Outages of the store, and the end of a node.

use std::time::Duration;

use crate::node::tests::scripted::script::{Script, alone, millis, row, secs};
use crate::node::tests::world::START;
use crate::node::{Input, Reply, Stopped, StoreCall};
use crate::store::{Outcome, Run, Settle, Settled};

#[test]
fn a_node_whose_store_is_down_does_not_spin() {
    // NODE-14
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.finish(&runs[0], Outcome::Done);
    let mut calls = 0;
    let mut steps = 0;
    while script.now < secs(60) {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
            calls += 1;
        }
        let wake = script.node.next_wake().expect("it tries again");
        assert!(wake >= script.now);
        script.now = wake;
        script.input(Input::Wake);
        steps += 1;
    }
    // Two lanes with a call each half to whole second, after the first few.
    assert!((100..300).contains(&calls), "{calls}");
    assert!(steps < 2 * calls, "{steps}");
}

#[test]
fn a_stop_gives_back_what_has_not_started_waits_for_the_rest_and_leaves() {
    // NODE-13
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    let runs = script.run_all(millis(1));
    script.rows = vec![row("a", "l", START)];
    script.input(Input::PollNow);
    let (claim, wanted) = script.claim(millis(2));
    script.input(Input::Stop { grace: secs(10) });
    script.grant(claim, &wanted.timers);
    assert_eq!(script.starts, runs, "nothing new starts");
    let (id, settle) = script.settle(millis(3));
    assert_eq!(
        settle.settlements[0].outcome,
        Outcome::GiveBack(Duration::ZERO)
    );
    script.reply(id, Reply::Settled(vec![Ok(Settled::Waits)]));
    assert!(script.quiet(secs(5)).is_empty());
    assert!(
        script.node.is_held(secs(5)),
        "it beats as long as something runs"
    );
    // A second stop with a longer grace changes nothing.
    script.input(Input::Stop { grace: secs(100) });
    script.finish(&runs[0], Outcome::Done);
    let (id, _) = script.settle(secs(5));
    assert_eq!(script.stopped, None);
    script.reply(id, Reply::Settled(vec![Ok(Settled::Ended)]));
    let left = script
        .asks
        .iter()
        .any(|(_, call)| matches!(call, StoreCall::Leave(_)));
    assert!(left && !script.node.is_held(secs(5)));
    script.quiet(secs(5));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 0 }));
}

#[test]
fn a_stop_tells_the_others_at_once_that_the_node_handles_no_queue() {
    // NODE-13
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(10) });
    let joins = script.asks.iter().filter_map(|(_, call)| match call {
        StoreCall::Join(node) => Some((node.epoch, node.queues.len())),
        _ => None,
    });
    assert_eq!(joins.collect::<Vec<_>>(), [(script.node.epoch(), 0)]);
}

#[test]
fn runs_that_outlast_the_grace_are_left_to_the_others() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(2) });
    script.quiet(secs(2));
    assert_eq!(script.stopped, None);
    script.quiet(secs(2) + millis(1));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 1 }));
}

#[test]
fn an_end_within_the_grace_is_settled_after_it_and_a_later_end_is_dropped() {
    // NODE-13
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    let runs = script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(2) });
    script.quiet(secs(2));
    script.finish(&runs[0], Outcome::Done);
    let (id, first) = script.settle(secs(2));
    script.now = secs(2) + millis(1);
    script.input(Input::Wake);
    script.finish(&runs[1], Outcome::Done);
    // The end is still known, so it is asked for again.
    script.fail(id);
    let (id, again) = script.settle(secs(3));
    let ended = |settle: &Settle| {
        settle
            .settlements
            .iter()
            .map(|end| end.run.clone())
            .collect()
    };
    let [first, again]: [Vec<Run>; 2] = [ended(&first), ended(&again)];
    assert_eq!(
        (first, again),
        (vec![runs[0].clone()], vec![runs[0].clone()])
    );
    assert_eq!(script.stopped, None);
    script.reply(id, Reply::Settled(vec![Ok(Settled::Ended)]));
    script.quiet(secs(3));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 1 }));
}

#[test]
fn the_runs_of_a_node_that_is_declared_gone_while_it_stops_are_unfinished() {
    // NODE-4
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START), row("a", "l", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(10) });
    script.quiet(secs(3) - millis(1));
    script.now = secs(3);
    script.input(Input::Wake);
    let (id, call) = script.asks.pop_front().unwrap();
    assert!(matches!(call, StoreCall::Beat(_)), "{call:?}");
    script.reply(id, Reply::Beat(None));
    assert_eq!(script.stopped, Some(Stopped { unfinished: 2 }));
}

#[test]
fn a_stop_ends_soon_after_the_grace_even_if_the_store_is_down() {
    let mut script = Script::joined(alone());
    script.rows = vec![row("a", "k", START)];
    script.run_all(millis(1));
    script.input(Input::Stop { grace: secs(2) });
    while script.stopped.is_none() {
        while let Some((id, _)) = script.asks.pop_front() {
            script.fail(id);
        }
        if script.stopped.is_none() {
            script.now = script.node.next_wake().expect("it ends");
            script.input(Input::Wake);
        }
    }
    // 5 s after the grace.
    assert_eq!(script.now, secs(7) + millis(1));
    assert_eq!(script.node.next_wake(), None);
    script.input(Input::Wake);
    assert!(script.asks.is_empty());
}

#[test]
fn a_node_that_never_joined_stops_at_once() {
    let mut script = Script::new(alone());
    script.input(Input::Stop { grace: secs(2) });
    assert_eq!(script.stopped, Some(Stopped::default()));
    assert!(script.asks.is_empty());
}
