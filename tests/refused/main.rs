//! What happens when the system starts no further thread: the pool grows later, and a shutdown
//! keeps its mode and its limits. One test, since the limit holds for the whole process, and a
//! thread of another test must not start meanwhile.
#![cfg(target_os = "linux")]

use std::fs;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use kit::gate::Gate;
use kit::ledger::Ledger;
use kit::refusal::{refuse_threads, starts_threads};
use kit::wait::{next, until};
use tourbillon::{
    Clock, Closing, Executor, ExpiryMap, Handle, Job, Lifecycle, ManualClock, Report, Scheduler,
    SchedulerBuilder, Shutdown, Time, Timer,
};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn nothing_is_lost_when_threads_are_refused() {
    let cases: [(&str, fn()); 10] = [
        (
            "a_pool_that_gets_no_threads_asks_less_and_less_often",
            a_pool_that_gets_no_threads_asks_less_and_less_often,
        ),
        (
            "a_shutdown_waits_for_the_running_task_and_hands_back_the_rest",
            a_shutdown_waits_for_the_running_task_and_hands_back_the_rest,
        ),
        (
            "drain_and_run_now_run_what_is_pending",
            drain_and_run_now_run_what_is_pending,
        ),
        (
            "what_a_drain_leaves_comes_back_at_its_limit",
            what_a_drain_leaves_comes_back_at_its_limit,
        ),
        (
            "who_waits_has_the_report_at_the_limit_though_no_ticker_is_free",
            who_waits_has_the_report_at_the_limit_though_no_ticker_is_free,
        ),
        (
            "a_shutdown_that_nobody_waits_for_goes_on_and_ends_its_threads",
            a_shutdown_that_nobody_waits_for_goes_on_and_ends_its_threads,
        ),
        (
            "a_task_that_shuts_down_does_not_wait_and_others_do",
            a_task_that_shuts_down_does_not_wait_and_others_do,
        ),
        (
            "maps_and_timers_keep_their_mode_too",
            maps_and_timers_keep_their_mode_too,
        ),
        (
            "each_timer_runs_or_comes_back_once",
            each_timer_runs_or_comes_back_once,
        ),
        (
            "a_scheduler_that_gets_no_threads_is_not_built_and_leaves_none",
            a_scheduler_that_gets_no_threads_is_not_built_and_leaves_none,
        ),
    ];
    for (name, case) in cases {
        println!("{name}");
        case();
    }
}

/// Where tasks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pool,
    Inline,
    Foreign,
}

const PLACES: [Place; 3] = [Place::Pool, Place::Inline, Place::Foreign];

/// How a caller deals with the result of `shutdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Waits,
    Awaits,
    Asks,
}

const CALLERS: [Caller; 3] = [Caller::Waits, Caller::Awaits, Caller::Asks];

/// Passes each batch to a thread that was started before.
struct OneThread(Sender<Job>);

impl Executor for OneThread {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.send(job).map_err(|error| error.0)
    }
}

/// Runs each batch inside the call, so that it keeps the ticker.
struct InsideTheCall;

impl Executor for InsideTheCall {
    fn execute(&self, job: Job) -> Result<(), Job> {
        job.run();
        Ok(())
    }
}

fn builder(place: Place) -> (SchedulerBuilder<u32>, ManualClock) {
    let hand = ManualClock::new();
    let builder = Scheduler::<u32>::builder()
        .shards(2)
        .workers(2)
        .shutdown_limit(LIMIT)
        .clock(Clock::manual(&hand));
    let builder = match place {
        Place::Pool => builder,
        Place::Inline => builder.inline(),
        Place::Foreign => {
            let (sender, jobs) = channel();
            thread::spawn(move || {
                let jobs: Receiver<Job> = jobs;
                jobs.into_iter().for_each(Job::run);
            });
            builder.executor(OneThread(sender))
        }
    };
    (builder, hand)
}

fn scheduler(place: Place) -> (Scheduler<u32>, Handle<u32>, ManualClock) {
    let (builder, hand) = builder(place);
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    (scheduler, timers, hand)
}

/// Schedules tasks under the keys from 0 on.
fn schedule(timers: &Handle<u32>, ledger: &Ledger, delays: &[Duration]) {
    for (number, delay) in delays.iter().enumerate() {
        let token = ledger.token(number);
        timers
            .schedule(number as u32, *delay, move |_| token.run())
            .unwrap();
    }
}

/// A thread that does one thing when it is told to. It is started before threads are refused.
struct Later {
    go: Sender<()>,
    thread: JoinHandle<()>,
}

impl Later {
    fn new(act: impl FnOnce() + Send + 'static) -> Self {
        let (go, told) = channel();
        let thread = thread::spawn(move || {
            next(&told);
            act();
        });
        Later { go, thread }
    }

    fn now(self) {
        self.go.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// Unparks a thread.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn report_of(closing: Closing<Report<u32>>, caller: Caller) -> Report<u32> {
    match caller {
        Caller::Waits => closing.wait().unwrap(),
        Caller::Awaits => {
            let waker = Waker::from(Arc::new(Unparks(thread::current())));
            let mut closing = pin!(closing);
            loop {
                let poll = closing.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(report) = poll {
                    return report;
                }
                thread::park();
            }
        }
        Caller::Asks => {
            let mut closing = Some(closing);
            let mut report = None;
            until("the report comes", || {
                match closing.take().map(Closing::try_wait) {
                    Some(Ok(came)) => report = Some(came),
                    Some(Err(still)) => closing = Some(still),
                    None => {}
                }
                report.is_some()
            });
            report.unwrap()
        }
    }
}

/// The number of threads of schedulers in this process.
fn threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end meanwhile.
    let names =
        threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("tb-")).count()
}

fn a_pool_that_gets_no_threads_asks_less_and_less_often() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .workers(1)
        .max_running(8)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let refusal = refuse_threads();
    for key in 0..3 {
        let gate = gate.clone();
        timers
            .schedule(key, Duration::ZERO, move |_| gate.pass())
            .unwrap();
    }
    gate.crowd(1);
    let refused = |times| {
        let start = hand.now();
        until("the pool asks", || {
            hand.advance(TICK);
            timers.stats().failed_spawns >= times
        });
        hand.now().since(start)
    };
    refused(1);
    // 10 ms, 20 ms, and so on. Without a pause this takes 20 ms.
    let taken = refused(8);
    assert!(taken >= Duration::from_millis(1_270), "{taken:?}");
    assert_eq!(gate.waiting(), 1);

    drop(refusal);
    until("the pool grows", || {
        hand.advance(TICK);
        gate.waiting() == 3
    });
    gate.open();
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.still_running, 0);
}

fn a_shutdown_waits_for_the_running_task_and_hands_back_the_rest() {
    for place in PLACES {
        for caller in CALLERS {
            let (scheduler, timers, _hand) = scheduler(place);
            let ledger = Ledger::new(13);
            let (gate, ended) = (Gate::default(), Arc::new(AtomicBool::new(false)));
            let (at_gate, ends) = (gate.clone(), Arc::clone(&ended));
            timers
                .schedule(100, Duration::ZERO, move |_| {
                    at_gate.pass();
                    ends.store(true, Ordering::SeqCst);
                })
                .unwrap();
            gate.crowd(1);
            schedule(&timers, &ledger, &[HOUR; 13]);
            let opens = Later::new(move || gate.open());

            let refusal = refuse_threads();
            let closing = scheduler.shutdown(Shutdown::HandBack);
            assert!(timers.schedule(200, HOUR, |_| ()).is_err());
            // The task runs, so the shutdown can't have ended.
            let closing = closing.try_wait().expect_err("a task runs");
            assert!(!starts_threads());
            opens.now();
            let report = report_of(closing, caller);
            assert!(ended.load(Ordering::SeqCst), "{place:?} {caller:?}");
            let sum = (report.handed_back.len(), report.still_running);
            assert_eq!(sum, (13, 0), "{place:?} {caller:?}");
            assert!(!report.already_closed);
            assert_eq!(timers.state(), Lifecycle::Closed);
            drop((report, refusal));
            assert_eq!(ledger.sums(), (0, 13));
            assert!(timers.stats().balances());
        }
    }
}

fn drain_and_run_now_run_what_is_pending() {
    let delays: Vec<_> = (0..20).map(|number| TICK * (number + 1)).collect();
    for place in PLACES {
        for caller in CALLERS {
            for mode in [Shutdown::Drain { limit: HOUR }, Shutdown::RunNow] {
                let (scheduler, timers, hand) = scheduler(place);
                let ledger = Ledger::new(20);
                schedule(&timers, &ledger, &delays);
                let refusal = refuse_threads();
                let closing = scheduler.shutdown(mode);
                if mode != Shutdown::RunNow {
                    assert_eq!(ledger.sums().0, 0);
                    hand.advance(TICK * 20);
                }
                let report = report_of(closing, caller);
                let sum = (report.handed_back.len(), report.still_running);
                assert_eq!(sum, (0, 0), "{place:?} {caller:?} {mode:?}");
                assert_eq!(ledger.sums(), (20, 20));
                drop(refusal);
            }
        }
    }
}

fn what_a_drain_leaves_comes_back_at_its_limit() {
    for place in PLACES {
        for caller in CALLERS {
            let (scheduler, timers, hand) = scheduler(place);
            let ledger = Ledger::new(4);
            schedule(&timers, &ledger, &[TICK, TICK, HOUR, HOUR]);
            let refusal = refuse_threads();
            let closing = scheduler.shutdown(Shutdown::Drain { limit: LIMIT });
            hand.advance(TICK);
            until("two run", || ledger.sums().0 == 2);
            let closing = closing.try_wait().expect_err("two are pending");
            hand.advance(LIMIT);
            let report = report_of(closing, caller);
            let sum = (report.handed_back.len(), report.still_running);
            assert_eq!(sum, (2, 0), "{place:?} {caller:?}");
            drop(refusal);
        }
    }
}

/// The thread that waits does not need the tickers, which are in user code.
fn who_waits_has_the_report_at_the_limit_though_no_ticker_is_free() {
    for inside in [false, true] {
        let (builder, hand) = builder(Place::Pool);
        let builder = if inside {
            builder.executor(InsideTheCall)
        } else {
            builder.inline()
        };
        let scheduler = builder.shards(1).build().unwrap();
        let timers = scheduler.handle();
        let gate = Gate::default();
        let at_gate = gate.clone();
        timers
            .schedule(0, Duration::ZERO, move |_| at_gate.pass())
            .unwrap();
        gate.crowd(1);
        timers.schedule(1, HOUR, |_| ()).unwrap();
        let closed = timers.clone();
        let passes = Later::new(move || {
            // It takes effect once the report is waited for, which nobody can see.
            until("the shutdown has ended", || {
                hand.advance(LIMIT);
                closed.state() == Lifecycle::Closed
            });
        });
        let refusal = refuse_threads();
        let closing = scheduler.shutdown(Shutdown::HandBack);
        passes.go.send(()).unwrap();
        let report = closing.wait().unwrap();
        let sum = (report.handed_back.len(), report.still_running);
        assert_eq!(sum, (1, 1), "{inside}");
        passes.thread.join().unwrap();
        gate.open();
        drop((report, refusal));
        until("its last run is settled", || timers.stats().running == 0);
        assert!(timers.stats().balances());
    }
}

fn a_shutdown_that_nobody_waits_for_goes_on_and_ends_its_threads() {
    for mode in [Shutdown::HandBack, Shutdown::Drain { limit: HOUR }] {
        let (scheduler, timers, hand) = scheduler(Place::Pool);
        let ledger = Ledger::new(3);
        schedule(&timers, &ledger, &[TICK, TICK * 2, HOUR * 2]);
        let refusal = refuse_threads();
        drop(scheduler.shutdown(mode));
        if mode == Shutdown::HandBack {
            until("it has ended", || timers.state() == Lifecycle::Closed);
            until("the report is dropped", || ledger.sums() == (0, 3));
        } else {
            assert_eq!(timers.state(), Lifecycle::Closing);
            hand.advance(TICK * 2);
            until("two run", || ledger.sums() == (2, 2));
            assert_eq!(timers.state(), Lifecycle::Closing);
            hand.advance(HOUR);
            until("it has ended", || timers.state() == Lifecycle::Closed);
            until("the report is dropped", || ledger.sums() == (2, 3));
        }
        drop((scheduler, refusal));
        until("no thread is left", || threads() == 0);
    }
}

fn a_task_that_shuts_down_does_not_wait_and_others_do() {
    for place in PLACES {
        let (scheduler, timers, _hand) = scheduler(place);
        let scheduler = Arc::new(scheduler);
        let (gate, own) = (Gate::default(), Arc::clone(&scheduler));
        let at_gate = gate.clone();
        let (send, closing) = channel();
        timers
            .schedule(0, Duration::ZERO, move |_| {
                at_gate.pass();
                let inside = own.shutdown(Shutdown::HandBack).wait().unwrap_err();
                send.send(inside.into_closing()).unwrap();
            })
            .unwrap();
        gate.crowd(1);
        let refusal = refuse_threads();
        gate.open();
        let report = next(&closing).wait().unwrap();
        assert_eq!(report.still_running, 0, "{place:?}");
        let second = scheduler.shutdown(Shutdown::RunNow).wait().unwrap();
        assert!(second.already_closed);
        drop(refusal);
    }
}

fn maps_and_timers_keep_their_mode_too() {
    let hand = ManualClock::new();
    let delivered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&delivered);
    let map = ExpiryMap::<u64, u64>::builder()
        .time_to_live(TICK * 5)
        .clock(Clock::manual(&hand))
        .build(move |_, _| {
            count.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let mut timeouts = Vec::new();
    for key in 0..10 {
        map.insert(key, key).unwrap();
        let count = Arc::clone(&delivered);
        let count = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        timeouts.push(timer.after(TICK * 5, count).unwrap());
    }
    let refusal = refuse_threads();
    let drain = Shutdown::Drain { limit: HOUR };
    let (entries, timers) = (map.shutdown(drain), timer.shutdown(drain));
    hand.advance(TICK * 5);
    assert!(entries.wait().unwrap().handed_back.is_empty());
    assert!(timers.wait().unwrap().handed_back.is_empty());
    assert_eq!(delivered.load(Ordering::SeqCst), 20);
    drop(refusal);
}

/// Tickers, workers and the thread that waits, at one time.
fn each_timer_runs_or_comes_back_once() {
    for round in 0..40_u32 {
        let (builder, hand) = builder(Place::Pool);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let ledger = Ledger::new(50);
        let delays: Vec<_> = (0..50)
            .map(|number| [Duration::ZERO, TICK, HOUR][(number % 3) as usize])
            .collect();
        let refusal = refuse_threads();
        schedule(&timers, &ledger, &delays);
        let mode = match round % 3 {
            0 => Shutdown::HandBack,
            1 => Shutdown::RunNow,
            _ => Shutdown::Drain { limit: TICK },
        };
        let closing = scheduler.shutdown(mode);
        hand.advance(TICK);
        let report = report_of(closing, CALLERS[(round / 3 % 3) as usize]);
        let back = report.handed_back.len();
        assert_eq!(report.still_running, 0);
        assert_eq!(ledger.sums(), (50 - back, 50 - back), "{mode:?}");
        assert_eq!(timers.stats().handed_back, back as u64);
        assert!(timers.stats().balances());
        drop((report, refusal));
    }
}

fn a_scheduler_that_gets_no_threads_is_not_built_and_leaves_none() {
    let refusal = refuse_threads();
    let built = Scheduler::<u32>::builder().shards(2).workers(2).build();
    assert!(matches!(built, Err(tourbillon::BuildError::Spawn(_))));
    drop(refusal);
    until("no thread is left", || threads() == 0);
    let (scheduler, _, hand) = scheduler(Place::Pool);
    hand.set(Time::ZERO);
    scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
}
