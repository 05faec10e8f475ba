//! Which types may be shared between threads, which may only be sent, and which traits are objects.

use std::cell::Cell;
use std::future::Ready;

use tourbillon::keyed::{Debounce, Throttle};
use tourbillon::retry::{Backoff, Retry, RetryBudget};
use tourbillon::test_util::Drive;
use tourbillon::wheel::Wheel;
use tourbillon::{
    CancelAndWait, CancelGuard, Clock, Closing, Executor, Expired, ExpiryMap, ExpiryMapBuilder,
    ExpiryReport, ExpiryStats, GroupedExpiryMap, Handle, Interval, Job, ManualClock, Period,
    Report, Scheduler, SchedulerBuilder, Sleep, Stats, Task, Time, Timeout, Timer, TimerBuilder,
    TimerHandle, TimerId, TimerReport, Toucher,
};

/// A value that may be sent, and not shared.
type Sent = Cell<u8>;

fn shared<T: Send + Sync>() {}

fn sent<T: Send>() {}

fn object<T: ?Sized>() {}

fn executor<E: Executor + ?Sized>() {}

/// It can only fail to compile.
#[test]
fn traits_that_programs_choose_by_are_objects() {
    object::<dyn Drive>();
    executor::<dyn Executor>();
    executor::<std::sync::Arc<dyn Executor>>();
}

/// It can only fail to compile.
#[test]
fn all_but_closures_may_be_shared() {
    shared::<Scheduler<u64>>();
    shared::<Handle<Sent>>();
    shared::<ExpiryMap<Sent, Sent>>();
    shared::<GroupedExpiryMap<Sent, Sent, u64>>();
    shared::<Toucher<u64, Sent>>();
    shared::<Timer>();
    shared::<TimerHandle>();
    shared::<CancelGuard<Sent>>();
    shared::<CancelAndWait<Sent>>();
    shared::<Sleep>();
    shared::<Interval>();
    shared::<Timeout<Ready<u64>>>();
    shared::<Debounce<Sent, Sent>>();
    shared::<Throttle<Sent, Sent>>();
    shared::<(Backoff, Retry<Sent>, RetryBudget)>();
    shared::<(Clock, ManualClock, Time, TimerId)>();
    shared::<(Stats, ExpiryStats, Expired<u64, u64>)>();
    shared::<(Wheel<u64>, Job)>();
    // They hold closures and values of the user, of which `Send` alone is asked.
    sent::<(SchedulerBuilder<Sent>, TimerBuilder)>();
    sent::<ExpiryMapBuilder<Sent, Sent>>();
    sent::<(Task<u64>, Report<u64>, Closing<Report<u64>>)>();
    sent::<(Period, TimerReport, ExpiryReport<Sent, Sent>)>();
}
