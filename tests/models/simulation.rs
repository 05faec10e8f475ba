//! Simulations: a seed decides the sizes, what is called, what tasks do to each other, when tickers
//! oversleep, and how it all ends. Nothing is predicted; the promises are checked instead, for each
//! single arming. `SIM_SEEDS` sets how many seeds there are, and `SIM_SEED` repeats one of them.

use std::collections::{BTreeSet, HashMap};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tourbillon::test_util::{Fired, Stepped};
use tourbillon::{
    Cancel, Clock, Executor, Firing, Handle, Job, Lifecycle, ManualClock, PullIn, Reschedule,
    ScheduleError, Scheduler, Shutdown, Time, TimerId, TimerState,
};

type Key = u32;

/// Keys that everybody uses; those above belong to storms.
const KEYS: u64 = 40;

// === random ===

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn key(&mut self) -> Key {
        self.below(KEYS) as Key
    }

    /// Mostly some ticks, now and then none, and rarely a whole lot.
    fn delay(&mut self, tick: Duration) -> Duration {
        let count = match self.below(20) {
            0..3 => return Duration::ZERO,
            3..12 => self.below(8),
            12..16 => self.below(100),
            16..18 => self.below(5_000),
            18 => self.below(1 << 20),
            _ => return Duration::MAX,
        };
        let inside = if self.one_in(2) {
            self.below(tick.as_nanos() as u64)
        } else {
            0
        };
        tick * count as u32 + Duration::from_nanos(inside)
    }
}

// === the ledger ===

/// One arming, from its acceptance to its end.
#[derive(Debug)]
struct Page {
    key: Key,
    deadline: Time,
    dropped: Arc<AtomicBool>,
    end: Option<End>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Ran,
    Cancelled,
    Replaced,
    HandedBack,
}

#[derive(Default)]
struct Ledger {
    pages: HashMap<TimerId, Page>,
    /// Those that have not ended.
    live: BTreeSet<(Time, u64)>,
    numbers: HashMap<u64, TimerId>,
    ends: HashMap<TimerId, u64>,
    counts: [u64; 4],
    planned_panics: u64,
    running: BTreeSet<Key>,
    complaints: Vec<String>,
}

impl Ledger {
    fn complain(&mut self, text: String) {
        self.complaints.push(text);
    }

    fn open(&mut self, id: TimerId, page: Page) {
        let number = self.pages.len() as u64;
        self.live.insert((page.deadline, number));
        self.numbers.insert(number, id);
        self.ends.insert(id, number);
        if self.pages.insert(id, page).is_some() {
            self.complain(format!("{id:?} was given out twice"));
        }
    }

    /// The promise of exactly one end.
    fn end(&mut self, id: TimerId, end: End) {
        let Some(page) = self.pages.get_mut(&id) else {
            return self.complain(format!("{id:?}, which nobody was given, {end:?}"));
        };
        let before = page.end.replace(end);
        let (deadline, number) = (page.deadline, self.ends[&id]);
        let gone = page.dropped.load(Ordering::SeqCst);
        self.counts[end as usize] += 1;
        if let Some(before) = before {
            self.complain(format!("{id:?} had two ends: {before:?} and {end:?}"));
        }
        if !self.live.remove(&(deadline, number)) {
            self.complain(format!("{id:?} was not alive when it {end:?}"));
        }
        // What will not run is freed before the call returns.
        if matches!(end, End::Cancelled | End::Replaced) && !gone {
            self.complain(format!("{id:?} {end:?} and its task is kept"));
        }
    }

    fn moved(&mut self, id: TimerId, before: Time, deadline: Time) {
        let number = self.ends.get(&id).copied().unwrap_or(u64::MAX);
        let Some(page) = self.pages.get_mut(&id).filter(|page| page.end.is_none()) else {
            return self.complain(format!("{id:?}, which is not alive, was moved"));
        };
        let known = std::mem::replace(&mut page.deadline, deadline);
        self.live.remove(&(known, number));
        self.live.insert((deadline, number));
        if known != before {
            self.complain(format!("{id:?} was due at {known:?}, not at {before:?}"));
        }
    }
}

type Shared = Arc<Mutex<Ledger>>;

/// Never held while the scheduler is called.
fn ledger<R>(shared: &Shared, write: impl FnOnce(&mut Ledger) -> R) -> R {
    write(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Lives in a task's closure.
struct Mark(Arc<AtomicBool>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

// === the actors ===

/// What the test and each of the tasks act with.
#[derive(Clone)]
struct Actor {
    handle: Handle<Key>,
    shared: Shared,
    hand: ManualClock,
    random: Random,
    tick: Duration,
    /// Tasks arm only so deep, lest they go on for ever in one moment.
    depth: u32,
}

impl Actor {
    /// One call, whose answer goes into the ledger. All runs on one thread, so what is known before
    /// a call holds during it.
    fn act(&mut self) {
        let key = self.random.key();
        let delay = self.random.delay(self.tick);
        match self.random.below(20) {
            0..8 => self.arm(key, delay),
            8..12 => self.reschedule(key, delay),
            12..14 => self.pull_in(key, delay),
            14..17 => self.cancel(key),
            17 => self.many(delay),
            18 => self.by_id(delay),
            _ => self.look(),
        }
    }

    /// The id of what is pending for the key, kept armings included.
    fn pending(&self, key: Key) -> Option<TimerId> {
        let info = self.handle.get(&key)?;
        match info.state {
            TimerState::Running { next } => next.map(|(id, _)| id),
            _ => Some(info.id),
        }
    }

    fn arm(&mut self, key: Key, delay: Duration) {
        let before = self.pending(key);
        let dropped = Arc::new(AtomicBool::new(false));
        let mark = Mark(Arc::clone(&dropped));
        let mut actor = self.clone();
        actor.random = Random(self.random.next());
        actor.depth = self.depth.saturating_sub(1);
        let if_absent = self.random.one_in(4);
        let task = move |firing: &Firing<'_, Key>| {
            let _mark = mark;
            actor.run(firing);
        };
        let answer = if if_absent {
            self.handle.schedule_if_absent(key, delay, task)
        } else if self.random.one_in(8) {
            let past = self.handle.now() - delay;
            self.handle.schedule(key, past, task)
        } else {
            self.handle.schedule(key, delay, task)
        };
        let closing = self.handle.state() != Lifecycle::Running;
        ledger(&self.shared, |ledger| match answer {
            Ok(accepted) => {
                if accepted.replaced.is_some() != before.is_some() {
                    ledger.complain(format!("{accepted:?} over {before:?}"));
                }
                if let Some(before) = before {
                    ledger.end(before, End::Replaced);
                }
                let deadline = accepted.deadline;
                let page = Page {
                    key,
                    deadline,
                    dropped,
                    end: None,
                };
                ledger.open(accepted.id, page);
            }
            Err(ScheduleError::Occupied(_)) if if_absent && before.is_some() => (),
            Err(ScheduleError::Closed(_)) if closing => (),
            Err(other) => ledger.complain(format!("{other:?} for {key}")),
        });
    }

    fn reschedule(&mut self, key: Key, delay: Duration) {
        let before = self.pending(key);
        let deadline = self.handle.now() + delay;
        let answer = self.handle.reschedule(&key, delay);
        self.was_moved(key, before, answer, deadline);
    }

    fn was_moved(&self, key: Key, id: Option<TimerId>, answer: Reschedule, deadline: Time) {
        let known = self.handle.contains(&key);
        ledger(&self.shared, |ledger| match (answer, id) {
            (Reschedule::Moved { before }, Some(id)) => ledger.moved(id, before, deadline),
            (Reschedule::Running, None) if known => (),
            (Reschedule::NotFound, None) if !known => (),
            other => ledger.complain(format!("moving {key}: {other:?}")),
        });
    }

    fn pull_in(&mut self, key: Key, delay: Duration) {
        let id = self.pending(key);
        let known = self.handle.contains(&key);
        let deadline = self.handle.now() + delay;
        let answer = self.handle.pull_in(&key, delay);
        ledger(&self.shared, |ledger| match (answer, id) {
            (PullIn::Moved { before }, Some(id)) if deadline < before => {
                ledger.moved(id, before, deadline);
            }
            (PullIn::Unchanged { deadline: kept }, Some(_)) if deadline >= kept => (),
            (PullIn::Running, None) if known => (),
            (PullIn::NotFound, None) if !known => (),
            other => ledger.complain(format!("pulling {key} in: {other:?}")),
        });
    }

    fn cancel(&mut self, key: Key) {
        let before = self.pending(key);
        let known = self.handle.contains(&key);
        let answer = self.handle.cancel(&key);
        self.was_cancelled(key, before, known, answer);
    }

    fn was_cancelled(&self, key: Key, id: Option<TimerId>, known: bool, answer: Cancel) {
        ledger(&self.shared, |ledger| match (answer, id) {
            (Cancel::Cancelled { running, .. }, Some(id)) => {
                if running != ledger.running.contains(&key) {
                    ledger.complain(format!("running is {running} for {key}"));
                }
                ledger.end(id, End::Cancelled);
            }
            (Cancel::Running, None) if known => (),
            (Cancel::NotFound, None) if !known => (),
            other => ledger.complain(format!("cancelling {key}: {other:?}")),
        });
    }

    fn many(&mut self, delay: Duration) {
        let keys: BTreeSet<Key> = (0..self.random.below(12))
            .map(|_| self.random.key())
            .collect();
        let keys: Vec<Key> = keys.into_iter().collect();
        let before: Vec<_> = keys
            .iter()
            .map(|key| (self.pending(*key), self.handle.contains(key)))
            .collect();
        if self.random.one_in(2) {
            let deadline = self.handle.now() + delay;
            let answers = self.handle.reschedule_many(&keys, delay);
            for ((key, (id, _)), answer) in keys.iter().zip(before).zip(answers) {
                self.was_moved(*key, id, answer, deadline);
            }
        } else {
            let answers = self.handle.cancel_many(&keys);
            for ((key, (id, known)), answer) in keys.iter().zip(before).zip(answers) {
                self.was_cancelled(*key, id, known, answer);
            }
        }
    }

    fn by_id(&mut self, delay: Duration) {
        // A stale id, or a live one.
        let newest = ledger(&self.shared, |ledger| ledger.pages.len() as u64);
        if newest == 0 {
            return;
        }
        let number = newest - 1 - self.random.below(newest.min(60));
        let (id, stale) = ledger(&self.shared, |ledger| {
            let id = ledger.numbers[&number];
            (id, ledger.pages[&id].end.is_some())
        });
        let running = self
            .handle
            .by_id(id)
            .get()
            .is_some_and(|info| matches!(info.state, TimerState::Running { .. }));
        let deadline = self.handle.now() + delay;
        let answer = self.handle.by_id(id).reschedule(delay);
        ledger(&self.shared, |ledger| match answer {
            Reschedule::Moved { before } if !stale => ledger.moved(id, before, deadline),
            Reschedule::NotFound if stale => (),
            Reschedule::Running if stale && running => (),
            other => ledger.complain(format!("{id:?}, stale is {stale}: {other:?}")),
        });
        if self.random.one_in(3) {
            let answer = self.handle.by_id(id).cancel();
            ledger(&self.shared, |ledger| match answer {
                Cancel::Cancelled { .. } if !stale => ledger.end(id, End::Cancelled),
                Cancel::NotFound if stale => (),
                Cancel::Running if stale && running => (),
                other => ledger.complain(format!("{id:?}, stale is {stale}: {other:?}")),
            });
        }
    }

    fn look(&self) {
        let mut seen: Vec<_> = self
            .handle
            .pending()
            .filter_map(|(_, info)| match info.state {
                TimerState::Running { next } => next.map(|(_, deadline)| deadline),
                _ => Some(info.deadline),
            })
            .collect();
        seen.sort_unstable();
        let len = self.handle.len();
        ledger(&self.shared, |ledger| {
            if !seen
                .into_iter()
                .eq(ledger.live.iter().map(|(deadline, _)| *deadline))
                || len != ledger.live.len()
            {
                ledger.complain("what is pending is not what is alive".to_owned());
            }
        });
    }

    /// A task.
    fn run(mut self, firing: &Firing<'_, Key>) {
        let key = *firing.key();
        let now = self.handle.now();
        ledger(&self.shared, |ledger| {
            let deadline = ledger
                .pages
                .get(&firing.id())
                .map(|page| (page.key, page.deadline));
            if deadline != Some((key, firing.deadline())) {
                ledger.complain(format!("{firing:?} of {key} has the page {deadline:?}"));
            }
            // Shutdown may make everything due.
            if now < firing.deadline() && self.handle.state() == Lifecycle::Running {
                ledger.complain(format!("{firing:?} is early"));
            }
            if !ledger.running.insert(key) {
                ledger.complain(format!("two runs of {key} at once"));
            }
            ledger.end(firing.id(), End::Ran);
        });
        if self.depth > 0 {
            for _ in 0..self.random.below(3) {
                self.act();
            }
            match self.random.below(12) {
                0..3 => {
                    let delay = self.random.delay(self.tick);
                    self.arm(key, delay);
                }
                3 => self.cancel(key),
                // It takes its time.
                4 => {
                    self.hand
                        .advance(self.random.delay(self.tick).min(self.tick * 200));
                }
                _ => (),
            }
        }
        let panics = self.random.one_in(10);
        ledger(&self.shared, |ledger| {
            ledger.running.remove(&key);
            ledger.planned_panics += u64::from(panics);
        });
        if panics {
            // Without the panic hook, which would print each.
            resume_unwind(Box::new("as planned"));
        }
    }
}

// === an executor of the user ===

/// Runs a batch inside the call, refuses it, drops it, panics with it, or keeps it until later.
#[derive(Clone)]
struct Moody(Arc<Mutex<(Random, Vec<Job>)>>);

impl Moody {
    fn new(random: Random) -> Self {
        Moody(Arc::new(Mutex::new((random, Vec::new()))))
    }

    fn with<R>(&self, f: impl FnOnce(&mut (Random, Vec<Job>)) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs the kept jobs, or drops some of them.
    fn go_on(&self) {
        for job in self.with(|(_, kept)| std::mem::take(kept)) {
            if self.with(|(random, _)| random.one_in(4)) {
                drop(job);
            } else {
                job.run();
            }
        }
    }
}

impl Executor for Moody {
    fn execute(&self, job: Job) -> Result<(), Job> {
        match self.with(|(random, _)| random.below(10)) {
            0 => return Err(job),
            1 => drop(job),
            2 => resume_unwind(Box::new("a broken executor")),
            3..5 => self.with(|(_, kept)| kept.push(job)),
            _ => job.run(),
        }
        Ok(())
    }
}

// === the simulation ===

struct Sim {
    scheduler: Stepped<Key>,
    actor: Actor,
    random: Random,
    tick: Duration,
    /// What runs the tasks, if it is no pool. Nothing can be said of when they run then.
    moody: Option<Moody>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let tick = Duration::from_micros([1, 100, 1_000, 10_000][random.below(4) as usize]);
        let shards = 1 + random.below(3) as usize;
        let start = match random.below(3) {
            0 => 0,
            1 => random.next() >> 2,
            _ => (tick.as_nanos() as u64) << (6 * random.below(5)),
        };
        let hand = ManualClock::starting_at(Time::from_nanos(start));
        let mut builder = Scheduler::builder()
            .tick(tick)
            .shards(shards)
            .stripes(shards.next_power_of_two() << random.below(4))
            .workers(1 + random.below(4) as usize)
            .clock(Clock::manual(&hand));
        let mut moody = None;
        if random.one_in(5) {
            builder = builder.inline();
        } else if random.one_in(4) {
            let executor = moody.insert(Moody::new(Random(random.next())));
            builder = builder.executor(executor.clone());
        }
        let scheduler = builder.build_stepped(random.next()).unwrap();
        let actor = Actor {
            handle: scheduler.handle(),
            shared: Shared::default(),
            hand,
            random: Random(random.next()),
            tick,
            depth: 4,
        };
        Sim {
            scheduler,
            actor,
            random,
            tick,
            moody,
        }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..10 => self.actor.act(),
            10..12 => {
                let by = self.random.delay(self.tick).min(self.tick * 10_000);
                let fired = self.scheduler.advance(by);
                self.settled(&fired);
            }
            12 => {
                // Every ticker sleeps through, and then they all look.
                let by = self.random.delay(self.tick).min(self.tick * 10_000);
                let fired = self.scheduler.jump_to(self.scheduler.now() + by);
                self.settled(&fired);
            }
            13 => {
                // The tickers are late: time passes and none of them has looked yet.
                let by = self.tick * self.random.below(100) as u32;
                self.scheduler.clock().advance(by);
            }
            14 => {
                let fired = self.scheduler.advance_to_next().unwrap_or_default();
                self.settled(&fired);
            }
            _ => {
                let fired = self.scheduler.settle();
                self.settled(&fired);
            }
        }
        if let Some(moody) = self.moody.as_ref().filter(|_| self.random.one_in(4)) {
            moody.go_on();
        }
        self.check();
    }

    /// Everything due has run.
    fn settled(&mut self, fired: &[Fired<Key>]) {
        let now = self.scheduler.now();
        let tick = self.tick.as_nanos() as u64;
        let begun = Time::from_nanos(now.as_nanos() / tick * tick);
        ledger(&self.actor.shared, |ledger| {
            for run in fired {
                if run.at < run.deadline {
                    ledger.complain(format!("{run:?} is early"));
                }
            }
            let first = ledger.live.first().copied();
            let late = first.is_some_and(|(deadline, _)| deadline <= begun);
            if late && self.moody.is_none() {
                ledger.complain(format!("{first:?} is late: it is {now:?}"));
            }
        });
    }

    fn check(&self) {
        let stats = self.actor.handle.stats();
        ledger(&self.actor.shared, |ledger| {
            let expected = [
                stats.ran,
                stats.cancelled,
                stats.replaced,
                stats.handed_back,
            ];
            if ledger.counts != expected || stats.scheduled != ledger.pages.len() as u64 {
                ledger.complain(format!("{:?} in the ledger: {stats:?}", ledger.counts));
            }
            if !stats.balances() || stats.pending != ledger.live.len() as u64 {
                ledger.complain(format!("{} alive: {stats:?}", ledger.live.len()));
            }
            if stats.panicked != ledger.planned_panics || stats.running != 0 {
                ledger.complain(format!("{} panics: {stats:?}", ledger.planned_panics));
            }
            assert!(ledger.complaints.is_empty(), "{:#?}", ledger.complaints);
        });
    }

    fn cancel_all(&mut self) {
        let cancelled = self.actor.handle.cancel_all();
        let pages = ledger(&self.actor.shared, |ledger| {
            let live: Vec<_> = ledger.live.iter().map(|(_, number)| *number).collect();
            for number in &live {
                let id = ledger.numbers[number];
                ledger.end(id, End::Cancelled);
            }
            live.len()
        });
        assert_eq!(cancelled, pages);
        self.check();
    }

    /// So many timers in one tick, most of them at other keys than the actors use.
    fn storm(&mut self, size: u32) {
        let delay = self.tick * self.random.below(5_000) as u32;
        self.actor.depth = 1;
        for number in 0..size {
            self.actor.arm(number, delay);
        }
        self.actor.depth = 4;
        self.check();
    }

    fn shut_down(mut self) {
        let mode = match self.random.below(4) {
            0 => Shutdown::HandBack,
            1 => Shutdown::RunNow,
            2 => Shutdown::Drain {
                limit: self.tick * 500,
            },
            _ => {
                // Dropped: what has not run counts as cancelled.
                let Sim {
                    scheduler,
                    actor,
                    moody,
                    ..
                } = self;
                drop(scheduler);
                if let Some(moody) = moody {
                    moody.go_on();
                }
                return finish(&actor, 0, true);
            }
        };
        let report = self.scheduler.shutdown(mode);
        let mut left = report.handed_back.len() as u64;
        assert_eq!(report.still_running, 0);
        if mode == Shutdown::RunNow && self.moody.is_none() {
            assert_eq!(left, 0, "all of it has run");
        }
        if let Some(moody) = &self.moody {
            // Nothing is in the kept jobs any more.
            moody.go_on();
        }
        let stats = self.actor.handle.stats();
        assert_eq!((stats.pending, stats.handed_back), (0, left));
        let mut back: Vec<_> = report
            .handed_back
            .iter()
            .map(|back| (back.deadline, back.key))
            .collect();
        back.sort_unstable();
        drop(report);
        ledger(&self.actor.shared, |ledger| {
            let live: Vec<_> = ledger.live.iter().copied().collect();
            let mut expected = Vec::new();
            for (deadline, number) in live {
                let id = ledger.numbers[&number];
                expected.push((deadline, ledger.pages[&id].key));
                ledger.end(id, End::HandedBack);
                left -= 1;
            }
            expected.sort_unstable();
            assert_eq!(back, expected);
        });
        finish(&self.actor, left, false);
    }
}

/// Every arming has had its end, and no task is left anywhere.
fn finish(actor: &Actor, left: u64, dropped: bool) {
    assert_eq!(left, 0);
    let stats = actor.handle.stats();
    assert!(stats.balances() && stats.pending == 0, "{stats:?}");
    ledger(&actor.shared, |ledger| {
        assert!(ledger.complaints.is_empty(), "{:#?}", ledger.complaints);
        if dropped {
            let cancelled = ledger.counts[End::Cancelled as usize];
            assert_eq!(stats.cancelled, cancelled + ledger.live.len() as u64);
        } else {
            assert!(ledger.live.is_empty());
        }
        for (id, page) in &ledger.pages {
            assert!(
                page.dropped.load(Ordering::SeqCst),
                "{id:?} {page:?} is kept"
            );
        }
    });
}

/// Names the seed of what failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat it: SIM_SEED={}", self.0);
        }
    }
}

/// A storm costs as much as fifty ordinary seeds.
fn simulate(share: u64, each: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(150_u64).div_ceil(share),
    };
    for seed in seeds {
        let _named = Seed(seed);
        each(seed);
    }
}

#[test]
fn everything_ends_once_whatever_happens() {
    simulate(1, |seed| {
        let mut sim = Sim::new(seed);
        for _ in 0..300 {
            sim.step();
        }
        if sim.random.one_in(4) {
            sim.cancel_all();
        }
        sim.shut_down();
    });
}

#[test]
fn storms_of_timers_in_one_tick() {
    simulate(50, |seed| {
        let mut sim = Sim::new(seed ^ 0x5107);
        sim.storm(10_000);
        for _ in 0..60 {
            sim.step();
        }
        sim.storm(10_000);
        let fired = sim.scheduler.advance(sim.tick * 5_001);
        sim.settled(&fired);
        sim.check();
        sim.shut_down();
    });
}

#[test]
fn a_storm_larger_than_what_may_be_under_way() {
    // A ticker stops collecting at 65,536 unclaimed tickets, and as many go through the injector:
    // the rest waits in the wheel and is not lost, nor is it ever run twice.
    let tick = Duration::from_millis(1);
    let size: Key = 90_000;
    let scheduler = Scheduler::<Key>::builder()
        .tick(tick)
        .shards(1)
        .stripes(4)
        .workers(1)
        .build_stepped(7)
        .unwrap();
    let timers = scheduler.handle();
    let complete = |fired: Vec<Fired<Key>>| {
        let mut keys: Vec<_> = fired.into_iter().map(|fired| fired.key).collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..size));
        assert!(timers.is_empty() && timers.stats().balances());
    };
    for key in 0..size {
        timers.schedule(key, tick * 3, |_| ()).unwrap();
    }
    complete(scheduler.jump_to(scheduler.now() + tick * 3));

    for key in 0..size {
        timers.schedule(key, Duration::ZERO, |_| ()).unwrap();
    }
    assert_eq!(timers.len(), size as usize);
    let mut fired = scheduler.settle();
    let at_once = fired.len();
    assert!((65_536..size as usize).contains(&at_once), "{at_once}");
    fired.extend(scheduler.advance(tick));
    complete(fired);
}
