//! Locks and elections in virtual time, under the paused clock of tokio.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    BlockingStore, Change, Fault, LeaseStore, Leases, LockError, Loss, MemoryStore, StoreCall,
    StoreError, TermEnd, TokioStore,
};

const LEASE: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

/// A store that goes by tokio's clock, with the first process.
fn first() -> (MemoryStore, Leases, JoinHandle<()>) {
    let clock = Clock::manual(&ManualClock::new());
    let store = MemoryStore::with_clock(clock.clone());
    let builder = Leases::builder(store.clone()).clock(clock);
    let (leases, steps) = builder.build_stepped(1).expect("good options");
    (store, leases, tokio::spawn(steps.follow_tokio()))
}

/// Another process on the store.
fn other(store: &MemoryStore, seed: u64) -> (Leases, JoinHandle<()>) {
    let clock = Clock::manual(&ManualClock::new());
    let builder = Leases::builder(store.clone()).clock(clock);
    let (leases, steps) = builder.build_stepped(seed).expect("good options");
    (leases, tokio::spawn(steps.follow_tokio()))
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_kept_for_an_hour_and_lost_when_the_store_is_cut_off() {
    let (store, leases, _) = first();
    let guard = leases.lock("report").await.expect("it is free");
    sleep(HOUR).await;
    assert!(guard.is_held());
    let renewals = guard.renewals();
    assert!(renewals >= 120, "{renewals}");
    store.inject(|_| Fault::Fail(StoreError::Unavailable("cut off".into())));
    let cut = Instant::now();
    guard.lost().await;
    assert!(!guard.is_held());
    assert!(cut.elapsed() <= LEASE, "{:?}", cut.elapsed());
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_end_at_their_limit_by_the_clock_of_tokio_and_go_on_when_they_are_woken()
{
    let (store, leases, _) = first();
    let guard = leases.lock("report").await.expect("it is free");
    store.inject(|call| match call {
        StoreCall::Renew { .. } => Fault::Hang,
        _ => Fault::None,
    });
    sleep(LEASE * 3 / 5).await;
    assert_eq!((guard.renewals(), leases.stats().given_up), (0, 1));
    // The next one is amid its call.
    store.heal();
    sleep(Duration::from_millis(1)).await;
    assert_eq!((guard.renewals(), leases.stats().given_up), (1, 1));
    store.inject(|_| Fault::Hang);
    let began = Instant::now();
    guard.lost().await;
    assert!(began.elapsed() <= LEASE, "{:?}", began.elapsed());
}

/// On a thread of its own it would answer after a time that tokio's clock does not know.
#[tokio::test(start_paused = true)]
async fn a_store_that_may_block_is_called_in_place() {
    async fn locks(make: impl FnOnce(MemoryStore) -> Arc<dyn LeaseStore>) {
        let clock = Clock::manual(&ManualClock::new());
        let store = make(MemoryStore::with_clock(clock.clone()));
        let builder = Leases::builder(store).clock(clock);
        let (leases, steps) = builder.build_stepped(1).expect("good options");
        let steps = tokio::spawn(steps.follow_tokio());
        for _ in 0..1_000 {
            let guard = leases.lock("report").at_once().await.expect("it is free");
            guard.release().await.expect("it is held");
        }
        steps.abort();
    }
    let began = Instant::now();
    locks(|store| Arc::new(BlockingStore::new(store))).await;
    locks(|store| Arc::new(TokioStore::new(store, Handle::current()))).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stands_still_loses_its_lock_to_one_that_waits() {
    let (store, leases, process) = first();
    let guard = leases.lock("report").await.expect("it is free");
    let (others, _) = other(&store, 2);
    let refused = others.lock("report").within(HOUR).await;
    assert!(
        matches!(refused, Err(LockError::TimedOut { .. })),
        "{refused:?}"
    );
    process.abort();
    let stopped = Instant::now();
    let second = others.lock("report").await.expect("the lease is over");
    assert!(!guard.is_held() && second.is_held());
    assert!(
        stopped.elapsed() <= LEASE + Duration::from_secs(1),
        "{:?}",
        stopped.elapsed()
    );
    assert!(second.token() > guard.token());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_given_back_wakes_who_waits_at_once() {
    let (store, leases, _) = first();
    let guard = leases.lock("report").await.expect("it is free");
    let (others, _) = other(&store, 2);
    let waiting = tokio::spawn(async move {
        let guard = others.lock("report").await;
        (Instant::now(), guard.map(|guard| guard.is_held()))
    });
    sleep(HOUR).await;
    let released = Instant::now();
    guard.release().await.expect("it is held");
    let (at, held) = waiting.await.expect("no panic");
    assert_eq!(held.ok(), Some(true));
    assert!(
        at - released < Duration::from_secs(1),
        "{:?}",
        at - released
    );
}

#[tokio::test(start_paused = true)]
async fn of_three_candidates_one_leads_and_the_next_one_follows() {
    let (store, leases, process) = first();
    let leader = leases.election("jobs").lead().await.expect("elected");
    let all = [2, 3].map(|seed| other(&store, seed).0.election("jobs"));
    for candidate in &all {
        let waits = timeout(HOUR, candidate.lead()).await;
        assert!(waits.is_err(), "only one leads");
    }
    assert!(leader.is_leader());
    process.abort();
    let second = all[0].lead().await.expect("elected");
    assert!(second.is_leader() && !leader.is_leader());
    assert!(second.token() > leader.token());
    // A planned change needs no lease to run out.
    let before = Instant::now();
    second.end().await;
    let third = all[1].lead().await.expect("elected");
    assert!(
        before.elapsed() < Duration::from_secs(1),
        "{:?}",
        before.elapsed()
    );
    assert!(third.is_leader());
}

#[tokio::test(start_paused = true)]
async fn work_of_a_leader_is_dropped_when_the_store_is_cut_off() {
    let (store, leases, _) = first();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let election = leases.election("jobs").on_change(move |change| {
        if let Change::Ended { end, .. } = change {
            let _ = tell.send(*end);
        }
    });
    let cut = {
        let store = store.clone();
        tokio::spawn(async move {
            sleep(HOUR).await;
            store.inject(|_| Fault::Fail(StoreError::Unavailable("cut off".into())));
        })
    };
    let started = Instant::now();
    let service = tokio::spawn(election.serve_async(async |_| sleep(100 * HOUR).await));
    let end = told.recv().await;
    assert_eq!(end, Some(TermEnd::Lost(Loss::Expired)));
    assert!(
        started.elapsed() <= HOUR + LEASE + Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    election.stop();
    service.await.expect("no panic").expect("it was stopped");
    cut.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn a_service_is_a_task_whose_pauses_grow_while_the_store_refuses_it() {
    let (store, leases, _) = first();
    let election = leases.election("scheduler");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    store.inject(move |call| match call {
        StoreCall::Claim(_) => {
            log.lock().unwrap().push(Instant::now());
            Fault::Fail(StoreError::Refused("WRONGPASS".into()))
        }
        _ => Fault::None,
    });
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    // A task has to be `Send`.
    let service = tokio::spawn(election.serve_async(async move |leadership| {
        let _ = tell.send(leadership.token());
        std::future::pending::<()>().await;
    }));
    sleep(Duration::from_secs(10)).await;
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    let pauses: Vec<_> = (asked.windows(2))
        .map(|pair| (pair[1] - pair[0]).as_millis())
        .collect();
    let means = [50, 100, 200, 400];
    for (pause, mean) in pauses
        .iter()
        .zip(means.into_iter().chain(std::iter::repeat(800)))
    {
        // A timer fires at the next millisecond.
        let (least, most) = (mean * 4 / 5, mean * 6 / 5 + 2);
        assert!((least..=most).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() >= 10, "{pauses:?}");
    store.heal();
    let healed = Instant::now();
    told.recv().await.expect("it leads");
    assert!(healed.elapsed() < Duration::from_secs(1));
    election.stop();
    service.await.expect("no panic").expect("it was stopped");
}
