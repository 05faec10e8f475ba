//! Elections: who leads, until when, and who learns of it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait;
use kit::wait::until;
use kit::wakes::yields;
use tourbillon::Clock;
use tourbillon_leases::{
    Change, Elector, ElectorRole, Fault, Leases, LockError, Loss, MemoryStore, StoreCall, TermEnd,
};

use crate::worlds::{LEASE, MARGIN, MS, S, down, march, no_renewals, threads, together, world};

/// Awaits on this thread, without a runtime that could help.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// What the candidate has told its callback.
fn with_log(elector: Elector) -> (Elector, Arc<Mutex<Vec<Change>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&log);
    let elector = elector.on_change(move |change| told.lock().unwrap().push(change.clone()));
    (elector, log)
}

/// Whether these are a term with the token, and its end.
fn is_term(changes: &[Change], token: u64, end: TermEnd) -> bool {
    match changes {
        [
            Change::Elected { token: first, .. },
            Change::Ended {
                token: second,
                end: last,
                ..
            },
        ] => (*first, *second, *last) == (token, token, end),
        _ => false,
    }
}

#[test]
fn a_candidate_leads_while_its_work_runs() {
    let world = world(1);
    let (elector, log) = with_log(world.leases.elector("e"));
    assert_eq!(elector.leader().unwrap(), None);
    assert!(!elector.resign());
    let term = elector.run_while_leader(|leadership| {
        world.steps.advance(10 * LEASE);
        assert!(leadership.is_leader());
        assert!(leadership.remaining() > LEASE / 2);
        let leader = elector.leader().unwrap().unwrap();
        assert_eq!(leader.token, leadership.token());
        leadership.token()
    });
    let term = term.unwrap();
    assert_eq!(term.end, TermEnd::Completed);
    assert_eq!(elector.leader().unwrap(), None);
    assert!(is_term(
        &log.lock().unwrap(),
        term.result,
        TermEnd::Completed
    ));
    // Nobody is left to resign.
    assert!(!elector.resign());
}

#[test]
fn a_resignation_stops_the_leader_and_keeps_the_others_out_until_its_work_has_ended() {
    let world = world(2);
    let other = Leases::builder(world.store.clone())
        .clock(world.clock.clone())
        .build_stepped(1)
        .unwrap();
    let (elector, log) = with_log(world.leases.elector("e"));
    let term = elector.run_while_leader(|leadership| {
        assert!(elector.clone().resign());
        assert!(!leadership.is_leader());
        // The work goes on for a while.
        world.steps.advance(3 * LEASE);
        assert!(matches!(other.0.try_lock("e"), Err(LockError::Held { .. })));
        leadership.token()
    });
    let term = term.unwrap();
    assert_eq!(term.end, TermEnd::Resigned);
    assert!(is_term(
        &log.lock().unwrap(),
        term.result,
        TermEnd::Resigned
    ));
    let next = other.0.try_lock("e").unwrap();
    assert!(next.fencing_token() > term.result);
    next.release().unwrap();
    // The next term has not resigned. Nobody else leads for two seconds.
    world.steps.advance(LEASE);
    let next = elector.run_while_leader(|leadership| leadership.is_leader());
    assert!(next.unwrap().result);
}

#[test]
fn a_leader_that_is_cut_off_stops_before_another_one_is_elected() {
    for seed in 0..10 {
        let world = world(seed);
        let (other, steps) = Leases::builder(world.store.clone())
            .clock(world.clock.clone())
            .build_stepped(seed)
            .unwrap();
        let (elector, log) = with_log(world.leases.elector("e"));
        let term = elector.run_while_leader(|leadership| {
            // Only its own renewals fail.
            world.store.inject(no_renewals);
            let mut led = Duration::ZERO;
            while leadership.is_leader() {
                assert!(matches!(other.try_lock("e"), Err(LockError::Held { .. })));
                together(&[&world.steps, &steps], S / 10, S / 10);
                led += S / 10;
            }
            assert!(led >= LEASE - MARGIN - S, "{led:?}");
            world.store.heal();
            together(&[&world.steps, &steps], S, S);
            let next = other.try_lock("e").expect("the lease has run out");
            assert!(next.fencing_token() > leadership.token());
            leadership.token()
        });
        let term = term.unwrap();
        assert_eq!(term.end, TermEnd::Lost(Loss::Expired));
        let lost = TermEnd::Lost(Loss::Expired);
        assert!(is_term(&log.lock().unwrap(), term.result, lost));
    }
}

#[test]
fn a_panic_of_the_work_ends_the_term_and_goes_on() {
    let world = world(3);
    let (elector, log) = with_log(world.leases.elector("e"));
    kit::quiet::hush();
    let work = std::panic::AssertUnwindSafe(|| {
        elector.run_while_leader(|_| -> () { panic!("the work panics on purpose") })
    });
    assert!(std::panic::catch_unwind(work).is_err());
    world.steps.advance(S);
    assert_eq!(elector.leader().unwrap(), None);
    assert!(!elector.resign());
    assert_eq!(log.lock().unwrap().len(), 2);
}

#[test]
fn a_store_that_fails_is_an_error_and_no_work_runs() {
    let world = world(4);
    let elector = world.leases.elector("");
    let ran = elector.run_while_leader(|_| panic!("it was not elected"));
    assert!(matches!(ran, Err(LockError::EmptyName)));
    assert!(matches!(elector.leader(), Err(LockError::EmptyName)));
    world.store.inject(|call| match call {
        StoreCall::Holder { .. } => Fault::Fail(down()),
        _ => Fault::None,
    });
    let leader = world.leases.elector("e").leader();
    assert!(matches!(leader, Err(LockError::Store { .. })), "{leader:?}");
    world.leases.close(S);
    let closed = world.leases.elector("e").run_while_leader(|_| ());
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

/// Candidates in threads of their own, each with leases of its own, lead in turn. Each term writes
/// its token, and checks that nobody else leads.
#[test]
fn candidates_lead_one_at_a_time_in_the_order_of_their_tokens() {
    let store = MemoryStore::new();
    let (leading, last, terms) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicUsize::new(0));
    let most = 300;
    thread::scope(|scope| {
        for _ in 0..3 {
            let leases = Leases::new(store.clone()).unwrap();
            scope.spawn(|| {
                let elector = leases.elector("e");
                drop(leases);
                while terms.load(SeqCst) < most {
                    let term = elector.run_while_leader(|leadership| {
                        assert_eq!(leading.fetch_add(1, SeqCst), 0, "two lead");
                        assert!(last.swap(leadership.token(), SeqCst) < leadership.token());
                        thread::yield_now();
                        leading.fetch_sub(1, SeqCst);
                        terms.fetch_add(1, SeqCst);
                    });
                    assert_eq!(term.unwrap().end, TermEnd::Completed);
                }
            });
        }
    });
}

#[test]
fn a_future_is_dropped_when_its_candidate_resigns_or_loses_the_lease() {
    struct Dropped(mpsc::Sender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    for resigns in [true, false] {
        let threads = threads();
        let elector = threads.leases.elector("e");
        let (began, begun) = mpsc::channel();
        let (dropped, was_dropped) = mpsc::channel();
        let campaigner = elector.clone();
        let campaign = thread::spawn(move || {
            block_on(campaigner.run_while_leader_async(async move |leadership| {
                began.send(leadership.is_leader()).unwrap();
                let _dropped = Dropped(dropped);
                std::future::pending::<()>().await;
            }))
        });
        assert!(wait::next(&begun));
        assert!(threads.store.holder("e").is_some());
        let end = match resigns {
            true => {
                assert!(elector.resign());
                TermEnd::Resigned
            }
            false => {
                threads.store.inject(no_renewals);
                march(&threads.hand, LEASE, "the lease is lost", || {
                    campaign.is_finished()
                });
                TermEnd::Lost(Loss::Expired)
            }
        };
        let term = campaign.join().unwrap().unwrap();
        assert_eq!((term.result, term.end), (None, end));
        wait::next(&was_dropped);
        threads.store.heal();
        assert!(!elector.resign());
    }
}

#[test]
fn a_future_that_is_ready_ends_its_term() {
    let threads = threads();
    let elector = threads.leases.elector("e");
    let term = block_on(async {
        let term = elector
            .run_while_leader_async(async |leadership| {
                let leader = elector.leader_async().await.unwrap().unwrap();
                (leader.token, leadership.token())
            })
            .await;
        assert_eq!(elector.leader_async().await.unwrap(), None);
        term.unwrap()
    });
    let (seen, own) = term.result.unwrap();
    assert_eq!((seen, term.end), (own, TermEnd::Completed));
}

#[test]
fn all_who_await_the_end_of_a_term_are_woken_by_a_resignation() {
    let threads = threads();
    let elector = threads.leases.elector("e");
    let leadership = elector.campaign().unwrap();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..3 {
            let (over, tell) = (leadership.over(), tell.clone());
            scope.spawn(move || {
                block_on(over);
                tell.send(()).unwrap();
            });
        }
        elector.resign();
        for _ in 0..3 {
            wait::next(&told);
        }
    });
    // One that comes later is ready at once.
    block_on(leadership.over());
    assert_eq!(leadership.end(), TermEnd::Resigned);
}

#[test]
fn the_holder_of_a_lock_is_known_while_it_is_held() {
    let world = world(5);
    assert_eq!(world.leases.holder("a").unwrap(), None);
    assert!(!world.leases.is_locked("a").unwrap());
    let guard = world.leases.try_lock("a").unwrap();
    let holder = world.leases.holder("a").unwrap().unwrap();
    assert_eq!(holder.owner, guard.id().owner());
    assert_eq!(holder.token, guard.fencing_token());
    assert_eq!(holder.remaining, LEASE);
    assert!(world.leases.is_locked("a").unwrap());
    guard.release().unwrap();
    assert_eq!(world.leases.holder("a").unwrap(), None);
}

#[test]
fn owners_begin_with_the_name_of_the_machine() {
    let world = world(6);
    let guard = world.leases.try_lock("a").unwrap();
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let machine = machine.map_or("leases".to_owned(), |name| name.trim().to_owned());
    assert!(guard.id().owner().starts_with(&machine), "{machine}");
}

#[test]
fn a_term_that_is_over_gives_the_runtime_its_turns_and_begins_no_work() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let elector = leases.elector("scheduler");
    let leadership = elector.campaign().unwrap();
    assert!(elector.resign());
    yields("over", async || leadership.over().await);
    drop(leadership);
    // As many terms as there are answers between two turns, and each is over when it begins.
    for term in 0..130 {
        // Each has another candidate: one that has resigned lets the others go first.
        let resigns = leases.elector("scheduler");
        let elector = resigns.clone().on_change(move |change| {
            if matches!(change, Change::Elected { .. }) {
                resigns.resign();
            }
        });
        let term = async || {
            let worked = elector.run_while_leader_async(async |_| panic!("term {term}"));
            worked.await.unwrap().end
        };
        assert_eq!(block_on(term()), TermEnd::Resigned);
    }
}

#[test]
fn a_candidate_that_has_resigned_comes_after_those_who_wait() {
    for _ in 0..10 {
        let world = threads();
        let other = Leases::builder(world.store.clone()).clock(Clock::manual(&world.hand));
        let other = other.build().unwrap();
        let first = world.leases.elector("e");
        let leadership = first.campaign().unwrap();
        let token = leadership.token();
        let candidate = other.elector("e");
        let waits = thread::spawn(move || candidate.campaign().unwrap());
        until("it waits", || other.stats().waiting == 1);
        // What a candidate in a loop does.
        assert!(first.resign());
        assert_eq!(leadership.end(), TermEnd::Resigned);
        let again = thread::spawn({
            let first = first.clone();
            move || first.campaign().map(|term| term.token())
        });
        // The clock stands still, so no time can decide.
        let second = waits.join().unwrap();
        assert_eq!(second.token(), token + 1);
        second.end();
        until("it leads again", || {
            world.hand.advance(S);
            again.is_finished()
        });
        assert_eq!(again.join().unwrap().unwrap(), token + 2);
    }
}

#[test]
fn a_candidate_that_has_resigned_leads_again_after_two_seconds_without_another_leader() {
    for asks in [false, true] {
        let world = threads();
        let elector = world.leases.elector("e");
        let leadership = elector.campaign().unwrap();
        elector.resign();
        // Also if the term is dropped.
        drop(leadership);
        if !asks {
            // The time decides if the store can't tell who leads.
            world.store.inject(|call| match call {
                StoreCall::Holder { .. } => Fault::Fail(down()),
                _ => Fault::None,
            });
        }
        let again = thread::spawn({
            let elector = elector.clone();
            move || elector.campaign().map(|term| term.token())
        });
        let began = world.leases.now();
        until("it leads again", || {
            world.hand.advance(100 * MS);
            again.is_finished()
        });
        assert!(world.leases.now() >= began + 2 * S);
        assert!(again.join().unwrap().is_ok());
        // A term that ends with its work is none of this.
        elector.campaign().unwrap().end();
        elector.campaign().unwrap().end();
    }
}

#[test]
fn a_stop_ends_the_wait_of_a_candidate_and_nothing_else() {
    let world = threads();
    let unrelated = world.leases.try_lock("unrelated").unwrap();
    let leader = world.leases.elector("e");
    let leadership = leader.campaign().unwrap();
    let candidate = world.leases.elector("e");
    let waits = [false, true].map(|awaits| {
        let candidate = candidate.clone();
        thread::spawn(move || match awaits {
            true => block_on(candidate.campaign_async()).map(drop),
            false => candidate.campaign().map(drop),
        })
    });
    until("they wait", || world.leases.stats().waiting == 2);
    candidate.stop();
    for waits in waits {
        let error = waits.join().unwrap().unwrap_err();
        assert!(matches!(error, LockError::Stopped { .. }));
        assert_eq!(error.name(), "e");
    }
    assert!(matches!(
        candidate.campaign(),
        Err(LockError::Stopped { .. })
    ));
    let worked = block_on(candidate.run_while_leader_async(async |_| ()));
    assert!(matches!(worked, Err(LockError::Stopped { .. })));
    // The other candidate of the same leases, and their locks.
    assert!(leadership.is_leader() && unrelated.is_held());
    // One that leads is asked to stop, and its clones are the same candidate.
    leader.clone().stop();
    assert!(!leadership.is_leader() && world.store.holder("e").is_some());
    assert_eq!(leadership.end(), TermEnd::Resigned);
    assert_eq!(world.store.holder("e"), None);
    assert!(matches!(leader.campaign(), Err(LockError::Stopped { .. })));
    assert!(unrelated.is_held());
}

#[test]
fn a_stop_or_a_close_ends_the_wait_after_a_resignation() {
    for closes in [false, true] {
        let world = threads();
        let elector = world.leases.elector("e");
        let leadership = elector.campaign().unwrap();
        elector.resign();
        leadership.end();
        let waits = [false, true].map(|awaits| {
            let elector = elector.clone();
            thread::spawn(move || match awaits {
                true => block_on(elector.campaign_async()).map(drop),
                false => elector.campaign().map(drop),
            })
        });
        match closes {
            true => drop(world.leases.close(S)),
            false => elector.stop(),
        }
        for waits in waits {
            match waits.join().unwrap() {
                Err(LockError::Closed { .. }) => assert!(closes),
                Err(LockError::Stopped { .. }) => assert!(!closes),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_term_ends_if_its_leader_hangs_or_leads_for_too_long() {
    let world = world(9);
    let fed = world.leases.elector("fed").fed_every(60 * S).campaign();
    let fed = fed.unwrap();
    let brief = world.leases.elector("brief").max_hold(100 * S).campaign();
    let brief = brief.unwrap();
    for _ in 0..3 {
        world.steps.advance(30 * S);
        assert!(fed.feed() && fed.is_leader() && brief.is_leader());
    }
    world.steps.advance(30 * S);
    assert!(fed.is_leader() && !brief.is_leader());
    world.steps.advance(31 * S);
    assert!(!fed.is_leader() && !fed.feed());
    assert_eq!(fed.end(), TermEnd::Lost(Loss::NotFed));
    assert_eq!(brief.end(), TermEnd::Lost(Loss::HeldTooLong));
    let refused = world
        .leases
        .elector("e")
        .fed_every(Duration::ZERO)
        .campaign();
    assert!(matches!(refused, Err(LockError::ZeroFeed { .. })));
}

#[test]
fn a_stopped_candidate_does_not_ask_a_store_that_hangs() {
    let world = threads();
    let elector = world.leases.elector("e");
    let leadership = elector.campaign().unwrap();
    elector.stop();
    leadership.end();
    // It has stepped back, and would ask who leads.
    world
        .store
        .inject(|call| panic!("a stopped candidate asks: {call:?}"));
    assert!(matches!(elector.campaign(), Err(LockError::Stopped { .. })));
    let stopped = block_on(elector.campaign_async());
    assert!(matches!(stopped, Err(LockError::Stopped { .. })));
}

#[test]
fn the_end_of_a_term_is_told_and_respected_if_its_future_is_dropped() {
    let world = threads();
    let (elector, log) = with_log(world.leases.elector("e"));
    let leadership = elector.campaign().unwrap();
    let token = leadership.token();
    let gate = Gate::default();
    let shut = gate.clone();
    world.store.inject(move |call| {
        if matches!(call, StoreCall::GiveBack { .. }) {
            shut.pass();
        }
        Fault::None
    });
    elector.resign();
    let mut end = Box::pin(leadership.end_async());
    let mut context = Context::from_waker(Waker::noop());
    assert!(end.as_mut().poll(&mut context).is_pending());
    drop(end);
    assert!(is_term(&log.lock().unwrap(), token, TermEnd::Resigned));
    gate.open();
    world.store.heal();
    // The time decides when it leads again.
    let again = thread::spawn({
        let elector = elector.clone();
        move || elector.campaign().map(drop)
    });
    let began = world.leases.now();
    until("it leads again", || {
        world.hand.advance(100 * MS);
        again.is_finished()
    });
    assert!(world.leases.now() >= began + 2 * S);
    again.join().unwrap().unwrap();
}

#[test]
fn a_candidate_whose_leases_end_without_threads_is_told() {
    let world = world(3);
    let elector = world.leases.elector("e");
    let leadership = elector.campaign().unwrap();
    elector.resign();
    leadership.end();
    drop(world.steps);
    let closed = block_on(elector.campaign_async());
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

#[test]
fn a_term_that_is_given_back_leads_no_more() {
    let world = world(2);
    let own = world.leases.elector("e");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (elector, told) = (own.clone(), Arc::clone(&seen));
    let elector = elector.on_change(move |change| {
        if matches!(change, Change::Ended { .. }) {
            told.lock().unwrap().push((own.status().role, own.resign()));
            own.stop();
        }
    });
    elector.serve(|_| ()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(ElectorRole::Idle, false)]);
}

/// Something deletes the lock during the term, and the work returns before anybody finds that.
#[test]
fn work_whose_lock_is_gone_when_it_returns_lets_the_others_lead_first() {
    let threads = threads();
    let elector = threads.leases.elector("e");
    let (tell, told) = mpsc::channel();
    let own = elector.on_change(move |change| tell.send(change.clone()).unwrap());
    let looks = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&looks);
    threads.store.inject(move |call| {
        let is_look = matches!(call, StoreCall::Holder { .. });
        count.fetch_add(usize::from(is_look), SeqCst);
        Fault::None
    });
    let (store, serves) = (threads.store.clone(), own.clone());
    let service = thread::spawn(move || serves.serve(|_| store.forget()));
    let next = || wait::next(&told);
    assert!(matches!(next(), Change::Elected { .. }));
    let ended = next();
    let Change::Ended { end, .. } = ended else {
        panic!("{ended}");
    };
    assert_eq!(end, TermEnd::Lost(Loss::NotHeld));
    // The clock stands still: it looks who leads, and does not ask for the lock.
    until("it looks who leads", || looks.load(SeqCst) > 0);
    assert!(told.try_recv().is_err());
    own.stop();
    service.join().unwrap().unwrap();
}
