//! Ours: `Scheduler<u64>` with its defaults, a boxed closure per key that captures eight bytes.

use std::time::Duration;

use tourbillon::{Cancel, Handle, Reschedule, Scheduler};

use super::{System, fired};

pub(crate) struct Boxed {
    timers: Handle<u64>,
    _scheduler: Scheduler<u64>,
}

impl System for Boxed {
    const NAME: &'static str = "tourbillon";
    const ABOUT: &'static str = "Scheduler<u64>, a boxed closure of 8 bytes per key";

    fn new() -> Self {
        let scheduler = Scheduler::builder().build().expect("the defaults are fine");
        Boxed {
            timers: scheduler.handle(),
            _scheduler: scheduler,
        }
    }

    fn start(&self, key: u64, delay: Duration) {
        let scheduled = self.timers.schedule(key, delay, move |_| fired(key));
        assert!(scheduled.is_ok(), "open and without a bound");
    }

    fn stop(&self, key: u64) -> bool {
        matches!(self.timers.cancel(&key), Cancel::Cancelled { .. })
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        matches!(
            self.timers.reschedule(&key, delay),
            Reschedule::Moved { .. }
        )
    }

    fn pending(&self) -> usize {
        self.timers.len()
    }

    /// Every call is done when it returns; all that it may leave is one token for a ticker.
    fn settle(&self) {}
}
