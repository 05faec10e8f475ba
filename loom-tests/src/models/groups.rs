//! Groups of a map: an insertion into a group, versus the removal of the whole group, versus
//! expiry. If a thread has seen an inserted entry, a later removal finds it, too. No entry that has
//! ended stays in a group. `expiry/groups/` has the rules.
//!
//! An insertion that evicts, versus a touch, a removal, a delivery and another insertion: every
//! entry has one end, no group is ever too large, and a touch that finds its entry alive saves it.
//! `expiry/eviction.rs` has the rules.
//!
//! An entry that gets another key, versus the removal of its group, lookups, and another one that
//! goes the other way: it is found at each moment and removed once, and nobody waits for ever.
//! `expiry/walks.rs` and `shard/pair.rs` have the rules.
//!
//! Teeth:
//! - `teeth/groups-count-who-has-ended.patch`
//! - `teeth/groups-evict-in-a-second-hold.patch`
//! - `teeth/groups-evict-who-was-touched.patch`
//! - `teeth/groups-miss-who-has-moved.patch`
//! - `teeth/groups-note-the-id-in-a-second-hold.patch`
//! - `teeth/groups-rank-who-has-moved-by-the-old-id.patch`
//! - `teeth/groups-take-whatever-is-in-the-slot.patch`
//! - `teeth/pair-wait-for-the-second-lock.patch`

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::engine::{Engine, Frontend, FrontendTypes, RunInfo, Server, TickerState};
use crate::eviction::{GroupFull, Judged};
use crate::executor::Worker;
use crate::groups::{Entered, GroupIndex, Membership};
use crate::members::Member;
use crate::rig::{START, Size, at, hash};
use crate::shard::{KeyHash, Stripe};
use crate::sync::Arc;
use crate::tag::{GroupTag, Tag as _};
use crate::tick::Time;

const FAR: u64 = START + 1_000;

/// The first key of the second stripe, if there are two.
const OTHER: u32 = 1 << 8;

/// Returns the hash of a key, which chooses the stripe by its high bits.
fn place(key: u32) -> KeyHash {
    KeyHash(u64::from(key % OTHER) | u64::from(key / OTHER) << 48)
}

/// A map without values. An entry has only a group, which is a number.
struct Crowd {
    groups: GroupIndex<u32>,
    delivered: Count,
    /// One bit for each key that was delivered as evicted.
    evicted: Count,
}

type Tag = GroupTag<u32>;

impl FrontendTypes for Crowd {
    type Key = u32;
    type Payload = Tag;
    type Access = Arc<Engine<Crowd>>;
}

impl Frontend for Crowd {
    fn access(engine: &Arc<Engine<Crowd>>) -> Arc<Engine<Crowd>> {
        Arc::clone(engine)
    }

    fn run(engine: &Arc<Engine<Crowd>>, info: &RunInfo<'_, u32>, tag: Tag) {
        if tag.is_evicted() {
            engine.frontend.evicted.fetch_add(1 << info.key, Relaxed);
        }
        drop(tag);
        engine.frontend.delivered.fetch_add(1, Relaxed);
    }

    fn panicked(_: &Arc<Engine<Crowd>>, _: &RunInfo<'_, u32>, message: &str) {
        panic!("{message}");
    }
}

#[derive(Clone)]
struct Map(Arc<Server<Crowd>>);

impl Map {
    fn new() -> (Map, TickerState) {
        Map::with(None, GroupFull::Refuse)
    }

    fn with(most: Option<usize>, when_full: GroupFull) -> (Map, TickerState) {
        Map::of(1, most, when_full)
    }

    fn of(stripes: usize, most: Option<usize>, when_full: GroupFull) -> (Map, TickerState) {
        let size = Size {
            stripes,
            ..Size::default()
        };
        let (parts, _hand) = size.parts();
        let crowd = Crowd {
            groups: GroupIndex::with_shards(1, most, when_full),
            delivered: Count::new(0),
            evicted: Count::new(0),
        };
        let (server, mut ticker_states) = Engine::assemble(parts, crowd);
        (Map(server), ticker_states.pop().expect("one shard"))
    }

    fn engine(&self) -> &Arc<Engine<Crowd>> {
        self.0.engine()
    }

    fn groups(&self) -> &GroupIndex<u32> {
        &self.engine().frontend.groups
    }

    fn delivered(&self) -> usize {
        self.engine().frontend.delivered.load(Relaxed)
    }

    /// Inserts an entry in no group.
    fn insert(&self, key: u32) {
        let number = self.engine().shards().stripe_of(place(key));
        let admit = |stripe: &mut Stripe<u32, Tag>| stripe.admit(place(key), &key, false);
        let admitted = self.engine().admit(number, admit);
        let (mut stripe, admission) = admitted.expect("it is open, and unbounded");
        let (far, now) = (at(FAR), self.engine().now());
        let _ = stripe.arm(admission, place(key), key, Tag::default(), far, now);
    }

    /// Inserts an entry. Returns whether it replaced another one.
    fn insert_in(&self, group: u32, key: u32, deadline: Time) -> bool {
        let now = self.engine().now();
        let number = self.engine().shards().stripe_of(place(key));
        let given = Cell::new(None);
        let arm = |membership, _| {
            given.set(Some(GroupTag::new(membership, now)));
            let admitted =
                (self.engine()).admit(number, |stripe| stripe.admit(place(key), &key, false));
            let (mut stripe, admission) = admitted.expect("it is open, and unbounded");
            let tag = given.take().expect("it is armed once");
            let arming = stripe.arm(admission, place(key), key, tag, deadline, now);
            drop(stripe);
            let id = arming.id;
            let mut left = arming.dropped.1;
            let replaced = left.is_some();
            let member = Member {
                stripe: number as u32,
                id,
            };
            let left = left.as_mut().and_then(|tag| tag.membership.take());
            (Entered::Armed(member, left), replaced)
        };
        let evict = |member: Member, latest| self.evict(member, latest);
        let entered = self.groups().enter(hash(group), &group, now, arm, evict);
        entered.expect("there are numbers")
    }

    fn evict(&self, member: Member, latest: Time) -> Judged<Membership<u32>> {
        let now = self.engine().now();
        self.engine().with(0, |stripe| {
            let Some(slot) = stripe.pending_slot(member.id) else {
                return Judged::Ended;
            };
            let (tag, _) = stripe.pending_payload_mut(slot).expect("it is pending");
            let judged = tag.evict(latest, true);
            if matches!(judged, Judged::Evicted(_)) {
                let _ = stripe.reschedule_slot(slot, now, now, true);
            }
            judged
        })
    }

    /// Touches an entry. Returns whether it lives on.
    fn touch(&self, key: u32, now: Time) -> bool {
        self.engine().with(0, |stripe| {
            let slot = stripe.find(place(key), &key);
            let tag = slot.and_then(|slot| stripe.pending_payload_mut(slot));
            tag.is_some_and(|(tag, _)| {
                let lives = !tag.is_evicted();
                if lives {
                    tag.touch(now);
                }
                lives
            })
        })
    }

    fn evicted(&self) -> usize {
        self.engine().frontend.evicted.load(Relaxed)
    }

    fn count(&self) -> usize {
        self.groups().count(hash(7), &7)
    }

    fn remove_group(&self, group: u32) -> usize {
        let mut taken = Vec::new();
        let act = |number, portion: &[Member], missed: &mut Vec<_>| {
            for member in portion {
                let found = self
                    .engine()
                    .with(number, |stripe| stripe.take_pending_payload(member.id));
                match found {
                    Some(pair) => taken.push(pair),
                    None => missed.push(*member),
                }
            }
        };
        if let Some(walk) = self.groups().walk(hash(group), &group) {
            walk.run(act, || ());
        }
        let count = taken.len();
        let tags = taken
            .into_iter()
            .filter_map(|(_, mut tag)| tag.membership.take());
        self.groups().leave_all(hash(group), tags);
        count
    }

    fn contains(&self, key: u32) -> bool {
        let shards = self.engine().shards();
        shards.peek(shards.stripe_of(place(key)), |stripe| {
            stripe.get(place(key), &key).is_some()
        })
    }

    /// Gives an entry another key, which has none. Returns whether it was there.
    fn rename(&self, old: u32, new: u32) -> bool {
        let shards = self.engine().shards();
        let [from, to] = [old, new].map(|key| shards.stripe_of(place(key)));
        loop {
            let location = shards.peek(from, |stripe| {
                let (tag, _) = stripe.pending_payload(stripe.find(place(old), &old)?)?;
                tag.location()
            });
            let attempt = || {
                self.engine().with_pair([from, to], |one, other| {
                    let found = one.find(place(old), &old).and_then(|slot| {
                        let (tag, _) = one.pending_payload(slot)?;
                        Some((slot, tag.is_at(location.as_ref())))
                    });
                    let slot = match found {
                        None => return (Some(false), None),
                        Some((_, false)) => return (None, None),
                        Some((slot, true)) => slot,
                    };
                    let target = other.as_deref().unwrap_or(one);
                    let admission = target.admit_moved(place(new), &new, true);
                    let admission = admission.expect("it is open, and the key is free");
                    let before = one.pending_id(slot).expect("it is pending");
                    let (_, deadline, tag) = one.move_out(slot).expect("it is pending");
                    let target = other.unwrap_or(one);
                    let arming =
                        target.move_in(admission, place(new), new, tag, deadline, at(START));
                    let ids = [(from, before), (to, arming.id)];
                    let ids = ids.map(|(stripe, id)| Member {
                        stripe: stripe as u32,
                        id,
                    });
                    (Some(true), Some(ids))
                })
            };
            let answer = match &location {
                Some(location) => Tag::rename_at(location, attempt),
                None => attempt().0,
            };
            if let Some(renamed) = answer {
                return renamed;
            }
        }
    }

    fn worker(&self) -> Worker {
        self.engine().pool().take_slot().expect("a free seat")
    }

    fn serve(&self, worker: &mut Worker) {
        while worker.step(self.0.as_ref()) {}
    }

    /// Checks that the groups list exactly the entries of the map.
    fn is_whole(&self, groups: &[u32]) {
        let mut members = 0;
        for group in groups {
            let mut listed = 0;
            if let Some(walk) = self.groups().walk(hash(*group), group) {
                walk.run(|_, portion, _| listed += portion.len(), || ());
            }
            assert_eq!(listed, self.groups().count(hash(*group), group));
            members += listed;
        }
        assert_eq!(members, self.engine().pending());
    }
}

#[test]
fn a_removal_finds_what_was_seen_before_it() {
    check(3, || {
        let (map, _seat) = Map::new();
        let inserter = map.clone();
        let inserter = thread::spawn(move || inserter.insert_in(7, 0, at(FAR)));
        let seen = map.contains(0);
        let removed = map.remove_group(7);
        inserter.join().unwrap();
        assert!(removed == 1 || !seen, "seen, and not found");
        assert_eq!(map.contains(0), removed == 0);
        map.is_whole(&[7]);
    });
}

#[test]
fn who_is_delivered_at_once_is_not_in_the_group() {
    check(3, || {
        let (map, _seat) = Map::new();
        map.insert_in(7, 0, at(FAR));
        let mut worker = map.worker();
        let server = map.clone();
        let server = thread::spawn(move || {
            server.serve(&mut worker);
            worker
        });
        map.insert_in(7, 1, at(START));
        let mut worker = server.join().unwrap();
        map.serve(&mut worker);
        assert_eq!(map.delivered(), 1);
        assert_eq!(map.groups().count(hash(7), &7), 1);
        map.is_whole(&[7]);
    });
}

#[test]
fn a_removal_takes_what_is_not_delivered() {
    check(3, || {
        let (map, _seat) = Map::new();
        map.insert_in(7, 0, at(START));
        let mut worker = map.worker();
        let server = map.clone();
        let server = thread::spawn(move || {
            server.serve(&mut worker);
        });
        let removed = map.remove_group(7);
        server.join().unwrap();
        assert_eq!(removed + map.delivered(), 1);
        assert_eq!(map.groups().count(hash(7), &7), 0);
        map.is_whole(&[7]);
    });
}

#[test]
fn who_moves_is_removed_with_one_group_at_most() {
    check(3, || {
        let (map, _seat) = Map::new();
        map.insert_in(7, 0, at(FAR));
        let mover = map.clone();
        let mover = thread::spawn(move || mover.insert_in(8, 0, at(FAR)));
        let removed = [7, 8].map(|group| map.remove_group(group));
        let replaced = mover.join().unwrap();
        // The entry was replaced in the first group or removed with it. Then it is in the second
        // group or was removed with that.
        assert_eq!(removed[0] == 0, replaced);
        assert_eq!(map.contains(0), removed[1] == 0);
        map.is_whole(&[7, 8]);
    });
}

const OLDEST: GroupFull = GroupFull::EvictOldest;
const LEAST_RECENT: GroupFull = GroupFull::EvictLeastRecentlyTouched;

#[test]
fn a_touch_saves_its_entry_or_finds_it_dead() {
    check(3, || {
        let (map, _seat) = Map::with(Some(2), LEAST_RECENT);
        map.insert_in(7, 0, at(FAR));
        map.insert_in(7, 1, at(FAR));
        let toucher = map.clone();
        let toucher = thread::spawn(move || toucher.touch(0, at(START + 5)));
        map.insert_in(7, 2, at(FAR));
        let saved = toucher.join().unwrap();
        map.serve(&mut map.worker());
        assert_eq!(map.evicted(), if saved { 1 << 1 } else { 1 << 0 });
        assert_eq!((map.delivered(), map.count()), (1, 2));
        map.is_whole(&[7]);
    });
}

#[test]
fn who_is_removed_is_not_evicted() {
    check(3, || {
        let (map, _seat) = Map::with(Some(1), OLDEST);
        map.insert_in(7, 0, at(FAR));
        let remover = map.clone();
        let remover = thread::spawn(move || {
            let id = remover.engine().shards().peek(0, |stripe| {
                let slot = stripe.find(hash(0), &0)?;
                stripe.pending_id(slot)
            });
            let taken = id.and_then(|id| {
                (remover.engine()).with(0, |stripe| stripe.take_pending_payload(id))
            });
            usize::from(taken.is_some())
        });
        map.insert_in(7, 1, at(FAR));
        assert_eq!(map.count(), 1, "whoever has not left yet");
        let removed = remover.join().unwrap();
        map.serve(&mut map.worker());
        assert_eq!(removed + map.delivered(), 1);
        assert_eq!(map.evicted(), map.delivered());
        map.is_whole(&[7]);
    });
}

#[test]
fn who_is_delivered_is_not_evicted_too() {
    check(3, || {
        let (map, _seat) = Map::with(Some(1), OLDEST);
        map.insert_in(7, 0, at(START));
        let mut worker = map.worker();
        let server = map.clone();
        let server = thread::spawn(move || {
            server.serve(&mut worker);
            worker
        });
        map.insert_in(7, 1, at(FAR));
        assert_eq!(map.count(), 1, "whoever has not left yet");
        let mut worker = server.join().unwrap();
        map.serve(&mut worker);
        assert_eq!((map.delivered(), map.count()), (1, 1));
        map.is_whole(&[7]);
    });
}

#[test]
fn insertions_that_evict_leave_one_entry_each_time() {
    check(3, || {
        let (map, _seat) = Map::with(Some(1), OLDEST);
        let other = map.clone();
        let other = thread::spawn(move || {
            other.insert_in(7, 0, at(FAR));
            assert_eq!(other.count(), 1);
        });
        map.insert_in(7, 1, at(FAR));
        assert_eq!(map.count(), 1);
        other.join().unwrap();
        map.serve(&mut map.worker());
        assert_eq!((map.delivered(), map.evicted().count_ones()), (1, 1));
        map.is_whole(&[7]);
    });
}

#[test]
fn who_is_renamed_is_removed_with_its_group() {
    for new in [1, OTHER] {
        check(3, move || {
            let (map, _seat) = Map::of(2, None, GroupFull::Refuse);
            map.insert_in(7, 0, at(FAR));
            let renamer = map.clone();
            let renamer = thread::spawn(move || renamer.rename(0, new));
            assert_eq!(map.remove_group(7), 1);
            renamer.join().unwrap();
            assert!(!map.contains(0) && !map.contains(new));
            map.is_whole(&[7]);
        });
    }
}

#[test]
fn who_is_renamed_is_found_by_either_key() {
    check(3, || {
        let (map, _seat) = Map::of(2, None, GroupFull::Refuse);
        map.insert_in(7, 0, at(FAR));
        let renamer = map.clone();
        let renamer = thread::spawn(move || assert!(renamer.rename(0, OTHER)));
        assert!(map.contains(0) || map.contains(OTHER));
        renamer.join().unwrap();
        assert!(!map.contains(0) && map.contains(OTHER));
        map.is_whole(&[7]);
    });
}

#[test]
fn those_who_go_both_ways_do_not_wait_for_each_other() {
    check(3, || {
        let (map, _seat) = Map::of(2, None, GroupFull::Refuse);
        // In no group: the lock of a group would keep them apart.
        map.insert(0);
        map.insert(OTHER);
        let other = map.clone();
        let other = thread::spawn(move || assert!(other.rename(OTHER, 1)));
        assert!(map.rename(0, OTHER + 1));
        other.join().unwrap();
        assert!(map.contains(1) && map.contains(OTHER + 1));
    });
}

#[test]
fn an_eviction_finds_who_is_renamed() {
    check(3, || {
        let (map, _seat) = Map::with(Some(1), OLDEST);
        map.insert_in(7, 0, at(FAR));
        let renamer = map.clone();
        let renamer = thread::spawn(move || renamer.rename(0, 2));
        map.insert_in(7, 1, at(FAR));
        assert_eq!(map.count(), 1);
        renamer.join().unwrap();
        map.serve(&mut map.worker());
        assert_eq!((map.delivered(), map.evicted().count_ones()), (1, 1));
        map.is_whole(&[7]);
    });
}
