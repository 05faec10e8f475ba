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
    Change, Election, ElectionRole, Fault, Leadership, Leases, LockError, Loss, MemoryStore,
    StoreCall, TermEnd,
};

use crate::worlds::{
    LEASE, MARGIN, MS, S, blocking_threads, down, march, no_renewals, threads, together, world,
};

/// Awaits on this thread, without a runtime that could help.
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// Leads for one term, in which `work` runs.
fn one_term<R>(
    election: &Election,
    work: impl FnOnce(&Leadership) -> R,
) -> Result<(R, TermEnd), LockError> {
    let leadership = election.lead().wait()?;
    let result = work(&leadership);
    Ok((result, leadership.end().wait()))
}

/// What the candidate has told its callback.
fn with_log(election: Election) -> (Election, Arc<Mutex<Vec<Change>>>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&log);
    let election = election.on_change(move |change| told.lock().unwrap().push(change.clone()));
    (election, log)
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
    let (election, log) = with_log(world.leases.election("e"));
    assert_eq!(election.leader().wait().unwrap(), None);
    assert!(!election.resign());
    let term = one_term(&election, |leadership| {
        world.steps.advance(10 * LEASE);
        assert!(leadership.is_leader());
        assert!(leadership.remaining() > LEASE / 2);
        let leader = election.leader().wait().unwrap().unwrap();
        assert_eq!(leader.token, leadership.token());
        leadership.token()
    });
    let (token, end) = term.unwrap();
    assert_eq!(end, TermEnd::Completed);
    assert_eq!(election.leader().wait().unwrap(), None);
    assert!(is_term(&log.lock().unwrap(), token, end));
    // Nobody is left to resign.
    assert!(!election.resign());
}

#[test]
fn a_resignation_stops_the_leader_and_keeps_the_others_out_until_its_work_has_ended() {
    let world = world(2);
    let other = Leases::builder(world.store.clone())
        .clock(world.clock.clone())
        .build_stepped(1)
        .unwrap();
    let (election, log) = with_log(world.leases.election("e"));
    let term = one_term(&election, |leadership| {
        assert!(election.clone().resign());
        assert!(!leadership.is_leader());
        // The work goes on for a while.
        world.steps.advance(3 * LEASE);
        assert!(matches!(
            other.0.lock("e").at_once().wait(),
            Err(LockError::Held { .. })
        ));
        leadership.token()
    });
    let (token, end) = term.unwrap();
    assert_eq!(end, TermEnd::Resigned);
    assert!(is_term(&log.lock().unwrap(), token, end));
    let next = other.0.lock("e").at_once().wait().unwrap();
    assert!(next.token() > token);
    next.release().wait().unwrap();
    // The next term has not resigned. Nobody else leads for two seconds.
    world.steps.advance(LEASE);
    let next = one_term(&election, |leadership| leadership.is_leader());
    assert!(next.unwrap().0);
}

#[test]
fn a_leader_that_is_cut_off_stops_before_another_one_is_elected() {
    for seed in 0..10 {
        let world = world(seed);
        let (other, steps) = Leases::builder(world.store.clone())
            .clock(world.clock.clone())
            .build_stepped(seed)
            .unwrap();
        let (election, log) = with_log(world.leases.election("e"));
        let term = one_term(&election, |leadership| {
            // Only its own renewals fail.
            world.store.inject(no_renewals);
            let mut led = Duration::ZERO;
            while leadership.is_leader() {
                assert!(matches!(
                    other.lock("e").at_once().wait(),
                    Err(LockError::Held { .. })
                ));
                together(&[&world.steps, &steps], S / 10, S / 10);
                led += S / 10;
            }
            assert!(led >= LEASE - MARGIN - S, "{led:?}");
            world.store.heal();
            together(&[&world.steps, &steps], S, S);
            let next = other
                .lock("e")
                .at_once()
                .wait()
                .expect("the lease has run out");
            assert!(next.token() > leadership.token());
            leadership.token()
        });
        let (token, end) = term.unwrap();
        assert_eq!(end, TermEnd::Lost(Loss::Expired));
        assert!(is_term(&log.lock().unwrap(), token, end));
    }
}

#[test]
fn a_panic_of_the_work_ends_the_term_and_goes_on() {
    let world = world(3);
    let (election, log) = with_log(world.leases.election("e"));
    kit::quiet::hush();
    let work = std::panic::AssertUnwindSafe(|| {
        one_term(&election, |_| -> () {
            panic!("the work panics on purpose")
        })
    });
    assert!(std::panic::catch_unwind(work).is_err());
    world.steps.advance(S);
    assert_eq!(election.leader().wait().unwrap(), None);
    assert!(!election.resign());
    assert_eq!(log.lock().unwrap().len(), 2);
}

#[test]
fn a_store_that_fails_is_an_error_and_nobody_leads() {
    let world = world(4);
    let election = world.leases.election("");
    let led = election.lead().wait();
    assert!(matches!(led, Err(LockError::EmptyName)));
    assert!(matches!(
        election.leader().wait(),
        Err(LockError::EmptyName)
    ));
    world.store.inject(|call| match call {
        StoreCall::Holder { .. } => Fault::Fail(down()),
        _ => Fault::None,
    });
    let leader = world.leases.election("e").leader().wait();
    assert!(matches!(leader, Err(LockError::Store { .. })), "{leader:?}");
    world.leases.close(S);
    let closed = world.leases.election("e").lead().wait();
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
                let election = leases.election("e");
                drop(leases);
                while terms.load(SeqCst) < most {
                    let term = one_term(&election, |leadership| {
                        assert_eq!(leading.fetch_add(1, SeqCst), 0, "two lead");
                        assert!(last.swap(leadership.token(), SeqCst) < leadership.token());
                        thread::yield_now();
                        leading.fetch_sub(1, SeqCst);
                        terms.fetch_add(1, SeqCst);
                    });
                    assert_eq!(term.unwrap().1, TermEnd::Completed);
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
        let (election, log) = with_log(threads.leases.election("e"));
        let (began, begun) = mpsc::channel();
        let (dropped, was_dropped) = mpsc::channel();
        let candidate = election.clone();
        let service = thread::spawn(move || {
            block_on(candidate.serve_async(async |leadership| {
                began.send(leadership.is_leader()).unwrap();
                let _dropped = Dropped(dropped.clone());
                std::future::pending::<()>().await;
            }))
        });
        assert!(wait::next(&begun));
        assert!(threads.store.holder("e").is_some());
        let has_ended = || log.lock().unwrap().len() >= 2;
        let end = match resigns {
            true => {
                assert!(election.resign());
                until("its end is told", has_ended);
                TermEnd::Resigned
            }
            false => {
                threads.store.inject(no_renewals);
                march(&threads.hand, LEASE, "the lease is lost", has_ended);
                TermEnd::Lost(Loss::Expired)
            }
        };
        wait::next(&was_dropped);
        let told = log.lock().unwrap()[1].clone();
        assert!(
            matches!(told, Change::Ended { end: of, .. } if of == end),
            "{told}"
        );
        threads.store.heal();
        election.stop();
        service.join().unwrap().unwrap();
    }
}

#[test]
fn a_term_is_awaited_and_its_end_too() {
    let threads = threads();
    let election = threads.leases.election("e");
    block_on(async {
        let leadership = election.lead().await.unwrap();
        let leader = election.leader().await.unwrap().unwrap();
        assert_eq!(leader.token, leadership.token());
        assert_eq!(leadership.end().await, TermEnd::Completed);
        assert_eq!(election.leader().await.unwrap(), None);
    });
}

#[test]
fn all_who_await_the_end_of_a_term_are_woken_by_a_resignation() {
    let threads = threads();
    let election = threads.leases.election("e");
    let leadership = election.lead().wait().unwrap();
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..3 {
            let (over, tell) = (leadership.over(), tell.clone());
            scope.spawn(move || {
                block_on(over);
                tell.send(()).unwrap();
            });
        }
        election.resign();
        for _ in 0..3 {
            wait::next(&told);
        }
    });
    // One that comes later is ready at once.
    block_on(leadership.over());
    assert_eq!(leadership.end().wait(), TermEnd::Resigned);
}

#[test]
fn the_holder_of_a_lock_is_known_while_it_is_held() {
    let world = world(5);
    assert_eq!(world.leases.holder("a").wait().unwrap(), None);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let holder = world.leases.holder("a").wait().unwrap().unwrap();
    assert_eq!(holder.owner, guard.id().owner());
    assert_eq!(holder.token, guard.token());
    assert_eq!(holder.remaining, LEASE);
    guard.release().wait().unwrap();
    assert_eq!(world.leases.holder("a").wait().unwrap(), None);
}

#[test]
fn owners_begin_with_the_name_of_the_machine() {
    let world = world(6);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let machine = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let machine = machine.map_or("leases".to_owned(), |name| name.trim().to_owned());
    assert!(guard.id().owner().starts_with(&machine), "{machine}");
}

#[test]
fn a_term_that_is_over_gives_the_runtime_its_turns_and_begins_no_work() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let election = leases.election("scheduler");
    let leadership = election.lead().wait().unwrap();
    assert!(election.resign());
    yields("over", async || leadership.over().await);
    drop(leadership);
    // As many terms as there are answers between two turns, and each is over when it begins.
    for term in 0..130 {
        // Each has another candidate: one that has resigned lets the others go first.
        let stops = leases.election("scheduler");
        let (tell, told) = mpsc::channel();
        let election = stops.clone().on_change(move |change| match change {
            Change::Elected { .. } => stops.stop(),
            other => tell.send(other.clone()).unwrap(),
        });
        let served = block_on(election.serve_async(async |_| panic!("term {term}")));
        assert!(served.is_ok());
        let ended = wait::next(&told);
        assert!(
            matches!(
                ended,
                Change::Ended {
                    end: TermEnd::Resigned,
                    ..
                }
            ),
            "{ended}"
        );
    }
}

#[test]
fn a_candidate_that_has_resigned_comes_after_those_who_wait() {
    for _ in 0..10 {
        let world = threads();
        let other = Leases::builder(world.store.clone()).clock(Clock::manual(&world.hand));
        let other = other.build().unwrap();
        let first = world.leases.election("e");
        let leadership = first.lead().wait().unwrap();
        let token = leadership.token();
        let candidate = other.election("e");
        let waits = thread::spawn(move || candidate.lead().wait().unwrap());
        until("it waits", || other.stats().waiting == 1);
        // What a candidate in a loop does.
        assert!(first.resign());
        assert_eq!(leadership.end().wait(), TermEnd::Resigned);
        let again = thread::spawn({
            let first = first.clone();
            move || first.lead().wait().map(|term| term.token())
        });
        // The clock stands still, so no time can decide.
        let second = waits.join().unwrap();
        assert_eq!(second.token(), token + 1);
        second.end().wait();
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
        let election = world.leases.election("e");
        let leadership = election.lead().wait().unwrap();
        election.resign();
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
            let election = election.clone();
            move || election.lead().wait().map(|term| term.token())
        });
        let began = world.leases.now();
        until("it leads again", || {
            world.hand.advance(100 * MS);
            again.is_finished()
        });
        assert!(world.leases.now() >= began + 2 * S);
        assert!(again.join().unwrap().is_ok());
        // A term that ends with its work is none of this.
        election.lead().wait().unwrap().end().wait();
        election.lead().wait().unwrap().end().wait();
    }
}

#[test]
fn a_stop_ends_the_wait_of_a_candidate_and_nothing_else() {
    let world = threads();
    let unrelated = world.leases.lock("unrelated").at_once().wait().unwrap();
    let leader = world.leases.election("e");
    let leadership = leader.lead().wait().unwrap();
    let candidate = world.leases.election("e");
    let waits = [false, true].map(|awaits| {
        let candidate = candidate.clone();
        thread::spawn(move || match awaits {
            true => block_on(candidate.lead()).map(drop),
            false => candidate.lead().wait().map(drop),
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
        candidate.lead().wait(),
        Err(LockError::Stopped { .. })
    ));
    let awaited = block_on(candidate.lead());
    assert!(matches!(awaited, Err(LockError::Stopped { .. })));
    // The other candidate of the same leases, and their locks.
    assert!(leadership.is_leader() && unrelated.is_held());
    // One that leads is asked to stop, and its clones are the same candidate.
    leader.clone().stop();
    assert!(!leadership.is_leader() && world.store.holder("e").is_some());
    assert_eq!(leadership.end().wait(), TermEnd::Resigned);
    assert_eq!(world.store.holder("e"), None);
    assert!(matches!(
        leader.lead().wait(),
        Err(LockError::Stopped { .. })
    ));
    assert!(unrelated.is_held());
}

#[test]
fn a_stop_or_a_close_ends_the_wait_after_a_resignation() {
    for closes in [false, true] {
        let world = threads();
        let election = world.leases.election("e");
        let leadership = election.lead().wait().unwrap();
        election.resign();
        leadership.end().wait();
        let waits = [false, true].map(|awaits| {
            let election = election.clone();
            thread::spawn(move || match awaits {
                true => block_on(election.lead()).map(drop),
                false => election.lead().wait().map(drop),
            })
        });
        match closes {
            true => drop(world.leases.close(S)),
            false => election.stop(),
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
    let fed = world.leases.election("fed").fed_every(60 * S).lead().wait();
    let fed = fed.unwrap();
    let brief = world
        .leases
        .election("brief")
        .max_hold(100 * S)
        .lead()
        .wait();
    let brief = brief.unwrap();
    for _ in 0..3 {
        world.steps.advance(30 * S);
        assert!(fed.feed() && fed.is_leader() && brief.is_leader());
    }
    world.steps.advance(30 * S);
    assert!(fed.is_leader() && !brief.is_leader());
    world.steps.advance(31 * S);
    assert!(!fed.is_leader() && !fed.feed());
    assert_eq!(fed.end().wait(), TermEnd::Lost(Loss::NotFed));
    assert_eq!(brief.end().wait(), TermEnd::Lost(Loss::HeldTooLong));
    let refused = world
        .leases
        .election("e")
        .fed_every(Duration::ZERO)
        .lead()
        .wait();
    assert!(matches!(refused, Err(LockError::ZeroFeed { .. })));
}

#[test]
fn a_stopped_candidate_does_not_ask_a_store_that_hangs() {
    let world = threads();
    let election = world.leases.election("e");
    let leadership = election.lead().wait().unwrap();
    election.stop();
    leadership.end().wait();
    // It has stepped back, and would ask who leads.
    world
        .store
        .inject(|call| panic!("a stopped candidate asks: {call:?}"));
    assert!(matches!(
        election.lead().wait(),
        Err(LockError::Stopped { .. })
    ));
    let stopped = block_on(election.lead());
    assert!(matches!(stopped, Err(LockError::Stopped { .. })));
}

#[test]
fn the_end_of_a_term_is_told_and_respected_if_its_future_is_dropped() {
    let world = blocking_threads();
    let (election, log) = with_log(world.leases.election("e"));
    let leadership = election.lead().wait().unwrap();
    let token = leadership.token();
    let gate = Gate::default();
    let shut = gate.clone();
    world.store.inject(move |call| {
        if matches!(call, StoreCall::GiveBack { .. }) {
            shut.pass();
        }
        Fault::None
    });
    election.resign();
    let mut end = Box::pin(leadership.end());
    let mut context = Context::from_waker(Waker::noop());
    assert!(end.as_mut().poll(&mut context).is_pending());
    drop(end);
    assert!(is_term(&log.lock().unwrap(), token, TermEnd::Resigned));
    gate.open();
    world.store.heal();
    // The time decides when it leads again.
    let again = thread::spawn({
        let election = election.clone();
        move || election.lead().wait().map(drop)
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
    let election = world.leases.election("e");
    let leadership = election.lead().wait().unwrap();
    election.resign();
    leadership.end().wait();
    drop(world.steps);
    let closed = block_on(election.lead());
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

#[test]
fn a_term_that_is_given_back_leads_no_more() {
    let world = world(2);
    let own = world.leases.election("e");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (election, told) = (own.clone(), Arc::clone(&seen));
    let election = election.on_change(move |change| {
        if matches!(change, Change::Ended { .. }) {
            told.lock().unwrap().push((own.status().role, own.resign()));
            own.stop();
        }
    });
    election.serve(|_| ()).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(ElectionRole::Idle, false)]);
}

/// Something deletes the lock during the term, and the work returns before anybody finds that.
#[test]
fn work_whose_lock_is_gone_when_it_returns_lets_the_others_lead_first() {
    let threads = threads();
    let election = threads.leases.election("e");
    let (tell, told) = mpsc::channel();
    let own = election.on_change(move |change| tell.send(change.clone()).unwrap());
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
