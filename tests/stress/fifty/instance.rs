//! A scheduler, map or timer of any kind, and the calls on it.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kit::wakes::{Wakes, poll};
use tourbillon::channel::Receiver;
use tourbillon::{
    Clock, Expired, ExpiryMap, ExpiryStats, Firing, Handle, Lifecycle, Scheduler, Shutdown, Sleep,
    Stats, Time, Timer, TimerHandle,
};

use super::Random;
use super::fates::{Fates, KEYS, Token, Told, Totals};
use super::world::{Act, World, behave, micros};

/// The timers of these keys are never moved, so it is known how early they may run.
const UNMOVED: u32 = KEYS / 2;

/// Number of timers that a `Timer` or its sleeps keep for later calls.
const KEPT: usize = 64;

type Map = ExpiryMap<u32, Token>;
type Gone = Expired<u32, Token>;

pub(super) struct Instance {
    pub(super) fates: Arc<Fates>,
    kind: Kind,
}

enum Kind {
    Tasks(Scheduler<u32>),
    /// With a handler of each entry, or of batches.
    Entries(Map, Duration),
    Sent(Map, Duration, Receiver<Gone>),
    Timers(
        Timer,
        Mutex<Vec<(TimerHandle, Arc<std::sync::atomic::AtomicU64>)>>,
    ),
    Sleeps(Timer, Mutex<Vec<Nap>>),
}

/// Timers, each with the earliest time at which it may run.
type Kept = Mutex<Vec<(TimerHandle, Arc<AtomicU64>)>>;

/// A sleep that was polled.
struct Nap {
    sleep: Pin<Box<Sleep>>,
    wakes: Arc<Wakes>,
}

/// A builder on the runtime, with random options.
macro_rules! random_options {
    ($builder:expr, $world:expr, $random:expr) => {{
        let random = &mut *$random;
        let builder = $builder
            .runtime($world.runtime())
            .stripes([4, 16, 128][random.below(3) as usize])
            .shards(1 + random.below(3) as usize)
            .max_running([1, 2, 4, 64][random.below(4) as usize])
            .tick(Duration::from_micros(
                [200, 1_000, 5_000][random.below(3) as usize],
            ))
            .shutdown_limit(Duration::from_millis(
                [1, 20, 500][random.below(3) as usize],
            ));
        match random.below(8) {
            0 => builder.pace(2_000),
            1 => builder.max_pending(8),
            2 => builder.clock(Clock::system()),
            _ => builder,
        }
    }};
}

impl Instance {
    pub(super) fn build(world: &Arc<World>, random: &mut Random) -> Self {
        world.count(Act::Build);
        let fates = Fates::new();
        let kind = match random.below(7) {
            0 | 1 => {
                let builder = random_options!(Scheduler::builder(), world, random);
                Kind::Tasks(builder.build().unwrap())
            }
            2..5 => Self::build_map(random.below(3), world, random),
            5 => {
                let builder = random_options!(Timer::builder(), world, random);
                Kind::Timers(builder.build().unwrap(), Mutex::default())
            }
            _ => {
                let builder = random_options!(Timer::builder(), world, random);
                Kind::Sleeps(builder.build().unwrap(), Mutex::default())
            }
        };
        Instance { fates, kind }
    }

    fn build_map(delivery: u64, world: &Arc<World>, random: &mut Random) -> Kind {
        let (idle, life) = (micros(random, 10_000), micros(random, 50_000));
        let builder = Map::builder().time_to_idle(idle).time_to_live(life);
        let builder = random_options!(builder, world, random);
        let shortest = idle.min(life);
        match delivery {
            0 => {
                let map = builder.build(|map, expired| {
                    let token = &expired.value;
                    token.runs(map.now(), expired.deadline);
                    let _one = token.occupies(expired.key);
                    behave(token.world(), token.seed);
                });
                Kind::Entries(map.unwrap(), shortest)
            }
            1 => {
                let map = builder.build_batched(8, |map, batch| {
                    for expired in &batch {
                        expired.value.runs(map.now(), expired.deadline);
                    }
                    let first = &batch[0].value;
                    behave(first.world(), first.seed);
                });
                Kind::Entries(map.unwrap(), shortest)
            }
            _ => {
                let (map, gone) = builder.build_channel(random.below(3) as usize * 4).unwrap();
                Kind::Sent(map, shortest, gone)
            }
        }
    }

    /// One random call.
    pub(super) fn call(&self, world: &Arc<World>, random: &mut Random) {
        match &self.kind {
            Kind::Tasks(scheduler) => self.call_scheduler(&scheduler.handle(), world, random),
            Kind::Entries(map, shortest) => self.call_map(map, *shortest, world, random),
            Kind::Sent(map, shortest, gone) => {
                self.call_map(map, *shortest, world, random);
                self.receive(gone, random.below(4) as usize);
            }
            Kind::Timers(timer, kept) => self.call_timer(timer, kept, world, random),
            Kind::Sleeps(timer, naps) => self.call_sleeps(timer, naps, world, random),
        }
    }

    /// Schedules a task that answers at once. Returns false if this has no tasks by key.
    pub(super) fn ask(
        &self,
        answer: SyncSender<()>,
        world: &Arc<World>,
        random: &mut Random,
    ) -> bool {
        let Kind::Tasks(scheduler) = &self.kind else {
            return false;
        };
        let key = random.below(u64::from(KEYS)) as u32;
        self.arm(&scheduler.handle(), key, Some(answer), world, random);
        true
    }

    fn arm(
        &self,
        timers: &Handle<u32>,
        key: u32,
        answer: Option<SyncSender<()>>,
        world: &Arc<World>,
        random: &mut Random,
    ) {
        let delay = if answer.is_some() {
            Duration::ZERO
        } else {
            delay(random)
        };
        let earliest = if key < UNMOVED {
            timers.now() + delay
        } else {
            Time::ZERO
        };
        let token = Token::new(&self.fates, world, earliest, random.below(u64::MAX));
        let task = move |firing: &Firing<'_, u32>| {
            token.runs(firing.handle().now(), firing.deadline());
            let _one = token.occupies(*firing.key());
            if let Some(answer) = answer {
                let _ = answer.send(());
            }
            behave(token.world(), token.seed);
        };
        let armed = match random.below(4) {
            0 => timers.schedule_if_absent(key, delay, task),
            _ => timers.schedule(key, delay, task),
        };
        match armed {
            Ok(scheduled) => self.fates.replaced(scheduled.replaced.is_some()),
            Err(refused) => {
                self.fates.refused();
                drop(refused);
            }
        }
    }

    fn call_scheduler(&self, timers: &Handle<u32>, world: &Arc<World>, random: &mut Random) {
        let key = random.below(u64::from(KEYS)) as u32;
        let movable = UNMOVED + key / 2;
        match random.below(16) {
            0..7 => {
                world.count(Act::Schedule);
                self.arm(timers, key, None, world, random);
            }
            7..9 => {
                world.count(Act::Move);
                let _ = timers.reschedule(&movable, delay(random));
            }
            9 => {
                world.count(Act::PullIn);
                let _ = timers.pull_in(&movable, delay(random));
            }
            10 => {
                world.count(Act::Cancel);
                self.fates.cancelled(timers.cancel(&key));
            }
            11 => {
                world.count(Act::CancelById);
                if let Some(info) = timers.get(&key) {
                    self.fates.cancelled(timers.by_id(info.id).cancel());
                }
            }
            12 => {
                world.count(Act::CancelMany);
                for answer in timers.cancel_many(&[key, movable, 0]) {
                    self.fates.cancelled(answer);
                }
            }
            13 => {
                world.count(Act::CancelAndWait);
                let waits = timers.cancel_and_wait(&key);
                self.fates.cancelled(waits.answer());
                let _ = waits.within(micros(random, 20_000)).wait();
            }
            _ => {
                world.count(Act::Look);
                assert!(timers.stats().balances());
            }
        }
    }

    fn call_map(&self, map: &Map, shortest: Duration, world: &Arc<World>, random: &mut Random) {
        let key = random.below(u64::from(KEYS)) as u32;
        match random.below(16) {
            0..8 => {
                world.count(Act::Insert);
                let earliest = map.now() + shortest;
                let token = Token::new(&self.fates, world, earliest, random.below(u64::MAX));
                let inserted = match random.below(3) {
                    0 => map.entry(key).insert_if_absent(token),
                    _ => map.insert(key, token),
                };
                match inserted {
                    Ok(inserted) => self.fates.replaced(inserted.replaced.is_some()),
                    Err(refused) => {
                        self.fates.refused();
                        drop(refused);
                    }
                }
            }
            8..11 => {
                world.count(Act::Touch);
                map.touch(&key);
            }
            11..13 => {
                world.count(Act::Remove);
                let value = map.remove(&key).value();
                self.fates.removed(usize::from(value.is_some()));
            }
            13 => {
                world.count(Act::Retain);
                let removed = map.retain(|_, _| random.below(8) != 0);
                self.fates.removed(removed);
            }
            14 => {
                world.count(Act::TouchMany);
                map.touch_many(&[key, (key + 1) % KEYS, (key + 2) % KEYS]);
            }
            _ => {
                world.count(Act::Look);
                assert!(map.stats().balances());
            }
        }
    }

    fn receive(&self, gone: &Receiver<Gone>, most: usize) {
        for expired in gone.try_iter().take(most) {
            // It waited in the channel, so the time of its delivery is not known.
            expired.value.runs(Time::MAX, expired.deadline);
        }
    }

    fn call_timer(&self, timer: &Timer, kept: &Kept, world: &Arc<World>, random: &mut Random) {
        let one_of = |random: &mut Random| {
            let mut kept = lock(kept);
            let count = kept.len() as u64;
            (count > 0).then(|| kept.swap_remove(random.below(count) as usize))
        };
        match random.below(8) {
            0..4 => {
                world.count(Act::After);
                let delay = delay(random);
                let earliest = timer.now() + delay;
                let token = Token::new(&self.fates, world, earliest, random.below(u64::MAX));
                let (earliest, clock) = (token.earliest(), timer.clock().clone());
                let task = move || {
                    token.runs(clock.now(), Time::ZERO);
                    behave(token.world(), token.seed);
                };
                match timer.after(delay, task) {
                    Ok(handle) => {
                        let mut kept = lock(kept);
                        if kept.len() < KEPT {
                            kept.push((handle, earliest));
                        }
                    }
                    Err(refused) => {
                        self.fates.refused();
                        drop(refused);
                    }
                }
            }
            4 | 5 => {
                world.count(Act::Cancel);
                if let Some((handle, _)) = one_of(random) {
                    self.fates.cancelled(handle.cancel());
                }
            }
            6 => {
                world.count(Act::Move);
                if let Some((handle, earliest)) = one_of(random) {
                    earliest.store(0, Ordering::SeqCst);
                    let _ = handle.reschedule(delay(random));
                    lock(kept).push((handle, earliest));
                }
            }
            _ => {
                world.count(Act::Look);
                assert!(timer.stats().balances());
            }
        }
    }

    fn call_sleeps(
        &self,
        timer: &Timer,
        naps: &Mutex<Vec<Nap>>,
        world: &Arc<World>,
        random: &mut Random,
    ) {
        let one_of = |random: &mut Random| {
            let mut naps = lock(naps);
            let count = naps.len() as u64;
            (count > 0).then(|| naps.swap_remove(random.below(count) as usize))
        };
        world.count(Act::Sleep);
        let nap = match random.below(8) {
            0..4 => Some(Nap {
                sleep: Box::pin(timer.sleep(delay(random))),
                wakes: Wakes::new(),
            }),
            4 => {
                drop(one_of(random));
                None
            }
            5 => one_of(random).map(|mut nap| {
                nap.sleep.reset(delay(random));
                nap
            }),
            _ => one_of(random),
        };
        let Some(mut nap) = nap else { return };
        let polled = poll(&mut nap.sleep, &nap.wakes);
        if polled.is_pending() {
            let mut naps = lock(naps);
            if naps.len() < KEPT {
                naps.push(nap);
            }
        } else if polled == std::task::Poll::Ready(Ok(()))
            && timer.now() < nap.sleep.deadline()
            && !self.fates.is_hurried.load(Ordering::SeqCst)
        {
            world.fault("it slept for too short a time".to_owned());
        }
    }

    /// Begins a shutdown in a random mode, and treats the report in a random way.
    pub(super) fn shut_down(&self, world: &World, random: &mut Random) {
        let limit = micros(random, 40_000);
        let (act, mode) = match random.below(3) {
            0 => (Act::HandBack, Shutdown::HandBack),
            1 => (Act::RunNow, Shutdown::RunNow),
            _ => (Act::Drain, Shutdown::Drain { limit }),
        };
        world.count(act);
        if mode == Shutdown::RunNow {
            self.fates.is_hurried.store(true, Ordering::SeqCst);
        }
        self.fates.is_shut.store(true, Ordering::SeqCst);
        let how = random.below(3);
        match &self.kind {
            Kind::Tasks(scheduler) => {
                let told = |report: tourbillon::Report<u32>| Told {
                    handed_back: report.handed_back.len(),
                    already_closed: report.already_closed,
                };
                world.await_end(scheduler.shutdown(mode), how, &self.fates, told);
            }
            Kind::Entries(map, _) | Kind::Sent(map, ..) => {
                let told = |report: tourbillon::ExpiryReport<u32, Token>| Told {
                    handed_back: report.handed_back.len(),
                    already_closed: report.already_closed,
                };
                world.await_end(map.shutdown(mode), how, &self.fates, told);
            }
            Kind::Timers(timer, _) | Kind::Sleeps(timer, _) => {
                let told = |report: tourbillon::TimerReport| Told {
                    handed_back: report.handed_back.len(),
                    already_closed: report.already_closed,
                };
                world.await_end(timer.shutdown(mode), how, &self.fates, told);
            }
        }
    }

    /// What still knows the counters when this is dropped.
    pub(super) fn handle(&self) -> Option<Handle<u32>> {
        match &self.kind {
            Kind::Tasks(scheduler) => Some(scheduler.handle()),
            _ => None,
        }
    }

    /// After the shutdown: whether nothing is pending or runs, and who slept is awake. Compares the
    /// counts then.
    pub(super) fn is_over(&self) -> bool {
        let (state, totals) = match &self.kind {
            Kind::Tasks(scheduler) => {
                let timers = scheduler.handle();
                (timers.state(), Totals::from(timers.stats()))
            }
            Kind::Entries(map, _) => (map.state(), Totals::from(map.stats())),
            Kind::Sent(map, _, gone) => {
                self.receive(gone, usize::MAX);
                (map.state(), Totals::from(map.stats()))
            }
            Kind::Timers(timer, _) => (timer.state(), Totals::from(timer.stats())),
            Kind::Sleeps(timer, naps) => {
                let woken = lock(naps).iter().all(|nap| nap.wakes.count() > 0);
                let totals = Totals::from(timer.stats());
                let over = woken && timer.state() == Lifecycle::Closed && totals.pending == 0;
                // The sleeps have no tokens.
                assert!(totals.balances && totals.ticker_panics == 0, "{totals:?}");
                return over;
            }
        };
        let over = state == Lifecycle::Closed && totals.pending == 0 && totals.running == 0;
        if over && self.fates.are_settled() {
            self.fates.compare(&totals);
            return true;
        }
        false
    }
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = f.debug_tuple("Instance");
        match &self.kind {
            Kind::Tasks(scheduler) => all.field(&scheduler.handle().stats()),
            Kind::Entries(map, _) | Kind::Sent(map, ..) => all.field(&map.stats()),
            Kind::Timers(timer, _) | Kind::Sleeps(timer, _) => all.field(&timer.stats()),
        };
        all.field(&self.fates).finish()
    }
}

impl From<Stats> for Totals {
    fn from(stats: Stats) -> Self {
        Totals {
            scheduled: stats.scheduled,
            ran: stats.ran,
            cancelled: stats.cancelled,
            replaced: stats.replaced,
            handed_back: stats.handed_back,
            pending: stats.pending,
            running: stats.running,
            ticker_panics: stats.ticker_panics,
            balances: stats.balances(),
        }
    }
}

impl From<ExpiryStats> for Totals {
    fn from(stats: ExpiryStats) -> Self {
        Totals {
            scheduled: stats.inserted,
            ran: stats.expired,
            cancelled: stats.removed,
            replaced: stats.replaced,
            handed_back: stats.handed_back,
            pending: stats.pending,
            running: stats.running,
            ticker_panics: stats.ticker_panics,
            balances: stats.balances(),
        }
    }
}

/// Mostly soon, at times at once, and at times never.
fn delay(random: &mut Random) -> Duration {
    match random.below(8) {
        0 | 1 => Duration::ZERO,
        2..5 => micros(random, 3_000),
        5 | 6 => micros(random, 60_000),
        _ => Duration::from_secs(random.below(10_000)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
