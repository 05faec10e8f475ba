//! Schedulers, timers and maps.
//!
//! The original uses them from several threads, on one stripe each, so that their locks are held at
//! most forks. The copy makes every call.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_core::Stream;
use tourbillon::keyed::Debounce;
use tourbillon::retry::Retry;
use tourbillon::{
    BuildError, Cancel, CancelGuard, Clock, EntryError, ExpiryMap, FindingKind, GroupedExpiryMap,
    Handle, Health, InsertRefusal, Lifecycle, ManualClock, Missed, Period, Removed, RenameRefusal,
    Runtime, ScheduleError, Scheduler, Shutdown, SleepError, Timer, TimerHandle, Touch, WaitError,
    When,
};

use crate::child::{Report, in_copy};

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: u64 = 4;

/// Whether this is the health of a copy: it is not ready, and a restart would not help.
pub(crate) fn is_forked(health: &Health) -> bool {
    let is_told = matches!(health.findings(), [found] if found.kind == FindingKind::Forked);
    is_told && health.is_alive() && !health.is_ready()
}

/// What the threads of the original use, and the copies inherit.
struct Used {
    runtime: Runtime,
    /// On that runtime. The others are on that of the process, or have threads of their own.
    shared: Scheduler<u64>,
    scheduler: Scheduler<u64>,
    inline: Scheduler<u64>,
    handle: Handle<u64>,
    timer: Timer,
    map: ExpiryMap<u64, u64>,
    grouped: GroupedExpiryMap<u64, u64, u64>,
    debounce: Debounce<u64, u64>,
    clock: ManualClock,
}

impl Used {
    fn new() -> Self {
        let scheduler = Scheduler::<u64>::builder()
            .shards(1)
            .stripes(1)
            .workers(2)
            .max_pending(100_000)
            .build()
            .expect("the options are good");
        let clock = ManualClock::new();
        let inline = Scheduler::<u64>::builder()
            .shards(1)
            .inline()
            .clock(Clock::manual(&clock))
            .build()
            .expect("the options are good");
        let handle = scheduler.handle();
        let runtime = Runtime::builder().tickers(1).workers(1).build();
        let runtime = runtime.expect("the options are good");
        let shared = Scheduler::builder().runtime(&runtime).build();
        Used {
            shared: shared.expect("the options are good"),
            runtime,
            timer: Timer::builder().shards(1).build().expect("the same"),
            map: ExpiryMap::builder()
                .time_to_idle(HOUR)
                .shards(1)
                .stripes(1)
                .build(|_, _| ())
                .expect("the same"),
            grouped: ExpiryMap::<u64, u64>::builder()
                .time_to_idle(HOUR)
                .shards(1)
                .stripes(1)
                .groups::<u64>()
                .max_per_group(100)
                .build(|_, _| ())
                .expect("the same"),
            debounce: Debounce::builder(&handle, HOUR).build(|_, _| ()),
            scheduler,
            inline,
            handle,
            clock,
        }
    }

    /// Uses all of it once, as others do while one forks.
    fn use_it(&self, round: u64) {
        let key = round % KEYS;
        let long = HOUR + Duration::from_millis(round % 100);
        let now = Duration::ZERO;
        let _ = self.handle.schedule(key, long, |_| ());
        let _ = self.handle.schedule(100 + key, now, |_| ());
        let _ = self.handle.reschedule(&key, long);
        self.handle.cancel_many(&[key, 100 + key]);
        let _ = self.handle.cancel_and_wait(&(100 + key)).wait();
        self.handle.cancel(&key);
        let _ = self.inline.handle().schedule(key, HOUR, |_| ());
        let _ = self.shared.handle().schedule(key, now, |_| ());
        if round.is_multiple_of(10) {
            let on_runtime = || Timer::builder().runtime(&self.runtime).stripes(16);
            // In a copy of the copy it is refused.
            drop((on_runtime().build(), Timer::builder().stripes(16).build()));
        }
        self.clock.advance(Duration::from_millis(1));
        let _ = self
            .timer
            .after(long, || ())
            .map(|timeout| timeout.cancel());
        let _ = self.timer.after(now, || ());
        let mut sleep = Box::pin(self.timer.sleep(HOUR));
        let _ = poll(sleep.as_mut());
        let _ = self.map.insert(key, round);
        self.map.touch(&key);
        self.map.touch_many(&[0, 1, 2, 3]);
        let _ = self
            .map
            .entry(1000 + key)
            .or_compute(|| Ok::<_, ()>(round))
            .wait();
        self.map.remove(&key);
        self.map.remove(&(1000 + key));
        let _ = self.grouped.entry(round % 7).group(&key).insert(round);
        let _ = self.grouped.rename(&key, 1000 + key);
        self.grouped.touch_group(&key);
        self.grouped.remove_group(&key);
        let _ = self.debounce.call(key, round);
        self.debounce.cancel(&key);
        let _ = (self.handle.stats(), self.map.len(), self.timer.state());
    }
}

/// Polls a future, again if it only gives its runtime a turn.
pub(crate) fn poll<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    let ready = |_| match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    };
    (0..2).find_map(ready).map_or(Poll::Pending, Poll::Ready)
}

/// The value of a future that is ready.
fn ready<F: Future>(future: F) -> Option<F::Output> {
    match poll(pin!(future)) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Forks `forks` times beside `threads` busy threads. Returns what was wrong.
pub(crate) fn run(forks: u64, threads: u64) -> Option<String> {
    let used = Arc::new(Used::new());
    let ended = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let busy: Vec<_> = (0..threads)
        .map(|_| {
            let (used, ended, rounds) = (used.clone(), ended.clone(), rounds.clone());
            thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    used.use_it(rounds.fetch_add(1, Ordering::SeqCst));
                }
            })
        })
        .collect();
    let mut wrong = None;
    for number in 0..forks {
        let before = rounds.load(Ordering::SeqCst);
        // All of them are at it. How far differs from fork to fork.
        while threads > 0 && rounds.load(Ordering::SeqCst) < before + 3 {
            thread::yield_now();
        }
        wrong = one_copy(number, &used);
        if wrong.is_some() {
            break;
        }
    }
    ended.store(true, Ordering::SeqCst);
    for thread in busy {
        if thread.join().is_err() {
            wrong = wrong.or(Some("a thread of the original failed".to_owned()));
        }
    }
    wrong
}

/// What one copy inherits and uses up.
struct Own {
    guard: CancelGuard<u64>,
    timeout: TimerHandle,
    sleep: Pin<Box<tourbillon::Sleep>>,
    end: Pin<Box<tourbillon::CancelAndWait<u64>>>,
    begun: Scheduler<u64>,
    closing: tourbillon::Closing<tourbillon::Report<u64>>,
    dropped: tourbillon::Closing<tourbillon::Report<u64>>,
    entries: tourbillon::Expirations<u64, u64>,
    toucher: tourbillon::Toucher<u64, u64>,
    /// The last owners of them.
    owned: (Timer, ExpiryMap<u64, u64>),
}

/// Checks one copy, and the original after it. Returns what was wrong.
fn one_copy(number: u64, used: &Arc<Used>) -> Option<String> {
    let key = 10_000 + number;
    let scheduled = used
        .handle
        .schedule(key, HOUR, |_| ())
        .expect("there is room");
    let guard = used.handle.cancel_on_drop(scheduled.id);
    // A run that goes on until the copy has ended.
    let (release, held) = sync_channel::<()>(0);
    let (tell, began) = sync_channel::<()>(1);
    let running = 20_000 + number;
    let task = move |_: &tourbillon::Firing<'_, u64>| {
        let _ = tell.send(());
        let _ = held.recv();
    };
    used.handle
        .schedule(running, Duration::ZERO, task)
        .expect("there is room");
    began.recv().expect("it runs");
    let mut end = Box::pin(used.handle.cancel_and_wait(&running).within(HOUR));
    assert!(poll(end.as_mut()).is_pending());
    let mut sleep = Box::pin(used.timer.sleep(HOUR));
    assert!(poll(sleep.as_mut()).is_pending());
    // Shutdowns that wait for a run.
    let closing = || {
        let other = Scheduler::<u64>::builder()
            .shards(1)
            .workers(1)
            .build()
            .expect("good");
        let (release, held) = sync_channel::<()>(0);
        let (tell, began) = sync_channel::<()>(1);
        let task = move |_: &tourbillon::Firing<'_, u64>| {
            let _ = tell.send(());
            let _ = held.recv();
        };
        other
            .handle()
            .schedule(1, Duration::ZERO, task)
            .expect("there is room");
        began.recv().expect("it runs");
        let closing = other.shutdown(Shutdown::HandBack);
        (other, closing, release)
    };
    let ((begun, closing, release_1), (_other, dropped, release_2)) = (closing(), closing());
    let (stream_map, entries) = ExpiryMap::<u64, u64>::builder()
        .time_to_live(HOUR)
        .shards(1)
        .build_stream(4)
        .expect("good");
    let _ = stream_map.insert(1, 1);
    let mut toucher = used.map.toucher();
    toucher.touch(1);
    let own = Own {
        guard,
        timeout: used.timer.after(HOUR, || ()).expect("there is room"),
        sleep,
        end,
        begun,
        closing,
        dropped,
        entries,
        toucher,
        owned: (Timer::new().expect("good"), stream_map),
    };
    let mut own = Some(own);
    let wrong = in_copy(|report| complaints(report, used, own.take().expect("it is there")));
    if wrong.is_some() {
        return wrong.map(|wrong| format!("copy {number}: {wrong}"));
    }
    // Nothing of it has changed here.
    let own = own.expect("only the copy takes it");
    let pending = own.guard.cancel().is_cancelled() && own.timeout.cancel().is_cancelled();
    drop((release, release_1, release_2));
    let report = own.closing.wait().expect("no task waits");
    let ended = own.dropped.wait().expect("no task waits").still_running;
    if !pending || report.already_closed || report.still_running + ended > 0 {
        return Some(format!(
            "the original after copy {number}: {pending} {report:?}"
        ));
    }
    None
}

fn runtime(report: &mut Report, used: &Used) {
    let built = Scheduler::<u64>::builder().runtime(&used.runtime).build();
    let refused = matches!(built, Err(BuildError::Forked));
    report.check("a build on a runtime of before", refused, &built.map(drop));
    let answer = used.shared.handle().schedule(1, HOUR, |_| ());
    let refused = matches!(answer, Err(ScheduleError::Forked(_)));
    report.check("a scheduler on it", refused, &answer.map(drop));
    let ended = used.runtime.shut_down(HOUR);
    report.check("its end", ended.is_ok(), &ended);
    let shown = format!("{:?} {:?}", used.runtime, used.runtime.stats());
    report.check("its text", shown.contains("tickers: 1"), &shown);
    drop(used.runtime.clone());
}

/// Forks a copy of a copy, and so on, each of which has timers.
pub(crate) fn nested(depth: u32) -> Option<String> {
    in_copy(|report| {
        if !report.threads_start() {
            return;
        }
        let timer = Timer::new();
        report.check(
            "the timer of a nested copy",
            timer.is_ok(),
            &timer.as_ref().map(drop),
        );
        let (tell, told) = sync_channel(1);
        let task = move || tell.send(()).expect("it is awaited");
        let armed = timer.as_ref().map(|timer| {
            let armed = timer.after(Duration::from_millis(1), task);
            armed.map(drop)
        });
        let ran = armed.is_ok() && told.recv() == Ok(());
        report.check("its task", ran, &depth);
        drop(timer);
        let wrong = (depth > 1).then(|| nested(depth - 1)).flatten();
        report.check("a copy of it", wrong.is_none(), &wrong);
    })
}

fn complaints(report: &mut Report, used: &Arc<Used>, own: Own) {
    runtime(report, used);
    scheduler(report, used);
    batches(report, used);
    timer(report, used);
    map(report, used);
    groups(report, used);
    inherited(report, own);
    if report.threads_start() {
        of_its_own(report, used);
    }
}

fn scheduler(report: &mut Report, used: &Used) {
    let handle = &used.handle;
    let forked = |error: &ScheduleError<_>| matches!(error, ScheduleError::Forked(_));
    report.check(
        "state",
        handle.state() == Lifecycle::Closed,
        &handle.state(),
    );
    let task = |_: &tourbillon::Firing<'_, u64>| ();
    let answer = handle.schedule(1, HOUR, task);
    report.check("schedule", answer.as_ref().is_err_and(forked), &answer);
    let answer = handle.schedule(1, Duration::ZERO, task);
    report.check(
        "schedule at once",
        answer.as_ref().is_err_and(forked),
        &answer,
    );
    let answer = handle.schedule(1, handle.now() + HOUR, task);
    report.check(
        "schedule at a time",
        answer.as_ref().is_err_and(forked),
        &answer,
    );
    let answer = handle.schedule(1, When::after(handle.now(), HOUR), task);
    report.check(
        "schedule after a given time",
        answer.as_ref().is_err_and(forked),
        &answer,
    );
    let answer = handle.schedule_if_absent(1, HOUR, task);
    report.check(
        "schedule_if_absent",
        answer.as_ref().is_err_and(forked),
        &answer,
    );
    let answer = handle.schedule(1, HOUR..=HOUR, task);
    report.check(
        "schedule in a window",
        answer.as_ref().is_err_and(forked),
        &answer,
    );
    let answer = handle.repeat(1, Period::fixed_rate(HOUR).missed(Missed::Skip), |_| ());
    let refused = matches!(answer, Err(ScheduleError::Forked(_)));
    report.check("repeat", refused, &answer);
    for key in 0..KEYS {
        let answer = handle.reschedule(&key, HOUR);
        report.check(
            "reschedule",
            answer == tourbillon::Reschedule::NotFound,
            &answer,
        );
        let answer = handle.pull_in(&key, HOUR);
        report.check("pull_in", answer == tourbillon::PullIn::NotFound, &answer);
        let answer = handle.cancel(&key);
        report.check("cancel", answer == Cancel::NotFound, &answer);
        let answer = handle.get(&key);
        report.check("get", answer.is_none(), &answer);
    }
    let answer = handle.cancel_and_wait(&1).wait();
    report.check("cancel_and_wait", answer == Err(WaitError::Forked), &answer);
    let answer = handle.cancel_and_wait(&1).within(HOUR).wait();
    report.check(
        "cancel_and_wait within a limit",
        answer == Err(WaitError::Forked),
        &answer,
    );
    let answer = ready(handle.cancel_and_wait(&1));
    let failed = answer
        .as_ref()
        .is_some_and(|answer| *answer == Err(WaitError::Forked));
    report.check("cancel_and_wait as a future", failed, &answer);
    report.check("next_deadline", handle.next_deadline().is_none(), &handle);
    report.check("pending", handle.pending().next().is_none(), &handle);
    report.check("stats", handle.stats().pending == 0, &handle.stats());
    report.check("health", is_forked(&handle.health()), &handle.health());
    let dump = handle.dump();
    let empty = is_forked(&dump.health) && dump.shards.is_empty();
    report.check("dump", empty, &dump);
    report.check("len", handle.is_empty() && handle.is_empty(), &handle.len());
    report.step("shrink_to_fit");
    handle.shrink_to_fit();
    let answer = used.debounce.call(1, 1);
    let refused = matches!(answer, Err(ScheduleError::Forked(1)));
    report.check("debounce", refused, &answer);
    let nothing = !used.debounce.flush(&1)
        && !used.debounce.cancel(&1)
        && !used.debounce.is_pending(&1)
        && used.debounce.take_pending().is_empty();
    report.check("debounce's other calls", nothing, &used.debounce);
    for mode in [
        Shutdown::HandBack,
        Shutdown::RunNow,
        Shutdown::Drain { limit: HOUR },
    ] {
        report.step("shutdown");
        let answer = used.scheduler.shutdown(mode).wait();
        let ended = answer.as_ref().is_ok_and(|answer| answer.already_closed);
        report.check("wait", ended, &answer);
        let answer = ready(used.inline.shutdown(mode));
        let ended = answer.as_ref().is_some_and(|answer| answer.already_closed);
        report.check("inline", ended, &answer);
    }
    report.step("a manual clock");
    used.clock.advance(Duration::from_secs(1));
}

fn batches(report: &mut Report, used: &Used) {
    let keys: Vec<u64> = (0..KEYS).collect();
    let answer = used.handle.cancel_many(&keys);
    let none = answer.iter().all(|answer| *answer == Cancel::NotFound);
    report.check("cancel_many", none && answer.len() == keys.len(), &answer);
    let answer = used.handle.cancel_all();
    report.check("cancel_all", answer == 0, &answer);
    let answer = used.map.touch_many(&keys);
    report.check(
        "touch_many",
        answer.iter().all(|one| *one == Touch::NotFound),
        &answer,
    );
}

fn timer(report: &mut Report, used: &Used) {
    let timer = &used.timer;
    report.check("timer's state", timer.state() == Lifecycle::Closed, timer);
    let answer = timer.after(HOUR, || ());
    report.check(
        "after",
        matches!(answer, Err(ScheduleError::Forked(_))),
        &answer,
    );
    let answer = ready(timer.sleep(HOUR));
    report.check("sleep", answer == Some(Err(SleepError::Forked)), &answer);
    let answer = ready(timer.timeout(HOUR, std::future::pending::<()>()));
    let sleeps = tourbillon::TimeoutError::Sleep(SleepError::Forked);
    report.check("timeout", answer == Some(Err(sleeps)), &answer);
    let mut interval = timer.interval(HOUR).first(timer.now() + HOUR);
    let answer = ready(interval.tick());
    report.check("tick", answer == Some(Err(SleepError::Forked)), &answer);
    let policy = Retry::new(tourbillon::retry::Backoff::fixed(HOUR));
    let answer = timer.retry_blocking(policy, || Err::<(), _>(()));
    report.check("retry_blocking", answer.is_err(), &answer);
    report.check("timer's stats", timer.stats().pending == 0, timer);
    report.check("timer's health", is_forked(&timer.health()), timer);
    report.check("timer's dump", timer.dump().shards.is_empty(), timer);
    let answer = timer.shutdown(Shutdown::RunNow).wait();
    let ended = answer.as_ref().is_ok_and(|answer| answer.already_closed);
    report.check("timer's shutdown", ended, &answer);
}

fn map(report: &mut Report, used: &Used) {
    let map = &used.map;
    report.check("map's state", map.state() == Lifecycle::Closed, map);
    let answer = map.insert(1, 7);
    let forked = answer.as_ref().is_err_and(|error| {
        (error.key, error.value, error.refusal) == (1, 7, InsertRefusal::Forked)
    });
    report.check("insert", forked, &answer);
    let answer = map.entry(1).insert_if_absent(7);
    let forked = answer
        .as_ref()
        .is_err_and(|error| error.refusal == InsertRefusal::Forked);
    report.check("insert_if_absent", forked, &answer);
    let refused = |answer: &Result<_, EntryError<u64, u64, ()>>| matches!(answer, Err(EntryError::Insert(error)) if error.refusal == InsertRefusal::Forked);
    let answer = map
        .entry(1)
        .or_compute(|| Ok(7))
        .wait()
        .map(|found| found.into_value());
    report.check("or_compute, blocking", refused(&answer), &answer);
    let answer = ready(map.entry(1).or_compute(|| async { Ok(7) }));
    let answer = answer.expect("it is ready").map(|found| found.into_value());
    report.check("or_compute, awaited", refused(&answer), &answer);
    for key in 0..KEYS {
        report.check("touch", map.touch(&key) == Touch::NotFound, &key);
        report.check("map's get", map.get(&key).is_none(), &key);
        report.check("update", map.update(&key, |_| ()).is_none(), &key);
        report.check("contains", !map.contains(&key), &key);
        report.check("remaining", map.remaining(&key).is_none(), &key);
        report.check("remove", map.remove(&key) == Removed::NotFound, &key);
    }
    report.check("iter", map.iter().next().is_none(), map);
    report.check("retain", map.retain(|_, _| true) == 0, map);
    report.check("clear", map.clear() == 0, map);
    report.check("len", map.is_empty(), &map.len());
    report.check("stats", map.stats().pending == 0, map);
    report.check("health", is_forked(&map.health()), map);
    report.check("dump", map.dump().shards.is_empty(), map);
    report.step("shrink");
    map.shrink_to_fit();
    let mut toucher = map.toucher();
    toucher.touch(1);
    report.check("flush", toucher.flush() == 0, &toucher);
    let answer = map.shutdown(Shutdown::HandBack).wait();
    let ended = answer.as_ref().is_ok_and(|answer| answer.already_closed);
    report.check("map's shutdown", ended, &answer);
}

fn groups(report: &mut Report, used: &Used) {
    let map = &used.grouped;
    for group in 0..KEYS {
        let answer = map.entry(1).group(&group).insert(7);
        let forked = answer
            .as_ref()
            .is_err_and(|error| error.refusal == InsertRefusal::Forked);
        report.check("insert in a group", forked, &answer);
        report.check("group_len", map.group_len(&group) == 0, map);
        report.check("group_entries", map.group_entries(&group).is_empty(), map);
        report.check("touch_group", map.touch_group(&group) == 0, map);
        report.check("remove_group", map.remove_group(&group).is_empty(), map);
        report.check("group_of", map.group_of(&group).is_none(), map);
        let forked = RenameRefusal::Insert(InsertRefusal::Forked);
        let answer = map.rename(&group, group + 1).map_err(|error| error.refusal);
        report.check("rename", answer == Err(forked), &answer);
        report.check("remove", map.remove(&group) == Removed::NotFound, map);
    }
    report.step("the groups' room");
    map.shrink_to_fit();
}

fn inherited(report: &mut Report, own: Own) {
    let Own {
        guard,
        timeout,
        mut sleep,
        mut end,
        begun,
        closing,
        dropped,
        mut entries,
        toucher,
        owned,
    } = own;
    report.check(
        "expired",
        !timeout.is_expired() && !timeout.is_cancelled(),
        &timeout,
    );
    report.check("remaining", timeout.remaining().is_none(), &timeout);
    report.check(
        "cancel of a timeout",
        timeout.cancel() == Cancel::NotFound,
        &timeout,
    );
    report.step("drop of a guard");
    drop(guard);
    let answer = poll(sleep.as_mut());
    let failed = answer == Poll::Ready(Err(SleepError::Forked));
    report.check("a sleep of before", failed, &answer);
    let answer = poll(end.as_mut());
    let failed = matches!(answer, Poll::Ready(Err(WaitError::Forked)));
    report.check("the end of a run of before", failed, &answer);
    let answer = closing.wait();
    let ended = answer.as_ref().is_ok_and(|answer| answer.already_closed);
    report.check("a closing of before", ended, &answer);
    report.step("drops");
    drop((dropped, begun, toucher, owned));
    let mut context = Context::from_waker(Waker::noop());
    let mut next = || Pin::new(&mut entries).poll_next(&mut context);
    // The first one may only give its runtime a turn.
    let ended = (0..2).any(|_| matches!(next(), Poll::Ready(None)));
    report.check("a stream of before", ended, &entries);
    drop((sleep, end, timeout, entries));
}

/// Things that are made after the fork work, also where threads meet at their locks.
fn of_its_own(report: &mut Report, used: &Arc<Used>) {
    report.step("ones of its own");
    let own = Arc::new(Used::new());
    let (tell, told) = sync_channel(1);
    let task = move |_: &tourbillon::Firing<'_, u64>| tell.send(()).expect("it is awaited");
    let answer = own
        .handle
        .schedule(1_000_000, Duration::from_millis(5), task);
    report.check("its own schedule", answer.is_ok(), &answer.map(|_| ()));
    report.check("its own task", told.recv() == Ok(()), &());
    let threads: Vec<_> = (0..3)
        .map(|thread| {
            let (own, old) = (Arc::clone(&own), Arc::clone(used));
            thread::spawn(move || {
                for round in 0..50 {
                    own.use_it(thread + round * 3);
                    // Other threads, too, are refused.
                    let refused = old.handle.schedule(1, HOUR, |_| ());
                    assert!(matches!(refused, Err(ScheduleError::Forked(_))));
                }
            })
        })
        .collect();
    for thread in threads {
        report.check("its own threads", thread.join().is_ok(), &());
    }
    let (tell, told) = sync_channel(1);
    let task = move || tell.send(()).expect("it is awaited");
    let answer = own.timer.after(Duration::from_millis(5), task);
    report.check(
        "the runtime of the copy",
        told.recv() == Ok(()),
        &answer.map(drop),
    );
    let answer = own.scheduler.shutdown(Shutdown::RunNow).wait();
    let ended = answer
        .as_ref()
        .is_ok_and(|answer| !answer.already_closed && answer.still_running == 0);
    report.check("its own shutdown", ended, &answer);
    // A copy of the copy has neither.
    let wrong = in_copy(|report| {
        runtime(report, used);
        runtime(report, &own);
        scheduler(report, used);
        scheduler(report, &own);
        groups(report, &own);
        map(report, used);
    });
    report.check("a copy of the copy", wrong.is_none(), &wrong);
    // A clock of before the fork.
    let clock = used.clock.clone();
    let build = Scheduler::<u64>::builder()
        .shards(1)
        .workers(1)
        .clock(Clock::manual(&clock));
    let scheduler = build.build().expect("good");
    let (tell, told) = sync_channel(1);
    let task = move |_: &tourbillon::Firing<'_, u64>| tell.send(()).expect("it is awaited");
    let answer = scheduler.handle().schedule(1, HOUR, task);
    report.check(
        "a timer on a clock of before",
        answer.is_ok(),
        &answer.map(|_| ()),
    );
    clock.advance(HOUR);
    report.check("its task", told.recv() == Ok(()), &());
}
