//! What can't be, and how that is said.

use std::fmt::Debug;
use std::time::Duration;

use tourbillon::{Clock, ManualClock};
use tourbillon_leases::{
    BuildError, Fault, KeepAlive, LeaseTicket, Leases, LockError, LockPaging, MemoryStore, Secret,
    StoreCall, StoreError,
};

use crate::double::StoreDouble;
use crate::worlds::{LEASE, MS, S, down, log, no_fault, world, world_of};

#[test]
fn what_can_not_be_is_refused_before_the_store_is_asked() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let (leases, name) = (&world.leases, "a");
    let empty = |answer| matches!(answer, Err(LockError::EmptyName));
    assert!(empty(leases.lock("").wait()));
    assert!(empty(leases.lock("").at_once().wait()));
    assert!(empty(leases.lock("").within(S).wait()));
    // Zero, and too short to be renewed in time.
    for short in [Duration::ZERO, MS, 50 * MS - Duration::from_nanos(1)] {
        for acquisition in [
            leases.lock(name).lease(short),
            leases.lock(name).lease(short).not_renewed(),
        ] {
            match acquisition.at_once().wait() {
                Err(LockError::TooShort { lease, least, .. }) => {
                    assert_eq!((lease, least), (short, 50 * MS));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let fed = leases.lock(name).fed_every(Duration::ZERO);
    assert!(matches!(fed.wait(), Err(LockError::ZeroFeed { .. })));
    assert_eq!(log.len(), 0);
    assert_eq!(leases.stats().armed, 0);
    // What is at the edge can be.
    let shortest = leases.lock(name).lease(50 * MS).at_once().wait().unwrap();
    world.steps.advance(S);
    assert!(shortest.is_held());
}

#[test]
fn a_name_that_is_too_long_is_refused_and_its_beginning_is_told() {
    let world = world(1);
    let log = log(&world.store, &world.clock, no_fault);
    let leases = &world.leases;
    let bytes = Leases::LONGEST_NAME + 1;
    // The last character that is shown would not be whole.
    let name = format!("{}{}", "n".repeat(63), "ü".repeat((bytes - 63) / 2));
    assert_eq!(name.len(), bytes);
    #[track_caller]
    fn is_refused<T: Debug>(answer: Result<T, LockError>, name: &str) {
        let error = answer.unwrap_err();
        assert_eq!(error.name(), &name[..63]);
        assert!(matches!(error, LockError::LongName { bytes, .. } if bytes == name.len()));
    }
    is_refused(leases.lock(&name).wait(), &name);
    is_refused(leases.lock(&name).at_once().wait(), &name);
    is_refused(leases.lock_all([&name]).each().wait().remove(0), &name);
    is_refused(leases.holder(&name).wait(), &name);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let awaited = leases.holder(&name);
    is_refused(runtime.unwrap().block_on(awaited), &name);
    is_refused(leases.list(&name, &LockPaging::first(1)).wait(), &name);
    is_refused(leases.election(&name).leader().wait(), &name);
    assert_eq!(log.len(), 0);
    // Nor does a ticket have such a name.
    let ticket = leases
        .lock("a")
        .wait()
        .unwrap()
        .detach()
        .wait()
        .unwrap()
        .to_string();
    let (start, _) = ticket.rsplit_once(',').unwrap();
    let read = |name| format!("{start},{name}").parse::<LeaseTicket>();
    assert!(read("n".repeat(bytes - 1)).is_ok());
    assert!(read("n".repeat(bytes)).is_err());
}

#[test]
fn a_lease_that_the_store_does_not_grant_is_refused() {
    let clock = Clock::manual(&ManualClock::new());
    let builder = |lease| {
        let store = StoreDouble::of(MemoryStore::with_clock(clock.clone())).grants_at_most(60 * S);
        Leases::builder(store).clock(clock.clone()).lease(lease)
    };
    let (leases, _steps) = builder(60 * S).build_stepped(1).unwrap();
    let guard = leases.lock("a").at_once().wait().unwrap();
    match leases.lock("b").lease(61 * S).at_once().wait() {
        Err(LockError::TooLong { lease, most, .. }) => assert_eq!((lease, most), (61 * S, 60 * S)),
        other => panic!("{other:?}"),
    }
    guard.release().wait().unwrap();
    for (wrong, stepped) in [
        (61 * S, false),
        (61 * S, true),
        (49 * MS, false),
        (49 * MS, true),
    ] {
        let built = if stepped {
            builder(wrong).build_stepped(1).map(drop)
        } else {
            builder(wrong).build().map(drop)
        };
        match built {
            Err(BuildError::Lease {
                lease, least, most, ..
            }) => {
                assert_eq!((lease, least, most), (wrong, 50 * MS, 60 * S));
            }
            other => panic!("{other:?}"),
        }
    }
    let text = builder(Duration::ZERO).build().unwrap_err().to_string();
    assert!(
        text.contains("0ns") && text.contains("50ms") && text.contains("60s"),
        "{text}"
    );
}

#[test]
fn a_margin_leaves_room_for_renewals() {
    let world = world_of(1, 1, |builder| builder.margin(S));
    let least = match world.leases.lock("a").lease(2 * S).at_once().wait() {
        Err(LockError::TooShort { lease, least, .. }) => {
            assert_eq!(lease, 2 * S);
            least
        }
        other => panic!("{other:?}"),
    };
    // What is said to be possible is.
    let guard = world
        .leases
        .lock("a")
        .lease(least)
        .at_once()
        .wait()
        .unwrap();
    assert_eq!(guard.remaining(), least - S);
    world.steps.advance(60 * S);
    assert!(guard.is_held());
    let less = least - Duration::from_nanos(1);
    assert!(world.leases.lock("b").lease(less).at_once().wait().is_err());
    // None at all, and one that nothing is longer than.
    let world = world_of(1, 1, |builder| builder.margin(Duration::ZERO));
    assert_eq!(
        world.leases.lock("a").at_once().wait().unwrap().remaining(),
        LEASE
    );
    let never = Leases::builder(MemoryStore::new()).margin(Duration::MAX);
    assert!(matches!(
        never.build(),
        Err(BuildError::Lease {
            least: Duration::MAX,
            ..
        })
    ));
    // The locks of a lease of their own are another matter.
    let just = Leases::builder(MemoryStore::new()).lease(3 * S).margin(S);
    assert!(just.build().is_ok());
}

#[test]
fn a_batch_has_room_for_one() {
    let none = Leases::builder(MemoryStore::new()).batch(0).build();
    assert!(matches!(none, Err(BuildError::Batch)));
    let none = KeepAlive::<u32>::builder()
        .batch(0)
        .build(async |_| Ok(vec![]));
    assert!(matches!(none, Err(BuildError::Batch)));
}

#[test]
fn what_is_refused_for_good_does_not_pass() {
    let wait = 3 * S;
    for error in [
        down(),
        StoreError::Refused("no".to_owned()),
        StoreError::Restarted { wait },
        StoreError::Emptied {
            wait,
            evicted: false,
        },
    ] {
        assert_eq!(error.may_pass(), !matches!(error, StoreError::Refused(_)));
    }
}

#[test]
fn everything_can_be_shown() {
    let world = world(1);
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    let call = StoreCall::GiveBack {
        name: "a",
        secret: Secret::new("b"),
    };
    let builder = Leases::builder(MemoryStore::new())
        .instance("node")
        .batch(7);
    let shown: [(&dyn Debug, &str); 13] = [
        (&world.leases, "kept: 1"),
        (&world.store, "names: 1"),
        (&world.steps, "Steps"),
        (&world.leases.lock("b").lease(S), "lease: 1s"),
        (&builder, "node"),
        (&builder, "batch: 7"),
        (
            &KeepAlive::<u32>::builder().alarm_after(5),
            "alarm_after: Some(5)",
        ),
        (&call, "GiveBack"),
        (&Fault::None, "None"),
        (&Fault::Fail(down()), "Fail(Unavailable"),
        (&Fault::LoseAnswer(down()), "LoseAnswer(Unavailable"),
        (&Fault::Then(Box::new(|| ())), "Then(..)"),
        (&Fault::Some(vec![3], down()), "Some([3], Unavailable"),
    ];
    for (thing, part) in shown {
        assert!(format!("{thing:?}").contains(part), "{thing:?}");
    }
    drop(guard);
}

#[test]
fn by_default_the_clock_counts_suspended_time() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let clock = Clock::boottime();
    let before = clock.now();
    let now = leases.now();
    assert!(before <= now && now <= clock.now());
    let keep_alive = KeepAlive::<u32>::builder()
        .build(async |_| Ok(vec![]))
        .unwrap();
    assert!(keep_alive.now() >= now && keep_alive.now() <= clock.now());
    // And a lease is thirty seconds.
    let guard = leases.lock("a").at_once().wait().unwrap();
    assert!(guard.remaining() > 20 * S && guard.remaining() <= LEASE);
}
