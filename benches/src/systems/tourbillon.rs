//! Ours, with its defaults, by face: `Scheduler<u64>` with a boxed closure per key that captures
//! eight bytes; `ExpiryMap<u64, u64>` with one handler for all; and `Timer` without keys.

use std::time::Duration;

use tourbillon::{Cancel, Expiry, ExpiryMap, Handle, Reschedule, Scheduler, Timeout, Timer};

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

pub(crate) struct Map(ExpiryMap<u64, u64>);

impl System for Map {
    const NAME: &'static str = "tourbillon-map";
    const ABOUT: &'static str = "ExpiryMap<u64, u64>, values of 8 bytes in its entries";

    fn new(_: Tasks) -> Self {
        let map = ExpiryMap::builder().build(|_, expired| fired(expired.value));
        Map(map.expect("the defaults are fine"))
    }

    fn pending(&self) -> usize {
        self.0.len()
    }

    fn settle(&self) {}
}

impl Keyed for Map {
    fn start(&self, key: u64, delay: Duration) {
        let inserted = self.0.insert_with(key, key, Expiry::NEVER.time_to_idle(delay));
        assert!(inserted.is_ok(), "open and without a bound");
    }

    fn stop(&self, key: u64) -> bool {
        self.0.remove(&key).value().is_some()
    }

    /// Delays differ from touch to touch, so each is a time to idle of its own.
    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.0.set_expiry(&key, Expiry::NEVER.time_to_idle(delay)).is_alive()
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
