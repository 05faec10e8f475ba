//! Leases in memory, and on servers.

use std::fmt::Debug;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use tourbillon::{BuildError, Runtime};
use tourbillon_leases::channel::Receiver;
use tourbillon_leases::{
    Acquired, BlockingStore, Claim, Destination, Election, ElectionRole, Fault, Holding, KeepAlive,
    KeepError, KeepGuard, Leader, Leadership, LeaseFuture, LeaseGuard, LeaseStore, Leases,
    LockError, Loss, MemoryStore, Outcome, ReleaseError, Released, Renewal, Secret, StoreCall,
    StoreError, StoreFuture, TermEnd,
};

use crate::calls::Calls;
use crate::child::{Report, in_copy};
use crate::core::poll;

const HAMMERS: usize = 4;
/// The keys whose renewals are often under way.
const FLIGHTS: usize = 8;
const FLIGHT_LEASE: Duration = Duration::from_secs(3);
/// What the original holds all the time.
const WAITED_FOR: &str = "waited-for";
/// The longest that the stores grant, and longer than a copy may take for a step: what waits for
/// its end hangs.
const LEASE: Duration = Duration::from_secs(30);

/// What a copy has of its original.
struct Inherited<S: LeaseStore> {
    store: S,
    leases: Leases,
    guard: LeaseGuard,
    again: LeaseGuard,
    fixed: LeaseGuard,
    /// With threads of its own.
    own: Leases,
    runtime: Runtime,
    /// On that runtime. The leases are on that of the process.
    flights: KeepAlive<u64>,
    wakers: Vec<Waker>,
    keep_alive: KeepAlive<u64>,
    kept: KeepGuard<u64>,
    waiting: Pin<Box<dyn Future<Output = Result<LeaseGuard, LockError>>>>,
    dropped: Pin<Box<dyn Future<Output = Result<LeaseGuard, LockError>>>>,
    /// Holds a lock, and waits for another one.
    all: LeaseFuture<Result<Vec<LeaseGuard>, LockError>>,
    elections: Elections,
}

type Service = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

/// Candidates and a follower.
struct Elections {
    /// Threads use its clones, so that its locks are held now and then.
    election: Election,
    leadership: Leadership,
    leaders: Receiver<Option<Leader>>,
    /// One that waits, one that leads, and one that lets others lead first. Then the same again.
    services: Vec<Service>,
}

impl Elections {
    fn begin(leases: &Leases, number: usize, election: &Election) -> Self {
        let mut services = Vec::new();
        for again in ["", "-again"] {
            let candidate = |what: &str| leases.election(format!("{what}-{number}{again}"));
            let waits = |role, _| role == ElectionRole::Waiting;
            services.push(service(&leases.election(WAITED_FOR), false, waits));
            let leads = |role, _| matches!(role, ElectionRole::Leading { .. });
            services.push(service(&candidate("leads"), false, leads));
            let yields = |role, terms| role == ElectionRole::Waiting && terms > 0;
            services.push(service(&candidate("yields"), true, yields));
        }
        let candidate = leases.election(format!("elected-{number}"));
        Elections {
            leadership: candidate.lead().wait().expect("nobody else wants it"),
            leaders: election.leaders().expect("a good name"),
            election: election.clone(),
            services,
        }
    }
}

/// Serves, by work that returns at once or never, until the candidate is where it should be.
fn service(
    election: &Election,
    returns: bool,
    is_there: impl Fn(ElectionRole, u64) -> bool,
) -> Service {
    let terms = Arc::new(AtomicU64::new(0));
    let led = Arc::clone(&terms);
    let mut service: Service = Box::pin(election.serve_async(async move |_| {
        led.fetch_add(1, Ordering::SeqCst);
        if !returns {
            std::future::pending::<()>().await;
        }
    }));
    loop {
        let polled = poll(service.as_mut());
        assert!(polled.is_pending(), "{polled:?}");
        if is_there(election.status().role, terms.load(Ordering::SeqCst)) {
            return service;
        }
        thread::park_timeout(Duration::from_micros(100));
    }
}

/// What the original has for all copies.
struct Original<'a> {
    leases: &'a Leases,
    own: &'a Leases,
    runtime: &'a Runtime,
    keep_alive: &'a KeepAlive<u64>,
    election: &'a Election,
    flights: &'a Flights,
}

/// Keys of which some have a renewal that is pending at any time.
struct Flights {
    keep_alive: KeepAlive<u64>,
    kept: Vec<KeepGuard<u64>>,
    /// What would wake these renewals.
    wakers: Arc<Mutex<Vec<Waker>>>,
}

impl Flights {
    fn begin(runtime: &Runtime) -> Self {
        let wakers = Arc::new(Mutex::new(Vec::new()));
        let calls = [const { AtomicU64::new(0) }; FLIGHTS];
        let leaves = Arc::clone(&wakers);
        let keep_alive = KeepAlive::builder()
            .runtime(runtime)
            .destination(|key| Destination::new(*key))
            .build(move |batch| {
                // Every other call hangs until its limit.
                let of = &calls[batch.destination().get() as usize];
                let hangs = of.fetch_add(1, Ordering::SeqCst) % 2 == 0;
                let leaves = Arc::clone(&leaves);
                poll_fn(move |context| {
                    if hangs {
                        let waker = context.waker().clone();
                        leaves.lock().expect("nobody panics").push(waker);
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(vec![Outcome::Renewed; batch.len()]))
                })
            })
            .expect("the options are good");
        let keep = |key| keep_alive.keep(key, FLIGHT_LEASE).expect("it lives");
        let kept = (0..FLIGHTS as u64).map(keep).collect();
        Flights {
            keep_alive,
            kept,
            wakers,
        }
    }

    /// Takes what would wake the renewals. It is nobody's but theirs.
    fn take_wakers(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.wakers.lock().expect("nobody panics"))
    }
}

/// Forks beside threads that use leases of `store`. Copies get a store of their own by `open`, unless
/// that refuses it in a copy. Returns what was wrong.
pub(crate) fn run<S: LeaseStore + Clone + Debug>(
    forks: usize,
    store: &S,
    open: impl Fn() -> Result<S, StoreError>,
) -> Option<String> {
    let leases = Leases::new(store.clone()).expect("the options are good");
    let own = Leases::builder(store.clone()).own_threads().build();
    let own = own.expect("the options are good");
    let runtime = Runtime::builder().tickers(1).workers(1).build();
    let runtime = runtime.expect("the options are good");
    let keep_alive = KeepAlive::builder()
        .runtime(&runtime)
        .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]));
    let keep_alive = keep_alive.expect("the options are good");
    let election = leases.election("hammer");
    let flights = Flights::begin(&runtime);
    let original = Original {
        flights: &flights,
        election: &election,
        leases: &leases,
        own: &own,
        runtime: &runtime,
        keep_alive: &keep_alive,
    };
    // So those who wait for it are never granted it.
    let _taken = leases
        .lock(WAITED_FOR)
        .wait()
        .expect("nobody else wants it");
    let ended = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        for hammer in 0..HAMMERS {
            let (original, ended, rounds) = (&original, &ended, &rounds);
            scope.spawn(move || use_them(hammer, original, ended, rounds));
        }
        let _ends = Ends(&ended);
        let mut wrong = None;
        for number in 0..forks {
            // All of them are at it, so that locks of theirs are held now and then.
            let before = rounds.load(Ordering::SeqCst);
            while rounds.load(Ordering::SeqCst) < before + 20 && !ended.load(Ordering::SeqCst) {
                thread::park_timeout(Duration::from_micros(100));
            }
            wrong = one_copy(number, store, &original, &open);
            if wrong.is_some() || ended.load(Ordering::SeqCst) {
                break;
            }
        }
        if ended.swap(true, Ordering::SeqCst) {
            wrong = wrong.or(Some("a thread of the original failed".to_owned()));
        }
        if !flights.kept.iter().all(KeepGuard::is_kept) {
            wrong = wrong.or(Some("a renewal of the original went missing".to_owned()));
        }
        wrong
    })
}

/// Ends the threads also when this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Takes and gives back, as others do while one forks.
fn use_them(hammer: usize, original: &Original<'_>, ended: &AtomicBool, rounds: &AtomicU64) {
    let Original {
        leases,
        keep_alive,
        election,
        ..
    } = *original;
    let name = format!("hammer-{hammer}");
    while !ended.load(Ordering::SeqCst) {
        let done = leases
            .lock(&name)
            .at_once()
            .wait()
            .map(|guard| guard.release().wait());
        let kept = keep_alive.keep(hammer as u64, LEASE).map(KeepGuard::stop);
        let _ = (leases.stats(), keep_alive.stats());
        let _ = (election.status(), election.leaders(), election.resign());
        if !matches!(done, Ok(Ok(()))) || !matches!(kept, Ok(Ok(()))) {
            eprintln!("{name}: {done:?}, {kept:?}");
            ended.store(true, Ordering::SeqCst);
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns a future that holds a lock while it waits for one that the original holds.
fn hold_one_of_two(
    leases: &Leases,
    number: usize,
) -> LeaseFuture<Result<Vec<LeaseGuard>, LockError>> {
    let own = format!("all-{number}");
    let mut all = leases.lock_all([&own, WAITED_FOR]).into_future();
    loop {
        let polled = poll(Pin::new(&mut all));
        assert!(polled.is_pending(), "{polled:?}");
        if leases
            .holder(&own)
            .wait()
            .expect("the store is there")
            .is_some()
        {
            return all;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks one copy, and the original after it. Returns what was wrong.
fn one_copy<S: LeaseStore + Clone + Debug>(
    number: usize,
    store: &S,
    original: &Original<'_>,
    open: &impl Fn() -> Result<S, StoreError>,
) -> Option<String> {
    let Original {
        leases, keep_alive, ..
    } = *original;
    let held = format!("held-{number}");
    let guard = leases.lock(&held).wait().expect("nobody else wants it");
    let wait = || {
        let leases = Leases::clone(leases);
        let mut waiting = Box::pin(async move { leases.lock(WAITED_FOR).await });
        // It has begun.
        let began = poll(waiting.as_mut());
        assert!(began.is_pending(), "{began:?}");
        waiting
    };
    let fixed = format!("fixed-{number}");
    let fixed = leases.lock(&fixed);
    let fixed = match store.can_share() {
        true => fixed.permit_of(2),
        false => fixed,
    };
    let inherited = Inherited {
        store: store.clone(),
        leases: Leases::clone(leases),
        own: Leases::clone(original.own),
        runtime: original.runtime.clone(),
        again: guard.again().expect("it is held"),
        fixed: fixed
            .lease(LEASE)
            .not_renewed()
            .at_once()
            .wait()
            .expect("nobody else wants it"),
        guard,
        flights: original.flights.keep_alive.clone(),
        wakers: original.flights.take_wakers(),
        keep_alive: KeepAlive::clone(keep_alive),
        kept: keep_alive.keep(number as u64, LEASE).expect("it lives"),
        waiting: wait(),
        dropped: wait(),
        all: hold_one_of_two(leases, number),
        elections: Elections::begin(leases, number, original.election),
    };
    let owner = inherited.guard.id().owner().to_owned();
    let mut inherited = Some(inherited);
    let wrong = in_copy(|report| {
        let inherited = inherited.take().expect("it is there");
        complaints(report, inherited);
        if report.threads_start() {
            of_its_own(report, number, &owner, open);
        }
    });
    if let Some(wrong) = wrong {
        return Some(format!("copy {number}: {wrong}"));
    }
    // Nothing of it has changed here.
    let Inherited {
        guard,
        again,
        fixed,
        kept,
        wakers,
        ..
    } = inherited.expect("only the copy takes it");
    // These renewals have ended, or find nothing new.
    wakers.into_iter().for_each(Waker::wake);
    let released = (
        guard.is_held(),
        again.release().wait(),
        guard.release().wait(),
        fixed.release().wait(),
    );
    if released != (true, Ok(()), Ok(()), Ok(())) || kept.stop() != Ok(()) {
        return Some(format!("the original after copy {number}: {released:?}"));
    }
    None
}

fn complaints<S: LeaseStore + Clone + Debug>(report: &mut Report, inherited: Inherited<S>) {
    let Inherited {
        store,
        leases,
        guard,
        again,
        fixed,
        own,
        runtime,
        flights,
        wakers,
        keep_alive,
        kept,
        mut waiting,
        dropped,
        mut all,
        elections,
    } = inherited;
    its_elections(report, elections);
    let mut check = |what: &str, holds: bool, seen: &dyn Debug| report.check(what, holds, seen);

    // Renewals that were under way. Nobody polls them here, and nothing is locked.
    wakers.iter().for_each(Waker::wake_by_ref);
    drop(wakers);
    check("flights", flights.stats().kept == 0, &flights);
    drop(flights);

    // The locks of the original.
    check("is_held", !guard.is_held() && !fixed.is_held(), &guard);
    check("remaining", guard.remaining().is_zero(), &guard);
    check("feed", !guard.feed(), &guard);
    check("renewals", guard.renewals() == 0, &guard);
    let lost = guard.lost();
    check("loss", lost.loss() == Some(Loss::Forked), &lost);
    check(
        "channel",
        lost.channel().try_recv() == Ok(Loss::Forked),
        &lost,
    );
    let ready = poll(pin!(lost));
    check("future", ready == Poll::Ready(Some(Loss::Forked)), &ready);
    let entered = guard.again();
    let refused = matches!(
        entered,
        Err(LockError::Lost {
            loss: Loss::Forked,
            ..
        })
    );
    check("again", refused, &entered);
    let _ = (again.release().wait(), fixed);
    let released = guard.release().wait();
    let lost = released == Err(ReleaseError::Lost(Loss::Forked));
    check("release", lost, &released);

    // New ones by what was inherited.
    let tried = leases.lock("new").at_once().wait();
    check("lock at once", is_forked(&tried), &tried);
    let tried = leases.lock("new").within(LEASE).wait();
    check("lock within", is_forked(&tried), &tried);
    let locked = leases.lock("new").wait();
    check("lock", is_forked(&locked), &locked);
    let mut waited = poll(waiting.as_mut());
    if let Poll::Ready(waited) = &mut waited {
        check("lock that is awaited", is_forked(waited), waited);
    } else {
        check("lock that is awaited", false, &"it waits");
    }
    let locked = leases.lock_all(["new"]).wait();
    check("lock_all", is_forked(&locked), &locked);
    match poll(Pin::new(&mut all)) {
        Poll::Ready(locked) => check("lock_all, awaited", is_forked(&locked), &locked),
        Poll::Pending => check("lock_all, awaited", false, &"it waits"),
    }
    drop((waiting, dropped, all));
    check("stats", leases.stats().kept == 0, &leases.stats());
    let health = leases.health();
    check("health", crate::core::is_forked(&health), &health);
    check("events", leases.events(1).try_recv().is_err(), &leases);
    check("close", leases.close(LEASE) == 0, &leases);

    // The store's own calls.
    let claim = Claim::new("new", "me", Secret::new("me"), LEASE);
    let asked = Calls::acquire(&store, &claim, LEASE);
    check("acquire", asked == Err(StoreError::Forked), &asked);
    let asked = Calls::renew(
        &store,
        Destination::default(),
        &[Renewal::new("new", Secret::new("me"), LEASE)],
        LEASE,
    );
    check("renew", asked == Err(StoreError::Forked), &asked);
    let asked = Calls::release(&store, "new", Secret::new("me"), LEASE);
    check("release", asked == Err(StoreError::Forked), &asked);
    let watched = store.watch("new", Waker::noop());
    check("watch", watched.is_none(), &store);
    let made = Leases::new(store.clone()).expect("the options are good");
    let tried = made.lock("new").at_once().wait();
    check("lock of a new one", is_forked(&tried), &tried);
    // On what was inherited.
    let tried = own.lock("new").at_once().wait();
    check("lock with own threads", is_forked(&tried), &tried);
    let made = (
        made,
        Leases::builder(store.clone()).runtime(&runtime).build(),
    );
    let tried = made.1.as_ref().expect("the options are good");
    let tried = tried.lock("new").at_once().wait();
    let refused = matches!(
        tried,
        Err(LockError::Runtime {
            error: BuildError::Forked,
            ..
        })
    );
    check("lock on a runtime of before", refused, &tried);
    drop((made, own, runtime, leases, store));

    // The watchdog.
    let new = keep_alive.keep(7, LEASE);
    check("keep", matches!(new, Err(KeepError::Forked)), &keep_alive);
    check("close", keep_alive.close() == 0, &keep_alive);
    let stopped = kept.stop();
    check("stop", stopped == Err(Loss::Forked), &stopped);
    drop(keep_alive);
}

/// The elections of the original.
fn its_elections(report: &mut Report, elections: Elections) {
    let mut check = |what: &str, holds: bool, seen: &dyn Debug| report.check(what, holds, seen);
    let Elections {
        election,
        leadership,
        leaders,
        mut services,
    } = elections;
    let is_forked = |answer: &Result<(), LockError>| {
        matches!(
            answer,
            Err(LockError::Store {
                error: StoreError::Forked,
                ..
            })
        )
    };
    // Half of them are dropped without another poll.
    for service in &mut services[3..] {
        let served = poll(service.as_mut());
        let ends = matches!(&served, Poll::Ready(served) if is_forked(served));
        check("a service of before", ends, &served);
    }
    drop(services);
    check("is_leader", !leadership.is_leader(), &leadership);
    let over = poll(pin!(leadership.over()));
    check("over", over.is_ready(), &over);
    let end = leadership.end().wait();
    check("end", end == TermEnd::Lost(Loss::Forked), &end);
    let served = election.serve(|_| ());
    check("serve", is_forked(&served), &served);
    let served = poll(pin!(election.serve_async(async |_| ())));
    let ends = matches!(&served, Poll::Ready(served) if is_forked(served));
    check("serve_async", ends, &served);
    let heard = election.leaders().map(drop);
    check("leaders", is_forked(&heard), &heard);
    let status = election.status();
    let says_so = status.error == Some(StoreError::Forked);
    let is_idle = status.role == ElectionRole::Idle;
    check("status", says_so && is_idle, &status);
    let health = election.health();
    check("health", crate::core::is_forked(&health), &health);
    check("resign", !election.resign(), &"it has resigned");
    election.stop();
    drop((leaders, election));
}

/// Leases that are made in the copy work.
fn of_its_own<S: LeaseStore + Clone + Debug>(
    report: &mut Report,
    number: usize,
    owner: &str,
    open: &impl Fn() -> Result<S, StoreError>,
) {
    let mut stores = Vec::new();
    for _ in 0..3 {
        match open() {
            Ok(store) => stores.push(store),
            // A connection of the copy would count on locks of the file that it does not have.
            Err(error) => {
                let is_sqlite = std::any::type_name::<S>().contains("SqliteStore");
                report.check("open", is_sqlite && error == StoreError::Forked, &error);
                return;
            }
        }
    }
    let mut open = || stores.pop().expect("there are three");
    let runtime = Runtime::builder().tickers(1).workers(1).build();
    let runtime = runtime.expect("the options are good");
    let builders = [
        Leases::builder(open()),
        Leases::builder(open()).own_threads(),
        Leases::builder(open()).runtime(&runtime),
    ];
    for builder in builders {
        let leases = builder.build().expect("the options are good");
        check_own(report, number, owner, &leases, std::any::type_name::<S>());
    }
}

fn check_own(report: &mut Report, number: usize, owner: &str, leases: &Leases, store: &str) {
    let taken = leases.lock(&format!("held-{number}")).at_once().wait();
    // A store in memory has not what the original has.
    let shared = matches!(taken, Err(LockError::Held { .. }));
    report.check("taken", shared || store.contains("MemoryStore"), &taken);
    match leases.lock("its-own").wait() {
        Ok(guard) => {
            report.check("held", guard.is_held(), &guard);
            report.check("owner", guard.id().owner() != owner, &guard);
            let released = guard.release().wait();
            report.check("release of its own", released.is_ok(), &released);
        }
        Err(error) => report.check("lock of its own", false, &error),
    }
}

/// Copies that are made while calls of the original hang on the threads of its store, or wait for
/// one. Returns what was wrong.
pub(crate) fn amid_calls(forks: usize) -> Option<String> {
    let memory = MemoryStore::new();
    let (go_on, hangs) = channel::<()>();
    let hangs = Mutex::new(hangs);
    let claims = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&claims);
    memory.inject(move |call| {
        if matches!(call, StoreCall::Claim(_)) {
            count.fetch_add(1, Ordering::SeqCst);
            let hangs = hangs.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = hangs.recv();
        }
        Fault::None
    });
    let leases = Leases::new(BlockingStore::new(memory)).expect("the options are good");
    let begin = |name: &str| {
        let mut lock = leases.lock(name).into_future();
        let began = poll(Pin::new(&mut lock));
        assert!(began.is_pending(), "{began:?}");
        lock
    };
    let first = begin("first");
    while claims.load(Ordering::SeqCst) == 0 {
        thread::park_timeout(Duration::from_micros(100));
    }
    let wrong = (0..forks).find_map(|number| {
        let mut inherited = Some((begin("polled"), begin("dropped")));
        let wrong = in_copy(|report| {
            let (mut polled, dropped) = inherited.take().expect("it is there");
            drop(dropped);
            let answer = poll(Pin::new(&mut polled));
            let fails = matches!(&answer, Poll::Ready(locked) if is_forked(locked));
            report.check("a lock amid its call", fails, &answer);
            drop(polled);
            let look = leases.holder("first").wait();
            report.check("holder", is_forked(&look), &look);
        });
        wrong.map(|wrong| format!("copy {number}, amid calls: {wrong}"))
    });
    drop(go_on);
    drop(first);
    wrong
}

/// Counts the polls of its calls. They are pending while it is shut.
#[derive(Default)]
struct Polled {
    memory: MemoryStore,
    shut: AtomicBool,
    polls: AtomicU64,
}

impl Polled {
    async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        std::future::poll_fn(|_| {
            self.polls.fetch_add(1, Ordering::SeqCst);
            match self.shut.load(Ordering::SeqCst) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        call.await
    }
}

impl LeaseStore for Polled {
    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(self.call(LeaseStore::acquire(&self.memory, destination, batch, limit)))
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        Box::pin(self.call(LeaseStore::renew(&self.memory, destination, batch, limit)))
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(self.call(LeaseStore::release(&self.memory, destination, batch, limit)))
    }
}

/// Copies that are made amid calls whose futures they have. They poll no store. Returns what was
/// wrong.
pub(crate) fn amid_polls(forks: usize) -> Option<String> {
    let store = Arc::new(Polled::default());
    let leases = Leases::new(Arc::clone(&store)).expect("the options are good");
    let shut = |shut| store.shut.store(shut, Ordering::SeqCst);
    (0..forks).find_map(|number| {
        let lock = |name: &str| leases.lock(&format!("{name}-{number}")).wait();
        let [one, two, three] = ["one", "two", "three"].map(|name| lock(name).expect("it is free"));
        shut(true);
        let mut futures = (
            leases.lock("lock").into_future(),
            leases.lock_all(["each", "other"]).each(),
            one.release(),
            leases.release_many([two]),
        );
        assert!(poll(Pin::new(&mut futures.0)).is_pending());
        assert!(poll(Pin::new(&mut futures.1)).is_pending());
        assert!(poll(Pin::new(&mut futures.2)).is_pending());
        assert!(poll(Pin::new(&mut futures.3)).is_pending());
        let mut inherited = Some((futures, three));
        let wrong = in_copy(|report| {
            let ((mut lock, mut each, mut release, mut many), three) =
                inherited.take().expect("it is there");
            let before = store.polls.load(Ordering::SeqCst);
            let lost = Err(ReleaseError::Lost(Loss::Forked));
            let locked = poll(Pin::new(&mut lock));
            let fails = matches!(&locked, Poll::Ready(locked) if is_forked(locked));
            report.check("a lock amid its call", fails, &locked);
            let locked = poll(Pin::new(&mut each));
            let fails = matches!(&locked, Poll::Ready(each) if each.iter().all(is_forked));
            report.check("locks amid their call", fails, &locked);
            let released = poll(Pin::new(&mut release));
            report.check(
                "a release",
                released == Poll::Ready(lost.clone()),
                &released,
            );
            let released = poll(Pin::new(&mut many));
            let fails = released == Poll::Ready(vec![lost.clone()]);
            report.check("a release of many", fails, &released);
            let released = three.release().wait();
            report.check("a new release", released == lost, &released);
            drop((lock, each, release, many));
            let polls = store.polls.load(Ordering::SeqCst) - before;
            report.check("polls", polls == 0, &polls);
        });
        shut(false);
        wrong.map(|wrong| format!("copy {number}, amid polls: {wrong}"))
    })
}

fn is_forked<T>(answer: &Result<T, LockError>) -> bool {
    matches!(
        answer,
        Err(LockError::Store {
            error: StoreError::Forked,
            ..
        })
    )
}
