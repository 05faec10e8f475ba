//! Groups of a map: an insertion into a group, versus the removal of the whole group, versus
//! expiry. If a thread has seen an inserted entry, a later removal finds it, too. No entry that has
//! ended stays in a group. `expiry/groups.rs` has the rules.
//!
//! Teeth:
//! - `teeth/groups-note-the-id-in-a-second-hold.patch`
//! - `teeth/groups-take-whatever-is-in-the-slot.patch`

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::engine::{Engine, Frontend, RunInfo, Server, TickerState, TickerStep};
use crate::executor::Worker;
use crate::groups::{Entered, GroupIndex, Membership};
use crate::members::Member;
use crate::rig::{START, Size, at, hash};
use crate::sync::Arc;
use crate::tick::Time;

const FAR: u64 = START + 1_000;

/// A map without values. An entry has only a group, which is a number.
struct Crowd {
    groups: GroupIndex<u32>,
    delivered: Count,
}

type Tag = Option<Membership<u32>>;

impl Frontend for Crowd {
    type Key = u32;
    type Payload = Tag;
    type Access = Arc<Engine<Crowd>>;

    fn access(engine: &Arc<Engine<Crowd>>) -> Arc<Engine<Crowd>> {
        Arc::clone(engine)
    }

    fn run(engine: &Arc<Engine<Crowd>>, _: &RunInfo<'_, u32>, tag: Tag) {
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
        let (parts, _hand) = Size::default().parts();
        let crowd = Crowd {
            groups: GroupIndex::with_shards(1, None),
            delivered: Count::new(0),
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

    /// Inserts an entry. Returns whether it replaced another one.
    fn insert_in(&self, group: u32, key: u32, deadline: Time) -> bool {
        let now = self.engine().now();
        let given = Cell::new(None);
        let entered = self.groups().enter(hash(group), &group, |membership, _| {
            given.set(Some(membership));
            let admitted = (self.engine()).admit(0, |stripe| stripe.admit(hash(key), &key, false));
            let (mut stripe, admission) = admitted.expect("it is open, and unbounded");
            let arming = stripe.arm(admission, hash(key), key, given.take(), deadline, now);
            drop(stripe);
            let id = arming.id;
            let left = arming.dropped.1;
            let replaced = left.is_some();
            let member = Member { stripe: 0, id };
            (Entered::Armed(member, left.flatten()), replaced)
        });
        entered.expect("there are numbers")
    }

    fn remove_group(&self, group: u32) -> usize {
        let mut taken = Vec::new();
        for member in self.groups().members(hash(group), &group) {
            self.engine().with(0, |stripe| {
                taken.extend(stripe.take_pending_payload(member.id));
            });
        }
        let count = taken.len();
        let tags = taken.into_iter().filter_map(|(_, tag)| tag);
        self.groups().leave_all(hash(group), tags);
        count
    }

    fn contains(&self, key: u32) -> bool {
        (self.engine().shards()).peek(0, |stripe| stripe.get(hash(key), &key).is_some())
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
            let listed = self.groups().members(hash(*group), group);
            assert_eq!(listed.len(), self.groups().count(hash(*group), group));
            members += listed.len();
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
