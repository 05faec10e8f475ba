//! Repeating tasks that record their rounds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{IntoNext, Period, Round, Time};

use crate::steps::{T, stepped};

/// A recorded round. Its times are in ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    /// The number of the round, from 1.
    pub number: u64,
    /// The number of rounds missed before it.
    pub missed: u64,
    /// Its deadline.
    pub due: u64,
    /// When it started.
    pub at: u64,
}

/// The recorded rounds. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct Beats(Arc<Mutex<Vec<Beat>>>);

/// The number of whole ticks from the start until `time`.
pub fn ticks(time: Time) -> u64 {
    u64::try_from(u128::from(time.as_nanos()) / T.as_nanos()).unwrap()
}

/// The time `ticks` ticks after the start.
pub fn at(ticks: u32) -> Time {
    Time::ZERO + T * ticks
}

impl Beats {
    /// Records a round.
    pub fn note(&self, round: &Round<'_, u64>) {
        self.0.lock().unwrap().push(Beat {
            number: round.number(),
            missed: round.missed(),
            due: ticks(round.deadline()),
            at: ticks(round.handle().now()),
        });
    }

    /// Takes the rounds since the last call.
    pub fn take(&self) -> Vec<Beat> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Takes the rounds since the last call. Returns when each started.
    pub fn starts(&self) -> Vec<u64> {
        self.take().iter().map(|beat| beat.at).collect()
    }

    /// Takes the rounds since the last call. Returns when each started, and how many rounds were
    /// missed before it.
    pub fn told(&self) -> Vec<(u64, u64)> {
        let beats = self.take();
        beats.iter().map(|beat| (beat.at, beat.missed)).collect()
    }
}

/// A stepped scheduler with a task that repeats under key 1. Each round is recorded, and `then`
/// returns its answer.
pub fn beating<R: IntoNext + 'static>(
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

/// A closure that a task calls to take `time`: it advances the scheduler's clock.
pub fn takes(scheduler: &Stepped<u64>, time: Duration) -> impl Fn() + Send + use<> {
    let hand = scheduler.clock();
    move || {
        hand.advance(time);
    }
}
