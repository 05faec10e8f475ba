//! Repeating tasks that write their rounds down.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{IntoNext, Period, Round, Time};

use crate::steps::{T, stepped};

/// A round, in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beat {
    pub(crate) number: u64,
    pub(crate) missed: u64,
    pub(crate) due: u64,
    pub(crate) at: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Beats(Arc<Mutex<Vec<Beat>>>);

pub(crate) fn ticks(time: Time) -> u64 {
    u64::try_from(u128::from(time.as_nanos()) / T.as_nanos()).unwrap()
}

/// The moment that many ticks after the start.
pub(crate) fn at(ticks: u32) -> Time {
    Time::ZERO + T * ticks
}

impl Beats {
    pub(crate) fn note(&self, round: &Round<'_, u64>) {
        self.0.lock().unwrap().push(Beat {
            number: round.number(),
            missed: round.missed(),
            due: ticks(round.deadline()),
            at: ticks(round.handle().now()),
        });
    }

    /// Those since the last call.
    pub(crate) fn take(&self) -> Vec<Beat> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// When those since the last call started.
    pub(crate) fn starts(&self) -> Vec<u64> {
        self.take().iter().map(|beat| beat.at).collect()
    }

    /// When those since the last call started, and how many each was told were missed.
    pub(crate) fn told(&self) -> Vec<(u64, u64)> {
        let beats = self.take();
        beats.iter().map(|beat| (beat.at, beat.missed)).collect()
    }
}

/// A stepped scheduler under whose key 1 a task repeats; it is written down, and then `then` says
/// what it answers.
pub(crate) fn beating<R: IntoNext + 'static>(
    seed: u64,
    period: Period,
    mut then: impl FnMut(&Round<'_, u64>) -> R + Send + 'static,
) -> (Stepped<u64>, Beats) {
    let scheduler = stepped(seed);
    let beats = Beats::default();
    let noted = beats.clone();
    let armed = scheduler.handle().repeat(1, period, move |round| {
        noted.note(round);
        then(round)
    });
    armed.unwrap();
    (scheduler, beats)
}

/// The task of a round takes so long.
pub(crate) fn takes(scheduler: &Stepped<u64>, time: Duration) -> impl Fn() + Send + use<> {
    let hand = scheduler.clock();
    move || {
        hand.advance(time);
    }
}
