//! The end: three modes, on threads and stepped, from outside and from inside of tasks. Every timer
//! that was accepted is accounted for exactly once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::ledger::Ledger;
use kit::wait::{next, until};
use tourbillon::{
    Cancel, Clock, Executor, HandedBack, Handle, Job, Lifecycle, ManualClock, PullIn, Report,
    Reschedule, ScheduleError, Scheduler, SchedulerBuilder, Shutdown, Time,
};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn at(ticks: u32) -> Time {
    Time::ZERO + TICK * ticks
}

const MODES: [Shutdown; 3] = [
    Shutdown::HandBack,
    Shutdown::Drain { limit: HOUR },
    Shutdown::RunNow,
];

/// Where tasks run.
#[derive(Clone, Copy, Debug)]
enum Place {
    Pool,
    Inline,
    Foreign,
}

const PLACES: [Place; 3] = [Place::Pool, Place::Inline, Place::Foreign];

struct ThreadPerBatch;

impl Executor for ThreadPerBatch {
    fn execute(&self, job: Job) -> Result<(), Job> {
        thread::spawn(move || job.run());
        Ok(())
    }
}

fn builder(place: Place) -> SchedulerBuilder<u32> {
    let builder = Scheduler::<u32>::builder().shards(2).workers(2);
    match place {
        Place::Pool => builder,
        Place::Inline => builder.inline(),
        Place::Foreign => builder.executor(ThreadPerBatch),
    }
}

/// A scheduler with threads on a clock that the test moves.
fn on_manual_clock(place: Place) -> (Scheduler<u32>, Handle<u32>, ManualClock) {
    let hand = ManualClock::new();
    let scheduler = builder(place).clock(Clock::manual(&hand)).build().unwrap();
    let timers = scheduler.handle();
    (scheduler, timers, hand)
}

fn schedule_tokens(timers: &Handle<u32>, ledger: &Ledger, delays: &[Duration]) {
    for (number, delay) in delays.iter().enumerate() {
        let token = ledger.token(number);
        timers
            .schedule(number as u32, *delay, move |_| token.run())
            .unwrap();
    }
}

/// Keys that nobody else uses, enough to meet every stripe.
const PROBES: Range<u32> = 1_000_000..1_002_000;

/// Whether all stripes are closed, which they are one by one. What still gets in is cancelled
/// again.
fn is_shut(timers: &Handle<u32>) -> bool {
    PROBES.into_iter().all(|key| {
        let answer = timers.schedule(key, HOUR, |_| ());
        timers.cancel(&key);
        matches!(answer, Err(ScheduleError::Closed(_)))
    })
}

/// Without the probes: one may be handed back before it is cancelled.
fn keys_of(handed_back: &[HandedBack<u32>]) -> Vec<u32> {
    let keys = handed_back.iter().map(|back| back.key);
    let mut keys: Vec<_> = keys.filter(|key| !PROBES.contains(key)).collect();
    keys.sort_unstable();
    keys
}

fn assert_empty(report: &Report<u32>) {
    assert!(report.handed_back.is_empty(), "{report:?}");
    assert_eq!(report.still_running, 0);
}

/// Shuts down on a thread of its own, since the clock must be moved meanwhile.
fn shutdown_aside(
    scheduler: &Arc<Scheduler<u32>>,
    mode: Shutdown,
) -> thread::JoinHandle<Report<u32>> {
    let scheduler = Arc::clone(scheduler);
    thread::spawn(move || scheduler.shutdown(mode).wait().expect("not in a task"))
}

// === what comes back ===

#[test]
fn c121_with_nothing_pending_the_report_is_empty() {
    for mode in MODES {
        for place in PLACES {
            let (scheduler, timers, hand) = on_manual_clock(place);
            let ledger = Ledger::new(3);
            schedule_tokens(&timers, &ledger, &[Duration::ZERO, TICK, TICK * 2]);
            hand.advance(TICK * 2);
            until("the three ran", || {
                timers.is_empty() && timers.stats().running == 0
            });
            let report = scheduler.shutdown(mode).wait().unwrap();
            assert_empty(&report);
            assert!(!report.already_closed);
            assert_eq!(ledger.sums(), (3, 3), "{mode:?} {place:?}");
        }
        let scheduler = Scheduler::<u32>::builder().build_stepped(1).unwrap();
        schedule_tokens(&scheduler.handle(), &Ledger::new(1), &[TICK]);
        assert_eq!(scheduler.advance(TICK).len(), 1);
        assert_empty(&scheduler.shutdown(mode));
    }
}

#[test]
fn c122_what_is_pending_comes_back_as_it_was_scheduled() {
    let delays = [TICK, TICK * 2, HOUR, Duration::MAX, TICK * 3];
    for place in PLACES {
        let (scheduler, timers, hand) = on_manual_clock(place);
        let ledger = Ledger::new(delays.len());
        schedule_tokens(&timers, &ledger, &delays);
        let ids: Vec<_> = (0..5).map(|key| timers.get(&key).unwrap().id).collect();
        // Moved and pulled in: it comes back with the deadline that it has now.
        let _ = timers.reschedule(&4, TICK * 9);
        let _ = timers.pull_in(&2, TICK * 7);
        let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
        assert_eq!(report.still_running, 0);
        let mut back: Vec<_> = report
            .handed_back
            .iter()
            .map(|back| (back.key, back.deadline))
            .collect();
        back.sort_unstable();
        let expected = [
            (0, at(1)),
            (1, at(2)),
            (2, at(7)),
            (3, Time::MAX),
            (4, at(9)),
        ];
        assert_eq!(back, expected, "{place:?}");
        // Marked as ended, and counted so.
        for id in ids {
            assert_eq!(timers.by_id(id).cancel(), Cancel::NotFound);
        }
        let stats = timers.stats();
        assert_eq!(
            (stats.handed_back, stats.pending, stats.cancelled),
            (5, 0, 0)
        );
        assert!(stats.balances());
        hand.advance(HOUR);
        assert_eq!(ledger.sums(), (0, 0), "neither run nor dropped");
        drop(report);
        assert_eq!(ledger.sums(), (0, 5));
    }
}

#[test]
fn c122_stepped_and_queued_ones_too() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u32>::builder().build_stepped(seed).unwrap();
        let timers = scheduler.handle();
        let ledger = Ledger::new(4);
        schedule_tokens(&timers, &ledger, &[TICK, TICK * 2, HOUR, Duration::MAX]);
        scheduler.advance(TICK);
        let report = scheduler.shutdown(Shutdown::HandBack);
        assert_eq!(keys_of(&report.handed_back), [1, 2, 3]);
        assert_eq!(scheduler.now(), at(1), "no time passes");
        assert!(scheduler.advance(HOUR * 2).is_empty());
        assert_eq!(ledger.sums(), (1, 1));
        assert!(timers.stats().balances());
    }
    // With every worker blocked, what is due waits in queues, and comes back from there.
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .workers(1)
        .max_running(1)
        .shutdown_limit(Duration::ZERO)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    let at_gate = gate.clone();
    timers
        .schedule(1_000, Duration::ZERO, move |_| at_gate.pass())
        .unwrap();
    gate.crowd(1);
    let ledger = Ledger::new(300);
    let delays: Vec<_> = (0..300).map(|n| TICK * (n % 2)).collect();
    schedule_tokens(&timers, &ledger, &delays);
    hand.advance(TICK);
    until("all are queued", || timers.stats().queued == 300);
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!((report.handed_back.len(), report.still_running), (300, 1));
    gate.open();
    until("the last run is settled", || timers.stats().running == 0);
    assert_eq!(ledger.sums(), (0, 0), "a stale ticket runs nothing");
    assert!(timers.stats().balances());
}

#[test]
fn c123_insert_and_stop_at_once() {
    for round in 0..50 {
        for mode in [Shutdown::HandBack, Shutdown::RunNow] {
            let scheduler = Scheduler::<u32>::builder().workers(2).build().unwrap();
            let timers = scheduler.handle();
            let ledger = Ledger::new(20);
            let delays: Vec<_> = (0..20)
                .map(|number| [Duration::ZERO, TICK, HOUR, Duration::MAX][(number + round) % 4])
                .collect();
            schedule_tokens(&timers, &ledger, &delays);
            let report = scheduler.shutdown(mode).wait().unwrap();
            assert_eq!(report.still_running, 0);
            let back = report.handed_back.len();
            if mode == Shutdown::RunNow {
                assert_eq!(back, 0);
            }
            let mut keys = keys_of(&report.handed_back);
            keys.dedup();
            assert_eq!(keys.len(), back, "none twice");
            assert_eq!(ledger.sums(), (20 - back, 20 - back));
            drop(report);
            assert!((0..20).all(|number| ledger.of(number).1 == 1));
        }
    }
}

// === modes ===

/// Due at once, near, far, never.
const DELAYS: [Duration; 6] = [
    Duration::ZERO,
    TICK,
    TICK.saturating_mul(5),
    TICK.saturating_mul(10),
    HOUR,
    Duration::MAX,
];

#[test]
fn c124_modes_stepped() {
    for seed in 0..30 {
        let build = || {
            let scheduler = Scheduler::<u32>::builder()
                .shards(2)
                .build_stepped(seed)
                .unwrap();
            let ledger = Ledger::new(6);
            schedule_tokens(&scheduler.handle(), &ledger, &DELAYS);
            (scheduler, ledger)
        };
        let runs = |ledger: &Ledger| (0..6).map(|n| ledger.of(n).0).collect::<Vec<_>>();

        let (scheduler, ledger) = build();
        let report = scheduler.shutdown(Shutdown::HandBack);
        // What was due when it was called has been settled; nothing else starts.
        assert_eq!(keys_of(&report.handed_back), [1, 2, 3, 4, 5]);
        assert_eq!(runs(&ledger), [1, 0, 0, 0, 0, 0]);
        assert_eq!(scheduler.now(), Time::ZERO);

        // Within the limit each at its own deadline, the rest comes back.
        let (scheduler, ledger) = build();
        let report = scheduler.shutdown(Shutdown::Drain { limit: TICK * 5 });
        assert_eq!(keys_of(&report.handed_back), [3, 4, 5]);
        assert_eq!(runs(&ledger), [1, 1, 1, 0, 0, 0]);
        assert_eq!(scheduler.now(), at(5), "it took its limit");
        let fired: Vec<_> = scheduler.settle().iter().map(|f| (f.key, f.at)).collect();
        assert_eq!(fired, [(0, at(0)), (1, at(1)), (2, at(5))]);
        assert!(scheduler.handle().stats().balances());

        // Without anything left it ends before the limit.
        let (scheduler, ledger) = build();
        scheduler.handle().cancel(&5);
        let report = scheduler.shutdown(Shutdown::Drain { limit: HOUR * 9 });
        assert_empty(&report);
        assert_eq!(runs(&ledger), [1, 1, 1, 1, 1, 0]);
        assert_eq!(scheduler.now(), Time::ZERO + HOUR);

        // At once, whatever the deadline: the far and the never ones, too.
        let (scheduler, ledger) = build();
        let report = scheduler.shutdown(Shutdown::RunNow);
        assert_empty(&report);
        assert_eq!(runs(&ledger), [1; 6]);
        assert_eq!(scheduler.now(), Time::ZERO);
        let stats = scheduler.handle().stats();
        assert_eq!((stats.ran, stats.pending), (6, 0));
        assert!(stats.balances());
    }
}

#[test]
fn c124_a_drain_without_a_limit_ends_with_the_last_timer() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(1).unwrap();
    let ledger = Ledger::new(2);
    schedule_tokens(&scheduler.handle(), &ledger, &[HOUR, HOUR * 100_000]);
    let limit = Duration::MAX;
    assert_empty(&scheduler.shutdown(Shutdown::Drain { limit }));
    assert_eq!(ledger.sums(), (2, 2));
}

#[test]
fn c124_hand_back_and_run_now_with_threads() {
    for place in PLACES {
        for mode in [Shutdown::HandBack, Shutdown::RunNow] {
            let (scheduler, timers, _hand) = on_manual_clock(place);
            let ledger = Ledger::new(5);
            schedule_tokens(&timers, &ledger, &DELAYS[1..]);
            let report = scheduler.shutdown(mode).wait().unwrap();
            assert_eq!(report.still_running, 0);
            let (back, ran) = if mode == Shutdown::RunNow {
                (0, 5)
            } else {
                (5, 0)
            };
            assert_eq!(report.handed_back.len(), back, "{place:?} {mode:?}");
            assert_eq!(ledger.sums(), (ran, ran));
            assert_eq!(timers.now(), Time::ZERO, "the clock was not needed");
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn c124_a_drain_with_threads_runs_each_at_its_deadline_and_hands_back_the_rest() {
    for place in PLACES {
        let (scheduler, timers, hand) = on_manual_clock(place);
        let scheduler = Arc::new(scheduler);
        let early = Arc::new(AtomicUsize::new(0));
        let ran = Arc::new(AtomicUsize::new(0));
        for key in 0..60 {
            let (early, ran) = (Arc::clone(&early), Arc::clone(&ran));
            timers
                .schedule(key, TICK * (1 + key), move |firing| {
                    let due = firing.handle().now() >= firing.deadline();
                    early.fetch_add(usize::from(!due), Ordering::SeqCst);
                    ran.fetch_add(1, Ordering::SeqCst);
                })
                .unwrap();
        }
        let limit = TICK * 40;
        let ending = shutdown_aside(&scheduler, Shutdown::Drain { limit });
        until("it is closing", || timers.state() == Lifecycle::Closing);
        until("the door is shut", || is_shut(&timers));
        for tick in 1..=39 {
            hand.advance(TICK);
            until("the tick's task ran", || ran.load(Ordering::SeqCst) == tick);
            assert_eq!(timers.state(), Lifecycle::Closing);
            // What is pending can still be moved and cancelled.
            match tick {
                10 => assert!(timers.cancel(&20).is_cancelled()),
                11 => assert!(matches!(
                    timers.reschedule(&59, TICK * 10),
                    Reschedule::Moved { .. }
                )),
                20 => break,
                _ => {}
            }
        }
        // Number 20 was cancelled, number 59 moved to tick 21.
        hand.advance(TICK);
        until("the moved one ran", || ran.load(Ordering::SeqCst) == 21);
        for tick in 22..=39 {
            hand.advance(TICK);
            until("the tick's task ran", || ran.load(Ordering::SeqCst) == tick);
        }
        hand.advance(TICK);
        let report = ending.join().unwrap();
        // The one that is due with the limit may run or come back, but not both.
        let keys = keys_of(&report.handed_back);
        let ran = ran.load(Ordering::SeqCst);
        assert_eq!(ran + keys.len(), 59, "{place:?}");
        assert!(keys == (39..59).collect::<Vec<_>>() || keys == (40..59).collect::<Vec<_>>());
        assert_eq!(early.load(Ordering::SeqCst), 0);
        assert_eq!(timers.state(), Lifecycle::Closed);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c124_what_is_kept_for_after_a_run_follows_the_mode() {
    for mode in [
        Shutdown::HandBack,
        Shutdown::Drain { limit: TICK * 9 },
        Shutdown::RunNow,
    ] {
        let (scheduler, timers, hand) = on_manual_clock(Place::Pool);
        let scheduler = Arc::new(scheduler);
        let gate = Gate::default();
        let at_gate = gate.clone();
        timers
            .schedule(1, Duration::ZERO, move |_| at_gate.pass())
            .unwrap();
        gate.crowd(1);
        let ledger = Ledger::new(2);
        let (near, far) = (ledger.token(0), ledger.token(1));
        let kept = timers.schedule(1, HOUR, move |_| far.run()).unwrap();
        assert!(kept.after_run);
        timers.schedule(2, TICK * 5, move |_| near.run()).unwrap();
        let ending = shutdown_aside(&scheduler, mode);
        until("the door is shut", || is_shut(&timers));
        match mode {
            Shutdown::HandBack => {}
            Shutdown::RunNow => until("the other one ran", || ledger.of(0).0 == 1),
            _ => {
                hand.advance(TICK * 5);
                until("the other one ran", || ledger.of(0).0 == 1);
                hand.advance(TICK * 4);
                // The kept one is taken out although its run goes on.
                until("the limit took it out", || timers.is_empty());
            }
        }
        gate.open();
        let report = ending.join().unwrap();
        assert_eq!(report.still_running, 0);
        let back = keys_of(&report.handed_back);
        match mode {
            Shutdown::HandBack => assert_eq!(back, [1, 2]),
            Shutdown::RunNow => assert!(back.is_empty()),
            _ => assert_eq!(back, [1]),
        }
        assert_eq!(ledger.of(1).0, u32::from(mode == Shutdown::RunNow));
        drop(report);
        assert!((0..2).all(|number| ledger.of(number).1 == 1), "{mode:?}");
        assert!(timers.stats().balances());
    }
}

// === afterwards ===

#[test]
fn c125_after_the_end_every_call_answers_and_nothing_is_counted() {
    for place in PLACES {
        for drops in [false, true] {
            let (scheduler, timers, hand) = on_manual_clock(place);
            let id = timers.schedule(1, HOUR, |_| ()).unwrap().id;
            let report = if drops {
                drop(scheduler);
                None
            } else {
                Some((
                    scheduler.shutdown(Shutdown::HandBack).wait().unwrap(),
                    scheduler,
                ))
            };
            let before = timers.stats();
            let captured = Arc::new(());
            for delay in [Duration::ZERO, TICK, Duration::MAX] {
                let inner = Arc::clone(&captured);
                let task = move |_: &tourbillon::Firing<'_, u32>| drop(inner);
                let error = timers.schedule(2, delay, task).unwrap_err();
                assert!(matches!(error, ScheduleError::Closed(_)));
                assert!(!error.is_transient());
                assert_eq!(Arc::strong_count(&captured), 2, "the task is in the error");
                let error = timers.schedule(2, at(1), error.into_task()).unwrap_err();
                let error = timers
                    .schedule_if_absent(2, delay, error.into_task())
                    .unwrap_err();
                assert!(matches!(error, ScheduleError::Closed(_)));
            }
            assert_eq!(timers.reschedule(&1, TICK), Reschedule::NotFound);
            assert_eq!(timers.pull_in(&1, TICK), PullIn::NotFound);
            assert_eq!(timers.cancel(&1), Cancel::NotFound);
            assert_eq!(timers.cancel_and_wait(&1).wait(), Ok(Cancel::NotFound));
            assert_eq!(timers.by_id(id).cancel(), Cancel::NotFound);
            assert_eq!(timers.cancel_all(), 0);
            assert_eq!(timers.cancel_many(&[1, 2]), [Cancel::NotFound; 2]);
            assert_eq!(
                timers.reschedule_many(&[1, 2], TICK),
                [Reschedule::NotFound; 2]
            );
            assert_eq!((timers.get(&1), timers.contains(&1)), (None, false));
            assert_eq!((timers.len(), timers.pending().count()), (0, 0));
            assert_eq!(timers.state(), Lifecycle::Closed);
            assert_eq!(Arc::strong_count(&captured), 1);
            hand.advance(HOUR * 2);
            let after = timers.stats();
            assert_eq!(
                (after.scheduled, after.ran, after.pending),
                (before.scheduled, 0, 0)
            );
            assert!(after.balances());
            drop(report);
        }
    }
}

/// How a scheduler ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Shutdown(Shutdown),
    Drop,
}

#[test]
fn c126_every_timer_accepted_while_it_closes_is_accounted_for_once() {
    const THREADS: usize = 3;
    const EACH: usize = 30_000;
    for end in [
        End::Shutdown(Shutdown::HandBack),
        End::Shutdown(Shutdown::Drain { limit: TICK * 5 }),
        End::Shutdown(Shutdown::RunNow),
        End::Drop,
    ] {
        let scheduler = Scheduler::<u32>::builder().workers(2).build().unwrap();
        let timers = scheduler.handle();
        let ledger = Ledger::new(THREADS * EACH);
        let accepted = AtomicUsize::new(0);
        let refused = AtomicUsize::new(0);
        let back = thread::scope(|scope| {
            for part in 0..THREADS {
                let (timers, ledger) = (timers.clone(), &ledger);
                let (accepted, refused) = (&accepted, &refused);
                scope.spawn(move || {
                    for number in (part..THREADS * EACH).step_by(THREADS) {
                        let token = ledger.token(number);
                        let delay = DELAYS[number / THREADS % DELAYS.len()];
                        let task = move |_: &tourbillon::Firing<'_, u32>| token.run();
                        match timers.schedule(number as u32, delay, task) {
                            Ok(_) => accepted.fetch_add(1, Ordering::SeqCst),
                            Err(ScheduleError::Closed(_)) => refused.fetch_add(1, Ordering::SeqCst),
                            Err(other) => panic!("{other:?}"),
                        };
                    }
                });
            }
            until("a part of them is in", || {
                accepted.load(Ordering::SeqCst) > 20_000
            });
            match end {
                End::Shutdown(mode) => {
                    let report = scheduler.shutdown(mode).wait().unwrap();
                    assert_eq!(report.still_running, 0);
                    report.handed_back
                }
                End::Drop => {
                    drop(scheduler);
                    Vec::new()
                }
            }
        });
        until("the last task has ended", || timers.stats().running == 0);
        let (accepted, refused) = (accepted.into_inner(), refused.into_inner());
        assert_eq!(accepted + refused, THREADS * EACH);
        let stats = timers.stats();
        assert_eq!(stats.scheduled, accepted as u64, "{end:?}");
        assert_eq!(stats.pending, 0);
        assert!(stats.balances());
        let (ran, dropped) = ledger.sums();
        assert_eq!(stats.ran, ran as u64);
        assert_eq!(stats.handed_back, back.len() as u64);
        assert_eq!(stats.cancelled as usize, accepted - ran - back.len());
        assert_eq!(dropped + back.len(), THREADS * EACH);
        match end {
            End::Shutdown(mode) => {
                assert_eq!(stats.cancelled, 0);
                assert!(mode != Shutdown::RunNow || ran == accepted);
            }
            End::Drop => assert!(back.is_empty()),
        }
        // None that ran is handed back, too.
        for task in &back {
            assert_eq!(ledger.of(task.key as usize), (0, 0));
        }
        drop(back);
        for number in 0..THREADS * EACH {
            let (ran, dropped) = ledger.of(number);
            assert!(
                ran <= 1 && dropped == 1,
                "{end:?}: {number} ended twice or never"
            );
        }
        // c125: from here on only errors.
        assert!(timers.schedule(0, HOUR, |_| ()).is_err());
    }
}

#[test]
fn c127_the_second_stop_is_empty_and_says_so() {
    for first in MODES {
        for second in MODES {
            let (scheduler, timers, _hand) = on_manual_clock(Place::Pool);
            timers.schedule(1, Duration::ZERO, |_| ()).unwrap();
            let report = scheduler.shutdown(first).wait().unwrap();
            assert!(!report.already_closed);
            // c134
            let report = scheduler.shutdown(second).wait().unwrap();
            assert_empty(&report);
            assert!(report.already_closed);

            let scheduler = Scheduler::<u32>::builder().build_stepped(1).unwrap();
            let _ = scheduler.handle().schedule(1, HOUR, |_| ());
            assert!(!scheduler.shutdown(first).already_closed);
            let report = scheduler.shutdown(second);
            assert_empty(&report);
            assert!(report.already_closed);
        }
    }
}

#[test]
fn c127_of_many_threads_that_stop_it_one_gets_everything() {
    for _ in 0..30 {
        let (scheduler, timers, _hand) = on_manual_clock(Place::Pool);
        let ledger = Ledger::new(50);
        schedule_tokens(&timers, &ledger, &[HOUR; 50]);
        let mut reports: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| scheduler.shutdown(Shutdown::HandBack).wait().unwrap()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        reports.retain(|report| !report.already_closed || !report.handed_back.is_empty());
        assert_eq!(reports.len(), 1);
        assert!(!reports[0].already_closed);
        assert_eq!(
            keys_of(&reports[0].handed_back),
            (0..50).collect::<Vec<_>>()
        );
        assert_eq!(timers.stats().handed_back, 50);
    }
}

// === from inside ===

#[test]
fn c128_stop_from_inside_a_task_yields_the_report_later() {
    for place in PLACES {
        for mode in [
            Shutdown::HandBack,
            Shutdown::RunNow,
            Shutdown::Drain { limit: TICK * 5 },
        ] {
            let (scheduler, timers, hand) = on_manual_clock(place);
            let scheduler = Arc::new(scheduler);
            let ledger = Ledger::new(20);
            schedule_tokens(&timers, &ledger, &[HOUR; 20]);
            let (tell, told) = channel();
            let itself = Arc::clone(&scheduler);
            timers
                .schedule(100, Duration::ZERO, move |firing| {
                    let inside = itself.shutdown(mode).wait().unwrap_err();
                    assert!(inside.to_string().contains("on another thread"));
                    // A second call from inside is a no-op like any other second call.
                    assert!(itself.shutdown(mode).wait().unwrap().already_closed);
                    assert_ne!(firing.handle().state(), Lifecycle::Running);
                    tell.send(inside.into_closing()).unwrap();
                })
                .unwrap();
            let mut closing = Some(next(&told));
            let mut report = None;
            until("the report is there", || {
                if matches!(mode, Shutdown::Drain { .. }) {
                    hand.advance(TICK);
                }
                match closing.take().unwrap().try_wait() {
                    Ok(there) => report = Some(there),
                    Err(again) => closing = Some(again),
                }
                report.is_some()
            });
            let report = report.unwrap();
            assert_eq!(report.still_running, 0, "{place:?} {mode:?}");
            assert!(!report.already_closed);
            let back = report.handed_back.len();
            assert_eq!(back, if mode == Shutdown::RunNow { 0 } else { 20 });
            assert_eq!(ledger.sums(), (20 - back, 20 - back));
            assert_eq!(timers.state(), Lifecycle::Closed);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn c128_a_task_that_waits_for_its_own_report_waits_until_the_limit() {
    for place in PLACES {
        let hand = ManualClock::new();
        let scheduler = builder(place)
            .clock(Clock::manual(&hand))
            .shutdown_limit(TICK * 10)
            .build()
            .unwrap();
        let scheduler = Arc::new(scheduler);
        let timers = scheduler.handle();
        timers.schedule(2, HOUR, |_| ()).unwrap();
        let (tell, told) = channel();
        let itself = Arc::clone(&scheduler);
        timers
            .schedule(1, Duration::ZERO, move |_| {
                let mut closing = itself.shutdown(Shutdown::HandBack);
                loop {
                    match closing.try_wait() {
                        Ok(report) => break tell.send(report).unwrap(),
                        Err(again) => closing = again,
                    }
                    thread::yield_now();
                }
            })
            .unwrap();
        until("what was pending is taken out", || {
            timers.stats().handed_back == 1
        });
        let mut report = None;
        until("the limit ends it", || {
            hand.advance(TICK);
            report = told.try_recv().ok();
            report.is_some()
        });
        let report = report.unwrap();
        assert_eq!((report.handed_back.len(), report.still_running), (1, 1));
        until("the task ended", || timers.stats().running == 0);
        assert!(timers.stats().balances());
    }
}

#[test]
fn c128_nobody_has_to_take_the_report() {
    let (scheduler, timers, _hand) = on_manual_clock(Place::Pool);
    let scheduler = Arc::new(scheduler);
    let ledger = Ledger::new(10);
    schedule_tokens(&timers, &ledger, &[HOUR; 10]);
    let itself = Arc::clone(&scheduler);
    timers
        .schedule(100, Duration::ZERO, move |_| {
            drop(itself.shutdown(Shutdown::HandBack));
        })
        .unwrap();
    until("what came back is dropped", || ledger.sums() == (0, 10));
    until("it is closed", || timers.state() == Lifecycle::Closed);
}

#[test]
fn c129_dropped_inside_its_own_task() {
    for place in PLACES {
        let (scheduler, timers, hand) = on_manual_clock(place);
        let ledger = Ledger::new(20);
        schedule_tokens(&timers, &ledger, &[HOUR; 20]);
        let (tell, told) = channel();
        let owned = Arc::new(Mutex::new(Some(scheduler)));
        timers
            .schedule(100, TICK, move |firing| {
                let scheduler = owned.lock().unwrap().take().unwrap();
                drop(scheduler);
                // Nothing hangs, and what the run is told is still good.
                assert_eq!(*firing.key(), 100);
                let handle = firing.handle();
                assert_eq!(handle.state(), Lifecycle::Closed);
                assert!(handle.schedule(100, HOUR, |_| ()).is_err());
                tell.send(handle.len()).unwrap();
            })
            .unwrap();
        hand.advance(TICK);
        assert_eq!(next(&told), 0);
        assert_eq!(ledger.sums(), (0, 20), "cancelled with it");
        until("the run is settled", || timers.stats().running == 0);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.cancelled, stats.panicked), (1, 20, 0));
        assert!(stats.balances());
        hand.advance(HOUR);
        assert_eq!(ledger.sums().0, 0);
    }
}

#[test]
fn c130_a_handle_does_not_keep_a_scheduler_alive() {
    for place in PLACES {
        let (scheduler, timers, hand) = on_manual_clock(place);
        let ledger = Ledger::new(5);
        schedule_tokens(&timers, &ledger, &[HOUR; 5]);
        let guard = timers.cancel_on_drop(timers.get(&0).unwrap().id);
        drop(scheduler);
        assert_eq!(ledger.sums(), (0, 5), "dropped by the time drop returns");
        assert!(matches!(
            timers.schedule(9, TICK, |_| ()),
            Err(ScheduleError::Closed(_))
        ));
        drop(guard);
        assert_eq!(timers.stats().cancelled, 5);
        hand.advance(HOUR);
        assert_eq!(ledger.sums(), (0, 5));
    }
    let scheduler = Scheduler::<u32>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(1);
    schedule_tokens(&timers, &ledger, &[HOUR]);
    drop(scheduler);
    assert_eq!(ledger.of(0), (0, 1));
    assert!(timers.schedule(9, TICK, |_| ()).is_err());
    assert_eq!(timers.state(), Lifecycle::Closed);
}

// === running tasks ===

#[test]
fn c131_drop_and_a_limit_of_zero_do_not_wait_for_a_running_task() {
    for place in PLACES {
        for drops in [true, false] {
            let scheduler = builder(place).shutdown_limit(Duration::ZERO).build();
            let scheduler = scheduler.unwrap();
            let timers = scheduler.handle();
            let gate = Gate::default();
            let at_gate = gate.clone();
            timers
                .schedule(1, Duration::ZERO, move |_| at_gate.pass())
                .unwrap();
            gate.crowd(1);
            // Both return while the gate is shut.
            if drops {
                drop(scheduler);
            } else {
                for mode in [Shutdown::RunNow, Shutdown::HandBack] {
                    let report = scheduler.shutdown(mode).wait().unwrap();
                    assert!(report.handed_back.is_empty());
                    let still = usize::from(!report.already_closed);
                    assert_eq!(report.still_running, still, "{place:?}");
                }
            }
            assert_eq!(timers.state(), Lifecycle::Closed);
            assert_eq!(timers.stats().running, 1);
            gate.open();
            until("the task ends undisturbed", || timers.stats().running == 0);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn c131_shutdown_waits_for_a_running_task_within_its_limit() {
    for place in PLACES {
        for mode in MODES {
            let (scheduler, timers, _hand) = on_manual_clock(place);
            let scheduler = Arc::new(scheduler);
            let gate = Gate::default();
            let at_gate = gate.clone();
            let ended = Arc::new(AtomicBool::new(false));
            let end = Arc::clone(&ended);
            timers
                .schedule(1, Duration::ZERO, move |_| {
                    at_gate.pass();
                    end.store(true, Ordering::SeqCst);
                })
                .unwrap();
            gate.crowd(1);
            let ending = {
                let scheduler = Arc::clone(&scheduler);
                thread::spawn(move || {
                    let report = scheduler.shutdown(mode).wait().unwrap();
                    (report, ended.load(Ordering::SeqCst))
                })
            };
            until("it is closing", || timers.state() == Lifecycle::Closing);
            assert_eq!(timers.stats().running, 1);
            // The clock stands still: only the task's end lets it go on.
            gate.open();
            let (report, ended) = ending.join().unwrap();
            assert!(
                ended,
                "{place:?} {mode:?}: it returned before the task had ended"
            );
            assert_empty(&report);
        }
    }
}

#[test]
fn c131_at_the_limit_it_returns_and_counts_what_still_runs() {
    for place in PLACES {
        for mode in [Shutdown::HandBack, Shutdown::RunNow] {
            let hand = ManualClock::new();
            let scheduler = builder(place)
                .shards(1)
                .clock(Clock::manual(&hand))
                .shutdown_limit(TICK * 10)
                .build()
                .unwrap();
            let scheduler = Arc::new(scheduler);
            let timers = scheduler.handle();
            let gate = Gate::default();
            // Inline, the one shard is in its first task.
            let running = if matches!(place, Place::Inline) { 1 } else { 2 };
            for key in 0..running {
                let at_gate = gate.clone();
                timers
                    .schedule(key, Duration::ZERO, move |_| at_gate.pass())
                    .unwrap();
            }
            gate.crowd(running as usize);
            let ledger = Ledger::new(1);
            let token = ledger.token(0);
            timers.schedule(9, HOUR, move |_| token.run()).unwrap();
            let ending = shutdown_aside(&scheduler, mode);
            until("it is closing", || timers.state() == Lifecycle::Closing);
            until("the limit has passed", || {
                hand.advance(TICK);
                ending.is_finished()
            });
            let report = ending.join().unwrap();
            assert_eq!(report.still_running, running as usize, "{place:?} {mode:?}");
            assert_eq!(timers.stats().running, u64::from(running));
            assert!(timers.now() >= at(10), "not before its limit");
            let back = report.handed_back.len();
            assert_eq!(back + ledger.of(0).0 as usize, 1);
            assert_eq!(timers.state(), Lifecycle::Closed);
            gate.open();
            until("the tasks end", || timers.stats().running == 0);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn c132_the_state_goes_one_way() {
    for place in PLACES {
        for end in [End::Shutdown(Shutdown::HandBack), End::Drop] {
            let (scheduler, timers, _hand) = on_manual_clock(place);
            assert_eq!(timers.state(), Lifecycle::Running);
            let gate = Gate::default();
            let at_gate = gate.clone();
            timers
                .schedule(1, Duration::ZERO, move |_| at_gate.pass())
                .unwrap();
            gate.crowd(1);
            let watchers: Vec<_> = (0..2)
                .map(|_| {
                    let timers = timers.clone();
                    thread::spawn(move || {
                        let mut last = Lifecycle::Running;
                        while last != Lifecycle::Closed {
                            let now = timers.state();
                            assert!(now >= last, "from {last:?} back to {now:?}");
                            last = now;
                            thread::yield_now();
                        }
                    })
                })
                .collect();
            match end {
                End::Drop => drop(scheduler),
                End::Shutdown(mode) => {
                    let ending = shutdown_aside(&Arc::new(scheduler), mode);
                    until("it is closing", || timers.state() == Lifecycle::Closing);
                    gate.open();
                    assert_empty(&ending.join().unwrap());
                }
            }
            assert_eq!(timers.state(), Lifecycle::Closed);
            gate.open();
            for watcher in watchers {
                watcher.join().unwrap();
            }
        }
    }
    assert!(Lifecycle::Running < Lifecycle::Closing && Lifecycle::Closing < Lifecycle::Closed);
}

// === what came back can be used ===

#[test]
fn c133_what_was_handed_back_runs_on_another_scheduler_and_keys_are_free_again() {
    for seed in 0..10 {
        let first = Scheduler::<u32>::builder().build_stepped(seed).unwrap();
        let timers = first.handle();
        let ledger = Ledger::new(10);
        let delays: Vec<_> = (1..=10).map(|n| TICK * n).collect();
        schedule_tokens(&timers, &ledger, &delays);
        first.advance(TICK * 4);
        // All taken out of a scheduler that goes on: the same keys are armed anew and fire.
        assert_eq!(timers.cancel_all(), 6);
        for key in 4..10 {
            let token = ledger.token(key);
            let delay = TICK * key as u32;
            timers
                .schedule(key as u32, delay, move |_| token.run())
                .unwrap();
        }
        assert_eq!(first.advance(TICK * 5).len(), 2);
        // c134: what is taken out once is not there a second time.
        let report = first.shutdown(Shutdown::HandBack);
        assert_eq!(report.handed_back.len(), 4);
        assert_eq!(timers.cancel_all(), 0);
        assert_empty(&first.shutdown(Shutdown::HandBack));
        assert_eq!(timers.cancel_all(), 0);

        let second = Scheduler::<u32>::builder().build_stepped(seed).unwrap();
        let timers = second.handle();
        for back in report.handed_back {
            let task = back.task;
            timers
                .schedule(back.key, back.deadline, move |firing| task.run(firing))
                .unwrap();
        }
        let fired = second.advance(TICK * 20);
        let seen: Vec<_> = fired.iter().map(|f| (f.key, f.at)).collect();
        assert_eq!(seen, [(6, at(10)), (7, at(11)), (8, at(12)), (9, at(13))]);
        assert!((0..10).all(|number| ledger.of(number).0 == 1));
    }
}

#[test]
fn c135_after_the_end_no_payload_is_left() {
    for (end, count) in [
        (End::Shutdown(Shutdown::HandBack), 1_000_000),
        (End::Drop, 100_000),
    ] {
        let scheduler = Scheduler::<u32>::builder().workers(1).build().unwrap();
        let timers = scheduler.handle();
        let payload = Arc::new([0_u8; 64]);
        for key in 0..count {
            let payload = Arc::clone(&payload);
            timers
                .schedule(key, HOUR + TICK * key, move |_| drop(payload))
                .unwrap();
        }
        assert_eq!(Arc::strong_count(&payload), 1 + count as usize);
        match end {
            End::Shutdown(mode) => {
                let report = scheduler.shutdown(mode).wait().unwrap();
                assert_eq!(report.handed_back.len(), count as usize);
                assert_eq!(Arc::strong_count(&payload), 1 + count as usize);
                drop(report);
            }
            End::Drop => drop(scheduler),
        }
        // The handle is still there, and keeps none of them.
        assert_eq!(Arc::strong_count(&payload), 1);
        assert!(timers.is_empty());
    }
}

// === user code outside of a run ===

/// A key whose drop waits at a gate. Its clones have none.
#[derive(Default)]
struct HeldKey {
    number: u32,
    at_drop: AtDrop,
    clone_panics: bool,
}

#[derive(Default)]
struct AtDrop {
    gate: Option<Gate>,
    passed: Arc<AtomicBool>,
}

impl HeldKey {
    fn at(gate: &Gate) -> Self {
        let mut key = HeldKey::default();
        key.at_drop.gate = Some(gate.clone());
        key
    }
}

impl Clone for HeldKey {
    fn clone(&self) -> Self {
        assert!(!self.clone_panics, "on purpose");
        HeldKey {
            number: self.number,
            ..HeldKey::default()
        }
    }
}

impl PartialEq for HeldKey {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for HeldKey {}

impl std::hash::Hash for HeldKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.number.hash(state);
    }
}

impl Drop for AtDrop {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            gate.pass();
            self.passed.store(true, Ordering::SeqCst);
        }
    }
}

fn with_held_keys(place: Place) -> (SchedulerBuilder<HeldKey>, ManualClock) {
    let hand = ManualClock::new();
    let builder = Scheduler::<HeldKey>::builder().shards(2).workers(2);
    let builder = builder.clock(Clock::manual(&hand)).shutdown_limit(TICK);
    let builder = match place {
        Place::Pool => builder,
        Place::Inline => builder.inline(),
        Place::Foreign => builder.executor(ThreadPerBatch),
    };
    (builder, hand)
}

/// Shuts down while somebody waits at the gate, lets the limit pass, and opens the gate afterwards.
fn shut_down_before_the_gate(
    builder: SchedulerBuilder<HeldKey>,
    hand: &ManualClock,
    gate: &Gate,
    key: HeldKey,
) -> Report<HeldKey> {
    let scheduler = Arc::new(builder.build().unwrap());
    let timers = scheduler.handle();
    timers.schedule(key, Duration::ZERO, |_| ()).unwrap();
    gate.crowd(1);
    let ending = {
        let scheduler = Arc::clone(&scheduler);
        thread::spawn(move || scheduler.shutdown(Shutdown::HandBack).wait().unwrap())
    };
    until("the limit holds", || {
        hand.advance(TICK);
        ending.is_finished()
    });
    assert_eq!(gate.waiting(), 1);
    assert_eq!(timers.state(), Lifecycle::Closed);
    gate.open();
    until("nobody waits at the gate", || gate.waiting() == 0);
    ending.join().unwrap()
}

#[test]
fn a_key_whose_drop_outlasts_the_limit_is_reported_as_still_running() {
    for place in PLACES {
        let (builder, hand) = with_held_keys(place);
        let gate = Gate::default();
        let report = shut_down_before_the_gate(builder, &hand, &gate, HeldKey::at(&gate));
        assert_eq!(report.still_running, 1, "{place:?}");
        assert!(report.handed_back.is_empty());
    }
}

#[test]
fn a_panic_handler_that_outlasts_the_limit_is_reported_as_still_running() {
    for place in PLACES {
        let (builder, hand) = with_held_keys(place);
        let gate = Gate::default();
        let at_gate = gate.clone();
        let builder = builder.on_panic(move |_| at_gate.pass());
        let key = HeldKey {
            clone_panics: true,
            ..HeldKey::default()
        };
        let report = shut_down_before_the_gate(builder, &hand, &gate, key);
        assert_eq!(report.still_running, 1, "{place:?}");
    }
}

#[test]
fn a_foreign_executor_that_blocks_does_not_hold_a_shutdown_up() {
    struct Blocks(Gate);
    impl Executor for Blocks {
        fn execute(&self, job: Job) -> Result<(), Job> {
            self.0.pass();
            Err(job)
        }
    }
    let (builder, hand) = with_held_keys(Place::Pool);
    let gate = Gate::default();
    let builder = builder.executor(Blocks(gate.clone()));
    let report = shut_down_before_the_gate(builder, &hand, &gate, HeldKey::default());
    assert_eq!(report.still_running, 1);
    assert_eq!(report.handed_back.len(), 1, "it was not claimed");
}

#[test]
fn a_shutdown_waits_for_the_drop_of_a_key_within_its_limit() {
    for place in PLACES {
        let (builder, _hand) = with_held_keys(place);
        let scheduler = Arc::new(builder.build().unwrap());
        let timers = scheduler.handle();
        let gate = Gate::default();
        let key = HeldKey::at(&gate);
        let passed = Arc::clone(&key.at_drop.passed);
        timers.schedule(key, Duration::ZERO, |_| ()).unwrap();
        gate.crowd(1);
        let ending = {
            let scheduler = Arc::clone(&scheduler);
            thread::spawn(move || {
                let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
                (report.still_running, passed.load(Ordering::SeqCst))
            })
        };
        until("it is closing", || timers.state() == Lifecycle::Closing);
        gate.open();
        assert_eq!(ending.join().unwrap(), (0, true), "{place:?}");
    }
}
