//! The store on Redis whose connections are on a runtime of the user, and calls that are dropped.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use kit::wait;
use tokio::runtime::{Builder, Runtime};
use tourbillon_leases::{
    Acquired, Claim, Destination, LeaseStore, Leases, Outcome, RedisStore, Renewal, Secret,
    StoreError,
};

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::redis::Server;

/// Nothing that answers takes so long.
const LIMIT: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(30);

fn threaded() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

fn on(runtime: &Runtime, server: &Server) -> RedisStore {
    let builder = RedisStore::builder(&server.url()).durable();
    builder.tokio(runtime.handle().clone()).build().unwrap()
}

fn claim(name: &str) -> Claim<'_> {
    Claim::new(name, "a:1", Secret::new("a:1"), LEASE)
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_store_on_a_runtime_of_the_user_serves_threads_and_tasks() {
    let server = Server::start();
    let runtime = threaded();
    let store = on(&runtime, &server);
    assert_eq!(store.check(LIMIT), Ok(()));
    let leases = Leases::new(store.clone()).unwrap();
    let other = Leases::new(store).unwrap();
    let guard = leases.lock("x").wait().unwrap();
    runtime.block_on(async {
        let waits = tokio::spawn(async move { other.lock("x").await });
        let marked = || server.cli(&["HEXISTS", "tourbillon:{x}:lock", "next"]);
        while marked() != "(integer) 1" {
            tokio::task::yield_now().await;
        }
        guard.release().await.unwrap();
        waits.await.unwrap().unwrap().release().await.unwrap();
    });
    drop(leases);
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn one_thread_runs_the_tasks_that_lock_and_the_connections_of_their_locks() {
    let server = Server::start();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let leases = Leases::new(on(&runtime, &server)).unwrap();
    runtime.block_on(async {
        let tasks = (0..20).map(|at| {
            let leases = leases.clone();
            tokio::spawn(async move {
                let guard = leases.lock(&format!("n{}", at % 4)).await.unwrap();
                guard.release().await.unwrap();
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn after_the_end_of_the_runtime_no_call_hangs() {
    let server = Server::start();
    let runtime = threaded();
    let store = on(&runtime, &server);
    assert_eq!(store.check(LIMIT), Ok(()));
    let ended = |answer: Result<(), StoreError>| match answer {
        Err(StoreError::Unavailable(why)) => assert!(why.contains("runtime"), "{why}"),
        other => panic!("{other:?}"),
    };
    drop(runtime);
    ended(store.check(LIMIT));
    let renewal = [Renewal::new("x", Secret::new("a:1"), LEASE)];
    let renewed = LeaseStore::renew(&store, Destination::default(), &renewal, LIMIT);
    ended(crate::calls::wait(renewed).map(drop));
    assert!(store.watch("x", Waker::noop()).is_some());
    // Nor where the runtime can neither connect nor tell the time.
    let bare = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    ended(on(&bare, &server).check(LIMIT));
    let mut timed = Builder::new_multi_thread();
    let timed = timed.worker_threads(1).enable_time().build().unwrap();
    ended(on(&timed, &server).check(LIMIT));
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_worker_may_wait_for_a_call_while_another_one_drives_the_connections() {
    let server = Server::start();
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let store = on(&runtime, &server);
    let waits = runtime.spawn(async move {
        assert_eq!(store.check(LIMIT), Ok(()));
        let leases = Leases::new(store).unwrap();
        leases.lock("x").wait().unwrap().release().wait().unwrap();
    });
    runtime.block_on(waits).unwrap();
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_call_that_is_dropped_costs_no_other_call_its_answer() {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    let store = RedisStore::builder(&proxy.url()).durable().build();
    let store = Arc::new(store.unwrap());
    let acquire = |name: &str| {
        let batch = [claim(name)];
        let to = LeaseStore::destination(&store, name);
        let mut acquired = crate::calls::wait(LeaseStore::acquire(&store, to, &batch, LIMIT));
        acquired.as_mut().unwrap().pop().unwrap()
    };
    assert!(acquire("first").is_ok());
    for at in 0..20 {
        let (dropped, kept) = (format!("d{at}"), format!("k{at}"));
        let sent = proxy.seen().bytes_up;
        proxy.begin(Trouble::Hold, Way::Down);
        {
            let batch = [claim(&dropped)];
            let to = LeaseStore::destination(&store, &dropped);
            let mut call = pin!(LeaseStore::acquire(&store, to, &batch, LIMIT));
            let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending), "{polled:?}");
            if at % 2 == 0 {
                wait::until("it is sent", || proxy.seen().bytes_up > sent);
            }
        }
        proxy.end();
        let answer = acquire(&kept);
        assert!(matches!(answer, Ok(Acquired::Granted { .. })), "{answer:?}");
        let held = format!("tourbillon:{{{dropped}}}:lock");
        if at % 2 == 0 {
            wait::until("what was sent is done", || {
                server.cli(&["EXISTS", &held]) == "(integer) 1"
            });
        }
        let renewal = [Renewal::new(&kept, Secret::new("a:1"), LEASE)];
        let renewed = LeaseStore::renew(&store, Destination::default(), &renewal, LIMIT);
        assert_eq!(crate::calls::wait(renewed), Ok(vec![Outcome::Renewed]));
    }
    // One connection for callers and one for the renewals: none was given up.
    assert_eq!(proxy.seen().connections, 2);
}
