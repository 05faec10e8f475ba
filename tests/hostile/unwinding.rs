//! A panic that a program catches leaves everything that it has reached usable. So the main types
//! need no `AssertUnwindSafe`.

use std::cell::Cell;
use std::future::Ready;
use std::hash::{Hash, Hasher};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::quiet::{WANTED, hush};
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::keyed::{Debounce, Throttle};
use tourbillon::retry::{Backoff, Retry, RetryBudget};
use tourbillon::{
    ById, ByIds, CancelAndWait, CancelGuard, Clock, Closing, ExpiryMap, GroupedExpiryMap, Handle,
    Interval, ManualClock, Next, Period, Report, Scheduler, Shutdown, Sleep, Timeout, Timer,
    TimerHandle, Toucher, channel, wheel,
};

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_main_types_are_unwind_safe_whatever_their_values_are() {
    fn safe<T: UnwindSafe + RefUnwindSafe>() {}
    type Boxed = Box<dyn FnMut() + Send>;
    safe::<Scheduler<u64>>();
    safe::<Handle<u64>>();
    safe::<ById<'static, u64>>();
    safe::<ByIds<'static, u64>>();
    safe::<CancelGuard<u64>>();
    safe::<CancelAndWait<u64>>();
    safe::<Closing<Report<u64>>>();
    safe::<ExpiryMap<u64, Boxed>>();
    safe::<GroupedExpiryMap<u64, Boxed, u64>>();
    safe::<Toucher<u64, Boxed>>();
    safe::<Timer>();
    safe::<TimerHandle>();
    safe::<Sleep>();
    safe::<Interval>();
    safe::<Timeout<Ready<()>>>();
    safe::<Debounce<u64, Boxed>>();
    safe::<Throttle<u64, Boxed>>();
    safe::<RetryBudget>();
    safe::<Backoff>();
    safe::<Clock>();
    safe::<ManualClock>();
    safe::<wheel::Wheel<u64>>();
    safe::<channel::Receiver<u64>>();
    #[cfg(feature = "stream")]
    safe::<tourbillon::Expirations<u64, Boxed>>();
    #[cfg(feature = "tokio")]
    safe::<(tourbillon::OnTokio<u64>, tourbillon::AsyncFiring<u64>)>();
}

fn panics<R>(call: impl FnOnce() -> R + UnwindSafe) {
    assert!(catch_unwind(call).is_err());
}

fn map() -> ExpiryMap<u64, String> {
    ExpiryMap::builder()
        .time_to_idle(HOUR)
        .build(|_, _| ())
        .unwrap()
}

#[test]
fn a_map_goes_on_after_a_panic_of_each_closure() {
    hush();
    let map = map();
    map.insert(1, "one".to_owned()).unwrap();
    panics(|| map.with(&1, |_| panic!("{WANTED}")));
    panics(|| map.update(&1, |_| panic!("{WANTED}")));
    panics(|| map.touch_with(&1, |_| panic!("{WANTED}")));
    panics(|| map.retain(|_, _| panic!("{WANTED}")));
    panics(|| {
        map.entry(2)
            .or_try_insert_with(|| -> Result<_, ()> { panic!("{WANTED}") })
    });
    panics(|| {
        map.entry(2)
            .or_compute(|| -> Result<_, ()> { panic!("{WANTED}") })
            .wait()
    });
    assert_eq!(map.get(&1).as_deref(), Some("one"));
    assert!(!map.contains(&2));
    // The next caller computes the value: nobody waits for the one that panicked.
    let computed = map
        .entry(2)
        .or_compute(|| Ok::<_, ()>("two".to_owned()))
        .wait();
    assert_eq!(computed.unwrap().into_value(), "two");
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.handed_back.len(), 2);
}

/// A key whose `Eq` and `Clone` panic once, when the count of their calls comes down to 1.
struct Fragile(u32, Arc<AtomicU32>);

impl Fragile {
    fn burn(&self) {
        let left = self.1.fetch_sub(1, Ordering::Relaxed);
        assert!(left != 1, "{WANTED}");
    }
}

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        self.burn();
        self.0 == other.0
    }
}

impl Eq for Fragile {}

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        self.burn();
        Fragile(self.0, Arc::clone(&self.1))
    }
}

#[test]
fn a_scheduler_goes_on_after_a_panic_of_a_key_under_its_lock() {
    hush();
    let scheduler = Scheduler::<Fragile>::new().unwrap();
    let timers = scheduler.handle();
    let left = Arc::new(AtomicU32::new(1_000));
    let key = || Fragile(7, Arc::clone(&left));
    timers.schedule(key(), HOUR, |_| ()).unwrap();
    let mut caught = 0;
    for bomb in 1..9 {
        left.store(bomb, Ordering::Relaxed);
        let calls = || {
            timers.schedule(key(), HOUR, |_| ()).unwrap();
            let _ = timers.reschedule(&key(), 2 * HOUR);
            let period = Period::fixed_rate(HOUR);
            timers.repeat(key(), period, |_| Next::Again).unwrap();
            let _ = timers.contains(&key());
        };
        caught += u32::from(catch_unwind(calls).is_err());
        left.store(1_000, Ordering::Relaxed);
        assert_eq!(timers.len(), 1);
        timers.schedule(key(), HOUR, |_| ()).unwrap();
        assert_eq!(timers.len(), 1);
        assert!(timers.stats().balances());
    }
    assert!(caught >= 3, "{caught}");
    assert!(timers.cancel(&key()).is_cancelled() && timers.is_empty());
}

#[test]
fn a_timer_goes_on_after_a_panic_of_an_attempt_or_of_a_future() {
    hush();
    let timer = Timer::new().unwrap();
    let policy = || Retry::<()>::new(Backoff::fixed(Duration::ZERO));
    panics(|| timer.retry_blocking(policy(), || -> Result<(), ()> { panic!("{WANTED}") }));
    let wakes = Wakes::new();
    panics(|| {
        let mut limited = timer.timeout(HOUR, Box::pin(async { panic!("{WANTED}") }));
        let _ = poll(&mut limited, &Wakes::new());
    });
    let mut sleep = timer.sleep(HOUR);
    assert!(poll(&mut sleep, &wakes).is_pending());
    assert_eq!(timer.stats().pending, 1, "the others have left nothing");
    let (send, receive) = mpsc::channel();
    let _ = timer
        .after(Duration::ZERO, move || send.send(7).unwrap())
        .unwrap();
    assert_eq!(receive.recv(), Ok(7));
}

#[test]
fn a_debounce_goes_on_after_a_panic_of_its_merge() {
    hush();
    let scheduler = Scheduler::<u64>::new().unwrap();
    let sum = Arc::new(AtomicU32::new(0));
    let added = Arc::clone(&sum);
    let debounce = Debounce::builder(&scheduler.handle(), HOUR)
        .merge(|sum: &mut u32, more| {
            assert!(more != 13, "{WANTED}");
            *sum += more;
        })
        .build(move |_, value| {
            added.fetch_add(value, Ordering::Relaxed);
        });
    debounce.call(1, 2).unwrap();
    panics(|| debounce.call(1, 13));
    debounce.call(1, 5).unwrap();
    assert!(debounce.flush(&1));
    until("the key runs", || sum.load(Ordering::Relaxed) == 7);
}

/// A value that can't be shared may still be in what is caught, since the map answers for it.
#[test]
fn values_need_not_be_unwind_safe() {
    hush();
    fn of<V: Send + 'static>(map: &ExpiryMap<u64, V>) {
        panics(|| map.update(&1, |_| panic!("{WANTED}")));
    }
    let map = ExpiryMap::<u64, Cell<u8>>::builder()
        .build(|_, _| ())
        .unwrap();
    map.insert(1, Cell::new(7)).unwrap();
    of(&map);
    assert_eq!(map.with(&1, Cell::get), Some(7));
}
