//! Flushes as futures: who polls them, what ends them, and what becomes of their renewals.

use std::future::{Future, pending, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use kit::gate::Gate;
use kit::quiet;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Batch, Destination, Fault, KeepAlive, KeepGuard, LeaseStore, Loss, Outcome, Steps, StoreCall,
    StoreError, What, blocking,
};

use crate::worlds::{LEASE, MS, S, march, threads, threads_of, world, world_of};

type Answer = Result<Vec<Outcome>, StoreError>;

fn all_well(batch: &Batch<u32>) -> Answer {
    Ok(vec![Outcome::Renewed; batch.len()])
}

/// Counts its drop.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Keys whose first call hangs. Returns also how many calls have begun, and have been dropped.
fn first_call_hangs() -> (KeepAlive<u32>, Steps, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (calls, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (count, ends) = (Arc::clone(&calls), Arc::clone(&ended));
    let renew = move |batch: Batch<u32>| {
        let is_first = count.fetch_add(1, SeqCst) == 0;
        let dropped = Dropped(Arc::clone(&ends));
        async move {
            let _dropped = dropped;
            if is_first {
                pending::<()>().await;
            }
            all_well(&batch)
        }
    };
    let (keep_alive, steps) = KeepAlive::builder().build_stepped(1, renew).unwrap();
    (keep_alive, steps, calls, ended)
}

/// Lets the time pass until a call has begun.
fn until_sent(steps: &Steps, calls: &AtomicUsize) {
    while calls.load(SeqCst) == 0 {
        steps.advance(10 * MS);
    }
}

#[test]
fn at_the_limit_of_a_call_its_future_is_dropped_and_its_renewals_have_failed() {
    let (keep_alive, steps, calls, ended) = first_call_hangs();
    let events = keep_alive.events(100);
    let kept: Vec<_> = (0..10)
        .map(|key| keep_alive.keep(key, LEASE).unwrap())
        .collect();
    // All are due, and go out in one batch.
    steps.jump_to(steps.now() + 13 * S);
    until_sent(&steps, &calls);
    let sent = steps.now();
    steps.advance(LEASE / 6 - 20 * MS);
    assert_eq!((calls.load(SeqCst), ended.load(SeqCst)), (1, 0));
    steps.advance(20 * MS);
    assert_eq!(ended.load(SeqCst), 1);
    let stats = keep_alive.stats();
    assert_eq!((stats.given_up, stats.failed, stats.renewed), (10, 10, 0));
    let failed = events.try_iter().filter(|event| match &event.what {
        What::Failed { error, .. } => error.to_string().contains("no answer within"),
        _ => false,
    });
    assert_eq!(failed.count(), 10);
    // Another attempt follows soon.
    steps.advance(S);
    assert!(
        kept.iter()
            .all(|kept| kept.renewals() == 1 && kept.is_kept())
    );
    assert!(steps.now().since(sent) < LEASE / 4);
    assert_eq!(keep_alive.stats().armed, 10);
}

#[test]
fn a_stop_amid_a_call_that_hangs_waits_for_its_limit_and_no_longer() {
    let world = threads();
    let hangs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hangs);
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&world.hand))
        .build(move |_| {
            count.fetch_add(1, SeqCst);
            pending::<Answer>()
        })
        .unwrap();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    world.hand.advance(12 * S);
    march(&world.hand, S, "it is sent", || hangs.load(SeqCst) == 1);
    let stopping = thread::spawn(move || kept.stop());
    until("it is stopped", || keep_alive.stats().kept == 0);
    assert!(!stopping.is_finished());
    world.hand.advance(LEASE / 6);
    assert_eq!(stopping.join().unwrap(), Ok(()));
    until("nothing is armed", || keep_alive.stats().armed == 0);
    assert_eq!((hangs.load(SeqCst), keep_alive.stats().failed), (1, 0));
}

/// Leases are closed while renewals hang. What is released at the same destination does not wait for
/// them.
#[test]
fn a_close_amid_renewals_that_hang_gives_back_all_locks() {
    let world = threads_of(4, |builder| builder);
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    world.store.inject(move |call| match call {
        StoreCall::Renew { batch, .. } => {
            count.fetch_add(batch.len(), SeqCst);
            Fault::Hang
        }
        _ => Fault::None,
    });
    let guards: Vec<_> = (0..40)
        .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    world.hand.advance(12 * S);
    march(&world.hand, S, "all hang", || sent.load(SeqCst) >= 40);
    assert_eq!(world.leases.close(S), 40);
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(guard.lost().loss(), Some(Loss::Closed));
        assert_eq!(world.store.holder(&n.to_string()), None);
    }
    // Answers that come now renew nothing.
    world.store.heal();
    until("they have ended", || world.leases.stats().armed == 0);
    assert_eq!(world.leases.stats().renewed, 0);
}

/// The function lives as long as a call of it.
#[test]
fn everything_is_dropped_amid_a_call_that_hangs() {
    let hand = ManualClock::new();
    let (calls, gone) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (count, mark) = (Arc::clone(&calls), Dropped(Arc::clone(&gone)));
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&hand))
        .build(move |_| {
            let _ = &mark;
            count.fetch_add(1, SeqCst);
            pending::<Answer>()
        })
        .unwrap();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    hand.advance(12 * S);
    march(&hand, S, "it hangs", || calls.load(SeqCst) == 1);
    drop((keep_alive, kept));
    hand.advance(LEASE / 6);
    until("the function is gone", || gone.load(SeqCst) == 1);
}

/// Pending for so many polls, each of which is followed by a wake-up from somewhere.
fn pending_for(polls: usize, wakes: impl Fn(Waker) + Send + 'static) -> impl Future<Output = ()> {
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        wakes(context.waker().clone());
        Poll::Pending
    })
}

#[test]
fn wake_ups_amid_a_poll_and_from_other_threads_and_for_nothing_are_all_well() {
    // Amid the poll, from another thread at any time, several at once, and after the end.
    let kept_wakers = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&kept_wakers);
    let wakes = move |waker: Waker| {
        waker.wake_by_ref();
        let others = [waker.clone(), waker.clone()];
        for other in others {
            thread::spawn(move || other.wake());
        }
        keeps.lock().unwrap().push(waker);
    };
    let keep_alive = KeepAlive::<u32>::builder()
        .destination(|key| Destination::new(u64::from(key % 4)))
        .build(move |batch| {
            let (wakes, polling) = (wakes.clone(), AtomicBool::new(false));
            async move {
                pending_for(20, move |waker| {
                    assert!(!polling.swap(true, SeqCst), "two threads poll it");
                    wakes(waker);
                    polling.store(false, SeqCst);
                })
                .await;
                all_well(&batch)
            }
        })
        .unwrap();
    let kept: Vec<_> = (0..16)
        .map(|key| keep_alive.keep(key, 2 * S).unwrap())
        .collect();
    until("all are renewed", || {
        kept.iter().all(|kept| kept.renewals() >= 2)
    });
    assert!(kept.iter().all(KeepGuard::is_kept));
    drop((kept, keep_alive));
    for waker in kept_wakers.lock().unwrap().drain(..) {
        waker.wake();
    }
}

#[test]
fn a_panic_in_a_later_poll_and_in_a_drop_is_a_failure_of_that_call() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "wanted: in a drop");
        }
    }
    quiet::hush();
    for seed in 0..3 {
        let calls = AtomicUsize::new(0);
        let renew = move |batch: Batch<u32>| {
            let number = calls.fetch_add(1, SeqCst) % 7;
            let bomb = Bomb(number == 1);
            async move {
                let _bomb = bomb;
                pending_for(2, Waker::wake).await;
                assert!(number != 0, "wanted");
                if number == 1 {
                    pending::<()>().await;
                }
                all_well(&batch)
            }
        };
        let built = KeepAlive::builder().batch(5).build_stepped(seed, renew);
        let (keep_alive, steps) = built.unwrap();
        let kept: Vec<_> = (0..20)
            .map(|key| keep_alive.keep(key, LEASE).unwrap())
            .collect();
        steps.advance(10 * LEASE);
        assert!(
            kept.iter()
                .all(|kept| kept.is_kept() && kept.renewals() > 15)
        );
        let stats = keep_alive.stats();
        assert!(stats.given_up > 0 && stats.sent_alone > 0 && stats.lost == 0);
    }
}

/// The releases behind it are sent when its limit is over, and those of others at once.
#[test]
fn releases_that_hang_end_at_their_limit_and_are_tried_again() {
    let world = world_of(1, 2, |builder| builder);
    let bad = Destination::new(0);
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let store = world.store.clone();
    world.store.inject(move |call| {
        let of = match call {
            StoreCall::GiveBack { name, .. } => store.destination(name),
            StoreCall::GiveBackMany { destination, .. } => *destination,
            _ => return Fault::None,
        };
        match of == bad && count.fetch_add(1, SeqCst) == 0 {
            true => Fault::Hang,
            false => Fault::None,
        }
    });
    let guards: Vec<_> = (0..250)
        .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
        .collect();
    drop(guards);
    world.steps.settle();
    let held = || {
        (0..250)
            .filter(|n| world.store.holder(&n.to_string()).is_some())
            .count()
    };
    let left = held();
    assert!((50..=200).contains(&left), "{left}");
    assert_eq!(
        (calls.load(SeqCst), world.leases.stats().releases_queued),
        (1, left)
    );
    world.steps.advance(LEASE / 6);
    assert!(held() <= 100 && calls.load(SeqCst) > 1);
    world.steps.advance(LEASE / 6);
    assert_eq!((held(), world.leases.stats().releases_queued), (0, 0));
}

#[test]
fn a_call_that_hangs_goes_on_when_its_store_is_healed() {
    let world = world(1);
    world.store.inject(|call| match call {
        StoreCall::Renew { .. } => Fault::Hang,
        _ => Fault::None,
    });
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(13 * S);
    assert_eq!((guard.renewals(), world.leases.stats().given_up), (0, 0));
    world.store.heal();
    world.steps.settle();
    assert_eq!(guard.renewals(), 1);
    // It counts from before it was sent, and not from its answer.
    assert!(guard.remaining() < LEASE - S);
}

/// A thread may begin the call late, so the function gets what is left.
#[test]
fn a_function_that_blocks_gets_the_rest_of_the_limit() {
    let hand = ManualClock::new();
    let limits = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&limits);
    let renew = blocking(move |batch: &Batch<u32>| {
        seen.lock().unwrap().push(batch.limit());
        all_well(batch)
    });
    let builder = KeepAlive::builder().clock(Clock::manual(&hand));
    let keep_alive = builder.build(renew).unwrap();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    march(&hand, 12 * S, "it is renewed", || kept.renewals() > 0);
    let limit = limits.lock().unwrap()[0];
    assert!(limit > LEASE / 12 && limit < LEASE / 6, "{limit:?}");
}

/// Three calls for each of them keep a thread.
#[test]
fn sixty_destinations_whose_functions_hang_leave_threads_to_another_one() {
    let (hand, gate) = (ManualClock::new(), Gate::default());
    let at = gate.clone();
    let renew = blocking(move |batch: &Batch<u32>| {
        if batch.destination().get() > 0 {
            at.pass();
        }
        all_well(batch)
    });
    let keep_alive = KeepAlive::builder()
        .clock(Clock::manual(&hand))
        .destination(|key| Destination::new(u64::from(*key / 4)))
        .build(renew)
        .unwrap();
    // Leases of different length have calls of their own.
    let keep = |key| {
        let lease = S * (8_u32 << (key % 4));
        keep_alive.keep(key, lease).unwrap()
    };
    let _bad: Vec<_> = (4..61 * 4).map(keep).collect();
    let good = keep_alive.keep(0, LEASE).unwrap();
    march(&hand, 12 * S, "as many hang as may", || {
        gate.waiting() == 180
    });
    let before = good.renewals();
    march(&hand, 25 * S, "it goes on", || good.renewals() > before + 1);
    assert!(good.is_kept() && gate.waiting() == 180);
    gate.open();
}

/// A key whose last drop panics, if it has to.
#[derive(Clone)]
struct Bomb(u32, Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 == 0 && self.1.swap(false, SeqCst) {
            panic!("wanted: in the drop of a key");
        }
    }
}

#[test]
fn a_key_that_panics_in_its_drop_ends_no_flush() {
    quiet::hush();
    let (explodes, goes_on) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let is_open = Arc::clone(&goes_on);
    let wakers = Arc::new(Mutex::new(Vec::<Waker>::new()));
    let keeps = Arc::clone(&wakers);
    let renew = move |batch: Batch<Bomb>| {
        let (is_open, keeps) = (Arc::clone(&is_open), Arc::clone(&keeps));
        async move {
            poll_fn(|context| {
                keeps.lock().unwrap().push(context.waker().clone());
                match is_open.load(SeqCst) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
            Ok(vec![Outcome::Renewed; batch.len()])
        }
    };
    let built = KeepAlive::builder().batch(1).build_stepped(1, renew);
    let (keep_alive, steps) = built.unwrap();
    let mut kept: Vec<_> = (0..5)
        .map(|key| {
            let key = Bomb(key.min(1), Arc::clone(&explodes));
            keep_alive.keep(key, LEASE).unwrap()
        })
        .collect();
    steps.jump_to(steps.now() + 13 * S);
    while wakers.lock().unwrap().is_empty() {
        steps.advance(10 * MS);
    }
    // The first one is amid its call, or one of the others.
    drop(kept.remove(0));
    explodes.store(true, SeqCst);
    goes_on.store(true, SeqCst);
    for waker in std::mem::take(&mut *wakers.lock().unwrap()) {
        waker.wake();
    }
    steps.settle();
    assert!(!explodes.load(SeqCst), "it exploded");
    assert!(kept.iter().all(|kept| kept.renewals() == 1));
}

/// The polls of this store are wrong: they block. They leave room for everything else.
#[test]
fn polls_that_block_stop_neither_the_limits_of_callers_nor_rounds() {
    let world = threads_of(400, |builder| builder);
    let mut guards = Vec::new();
    let mut covered = std::collections::BTreeSet::new();
    for name in (0..).map(|number| format!("n{number}")) {
        if covered.insert(world.store.destination(&name)) {
            guards.push(world.leases.lock(&name).wait().unwrap());
        }
        if covered.len() == 400 {
            break;
        }
    }
    let gate = Gate::default();
    let at = gate.clone();
    world.store.inject(move |call| match call {
        StoreCall::Renew { .. } => {
            at.pass();
            Fault::None
        }
        _ => Fault::Hang,
    });
    world.hand.advance(12 * S);
    march(&world.hand, S, "as many block as may", || {
        gate.waiting() == 240
    });
    let wakes = Wakes::new();
    let mut calls = world.leases.holder("another");
    assert!(poll(&mut calls, &wakes).is_pending());
    if wakes.count() > 0 {
        // That was a turn for the runtime.
        assert!(poll(&mut calls, &wakes).is_pending());
    }
    let before = wakes.count();
    world.hand.advance(LEASE / 3);
    march(&world.hand, S, "its limit wakes it", || {
        wakes.count() > before
    });
    assert!(poll(&mut calls, &wakes).is_ready());
    world.hand.advance(LEASE);
    march(&world.hand, S, "the rounds end the leases", || {
        world.leases.stats().lost == 400
    });
    assert_eq!(gate.waiting(), 240);
    gate.open();
}

#[test]
fn without_its_timers_a_call_that_hangs_keeps_nothing() {
    let gone = Arc::<AtomicUsize>::default();
    let (calls, mark) = (Arc::<AtomicUsize>::default(), Dropped(Arc::clone(&gone)));
    let count = Arc::clone(&calls);
    let renew = move |_: Batch<u32>| {
        let _ = &mark;
        count.fetch_add(1, SeqCst);
        pending::<Answer>()
    };
    let (keep_alive, steps) = KeepAlive::builder().build_stepped(1, renew).unwrap();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    until_sent(&steps, &calls);
    drop((keep_alive, kept));
    assert_eq!(gone.load(SeqCst), 0);
    drop(steps);
    assert_eq!(gone.load(SeqCst), 1);
}

/// Only the thread that waits could move the clock.
#[test]
fn without_threads_nobody_waits_for_a_renewal_that_hangs() {
    let (keep_alive, steps, calls, _) = first_call_hangs();
    let kept = keep_alive.keep(1, LEASE).unwrap();
    until_sent(&steps, &calls);
    assert_eq!(kept.stop(), Ok(()));
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let renews = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&renews);
    world.store.inject(move |call| match call {
        StoreCall::Renew { .. } => {
            count.fetch_add(1, SeqCst);
            Fault::Hang
        }
        _ => Fault::None,
    });
    until_sent(&world.steps, &renews);
    assert!(guard.release().wait().is_ok());
    assert_eq!(world.store.holder("a"), None);
}
