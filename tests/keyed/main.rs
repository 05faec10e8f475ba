//! Debounce and throttle: which calls of a key run, and when.

mod debounce;
mod ends;
mod races;
mod throttle;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::steps::T;
use tourbillon::test_util::Stepped;
use tourbillon::{Firing, Time};

/// The runs of a test: when each started, in ticks, with its key and value.
#[derive(Clone, Default, Debug)]
pub(crate) struct Runs(Arc<Mutex<Vec<(u64, u64, u64)>>>);

impl Runs {
    /// Notes a run.
    pub(crate) fn note(&self, firing: &Firing<'_, u64>, value: u64) {
        let run = (ticks(firing.handle().now()), *firing.key(), value);
        self.0.lock().unwrap().push(run);
    }

    /// Returns a closure that notes runs.
    pub(crate) fn noting(&self) -> impl Fn(&Firing<'_, u64>, u64) + Send + Sync + 'static {
        let runs = self.clone();
        move |firing, value| runs.note(firing, value)
    }

    /// Takes the runs so far, as times and values.
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        let runs = std::mem::take(&mut *self.0.lock().unwrap());
        runs.into_iter().map(|(at, _, value)| (at, value)).collect()
    }

    /// Returns the runs so far, with their keys.
    pub(crate) fn all(&self) -> Vec<(u64, u64, u64)> {
        self.0.lock().unwrap().clone()
    }
}

/// Returns a time in ticks.
pub(crate) fn ticks(time: Time) -> u64 {
    u64::try_from(time.since(Time::ZERO).as_nanos() / T.as_nanos()).unwrap()
}

/// Lets time pass until the clock shows `at` ticks.
pub(crate) fn until(scheduler: &Stepped<u64>, at: u64) {
    scheduler.advance_to(Time::ZERO + Duration::from_millis(at));
}
