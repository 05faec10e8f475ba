//! `OnTokio::repeat`: repeating timers whose rounds are futures.
//!
//! Most tests step the scheduler, and let a current-thread runtime run between two steps. So
//! everything happens in a fixed order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kit::quiet::{WANTED, hush};
use kit::runtimes::{eventually, on_all};
use kit::wakes::{Wakes, poll};
use tokio::runtime::{self, Runtime};
use tokio::sync::Semaphore;
use tourbillon::test_util::Stepped;
use tourbillon::{
    AfterPanic, AsyncRound, Cancel, Clock, Handle, ManualClock, Missed, Next, OnTokio, Period,
    PullIn, Reschedule, ScheduleError, Scheduler, SchedulerBuilder, Shutdown, Time, TimerState,
    WaitError,
};

const SECOND: Duration = Duration::from_secs(1);

/// A scheduler that the test steps, and a runtime that it drives.
struct Rig {
    stepped: Stepped<u32>,
    runtime: Runtime,
    timers: OnTokio<u32>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Scheduler::builder())
    }

    fn with(builder: SchedulerBuilder<u32>) -> Self {
        let stepped = builder.build_stepped(1).unwrap();
        let runtime = runtime::Builder::new_current_thread().build().unwrap();
        let timers = stepped.handle().on_tokio(runtime.handle().clone());
        Rig {
            stepped,
            runtime,
            timers,
        }
    }

    /// Lets the runtime run until it has nothing to do.
    fn settle(&self) {
        self.runtime.block_on(async {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Advances by one second, in steps between which the runtime runs.
    fn second(&self) {
        self.stepped.advance(SECOND);
        self.settle();
    }

    fn seconds(&self, number: u32) {
        for _ in 0..number {
            self.second();
        }
    }

    fn state(&self, key: u32) -> Option<TimerState> {
        self.timers.handle().get(&key).map(|timer| timer.state)
    }
}

/// Each round logs its number, its deadline and what it has missed, and waits for a permit.
#[derive(Clone)]
struct Rounds {
    log: Arc<Mutex<Vec<(u64, u64, u64)>>>,
    permits: Arc<Semaphore>,
    running: Arc<AtomicUsize>,
}

impl Rounds {
    fn new(permits: usize) -> Self {
        Rounds {
            log: Arc::default(),
            permits: Arc::new(Semaphore::new(permits)),
            running: Arc::default(),
        }
    }

    async fn round(self, round: AsyncRound<u32>) {
        assert_eq!(
            self.running.fetch_add(1, Ordering::SeqCst),
            0,
            "they overlap"
        );
        let due = round.deadline().since(Time::ZERO).as_secs();
        (self.log.lock().unwrap()).push((round.number(), due, round.missed()));
        self.permits.acquire().await.unwrap().forget();
        assert_eq!(self.running.fetch_sub(1, Ordering::SeqCst), 1);
    }

    fn task(&self) -> impl FnMut(AsyncRound<u32>) -> BoxedRound + Send + use<> {
        let rounds = self.clone();
        move |round| Box::pin(rounds.clone().round(round))
    }

    fn log(&self) -> Vec<(u64, u64, u64)> {
        self.log.lock().unwrap().clone()
    }
}

type BoxedRound = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

#[test]
fn a_key_runs_while_its_round_does_and_the_next_round_follows_on_the_grid() {
    let rig = Rig::new();
    let rounds = Rounds::new(1);
    let armed = rig
        .timers
        .repeat(7, Period::fixed_rate(SECOND), rounds.task())
        .unwrap();
    assert_eq!(armed.deadline, Time::ZERO + SECOND);
    assert_eq!(rig.state(7), Some(TimerState::Pending));
    rig.second();
    assert_eq!(rounds.log(), [(1, 1, 0)]);
    assert_eq!(rig.state(7), Some(TimerState::Pending));
    // The second round waits for its permit, over three points of the grid.
    rig.second();
    assert_eq!(rig.state(7), Some(TimerState::Running { next: None }));
    rig.seconds(3);
    assert_eq!(rounds.log(), [(1, 1, 0), (2, 2, 0)]);
    rounds.permits.add_permits(10);
    rig.settle();
    // Due already: its point of the grid has passed.
    assert_eq!(rig.state(7), Some(TimerState::Queued));
    // The points at 3, 4 and 5 s were missed.
    rig.seconds(2);
    let log = rounds.log();
    assert_eq!(log[2], (3, 6, 3), "{log:?}");
    assert_eq!(log[3], (4, 7, 0));
    let stats = rig.timers.handle().stats();
    assert_eq!((stats.ran, stats.pending, stats.panicked), (4, 1, 0));
}

#[test]
fn missed_rounds_are_made_up_one_after_the_other() {
    let rig = Rig::new();
    let rounds = Rounds::new(0);
    let period = Period::fixed_rate(SECOND).missed(Missed::AtMost(2));
    rig.timers.repeat(7, period, rounds.task()).unwrap();
    rig.seconds(5);
    rounds.permits.add_permits(10);
    rig.settle();
    for _ in 0..4 {
        rig.stepped.advance(Duration::from_millis(1));
        rig.settle();
    }
    assert_eq!(rounds.log(), [(1, 1, 0), (2, 4, 2), (3, 5, 0)]);
}

#[test]
fn the_output_of_a_round_says_what_follows() {
    let rig = Rig::new();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let (log, held) = (Arc::clone(&starts), Arc::new(()));
    let in_task = Arc::clone(&held);
    let period = Period::fixed_delay(SECOND);
    let task = move |round: AsyncRound<u32>| {
        let (log, _held) = (Arc::clone(&log), &in_task);
        async move {
            tokio::task::yield_now().await;
            let now = round.handle().now();
            log.lock().unwrap().push(now.since(Time::ZERO).as_secs());
            match round.number() {
                1 => Next::Again,
                2 => Next::After(3 * SECOND),
                3 => Next::At(now + 2 * SECOND),
                _ => Next::Stop,
            }
        }
    };
    rig.timers.repeat(7, period, task).unwrap();
    rig.seconds(20);
    assert_eq!(*starts.lock().unwrap(), [1, 2, 5, 7]);
    assert_eq!(rig.state(7), None);
    assert_eq!(Arc::strong_count(&held), 1, "the task was dropped");
}

/// The closure panics, the future panics, or its drop does.
#[test]
fn after_a_panic_the_period_decides() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("{WANTED}");
        }
    }
    hush();
    for place in 0..3 {
        for (policy, expected) in [
            (AfterPanic::Continue, vec![1, 2, 3, 4, 5, 6, 7, 8]),
            (AfterPanic::Stop, vec![1]),
            (
                AfterPanic::BackOff {
                    first: 2 * SECOND,
                    most: 3 * SECOND,
                },
                vec![1, 3, 6],
            ),
        ] {
            let told = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&told);
            let rig = Rig::with(Scheduler::builder().on_panic(move |panic| {
                assert!(panic.message.contains(WANTED));
                count.fetch_add(1, Ordering::SeqCst);
            }));
            let starts = Arc::new(Mutex::new(Vec::new()));
            let log = Arc::clone(&starts);
            let task = move |round: AsyncRound<u32>| {
                let due = round.deadline().since(Time::ZERO).as_secs();
                log.lock().unwrap().push(due);
                assert!(place != 0, "{WANTED}");
                async move {
                    tokio::task::yield_now().await;
                    assert!(place != 1, "{WANTED}");
                    let bomb = Bomb;
                    // Lives in the future until its drop.
                    std::future::poll_fn(move |_| {
                        let _ = &bomb;
                        std::task::Poll::Ready(())
                    })
                    .await;
                }
            };
            let period = Period::fixed_rate(SECOND).on_panic(policy);
            rig.timers.repeat(7, period, task).unwrap();
            rig.seconds(8);
            let starts = starts.lock().unwrap();
            assert_eq!(*starts, expected, "{place} {policy:?}");
            let panics = rig.timers.handle().stats().panicked;
            assert_eq!(panics, starts.len() as u64);
            assert_eq!(told.load(Ordering::SeqCst), starts.len());
            assert_eq!(rig.state(7).is_none(), policy == AfterPanic::Stop);
        }
    }
}

#[test]
fn a_cancelled_round_is_notified_and_none_follows() {
    let rig = Rig::new();
    let (told, held) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
    let (in_task, in_round) = (Arc::clone(&held), Arc::clone(&told));
    let task = move |round: AsyncRound<u32>| {
        let (_held, told) = (&in_task, Arc::clone(&in_round));
        async move {
            round.cancelled().await;
            assert!(round.is_cancelled());
            told.store(true, Ordering::SeqCst);
        }
    };
    let period = Period::fixed_rate(SECOND);
    rig.timers.repeat(7, period, task).unwrap();
    rig.second();
    let handle = rig.timers.handle();
    assert_eq!(handle.cancel(&7), Cancel::Running);
    assert!(!told.load(Ordering::SeqCst));
    // The waiting task is woken when the round has ended and its task was dropped.
    let (mut ended, wakes) = (Box::pin(handle.cancel_and_wait(&7)), Wakes::new());
    assert!(poll(&mut ended, &wakes).is_pending());
    rig.settle();
    assert!(told.load(Ordering::SeqCst));
    assert_eq!(wakes.count(), 1);
    assert_eq!(Arc::strong_count(&held), 1);
    assert!(poll(&mut ended, &wakes).is_ready());
    rig.seconds(3);
    assert_eq!(handle.stats().ran, 1);
    assert_eq!(rig.state(7), None);
}

#[test]
fn a_round_that_waits_for_its_own_key_gets_an_error() {
    let rig = Rig::new();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&answers);
    let task = move |round: AsyncRound<u32>| {
        let log = Arc::clone(&log);
        async move {
            let waited = round.handle().cancel_and_wait(&7).await;
            log.lock().unwrap().push(waited.err());
        }
    };
    rig.timers
        .repeat(7, Period::fixed_rate(SECOND), task)
        .unwrap();
    rig.second();
    assert_eq!(*answers.lock().unwrap(), [Some(WaitError::WouldDeadlock)]);
}

/// The drop of the task is a part of the last round.
#[test]
fn a_task_whose_drop_waits_for_its_own_key_gets_an_error() {
    struct Waits(Handle<u32>, Arc<Mutex<Option<WaitError>>>);
    impl Drop for Waits {
        fn drop(&mut self) {
            *self.1.lock().unwrap() = self.0.cancel_and_wait(&7).wait().err();
        }
    }
    let rig = Rig::new();
    let answer = Arc::default();
    let waits = Waits(rig.stepped.handle(), Arc::clone(&answer));
    let task = move |_| {
        let _waits = &waits;
        async { Next::Stop }
    };
    rig.timers
        .repeat(7, Period::fixed_rate(SECOND), task)
        .unwrap();
    rig.second();
    assert_eq!(*answer.lock().unwrap(), Some(WaitError::WouldDeadlock));
    assert_eq!(rig.state(7), None);
}

#[test]
fn calls_during_a_round_decide_about_the_next_one() {
    let rig = Rig::new();
    let handle = rig.timers.handle().clone();
    let rounds = Rounds::new(0);
    let period = || Period::fixed_rate(SECOND);
    rig.timers.repeat(7, period(), rounds.task()).unwrap();
    rig.second();
    // Moved to 9.5 s, where the grid begins anew.
    let at = Time::ZERO + 9 * SECOND + SECOND / 2;
    let moved = handle.reschedule(&7, at.since(handle.now()));
    assert!(matches!(moved, Reschedule::Moved { .. }), "{moved:?}");
    rounds.permits.add_permits(2);
    rig.settle();
    let next = handle.get(&7).unwrap();
    assert_eq!((next.state, next.deadline), (TimerState::Pending, at));
    rig.seconds(9);
    assert_eq!(rounds.log(), [(1, 1, 0), (2, 9, 0)]);
    assert_eq!(handle.get(&7).unwrap().deadline, at + SECOND);
    // A timer that is armed during a round replaces the repetition.
    rig.second();
    assert_eq!(rig.state(7), Some(TimerState::Running { next: None }));
    let refused = rig.timers.schedule_if_absent(7, SECOND, async |_| ());
    assert!(matches!(refused, Err(ScheduleError::Occupied(_))));
    let armed = rig.timers.schedule(7, SECOND, async |_| ()).unwrap();
    assert!(armed.after_run);
    rounds.permits.add_permits(1);
    rig.settle();
    rig.seconds(5);
    assert_eq!(rounds.log().len(), 3);
    assert_eq!((rig.state(7), handle.stats().ran), (None, 4));
}

#[test]
fn a_repetition_keeps_its_permit_during_its_rounds() {
    let rig = Rig::with(Scheduler::builder().max_pending(1));
    let (timers, rounds) = (&rig.timers, Rounds::new(0));
    timers
        .repeat(7, Period::fixed_rate(SECOND), rounds.task())
        .unwrap();
    for _ in 0..3 {
        rig.second();
        let other = timers.schedule(8, SECOND, async |_| ());
        assert!(matches!(other, Err(ScheduleError::Full(_))));
        rounds.permits.add_permits(1);
        rig.settle();
    }
    assert_eq!(rounds.log().len(), 3);
    assert!(timers.handle().cancel(&7).is_cancelled());
    timers.schedule(8, SECOND, async |_| ()).unwrap();
}

#[test]
fn refusals_return_the_closure() {
    let rig = Rig::new();
    let zero = Period::fixed_rate(Duration::ZERO);
    let Err(ScheduleError::ZeroPeriod(_)) = rig.timers.repeat(7, zero, async |_| ()) else {
        panic!("a period of zero");
    };
    let none = Period::schedule(|_| None);
    let Err(ScheduleError::NoRound(_)) = rig.timers.repeat(7, none, async |_| ()) else {
        panic!("no first round");
    };
    let (held, period) = (Arc::new(()), Period::fixed_rate(SECOND));
    let in_task = Arc::clone(&held);
    rig.stepped.shutdown(Shutdown::HandBack);
    let refused = rig.timers.repeat(7, period, move |_| {
        let held = Arc::clone(&in_task);
        async move { drop(held) }
    });
    assert!(matches!(refused, Err(ScheduleError::Closed(_))));
    assert_eq!(Arc::strong_count(&held), 2);
    drop(refused);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// The schedule function runs after the future, on the runtime.
#[test]
fn a_schedule_function_that_panics_or_ends_ends_the_repetition() {
    hush();
    for panics in [false, true] {
        let rig = Rig::new();
        let rounds = Rounds::new(10);
        let period = Period::schedule(move |so_far| {
            if so_far.rounds == 2 {
                assert!(!panics, "{WANTED}");
                return None;
            }
            Some(so_far.now + SECOND)
        });
        rig.timers.repeat(7, period, rounds.task()).unwrap();
        rig.seconds(5);
        assert_eq!(rounds.log(), [(1, 1, 0), (2, 2, 0)]);
        assert_eq!(rig.state(7), None);
        assert_eq!(rig.timers.handle().stats().panicked, u64::from(panics));
    }
}

#[test]
fn a_task_that_is_handed_back_between_two_rounds_can_run_once_more() {
    let rig = Rig::new();
    let rounds = Rounds::new(10);
    rig.timers
        .repeat(7, Period::fixed_rate(SECOND), rounds.task())
        .unwrap();
    rig.second();
    let report = rig.stepped.shutdown(Shutdown::HandBack);
    let mut tasks: VecDeque<_> = (report.handed_back.into_iter())
        .map(|timer| timer.task)
        .collect();
    let other = Rig::new();
    let mut task = tasks.pop_front().unwrap();
    other
        .stepped
        .handle()
        .schedule(1, SECOND, move |firing| {
            assert_eq!(task.run_round(firing), None);
            task.run(firing);
        })
        .unwrap();
    other.stepped.advance(SECOND);
    // The round is not the run of the key that has called it.
    assert_eq!(other.state(1), None);
    rig.settle();
    assert_eq!(rounds.log(), [(1, 1, 0), (2, 1, 0)]);
    other.seconds(3);
    assert_eq!(other.stepped.handle().stats().ran, 1);
}

#[test]
fn a_runtime_that_has_ended_ends_the_repetition() {
    for polled in [false, true] {
        let rig = Rig::new();
        let rounds = Rounds::new(0);
        rig.timers
            .repeat(7, Period::fixed_rate(SECOND), rounds.task())
            .unwrap();
        rig.stepped.advance(SECOND);
        if polled {
            rig.settle();
        }
        assert_eq!(rig.state(7), Some(TimerState::Running { next: None }));
        let Rig {
            stepped,
            runtime,
            timers,
        } = rig;
        drop(runtime);
        assert_eq!(rounds.log().len(), usize::from(polled));
        assert!(timers.handle().get(&7).is_none());
        // So does the next spawn on it.
        let period = Period::fixed_rate(SECOND);
        timers.repeat(7, period, rounds.task()).unwrap();
        assert_eq!(stepped.advance(5 * SECOND).len(), 1);
        let stats = timers.handle().stats();
        assert_eq!((stats.ran, stats.pending, stats.panicked), (2, 0, 0));
    }
}

#[test]
fn a_shutdown_waits_for_the_round_and_hands_the_task_back() {
    on_all(|| async {
        let hand = ManualClock::new();
        let scheduler = Scheduler::<u32>::builder()
            .workers(1)
            .clock(Clock::manual(&hand))
            .build()
            .unwrap();
        let timers = scheduler.handle().on_tokio(runtime::Handle::current());
        let rounds = Rounds::new(2);
        timers
            .repeat(7, Period::fixed_rate(SECOND), rounds.task())
            .unwrap();
        for round in 1..=3 {
            hand.advance(SECOND);
            eventually("a round begins", || rounds.log().len() == round).await;
            if round < 3 {
                let handle = timers.handle();
                let is_pending = || {
                    handle
                        .get(&7)
                        .is_some_and(|timer| timer.state == TimerState::Pending)
                };
                eventually("the next round is pending", is_pending).await;
            }
        }
        let mut closing = Box::pin(scheduler.shutdown(Shutdown::HandBack).into_future());
        assert!(poll(&mut closing, &Wakes::new()).is_pending());
        assert_eq!(timers.handle().stats().running, 1);
        rounds.permits.add_permits(1);
        let report = closing.await;
        assert_eq!(report.handed_back.len(), 1);
        assert_eq!(report.handed_back[0].key, 7);
        let fourth = Time::ZERO + 4 * SECOND;
        assert_eq!(report.handed_back[0].deadline, fourth);
        assert_eq!(rounds.log(), [(1, 1, 0), (2, 2, 0), (3, 3, 0)]);
        assert_eq!(Arc::strong_count(&rounds.log), 2, "the task came back");
        drop(report);
        assert_eq!(Arc::strong_count(&rounds.log), 1, "the task was dropped");
    });
}

#[test]
fn timers_within_overlapping_windows_run_together() {
    let rig = Rig::new();
    let window = || 30 * SECOND..=35 * SECOND;
    let one = rig.timers.schedule(1, window(), async |_| ()).unwrap();
    rig.second();
    let blocking = rig.timers.handle().schedule(2, window(), |_| ());
    let other = rig.timers.schedule(3, window(), async |_| ()).unwrap();
    assert_eq!(one.deadline, other.deadline);
    assert_eq!(one.deadline, blocking.unwrap().deadline);
    assert!((30..=35).contains(&one.deadline.since(Time::ZERO).as_secs()));
    assert_eq!(rig.stepped.advance(35 * SECOND).len(), 3);
    rig.settle();
    assert_eq!(rig.state(1), None);
}

#[test]
fn an_extra_round_keeps_the_rhythm_of_futures() {
    let rig = Rig::new();
    let rate = Period::fixed_rate(10 * SECOND);
    rig.timers.repeat(7, rate, async |_| ()).unwrap();
    rig.seconds(14);
    let timers = rig.timers.handle();
    let before = Time::ZERO + 20 * SECOND;
    assert_eq!(timers.run_now(&7), PullIn::Moved { before });
    rig.stepped.settle();
    // Its future has not ended, so the round runs.
    assert_eq!(timers.run_now(&7), PullIn::Running);
    rig.settle();
    assert_eq!(timers.stats().ran, 2);
    assert_eq!(timers.get(&7).unwrap().deadline, before);
    rig.seconds(20);
    assert_eq!(timers.stats().ran, 4);
}

#[test]
fn a_round_that_is_a_future_knows_its_date_and_looks_spawn_nothing() {
    const HOUR: Duration = Duration::from_secs(3600);
    const SIX_HOURS: u64 = 6 * 3600;
    let rig = Rig::new();
    let hand = rig.stepped.clock();
    let dates = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&dates);
    let period = Period::calendar(|after| {
        let since = after.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
        let next = (since / SIX_HOURS + 1) * SIX_HOURS;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(next))
    });
    let armed = rig.timers.repeat(1, period, move |round: AsyncRound<u32>| {
        let noted = Arc::clone(&noted);
        async move {
            let date = round.clone().scheduled_for().unwrap();
            let since = date.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            noted.lock().unwrap().push((since, round.missed()));
        }
    });
    assert!(armed.is_ok());
    let mut fired = 0;
    for _ in 0..13 {
        fired += rig.stepped.advance(HOUR).len();
        rig.settle();
    }
    assert_eq!(fired, 2);
    assert_eq!(*dates.lock().unwrap(), [(6 * HOUR, 0), (12 * HOUR, 0)]);
    // The wall clock goes on while the machine is suspended.
    hand.set_wall(hand.wall() + 24 * HOUR);
    for _ in 0..2 {
        rig.stepped.advance(HOUR);
        rig.settle();
    }
    assert_eq!(dates.lock().unwrap()[2], (36 * HOUR, 3));
}
