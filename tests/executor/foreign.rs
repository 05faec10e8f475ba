//! Executors of the user: nothing that they refuse, drop, keep or break is lost, and what waits
//! with them can still be cancelled, moved and handed back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::ledger::Ledger;
use kit::wait::{next, until};
use tourbillon::{
    Cancel, Clock, Executor, Job, ManualClock, Reschedule, ScheduleError, Scheduler, Shutdown, Time,
};

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// A bounded queue served by one thread, as of an event loop.
struct Queue {
    jobs: SyncSender<Job>,
    taken: AtomicUsize,
}

impl Queue {
    fn serve(name: &str, room: usize) -> Arc<Self> {
        let (jobs, from) = sync_channel::<Job>(room);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || from.into_iter().for_each(Job::run))
            .unwrap();
        Arc::new(Queue {
            jobs,
            taken: AtomicUsize::new(0),
        })
    }
}

impl Executor for Queue {
    fn execute(&self, job: Job) -> Result<(), Job> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        assert!(!job.is_empty());
        let tasks = job.len();
        self.jobs.try_send(job).map_err(|refused| match refused {
            Full(job) | Disconnected(job) => job,
        })?;
        self.taken.fetch_add(tasks, Ordering::SeqCst);
        Ok(())
    }
}

/// Keeps jobs until a test does something with them.
#[derive(Default)]
struct Shelf(Mutex<Vec<Job>>);

impl Shelf {
    fn take(&self) -> Vec<Job> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn tasks(&self) -> usize {
        self.0.lock().unwrap().iter().map(Job::len).sum()
    }
}

impl Executor for Shelf {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.lock().unwrap().push(job);
        Ok(())
    }
}

/// What an executor may do wrong with a job, for so many calls; then it runs the jobs at once.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Refuses,
    Drops,
    Panics,
}

struct Faulty {
    fault: Fault,
    left: AtomicUsize,
}

impl Faulty {
    fn new(fault: Fault, times: usize) -> Self {
        Faulty {
            fault,
            left: AtomicUsize::new(times),
        }
    }
}

impl Executor for Faulty {
    fn execute(&self, job: Job) -> Result<(), Job> {
        let spend = |left: usize| left.checked_sub(1);
        if self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend)
            .is_err()
        {
            job.run();
            return Ok(());
        }
        match self.fault {
            Fault::Refuses => Err(job),
            Fault::Drops => Ok(()),
            Fault::Panics => panic!("an executor that panics with {} tasks", job.len()),
        }
    }
}

#[test]
fn c104_tasks_run_where_the_given_executor_runs_them() {
    let queue = Queue::serve("mine", 64);
    let scheduler = Scheduler::<u32>::builder()
        .shards(2)
        .executor(Arc::clone(&queue))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let (tell, told) = channel();
    for key in 0..40 {
        let tell = tell.clone();
        timers
            .schedule(key, TICK * (key % 4), move |_| {
                let name = thread::current().name().map(str::to_owned);
                tell.send(name).unwrap();
            })
            .unwrap();
    }
    for _ in 0..40 {
        assert_eq!(next(&told).as_deref(), Some("mine"));
    }
    // Exactly these went through it, counted after each was taken.
    until("all are counted", || {
        queue.taken.load(Ordering::SeqCst) == 40
    });
}

/// Blocks in each call until a gate is open, and runs the job then.
struct Blocks(Gate);

impl Executor for Blocks {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.pass();
        job.run();
        Ok(())
    }
}

#[test]
fn an_executor_that_blocks_delays_no_tick() {
    let builder = Scheduler::<u32>::builder().shards(1).max_running(3);
    // On the runtime of the process, and on threads of its own.
    for builder in [builder, Scheduler::<u32>::builder().shards(1).workers(1)] {
        let gate = Gate::default();
        let scheduler = builder.executor(Blocks(gate.clone())).build().unwrap();
        let timers = scheduler.handle();
        let ledger = Ledger::new(3);
        for number in 0..3 {
            let token = ledger.token(number);
            timers
                .schedule(number as u32, TICK, move |_| token.run())
                .unwrap();
            // The next one becomes due in the same shard, and goes to another thread.
            gate.crowd(number + 1);
        }
        assert_eq!(ledger.sums(), (0, 0));
        gate.open();
        until("all ran", || ledger.sums() == (3, 3));
        let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
        assert_eq!(report.still_running, 0);
        assert!(timers.stats().balances());
    }
}

#[test]
fn max_running_limits_the_calls_of_an_executor() {
    let gate = Gate::default();
    let scheduler = Scheduler::<u32>::builder()
        .workers(1)
        .max_running(2)
        .executor(Blocks(gate.clone()))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(200);
    for number in 0..200 {
        let token = ledger.token(number);
        timers
            .schedule(number as u32, TICK, move |_| token.run())
            .unwrap();
    }
    gate.crowd(2);
    until("the pool is full", || timers.stats().saturated > 0);
    assert_eq!(gate.waiting(), 2);
    gate.open();
    until("all ran", || ledger.sums() == (200, 200));
}

#[test]
fn an_executor_with_a_backlog_of_its_own_costs_no_wake_up() {
    // What lies on the shelf waits for no worker, so nobody looks at the workers for its sake.
    let shelf = Arc::new(Shelf::default());
    let scheduler = Scheduler::<u32>::builder()
        .shards(1)
        .executor(Arc::clone(&shelf))
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    for key in 0..10 {
        timers.schedule(key, TICK, |_| ()).unwrap();
    }
    assert!(scheduler.advance(TICK).is_empty());
    assert_eq!(timers.stats().queued, 10);
    assert_eq!(scheduler.advance_to_next(), None);
    shelf.take().into_iter().for_each(Job::run);
    assert_eq!(scheduler.settle().len(), 10);
}

#[test]
fn c104_an_executor_that_runs_at_once_may_schedule_in_there() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u32>::builder()
            .shards(2)
            .executor(Faulty::new(Fault::Refuses, 0))
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        timers
            .schedule(0, TICK, |firing| {
                // Runs within this very call.
                firing.handle().schedule(1, Duration::ZERO, |_| ()).unwrap();
                // Must wait for this run, though it is due.
                let own = firing.handle().schedule(0, Duration::ZERO, |_| ()).unwrap();
                assert!(own.after_run);
            })
            .unwrap();
        let keys: Vec<_> = scheduler.advance(TICK).iter().map(|f| f.key).collect();
        assert_eq!(keys, [0, 1, 0], "seed {seed}");
        assert!(timers.stats().balances() && timers.is_empty());
    }
}

#[test]
fn c108_what_an_executor_refuses_drops_or_panics_with_comes_again() {
    for fault in [Fault::Refuses, Fault::Drops, Fault::Panics] {
        for seed in 0..10 {
            let scheduler = Scheduler::<u32>::builder()
                .shards(2)
                .stripes(2)
                .executor(Faulty::new(fault, 7))
                .build_stepped(seed)
                .unwrap();
            let timers = scheduler.handle();
            let ledger = Ledger::new(50);
            for number in 0..50 {
                let token = ledger.token(number);
                // Due at once on the caller's thread, and through ticks.
                let delay = TICK * (number as u32 % 3);
                timers
                    .schedule(number as u32, delay, move |_| token.run())
                    .unwrap();
            }
            assert_eq!(timers.len() + ledger.sums().0, 50);
            let fired = scheduler.advance(TICK * 20);
            assert_eq!(fired.len(), 50, "{fault:?} {seed}");
            assert!((0..50).all(|number| ledger.of(number) == (1, 1)));
            assert!(fired.iter().all(|fired| fired.at >= fired.deadline));
            let stats = timers.stats();
            assert_eq!(stats.refused, 7, "{fault:?} {seed}");
            assert_eq!((stats.ran, stats.pending, stats.panicked), (50, 0, 0));
            assert!(stats.balances());
        }
    }
}

#[test]
fn c108_what_an_executor_always_refuses_is_handed_back() {
    for fault in [Fault::Refuses, Fault::Drops, Fault::Panics] {
        for mode in [
            Shutdown::HandBack,
            Shutdown::RunNow,
            Shutdown::Drain { limit: TICK * 30 },
        ] {
            let scheduler = Scheduler::<u32>::builder()
                .executor(Faulty::new(fault, usize::MAX))
                .shutdown_limit(TICK * 40)
                .build_stepped(3)
                .unwrap();
            let timers = scheduler.handle();
            for key in 0..10 {
                timers.schedule(key, TICK * (key % 2), |_| ()).unwrap();
            }
            assert!(scheduler.advance(TICK * 3).is_empty());
            // It can be cancelled and moved in the meantime.
            assert!(timers.cancel(&0).is_cancelled());
            assert!(matches!(
                timers.reschedule(&1, HOUR),
                Reschedule::Moved { .. }
            ));
            assert_eq!(timers.len(), 9);
            let report = scheduler.shutdown(mode);
            assert_eq!(report.handed_back.len(), 9, "{fault:?} {mode:?}");
            assert_eq!(report.still_running, 0);
            assert!(timers.stats().balances());
        }
    }
}

#[test]
fn c108_a_closed_executor_is_counted_and_a_later_one_of_its_threads_takes_over() {
    // Real threads; the executor's channel is full until somebody looks at it.
    let (jobs, from) = sync_channel::<Job>(1);
    let queue = Arc::new(Queue {
        jobs,
        taken: AtomicUsize::new(0),
    });
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .stripes(8)
        .executor(queue)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(100);
    for number in 0..100 {
        let token = ledger.token(number);
        timers
            .schedule(number as u32, TICK, move |_| token.run())
            .unwrap();
    }
    until("the channel is full", || {
        hand.advance(TICK);
        timers.stats().refused > 3
    });
    assert_eq!(ledger.sums(), (0, 0));
    assert_eq!(timers.len(), 100);
    let server = thread::spawn(move || from.into_iter().for_each(Job::run));
    until("all ran", || {
        hand.advance(TICK);
        ledger.sums() == (100, 100)
    });
    until("all is settled", || timers.stats().running == 0);
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert!(report.handed_back.is_empty());
    assert!((0..100).all(|number| ledger.of(number) == (1, 1)));
    drop((scheduler, timers));
    // Nobody holds the sending end any more.
    server.join().unwrap();
}

#[test]
fn a_shutdown_while_batches_are_handed_over_waits_for_nothing_that_is_not_there() {
    for round in 0..20 {
        let queue = Queue::serve("busy", 8);
        let scheduler = Scheduler::<u32>::builder()
            .shards(1)
            .executor(queue)
            .shutdown_limit(Duration::from_secs(20))
            .build()
            .unwrap();
        let timers = scheduler.handle();
        // Due at once: the ticker hands each over alone, and is not through when the scheduler
        // closes.
        for key in 0..2_000 {
            timers.schedule(key, Duration::ZERO, |_| ()).unwrap();
        }
        let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
        let stats = timers.stats();
        assert_eq!((report.still_running, stats.ticker_panics), (0, 0));
        assert_eq!(
            stats.ran + report.handed_back.len() as u64,
            2_000,
            "round {round}"
        );
    }
}

#[test]
fn c108_until_a_job_runs_its_tasks_can_be_cancelled_moved_and_replaced() {
    for seed in 0..20 {
        let shelf = Arc::new(Shelf::default());
        let scheduler = Scheduler::<u32>::builder()
            .shards(2)
            .executor(Arc::clone(&shelf))
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        let ledger = Ledger::new(5);
        for number in 0..4 {
            let token = ledger.token(number);
            timers
                .schedule(number as u32, TICK, move |_| token.run())
                .unwrap();
        }
        assert!(scheduler.advance(TICK).is_empty(), "nobody runs them");
        assert_eq!((shelf.tasks(), timers.stats().queued), (4, 4));
        assert!(matches!(timers.cancel(&0), Cancel::Cancelled { .. }));
        assert!(matches!(
            timers.reschedule(&1, TICK * 5),
            Reschedule::Moved { .. }
        ));
        let token = ledger.token(4);
        let replaced = timers.schedule(2, TICK * 3, move |_| token.run()).unwrap();
        assert_eq!(replaced.replaced, Some(Time::ZERO + TICK));

        // On another thread, later: only what still stands.
        let jobs = shelf.take();
        thread::spawn(move || jobs.into_iter().for_each(Job::run))
            .join()
            .unwrap();
        assert_eq!(ledger.sums().0, 1);
        assert_eq!(ledger.of(3), (1, 1));
        assert!(scheduler.advance(TICK * 2).iter().all(|f| f.key == 3));
        scheduler.advance(TICK * 9);
        assert_eq!(shelf.tasks(), 2);
        shelf.take().into_iter().for_each(Job::run);
        // c114: each ended once.
        let ends: Vec<_> = (0..5).map(|number| ledger.of(number)).collect();
        assert_eq!(ends, [(0, 1), (1, 1), (0, 1), (1, 1), (1, 1)]);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.cancelled, stats.replaced), (3, 1, 1));
        assert!(stats.balances() && timers.is_empty());
    }
}

#[test]
fn c108_a_ticket_that_is_on_its_way_stands_for_what_is_queued_then() {
    // Touched back and forth while its ticket lies on the shelf: one run, at the last deadline.
    for seed in 0..20 {
        let shelf = Arc::new(Shelf::default());
        let scheduler = Scheduler::<u32>::builder()
            .executor(Arc::clone(&shelf))
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        timers.schedule(1, TICK, |_| ()).unwrap();
        scheduler.advance(TICK);
        for _ in 0..10 {
            assert!(matches!(
                timers.reschedule(&1, TICK),
                Reschedule::Moved { .. }
            ));
            scheduler.advance(TICK);
        }
        assert_eq!(shelf.tasks(), 1, "one ticket to a slot");
        // Cancelled, and another timer armed in the meantime: the slot waits for its ticket.
        timers.cancel(&1);
        timers.schedule(2, TICK, |_| ()).unwrap();
        timers.schedule(1, HOUR, |_| ()).unwrap();
        let first = shelf.take();
        first.into_iter().for_each(Job::run);
        assert_eq!(timers.stats().ran, 0);
        scheduler.advance(TICK);
        shelf.take().into_iter().for_each(Job::run);
        let fired = scheduler.settle();
        assert_eq!(fired.iter().map(|f| f.key).collect::<Vec<_>>(), [2]);
        assert!(timers.contains(&1));
    }
}

#[test]
fn c108_what_an_executor_sits_on_is_handed_back_and_its_jobs_are_empty_then() {
    let shelf = Arc::new(Shelf::default());
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .executor(Arc::clone(&shelf))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(20);
    for number in 0..20 {
        let token = ledger.token(number);
        timers
            .schedule(number as u32, TICK, move |_| token.run())
            .unwrap();
    }
    hand.advance(TICK);
    until("all lie on the shelf", || shelf.tasks() == 20);
    let report = scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.handed_back.len(), 20);
    drop((scheduler, timers));
    // Half of the jobs run, half are dropped: there is nothing in them any more.
    for (number, job) in shelf.take().into_iter().enumerate() {
        if number % 2 == 0 {
            job.run();
        } else {
            drop(job);
        }
    }
    assert_eq!(ledger.sums(), (0, 0));
    drop(report);
    assert_eq!(ledger.sums(), (0, 20));
}

#[test]
fn c108_a_forgotten_job_keeps_its_tasks_until_they_are_handed_back() {
    struct Forgets;
    impl Executor for Forgets {
        fn execute(&self, job: Job) -> Result<(), Job> {
            std::mem::forget(job);
            Ok(())
        }
    }
    let scheduler = Scheduler::<u32>::builder()
        .executor(Forgets)
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, TICK, |_| ()).unwrap();
    assert!(scheduler.advance(HOUR).is_empty());
    // Nobody can tell a job that is forgotten from one that is late; it stays queued and visible.
    assert_eq!(timers.stats().queued, 1);
    assert_eq!(scheduler.shutdown(Shutdown::HandBack).handed_back.len(), 1);
}

#[test]
fn c109_c110_panics_of_tasks_and_callbacks_do_not_reach_the_executor() {
    let queue = Queue::serve("mine-too", 64);
    let told = Arc::new(Mutex::new(Vec::new()));
    let hand = ManualClock::new();
    let scheduler = {
        let told = Arc::clone(&told);
        Scheduler::<u32>::builder()
            .clock(Clock::manual(&hand))
            .shards(1)
            .stripes(1)
            .executor(queue)
            .on_panic(move |panic| {
                let line = (*panic.key, panic.message.to_owned());
                told.lock().unwrap().push(line);
                panic!("and the callback, too");
            })
            .build()
            .unwrap()
    };
    let timers = scheduler.handle();
    for key in 0..10 {
        timers
            .schedule(key, TICK, move |_| {
                assert!(key % 2 > 0, "task {key}");
            })
            .unwrap();
    }
    hand.advance(TICK);
    // c112: what follows a panic in the same batch runs all the same.
    until("all ran", || {
        let stats = timers.stats();
        stats.ran == 10 && stats.running == 0
    });
    assert_eq!(timers.stats().panicked, 5);
    let mut told = told.lock().unwrap().clone();
    told.sort();
    let expected: Vec<_> = (0..5).map(|n| (2 * n, format!("task {}", 2 * n))).collect();
    assert_eq!(told, expected);
}

#[test]
fn a_scheduler_that_is_gone_takes_nothing_from_an_executor_that_is_left() {
    let shelf = Arc::new(Shelf::default());
    let scheduler = Scheduler::<u32>::builder()
        .executor(Arc::clone(&shelf))
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let ledger = Ledger::new(1);
    let token = ledger.token(0);
    timers
        .schedule(1, Duration::ZERO, move |_| token.run())
        .unwrap();
    until("it is handed over", || shelf.tasks() == 1);
    drop(scheduler);
    assert_eq!(ledger.of(0), (0, 1), "cancelled with the scheduler");
    shelf.take().into_iter().for_each(Job::run);
    assert_eq!(ledger.of(0), (0, 1));
    assert!(matches!(
        timers.schedule(1, Duration::ZERO, |_| ()),
        Err(ScheduleError::Closed(_))
    ));
}

#[test]
fn c112_inline_what_follows_a_panic_in_the_same_tick_runs_in_order() {
    for seed in 0..20 {
        let scheduler = Scheduler::<u32>::builder()
            .shards(1)
            .stripes(1)
            .inline()
            .build_stepped(seed)
            .unwrap();
        let timers = scheduler.handle();
        for key in 1..=5 {
            timers
                .schedule(key, TICK, move |_| assert!(key != 3, "the third"))
                .unwrap();
        }
        timers.schedule(6, TICK * 2, |_| ()).unwrap();
        let keys: Vec<_> = scheduler.advance(TICK).iter().map(|f| f.key).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3, 4, 5], "seed {seed}");
        assert_eq!(timers.stats().panicked, 1);
        assert_eq!(
            scheduler.advance(TICK).len(),
            1,
            "the next tick is untouched"
        );
    }
}
