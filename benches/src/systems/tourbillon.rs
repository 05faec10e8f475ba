//! Ours, with its defaults, by face: `Scheduler<u64>` with a boxed closure per key that captures
//! eight bytes; `ExpiryMap<u64, u64>` with one handler for all, as timers with delays of their own
//! and as sessions that are idle for equally long; and `Timer` without keys, whose sleeps wake
//! their tasks on its workers or, built inline, on its tickers.

use std::time::Duration;

use tourbillon::{
    Cancel, Expiry, ExpiryMap, Firing, Handle, Removed, Reschedule, Scheduler, Timer, TimerHandle,
};

use super::SetUp;
use crate::recorder::fired;
use crate::system::{Handles, Keyed, Pooled, Sessions, Sleeps, System, Tasks};

/// A builder, with the shards and stripes that a sweep chooses.
macro_rules! set_up {
    ($builder:expr) => {{
        let SetUp { shards, stripes } = SetUp::chosen();
        let mut builder = $builder;
        if let Some(shards) = shards {
            builder = builder.shards(shards);
        }
        if let Some(stripes) = stripes {
            builder = builder.stripes(stripes);
        }
        builder
    }};
}

pub(crate) struct Boxed {
    timers: Handle<u64>,
    _scheduler: Scheduler<u64>,
}

impl System for Boxed {
    const NAME: &'static str = "tourbillon";
    const ABOUT: &'static str = "Scheduler<u64>, a boxed closure of 8 bytes per key";

    /// All that a call may leave to others is one token for a ticker.
    fn pending(&self) -> usize {
        self.timers.len()
    }
}

impl Keyed for Boxed {
    /// The pool takes tasks of either kind.
    fn new(_: Tasks) -> Self {
        let scheduler = set_up!(Scheduler::builder())
            .build()
            .expect("the set-up is fine");
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
        let answer = self.timers.reschedule(&key, delay);
        matches!(answer, Reschedule::Moved { .. })
    }

    fn start_many(&self, timers: &[(u64, Duration)]) {
        let timer = |(key, delay): &_| {
            let key = *key;
            (key, *delay, move |_: &Firing<'_, u64>| fired(key))
        };
        let scheduled = self.timers.schedule_many(timers.iter().map(timer));
        assert!(
            scheduled.iter().all(Result::is_ok),
            "open and without a bound"
        );
    }

    fn stop_many(&self, keys: &[u64]) -> usize {
        let answers = self.timers.cancel_many(keys);
        let cancelled = answers.iter().filter(|answer| answer.is_cancelled());
        cancelled.count()
    }

    fn touch_many(&self, keys: &[u64], delay: Duration) -> usize {
        let answers = self.timers.reschedule_many(keys, delay);
        let moved = |answer: &&Reschedule| matches!(answer, Reschedule::Moved { .. });
        answers.iter().filter(moved).count()
    }
}

impl Pooled for Boxed {
    fn workers(&self) -> u64 {
        self.timers.stats().workers
    }
}

/// With delays of their own, and as sessions.
pub(crate) struct Entries<const SESSIONS: bool>(ExpiryMap<u64, u64>);

pub(crate) type Map = Entries<false>;
pub(crate) type SessionMap = Entries<true>;

impl<const SESSIONS: bool> System for Entries<SESSIONS> {
    const NAME: &'static str = "tourbillon-map";
    const ABOUT: &'static str = if SESSIONS {
        "the same with one time to idle for all"
    } else {
        "ExpiryMap<u64, u64>, values of 8 bytes in its entries"
    };

    fn pending(&self) -> usize {
        self.0.len()
    }
}

impl Keyed for Map {
    fn new(_: Tasks) -> Self {
        let map = set_up!(ExpiryMap::builder()).build(|_, expired| fired(expired.value));
        Entries(map.expect("the set-up is fine"))
    }

    fn start(&self, key: u64, delay: Duration) {
        let inserted = self
            .0
            .entry(key)
            .expiry(Expiry::NEVER.time_to_idle(delay))
            .insert(key);
        assert!(inserted.is_ok(), "open and without a bound");
    }

    fn stop(&self, key: u64) -> bool {
        self.0.remove(&key).value().is_some()
    }

    /// Delays differ from touch to touch, so each is a time to idle of its own.
    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.0
            .set_expiry(&key, Expiry::NEVER.time_to_idle(delay))
            .is_alive()
    }
}

impl Sessions for SessionMap {
    fn new(idle: Duration) -> Self {
        let map = set_up!(ExpiryMap::builder()).time_to_idle(idle);
        let map = map.build(|_, expired| fired(expired.value));
        Entries(map.expect("the set-up is fine"))
    }

    fn insert(&self, key: u64, value: u64) {
        let inserted = self.0.insert(key, value);
        assert!(inserted.is_ok(), "open and without a bound");
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key)
    }

    fn touch(&self, key: u64) -> bool {
        self.0.touch(&key).is_alive()
    }

    fn touch_many(&self, keys: &[u64]) -> usize {
        let answers = self.0.touch_many(keys);
        answers.iter().filter(|touch| touch.is_alive()).count()
    }

    fn insert_many(&self, keys: &[u64]) {
        let inserted = self.0.insert_many(keys.iter().map(|key| (*key, *key)));
        assert!(
            inserted.iter().all(Result::is_ok),
            "open and without a bound"
        );
    }

    fn remove_many(&self, keys: &[u64]) -> usize {
        let removed = self.0.remove_many(keys).into_iter();
        removed.filter_map(Removed::value).count()
    }

    fn remove(&self, key: u64) -> Option<u64> {
        self.0.remove(&key).value()
    }
}

pub(crate) struct Keyless(Timer);

impl System for Keyless {
    const NAME: &'static str = "tourbillon-timer";
    const ABOUT: &'static str = "Timer, a boxed closure of 8 bytes per timer";

    fn pending(&self) -> usize {
        self.0.stats().pending as usize
    }
}

impl Handles for Keyless {
    type Timeout = TimerHandle;

    fn new(_: Tasks) -> Self {
        Keyless(
            set_up!(Timer::builder())
                .build()
                .expect("the set-up is fine"),
        )
    }

    fn start(&self, value: u64, delay: Duration) -> TimerHandle {
        let started = self.0.after(delay, move || fired(value));
        started.expect("open and without a bound")
    }

    fn stop(&self, timeout: TimerHandle) -> bool {
        timeout.cancel().is_cancelled()
    }
}

/// Sleeps whose tasks are woken by the timer's workers, or inline by its tickers.
pub(crate) struct Sleeping<const INLINE: bool>(Timer);

pub(crate) type SleepByWorkers = Sleeping<false>;
pub(crate) type SleepInline = Sleeping<true>;

impl<const INLINE: bool> Sleeps for Sleeping<INLINE> {
    const NAME: &'static str = if INLINE {
        "tourbillon-sleep-inline"
    } else {
        "tourbillon-sleep"
    };
    const ABOUT: &'static str = if INLINE {
        "the same of a timer built inline: its tickers wake"
    } else {
        "Timer::sleep, tasks are woken by its workers"
    };
    const RUNTIME_WITH_TIME: bool = false;

    fn new() -> Self {
        let timer = match INLINE {
            true => Timer::builder().inline().build(),
            false => Timer::new(),
        };
        Sleeping(timer.expect("the defaults are fine"))
    }

    fn sleep(&'static self, delay: Duration) -> impl Future<Output = ()> + Send + 'static {
        let sleep = self.0.sleep(delay);
        async move { sleep.await.expect("open and without a bound") }
    }
}
