//! The growth watch: a ticket is injected while all workers are blocked and the ticker sleeps. A
//! worker is started all the same. `inject` in `engine/mod.rs` rings for a check at the growth
//! limit; `ticker_step` in `engine/drive.rs` checks after its promise whether tickets wait.
//!
//! The model skips short sleeps: if the ticker has to check again at the growth limit, it moves the
//! clock itself. Only the bell wakes it from a longer sleep. So a missed ticket shows as a
//! deadlock, and a ticket that is noticed late shows on the clock.
//!
//! A second model has two tickers that check the same workers at the same moment. Both workers
//! compute, so one more worker may be started, but not one by each ticker. The turns in
//! `executor/crew.rs` ensure that.
//!
//! Teeth:
//! - `teeth/growth-injecting-does-not-ring.patch`: the ticker sleeps already.
//! - `teeth/growth-no-second-look.patch`: the ticker goes to sleep meanwhile.
//! - `teeth/growth-turn-ends-before-the-start.patch`: the other ticker does not see the worker that
//!   is about to be started.
//! - `teeth/growth-forgets-who-is-starting.patch`: the other ticker does not see the worker that
//!   was just started.

use loom::thread;

use super::check;
use crate::engine::{Engine, GROWTH_LIMIT, TickerState};
use crate::rig::{Ledger, Rig, START, Size, at};
use crate::sync::Arc;
use crate::sync::thread::WAITING;
use crate::tick::Time;
use crate::tickers::TickerStep;

/// A ticker with at most one timer, which is due much later; a worker whose task never ends; and a
/// caller that schedules a timer that is due at once.
fn growth(far: Option<Time>) {
    let (rig, mut ticker_state) = Rig::new(&Size {
        extra: 1,
        ..Size::default()
    });
    let blocked = rig.thread();
    blocked.is_known_as(Some(WAITING));
    if let Some(far) = far {
        rig.arm(1, 1, far).unwrap();
    }
    let caller = {
        let rig = rig.clone();
        thread::spawn(move || {
            rig.arm(0, 0, at(START)).unwrap();
        })
    };
    let mut started = 0;
    while started == 0 {
        let step = rig
            .engine()
            .ticker_step(&rig.server, &mut ticker_state, &mut |workers| {
                started += workers.count;
                true
            });
        match step {
            _ if started > 0 => {}
            TickerStep::Worked => {}
            TickerStep::SleepUntil(until) if until <= rig.hand.now() + GROWTH_LIMIT => {
                rig.hand.set(until);
            }
            TickerStep::SleepUntil(_) => ticker_state.park(),
            TickerStep::Stop => unreachable!("nobody stops it"),
        }
    }
    assert_eq!(rig.hand.now(), at(START) + GROWTH_LIMIT);
    caller.join().unwrap();
    assert_eq!(rig.balance().queued, 1);
}

#[test]
fn a_worker_is_started_though_no_timer_is_due() {
    check(3, || growth(None));
}

#[test]
fn a_worker_is_started_though_the_next_timer_is_far() {
    check(3, || growth(Some(Time::from_nanos(1 << 50))));
}

/// Two shards with one ticket each, which no worker claims: the workers run long tasks that
/// compute. Both tickers reach the growth limit at the same moment.
fn two_tickers() {
    let (mut parts, hand) = Size {
        stripes: 2,
        extra: 3,
        ..Size::default()
    }
    .parts();
    parts.config.shards = 2;
    let (server, ticker_states) = Engine::assemble(parts, Ledger::default());
    let rig = Rig { server, hand };
    let computing = rig.thread();
    computing.is_known_as(Some(WAITING + 1));
    for key in 0..2 {
        rig.arm(key, key as usize, at(START)).unwrap();
    }
    let step = |rig: &Rig, ticker_state: &mut TickerState| {
        let mut started = Vec::new();
        loop {
            let step = rig
                .engine()
                .ticker_step(&rig.server, ticker_state, &mut |workers| {
                    started.extend((0..workers.count).map(|_| rig.thread()));
                    true
                });
            match step {
                TickerStep::Worked => {}
                TickerStep::SleepUntil(_) => return started,
                TickerStep::Stop => unreachable!("nobody stops it"),
            }
        }
    };
    let mut ticker_states = ticker_states.into_iter();
    let (mut one, mut other) = (ticker_states.next().unwrap(), ticker_states.next().unwrap());
    // Both tickers set their marks, and check for the first time half a limit later.
    for moment in [Time::from_nanos(0), Time::ZERO + GROWTH_LIMIT / 2] {
        rig.hand.set(at(START) + moment.since(Time::ZERO));
        assert!(step(&rig, &mut one).is_empty() && step(&rig, &mut other).is_empty());
    }
    rig.hand.set(at(START) + GROWTH_LIMIT);
    let at_once = {
        let rig = rig.clone();
        thread::spawn(move || step(&rig, &mut other))
    };
    let mut started = step(&rig, &mut one);
    started.extend(at_once.join().unwrap());
    assert_eq!(started.len(), 1);
    drop(computing);
}

#[test]
fn two_tickers_that_look_at_once_start_one_worker() {
    check(3, two_tickers);
}
