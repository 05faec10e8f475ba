//! Listing of pools, and sleeping and waking of workers, on the real ones. `executor/workers.rs` has
//! the protocol and the argument.
//!
//! The last ticket stops the pool. So a pool with a ticket that no worker serves never ends, and
//! loom reports a lost wake-up as a deadlock.
//!
//! Teeth, each for the model that the first line of the patch names:
//! - `teeth/sleep-listing-without-fence.patch`, `teeth/sleep-flag-falls-after-the-visit.patch`: a
//!   ticket is pushed while a worker visits the pool (SLEEP-1).
//! - `teeth/sleep-who-raises-the-flag-does-not-list.patch`: SLEEP-2.
//! - `teeth/sleep-leaves-without-a-look.patch`, `teeth/sleep-frees-its-slot-after-the-look.patch`: a
//!   worker that was refused a slot relies on the one that frees it (SLEEP-3, SLEEP-4).
//! - `teeth/sleep-waker-empties-the-list.patch`: a second waker finds no worker although one
//!   sleeps (SLEEP-5).
//! - `teeth/sleep-looks-and-sleeps-in-two-holds.patch`: a pool is listed in between (SLEEP-5).
//! - `teeth/sleep-stop-wakes-nobody.patch`, `teeth/sleep-stop-forgets-the-list.patch`: SLEEP-6.
//! - `teeth/sleep-thief-keeps-its-batch.patch`, `teeth/sleep-thief-looks-nearby-only.patch`,
//!   `teeth/sleep-look-ahead-keeps-the-batch.patch`, `teeth/sleep-look-forgets-the-injector.patch`:
//!   the rest of a stolen batch, or a ticket in another queue, waits for a long task, or forever
//!   (SLEEP-7).
//! - `teeth/sleep-spare-takes-a-listing-along.patch`: a spare worker leaves with a pool that it took
//!   off the list (SPARE-1).
//! - `teeth/close-gives-a-slot.patch`, `teeth/close-leaver-wakes-nobody.patch`,
//!   `teeth/close-claim-before-the-slot.patch`: a pool that ends while its workers go on (CLOSE-POOL).

use std::sync::atomic::{AtomicUsize as Uncounted, Ordering::Relaxed};
use std::time::Duration;

use loom::sync::{Condvar, Mutex};
use loom::thread::{self, JoinHandle};

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::executor::{Pool, PoolConfig, PoolWorkers, TickerQueue, WorkerThread};
use crate::job::{AtLock, Claim, Ticket};
use crate::sync::Arc;

const QUIET: Duration = Duration::from_nanos(5);

/// Counts the served tickets, and stops the pool at the last one.
struct Ledger {
    pool: Arc<Pool>,
    all: usize,
    /// A counter of std, not of loom: the protocol must not depend on it.
    served: Arc<Uncounted>,
    /// Makes each task wait until all tasks have started, as long tasks do.
    together: Option<(Mutex<usize>, Condvar)>,
}

impl Ledger {
    fn new(pool: &Arc<Pool>, all: usize) -> Arc<Self> {
        Arc::new(Ledger {
            pool: Arc::clone(pool),
            all,
            served: Arc::default(),
            together: None,
        })
    }

    /// A ledger of another pool, with the same counter.
    fn counting_with(ledger: &Ledger, pool: &Arc<Pool>) -> Arc<Self> {
        Arc::new(Ledger {
            pool: Arc::clone(pool),
            all: ledger.all,
            served: Arc::clone(&ledger.served),
            together: None,
        })
    }

    fn together(pool: &Arc<Pool>, all: usize) -> Arc<Self> {
        Arc::new(Ledger {
            pool: Arc::clone(pool),
            all,
            served: Arc::default(),
            together: Some((Mutex::new(0), Condvar::new())),
        })
    }

    fn served(&self) -> usize {
        self.served.load(Relaxed)
    }
}

impl Claim for Ledger {
    fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        let mut next = Some(first);
        while next.is_some() {
            if let Some((started, all_there)) = &self.together {
                let mut started = started.lock().unwrap();
                *started += 1;
                all_there.notify_all();
                while *started < self.all {
                    started = all_there.wait(started).unwrap();
                }
            }
            if self.served.fetch_add(1, Relaxed) + 1 == self.all {
                self.pool.stop();
            }
            next = more();
        }
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

fn ticket(slot: u32) -> Ticket {
    Ticket { stripe: 0, slot }
}

fn config(workers: usize, extra: usize) -> PoolConfig {
    PoolConfig {
        workers,
        max_workers: workers + extra,
        ticker_queues: 1,
        injector_bound: 4,
        shares_workers: false,
    }
}

fn pool(workers: usize, extra: usize) -> (Arc<Pool>, TickerQueue) {
    beside(
        &threads(workers, workers + extra, &ManualClock::new()),
        workers,
        extra,
    )
}

fn threads(workers: usize, most: usize, hand: &ManualClock) -> Arc<PoolWorkers> {
    let clock = Clock::manual(hand);
    Arc::new(PoolWorkers::new(workers, most, QUIET, clock))
}

/// A pool that these workers serve.
fn beside(threads: &Arc<PoolWorkers>, workers: usize, extra: usize) -> (Arc<Pool>, TickerQueue) {
    let config = config(workers, extra);
    let (pool, mut ticker_queues) = Pool::new(config, Arc::clone(threads));
    (pool, ticker_queues.pop().unwrap())
}

/// Takes a worker. All workers of a pool have the same ledger.
fn worker(pool: &Arc<Pool>, ledger: &Arc<Ledger>) -> WorkerThread {
    let weak = Arc::downgrade(ledger);
    pool.is_served_by(weak);
    WorkerThread::take(pool.threads(), false).unwrap()
}

fn spawn(pool: &Arc<Pool>, ledger: &Arc<Ledger>) -> JoinHandle<()> {
    let worker = worker(pool, ledger);
    thread::spawn(move || worker.run())
}

fn join(workers: [JoinHandle<()>; 2]) {
    for worker in workers {
        worker.join().unwrap();
    }
}

#[test]
fn c114_one_worker_loses_no_ticket() {
    check(3, || {
        let (pool, ticker_queue) = pool(1, 0);
        let ledger = Ledger::new(&pool, 1);
        let worker = spawn(&pool, &ledger);
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        worker.join().unwrap();
        assert_eq!((ledger.served(), pool.claims()), (1, 1));
        assert_eq!((pool.workers(), pool.sleeping()), (0, 0));
    });
}

#[test]
fn c114_one_worker_serves_two_producers() {
    check(2, || {
        let (pool, ticker_queue) = pool(1, 0);
        let ledger = Ledger::new(&pool, 2);
        let worker = spawn(&pool, &ledger);
        let injecting = Arc::clone(&pool);
        let producer = thread::spawn(move || injecting.inject(ticket(0)).unwrap());
        ticker_queue.push(ticket(1));
        ticker_queue.announce();
        producer.join().unwrap();
        worker.join().unwrap();
        assert_eq!((ledger.served(), pool.queued_hint()), (2, 0));
    });
}

#[test]
fn c114_two_workers_lose_no_ticket() {
    check(2, || {
        let (pool, ticker_queue) = pool(2, 0);
        let ledger = Ledger::new(&pool, 1);
        let workers = [(); 2].map(|()| spawn(&pool, &ledger));
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        join(workers);
        assert_eq!(ledger.served(), 1);
    });
}

#[test]
fn c107_two_workers_share_one_batch() {
    check(2, || {
        let (pool, ticker_queue) = pool(2, 0);
        let ledger = Ledger::together(&pool, 2);
        let other = spawn(&pool, &ledger);
        // The worker that steals both tickets has to wake the other worker.
        ticker_queue.push(ticket(0));
        ticker_queue.push(ticket(1));
        ticker_queue.announce();
        worker(&pool, &ledger).run();
        other.join().unwrap();
        assert_eq!(ledger.served(), 2);
    });
}

/// One preemption only: two make 300,000 executions and take a minute, and three take far too long.
#[test]
fn c107_three_workers_share_one_batch() {
    check(1, || {
        let (pool, ticker_queue) = pool(3, 0);
        let ledger = Ledger::together(&pool, 3);
        let others = [(); 2].map(|()| spawn(&pool, &ledger));
        // Both are at least going to sleep. Other models cover the races of falling asleep.
        while pool.sleeping() < 2 {
            thread::yield_now();
        }
        for slot in 0..3 {
            ticker_queue.push(ticket(slot));
        }
        ticker_queue.announce();
        worker(&pool, &ledger).run();
        join(others);
        assert_eq!(ledger.served(), 3);
    });
}

#[test]
fn c107_two_wakes_wake_two_workers() {
    check(2, || {
        let (pool, ticker_queue) = pool(2, 0);
        let ledger = Ledger::together(&pool, 2);
        let workers = [(); 2].map(|()| spawn(&pool, &ledger));
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        pool.inject(ticket(1)).unwrap();
        join(workers);
        assert_eq!(ledger.served(), 2);
    });
}

#[test]
fn stop_wakes_who_sleeps() {
    check(2, || {
        let (pool, _feeder) = pool(2, 0);
        let ledger = Ledger::new(&pool, 1);
        let workers = [(); 2].map(|()| spawn(&pool, &ledger));
        pool.stop();
        join(workers);
        assert_eq!((pool.workers(), pool.sleeping()), (0, 0));
    });
}

#[test]
fn c114_what_was_pushed_before_stop_is_served() {
    check(3, || {
        let (pool, ticker_queue) = pool(1, 0);
        let ledger = Ledger::new(&pool, 9);
        let worker = spawn(&pool, &ledger);
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        pool.stop();
        worker.join().unwrap();
        assert_eq!(ledger.served(), 1, "pushed before stop");
    });
}

#[test]
fn c114_an_extra_worker_that_leaves_takes_no_wake_up_with_it() {
    check(3, || {
        let clock = ManualClock::new();
        let (pool, ticker_queue) = beside(&threads(1, 2, &clock), 1, 1);
        let ledger = Ledger::new(&pool, 1);
        // The worker that stays is busy until later.
        let busy = worker(&pool, &ledger);
        let extra = spawn(&pool, &ledger);
        clock.advance(QUIET);
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        extra.join().unwrap();
        // If the extra worker has left before, the other one finds the ticket.
        if ledger.served() == 0 {
            assert!(pool.queued_hint() == 1, "taken away");
        }
        busy.run();
        assert_eq!((ledger.served(), pool.workers()), (1, 0));
    });
}

/// Two workers that share the one slot of the pool.
#[test]
fn c114_a_worker_that_is_refused_a_slot_leaves_no_ticket_behind() {
    check(2, || {
        let threads = threads(1, 2, &ManualClock::new());
        let (pool, ticker_queue) = beside(&threads, 1, 0);
        let ledger = Ledger::new(&pool, 2);
        let workers = [(); 2].map(|()| spawn(&pool, &ledger));
        for slot in 0..2 {
            ticker_queue.push(ticket(slot));
            ticker_queue.announce();
        }
        join(workers);
        assert_eq!(ledger.served(), 2);
    });
}

/// Two pools that share their workers. Each has a ticket.
fn two_pools(workers: usize) {
    let threads = threads(workers, workers, &ManualClock::new());
    let (one, one_queue) = beside(&threads, 1, 0);
    let (other, other_queue) = beside(&threads, 1, 0);
    let ledger = Ledger::new(&one, 2);
    let beside_it = Ledger::counting_with(&ledger, &other);
    let weak = Arc::downgrade(&beside_it);
    other.is_served_by(weak);
    let running: Vec<_> = (0..workers).map(|_| spawn(&one, &ledger)).collect();
    let producer = thread::spawn(move || {
        other_queue.push(ticket(1));
        other_queue.announce();
    });
    one_queue.push(ticket(0));
    one_queue.announce();
    producer.join().unwrap();
    for worker in running {
        worker.join().unwrap();
    }
    assert_eq!(ledger.served(), 2);
    assert_eq!((one.claims(), other.claims()), (1, 1));
}

#[test]
fn c114_one_worker_serves_two_pools() {
    check(2, || two_pools(1));
}

#[test]
fn c114_two_workers_serve_two_pools() {
    check(1, || two_pools(2));
}

/// What a pool serves that is closed while its workers go on with others.
struct Closing {
    running: Uncounted,
    left: Uncounted,
}

impl Claim for Closing {
    fn serve(&self, _: Ticket, _: &AtLock, _: &mut dyn FnMut() -> Option<Ticket>) {
        self.running.fetch_add(1, Relaxed);
        thread::yield_now();
        assert_eq!(self.left.load(Relaxed), 0, "served after the end");
        self.running.fetch_sub(1, Relaxed);
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

/// A pool ends while its worker goes on.
#[test]
fn a_closed_pool_is_left_by_its_workers() {
    check(3, || {
        let threads = threads(1, 1, &ManualClock::new());
        let (pool, ticker_queue) = beside(&threads, 1, 0);
        let closing = Arc::new(Closing {
            running: Uncounted::new(0),
            left: Uncounted::new(0),
        });
        let weak = Arc::downgrade(&closing);
        pool.is_served_by(weak);
        let worker = WorkerThread::take(&threads, false).unwrap();
        let worker = thread::spawn(move || worker.run());
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        pool.close();
        pool.wait_until_left();
        assert_eq!(closing.running.load(Relaxed), 0, "it is being served");
        closing.left.store(1, Relaxed);
        // No worker holds the engine any more.
        let weak = Arc::downgrade(&closing);
        drop(closing);
        assert!(weak.upgrade().is_none(), "somebody holds it");
        threads.stop();
        worker.join().unwrap();
    });
}

/// The worker that stays is in a long task of another pool, and a spare one serves this pool.
#[test]
fn a_spare_worker_that_leaves_takes_no_ticket_with_it() {
    check(3, || {
        let (pool, ticker_queue) = pool(1, 0);
        let ledger = Ledger::new(&pool, 2);
        let busy = worker(&pool, &ledger);
        ticker_queue.push(ticket(0));
        ticker_queue.announce();
        let spare = WorkerThread::take(pool.threads(), true).unwrap();
        let spare = thread::spawn(move || spare.run());
        ticker_queue.push(ticket(1));
        ticker_queue.announce();
        spare.join().unwrap();
        assert!(ledger.served() > 0, "it leaves when there is nothing to do");
        busy.run();
        assert_eq!((ledger.served(), pool.workers()), (2, 0));
    });
}
