//! Real threads on the system clock, all calls at random, and in the end every accepted arming has
//! had exactly one end, by the test's own count. A second by default; `STRESS_SECS` for longer.

use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon::{
    Cancel, Clock, Executor, Handle, Job, PullIn, Reschedule, ScheduleError, Scheduler, Shutdown,
    TimerId,
};

use super::{Random, duration};

const THREADS: u64 = 8;

/// Only a broken scheduler does not do enough until then.
const PATIENCE: Duration = Duration::from_secs(60);

/// What became of the armings, counted without the scheduler.
#[derive(Default)]
struct Fates {
    accepted: AtomicU64,
    ran: AtomicU64,
    dropped: AtomicU64,
    cancelled: AtomicU64,
    replaced: AtomicU64,
    early: AtomicU64,
    overlaps: AtomicU64,
}

/// Travels in a task: counts its run, or its drop without one.
struct Token {
    fates: Arc<Fates>,
    ran: bool,
}

impl Drop for Token {
    fn drop(&mut self) {
        let count = if self.ran {
            &self.fates.ran
        } else {
            &self.fates.dropped
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

struct Arena {
    fates: Arc<Fates>,
    /// One flag per key: a run of it is in progress.
    running: Arc<Vec<AtomicBool>>,
}

impl Arena {
    fn arm<S>(&self, timers: &Handle<u64, S>, key: u64, delay: Duration, random: &mut Random)
    where
        S: std::hash::BuildHasher + Send + Sync + 'static,
    {
        let mut token = Token {
            fates: Arc::clone(&self.fates),
            ran: false,
        };
        let running = Arc::clone(&self.running);
        let panics = random.below(500) == 0;
        let task = move |firing: &tourbillon::Firing<'_, u64, S>| {
            token.ran = true;
            let early = firing.handle().now() < firing.deadline();
            token
                .fates
                .early
                .fetch_add(u64::from(early), Ordering::Relaxed);
            let mine = &running[usize::try_from(*firing.key()).unwrap()];
            let overlaps = mine.swap(true, Ordering::AcqRel);
            token
                .fates
                .overlaps
                .fetch_add(u64::from(overlaps), Ordering::Relaxed);
            mine.store(false, Ordering::Release);
            if panics {
                std::panic::panic_any(());
            }
        };
        let at_most_once = random.below(4) == 0;
        let answer = if at_most_once {
            timers.schedule_if_absent(key, delay, task)
        } else {
            timers.schedule(key, delay, task)
        };
        match answer {
            Ok(scheduled) => {
                self.fates.accepted.fetch_add(1, Ordering::Relaxed);
                let replaced = u64::from(scheduled.replaced.is_some());
                self.fates.replaced.fetch_add(replaced, Ordering::Relaxed);
            }
            Err(
                ScheduleError::Closed(task)
                | ScheduleError::Closing(task)
                | ScheduleError::Occupied(task),
            ) => {
                // A refused task was never accepted: its drop must not count.
                drop(task);
                self.fates.dropped.fetch_sub(1, Ordering::Relaxed);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn count(&self, answer: Cancel) {
        let cancelled = u64::from(answer.is_cancelled());
        self.fates.cancelled.fetch_add(cancelled, Ordering::Relaxed);
    }
}

fn rummage<S>(
    timers: &Handle<u64, S>,
    arena: &Arena,
    keys: u64,
    seed: u64,
    goes_on: impl Fn() -> bool,
) where
    S: std::hash::BuildHasher + Send + Sync + 'static,
{
    let mut random = Random(seed);
    let mut ids: Vec<TimerId> = Vec::new();
    while goes_on() {
        for _ in 0..64 {
            let key = random.below(keys);
            let delay = match random.below(4) {
                0 => Duration::ZERO,
                1 => Duration::from_micros(random.below(3_000)),
                2 => Duration::from_millis(random.below(300)),
                _ => Duration::from_secs(random.below(10_000)),
            };
            match random.below(12) {
                0..4 => arena.arm(timers, key, delay, &mut random),
                4..6 => {
                    if let Reschedule::Moved { before } = timers.reschedule(&key, delay) {
                        assert!(before > tourbillon::Time::ZERO);
                    }
                }
                6 => assert!(!matches!(
                    timers.pull_in(&key, delay),
                    PullIn::Unchanged { deadline } if deadline > timers.now() + delay
                )),
                7 => arena.count(timers.cancel(&key)),
                8 => ids.extend(timers.get(&key).map(|info| info.id)),
                9 => {
                    if let Some(id) = ids.pop() {
                        arena.count(timers.by_id(id).cancel());
                    }
                }
                10 => {
                    let some: Vec<_> = (0..random.below(20)).map(|_| random.below(keys)).collect();
                    for answer in timers.cancel_many(&some) {
                        arena.count(answer);
                    }
                    let _ = timers.reschedule_many(&some, delay);
                }
                _ => {
                    if let Ok(answer) = timers
                        .cancel_and_wait(&key)
                        .within(Duration::from_secs(60))
                        .wait()
                    {
                        arena.count(answer);
                    }
                }
            }
        }
    }
}

fn run<S>(scheduler: &Scheduler<u64, S>, keys: u64, length: Duration, mode: Shutdown)
where
    S: std::hash::BuildHasher + Send + Sync + 'static,
{
    std::panic::set_hook(Box::new(|info| {
        // Those of the tasks carry no message; all others are told.
        if !info.payload().is::<()>() {
            eprintln!("{info}");
        }
    }));
    let fates = Arc::new(Fates::default());
    let arena = Arena {
        fates: Arc::clone(&fates),
        running: Arc::new((0..keys).map(|_| AtomicBool::new(false)).collect()),
    };
    let timers = scheduler.handle();
    let start = Barrier::new(THREADS as usize);
    let until = Instant::now() + length;
    let over = OnceLock::new();
    let report = thread::scope(|scope| {
        let _ends = Ends(&over);
        for thread in 0..THREADS {
            let (timers, arena, start, over) = (timers.clone(), &arena, &start, &over);
            scope.spawn(move || {
                start.wait();
                // Some go on while it is being closed.
                let longer = Duration::from_millis(20 * (thread % 3));
                let goes_on = || {
                    let end: Option<&Instant> = over.get();
                    end.is_none_or(|end| end.elapsed() < longer)
                };
                rummage(&timers, arena, keys, thread, goes_on);
            });
        }
        loop {
            let stats = timers.stats();
            assert!(stats.balances(), "also while all are at it");
            // On a busy machine little happens in that time.
            let handed_back = match mode {
                Shutdown::HandBack => stats.pending,
                _ => 0,
            };
            let ended = stats.cancelled + stats.replaced + handed_back;
            let is_enough = stats.ran > 50 && ended > 50;
            if Instant::now() >= until && is_enough {
                break;
            }
            assert!(until.elapsed() < PATIENCE, "too little happens: {stats:?}");
            // Leaves the locks to the others for a while.
            thread::park_timeout(Duration::from_millis(2));
        }
        over.get_or_init(Instant::now);
        scheduler.shutdown(mode).wait().expect("not from a task")
    });
    assert_eq!(report.still_running, 0);
    let handed_back = report.handed_back.len() as u64;
    drop(report);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let stats = timers.stats();
    assert!(stats.balances(), "{stats:?}");
    assert_eq!((stats.pending, stats.ticker_panics), (0, 0));
    assert_eq!(stats.scheduled, count(&fates.accepted));
    assert_eq!(stats.ran, count(&fates.ran));
    assert_eq!(stats.cancelled, count(&fates.cancelled));
    assert_eq!(stats.replaced, count(&fates.replaced));
    assert_eq!(stats.handed_back, handed_back);
    let ended = stats.cancelled + stats.replaced + stats.handed_back;
    assert_eq!(
        count(&fates.dropped),
        ended,
        "what did not run was dropped once"
    );
    // Running everything at once is the one case in which a task starts early.
    if mode != Shutdown::RunNow {
        assert_eq!(count(&fates.early), 0);
    }
    assert_eq!(count(&fates.overlaps), 0);
}

/// Ends the threads also when the one that watches them panics.
struct Ends<'a>(&'a OnceLock<Instant>);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.get_or_init(Instant::now);
    }
}

/// A bounded queue that two threads of the user serve. Now and then it refuses or drops a batch.
struct Queue {
    jobs: SyncSender<Job>,
    random: Mutex<Random>,
}

impl Queue {
    fn serve() -> Self {
        let (jobs, from) = sync_channel::<Job>(16);
        let from = Arc::new(Mutex::new(from));
        for _ in 0..2 {
            let from = Arc::clone(&from);
            thread::spawn(move || {
                loop {
                    let next = from.lock().unwrap().recv();
                    match next {
                        Ok(job) => job.run(),
                        Err(_) => return,
                    }
                }
            });
        }
        Queue {
            jobs,
            random: Mutex::new(Random(7)),
        }
    }
}

impl Executor for Queue {
    fn execute(&self, job: Job) -> Result<(), Job> {
        match self.random.lock().unwrap().below(50) {
            0 => return Err(job),
            1 => drop(job),
            _ => self.jobs.try_send(job).map_err(|refused| match refused {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            })?,
        }
        Ok(())
    }
}

#[test]
fn c108_all_holds_with_an_executor_of_the_user() {
    for mode in [
        Shutdown::HandBack,
        Shutdown::RunNow,
        Shutdown::Drain {
            limit: Duration::from_millis(50),
        },
    ] {
        let scheduler = Scheduler::<u64>::builder()
            .tick(Duration::from_micros(200))
            .shards(2)
            .executor(Queue::serve())
            .build()
            .unwrap();
        run(&scheduler, 10_000, duration() / 3, mode);
    }
}

#[test]
fn c090_every_arming_has_one_end() {
    let length = duration();
    for (keys, mode) in [
        (64, Shutdown::HandBack),
        (10_000, Shutdown::RunNow),
        (1_000_000, Shutdown::HandBack),
    ] {
        let scheduler = Scheduler::<u64>::builder()
            .tick(Duration::from_micros(200))
            .clock(Clock::system())
            .shards(2)
            .workers(2)
            .build()
            .unwrap();
        run(&scheduler, keys, length / 3, mode);
    }
}

/// Sends all keys to one line of one stripe.
#[derive(Default)]
struct Same;

impl Hasher for Same {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _: &[u8]) {}
}

#[test]
fn c067_all_holds_when_every_key_has_one_hash() {
    let scheduler = Scheduler::<u64>::builder()
        .hasher(BuildHasherDefault::<Same>::default())
        .tick(Duration::from_micros(200))
        .build()
        .unwrap();
    run(&scheduler, 200, duration() / 3, Shutdown::HandBack);
    let scheduler = Scheduler::<u64>::builder()
        .hasher(BuildHasherDefault::<DefaultHasher>::default())
        .inline()
        .build()
        .unwrap();
    run(&scheduler, 200, duration() / 3, Shutdown::HandBack);
}
