//! How many threads leases have. One test, since it counts those of the whole process.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use kit::wait::until;
use tourbillon::{Clock, ManualClock, Runtime};
use tourbillon_leases::{
    BlockingStore, Destination, KeepAlive, KeepGuard, Leases, MemoryStore, Outcome,
};

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
    ten_thousand_destinations_hang();
}

/// Calls that hang keep no thread, and their memory only until their limit.
fn ten_thousand_destinations_hang() {
    const HANG: u64 = 10_000;
    let before = threads();
    let (hand, hangs) = (ManualClock::new(), Arc::new(AtomicUsize::new(0)));
    let clock = Clock::manual(&hand);
    let hanging = Arc::clone(&hangs);
    let sessions = KeepAlive::<u64>::builder()
        .clock(clock)
        .destination(|key| Destination::new(*key))
        .build(move |batch| {
            let hangs = batch.destination().get() < HANG;
            let counts = hangs.then(|| Counted::new(&hanging));
            async move {
                if counts.is_some() {
                    std::future::pending::<()>().await;
                }
                Ok(vec![Outcome::Renewed; batch.len()])
            }
        })
        .unwrap();
    let lease = Duration::from_secs(30);
    let bad: Vec<_> = (0..HANG)
        .map(|key| sessions.keep(key, lease).unwrap())
        .collect();
    let good: Vec<_> = (HANG..HANG + 10)
        .map(|key| sessions.keep(key, lease).unwrap())
        .collect();
    hand.advance(lease * 2 / 5);
    until("all hang, and the others do not", || {
        hand.advance(Duration::from_millis(1));
        let renewed = good.iter().all(|kept| kept.renewals() > 0);
        renewed && hangs.load(SeqCst) == HANG as usize
    });
    // Its own three, and on a busy machine some more, which leave by the clock that stands still.
    let own = threads() - before;
    assert!(own < 16, "{own}");
    assert!(bad.iter().all(KeepGuard::is_kept));
    // At their limit they end.
    drop(bad);
    hand.advance(lease / 6);
    until("no call is left", || hangs.load(SeqCst) == 0);
    let armed = || sessions.stats().armed;
    until("nor a timer of one", || armed() == good.len());
}

/// Counts itself while it is there.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
