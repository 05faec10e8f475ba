//! A lease is lost by the local clock, for good, and told once; and what comes after it is new.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use kit::{gate, wait};
use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    Claim, Fault, Fence, KeepAlive, LockError, Loss, Outcome, ReleaseError, Secret, StoreCall,
    StoreError, What, blocking,
};

use crate::calls::Calls;
use crate::worlds::{
    self, LEASE, MARGIN, MS, S, all_down, down, is_lost, log, march, next_secret, no_fault,
    no_renewals, world,
};

#[test]
fn c156_r01_a_store_that_restarts_in_the_middle() {
    for seed in 0..10 {
        let world = world(seed);
        let events = world.leases.events(1_000);
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(LEASE);
        world.store.forget();
        world.store.inject(all_down);
        world.steps.advance(2 * LEASE);
        assert!(!guard.is_held());
        let lost: Vec<_> = events
            .try_iter()
            .filter(|event| is_lost(&event.what))
            .collect();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].key, *guard.id());
        assert_eq!(world.leases.stats().lost, 1);
        assert_eq!(
            guard.release().wait(),
            Err(ReleaseError::Lost(Loss::Expired))
        );
        world.store.heal();
        let next = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(10 * LEASE);
        assert!(next.is_held());
        assert!((27..=34).contains(&next.renewals()), "{}", next.renewals());
        assert!(matches!(
            world.leases.lock("a").at_once().wait(),
            Err(LockError::Held { .. })
        ));
        assert!(!events.try_iter().any(|event| is_lost(&event.what)));
    }
}

/// What registers renewals by name keeps the old registration, and never renews again.
#[test]
fn r03_after_a_loss_the_same_name_is_renewed_again() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let mut lost = Vec::new();
    for _ in 0..5 {
        world.store.heal();
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        world.steps.advance(LEASE);
        assert!(guard.renewals() >= 2);
        // Disconnected until it has expired here and there; the guard is not even dropped.
        world.store.inject(all_down);
        world.steps.advance(LEASE);
        assert_eq!(guard.lost().loss(), Some(Loss::Expired));
        assert_eq!(world.leases.stats().armed, 0);
        lost.push(guard);
    }
    world.store.heal();
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    // Nor does an old guard take the new one along.
    lost.clear();
    world.steps.advance(5 * LEASE);
    assert!(guard.is_held());
    assert_eq!(world.leases.stats().armed, 1);
    assert!(log.len() < 30);
}

#[test]
fn r04_what_is_locked_again_after_it_expired_in_the_store_is_renewed() {
    let world = world(1);
    let first = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(S);
    // The store has lost it, and the holder does not know yet.
    world.store.forget();
    assert!(first.is_held());
    let second = world.leases.lock("a").at_once().wait().unwrap();
    assert!(second.token() > first.token());
    assert_eq!(world.leases.stats().armed, 2);
    world.steps.advance(LEASE);
    // The store says that the first one is not the holder; that is the first one's end alone.
    assert_eq!(first.lost().loss(), Some(Loss::NotHeld));
    assert!(second.renewals() >= 2);
    world.steps.advance(5 * LEASE);
    assert!(second.is_held());
    assert_eq!(world.leases.stats().armed, 1);
    assert!(first.release().wait().is_err());
    world.steps.advance(LEASE);
    assert!(second.is_held());
    second.release().wait().unwrap();
}

#[test]
fn r28_after_connection_errors_later_locks_of_the_key_are_renewed() {
    let world = world(3);
    for _ in 0..10 {
        let guard = world.leases.lock("a").at_once().wait().unwrap();
        let failures = AtomicUsize::new(0);
        world.store.inject(move |call| match call {
            StoreCall::Renew { .. } if failures.fetch_add(1, SeqCst) < 3 => Fault::Fail(down()),
            _ => Fault::None,
        });
        world.steps.advance(LEASE / 2);
        assert!(guard.is_held());
        guard.release().wait().unwrap();
    }
    // Also after an error of the release itself.
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.inject(all_down);
    assert_eq!(guard.release().wait(), Err(ReleaseError::Store(down())));
    world.store.heal();
    world.steps.advance(LEASE);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(10 * LEASE);
    assert!(guard.is_held());
}

#[test]
fn r29_not_held_ends_exactly_that_generation() {
    let world = world(1);
    let events = world.leases.events(100);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let secret = next_secret(&world.store);
    let other = world.leases.lock("b").at_once().wait().unwrap();
    world.steps.advance(S);
    world.store.forget();
    let (other_id, other) = (other.id().clone(), other);
    // "b" is acquired again behind the back of the manager, with the same secret.
    let secret = Secret::new(secret.get().unwrap());
    let claim = Claim::new("b", other_id.owner(), secret, LEASE);
    world.store.acquire(&claim, S).unwrap();
    world.steps.advance(LEASE / 2);
    assert_eq!(guard.lost().loss(), Some(Loss::NotHeld));
    assert!(other.is_held());
    let stats = world.leases.stats();
    assert_eq!((stats.lost, stats.armed, stats.kept), (1, 1, 1));
    let lost: Vec<_> = events
        .try_iter()
        .filter(|event| is_lost(&event.what))
        .collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].what, What::Lost(Loss::NotHeld));
    // The next generation is renewed, whatever becomes of the guard of the one before.
    let next = world.leases.lock("a").at_once().wait().unwrap();
    world.steps.advance(5 * LEASE);
    drop(guard);
    world.steps.advance(5 * LEASE);
    assert!(next.is_held() && next.renewals() >= 25);
}

/// The answer "not held" of one generation comes when the next one has been acquired.
#[test]
fn c164_r27_a_stale_answer_is_ignored() {
    let world = worlds::threads();
    let gate = gate::Gate::default();
    let at_gate = gate.clone();
    let first = AtomicUsize::new(0);
    let forgetful = world.store.clone();
    // The first renewal is executed when the store has forgotten, and its answer hangs.
    world.store.inject(move |call| match call {
        StoreCall::Renew { .. } if first.fetch_add(1, SeqCst) == 0 => {
            forgetful.forget();
            let gate = at_gate.clone();
            Fault::Then(Box::new(move || gate.pass()))
        }
        _ => Fault::None,
    });
    let stale = world.leases.lock("a").at_once().wait().unwrap();
    world.hand.advance(12 * S);
    wait::until("its round is over", || world.leases.stats().armed == 2);
    world.hand.advance(250 * MS);
    gate.crowd(1);
    // The same thread, the same name.
    let next = world.leases.lock("a").at_once().wait().unwrap();
    assert!(stale.is_held());
    gate.open();
    wait::until("the answer lands", || !stale.is_held());
    assert_eq!(stale.lost().loss(), Some(Loss::NotHeld));
    assert!(next.is_held());
    assert_eq!(world.leases.stats().kept, 1);
    for renewals in 1..=3 {
        world.hand.advance(12 * S);
        wait::until("its round is over", || world.leases.stats().armed >= 2);
        world.hand.advance(250 * MS);
        wait::until("it is renewed", || next.renewals() >= renewals);
    }
    assert!(next.is_held());
    next.release().wait().unwrap();
}

#[test]
fn c161_r07_a_guard_that_is_dropped_is_renewed_no_more() {
    let world = world(1);
    let log = log(&world.store, &world.clock, |call| match call {
        // Not even given back.
        StoreCall::GiveBack { .. } | StoreCall::GiveBackMany { .. } => {
            Fault::Fail(StoreError::Refused("no".to_owned()))
        }
        _ => Fault::None,
    });
    drop(world.leases.lock("a").at_once().wait().unwrap());
    // The thread of the holder is gone, by a panic.
    let leases = world.leases.clone();
    let gone = std::thread::spawn(move || {
        let _guard = leases.lock("b").at_once().wait().unwrap();
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(gone.join().is_err());
    world.steps.advance(LEASE - MS);
    assert!(world.store.holder("a").is_some() && world.store.holder("b").is_some());
    world.steps.advance(MS);
    assert!(log.batches().is_empty());
    assert!(world.leases.lock("a").at_once().wait().is_ok());
    assert!(world.leases.lock("b").at_once().wait().is_ok());
}

#[test]
fn c162_r07_a_holder_that_stops_feeding_counts_as_dead() {
    for seed in 0..5 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let events = world.leases.events(1_000);
        let acquisition = world.leases.lock("a").fed_every(45 * S);
        let guard = acquisition.at_once().wait().unwrap();
        for _ in 0..20 {
            world.steps.advance(44 * S);
            assert!(guard.feed());
        }
        // A worker that hangs: it neither feeds nor drops its guard.
        let fed = world.steps.now();
        world.steps.advance(45 * S - MS);
        assert!(guard.is_held());
        world.steps.advance(MS);
        assert!(!guard.is_held());
        assert!(!guard.feed());
        assert_eq!(guard.lost().loss(), Some(Loss::NotFed));
        world.steps.advance(3 * LEASE);
        let last = *log.renewals("a").last().unwrap();
        assert!(last < fed + 45 * S);
        let lost: Vec<_> = events
            .try_iter()
            .filter(|event| is_lost(&event.what))
            .collect();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].what, What::Lost(Loss::NotFed));
        assert_eq!(lost[0].at, fed + 45 * S);
        // It ran out, and another one has it, whatever the hanging one does when it wakes up.
        let next = world.leases.lock("a").at_once().wait().unwrap();
        assert_eq!(
            guard.release().wait(),
            Err(ReleaseError::Lost(Loss::NotFed))
        );
        world.steps.advance(LEASE);
        assert!(next.is_held());
        assert_eq!(world.store.holder("a").unwrap().1, next.token());
    }
}

#[test]
fn c162_who_stops_to_be_fed_before_the_first_renewal_is_never_renewed() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let acquisition = world.leases.lock("a").fed_every(S);
    let guard = acquisition.at_once().wait().unwrap();
    world.steps.advance(3 * LEASE);
    assert!(log.batches().is_empty());
    assert_eq!(guard.lost().loss(), Some(Loss::NotFed));
    // Without a feeding period, to feed is only a look.
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    assert!(guard.feed());
    world.steps.advance(LEASE);
    assert!(guard.is_held());
}

#[test]
fn c169_r07_what_is_held_for_as_long_as_it_may_be_is_lost() {
    for seed in 0..5 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let events = world.leases.events(1_000);
        let most = 3_600 * S;
        let guard = world
            .leases
            .lock("a")
            .max_hold(most)
            .at_once()
            .wait()
            .unwrap();
        world.steps.advance(most - MS);
        assert!(guard.is_held());
        assert!(guard.renewals() >= 300);
        world.steps.advance(MS);
        assert!(!guard.is_held());
        assert_eq!(guard.lost().loss(), Some(Loss::HeldTooLong));
        let lost: Vec<_> = events
            .try_iter()
            .filter(|event| is_lost(&event.what))
            .collect();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].what, What::Lost(Loss::HeldTooLong));
        assert_eq!(lost[0].at.since(tourbillon::Time::ZERO), most);
        let renewals = log.renewals("a").len();
        world.steps.advance(LEASE);
        assert_eq!(log.renewals("a").len(), renewals);
        assert_eq!(world.leases.stats().armed, 0);
        assert!(world.leases.lock("a").at_once().wait().is_ok());
    }
}

/// The two halves of a partition: both believe the store that they see.
#[test]
fn r21_a_holder_that_was_cut_off_does_not_go_on_after_it() {
    for seed in 0..5 {
        let world = world(seed);
        let fence = Fence::new();
        let cut = world.leases.lock("a").at_once().wait().unwrap();
        fence.admit(cut.token()).unwrap();
        world.steps.advance(S);
        let log = log(&world.store, &world.clock, no_renewals);
        world.steps.advance(LEASE - S);
        let next = world.leases.lock("a").at_once().wait().unwrap();
        fence.admit(next.token()).unwrap();
        // Connected again: the loss is final, nothing more is sent, and the resource refuses it.
        world.store.heal();
        let attempts = log.len();
        assert!(attempts >= 8);
        for _ in 0..100 {
            world.steps.advance(S);
            assert!(!cut.is_held());
            assert!(cut.remaining().is_zero());
            assert!(!cut.feed());
        }
        assert_eq!(cut.lost().loss(), Some(Loss::Expired));
        assert!(fence.admit(cut.token()).is_err());
        assert!(fence.admit(next.token()).is_ok());
        assert_eq!(cut.release().wait(), Err(ReleaseError::Lost(Loss::Expired)));
        world.steps.advance(LEASE);
        assert!(next.is_held());
    }
}

/// The store goes on to execute renewals, and their answers are lost: by the holder's clock the
/// lease ends, though the store would still grant it to nobody else.
#[test]
fn r21_an_answer_that_never_comes_is_no_renewal() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    world.store.inject(|call| match call {
        StoreCall::Renew { .. } => Fault::LoseAnswer(down()),
        _ => Fault::None,
    });
    world.steps.advance(LEASE);
    assert_eq!(guard.lost().loss(), Some(Loss::Expired));
    let owner = guard.id().owner().to_owned();
    assert_eq!(world.store.holder("a").map(|held| held.0), Some(owner));
    // So the release of what was lost gives it back all the same.
    assert_eq!(
        guard.release().wait(),
        Err(ReleaseError::Lost(Loss::Expired))
    );
    world.steps.settle();
    assert_eq!(world.store.holder("a"), None);
}

#[test]
fn c163_r20_after_a_pause_the_loss_comes_first() {
    for seed in 0..20 {
        let world = world(seed);
        let log = log(&world.store, &world.clock, no_fault);
        let events = world.leases.events(1_000);
        let guards: Vec<_> = (0..250)
            .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
            .collect();
        world.steps.advance(LEASE);
        let (sent, channel) = (log.batches().len(), guards[0].lost().channel());
        events.try_iter().for_each(drop);
        // The clock of the machine went on, and nothing of this process has run. (The hand alone
        // moves; nothing is driven.)
        world.steps.clock().advance(2 * LEASE);
        assert!(!guards[0].is_held());
        assert_eq!(channel.try_recv(), Ok(Loss::Expired));
        assert!(guards[0].lost().is_lost());
        // Then everything runs: each is told of once, and nothing goes out.
        world.steps.advance(LEASE);
        assert_eq!(log.batches().len(), sent);
        let lost = events.try_iter().filter(|event| is_lost(&event.what));
        assert_eq!(lost.count(), 250);
        assert_eq!(world.leases.stats().lost, 250);
        assert!(guards.iter().all(|guard| !guard.is_held()));
    }
}

#[test]
fn c163_r20_a_pause_between_what_is_due_and_the_call() {
    // The process stands still while its pass sends other batches: what is behind them is looked at
    // again, right before it would be sent.
    for seed in 0..20 {
        let world = worlds::world_of(seed, 1, |builder| builder.batch(1));
        let (hand, sent) = (world.steps.clock(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&sent);
        world.store.inject(move |call| {
            if let StoreCall::Renew { .. } = call
                && count.fetch_add(1, SeqCst) == 0
            {
                hand.advance(LEASE);
            }
            Fault::None
        });
        let guards: Vec<_> = (0..20)
            .map(|n| world.leases.lock(&n.to_string()).at_once().wait().unwrap())
            .collect();
        world.steps.advance(3 * LEASE);
        assert_eq!(sent.load(SeqCst), 1);
        assert!(
            guards
                .iter()
                .all(|guard| guard.lost().loss() == Some(Loss::Expired))
        );
    }
}

#[test]
fn a_renewal_that_hangs_keeps_nobody_from_knowing() {
    let world = worlds::threads();
    let gate = gate::Gate::default();
    let at_gate = gate.clone();
    world.store.inject(move |call| {
        if let StoreCall::Renew { .. } = call {
            at_gate.pass();
        }
        Fault::None
    });
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let channel = guard.lost().channel();
    world.hand.advance(12 * S);
    wait::until("its round is over", || world.leases.stats().armed == 2);
    world.hand.advance(250 * MS);
    gate.crowd(1);
    let end = guard.remaining();
    assert!(end > 17 * S && guard.is_held());
    world.hand.advance(end - MS);
    assert!(guard.is_held());
    world.hand.advance(MS);
    assert!(!guard.is_held());
    assert_eq!(channel.recv_timeout(60 * S), Ok(Loss::Expired));
    // The answer that comes then says that it was renewed, in the store.
    gate.open();
    wait::until("the answers land", || world.leases.stats().armed == 0);
    assert!(!guard.is_held());
    assert_eq!(guard.renewals(), 0);
    assert_eq!(
        guard.release().wait(),
        Err(ReleaseError::Lost(Loss::Expired))
    );
    wait::until("it is given back all the same", || {
        world.store.holder("a").is_none()
    });
}

/// The answer that its thread has in the end is no second failure, nor a reason to wait for longer.
#[test]
fn an_attempt_that_was_given_up_has_failed_once() {
    let hand = ManualClock::new();
    let gate = gate::Gate::default();
    let (held_up, hangs) = (gate.clone(), AtomicBool::new(true));
    let keep_alive = KeepAlive::<u32>::builder()
        .clock(Clock::manual(&hand))
        .build(blocking(move |batch| {
            if batch.len() == 2 && hangs.swap(false, SeqCst) {
                held_up.pass();
                let late = StoreError::Unavailable("late".to_owned());
                // A worker that is slow enough gets this answer in its first poll.
                return Ok(vec![Outcome::Failed(late), Outcome::Renewed]);
            }
            Ok(vec![Outcome::Renewed; batch.len()])
        }))
        .unwrap();
    let kept = [1, 2].map(|key| keep_alive.keep(key, LEASE).unwrap());
    // Both are due after two fifths of the lease, mostly in one batch; else they are renewed.
    while gate.waiting() == 0 {
        let all = keep_alive.stats().renewed + 2;
        hand.advance(LEASE * 2 / 5 + MS);
        while gate.waiting() == 0 && keep_alive.stats().renewed < all {
            wait::until("a pass", || {
                let stats = keep_alive.stats();
                stats.armed == 3 || stats.renewed == all
            });
            let renewed = keep_alive.stats().renewed;
            if renewed < all {
                hand.advance(250 * MS);
                wait::until("it is sent", || {
                    gate.waiting() > 0 || keep_alive.stats().renewed > renewed
                });
            }
        }
    }
    hand.advance(LEASE / 6);
    wait::until("both are given up", || keep_alive.stats().given_up == 2);
    assert_eq!(keep_alive.stats().failed, 2);
    let renewed = keep_alive.stats().renewed;
    gate.open();
    march(&hand, S, "both are renewed", || {
        keep_alive.stats().renewed >= renewed + 2
    });
    assert_eq!(keep_alive.stats().failed, 2);
    let lost = kept.each_ref().map(|kept| kept.lost().loss());
    assert_eq!(lost, [None, None]);
}

#[test]
fn what_remains_is_counted_from_before_the_request() {
    let world = world(1);
    let hand = world.steps.clock();
    // The request takes a second there, and two seconds back.
    world.store.inject(move |_| {
        hand.advance(S);
        let hand = hand.clone();
        Fault::Then(Box::new(move || {
            hand.advance(2 * S);
        }))
    });
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    assert_eq!(guard.remaining(), LEASE - MARGIN - 3 * S);
    while guard.renewals() == 0 {
        assert!(guard.is_held());
        world.steps.advance(MS);
    }
    // The same holds for a renewal; the last millisecond is the step of the loop.
    let remaining = guard.remaining();
    assert!(remaining <= LEASE - MARGIN - 3 * S && remaining >= LEASE - MARGIN - 3 * S - MS);
    // The store would keep it for longer.
    world.store.heal();
    world.steps.clock().advance(remaining);
    assert!(!guard.is_held());
    assert!(world.store.holder("a").is_some());
}

/// The real thing: a child process that is stopped for longer than its lease. It is this program,
/// with a word in its environment.
#[cfg(target_os = "linux")]
mod stopped {
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Duration;

    use tourbillon::{Clock, Time};
    use tourbillon_leases::{Fault, Leases, Loss, MemoryStore, StoreCall};

    const CHILD: &str = "TOURBILLON_TEST_HOLDER";
    const LEASE: Duration = Duration::from_millis(600);

    /// What the child does: it holds, and says when it was renewed; after the pause it says what
    /// came first.
    #[test]
    fn the_child() {
        if env::var_os(CHILD).is_none() {
            return;
        }
        let (clock, store) = (Clock::boottime(), MemoryStore::new());
        let sent = Arc::new(Mutex::new(Vec::<Time>::new()));
        let (own, at) = (Arc::clone(&sent), clock.clone());
        store.inject(move |call| {
            if let StoreCall::Renew { .. } = call {
                own.lock().unwrap().push(at.now());
                eprintln!("renewed");
            }
            Fault::None
        });
        let leases = Leases::builder(store).lease(LEASE).build().unwrap();
        let guard = leases.lock("a").at_once().wait().unwrap();
        let mut before = clock.now();
        let (held, paused) = loop {
            let now = clock.now();
            let held = guard.is_held();
            if now.since(before) > LEASE {
                // The first question after the pause.
                break (held, (before, now));
            }
            before = clock.now();
            if !held {
                // The pause began after the time was read.
                break (held, (now, before));
            }
            thread::park_timeout(Duration::from_millis(1));
        };
        let loss = guard.lost().channel().recv_timeout(Duration::from_secs(60));
        // Whatever was due has had its time.
        while clock.now() < paused.1 + 2 * LEASE {
            thread::park_timeout(LEASE);
        }
        let after = paused.0 + LEASE;
        let sent_after = sent
            .lock()
            .unwrap()
            .iter()
            .filter(|at| **at >= after)
            .count();
        let expired = loss == Ok(Loss::Expired) && leases.stats().lost == 1;
        eprintln!("paused held {held} sent {sent_after} expired {expired}");
    }

    #[test]
    fn c163_r20_a_process_that_was_stopped_sees_its_loss_before_anything_is_sent() {
        let mut child = kit::pause::Paused(
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "loss::stopped::the_child", "--nocapture"])
                .env(CHILD, "1")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        let mut next = || lines.next().expect("the child goes on").unwrap();
        for _ in 0..3 {
            while next() != "renewed" {}
        }
        child.pause(3 * LEASE);
        let last = loop {
            let line = next();
            if line.starts_with("paused") {
                break line;
            }
        };
        assert_eq!(last, "paused held false sent 0 expired true");
    }
}
