//! How many threads leases have. One test, since it counts those of the whole process.
#![cfg(target_os = "linux")]

use kit::wait::until;
use tourbillon::{Clock, ManualClock, Runtime};
use tourbillon_leases::{Leases, MemoryStore};

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
        (build().own_threads(), 5),
        (build().own_threads().on_event(|_| ()), 7),
        (build().clock(manual()), 5),
        (build().own_threads().clock(manual()), 5),
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
}
