//! The program itself.

use std::fmt::Debug;
use std::future::Future;
use std::io::{PipeWriter, Read, Write, pipe};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon_leases::{
    Claim, Destination, KeepAlive, KeepError, KeepGuard, LeaseGuard, LeaseStore, Leases, LockError,
    Loss, MemoryStore, Outcome, RedisStore, ReleaseError, Renewal, Secret, StoreError,
};

use crate::core::poll;

const FORKS: usize = 60;
const HAMMERS: usize = 4;
/// What the original holds all the time.
const WAITED_FOR: &str = "waited-for";
const LEASE: Duration = Duration::from_secs(30);
/// A call of a copy that takes longer is held up by something.
const AT_ONCE: Duration = Duration::from_secs(10);
/// A copy that hangs ends itself then.
const HANGS: Duration = Duration::from_secs(40);

/// What a copy has of its original.
struct Inherited<S: LeaseStore> {
    store: S,
    leases: Leases,
    guard: LeaseGuard,
    again: LeaseGuard,
    fixed: LeaseGuard,
    keep_alive: KeepAlive<u64>,
    kept: KeepGuard<u64>,
    waiting: Pin<Box<dyn Future<Output = Result<LeaseGuard, LockError>>>>,
    dropped: Pin<Box<dyn Future<Output = Result<LeaseGuard, LockError>>>>,
}

pub(crate) fn main() -> ExitCode {
    thread::spawn(|| {
        thread::sleep(5 * HANGS);
        std::process::abort();
    });
    let argument = std::env::args().nth(1).unwrap_or_default();
    let wrong = if argument == "core" {
        // Nobody else uses them at first, and later four threads do.
        crate::core::run(1, 0).or_else(|| crate::core::run(FORKS as u64 - 1, 4))
    } else if argument == "durable" {
        // Of each store.
        crate::durable::without_a_server(FORKS as u64)
    } else if argument == "memory" {
        run(&MemoryStore::new(), MemoryStore::new)
    } else {
        let open = || {
            let store = RedisStore::builder(&argument).durable().build();
            store.expect("the argument is a URL")
        };
        run(&open(), open)
    };
    // That happens once in some hundred copies.
    let without_threads = crate::child::without_threads();
    let few = without_threads <= FORKS / 10;
    let wrong = wrong.or_else(|| {
        (!few).then(|| format!("no thread started in {without_threads} of {FORKS} copies"))
    });
    match wrong {
        None => {
            println!("{FORKS} copies, all as they should be");
            ExitCode::SUCCESS
        }
        Some(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

/// What was wrong.
fn run<S: LeaseStore + Clone + Debug>(store: &S, open: impl Fn() -> S) -> Option<String> {
    let leases = Leases::new(store.clone()).expect("the options are good");
    let keep_alive = KeepAlive::builder().build(|batch| Ok(vec![Outcome::Renewed; batch.len()]));
    let keep_alive = keep_alive.expect("the options are good");
    // So those who wait for it are never granted it.
    let _taken = leases.lock(WAITED_FOR).expect("nobody else wants it");
    let ended = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        for hammer in 0..HAMMERS {
            let (leases, keep_alive, ended, rounds) = (&leases, &keep_alive, &ended, &rounds);
            scope.spawn(move || use_them(hammer, leases, keep_alive, ended, rounds));
        }
        let _ends = Ends(&ended);
        let mut wrong = None;
        for number in 0..FORKS {
            // All of them are at it, so that locks of theirs are held now and then.
            let before = rounds.load(Ordering::SeqCst);
            while rounds.load(Ordering::SeqCst) < before + 20 && !ended.load(Ordering::SeqCst) {
                thread::park_timeout(Duration::from_micros(100));
            }
            wrong = one_copy(number, store, &leases, &keep_alive, &open);
            if wrong.is_some() || ended.load(Ordering::SeqCst) {
                break;
            }
        }
        if ended.swap(true, Ordering::SeqCst) {
            wrong = wrong.or(Some("a thread of the original failed".to_owned()));
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
fn use_them(
    hammer: usize,
    leases: &Leases,
    keep_alive: &KeepAlive<u64>,
    ended: &AtomicBool,
    rounds: &AtomicU64,
) {
    let name = format!("hammer-{hammer}");
    while !ended.load(Ordering::SeqCst) {
        let done = leases.try_lock(&name).map(LeaseGuard::release);
        let kept = keep_alive.keep(hammer as u64, LEASE).map(KeepGuard::stop);
        let _ = (leases.stats(), keep_alive.stats());
        if !matches!(done, Ok(Ok(()))) || !matches!(kept, Ok(Ok(()))) {
            eprintln!("{name}: {done:?}, {kept:?}");
            ended.store(true, Ordering::SeqCst);
        }
        rounds.fetch_add(1, Ordering::SeqCst);
    }
}

/// Checks one copy, and the original after it. Returns what was wrong.
fn one_copy<S: LeaseStore + Clone + Debug>(
    number: usize,
    store: &S,
    leases: &Leases,
    keep_alive: &KeepAlive<u64>,
    open: &impl Fn() -> S,
) -> Option<String> {
    let held = format!("held-{number}");
    let guard = leases.lock(&held).expect("nobody else wants it");
    let wait = || {
        let leases = leases.clone();
        let mut waiting = Box::pin(async move { leases.lock_async(WAITED_FOR).await });
        // It has begun.
        let began = poll(waiting.as_mut());
        assert!(began.is_pending(), "{began:?}");
        waiting
    };
    let inherited = Inherited {
        store: store.clone(),
        leases: leases.clone(),
        again: leases.enter_again(&guard).expect("it is held"),
        fixed: leases
            .acquire(&format!("fixed-{number}"))
            .fixed_lease(LEASE)
            .try_lock()
            .expect("nobody else wants it"),
        guard,
        keep_alive: keep_alive.clone(),
        kept: keep_alive.keep(number as u64, LEASE).expect("it lives"),
        waiting: wait(),
        dropped: wait(),
    };
    let (mut tells, told) = pipe().expect("a pipe");
    #[allow(
        unsafe_code,
        reason = "no safe function forks, and this is about forks"
    )]
    // SAFETY: the copy goes on with this thread alone, and calls only what has to work there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(tells);
        in_the_copy(number, inherited, open, told);
    }
    drop(told);
    let mut wrong = String::new();
    let read = tells.read_to_string(&mut wrong);
    if child < 0 || read.is_err() || wrong != "well" {
        return Some(format!("copy {number} ({child}): {wrong:?} {read:?}"));
    }
    // Nothing of it has changed here.
    let Inherited {
        guard,
        again,
        fixed,
        kept,
        ..
    } = inherited;
    let released = (
        guard.is_held(),
        again.release(),
        guard.release(),
        fixed.release(),
    );
    if released != (true, Ok(()), Ok(()), Ok(())) || kept.stop() != Ok(()) {
        return Some(format!("the original after copy {number}: {released:?}"));
    }
    None
}

/// Tells what is wrong here, or that all is well, and ends.
fn in_the_copy<S: LeaseStore + Clone + Debug>(
    number: usize,
    inherited: Inherited<S>,
    open: &impl Fn() -> S,
    mut told: PipeWriter,
) -> ! {
    thread::spawn(|| {
        thread::sleep(HANGS);
        std::process::abort();
    });
    let mut wrong = String::new();
    let start = Instant::now();
    for complaint in complaints(number, inherited, open) {
        wrong.push_str(&complaint);
    }
    if start.elapsed() > AT_ONCE {
        wrong.push_str(&format!("all of it took {:?}", start.elapsed()));
    }
    if wrong.is_empty() {
        wrong.push_str("well");
    }
    let _ = told.write_all(wrong.as_bytes());
    std::process::exit(0)
}

fn complaints<S: LeaseStore + Clone + Debug>(
    number: usize,
    inherited: Inherited<S>,
    open: &impl Fn() -> S,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, holds: bool, seen: &dyn Debug| {
        if !holds {
            found.push(format!("{what}: {seen:?}; "));
        }
    };
    let Inherited {
        store,
        leases,
        guard,
        again,
        fixed,
        keep_alive,
        kept,
        mut waiting,
        dropped,
    } = inherited;
    let owner = guard.id().owner().to_owned();

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
    let entered = leases.enter_again(&guard);
    let refused = matches!(
        entered,
        Err(LockError::Lost {
            loss: Loss::Forked,
            ..
        })
    );
    check("enter_again", refused, &entered);
    let _ = (again.release(), fixed);
    let released = guard.release();
    let lost = released == Err(ReleaseError::Lost(Loss::Forked));
    check("release", lost, &released);

    // New ones by what was inherited.
    let is_forked = |answer: &Result<LeaseGuard, LockError>| {
        matches!(
            answer,
            Err(LockError::Store {
                error: StoreError::Forked,
                ..
            })
        )
    };
    let tried = leases.try_lock("new");
    check("try_lock", is_forked(&tried), &tried);
    let tried = leases.try_lock_for("new", LEASE);
    check("try_lock_for", is_forked(&tried), &tried);
    let locked = leases.lock("new");
    check("lock", is_forked(&locked), &locked);
    let mut waited = poll(waiting.as_mut());
    if let Poll::Ready(waited) = &mut waited {
        check("lock_async", is_forked(waited), waited);
    } else {
        check("lock_async", false, &"it waits");
    }
    drop((waiting, dropped));
    check("stats", leases.stats().kept == 0, &leases.stats());
    check("events", leases.events(1).try_recv().is_err(), &leases);
    check("close", leases.close(LEASE) == 0, &leases);

    // The store's own calls.
    let claim = Claim::new("new", "me", Secret::new("me"), LEASE);
    let asked = store.acquire(&claim, LEASE);
    check("acquire", asked == Err(StoreError::Forked), &asked);
    let asked = store.renew(
        Destination::default(),
        &[Renewal::new("new", Secret::new("me"), LEASE)],
        LEASE,
    );
    check("renew", asked == Err(StoreError::Forked), &asked);
    let asked = store.release("new", Secret::new("me"), LEASE);
    check("release", asked == Err(StoreError::Forked), &asked);
    let watched = store.watch("new", Waker::noop());
    check("watch", watched.is_none(), &store);
    drop((leases, store));

    // The watchdog.
    let new = keep_alive.keep(7, LEASE);
    check("keep", matches!(new, Err(KeepError::Forked)), &keep_alive);
    check("close", keep_alive.close() == 0, &keep_alive);
    let stopped = kept.stop();
    check("stop", stopped == Err(Loss::Forked), &stopped);
    drop(keep_alive);

    // Ones of its own.
    let leases = Leases::new(open()).expect("the options are good");
    let taken = leases.try_lock(&format!("held-{number}"));
    // A store in memory has not what the original has.
    let shared = matches!(taken, Err(LockError::Held { .. }));
    check(
        "taken",
        shared || std::any::type_name::<S>().ends_with("MemoryStore"),
        &taken,
    );
    match leases.lock("its-own") {
        Ok(guard) => {
            check("held", guard.is_held(), &guard);
            check("owner", guard.id().owner() != owner, &guard);
            let released = guard.release();
            check("release of its own", released.is_ok(), &released);
        }
        Err(error) => check("lock of its own", false, &error),
    }
    found
}
