//! The builder of the router.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use axum::Router;
use axum::http::request::Parts;
use tokio::sync::Semaphore;
use tourbillon_durable::Durable;
use tourbillon_leases::Leases;

use crate::access::{Access, ActionEvent};
use crate::guard::Rate;
use crate::samples;
use crate::sources::{Instance, Locks, Store};
use crate::{api, guard, html, live};

/// Live pages at one time. Others are asked for again and again by the browser.
const LIVE: usize = 64;

/// What is shown, and who may do what.
///
/// # Examples
///
/// ```
/// use axum::Router;
/// use std::time::Duration;
/// use tourbillon::ExpiryMap;
/// use tourbillon_durable::{Durable, Memory};
/// use tourbillon_leases::{Leases, MemoryStore};
/// use tourbillon_web::{Access, Page};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let leases = Leases::new(MemoryStore::new())?;
/// let sessions = ExpiryMap::<u64, String>::builder()
///     .name("sessions")
///     .time_to_idle(Duration::from_secs(1_800))
///     .build(|_, _| ())?;
/// let page = Page::new()
///     .timers("shop", &timers)
///     .locks("redis", &leases)
///     .instance(sessions.clone())
///     .access(|_| Access::read_only());
/// let app: Router = Router::new().nest("/timers", page.router());
/// # Ok(())
/// # }
/// ```
#[must_use = "a page shows nothing before its router is nested"]
pub struct Page {
    shared: Shared,
}

/// The closure that decides what a request may do.
type Decides = dyn Fn(&Parts) -> Access + Send + Sync;

/// The listener to actions.
type Listens = dyn Fn(&ActionEvent) + Send + Sync;

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) stores: Vec<Store>,
    pub(crate) locks: Vec<Locks>,
    pub(crate) instances: Vec<Box<dyn Instance>>,
    pub(crate) shows_payloads: bool,
    pub(crate) rate: Rate,
    pub(crate) live: Arc<Semaphore>,
    pub(crate) hosts: Vec<String>,
    access: Box<Decides>,
    on_action: Option<Box<Listens>>,
    sampler: OnceLock<()>,
}

impl Default for Page {
    fn default() -> Self {
        Page::new()
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = &self.shared;
        f.debug_struct("Page")
            .field("stores", &shared.stores)
            .field("locks", &shared.locks)
            .field("instances", &shared.instances.len())
            .field("shows_payloads", &shared.shows_payloads)
            .finish_non_exhaustive()
    }
}

impl Page {
    /// A page that shows nothing yet, that everybody may read, and where nobody may change anything.
    pub fn new() -> Self {
        Page {
            shared: Shared {
                stores: Vec::new(),
                locks: Vec::new(),
                instances: Vec::new(),
                shows_payloads: false,
                rate: Rate::new(100),
                live: Arc::new(Semaphore::new(LIVE)),
                hosts: Vec::new(),
                access: Box::new(|_| Access::read_only()),
                on_action: None,
                sampler: OnceLock::new(),
            },
        }
    }

    /// Shows durable timers by this name, which stands in addresses.
    ///
    /// # Panics
    ///
    /// If there are timers of this name already.
    pub fn timers(mut self, name: impl Into<String>, timers: &Durable) -> Self {
        let name = name.into();
        let stores = &mut self.shared.stores;
        assert!(
            stores.iter().all(|store| store.name != name),
            "there are timers of the name {name:?} already"
        );
        stores.push(Store::new(name, timers.clone()));
        self
    }

    /// Shows the locks of a server by this name.
    ///
    /// # Panics
    ///
    /// If there are locks of this name already.
    pub fn locks(mut self, name: impl Into<String>, leases: &Leases) -> Self {
        let name = name.into();
        let locks = &mut self.shared.locks;
        assert!(
            locks.iter().all(|other| other.name != name),
            "there are locks of the name {name:?} already"
        );
        locks.push(Locks::new(name, leases.clone()));
        self
    }

    /// Shows the health and the metrics of a part of this process: a `Handle` of a scheduler, an
    /// `ExpiryMap`, a `Timer`. Those of [`timers`](Self::timers) and [`locks`](Self::locks) are shown
    /// without it.
    pub fn instance(mut self, instance: impl Instance) -> Self {
        self.shared.instances.push(Box::new(instance));
        self
    }

    /// Decides for each request who sends it and what it may do. Without it, everybody may read and
    /// nobody may change anything.
    ///
    /// The closure runs on a thread of the server for each request, so it must not block. Do slow
    /// checks in a layer of your own around the router, and let the closure read the extensions that
    /// it leaves in the request. If the closure panics, the answer is 500.
    pub fn access(mut self, access: impl Fn(&Parts) -> Access + Send + Sync + 'static) -> Self {
        self.shared.access = Box::new(access);
        self
    }

    /// Calls the listener after each action, also after one that has failed. It runs on a thread of
    /// the server, so it must not block. Its panics are dropped.
    pub fn on_action(mut self, listener: impl Fn(&ActionEvent) + Send + Sync + 'static) -> Self {
        self.shared.on_action = Some(Box::new(listener));
        self
    }

    /// Shows payloads and meta data of timers and dead letters. They may hold what those who look after timers
    /// need not know, so they are hidden by default.
    pub fn show_payloads(mut self, show: bool) -> Self {
        self.shared.shows_payloads = show;
        self
    }

    /// Answers at most this many requests a second, and twice as many in a burst. Others get 429.
    /// Scripts, styles and probes do not count, and neither do those who may not read. 100 by default; 0 counts as 1.
    pub fn requests_per_second(mut self, most: u32) -> Self {
        self.shared.rate = Rate::new(most);
        self
    }

    /// Answers only requests whose header `Host` names one of these, without the port. That guards a
    /// page on 127.0.0.1 against sites whose name leads there. Any host by default.
    pub fn hosts<N: Into<String>>(mut self, hosts: impl IntoIterator<Item = N>) -> Self {
        self.shared.hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Makes the router. It can be nested at any address, and serve a whole site.
    pub fn router(self) -> Router {
        let shared = Arc::new(self.shared);
        // Outside a runtime they begin with the first request.
        if tokio::runtime::Handle::try_current().is_ok() {
            shared.begin_samples();
        }
        let router = html::routes().merge(live::routes()).merge(api::routes());
        guard::around(router, &shared).with_state(shared)
    }
}

impl Shared {
    pub(crate) fn store(&self, name: &str) -> Option<&Store> {
        // With one store its name may be left out.
        match (name, self.stores.as_slice()) {
            ("", [only]) => Some(only),
            (name, stores) => stores.iter().find(|store| store.name == name),
        }
    }

    /// Asks the closure of the user. `None` if it panics.
    pub(crate) fn access_of(&self, request: &Parts) -> Option<Access> {
        catch_unwind(AssertUnwindSafe(|| (self.access)(request))).ok()
    }

    pub(crate) fn tell(&self, event: &ActionEvent) {
        if let Some(listener) = &self.on_action {
            // The action is done, whatever the listener does.
            drop(catch_unwind(AssertUnwindSafe(|| listener(event))));
        }
    }

    /// Begins to take samples, with the first request. The task ends after the router was dropped.
    pub(crate) fn begin_samples(self: &Arc<Self>) {
        self.sampler.get_or_init(|| {
            let shared = Arc::downgrade(self);
            tokio::spawn(take_samples(shared));
        });
    }
}

async fn take_samples(shared: Weak<Shared>) {
    let mut ticks = tokio::time::interval(samples::EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        for store in &shared.stores {
            store.samples.add(Instant::now(), &store.timers.metrics());
        }
    }
}
