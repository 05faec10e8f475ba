use super::*;
use crate::shard::EntryId;

/// Uses the group as its own hash.
const fn hash(group: u32) -> KeyHash {
    KeyHash(group as u64)
}

fn member(number: u32) -> Member {
    Member {
        stripe: number % 3,
        id: EntryId {
            slot: number,
            generation: 1,
        },
    }
}

fn enter(groups: &GroupIndex<u32>, group: u32, number: u32) -> Option<Membership<u32>> {
    let entered = groups.enter(
        hash(group),
        &group,
        Time::ZERO,
        |membership, is_full| {
            if is_full {
                (Entered::Refused(Some(membership)), None)
            } else {
                (Entered::Armed(member(number), None), Some(membership))
            }
        },
        |_, _| unreachable!("a full group refuses"),
    );
    entered.expect("there is a free number")
}

/// Returns the members that a call for the whole group begins with.
fn members(groups: &GroupIndex<u32>, hash: KeyHash, group: &u32) -> Vec<Member> {
    let mut all = Vec::new();
    if let Some(walk) = groups.walk(hash, group) {
        walk.run(|_, one, _| all.extend(one), || ());
    }
    all
}

/// Counts the numbers that are or were in use, in all shards.
fn numbers(groups: &GroupIndex<u32>) -> u32 {
    let shards = groups.shards.iter();
    shards.map(|shard| shard.lock.lock().groups.len()).sum()
}

#[test]
fn a_group_without_a_member_takes_no_memory() {
    let groups = GroupIndex::with_shards(1, None, GroupFull::Refuse);
    for group in 0..10_000 {
        let stays = enter(&groups, group, 0);
        assert_eq!(groups.count(hash(group), &group), 1);
        drop(stays);
        assert_eq!(groups.count(hash(group), &group), 0);
    }
    assert_eq!(numbers(&groups), 1);
    // A refused member, or one whose arming panicked, leaves no group behind.
    let groups = GroupIndex::with_shards(1, Some(0), GroupFull::Refuse);
    assert!(enter(&groups, 1, 0).is_none());
    let mut outlives = None;
    let panicked = catch_panic(|| {
        groups.enter(
            hash(2),
            &2,
            Time::ZERO,
            |membership, _| -> (Entered<u32>, ()) {
                outlives = Some(membership);
                panic!("on purpose");
            },
            |_, _| unreachable!("nothing was armed"),
        )
    });
    assert!(panicked.is_err() && outlives.is_some());
    assert!(members(&groups, hash(2), &2).is_empty());
    drop(outlives);
    assert_eq!(groups.count(hash(2), &2), 0);
    assert_eq!(numbers(&groups), 1);
}

/// Enters group 7 of an index that evicts. The answers of `judge` are used one by one.
fn enter_full(
    groups: &GroupIndex<u32>,
    number: u32,
    judged: impl IntoIterator<Item = Judged<Membership<u32>>>,
) -> Membership<u32> {
    let mut judged = judged.into_iter();
    let entered = groups.enter(
        hash(7),
        &7,
        Time::ZERO,
        |membership, is_full| {
            assert!(!is_full, "a group that evicts refuses nothing");
            (Entered::Armed(member(number), None), membership)
        },
        |_, _| judged.next().expect("no more looks than answers"),
    );
    assert!(judged.next().is_none(), "every answer is used");
    entered.expect("there is a free number")
}

/// GROUP-7, in the order that a race seldom has: the entry has ended, and its membership waits.
#[test]
fn who_has_ended_and_not_left_makes_room_once() {
    for policy in [GroupFull::EvictOldest, GroupFull::EvictLeastRecentlyTouched] {
        let groups = GroupIndex::with_shards(1, Some(2), policy);
        let ended = enter_full(&groups, 0, []);
        let stays = enter_full(&groups, 1, []);
        assert_eq!(groups.count(hash(7), &7), 2);
        let newest = enter_full(&groups, 2, [Judged::Ended]);
        assert_eq!(groups.count(hash(7), &7), 2);
        assert_eq!(members(&groups, hash(7), &7).len(), 2);
        // Its number is not used again before it has left.
        drop(newest);
        let newest = enter_full(&groups, 3, []);
        assert_eq!(groups.count(hash(7), &7), 2);
        drop(ended);
        assert_eq!(groups.count(hash(7), &7), 2);
        let evicted = enter_full(&groups, 4, [Judged::Evicted(stays)]);
        assert_eq!(members(&groups, hash(7), &7), [member(3), member(4)]);
        // The group exists while somebody forgotten has not left.
        let last = enter_full(&groups, 5, [Judged::Ended]);
        drop((evicted, last));
        assert_eq!(groups.count(hash(7), &7), 0);
        assert_eq!(numbers_in_use(&groups), 1);
        drop(newest);
        assert_eq!(numbers_in_use(&groups), 0);
    }
}

/// Racing touches never let a candidate be the least recently touched one.
#[test]
fn an_insertion_ends_though_each_look_finds_a_new_touch() {
    let policy = GroupFull::EvictLeastRecentlyTouched;
    let groups = GroupIndex::with_shards(1, Some(2), policy);
    let mut all = [0, 1].map(|number| Some(enter_full(&groups, number, [])));
    let mut looks = 0;
    let newest = groups.enter(
        hash(7),
        &7,
        Time::ZERO,
        |membership, _| (Entered::Armed(member(2), None), membership),
        |candidate, latest| {
            looks += 1;
            if latest < Time::MAX {
                return Judged::Touched(Time::from_nanos(latest.as_nanos() + 1));
            }
            let evicted = all[candidate.id.slot as usize].take();
            Judged::Evicted(evicted.expect("it is present"))
        },
    );
    assert!(newest.is_some());
    assert_eq!(
        looks, 7,
        "two looks for each member, and one without a comparison"
    );
    assert_eq!(groups.count(hash(7), &7), 2);
}

fn numbers_in_use(groups: &GroupIndex<u32>) -> usize {
    let shard = groups.shards[0].lock.lock();
    let numbers = 0..shard.groups.len();
    numbers
        .filter(|number| shard.group(*number).is_some())
        .count()
}

#[test]
fn after_a_peak_there_is_memory_up_to_the_last_group() {
    let groups = GroupIndex::with_shards(1, None, GroupFull::Refuse);
    for stays in [0, 1_000, 3_999] {
        let mut all: Vec<_> = (0..4_000).map(|n| enter(&groups, n, n)).collect();
        let left = all[stays].take();
        let place = left.as_ref().map(Membership::location).unwrap();
        let gone = all[0]
            .as_ref()
            .or(all[1].as_ref())
            .map(Membership::location);
        let gone_number = member(u32::from(stays == 0));
        drop(all);
        assert_eq!(numbers(&groups), 4_000);
        groups.shrink_to_fit();
        assert_eq!(numbers(&groups), stays as u32 + 1);
        assert_eq!(place.group_of(member(stays as u32)), Some(stays as u32));
        assert_eq!(gone.unwrap().group_of(gone_number), None);
        // The lowest free number is given out first.
        let next = [30_000, 30_001].map(|group| enter(&groups, group, group));
        let expected = [0, 1, 2].into_iter().filter(|n| *n != stays as u32);
        assert!(
            expected
                .take(2)
                .eq(next.iter().flatten().map(|own| own.group))
        );
        for group in [30_000, 30_001, stays as u32] {
            assert_eq!(groups.count(hash(group), &group), 1);
        }
        drop((left, next));
        groups.shrink_to_fit();
        let shard = groups.shards[0].lock.lock();
        assert_eq!((shard.groups.room(), shard.index.rows()), (0, 0));
    }
}

#[test]
fn places_are_used_again_and_members_are_sorted_by_stripe() {
    let groups = GroupIndex::new(None, GroupFull::Refuse);
    let mut all: Vec<_> = (0..100).map(|n| enter(&groups, 7, n)).collect();
    for round in 0..10 {
        for n in (round..100).step_by(7) {
            all[n] = None;
        }
        for n in (round..100).step_by(7) {
            all[n] = enter(&groups, 7, n as u32);
        }
    }
    let shard = groups.shard(hash(7)).lock.lock();
    let number = shard.find(hash(7), &7).unwrap();
    assert!(shard.group(number).unwrap().members.room() <= 256);
    drop(shard);
    let members = members(&groups, hash(7), &7);
    let mut expected: Vec<_> = (0..100).map(member).collect();
    expected.sort_unstable_by_key(|member| (member.stripe, member.id.slot));
    assert_eq!(members, expected);
    let memberships = all.into_iter().flatten();
    groups.leave_all(hash(7), memberships);
    assert_eq!(groups.count(hash(7), &7), 0);
}

/// A call for a whole group finds a member by the last of its ids, and forgets the moves when no
/// call needs them.
#[test]
fn a_call_for_a_group_follows_who_moves() {
    let groups = GroupIndex::with_shards(1, None, GroupFull::Refuse);
    let stays = [1, 2].map(|number| enter(&groups, 7, number).expect("it is not full"));
    let rename = |from, to| {
        let location = stays[0].location();
        location.rename(|| ((), Some([member(from), member(to)])));
    };
    let noted = || groups.shards[0].lock.lock().walks.noted();
    rename(1, 11);
    assert_eq!(noted(), 0, "nobody would ask");
    let first = groups.walk(hash(7), &7).expect("it has members");
    rename(11, 21);
    let second = groups.walk(hash(7), &7).expect("it has members");
    rename(21, 31);
    assert_eq!(noted(), 2);
    // All are missed at first, and 2 has not moved.
    let run = |walk: super::walk::Walk<'_, u32>| {
        let mut seen = Vec::new();
        let act = |_, portion: &[Member], missed: &mut Vec<Member>| {
            seen.push(portion.to_vec());
            missed.extend(portion);
        };
        walk.run(act, || ());
        let mut seen = seen.concat();
        seen.sort_unstable_by_key(|member| member.id.slot);
        seen
    };
    assert_eq!(run(second), [2, 21, 31].map(member));
    assert_eq!(noted(), 2, "the first one is under way");
    assert_eq!(run(first), [2, 11, 31].map(member));
    assert_eq!(noted(), 0);
    assert_eq!(members(&groups, hash(7), &7).len(), 2);
}
