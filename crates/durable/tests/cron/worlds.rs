//! Stores whose clock a test moves, and nodes on them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use kit::wait;
#[cfg(feature = "sqlite")]
use tourbillon_durable::Sqlite;
use tourbillon_durable::store::Store;
use tourbillon_durable::{Durable, DurableBuilder, DurableEvent, Memory, WallClock};

pub(crate) const DAY: Duration = Duration::from_secs(86_400);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The first of December 2026 in UTC.
pub(crate) fn december() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200)
}

pub(crate) struct World {
    pub(crate) clock: WallClock,
    open: Box<dyn Fn() -> Box<dyn Store>>,
    /// What the nodes have told.
    pub(crate) events: Arc<Mutex<Vec<DurableEvent>>>,
}

impl World {
    pub(crate) fn node(&self) -> DurableBuilder {
        let events = Arc::clone(&self.events);
        Durable::builder((self.open)())
            .poll_interval(Duration::from_millis(10))
            .node_lease(Duration::from_millis(500))
            .on_event(move |event| events.lock().unwrap().push(event.clone()))
    }

    pub(crate) fn store(&self) -> Box<dyn Store> {
        (self.open)()
    }

    pub(crate) fn client(&self) -> Durable {
        Durable::builder((self.open)()).start().unwrap()
    }
}

/// Runs a test on each store.
pub(crate) fn each(test: impl Fn(&World)) {
    let clock = WallClock::manual(december());
    let memory = Memory::with_clock(clock.clone());
    test(&World {
        clock,
        open: Box::new(move || Box::new(memory.clone())),
        events: Arc::default(),
    });
    #[cfg(feature = "sqlite")]
    {
        let folder = crate::folder::Folder::new("cron");
        let file = folder.path().join("timers.db");
        let clock = WallClock::manual(december());
        let of_file = clock.clone();
        test(&World {
            clock,
            open: Box::new(move || {
                Box::new(Sqlite::open(&file).unwrap().with_clock(of_file.clone()))
            }),
            events: Arc::default(),
        });
    }
}

/// What runs have told, in the order of their times.
#[derive(Clone)]
pub(crate) struct Told<T>(Arc<Mutex<Vec<T>>>);

impl<T> Default for Told<T> {
    fn default() -> Self {
        Told(Arc::default())
    }
}

impl<T: Clone + Ord + std::fmt::Debug + Send + 'static> Told<T> {
    pub(crate) fn add(&self, what: T) {
        self.0.lock().unwrap().push(what);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        let mut all = self.0.lock().unwrap().clone();
        all.sort();
        all
    }

    /// Waits for this number of runs, and returns them.
    #[track_caller]
    pub(crate) fn wait_for(&self, number: usize) -> Vec<T> {
        wait::until("the runs have ended", || self.all().len() >= number);
        self.all()
    }
}
