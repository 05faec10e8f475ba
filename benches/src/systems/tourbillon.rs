//! Ours, with its defaults, by face: `Scheduler<u64>` with a boxed closure per key that captures
//! eight bytes; the engine under it with eight bytes in the entry and one handler for all; and
//! `Timer` without keys.

use std::time::Duration;

use tourbillon::{Cancel, Handle, Inline, Reschedule, Scheduler, Timeout, Timer};

use super::{Handles, Keyed, System, Tasks};
use crate::recorder::fired;

pub(crate) struct Boxed {
    timers: Handle<u64>,
    _scheduler: Scheduler<u64>,
}

impl System for Boxed {
    const NAME: &'static str = "tourbillon";
    const ABOUT: &'static str = "Scheduler<u64>, a boxed closure of 8 bytes per key";

    /// The pool takes tasks of either kind.
    fn new(_: Tasks) -> Self {
        let scheduler = Scheduler::builder().build().expect("the defaults are fine");
        Boxed {
            timers: scheduler.handle(),
            _scheduler: scheduler,
        }
    }

    fn pending(&self) -> usize {
        self.timers.len()
    }

    /// Every call is done when it returns; all that it may leave is one token for a ticker.
    fn settle(&self) {}
}

impl Keyed for Boxed {
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
}

pub(crate) struct Inlined(Inline<u64, u64>);

impl System for Inlined {
    const NAME: &'static str = "tourbillon-inline";
    const ABOUT: &'static str = "the engine with a payload of 8 bytes in its entries";

    fn new(_: Tasks) -> Self {
        Inlined(Inline::new(|_, value| fired(value)).expect("the defaults are fine"))
    }

    fn pending(&self) -> usize {
        self.0.stats().pending as usize
    }

    fn settle(&self) {}
}

impl Keyed for Inlined {
    fn start(&self, key: u64, delay: Duration) {
        assert!(self.0.start(key, key, delay), "open and without a bound");
    }

    fn stop(&self, key: u64) -> bool {
        self.0.stop(&key).is_some()
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.0.touch(&key, delay)
    }
}

pub(crate) struct Keyless(Timer);

impl System for Keyless {
    const NAME: &'static str = "tourbillon-timer";
    const ABOUT: &'static str = "Timer, a boxed closure of 8 bytes per timer";

    fn new(_: Tasks) -> Self {
        Keyless(Timer::new().expect("the defaults are fine"))
    }

    fn pending(&self) -> usize {
        self.0.stats().pending as usize
    }

    fn settle(&self) {}
}

impl Handles for Keyless {
    type Timeout = Timeout;

    fn start(&self, value: u64, delay: Duration) -> Timeout {
        let started = self.0.after(delay, move || fired(value));
        started.expect("open and without a bound")
    }

    fn stop(&self, timeout: Timeout) -> bool {
        timeout.cancel().is_cancelled()
    }
}
