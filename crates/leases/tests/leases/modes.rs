//! Read-write locks and permits.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{Clock, ManualClock, Time};
use tourbillon_leases::{
    Acquisition, BlockingStore, Claim, DetachError, Fault, Fence, LeaseFuture, LeaseGuard, Leases,
    LockError, LockPaging, MemoryStore, Mode, Secret, StoreCall, StoreError,
};

use crate::after::{After, AsyncGate};
use crate::calls::Calls;
use crate::double::StoreDouble;
use crate::mode_model::{
    Choices, ModeWorld, Seen, a_wait_that_is_over_reserves_nothing, compare,
    grants_wake_the_next_caller,
};
use crate::worlds::{LEASE, MS, S, log, no_fault, threads, world};

struct InMemory {
    store: MemoryStore,
    hand: ManualClock,
    clock: Clock,
}

impl ModeWorld for InMemory {
    fn store(&self) -> &dyn tourbillon_leases::LeaseStore {
        &self.store
    }

    fn now(&self) -> Duration {
        self.clock.now().since(Time::default())
    }

    fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}

#[test]
fn random_calls_are_answered_as_by_a_list_of_holders() {
    let mut all = Seen::default();
    for seed in 1..=40 {
        let hand = ManualClock::new();
        // Long enough ago for all that has waited.
        hand.advance(100 * S);
        let clock = Clock::manual(&hand);
        let store = MemoryStore::with_clock(clock.clone());
        let world = InMemory { store, hand, clock };
        let seen = compare(
            &world,
            seed * 7_919,
            Choices {
                steps: (2_000, 100),
                leases: &[10 * S, 30 * S],
                waits: 25,
                passes: (
                    &[MS, 7 * MS, 20 * MS, 300 * MS, 1_200 * MS, 4 * S, 12 * S],
                    250,
                ),
            },
        );
        all.steps += seen.steps;
        all.granted += seen.granted;
        all.held += seen.held;
        all.joined += seen.joined;
        all.places_again += seen.places_again;
        all.behind_others += seen.behind_others;
        all.reserved += seen.reserved;
        all.run_out += seen.run_out;
        assert_eq!(seen.unsure, 0);
    }
    println!("{all:?}");
    let Seen {
        granted,
        held,
        joined,
        places_again,
        behind_others,
        reserved,
        run_out,
        ..
    } = all;
    assert!(all.steps >= 80_000);
    for number in [
        granted,
        held,
        joined,
        places_again,
        behind_others,
        reserved,
        run_out,
    ] {
        assert!(number >= 200, "{all:?}");
    }
}

/// A call that waits, which the test polls.
struct Waiter {
    call: LeaseFuture<Result<LeaseGuard, LockError>>,
    wakes: Arc<Wakes>,
}

impl Waiter {
    fn of(acquisition: Acquisition<'_>) -> Self {
        let mut waiter = Waiter {
            call: acquisition.into_future(),
            wakes: Wakes::new(),
        };
        assert!(waiter.look().is_none());
        waiter
    }

    fn look(&mut self) -> Option<LeaseGuard> {
        match poll(&mut self.call, &self.wakes) {
            Poll::Ready(guard) => Some(guard.unwrap()),
            Poll::Pending => None,
        }
    }

    /// Looks if it was woken.
    fn woken(&mut self) -> Option<LeaseGuard> {
        if self.wakes.count() == 0 {
            return None;
        }
        self.wakes = Wakes::new();
        self.look()
    }
}

#[test]
fn readers_have_the_lock_together_and_a_writer_has_it_alone() {
    let world = threads();
    let (leases, hand) = (&world.leases, &world.hand);
    let before = leases.lock("a").wait().unwrap();
    let is_held = |answer| matches!(answer, Err(LockError::Held { .. }));
    assert!(is_held(leases.lock("a").shared().at_once().wait()));
    let token = before.token();
    before.release().wait().unwrap();

    let one = leases.lock("a").shared().at_once().wait().unwrap();
    let other = leases.lock("a").shared().at_once().wait().unwrap();
    assert!(one.token() > token);
    assert_eq!((one.token(), one.place()), (other.token(), 0));
    assert_eq!(one.id().mode(), Mode::Shared);
    hand.advance(S);
    let third = leases.lock("a").shared().lease(2 * LEASE).wait().unwrap();
    // A writer waits for the reader that ends last.
    match leases.lock("a").at_once().wait() {
        Err(LockError::Held { remaining, .. }) => assert_eq!(remaining, 2 * LEASE),
        other => panic!("{other:?}"),
    }
    for guard in [one, other, third] {
        assert!(is_held(leases.lock("a").at_once().wait()));
        guard.release().wait().unwrap();
    }
    let after = leases.lock("a").at_once().wait().unwrap();
    assert!(after.token() > token + 1);
}

#[test]
fn all_waiting_readers_get_in_when_one_does() {
    let world = threads();
    let leases = &world.leases;
    let writer = leases.lock("a").wait().unwrap();
    let mut readers: Vec<_> = (0..10)
        .map(|_| Waiter::of(leases.lock("a").shared()))
        .collect();
    writer.release().wait().unwrap();
    // The clock stands still. So each one was woken by the one before.
    let guards: Vec<_> = readers.iter_mut().map(|one| one.woken().unwrap()).collect();
    assert_eq!(guards.len(), 10);
    let mut permits: Vec<_> = (0..10)
        .map(|_| Waiter::of(leases.lock("a").permit_of(4)))
        .collect();
    for released in leases.release_many(guards).wait() {
        released.unwrap();
    }
    let mut in_it: Vec<_> = permits.iter_mut().filter_map(Waiter::woken).collect();
    let places = |guards: &[LeaseGuard]| guards.iter().map(LeaseGuard::place).collect::<Vec<_>>();
    assert_eq!(places(&in_it), [0, 1, 2, 3]);
    // Each permit that is released lets one more in, at its place.
    in_it.remove(2).release().wait().unwrap();
    let next: Vec<_> = permits[4..].iter_mut().filter_map(Waiter::woken).collect();
    assert_eq!(places(&next), [2]);
}

#[test]
fn a_reader_that_comes_after_a_waiting_writer_waits_behind_it() {
    let world = threads();
    let (leases, hand) = (&world.leases, &world.hand);
    let reader = leases.lock("a").shared().wait().unwrap();
    let mut writer = Waiter::of(leases.lock("a"));
    let late = || leases.lock("a").shared().at_once().wait();
    match late() {
        Err(LockError::Held { remaining, .. }) => assert_eq!(remaining, Claim::RECENT),
        other => panic!("{other:?}"),
    }
    let mut behind = Waiter::of(leases.lock("a").shared());
    // The writer asks again and again. No reader gets in meanwhile, whenever it asks.
    for _ in 0..50 {
        hand.advance(100 * MS);
        assert!(writer.look().is_none());
        assert!(behind.look().is_none());
        assert!(late().is_err());
    }
    reader.release().wait().unwrap();
    let held = writer.woken().expect("it has waited longest");
    assert!(behind.woken().is_none());
    held.release().wait().unwrap();
    assert!(behind.woken().is_some());
}

#[test]
fn a_second_read_lock_waits_behind_a_writer_and_a_shared_guard_does_not() {
    let world = threads();
    let leases = &world.leases;
    for mode in [Mode::Shared, Mode::Permit { of: 2 }] {
        let asks = || match mode {
            Mode::Permit { of } => leases.lock("a").permit_of(of),
            _ => leases.lock("a").shared(),
        };
        let first = asks().wait().unwrap();
        let writer = Waiter::of(leases.lock("a"));
        assert!(asks().at_once().wait().is_err());
        let second = first.again().unwrap();
        first.release().wait().unwrap();
        assert!(second.is_held());
        second.release().wait().unwrap();
        drop(writer);
        until("the name is free", || {
            leases.lock("a").at_once().wait().is_ok()
        });
    }
}

#[test]
fn who_waits_for_a_shared_name_asks_each_second_whatever_the_poll_is() {
    let hand = ManualClock::new();
    let clock = Clock::manual(&hand);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let store = MemoryStore::with_clock(clock.clone());
    store.inject(move |call| {
        if matches!(call, StoreCall::Claim(claim) if claim.waits) {
            count.fetch_add(1, SeqCst);
        }
        Fault::None
    });
    let leases = Leases::builder(store).clock(clock).poll(LEASE);
    let leases = leases.build().unwrap();
    let reader = leases.lock("a").shared().lease(10 * LEASE);
    let _reader = reader.not_renewed().wait().unwrap();
    let permit = leases.lock("b").permit_of(1).lease(10 * LEASE);
    let _permit = permit.not_renewed().wait().unwrap();
    let alone = leases.lock("c").lease(10 * LEASE);
    let _alone = alone.not_renewed().wait().unwrap();
    for (waiting, asks) in [
        (leases.lock("a"), true),
        (leases.lock("b").permit_of(1), true),
        (leases.lock("b").shared(), true),
        // Nothing is shared here.
        (leases.lock("c"), false),
        (leases.lock("c").shared(), false),
    ] {
        let mut waiter = Waiter::of(waiting);
        let before = asked.load(SeqCst);
        hand.advance(S + 2 * MS);
        let how = if asks {
            "it is woken"
        } else {
            "nobody is woken"
        };
        if asks {
            until(how, || waiter.wakes.count() > 0);
        }
        assert!(waiter.look().is_none());
        assert_eq!(asked.load(SeqCst) > before, asks, "{how}");
    }
}

#[test]
fn a_writer_that_gives_up_keeps_readers_out_for_a_moment_at_most() {
    let world = threads();
    let (leases, hand) = (&world.leases, &world.hand);
    let reader = leases.lock("a").shared().wait().unwrap();
    let late = || leases.lock("a").shared().at_once().wait();
    drop(Waiter::of(leases.lock("a")));
    // Nobody else waits in this process.
    until("the store hears that it left", || late().is_ok());

    let writer = Waiter::of(leases.lock("a"));
    let mut behind = Waiter::of(leases.lock("a").shared());
    drop(writer);
    // It is woken when the writer no longer counts.
    hand.advance(Claim::RECENT + MS);
    until("the reader is woken", || behind.wakes.count() > 0);
    assert!(behind.look().is_some());
    drop(reader);
}

#[test]
fn permits_have_places_of_their_own_and_each_place_can_be_fenced() {
    let world = threads();
    let (leases, hand) = (&world.leases, &world.hand);
    let permit = || leases.lock("gpu").permit_of(3).at_once().not_renewed();
    let fences = [Fence::new(), Fence::new(), Fence::new()];
    let mut held = Vec::new();
    for lease in [LEASE, LEASE / 3, LEASE / 2] {
        held.push(permit().lease(lease).wait().unwrap());
    }
    for (place, guard) in held.iter().enumerate() {
        assert_eq!(guard.place() as usize, place);
        fences[place].admit(guard.token()).unwrap();
    }
    // For one who asks, the first of them ends.
    match permit().wait() {
        Err(LockError::Held { remaining, .. }) => assert_eq!(remaining, LEASE / 3),
        other => panic!("{other:?}"),
    }
    // Its holder has crashed.
    hand.advance(LEASE / 3);
    let next = permit().wait().unwrap();
    assert_eq!(next.place(), 1);
    assert!(next.token() > held[2].token());
    fences[1].admit(next.token()).unwrap();
    assert!(fences[1].admit(held[1].token()).is_err());
    // The holder of the first place is not stale, although its token is the smallest. One fence for all
    // would refuse it.
    fences[0].admit(held[0].token()).unwrap();
    let wrong = Fence::starting_at(next.token());
    assert!(held[0].is_held() && wrong.admit(held[0].token()).is_err());
}

#[test]
fn who_names_another_number_waits_until_the_name_is_free() {
    let world = threads();
    let leases = &world.leases;
    let one = leases.lock("a").permit_of(3).wait().unwrap();
    for other in [
        leases.lock("a").permit_of(2),
        leases.lock("a").permit_of(4),
        leases.lock("a").shared(),
        leases.lock("a"),
    ] {
        assert!(other.at_once().wait().is_err());
    }
    let mut two = Waiter::of(leases.lock("a").permit_of(2));
    // While it waits, nobody joins the others.
    assert!(leases.lock("a").permit_of(3).at_once().wait().is_err());
    one.release().wait().unwrap();
    let held = two.woken().unwrap();
    assert!(leases.lock("a").permit_of(2).at_once().wait().is_ok());
    assert!(leases.lock("a").permit_of(3).at_once().wait().is_err());
    drop(held);
}

#[test]
fn a_number_of_permits_that_is_out_of_range_is_refused_before_any_call() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    for wrong in [0, Mode::MOST_PERMITS + 1, u32::MAX] {
        let error = world.leases.lock("a").permit_of(wrong).wait().unwrap_err();
        assert!(matches!(error, LockError::Permits { of, .. } if of == wrong));
        let text = error.to_string();
        assert!(text.contains(&format!("one of {wrong} permits")), "{text}");
        assert!(text.contains("from 1 to 10000"), "{text}");
    }
    assert_eq!(log.len(), 0);
    let most = world.leases.lock("a").permit_of(Mode::MOST_PERMITS);
    assert_eq!(most.wait().unwrap().place(), 0);
}

#[test]
fn a_store_without_modes_is_not_asked() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let store = StoreDouble::of(MemoryStore::new()).notes(move |_, _| {
        count.fetch_add(1, SeqCst);
    });
    assert!(!store.can_share());
    let leases = Leases::new(store).unwrap();
    let shared = leases.lock("a").shared().wait();
    for refused in [shared, leases.lock("a").permit_of(2).at_once().wait()] {
        let Err(LockError::Store { error, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(matches!(error, StoreError::Refused(_)));
        assert!(error.to_string().contains("can't share \"a\""), "{error}");
    }
    assert_eq!(asked.load(SeqCst), 0);
    assert!(leases.lock("a").wait().is_ok());
    // Stores around another one can do what that one can.
    let memory = MemoryStore::new();
    assert!(BlockingStore::new(memory.clone()).can_share());
    assert!(Arc::new(memory.clone()).can_share());
    let boxed: Box<dyn tourbillon_leases::LeaseStore> = Box::new(memory);
    assert!(boxed.can_share());
    assert!(!BlockingStore::new(StoreDouble::of(MemoryStore::new())).can_share());
}

#[test]
fn each_holder_is_renewed_and_lost_and_released_for_itself() {
    let world = world(3);
    let (leases, steps) = (&world.leases, &world.steps);
    let renewed = leases.lock("a").shared().wait().unwrap();
    let short = leases.lock("a").shared().lease(LEASE / 2).not_renewed();
    let short = short.wait().unwrap();
    steps.advance(LEASE);
    assert!(renewed.is_held() && !short.is_held());
    assert!(renewed.renewals() > 0);
    assert!(short.release().wait().is_err());
    let second = leases.lock("a").shared().not_renewed().wait().unwrap();
    second.extend(3 * LEASE).wait().unwrap();
    let (holder, count) = {
        let holder = leases.holder("a").wait().unwrap().unwrap();
        (holder.owner, holder.holders)
    };
    assert_eq!((&*holder, count), (second.id().owner(), 2));
    // The store forgets them: each holder learns of that.
    world.store.forget();
    steps.advance(LEASE);
    assert!(!renewed.is_held());
    assert!(second.release().wait().is_err());
}

#[test]
fn the_place_of_a_short_job_stays_taken() {
    let world = world(4);
    let (leases, steps) = (&world.leases, &world.steps);
    let job = || {
        let permit = leases.lock("a").permit_of(2).at_least(LEASE / 2);
        permit.at_once().wait()
    };
    let guards = [job().unwrap(), job().unwrap()];
    steps.advance(S);
    for guard in guards {
        guard.release().wait().unwrap();
    }
    let holder = leases.holder("a").wait().unwrap().unwrap();
    assert!(holder.owner.ends_with(" (released)"), "{holder:?}");
    assert_eq!(holder.holders, 2);
    assert!(job().is_err());
    steps.advance(LEASE / 2 - S - MS);
    assert!(job().is_err());
    steps.advance(MS);
    assert_eq!(job().unwrap().place(), 0);

    let reader = leases.lock("b").shared().at_least(S).wait().unwrap();
    reader.release().wait().unwrap();
    assert!(leases.lock("b").shared().at_once().wait().is_ok());
    assert!(leases.lock("b").at_once().wait().is_err());
    steps.advance(S);
    assert!(leases.lock("b").at_once().wait().is_ok());
}

#[test]
fn a_shared_lock_is_not_handed_over() {
    let world = world(5);
    for guard in [
        world.leases.lock("a").shared().wait().unwrap(),
        world.leases.lock("b").permit_of(2).wait().unwrap(),
    ] {
        let log = log(&world.store, &world.clock, no_fault);
        let Err(DetachError::Store(guard, error)) = guard.detach().wait() else {
            panic!("it was handed over");
        };
        assert_eq!(log.len(), 0);
        assert!(
            error.to_string().contains("only exclusive locks"),
            "{error}"
        );
        // It is held as before, and has guards as all others.
        let again = guard.again().unwrap();
        guard.release().wait().unwrap();
        assert!(again.is_held());
        again.release().wait().unwrap();
    }
}

#[test]
fn holders_are_shown_and_listed_with_mode_and_number() {
    let world = world(6);
    let leases = &world.leases;
    let _readers = [(); 3].map(|()| leases.lock("a/1").shared().wait().unwrap());
    let permit = |lease| leases.lock("a/2").permit_of(9).lease(lease).wait().unwrap();
    let long = permit(2 * LEASE);
    let _short = permit(LEASE);
    let _alone = leases.lock("a/3").wait().unwrap();
    let shown = |name: &str| leases.holder(name).wait().unwrap().unwrap();
    assert_eq!((shown("a/1").mode, shown("a/1").holders), (Mode::Shared, 3));
    let last = shown("a/2");
    assert_eq!((last.mode, last.holders), (Mode::Permit { of: 9 }, 2));
    assert_eq!(
        (&*last.owner, last.token),
        (long.id().owner(), long.token())
    );
    assert_eq!(last.remaining, 2 * LEASE);
    assert_eq!(shown("a/3").mode, Mode::Exclusive);
    let (mut paging, mut found) = (Some(LockPaging::first(2)), Vec::new());
    while let Some(of) = paging {
        let page = leases.list("a/", &of).wait().unwrap();
        found.extend(
            page.locks
                .into_iter()
                .map(|lock| (lock.name, lock.holder.holders)),
        );
        paging = page.next;
    }
    let names = found.iter().map(|(name, count)| (&**name, *count));
    assert_eq!(
        names.collect::<Vec<_>>(),
        [("a/1", 3), ("a/2", 2), ("a/3", 1)]
    );
}

#[test]
fn a_future_of_a_reader_that_is_dropped_amid_its_call_leaves_no_holder() {
    let gate = AsyncGate::default();
    let (store, at) = (MemoryStore::new(), gate.clone());
    let leases = Leases::new(After::new(store.clone(), move || at.pass())).unwrap();
    let first = leases.lock("a").permit_of(2).wait().unwrap();
    gate.shut();
    let mut call = leases.lock("a").permit_of(2).into_future();
    assert!(poll(&mut call, &Wakes::new()).is_pending());
    until("the call is at the gate", || gate.waiting() == 1);
    drop(call);
    gate.open();
    until("its release is answered", || {
        leases.stats().releases_queued == 0
    });
    assert_eq!(store.holder_of("a", S).unwrap().unwrap().holders, 1);
    assert!(first.is_held());
    first.release().wait().unwrap();
}

#[test]
fn a_thousand_readers_come_and_go() {
    let world = world(7);
    let (leases, steps) = (&world.leases, &world.steps);
    let mut guards: Vec<_> = (0..1_000)
        .map(|_| leases.lock("a").shared().wait().unwrap())
        .collect();
    steps.advance(2 * LEASE);
    assert!(guards.iter().all(LeaseGuard::is_held));
    let last = guards.pop().unwrap();
    for released in leases.release_many(guards).wait() {
        released.unwrap();
    }
    assert_eq!(leases.holder("a").wait().unwrap().unwrap().holders, 1);
    assert!(leases.lock("a").at_once().wait().is_err());
    drop(last);
    steps.settle();
    assert!(leases.lock("a").at_once().wait().is_ok());
}

#[test]
fn what_has_run_out_leaves_nothing_behind() {
    let hand = ManualClock::new();
    let store = MemoryStore::with_clock(Clock::manual(&hand));
    for number in 0..5_000 {
        let name = number.to_string();
        let claim = Claim::new(&name, "owner", Secret::new("secret"), S);
        store.acquire(&claim.in_mode(Mode::Shared), S).unwrap();
        hand.advance(100 * MS);
    }
    // Twice as many as were alive, and as many as there may be at least.
    let names = format!("{store:?}");
    let names = names.trim_matches(|c: char| !c.is_ascii_digit());
    assert!(names.parse::<usize>().unwrap() <= 1_024, "{store:?}");
    assert_eq!(
        store
            .list("", &LockPaging::first(100), S)
            .unwrap()
            .locks
            .len(),
        9
    );
}

#[test]
fn a_grant_that_is_repeated_wakes_the_next_caller_again() {
    grants_wake_the_next_caller(&MemoryStore::new(), false);
}

#[test]
fn a_caller_that_has_a_place_reserves_none_for_its_store() {
    a_wait_that_is_over_reserves_nothing(&MemoryStore::new());
}
