//! Tests of the whole pool: stepped by hand where the order matters, with threads where races do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::growth::{Crew, FRESH, Look};
use super::{
    Growth, GrowthWatch, Pool, PoolConfig, PoolCrew, PoolWorkers, TickerQueue, Worker, WorkerThread,
};
use crate::clock::{Clock, ManualClock};
use crate::job::{AtLock, Claim, Ticket};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

const QUIET: Duration = Duration::from_secs(10);

fn ticket(slot: usize) -> Ticket {
    Ticket {
        stripe: 3,
        slot: u32::try_from(slot).unwrap(),
    }
}

fn pool(workers: usize, max_workers: usize, ticker_queues: usize) -> (Arc<Pool>, Vec<TickerQueue>) {
    with(workers, max_workers, ticker_queues, 1_000)
}

fn with(
    workers: usize,
    max_workers: usize,
    ticker_queues: usize,
    injector_bound: usize,
) -> (Arc<Pool>, Vec<TickerQueue>) {
    let config = PoolConfig {
        workers,
        max_workers,
        ticker_queues,
        injector_bound,
        shares_workers: false,
    };
    let workers = threads(workers, max_workers, &ManualClock::new());
    Pool::new(config, workers)
}

fn threads(workers: usize, most: usize, hand: &ManualClock) -> Arc<PoolWorkers> {
    let clock = Clock::manual(hand);
    Arc::new(PoolWorkers::new(workers, most, QUIET, clock))
}

/// Returns what moves the clock of the pool's workers.
fn hand_of(pool: &Pool) -> ManualClock {
    pool.threads().clock().as_manual().unwrap()
}

/// Takes a worker without its thread.
fn take(pool: &Pool) -> Option<WorkerThread> {
    WorkerThread::take(pool.threads(), false)
}

/// Starts a worker. All workers of a pool have the same claim.
fn spawn<C: Claim>(pool: &Pool, claim: &Arc<C>) -> JoinHandle<()> {
    let weak = Arc::downgrade(claim);
    pool.is_served_by(weak);
    let worker = take(pool).unwrap();
    thread::spawn(move || worker.run())
}

fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// Records the tickets that are served, in order.
#[derive(Default)]
struct Notes {
    served: Mutex<Vec<usize>>,
    panics: AtomicBool,
}

impl Notes {
    fn served(&self) -> Vec<usize> {
        std::mem::take(&mut self.served.lock())
    }
}

impl Claim for Notes {
    fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        let mut next = Some(first);
        while let Some(ticket) = next {
            assert!(!self.panics.load(Ordering::Relaxed), "on purpose");
            self.served.lock().push(ticket.slot as usize);
            next = more();
        }
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

/// Tasks that wait until a gate opens.
#[derive(Default)]
struct Gate {
    started: AtomicUsize,
    opens_at: Option<usize>,
    open: std::sync::Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Claim for Gate {
    fn serve(&self, _: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        loop {
            if Some(self.started.fetch_add(1, Ordering::SeqCst) + 1) == self.opens_at {
                self.open();
            }
            let closed = self.open.lock().unwrap();
            drop(self.opened.wait_while(closed, |open| !*open).unwrap());
            if more().is_none() {
                return;
            }
        }
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

#[test]
fn what_tickers_have_served_is_counted_apart_from_the_claims() {
    let (pool, _ticker_queues) = pool(1, 1, 1);
    pool.count_helped();
    assert_eq!((pool.helped(), pool.claims()), (1, 0));
}

#[test]
fn the_lowest_free_slot_is_taken_and_can_be_taken_again() {
    let (pool, _) = pool(1, 3, 0);
    let mut slots: Vec<_> = (0..3).map(|_| pool.take_slot().unwrap()).collect();
    assert_eq!(slots.iter().map(Worker::number).sum::<usize>(), 3);
    assert!(pool.take_slot().is_none());
    assert_eq!((pool.workers(), pool.free_slots()), (3, 0));
    drop(slots.remove(1));
    assert_eq!((pool.workers(), pool.free_slots()), (2, 1));
    assert_eq!(pool.take_slot().unwrap().number(), 1);
}

#[test]
fn the_lowest_free_number_is_taken_and_can_be_taken_again() {
    let (pool, _) = pool(1, 3, 0);
    let mut threads: Vec<_> = (0..3).map(|_| take(&pool).unwrap()).collect();
    assert!(take(&pool).is_none());
    assert_eq!((pool.workers(), pool.free_slots()), (3, 0));
    drop(threads.remove(1));
    assert_eq!((pool.workers(), pool.free_slots()), (2, 1));
    assert_eq!(take(&pool).unwrap().number(), 1);
}

#[test]
fn no_worker_is_taken_after_stop() {
    let (pool, _) = pool(2, 4, 0);
    let worker = take(&pool).unwrap();
    pool.stop();
    pool.stop();
    assert!(take(&pool).is_none());
    worker.run();
    assert_eq!(pool.workers(), 0);
}

#[test]
fn a_pool_that_is_gone_is_not_visited() {
    let (pool, ticker_queues) = pool(1, 1, 1);
    let notes = Arc::new(Notes::default());
    let weak = Arc::downgrade(&notes);
    pool.is_served_by(weak);
    ticker_queues[0].push(ticket(1));
    ticker_queues[0].announce();
    drop(notes);
    let worker = take(&pool).unwrap();
    pool.stop();
    worker.run();
    assert_eq!((pool.claims(), pool.queued_hint()), (0, 1));
}

#[test]
fn a_step_serves_up_to_32_and_says_whether_it_found_any() {
    let (pool, ticker_queues) = pool(1, 1, 1);
    let notes = Notes::default();
    let mut worker = pool.take_slot().unwrap();
    assert!(!worker.step(&notes));
    for slot in 0..200 {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    assert_eq!(pool.queued_hint(), 200);
    let mut all = Vec::new();
    while worker.step(&notes) {
        let now = notes.served();
        assert!((1..=32).contains(&now.len()), "{}", now.len());
        all.extend(now);
        assert_eq!(pool.claims(), all.len() as u64);
    }
    assert_eq!(all, (0..200).collect::<Vec<_>>());
    assert_eq!(pool.queued_hint(), 0);
}

#[test]
fn the_injector_is_not_starved_by_a_busy_ticker() {
    let (pool, ticker_queues) = pool(1, 1, 1);
    let notes = Notes::default();
    let mut worker = pool.take_slot().unwrap();
    for slot in 0..1_000 {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    pool.inject(ticket(5_000)).unwrap();
    let mut before = 0;
    while worker.step(&notes) {
        let now = notes.served();
        if let Some(place) = now.iter().position(|slot| *slot == 5_000) {
            before += place;
            break;
        }
        before += now.len();
    }
    assert!(before <= 32, "{before} came first");
}

#[test]
fn only_what_no_ticker_has_sifted_counts_as_unsifted() {
    let (pool, ticker_queues) = pool(1, 1, 1);
    assert!(!pool.has_unsifted());
    pool.put_sifted(ticket(0));
    ticker_queues[0].push(ticket(1));
    assert!(!pool.has_unsifted(), "each ticker knows its own deque");
    pool.inject(ticket(2)).unwrap();
    assert!(pool.has_unsifted());
    let taken = || Some(ticker_queues[0].take_unsifted()?.slot);
    assert_eq!([taken(), taken(), taken()], [Some(1), Some(2), None]);
    assert!(pool.has_tickets() && !pool.has_unsifted());
}

#[test]
fn the_injector_refuses_when_full() {
    let (pool, _) = with(1, 1, 0, 2);
    assert_eq!(pool.inject(ticket(0)), Ok(()));
    assert_eq!(pool.inject(ticket(1)), Ok(()));
    assert_eq!(pool.inject(ticket(2)), Err(ticket(2)));
}

#[test]
fn c114_what_a_worker_leaves_behind_is_found_by_others() {
    let (pool, ticker_queues) = pool(2, 2, 1);
    let notes = Notes::default();
    for slot in 0..10 {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    assert!(pool.take_listing());
    let mut first = pool.take_slot().unwrap();
    let mut second = pool.take_slot().unwrap();
    // It panics in its first task and has stolen more tickets than that one.
    notes.panics.store(true, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| first.step(&notes))).is_err());
    notes.panics.store(false, Ordering::Relaxed);
    // The worker made the rest known before its task, and another one is about to look for it.
    assert!(pool.take_listing());
    drop(first);
    assert!(pool.take_listing());
    assert_eq!((pool.workers(), pool.queued_hint()), (1, 9));
    while second.step(&notes) {}
    let mut rest = notes.served();
    rest.sort_unstable();
    assert_eq!(rest, (1..10).collect::<Vec<_>>());
}

#[test]
fn an_extra_worker_leaves_when_it_was_quiet_and_the_others_stay() {
    let (pool, ticker_queues) = pool(1, 2, 1);
    let hand = hand_of(&pool);
    let notes = Arc::new(Notes::default());
    let stays = spawn(&pool, &notes);
    let leaves = spawn(&pool, &notes);
    until(|| pool.sleeping() == 2);
    hand.advance(QUIET - Duration::from_nanos(1));
    // Woken for work, the worker that stays serves it, because the lowest number comes first.
    ticker_queues[0].push(ticket(1));
    ticker_queues[0].announce();
    until(|| pool.claims() == 1 && pool.sleeping() == 2);
    hand.advance(Duration::from_nanos(1));
    leaves.join().unwrap();
    assert_eq!((pool.workers(), pool.sleeping()), (1, 1));
    hand.advance(QUIET * 9);
    ticker_queues[0].push(ticket(2));
    ticker_queues[0].announce();
    until(|| pool.claims() == 2 && pool.sleeping() == 1);
    // The number is free for the next worker.
    assert_eq!(take(&pool).unwrap().number(), 1);
    pool.stop();
    stays.join().unwrap();
    assert_eq!(notes.served(), [1, 2]);
}

#[test]
fn work_makes_an_extra_worker_stay_longer() {
    let (pool, ticker_queues) = pool(1, 2, 1);
    let hand = hand_of(&pool);
    let notes = Arc::new(Notes::default());
    let _busy = take(&pool).unwrap();
    let extra = spawn(&pool, &notes);
    until(|| pool.sleeping() == 1);
    hand.advance(QUIET / 2);
    ticker_queues[0].push(ticket(1));
    ticker_queues[0].announce();
    until(|| pool.claims() == 1 && pool.sleeping() == 1);
    // Its quiet period began again, so it has not left.
    hand.advance(QUIET / 2);
    ticker_queues[0].push(ticket(2));
    ticker_queues[0].announce();
    until(|| pool.claims() == 2 && pool.sleeping() == 1);
    hand.advance(QUIET);
    extra.join().unwrap();
    assert_eq!(notes.served(), [1, 2]);
}

#[test]
fn c107_ten_tasks_of_one_batch_run_at_the_same_time_on_ten_workers() {
    let (pool, ticker_queues) = pool(10, 10, 1);
    // No task ends before all ten have started.
    let gate = Arc::new(Gate {
        opens_at: Some(10),
        ..Gate::default()
    });
    let workers: Vec<_> = (0..10).map(|_| spawn(&pool, &gate)).collect();
    until(|| pool.sleeping() == 10);
    for slot in 0..10 {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    until(|| pool.claims() == 10);
    pool.stop();
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(gate.started.load(Ordering::SeqCst), 10);
}

fn crew(pool: &Pool) -> PoolCrew<'_, impl Fn() -> usize> {
    PoolCrew::new(pool, || pool.queued_hint())
}

/// Looks when the last answer of the kernel is too old to go by.
fn look_anew(pool: &Pool) -> Look {
    hand_of(pool).advance(FRESH);
    crew(pool).look(Time::ZERO)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn what_the_kernel_said_stands_for_all_pools_for_a_moment() {
    let workers = threads(1, 4, &ManualClock::new());
    let config = PoolConfig {
        workers: 1,
        max_workers: 4,
        ticker_queues: 1,
        injector_bound: 10,
        shares_workers: true,
    };
    let new = || Pool::new(config, Arc::clone(&workers));
    let ((one, _one_queues), (other, _other_queues)) = (new(), new());
    let hand = hand_of(&one);
    let look = |pool| crew(pool).look(Time::ZERO);
    let worker = take(&one).unwrap();
    assert_eq!(look(&one), Look::Able(1));
    // From now on the kernel has no answer.
    worker.is_known_as(None);
    assert_eq!(look(&other), Look::Able(1));
    hand.advance(FRESH - Duration::from_nanos(1));
    assert_eq!(look(&one), Look::Able(1));
    hand.advance(Duration::from_nanos(1));
    assert_eq!(look(&other), Look::Blind);
    // Nor does an answer stand that is from the future, or from before a start of workers.
    worker.is_known_as(crate::sync::thread::own_number());
    assert_eq!(look(&one), Look::Able(1));
    worker.is_known_as(None);
    hand.set(Time::ZERO);
    assert_eq!(look(&one), Look::Blind);
    worker.is_known_as(crate::sync::thread::own_number());
    let mut starts = crew(&one);
    assert_eq!(starts.look(Time::ZERO), Look::Able(1));
    assert_eq!(starts.asked_for_threads(Time::ZERO, true), None);
    drop(starts);
    worker.is_known_as(None);
    assert_eq!(look(&other), Look::Blind);
}

#[test]
fn a_worker_that_is_about_to_claim_is_able_although_its_thread_waits() {
    let (pool, ticker_queues) = pool(1, 1, 1);
    let gate = Arc::new(Gate::default());
    let thread = spawn(&pool, &gate);
    ticker_queues[0].push(ticket(0));
    ticker_queues[0].announce();
    until(|| pool.claims() == 1 && look_anew(&pool) == Look::Able(0));
    assert!(!crew(&pool).one_claims());
    // Set for the worker, whose thread goes on waiting.
    let desk = pool.threads().desks().remove(0);
    let mark = desk.at_lock.enter();
    assert_eq!(look_anew(&pool), Look::Able(1));
    assert!(crew(&pool).one_claims());
    drop(mark);
    assert_eq!(look_anew(&pool), Look::Able(0));
    gate.open();
    pool.stop();
    thread.join().unwrap();
}

#[test]
fn a_worker_that_was_chosen_and_not_woken_yet_is_able() {
    let (pool, _ticker_queues) = pool(1, 1, 1);
    let thread = spawn(&pool, &Arc::<Notes>::default());
    until(|| pool.sleeping() == 1);
    // As a waker does that the kernel stops before it wakes the worker.
    let chosen = pool.threads().choose_sleeper().unwrap();
    for _ in 0..20 {
        assert_eq!(look_anew(&pool), Look::Able(1));
        thread::sleep(Duration::from_millis(1));
    }
    assert!(crew(&pool).one_claims());
    chosen.unpark();
    pool.stop();
    thread.join().unwrap();
    assert!(!crew(&pool).one_claims());
}

#[test]
fn c106_a_pool_whose_workers_are_blocked_grows_and_shrinks_again() {
    let limit = Duration::from_millis(2);
    let (pool, ticker_queues) = pool(2, 16, 1);
    let hand = hand_of(&pool);
    let gate = Arc::new(Gate::default());
    let mut threads: Vec<_> = (0..2).map(|_| spawn(&pool, &gate)).collect();
    for slot in 0..12 {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    let mut watch = GrowthWatch::new(limit);
    let mut rounds = 0;
    while gate.started.load(Ordering::SeqCst) < 12 {
        let waiting = pool.queued_hint() > 0;
        let mut seen = crew(&pool);
        let look = watch.look(hand.now(), waiting, &mut seen);
        if let Growth::Start { workers, .. } = look {
            for _ in 0..workers.count {
                threads.push(spawn(&pool, &gate));
            }
            rounds += 1;
        }
        drop(seen);
        // Every worker is blocked in a task, or has found nothing.
        until(|| {
            let stuck = gate.started.load(Ordering::SeqCst);
            stuck == 12
                || stuck + pool.sleeping() == pool.workers()
                    // The kernel has to report it, too.
                    && (pool.sleeping() > 0 || look_anew(&pool) == Look::Able(0))
        });
        hand.advance(limit);
    }
    assert!(pool.workers() >= 12 && rounds <= 6, "{rounds}");
    gate.open();
    until(|| pool.sleeping() == pool.workers());
    hand.advance(QUIET);
    until(|| pool.workers() == 2);
    pool.stop();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn one_ticker_at_a_time_looks_at_the_workers_and_starts_more() {
    let (pool, _) = pool(1, 3, 2);
    let _about_to_start = take(&pool).unwrap();
    let (mut one, mut other) = (crew(&pool), crew(&pool));
    assert_eq!(one.look(Time::ZERO), Look::Able(1));
    assert_eq!(other.look(Time::ZERO), Look::Later);
    assert!(!other.may_start_blindly(), "it has no turn");
    let _started = take(&pool).unwrap();
    let _ = one.asked_for_threads(Time::ZERO, true);
    drop(one);
    assert_eq!(other.look(Time::ZERO), Look::Able(2));
}

#[test]
fn c106_where_threads_cannot_be_looked_at_one_worker_starts_in_ten_milliseconds() {
    let (pool, _) = pool(1, 64, 2);
    let worker = take(&pool).unwrap();
    worker.is_known_as(None);
    let hand = hand_of(&pool);
    let step = Duration::from_millis(1);
    let may_start = || {
        let mut crew = crew(&pool);
        assert_eq!(crew.look(Time::ZERO), Look::Blind);
        crew.may_start_blindly()
    };
    assert!(may_start());
    for _ in 1..10 {
        hand.advance(step);
        assert!(!may_start());
    }
    hand.advance(step);
    assert!(may_start());
    // After the clock was set back, this would otherwise be a long wait.
    hand.set(Time::ZERO);
    assert!(may_start());
    assert!(!may_start());
    // Two tickers watch one stall: two workers would be one too many.
    let mut watches = [(); 2].map(|()| GrowthWatch::new(step * 2));
    let mut started = Vec::new();
    for millis in 0..=35 {
        hand.set(Time::ZERO + Duration::from_secs(1) + step * millis);
        for watch in &mut watches {
            let mut crew = PoolCrew::new(&pool, || 100);
            if let Growth::Start { workers, .. } = watch.look(hand.now(), true, &mut crew) {
                started.push((millis, workers.count));
            }
        }
    }
    assert_eq!(started.iter().map(|(_, count)| count).sum::<usize>(), 4);
    for pair in started.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= 10, "{started:?}");
    }
    // A thread that has ended can't be checked either.
    worker.is_known_as(Some(u64::MAX - 1));
    assert_eq!(look_anew(&pool), Look::Blind);
}

#[test]
fn a_system_that_refuses_threads_is_asked_less_and_less_often() {
    let (pool, _) = pool(1, 64, 2);
    take(&pool).unwrap().is_known_as(None);
    let hand = hand_of(&pool);
    let step = Duration::from_millis(1);
    // Two tickers, which share the pause.
    let mut watches = [(); 2].map(|()| GrowthWatch::new(step * 2));
    let mut ask = |millis: u32, all_started: bool| {
        let now = Time::ZERO + step * millis;
        hand.set(now);
        let mut asked = 0;
        for watch in &mut watches {
            let mut crew = PoolCrew::new(&pool, || 100);
            if let Growth::Start { .. } = watch.look(now, true, &mut crew) {
                asked += 1;
                let again = crew.asked_for_threads(now, all_started);
                assert_eq!(again.is_none(), all_started);
            }
        }
        asked
    };
    let mut asked = Vec::new();
    for millis in 0..10_000 {
        match ask(millis, false) {
            0 => {}
            1 => asked.push(millis),
            more => panic!("{more} tickers asked"),
        }
    }
    let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let doubling = [10, 20, 40, 80, 160, 320, 640].into_iter();
    for (pause, least) in pauses.iter().zip(doubling.chain([1_000; 8])) {
        // Then the workers are looked at, which a ticker does in steps of a millisecond.
        assert!((least..least + 3).contains(pause), "{pauses:?}");
    }
    assert_eq!(pauses.len(), 15);
    // Once the system gives a thread, the pause is over, and the next one begins from the first.
    let begun = (10_000..).find(|millis| ask(*millis, true) > 0).unwrap();
    let refused = (begun + 1..)
        .find(|millis| ask(*millis, false) > 0)
        .unwrap();
    let again = (refused + 1..)
        .find(|millis| ask(*millis, false) > 0)
        .unwrap();
    assert!(again - refused < 13, "{begun}, {refused}, {again}");
    // After the clock was set back, the pause would otherwise be a long wait.
    assert_eq!((0..5).map(|millis| ask(millis, false)).sum::<u32>(), 1);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn of_many_threads_some_are_looked_at_and_all_in_turn() {
    const BLOCKED: usize = 70;
    let (pool, ticker_queues) = pool(BLOCKED, BLOCKED + 40, 1);
    let gate = Arc::new(Gate::default());
    let threads: Vec<_> = (0..BLOCKED).map(|_| spawn(&pool, &gate)).collect();
    for slot in 0..BLOCKED {
        ticker_queues[0].push(ticket(slot));
    }
    ticker_queues[0].announce();
    until(|| gate.started.load(Ordering::SeqCst) == BLOCKED);
    // Three checks cover all threads, so all of them are blocked.
    let look = || look_anew(&pool);
    until(|| (0..3).all(|_| look() == Look::Able(0)));
    // Workers that have not started yet are able, and the estimate is of the others.
    let starting: Vec<_> = (0..40).map(|_| take(&pool).unwrap()).collect();
    assert_eq!(look(), Look::Able(40));
    // This thread runs, in half of the slots of one check.
    let own = crate::sync::thread::own_number();
    for worker in &starting[..30] {
        worker.is_known_as(own);
    }
    let sum: usize = (0..100)
        .map(|_| match look() {
            Look::Able(able) => able,
            other => panic!("{other:?}"),
        })
        .sum();
    // 30 workers run, and 10 are starting.
    assert!((3_500..=4_500).contains(&sum), "{sum}");
    drop(starting);
    gate.open();
    pool.stop();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn c114_every_ticket_of_several_producers_is_served_exactly_once() {
    const EACH: usize = 20_000;
    struct Marks {
        marks: Vec<AtomicUsize>,
        left: AtomicUsize,
    }
    impl Claim for Marks {
        fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
            let mut next = Some(first);
            while let Some(ticket) = next {
                self.marks[ticket.slot as usize].fetch_add(1, Ordering::Relaxed);
                self.left.fetch_sub(1, Ordering::Release);
                next = more();
            }
        }

        fn give_back(&self, _: &[Ticket]) {
            unreachable!("the pool gives nothing back");
        }
    }
    let (pool, ticker_queues) = pool(3, 4, 2);
    let all = Arc::new(Marks {
        marks: (0..3 * EACH).map(|_| AtomicUsize::new(0)).collect(),
        left: AtomicUsize::new(3 * EACH),
    });
    let workers: Vec<_> = (0..3).map(|_| spawn(&pool, &all)).collect();
    let tickers: Vec<_> = (0..)
        .zip(ticker_queues)
        .map(|(number, ticker_queue)| {
            thread::spawn(move || {
                for slot in 0..EACH {
                    ticker_queue.push(ticket(number * EACH + slot));
                    // Batches of one up to thirteen, so that workers sleep in between.
                    if slot % 13 == 0 || slot % 31 == 0 {
                        ticker_queue.announce();
                        thread::yield_now();
                    }
                }
                ticker_queue.announce();
            })
        })
        .collect();
    for slot in 2 * EACH..3 * EACH {
        until(|| pool.inject(ticket(slot)).is_ok());
    }
    for ticker in tickers {
        ticker.join().unwrap();
    }
    until(|| all.left.load(Ordering::Acquire) == 0);
    pool.stop();
    for worker in workers {
        worker.join().unwrap();
    }
    assert!(
        all.marks
            .iter()
            .all(|mark| mark.load(Ordering::Relaxed) == 1)
    );
    assert_eq!((pool.claims(), pool.queued_hint()), (3 * EACH as u64, 0));
}

/// The ticker's number is the ticket's number divided by ten thousand.
fn fed_with_many(ticker_queues: &[TickerQueue]) {
    for (number, ticker_queue) in ticker_queues.iter().enumerate() {
        for slot in 0..3_000 {
            ticker_queue.push(ticket(10_000 * number + slot));
        }
        ticker_queue.announce();
    }
}

/// Does one step, and returns the tickers whose tickets it served.
fn served_from(worker: &mut Worker, notes: &Notes) -> usize {
    assert!(worker.step(notes));
    let served = notes.served();
    let from = served[0] / 10_000;
    assert!(served.iter().all(|slot| slot / 10_000 == from), "a batch");
    from
}

#[test]
fn workers_that_get_on_keep_to_their_own_tickers() {
    let (pool, ticker_queues) = pool(3, 3, 3);
    fed_with_many(&ticker_queues);
    let notes = Notes::default();
    let mut workers: Vec<_> = (0..3).map(|_| pool.take_slot().unwrap()).collect();
    for _ in 0..24 {
        for worker in &mut workers {
            let own = worker.number();
            assert_eq!(served_from(worker, &notes), own);
        }
    }
}

#[test]
fn a_ticker_whose_worker_claims_nothing_is_not_the_last_for_everybody() {
    for workers in [1, 3] {
        let (pool, ticker_queues) = pool(workers, workers, 3);
        fed_with_many(&ticker_queues);
        let notes = Notes::default();
        let mut worker = pool.take_slot().unwrap();
        let order: Vec<usize> = (0..24).map(|_| served_from(&mut worker, &notes)).collect();
        let of = |number| order.iter().filter(|from| **from == number).count();
        assert!((0..3).all(|number| of(number) > 0), "{order:?}");
        if workers == 1 {
            assert_eq!(
                [of(0), of(1), of(2)],
                [8, 8, 8],
                "it has all of them to itself"
            );
        } else {
            assert!(of(0) >= 18, "{order:?}");
        }
    }
}

/// Tasks that take a tenth of a millisecond by the clock, and note the order over several pools.
struct Storm {
    name: char,
    hand: ManualClock,
    order: Arc<Mutex<String>>,
    /// What the first task of this storm does.
    first: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Claim for Storm {
    fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        let mut next = Some(first);
        while next.is_some() {
            self.order.lock().push(self.name);
            self.hand.advance(Duration::from_micros(100));
            let first = self.first.lock().take();
            if let Some(first) = first {
                first();
            }
            next = more();
        }
    }

    fn give_back(&self, _: &[Ticket]) {
        unreachable!("the pool gives nothing back");
    }
}

/// Serves pools with so many tickets each, by one worker. The tickets of the later pools come during
/// the first task of the first one. Returns the order in which they were served.
fn served_in_order(tickets: &[usize]) -> String {
    let hand = ManualClock::new();
    let order = Arc::<Mutex<String>>::default();
    let workers = threads(1, 1, &hand);
    let mut later: Vec<Box<dyn FnOnce() + Send>> = Vec::new();
    let mut pools = Vec::new();
    for (name, count) in ('A'..).zip(tickets) {
        let config = PoolConfig {
            workers: 1,
            max_workers: 4,
            ticker_queues: 1,
            injector_bound: 1_000,
            shares_workers: true,
        };
        let (pool, mut ticker_queues) = Pool::new(config, Arc::clone(&workers));
        let storm = Arc::new(Storm {
            name,
            hand: hand.clone(),
            order: Arc::clone(&order),
            first: Mutex::default(),
        });
        let weak = Arc::downgrade(&storm);
        pool.is_served_by(weak);
        let (queue, count) = (ticker_queues.pop().unwrap(), *count);
        later.push(Box::new(move || {
            for slot in 0..count {
                queue.push(ticket(slot));
            }
            queue.announce();
        }));
        pools.push((pool, storm));
    }
    let others = later.split_off(1);
    *pools[0].1.first.lock() = Some(Box::new(|| others.into_iter().for_each(|push| push())));
    later.into_iter().for_each(|push| push());
    let worker = take(&pools[0].0).unwrap();
    // It leaves when nothing is listed any more.
    pools[0].0.stop();
    worker.run();
    let order = order.lock().clone();
    for ((pool, storm), count) in pools.iter().zip(tickets) {
        assert_eq!(pool.queued_hint(), 0);
        assert_eq!(order.matches(storm.name).count(), *count);
    }
    order
}

#[test]
fn the_storm_of_a_pool_delays_another_pool_by_a_millisecond() {
    let order = served_in_order(&[500, 3]);
    let before = order.find('B').unwrap();
    assert!((10..=12).contains(&before), "{order}");
    assert_eq!(&order[before..before + 3], "BBB");
}

#[test]
fn two_storms_take_turns_of_a_millisecond() {
    let order = served_in_order(&[100, 100]);
    let mut turns = Vec::new();
    for name in order.chars() {
        match turns.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => turns.push((name, 1)),
        }
    }
    // The last two turns have the rest.
    turns.truncate(turns.len() - 2);
    assert!(turns.len() >= 16, "{turns:?}");
    for (_, count) in turns {
        assert!((10..=12).contains(&count), "{order}");
    }
}

#[test]
fn a_pool_that_is_alone_is_not_left() {
    let order = served_in_order(&[2_000]);
    assert_eq!(order.len(), 2_000);
}

#[test]
fn many_pools_with_a_ticket_each_come_before_the_rest_of_a_storm() {
    let mut tickets = vec![1; 21];
    tickets[0] = 1_000;
    let order = served_in_order(&tickets);
    let last = ('B'..='U').map(|name| order.find(name).unwrap()).max();
    assert!(last.unwrap() < 100, "{order}");
}

/// Three pools: a worker is in the first one, which is listed again; the others are listed.
#[test]
fn a_spare_worker_visits_pools_that_no_worker_is_in_and_leaves() {
    let workers = threads(1, 1, &ManualClock::new());
    let pools: Vec<_> = (0..3)
        .map(|number| {
            let config = PoolConfig {
                workers: 1,
                max_workers: 4,
                ticker_queues: 1,
                injector_bound: 10,
                shares_workers: true,
            };
            let (pool, queues) = Pool::new(config, Arc::clone(&workers));
            let notes = Arc::new(Notes::default());
            let weak = Arc::downgrade(&notes);
            pool.is_served_by(weak);
            let visitor = (number == 0).then(|| pool.take_slot().unwrap());
            queues[0].push(ticket(number));
            queues[0].announce();
            (pool, notes, visitor)
        })
        .collect();
    let regular = take(&pools[0].0).unwrap();
    assert!(take(&pools[0].0).is_none(), "there are enough");
    let spare = WorkerThread::take(&workers, true).unwrap();
    // It is no reason to start one worker less.
    assert_eq!((workers.taken(), workers.regular()), (2, 1));
    spare.run();
    assert_eq!((workers.taken(), workers.regular()), (1, 1));
    let served = || {
        pools
            .iter()
            .map(|(pool, ..)| pool.claims())
            .collect::<Vec<_>>()
    };
    assert_eq!(served(), [0, 1, 1]);
    // The listing of the first one is still there.
    workers.stop();
    regular.run();
    assert_eq!(served(), [1, 1, 1]);
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_pool_whose_workers_are_all_blocked_gets_a_spare_one_if_it_asks() {
    let workers = threads(1, 4, &ManualClock::new());
    let config = PoolConfig {
        workers: 1,
        max_workers: 4,
        ticker_queues: 1,
        injector_bound: 10,
        shares_workers: true,
    };
    let new = || Pool::new(config, Arc::clone(&workers));
    let ((pool, queues), (other, other_queues)) = (new(), new());
    assert!(!crew(&pool).is_stuck(), "nobody is in it");
    let gate = Arc::new(Gate::default());
    let blocked = spawn(&pool, &gate);
    queues[0].push(ticket(1));
    queues[0].announce();
    until(|| crew(&pool).is_stuck());
    assert!(!crew(&other).is_stuck());
    let desk = pool.threads().desks().remove(0);
    let mark = desk.at_lock.enter();
    assert!(!crew(&pool).is_stuck(), "it is about to claim");
    drop(mark);

    queues[0].push(ticket(2));
    queues[0].announce();
    let spare = || WorkerThread::take(&workers, true).unwrap();
    // A request is met once, also where the pool has no worker.
    let notes = Arc::new(Notes::default());
    let weak = Arc::downgrade(&notes);
    other.is_served_by(weak);
    other.ask_for_spare();
    for _ in 0..2 {
        other_queues[0].push(ticket(3));
        other_queues[0].announce();
        spare().run();
        assert_eq!(pool.claims(), 1, "it has left");
        // From now on there is a worker in the other pool.
        std::mem::forget(other.take_slot());
    }
    assert_eq!(notes.served(), [3], "the second one was not asked for");
    pool.ask_for_spare();
    let spare = spare();
    let spare = thread::spawn(move || spare.run());
    until(|| gate.started.load(Ordering::SeqCst) == 2);
    gate.open();
    spare.join().unwrap();
    workers.stop();
    blocked.join().unwrap();
}

#[test]
fn a_pool_is_left_alone_while_each_worker_is_in_another_one() {
    let workers = threads(2, 2, &ManualClock::new());
    let new = |shares_workers| {
        let config = PoolConfig {
            workers: 2,
            max_workers: 4,
            ticker_queues: 1,
            injector_bound: 10,
            shares_workers,
        };
        Pool::new(config, Arc::clone(&workers))
    };
    let (busy, busy_queues) = new(true);
    let (alone, _alone_queues) = new(true);
    let (unshared, _unshared_queues) = new(false);
    let gate = Arc::new(Gate::default());
    let visiting = spawn(&busy, &gate);
    busy_queues[0].push(ticket(1));
    busy_queues[0].announce();
    until(|| gate.started.load(Ordering::SeqCst) == 1);
    assert!(alone.is_left_alone() && !busy.is_left_alone());
    // The workers of a pool that shares them with nobody are in this one.
    assert!(!unshared.is_left_alone());
    // A worker that has just been started is about to look for a pool.
    let started = take(&busy).unwrap();
    assert!(!alone.is_left_alone());
    drop(started);
    let visitor = alone.take_slot().unwrap();
    assert!(!alone.is_left_alone());
    drop(visitor);
    assert!(alone.is_left_alone());
    gate.open();
    workers.stop();
    visiting.join().unwrap();
    assert!(alone.threads().taken() == 0);
}
