//! Stores that users write: the example, and ones whose calls are pending for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Acquired, Claim, Destination, LeaseFuture, LeaseGuard, Leases, LockError, MemoryStore, Outcome,
    Released, Renewal, Secret,
};

use crate::after::After;
use crate::calls::Calls as _;
use crate::worlds::{LEASE, MS, S};

const NS: Duration = Duration::from_nanos(1);

#[path = "../../examples/own_store/store.rs"]
mod table;

use table::TableStore;

fn file(name: &str) -> std::path::PathBuf {
    let file = format!("tourbillon-{name}-{}.sqlite", std::process::id());
    std::env::temp_dir().join(file)
}

fn claim<'a>(name: &'a str, owner: &'a str) -> Claim<'a> {
    Claim::new(name, owner, Secret::new(owner), LEASE)
}

fn token(answer: Acquired) -> u64 {
    match answer {
        Acquired::Granted { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_store_of_the_example_does_what_a_backend_promises() {
    let file = file("promises");
    let (one, other) = (
        TableStore::open(&file).unwrap(),
        TableStore::open(&file).unwrap(),
    );
    let first = token(one.acquire(&claim("a", "x"), S).unwrap());
    // Held by another owner, and granted again to the same one.
    let Acquired::Held { remaining } = other.acquire(&claim("a", "y"), S).unwrap() else {
        panic!("granted twice");
    };
    assert!(remaining <= LEASE && remaining > LEASE / 2);
    let again = token(other.acquire(&claim("a", "x"), S).unwrap());
    assert!(again > first);
    // Renewals and releases change only what the owner holds.
    let to = Destination::default();
    let renew = |name, owner, lease| {
        let batch = [
            Renewal::new(name, Secret::new(owner), lease),
            Renewal::new("none", Secret::new(owner), lease),
        ];
        one.renew(to, &batch, S).unwrap()
    };
    assert_eq!(renew("a", "x", LEASE), [Outcome::Renewed, Outcome::NotHeld]);
    assert_eq!(renew("a", "y", LEASE), [Outcome::NotHeld, Outcome::NotHeld]);
    assert_eq!(one.release("a", Secret::new("y"), S), Ok(Released::NotHeld));
    assert_eq!(
        one.release("a", Secret::new("x"), S),
        Ok(Released::Released)
    );
    assert_eq!(one.release("a", Secret::new("x"), S), Ok(Released::NotHeld));
    assert_eq!(renew("a", "x", LEASE)[0], Outcome::NotHeld);
    let next = token(other.acquire(&claim("a", "y"), S).unwrap());
    assert!(next > again);
    // A late request does not shorten what a later one has extended.
    let late = [Renewal::new("a", Secret::new("y"), Duration::ZERO).never_shortening()];
    assert_eq!(one.renew(to, &late, S).unwrap(), [Outcome::Renewed]);
    assert!(one.holder_of("a", S).unwrap().is_some());
    // A lease that has run out.
    assert_eq!(renew("a", "y", Duration::ZERO)[0], Outcome::Renewed);
    assert_eq!(renew("a", "y", LEASE)[0], Outcome::NotHeld);
    assert_eq!(
        other.release("a", Secret::new("y"), S),
        Ok(Released::NotHeld)
    );
    assert!(token(one.acquire(&claim("a", "x"), S).unwrap()) > next);
    // A release with a rest leaves the name locked for that time.
    let batch = [tourbillon_leases::Holding::new("a", Secret::new("x")).after(LEASE / 2)];
    assert_eq!(
        one.release_many(to, &batch, S),
        Ok(vec![Ok(Released::Released)])
    );
    assert_eq!(renew("a", "x", LEASE)[0], Outcome::NotHeld);
    assert!(matches!(
        other.acquire(&claim("a", "y"), S),
        Ok(Acquired::Held { .. })
    ));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn threads_that_compete_through_the_file_never_overlap() {
    let file = file("overlap");
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let store = TableStore::open(&file).unwrap();
                let leases = Leases::builder(store).poll(MS).build().unwrap();
                for _ in 0..20 {
                    let guard = leases.lock("a").wait().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().wait().unwrap();
                }
            });
        }
    });
    assert_eq!(rounds.into_inner(), 60);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_future_of_a_lease_owns_what_it_needs() {
    fn is_static<T: Send + Unpin + 'static>(future: T) -> T {
        future
    }
    let leases = Leases::new(tourbillon_leases::MemoryStore::new()).unwrap();
    let name = "a".to_owned();
    let future: LeaseFuture<Result<LeaseGuard, LockError>> =
        is_static(leases.lock(&name).into_future());
    assert_eq!(format!("{future:?}"), "LeaseFuture { .. }");
    drop(name);
    // Nothing happens before the first poll.
    assert_eq!(leases.stats().asked, 0);
    // The leases last as long as the future.
    drop(leases);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let guard = runtime.block_on(future).unwrap();
    assert!(guard.is_held());
    runtime.block_on(is_static(guard.release())).unwrap();
}

/// A future of a call, which is counted while it is there.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Makes a call that is never answered, by leases of its own.
fn asks_in_vain(limit: Duration, ask: impl FnOnce(&Leases) -> LockError + Send) {
    let hand = ManualClock::new();
    let (futures, hangs) = (
        Arc::<AtomicUsize>::default(),
        Arc::new(AtomicBool::new(true)),
    );
    let (count, hang) = (Arc::clone(&futures), Arc::clone(&hangs));
    let memory = MemoryStore::with_clock(Clock::manual(&hand));
    let store = After::new(memory, move || {
        let (count, hang) = (Arc::clone(&count), hang.load(Ordering::SeqCst));
        async move {
            // With the first poll, when the limit of the call counts already.
            count.fetch_add(1, Ordering::SeqCst);
            let _counted = Counted(count);
            if hang {
                std::future::pending::<()>().await;
            }
        }
    });
    let builder = Leases::builder(store).clock(Clock::manual(&hand));
    let leases = builder.lease(LEASE).build().unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&leases));
        kit::wait::until("the call is pending", || {
            futures.load(Ordering::SeqCst) == 1
        });
        hand.advance(limit - NS);
        assert!(!asking.is_finished());
        hand.advance(NS);
        let error = asking.join().unwrap().to_string();
        assert!(error.contains("no answer within"), "{error}");
    });
    // What may have been granted is given back by a call of its own, as soon as calls are answered.
    hangs.store(false, Ordering::SeqCst);
    kit::wait::until("nothing is queued", || {
        hand.advance(MS);
        leases.stats().releases_queued == 0
    });
    assert_eq!(futures.load(Ordering::SeqCst), 0);
}

#[test]
fn a_call_that_is_pending_at_its_limit_is_dropped_and_fails() {
    asks_in_vain(LEASE / 3, |leases| {
        leases.lock("a").at_once().wait().unwrap_err()
    });
    asks_in_vain(LEASE / 3, |leases| leases.holder("a").wait().unwrap_err());
    let many = |leases: &Leases| {
        leases
            .lock_all(["a", "b"])
            .each()
            .wait()
            .remove(0)
            .unwrap_err()
    };
    asks_in_vain(LEASE / 3, many);
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use tokio::runtime::{Builder, Runtime};
    use tourbillon_leases::{LeaseStore, StoreError, TokioStore};

    use super::*;

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn calls_use_the_timers_of_a_runtime_that_their_threads_do_not_belong_to() {
        let (runtime, memory) = (runtime(), MemoryStore::new());
        let store = After::new(memory.clone(), || tokio::time::sleep(MS));
        let leases = Leases::new(TokioStore::new(store, runtime.handle().clone())).unwrap();
        let guard = leases.lock("a").lease(300 * MS).wait().unwrap();
        assert_eq!(
            leases.holder("a").wait().unwrap().unwrap().token,
            guard.token()
        );
        kit::wait::until("it is renewed", || guard.renewals() > 1);
        assert!(matches!(
            leases.lock("a").at_once().wait(),
            Err(LockError::Held { .. })
        ));
        guard.release().wait().unwrap();
        runtime.block_on(async {
            let guard = leases.lock("a").await.unwrap();
            guard.release().await.unwrap();
            let answers = leases.lock_all(["a", "b"]).each().await;
            assert!(answers.iter().all(Result::is_ok));
        });
        kit::wait::until("dropped guards are released", || {
            memory.holder("b").is_none()
        });
    }

    /// Spawns a task when it is dropped, as pools of connections do.
    struct Spawns(Arc<AtomicUsize>);

    impl Drop for Spawns {
        fn drop(&mut self) {
            let count = Arc::clone(&self.0);
            tokio::spawn(async move { count.fetch_add(1, Ordering::SeqCst) });
        }
    }

    #[test]
    fn a_call_is_made_and_dropped_in_the_context_of_the_runtime() {
        let (runtime, dropped) = (runtime(), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&dropped);
        let hand = ManualClock::new();
        let clock = Clock::manual(&hand);
        let store = After::new(MemoryStore::with_clock(clock.clone()), move || {
            let (spawns, sleep) = (Spawns(Arc::clone(&count)), tokio::time::sleep(3_600 * S));
            async move {
                let _spawns = spawns;
                sleep.await;
            }
        });
        let store = TokioStore::new(store, runtime.handle().clone());
        let leases = Leases::builder(store).clock(clock).build().unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| leases.lock("a").at_once().wait().unwrap_err().to_string());
            kit::wait::until("the limit has passed", || {
                hand.advance(S);
                asking.is_finished()
            });
            let error = asking.join().unwrap();
            assert!(error.contains("no answer within"), "{error}");
        });
        kit::wait::until("the task has run", || dropped.load(Ordering::SeqCst) > 0);
    }

    #[test]
    fn a_thread_that_runs_tasks_is_refused_and_others_of_the_runtime_are_not() {
        for runtime in [
            runtime(),
            Builder::new_current_thread().enable_all().build().unwrap(),
        ] {
            let memory = MemoryStore::new();
            let store = After::new(memory.clone(), || tokio::time::sleep(MS));
            let store = TokioStore::new(store, runtime.handle().clone());
            let leases = Arc::new(Leases::new(store).unwrap());
            kit::quiet::hush();
            let refused = runtime
                .block_on(async { leases.lock("a").wait() })
                .unwrap_err();
            assert!(refused.to_string().contains("await the call"), "{refused}");
            assert_eq!(memory.holder("a"), None);
            let own = Arc::clone(&leases);
            let locked = runtime.block_on(async {
                tokio::task::spawn_blocking(move || own.lock("a").wait().map(drop)).await
            });
            locked.unwrap().unwrap();
        }
    }

    /// As a set of futures, which has a waker for each of them.
    #[test]
    fn a_store_that_polls_with_a_waker_of_its_own_is_refused_too() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let slow = After::new(MemoryStore::new(), || tokio::time::sleep(3_600 * S));
        let inner = Arc::new(TokioStore::new(slow, runtime.handle().clone()));
        let outer = After::new(MemoryStore::new(), move || {
            let inner = Arc::clone(&inner);
            async move {
                let mut call = LeaseStore::holder_of(&*inner, "a", S);
                let own = kit::wakes::Wakes::new();
                let answer = std::future::poll_fn(|_| kit::wakes::poll(&mut call, &own)).await;
                assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
            }
        });
        let leases = Leases::new(outer).unwrap();
        kit::quiet::hush();
        let locked = runtime.block_on(async { leases.lock("a").wait().map(drop) });
        locked.unwrap();
    }

    #[test]
    fn a_runtime_without_a_thread_that_runs_is_told_at_the_limit() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let store = After::new(MemoryStore::new(), || tokio::time::sleep(MS));
        let leases = Leases::builder(TokioStore::new(store, runtime.handle().clone()))
            .lease(300 * MS)
            .build()
            .unwrap();
        let error = leases.lock("a").at_once().wait().unwrap_err().to_string();
        assert!(error.contains("no answer within"), "{error}");
        let guard = runtime
            .block_on(leases.lock("a").at_once().into_future())
            .unwrap();
        assert!(guard.is_held());
    }
}

fn store<S: tourbillon_leases::LeaseStore + ?Sized>() {}

/// It can only fail to compile.
#[test]
fn a_store_may_be_chosen_at_run_time() {
    store::<dyn tourbillon_leases::LeaseStore>();
    store::<Box<dyn tourbillon_leases::LeaseStore>>();
    store::<std::sync::Arc<dyn tourbillon_leases::LeaseStore>>();
}
