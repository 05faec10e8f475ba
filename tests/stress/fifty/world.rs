//! All instances, what threads and tasks do with them, and what remains of those that ended.

use std::hint::black_box;
use std::mem;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon::{Closing, Handle, Runtime};

use super::Random;
use super::fates::{Fates, Told, Totals};
use super::instance::Instance;

const INSTANCES: usize = 50;

/// Only an instance that is broken has not ended until then.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! acts {
    ($($act:ident),+ $(,)?) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Act {
            $($act),+
        }

        const ACTS: &[Act] = &[$(Act::$act),+];
    };
}

acts! {
    Schedule, Move, PullIn, Cancel, CancelById, CancelMany, CancelAndWait, Insert, Touch, TouchMany,
    Remove, Retain, After, Sleep, Look, Build, HandBack, RunNow, Drain, Drop, Panic, Block, Compute,
    Answered, Unanswered,
}

#[derive(Debug)]
pub(super) struct World {
    runtime: Runtime,
    places: Vec<Mutex<Option<Arc<Instance>>>>,
    /// Those that have ended, until their armings are accounted for.
    graves: Mutex<Vec<Grave>>,
    /// The reports that come later.
    closings: Mutex<Vec<LaterReport>>,
    acts: Vec<AtomicU64>,
    /// Number of armings of instances that have ended.
    ended: AtomicU64,
    faults: Mutex<Vec<String>>,
    over: AtomicBool,
}

/// An instance that has ended.
#[derive(Debug)]
struct Grave {
    fates: Arc<Fates>,
    remains: Remains,
    since: Instant,
}

#[derive(Debug)]
enum Remains {
    /// It was shut down.
    Whole(Arc<Instance>),
    /// It is dropped by whoever calls it last.
    Dropped(Weak<Instance>, Option<Handle<u32>>),
}

/// Looks for a report. Returns whether it has come.
struct LaterReport(Box<dyn FnMut() -> bool + Send>);

impl std::fmt::Debug for LaterReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaterReport(..)")
    }
}

impl World {
    pub(super) fn new(runtime: Runtime) -> Arc<Self> {
        Arc::new(World {
            runtime,
            places: (0..INSTANCES).map(|_| Mutex::default()).collect(),
            graves: Mutex::default(),
            closings: Mutex::default(),
            acts: ACTS.iter().map(|_| AtomicU64::new(0)).collect(),
            ended: AtomicU64::new(0),
            faults: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn count(&self, act: Act) {
        self.acts[act as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn fault(&self, text: String) {
        self.faults.lock().unwrap().push(text);
    }

    /// Ends what the threads and tasks do.
    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// The acts that did not happen yet.
    pub(super) fn missing(&self) -> Vec<Act> {
        let happened = |act: &Act| self.acts[*act as usize].load(Ordering::Relaxed) > 0;
        ACTS.iter().copied().filter(|act| !happened(act)).collect()
    }

    /// The number of acts of each kind.
    pub(super) fn summary(&self) -> String {
        let of = |act: &Act| {
            let count = self.acts[*act as usize].load(Ordering::Relaxed);
            format!("{act:?} {count}")
        };
        let acts: Vec<_> = ACTS.iter().map(of).collect();
        let ended = self.ended.load(Ordering::Relaxed);
        let graves = self.graves.lock().unwrap().len();
        let workers = self.runtime.stats().workers;
        format!(
            "{}; armings that ended {ended}, instances that end {graves}, workers {workers}",
            acts.join(", ")
        )
    }

    fn replace(&self, place: usize, new: Option<Instance>) -> Option<Arc<Instance>> {
        let new = new.map(Arc::new);
        mem::replace(&mut *self.places[place].lock().unwrap(), new)
    }

    /// Ends an instance in a random way.
    fn end(&self, old: Arc<Instance>, random: &mut Random) {
        let fates = Arc::clone(&old.fates);
        let since = Instant::now();
        let remains = if random.below(3) == 0 {
            self.count(Act::Drop);
            Remains::Dropped(Arc::downgrade(&old), old.handle())
        } else {
            old.shut_down(self, random);
            Remains::Whole(Arc::clone(&old))
        };
        let grave = Grave {
            fates,
            remains,
            since,
        };
        self.graves.lock().unwrap().push(grave);
        drop(old);
    }

    /// Treats the report of a shutdown: drops it, leaves it for later, or waits for it.
    pub(super) fn await_end<R: Default + Send + 'static>(
        &self,
        closing: Closing<R>,
        how: u64,
        fates: &Arc<Fates>,
        told: fn(R) -> Told,
    ) {
        let later = match how {
            0 => return,
            1 => closing,
            _ => match closing.wait() {
                Ok(report) => return fates.told(told(report)),
                // In a task of the instance.
                Err(inside) => inside.into_closing(),
            },
        };
        let (mut later, fates) = (Some(later), Arc::clone(fates));
        let look = move || match later.take().map(Closing::try_wait) {
            Some(Err(closing)) => {
                later = Some(closing);
                false
            }
            Some(Ok(report)) => {
                fates.told(told(report));
                true
            }
            None => true,
        };
        let later = LaterReport(Box::new(look));
        self.closings.lock().unwrap().push(later);
    }

    /// Accounts for the instances that have ended. Fails if one does not end.
    pub(super) fn account(&self) {
        let faults = self.faults.lock().unwrap().clone();
        assert_eq!(faults, [""; 0]);
        let mut closings = mem::take(&mut *self.closings.lock().unwrap());
        closings.retain_mut(|closing| !(closing.0)());
        self.closings.lock().unwrap().append(&mut closings);
        let mut graves = mem::take(&mut *self.graves.lock().unwrap());
        graves.retain(|grave| {
            let over = grave.is_over();
            assert!(
                over || grave.since.elapsed() < PATIENCE,
                "it does not end: {grave:?} {:?}",
                self.runtime
            );
            if over {
                self.ended.fetch_add(grave.fates.ended(), Ordering::Relaxed);
            }
            !over
        });
        self.graves.lock().unwrap().append(&mut graves);
    }

    /// Ends all instances, and accounts for them.
    pub(super) fn end_all(&self, random: &mut Random) {
        // A task may have built one after the stop was asked for.
        loop {
            for place in 0..INSTANCES {
                if let Some(old) = self.replace(place, None) {
                    self.end(old, random);
                }
            }
            while !(self.graves.lock().unwrap().is_empty()
                && self.closings.lock().unwrap().is_empty())
            {
                self.account();
                thread::park_timeout(Duration::from_millis(1));
            }
            let is_empty = |place: &Mutex<Option<_>>| place.lock().unwrap().is_none();
            if self.places.iter().all(is_empty) {
                return self.account();
            }
        }
    }
}

impl Grave {
    fn is_over(&self) -> bool {
        match &self.remains {
            // Nobody else calls it any more.
            Remains::Whole(instance) => Arc::strong_count(instance) == 1 && instance.is_over(),
            Remains::Dropped(instance, handle) => {
                if instance.strong_count() > 0 || !self.fates.are_settled() {
                    return false;
                }
                let Some(totals) = handle.as_ref().map(|handle| Totals::from(handle.stats()))
                else {
                    return true;
                };
                let over = totals.pending == 0 && totals.running == 0;
                if over {
                    self.fates.compare(&totals);
                }
                over
            }
        }
    }
}

/// One random act of a thread or a task.
pub(super) fn act(world: &Arc<World>, random: &mut Random) {
    let place = random.below(INSTANCES as u64) as usize;
    let choice = random.below(200);
    let instance = world.places[place].lock().unwrap().clone();
    match instance {
        Some(instance) if choice == 0 => instance.shut_down(world, random),
        Some(instance) if choice > 2 => instance.call(world, random),
        _ => {
            drop(instance);
            let new = (!world.is_over()).then(|| Instance::build(world, random));
            if let Some(old) = world.replace(place, new) {
                world.end(old, random);
            }
        }
    }
}

/// What a task does.
pub(super) fn behave(world: &Arc<World>, seed: u64) {
    if world.is_over() {
        return;
    }
    let mut random = Random(seed);
    match random.below(100) {
        0..5 => {
            world.count(Act::Block);
            thread::park_timeout(micros(&mut random, 5_000));
        }
        5..10 => {
            world.count(Act::Compute);
            for step in 0..random.below(50_000) {
                black_box(step);
            }
        }
        10..13 => {
            world.count(Act::Panic);
            // Not reported by the hook.
            resume_unwind(Box::new(()));
        }
        13..30 => act(world, &mut random),
        30..32 => {
            let (answer, answered) = sync_channel(1);
            let place = random.below(INSTANCES as u64) as usize;
            let instance = world.places[place].lock().unwrap().clone();
            if instance.is_some_and(|instance| instance.ask(answer, world, &mut random)) {
                // The other one may be closed, or all its tasks may wait for others.
                let came = answered.recv_timeout(Duration::from_millis(20)).is_ok();
                world.count(if came { Act::Answered } else { Act::Unanswered });
            }
        }
        _ => {}
    }
}

/// A time of up to `most` microseconds.
pub(super) fn micros(random: &mut Random, most: u64) -> Duration {
    Duration::from_micros(1 + random.below(most))
}
