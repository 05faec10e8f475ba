//! How many threads leases have. One test, since it counts those of the whole process.
#![cfg(target_os = "linux")]

use kit::wait::until;
use tourbillon::{Clock, ManualClock, Runtime};
use tourbillon_leases::{BlockingStore, Leases, MemoryStore};

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn leases_have_no_threads_unless_they_are_told_to_and_then_end_them() {
    let runtime = Runtime::builder().tickers(1).workers(1).max_workers(1);
    let runtime = runtime.build_global().unwrap();
    let before = threads();
    let build = || Leases::builder(MemoryStore::new());
    let manual = || Clock::manual(&ManualClock::new());
    let cases = [
        (build(), 0),
        (build().on_event(|_| ()), 0),
        (build().runtime(&runtime).clock(manual()), 0),
        (build().own_threads(), 3),
        (build().own_threads().on_event(|_| ()), 5),
        (build().clock(manual()), 3),
        (build().own_threads().clock(manual()), 3),
    ];
    for (builder, own) in cases {
        let leases = builder.build().unwrap();
        // They start with the first attempt.
        until("none has started", || threads() == before);
        let guard = leases.lock("a").wait().unwrap();
        // On a busy machine there is one more worker for a while.
        until("it has its threads", || threads() == before + own);
        drop((leases, guard));
        until("those of its own have ended", || threads() == before);
    }
    // The thread of a store, which makes calls one after the other.
    let store = BlockingStore::new(MemoryStore::new());
    let leases = Leases::new(store.clone()).unwrap();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let tasks = builder.build().unwrap();
    for _ in 0..100 {
        let guard = tasks.block_on(leases.lock("a").into_future()).unwrap();
        tasks.block_on(guard.release()).unwrap();
    }
    until("it has one thread", || threads() == before + 1);
    drop(leases);
    until("it has it without leases, too", || threads() == before + 1);
    drop(store);
    until("it has ended", || threads() == before);
}
