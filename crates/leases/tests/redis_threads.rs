//! The threads of a store on Redis. Alone in its file, since it looks at those of its process.
#![cfg(target_os = "linux")]

use std::time::Duration;

use kit::wait;
use tourbillon_leases::{Leases, RedisStore};

use chaos::servers::redis::Server;

const LEASE: Duration = Duration::from_secs(30);

/// How many threads of this process are those of stores.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux has it");
    let names = tasks.filter_map(|task| {
        let name = task.expect("an entry").path().join("comm");
        // The thread may have ended meanwhile.
        std::fs::read_to_string(name).ok()
    });
    names.filter(|name| name.starts_with("tb-redis")).count()
}

#[test]
#[cfg_attr(not(has_redis_server), ignore = "needs: apt-get install redis-server")]
fn a_store_has_one_thread_however_many_wait_and_none_after_its_end() {
    let server = Server::start();
    let store = RedisStore::builder(&server.url()).durable().build();
    let leases = Leases::builder(store.unwrap())
        .lease(LEASE)
        .build()
        .unwrap();
    assert_eq!(threads(), 0, "it begins with the first call");
    let guard = leases.lock("x").wait().unwrap();
    assert_eq!(threads(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.unwrap();
    runtime.block_on(async {
        let waits = (0..200).map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move {
                let guard = leases.lock("x").await.unwrap();
                guard.release().await.unwrap();
            })
        });
        let waits: Vec<_> = waits.collect();
        while leases.stats().waiting < 200 {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads(), 1);
        guard.release().await.unwrap();
        for one in waits {
            one.await.unwrap();
        }
    });
    assert_eq!(threads(), 1);
    drop(leases);
    wait::until("its thread has ended", || threads() == 0);
    // On a runtime of the user it has none.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("user")
        .enable_all()
        .build()
        .unwrap();
    let builder = RedisStore::builder(&server.url()).durable();
    let store = builder.tokio(runtime.handle().clone()).build().unwrap();
    store.check(Duration::from_secs(60)).unwrap();
    assert_eq!(threads(), 0);
}
