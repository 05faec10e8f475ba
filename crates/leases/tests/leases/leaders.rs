//! Followers of an election: what they hear of leaders, when, and at which cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tourbillon_leases::channel::{Receiver, TryRecvError};
use tourbillon_leases::{
    Election, Fault, FindingKind, Impact, Leader, Leases, LockError, MemoryStore, StoreCall,
    StoreError,
};

use crate::worlds::{LEASE, S, World, down, threads, world, world_of};

type Leaders = Receiver<Option<Leader>>;

/// Counts the looks at a store. While `fails`, they fail.
fn count_looks(store: &MemoryStore, fails: bool) -> Arc<AtomicUsize> {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    store.inject(move |call| match call {
        StoreCall::Holder { .. } => {
            counted.fetch_add(1, SeqCst);
            match fails {
                true => Fault::Fail(down()),
                false => Fault::None,
            }
        }
        _ => Fault::None,
    });
    looks
}

/// A candidate and one that only follows, and what it has heard so far.
fn followed(world: &World) -> (Election, Election, Leaders) {
    let follower = world.leases.election("e");
    let leaders = follower.leaders().expect("a good name");
    world.steps.settle();
    assert_eq!(leaders.try_recv(), Ok(None));
    (world.leases.election("e"), follower, leaders)
}

fn tokens(leaders: &Leaders) -> Vec<Option<u64>> {
    let heard = leaders.try_iter();
    heard.map(|leader| Some(leader?.token)).collect()
}

#[test]
fn each_state_is_told_once_at_the_cost_of_a_look_a_second() {
    let world = world_of(1, 1, |builder| {
        builder.instance("a").holder_data("http://a/")
    });
    let (candidate, follower, leaders) = followed(&world);
    let looks = count_looks(&world.store, false);
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(60 * S);
    let leader = leaders.try_recv().unwrap().expect("it leads");
    assert_eq!(
        (leader.data.as_str(), leader.token),
        ("http://a/", leadership.token())
    );
    assert!(leader.owner.starts_with("a-"), "{leader:?}");
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(looks.load(SeqCst), 60);
    leadership.end().wait();
    world.steps.advance(S);
    assert_eq!(tokens(&leaders), [None]);
    // Not a candidate itself, and told of no error.
    assert_eq!(world.leases.stats().waiting, 0);
    assert!(follower.health().is_ready() && follower.status().since.is_none());
}

#[test]
fn a_short_lease_is_looked_at_more_often() {
    let world = world(1);
    let looks = count_looks(&world.store, false);
    let election = world
        .leases
        .election("e")
        .lease(Duration::from_millis(1_500));
    let _leaders = election.leaders().unwrap();
    world.steps.advance(60 * S);
    assert_eq!(looks.load(SeqCst), 121);
}

#[test]
fn a_lease_that_no_store_grants_makes_no_loop_of_the_looks() {
    let world = world(1);
    let looks = count_looks(&world.store, false);
    let follower = world.leases.election("e").lease(Duration::ZERO);
    let leaders = follower.leaders().unwrap();
    world.steps.settle();
    assert_eq!((looks.load(SeqCst), tokens(&leaders)), (1, vec![None]));
    world.steps.advance(S);
    assert!(looks.load(SeqCst) <= 101);
}

#[test]
fn a_store_that_can_not_tell_who_leads_makes_no_probe_fail() {
    let world = world(1);
    world.store.inject(|call| match call {
        StoreCall::Holder { .. } => Fault::Fail(StoreError::Refused("can't tell".to_owned())),
        _ => Fault::None,
    });
    let follower = world.leases.election("e");
    let leaders = follower.leaders().unwrap();
    world.steps.advance(60 * S);
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Empty));
    let health = follower.health();
    assert_eq!(health.findings()[0].impact, Impact::Warning);
    assert!(health.is_ready());
}

#[test]
fn a_full_channel_gets_the_newest_state_when_it_has_room() {
    let world = world(1);
    let (candidate, _follower, leaders) = followed(&world);
    let mut last = 0;
    for _ in 0..20 {
        let leadership = candidate.lead().wait().unwrap();
        last = leadership.token();
        world.steps.advance(S);
        leadership.end().wait();
        world.steps.advance(S);
    }
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(S);
    let heard = tokens(&leaders);
    assert_eq!(heard.len(), 16);
    assert!(!heard.contains(&Some(last)));
    // All in between is left out.
    world.steps.advance(S);
    assert_eq!(tokens(&leaders), [Some(leadership.token())]);
    world.steps.advance(10 * S);
    assert_eq!(tokens(&leaders), []);
}

#[test]
fn a_full_channel_gets_the_newest_state_although_looks_fail_by_then() {
    let world = world(1);
    let (candidate, _follower, leaders) = followed(&world);
    for _ in 0..8 {
        let leadership = candidate.lead().wait().unwrap();
        world.steps.advance(S);
        leadership.end().wait();
        world.steps.advance(S);
    }
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(S);
    count_looks(&world.store, true);
    assert_eq!(tokens(&leaders).len(), 16);
    world.steps.advance(S);
    assert_eq!(tokens(&leaders), [Some(leadership.token())]);
}

#[test]
fn receivers_of_a_candidate_share_a_look_and_begin_with_the_present_state() {
    let world = world(1);
    let (candidate, follower, first) = followed(&world);
    let leadership = candidate.lead().wait().unwrap();
    let led = [Some(leadership.token())];
    world.steps.advance(S);
    let looks = count_looks(&world.store, false);
    let second = follower.clone().leaders().unwrap();
    assert_eq!((tokens(&first), tokens(&second)), (led.into(), led.into()));
    world.steps.advance(10 * S);
    assert_eq!(looks.load(SeqCst), 10);
    drop(first);
    leadership.end().wait();
    world.steps.advance(10 * S);
    assert_eq!(tokens(&second), [None]);
    assert_eq!(looks.load(SeqCst), 20);
}

#[test]
fn the_oldest_of_too_many_channels_ends() {
    let world = world(1);
    let election = world.leases.election("e");
    let leaders: Vec<_> = (0..1_025).map(|_| election.leaders().unwrap()).collect();
    assert_eq!(leaders[0].try_recv(), Err(TryRecvError::Disconnected));
    world.steps.settle();
    assert!(
        leaders[1..]
            .iter()
            .all(|leaders| leaders.try_recv() == Ok(None))
    );
}

#[test]
fn looks_end_at_the_next_change_after_the_last_receiver_is_dropped() {
    let world = world(1);
    let (candidate, follower, leaders) = followed(&world);
    let looks = count_looks(&world.store, false);
    drop(leaders);
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(100 * S);
    assert_eq!(looks.load(SeqCst), 1);
    // A later receiver gets what is true then, and not what was seen before.
    leadership.end().wait();
    let again = follower.leaders().unwrap();
    assert_eq!(tokens(&again), []);
    world.steps.advance(10 * S);
    assert_eq!((tokens(&again), looks.load(SeqCst)), (vec![None], 12));
}

#[test]
fn the_channel_ends_with_the_last_clone_of_its_election() {
    let world = world(1);
    let (_candidate, follower, leaders) = followed(&world);
    let clone = follower.clone();
    drop(follower);
    world.steps.advance(S);
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Empty));
    let looks = count_looks(&world.store, false);
    drop(clone);
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Disconnected));
    world.steps.advance(100 * S);
    assert!(looks.load(SeqCst) <= 1);
}

#[test]
fn the_channel_ends_within_a_second_when_the_leases_are_closed() {
    let world = world(1);
    let (_candidate, follower, leaders) = followed(&world);
    let looks = count_looks(&world.store, false);
    world.leases.close(S);
    world.steps.advance(S);
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Disconnected));
    world.steps.advance(100 * S);
    assert_eq!(looks.load(SeqCst), 0);
    let closed = follower.leaders();
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

#[test]
fn the_channel_ends_with_the_threads_of_its_leases() {
    let world = world(1);
    let (_candidate, follower, leaders) = followed(&world);
    drop(world.steps);
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Disconnected));
    let closed = follower.leaders();
    assert!(matches!(closed, Err(LockError::Closed { .. })));
}

#[test]
fn a_candidate_that_is_stopped_still_follows() {
    let world = world(1);
    let (candidate, follower, leaders) = followed(&world);
    follower.stop();
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(S);
    assert_eq!(tokens(&leaders), [Some(leadership.token())]);
}

#[test]
fn looks_that_fail_change_nothing_and_are_told_by_the_health() {
    let world = world(1);
    let (candidate, follower, leaders) = followed(&world);
    let leadership = candidate.lead().wait().unwrap();
    world.steps.advance(S);
    let looks = count_looks(&world.store, true);
    let token = leadership.token();
    leadership.end().wait();
    world.steps.advance(6 * S);
    assert_eq!(tokens(&leaders), [Some(token)]);
    let impacts = [(5 * S, Impact::Warning), (6 * S, Impact::NotReady)];
    for (later, impact) in impacts {
        let health = follower.health();
        let finding = &health.findings()[0];
        assert_eq!(
            (finding.kind, finding.impact),
            (FindingKind::StoreFails, impact)
        );
        assert!(
            finding
                .detail
                .starts_with("looks for leaders of \"e\" fail: "),
            "{health}"
        );
        assert_eq!(follower.status().error, Some(down()));
        world.steps.advance(later);
    }
    assert_eq!(looks.load(SeqCst), 17);
    // The other candidate of the same leases asks nobody.
    assert!(candidate.health().is_ready());
    world.store.heal();
    world.steps.advance(S);
    assert_eq!(tokens(&leaders), [None]);
    assert!(follower.health().is_ready() && follower.status().error.is_none());
}

#[test]
fn a_leader_whose_process_stands_still_is_followed_by_none_and_the_next_one() {
    let world = world(1);
    let (others, steps) = Leases::builder(world.store.clone())
        .clock(world.clock.clone())
        .build_stepped(2)
        .unwrap();
    let leadership = others.election("e").lead().wait().unwrap();
    let (first, second) = (leadership.token(), leadership.token() + 1);
    let follower = world.leases.election("e");
    let leaders = follower.leaders().unwrap();
    // Only the follower's process goes on.
    world.steps.advance(LEASE + 2 * S);
    assert_eq!(tokens(&leaders), [Some(first), None]);
    let next = world.leases.election("e").lead().wait().unwrap();
    world.steps.advance(S);
    assert_eq!(
        (tokens(&leaders), next.token()),
        (vec![Some(second)], second)
    );
    drop(steps);
}

#[test]
fn what_can_never_be_followed_is_refused() {
    let world = world(1);
    let empty = world.leases.election("").leaders();
    assert!(matches!(empty, Err(LockError::EmptyName)));
    let long = "x".repeat(Leases::LONGEST_NAME + 1);
    let long = world.leases.election(long).leaders();
    assert!(matches!(long, Err(LockError::LongName { .. })));
}

/// With threads, where the look is on its way when everything ends.
#[test]
fn the_channel_ends_with_the_last_handle_also_while_a_look_hangs() {
    let threads = threads();
    let gate = kit::gate::Gate::default();
    let (shut, store) = (gate.clone(), Arc::new(()));
    let stored = Arc::downgrade(&store);
    threads.store.inject(move |call| {
        let _of_store = &store;
        if matches!(call, StoreCall::Holder { .. }) {
            shut.pass();
        }
        Fault::None
    });
    let election = threads.leases.election("e");
    let leaders = election.leaders().unwrap();
    gate.crowd(1);
    drop((election, threads.leases, threads.store));
    assert_eq!(leaders.try_recv(), Err(TryRecvError::Disconnected));
    assert!(stored.upgrade().is_some(), "the look uses the store");
    // The look is the last that has the leases, and their threads end on one of them.
    gate.open();
    kit::wait::until("the leases are dropped", || stored.upgrade().is_none());
}
