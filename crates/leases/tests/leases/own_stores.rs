//! Stores that users write: the example on SQLite, and one whose calls are futures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, LeaseFuture, LeaseGuard, LeaseStore, Leases, LockError, LockPage,
    LockPaging, Outcome, Released, Renewal, Secret,
};

use crate::worlds::{LEASE, MS, S};

#[path = "../../examples/sqlite_store/store.rs"]
mod sqlite;

use sqlite::SqliteStore;

fn file(name: &str) -> std::path::PathBuf {
    let file = format!("tourbillon-{name}-{}.sqlite", std::process::id());
    std::env::temp_dir().join(file)
}

fn claim<'a>(name: &'a str, owner: &'a str) -> Claim<'a> {
    Claim::new(name, owner, Secret::new(owner), LEASE)
}

fn token(answer: Acquired) -> u64 {
    match answer {
        Acquired::Granted { token } => token,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_store_of_the_example_does_what_a_backend_promises() {
    let file = file("promises");
    let (one, other) = (
        SqliteStore::open(&file).unwrap(),
        SqliteStore::open(&file).unwrap(),
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
    // A lease that has run out.
    assert_eq!(renew("a", "y", Duration::ZERO)[0], Outcome::Renewed);
    assert_eq!(renew("a", "y", LEASE)[0], Outcome::NotHeld);
    assert_eq!(
        other.release("a", Secret::new("y"), S),
        Ok(Released::NotHeld)
    );
    assert!(token(one.acquire(&claim("a", "x"), S).unwrap()) > next);
    // The defaults: what is released with a rest stays locked for it.
    let batch = [tourbillon_leases::Holding::new("a", Secret::new("x")).after(LEASE / 2)];
    assert_eq!(
        one.release_many(to, &batch, S),
        Ok(vec![Ok(Released::Released)])
    );
    assert!(matches!(
        other.acquire(&claim("a", "y"), S),
        Ok(Acquired::Held { .. })
    ));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn the_tickets_of_the_example_hold_what_every_store_has_to() {
    let file = file("tickets");
    let store = std::sync::Arc::new(SqliteStore::open(&file).unwrap());
    crate::tickets::nothing_that_is_shown_proves_anything(&store);
    crate::tickets::a_ticket_is_used_by_one_of_many(&store);
    crate::tickets::detach_and_resume_do_what_a_backend_promises(&store);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn threads_that_compete_through_the_file_never_overlap() {
    let file = file("overlap");
    let (inside, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let store = SqliteStore::open(&file).unwrap();
                let leases = Leases::builder(store).poll(MS).build().unwrap();
                for _ in 0..20 {
                    let guard = leases.lock("a").unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    rounds.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
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
    let future: LeaseFuture<Result<LeaseGuard, LockError>> = is_static(leases.lock_async(&name));
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
    runtime.block_on(is_static(guard.release_async())).unwrap();
}

#[cfg(feature = "tokio")]
mod on_tokio {
    use std::sync::Arc;

    use kit::wait;
    use tokio::runtime::{Builder, Handle, Runtime};
    use tokio::task::yield_now;
    use tourbillon_leases::{
        AsyncLeaseStore, Holder, Holding, MemoryStore, StoreError, TokioStore,
    };

    use super::*;

    /// Asks a store in memory, and is pending once in each call.
    struct Yielding {
        store: MemoryStore,
        /// Whether it hands on the calls that have a default.
        whole: bool,
    }

    impl AsyncLeaseStore for Yielding {
        async fn acquire(
            &self,
            claim: &Claim<'_>,
            limit: Duration,
        ) -> Result<Acquired, StoreError> {
            yield_now().await;
            self.store.acquire(claim, limit)
        }

        async fn renew(
            &self,
            destination: Destination,
            batch: &[Renewal<'_>],
            limit: Duration,
        ) -> Result<Vec<Outcome>, StoreError> {
            yield_now().await;
            self.store.renew(destination, batch, limit)
        }

        async fn release(
            &self,
            name: &str,
            secret: Secret<'_>,
            limit: Duration,
        ) -> Result<Released, StoreError> {
            yield_now().await;
            self.store.release(name, secret, limit)
        }

        async fn holder_of(
            &self,
            name: &str,
            limit: Duration,
        ) -> Result<Option<Holder>, StoreError> {
            match self.whole {
                true => self.store.holder_of(name, limit),
                false => Err(StoreError::Refused("not here".to_owned())),
            }
        }
    }

    /// Only what has no default.
    struct Bare(MemoryStore);

    impl AsyncLeaseStore for Bare {
        async fn acquire(
            &self,
            claim: &Claim<'_>,
            limit: Duration,
        ) -> Result<Acquired, StoreError> {
            self.0.acquire(claim, limit)
        }

        async fn renew(
            &self,
            to: Destination,
            batch: &[Renewal<'_>],
            limit: Duration,
        ) -> Result<Vec<Outcome>, StoreError> {
            self.0.renew(to, batch, limit)
        }

        async fn release(
            &self,
            name: &str,
            secret: Secret<'_>,
            limit: Duration,
        ) -> Result<Released, StoreError> {
            self.0.release(name, secret, limit)
        }
    }

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    }

    fn leases(runtime: &Handle, store: &MemoryStore) -> Leases {
        let store = Yielding {
            store: store.clone(),
            whole: true,
        };
        Leases::new(TokioStore::new(store, runtime.clone())).unwrap()
    }

    #[test]
    fn locks_are_acquired_renewed_and_released_by_futures() {
        let (runtime, store) = (runtime(), MemoryStore::new());
        let leases = leases(runtime.handle(), &store);
        let guard = leases.acquire("a").lease(300 * MS).lock().unwrap();
        assert_eq!(
            leases.holder("a").unwrap().unwrap().token,
            guard.fencing_token()
        );
        wait::until("it is renewed", || guard.renewals() > 1);
        assert!(matches!(leases.try_lock("a"), Err(LockError::Held { .. })));
        guard.release().unwrap();
        runtime.block_on(async {
            let guard = leases.lock_async("a").await.unwrap();
            guard.release_async().await.unwrap();
            let answers = leases.try_lock_many_async(["a", "b"]).await;
            assert!(answers.iter().all(Result::is_ok));
        });
        wait::until("dropped guards are released", || {
            store.holder("b").is_none()
        });
    }

    #[test]
    fn a_thread_that_runs_tasks_is_refused_and_others_of_the_runtime_are_not() {
        let (runtime, store) = (runtime(), MemoryStore::new());
        let leases = Arc::new(leases(runtime.handle(), &store));
        kit::quiet::hush();
        let refused = runtime.block_on(async { leases.lock("a") }).unwrap_err();
        assert!(refused.to_string().contains("`_async`"), "{refused}");
        assert_eq!(store.holder("a"), None);
        let own = Arc::clone(&leases);
        let locked = runtime
            .block_on(async { tokio::task::spawn_blocking(move || own.lock("a").map(drop)).await });
        locked.unwrap().unwrap();
    }

    #[test]
    fn the_defaults_go_one_by_one_until_the_limit() {
        let (runtime, memory) = (runtime(), MemoryStore::new());
        let store = TokioStore::new(Bare(memory.clone()), runtime.handle().clone());
        let to = Destination::default();
        let claims = [claim("a", "x"), claim("b", "x"), claim("a", "y")];
        let answers = store.acquire_many(to, &claims, S).unwrap();
        let granted =
            |answer: &Result<Acquired, StoreError>| matches!(answer, Ok(Acquired::Granted { .. }));
        assert_eq!(
            answers.iter().map(granted).collect::<Vec<_>>(),
            [true, true, false]
        );
        let late = store.acquire_many(to, &claims, Duration::ZERO).unwrap();
        assert!(matches!(&late[0], Err(StoreError::Unavailable(why)) if why.contains("time")));
        let held = [
            Holding::new("a", Secret::new("x")),
            Holding::new("b", Secret::new("x")).after(LEASE / 2),
            Holding::new("c", Secret::new("x")),
        ];
        let late = store.release_many(to, &held, Duration::ZERO).unwrap();
        assert!(late.iter().all(Result::is_err));
        let released = store.release_many(to, &held, S).unwrap();
        let expected = [Released::Released, Released::Released, Released::NotHeld];
        assert_eq!(released, expected.map(Ok));
        assert!(memory.holder("a").is_none());
        let rest = memory.holder_of("b", S).unwrap().unwrap().remaining;
        assert!(rest <= LEASE / 2);
        assert_eq!(store.leave("a", "x", S), Ok(()));
        let holder: Result<Option<Holder>, _> = store.holder_of("a", S);
        assert!(matches!(holder, Err(StoreError::Refused(_))));
        let list: Result<LockPage, _> = store.list("", &LockPaging::first(9), S);
        assert!(matches!(list, Err(StoreError::Refused(_))));
        assert_eq!(store.longest_lease(), Duration::MAX);
        assert!(store.watch("a", std::task::Waker::noop()).is_none());
    }
}

fn store<S: LeaseStore + ?Sized>() {}

/// It can only fail to compile.
#[test]
fn a_store_may_be_chosen_at_run_time() {
    store::<dyn LeaseStore>();
    store::<Box<dyn LeaseStore>>();
    store::<std::sync::Arc<dyn LeaseStore>>();
}
