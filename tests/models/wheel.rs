//! The public wheel against an ordered map.
//!
//! The model knows when everything is due and nothing of slots; whatever the wheel's calls
//! answer, and what they hand out, must be what the map says.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tourbillon::wheel::{Expired, Key, Progress, Tick, Wheel};

/// Ticks in a turn of the wheel's top level.
const TURN: u64 = 1 << 36;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Due so many ticks from now; into the past if negative.
    Insert(i128),
    /// Of the live values the n-th, counted modulo their number.
    Remove(usize),
    Reschedule(usize, i128),
    /// By so many ticks, with this budget.
    Advance(u64, usize),
    /// To the next wake-up.
    Wake,
    /// To a tick before now.
    GoBack(u64),
}

struct Pair {
    wheel: Wheel<u32>,
    origin: u64,
    /// Due tick and number in order of insertion, to the key and the value.
    model: BTreeMap<(u64, u32), Key>,
    /// Keys that must answer nothing any more.
    stale: Vec<Key>,
    inserted: u32,
    /// The latest tick advanced to.
    target: u64,
    /// Whether the last advance left something over.
    more: bool,
}

impl Pair {
    fn new(start: u64, origin: u64) -> Pair {
        Pair {
            wheel: Wheel::with_origin(Tick::new(start), origin),
            origin,
            model: BTreeMap::new(),
            stale: Vec::new(),
            inserted: 0,
            target: start,
            more: false,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Insert(ahead) => {
                let due = self.tick(ahead);
                let key = self.wheel.insert(Tick::new(due), self.inserted);
                self.model.insert((due, self.inserted), key);
                self.inserted += 1;
            }
            Op::Remove(n) => {
                if let Some((entry, key)) = self.nth(n) {
                    assert_eq!(self.wheel.remove(key), Some(entry.1));
                    self.model.remove(&entry);
                    self.stale.push(key);
                }
            }
            Op::Reschedule(n, ahead) => {
                if let Some((entry, key)) = self.nth(n) {
                    let due = self.tick(ahead);
                    let before = self.wheel.reschedule(key, Tick::new(due));
                    assert_eq!(before, Some(Tick::new(entry.0)));
                    self.model.remove(&entry);
                    self.model.insert((due, entry.1), key);
                }
            }
            Op::Advance(by, budget) => {
                self.advance(self.target.saturating_add(by), budget);
            }
            Op::Wake => {
                if let Some(wake) = self.wheel.next_wake() {
                    self.advance(wake.get().max(self.target), usize::MAX);
                }
            }
            Op::GoBack(by) => {
                if let Some(earlier) = self.wheel.now().get().checked_sub(by)
                    && by > 0
                {
                    let progress = self.wheel.advance(Tick::new(earlier), usize::MAX, |_| {
                        panic!("nothing happens in the past")
                    });
                    assert!(!progress.more && progress.expired == 0);
                }
            }
        }
        self.check();
    }

    /// The tick so far from the target of the last advance, within what there is.
    fn tick(&self, ahead: i128) -> u64 {
        (i128::from(self.target) + ahead).clamp(0, i128::from(u64::MAX)) as u64
    }

    fn nth(&self, n: usize) -> Option<((u64, u32), Key)> {
        let n = n.checked_rem(self.model.len())?;
        self.model.iter().nth(n).map(|(&entry, &key)| (entry, key))
    }

    fn turn_of(&self, tick: u64) -> u64 {
        tick.saturating_sub(tick.wrapping_add(self.origin) % TURN)
    }

    fn advance(&mut self, to: u64, budget: usize) {
        let (begin, was_done) = (self.wheel.now().get(), !self.more);
        let mut fired = Vec::new();
        let progress = self
            .wheel
            .advance(Tick::new(to), budget, |expired| fired.push(expired));
        let Progress { expired, more, .. } = progress;
        assert_eq!(expired, fired.len());
        assert!(expired <= budget);
        for Expired {
            key, due, value, ..
        } in &fired
        {
            assert!(due.get() <= to, "never early");
            let removed = self.model.remove(&(due.get(), *value));
            assert_eq!(removed, Some(*key), "what was there, and once");
            self.stale.push(*key);
        }
        self.target = to;
        self.more = more;
        if more {
            assert!(self.wheel.now().get() <= to);
            assert!(self.wheel.next_wake().is_some_and(|wake| wake.get() <= to));
        } else {
            assert_eq!(self.wheel.now().get(), to);
            let left = self.model.keys().next();
            assert!(
                left.is_none_or(|&(due, _)| due > to),
                "late: {left:?} at {to}"
            );
        }
        if was_done && !more {
            // In order. What was past already counts as due now. What lay beyond the top level and
            // is overdue by a turn comes together, in front of the turn jumped into.
            let key = |expired: &Expired<u32>| {
                let due = expired.due.get().max(begin);
                let turn = self.turn_of(due);
                let skipped = turn > self.turn_of(begin) && turn < self.turn_of(to);
                if skipped { self.turn_of(to) } else { due }
            };
            assert!(fired.iter().is_sorted_by_key(key), "{fired:?}");
        }
    }

    /// Calls on until nothing is left over, in small portions.
    fn settle(&mut self, budget: usize) {
        for _ in 0..10_000 {
            self.advance(self.target, budget);
            self.check();
            if !self.more {
                return;
            }
        }
        panic!("the wheel never comes to an end");
    }

    fn check(&self) {
        assert_eq!(self.wheel.len(), self.model.len());
        assert_eq!(self.wheel.is_empty(), self.model.is_empty());
        let mut listed: Vec<_> = self
            .wheel
            .iter()
            .map(|(key, due, &value)| ((due.get(), value), key))
            .collect();
        listed.sort_unstable_by_key(|&(entry, _)| entry);
        assert!(
            listed
                .into_iter()
                .eq(self.model.iter().map(|(&entry, &key)| (entry, key)))
        );
        for (&(due, value), &key) in &self.model {
            assert_eq!(self.wheel.get(key), Some(&value));
            assert_eq!(self.wheel.due(key), Some(Tick::new(due)));
        }
        for &key in &self.stale {
            assert_eq!(self.wheel.get(key), None);
            assert_eq!(self.wheel.due(key), None);
        }
        let wake = self.wheel.next_wake().map(Tick::get);
        let first = self.model.keys().next().map(|&(due, _)| due);
        assert_eq!(wake.is_some(), first.is_some());
        if let (Some(wake), Some(first)) = (wake, first) {
            let now = self.wheel.now().get();
            assert!(wake >= now);
            assert!(wake <= first.max(now), "slept through");
        }
    }

    /// Everything comes out in the end.
    fn finish(mut self) {
        self.settle(3);
        self.advance(u64::MAX, 5);
        self.settle(5);
        assert!(self.wheel.is_empty());
        assert_eq!(self.wheel.next_wake(), None);
    }
}

fn starts() -> impl Strategy<Value = u64> {
    let near = prop::sample::select(vec![
        0,
        64,
        4_096,
        1 << 31,
        TURN,
        1 << 40,
        i64::MAX as u64,
        u64::MAX - TURN,
        u64::MAX - 5_000,
        u64::MAX,
    ]);
    prop_oneof![
        (near, 0..3_u64, any::<bool>()).prop_map(|(near, by, down)| {
            if down {
                near.saturating_sub(by)
            } else {
                near.saturating_add(by)
            }
        }),
        any::<u64>(),
    ]
}

fn origins() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        (0..1_u64 << 24).prop_map(|n| n * 4_096),
        Just(TURN / 2),
        Just(u64::MAX),
        any::<u64>(),
    ]
}

/// Of every magnitude, and often at the border of a level.
fn distance() -> impl Strategy<Value = u64> {
    let border = (0..=7_u32, 1..4_u64, 0..3_u64)
        .prop_map(|(level, turns, off)| ((turns << (6 * level)) + off).saturating_sub(1));
    prop_oneof![
        4 => 0..200_u64,
        4 => border,
        3 => (0..44_u32, any::<u64>()).prop_map(|(bits, n)| n % (1 << bits)),
        1 => any::<u64>(),
    ]
}

fn signed_distance() -> impl Strategy<Value = i128> {
    prop_oneof![
        8 => distance().prop_map(i128::from),
        1 => distance().prop_map(|d| -i128::from(d)),
        1 => Just(i128::from(u64::MAX)),
    ]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => signed_distance().prop_map(Op::Insert),
        2 => any::<usize>().prop_map(Op::Remove),
        4 => (any::<usize>(), signed_distance()).prop_map(|(n, d)| Op::Reschedule(n, d)),
        3 => (distance(), 0..6_usize).prop_map(|(by, budget)| Op::Advance(by, budget)),
        3 => distance().prop_map(|by| Op::Advance(by, usize::MAX)),
        1 => Just(Op::Wake),
        1 => distance().prop_map(Op::GoBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn c032_random_calls_agree_with_an_ordered_map(
        start in starts(),
        origin in origins(),
        ops in prop::collection::vec(ops(), 1..60),
    ) {
        // c025 c028 c029 c038 c145
        let mut pair = Pair::new(start, origin);
        for op in ops {
            pair.apply(op);
        }
        pair.finish();
    }

    /// Many values in few slots, so that slots are drained and cascaded in several portions.
    #[test]
    fn c039_crowded_slots_agree_with_an_ordered_map(
        start in starts(),
        origin in origins(),
        crowds in prop::collection::vec((distance(), 1..150_usize), 1..4),
        ops in prop::collection::vec(ops(), 1..15),
    ) {
        let mut pair = Pair::new(start, origin);
        for (ahead, count) in crowds {
            for n in 0..count {
                let due = pair.tick(i128::from(ahead) + n as i128 % 3);
                let key = pair.wheel.insert(Tick::new(due), pair.inserted);
                pair.model.insert((due, pair.inserted), key);
                pair.inserted += 1;
            }
        }
        pair.check();
        for op in ops {
            pair.apply(op);
        }
        pair.settle(40);
        pair.advance(u64::MAX, usize::MAX);
        prop_assert!(pair.wheel.is_empty());
    }
}

/// All sequences of a few calls, from starts where the levels begin and end.
#[test]
fn small_sequences_agree_with_an_ordered_map() {
    const OPS: [Op; 9] = [
        Op::Insert(0),
        Op::Insert(1),
        Op::Insert(65),
        Op::Insert(4_097),
        Op::Remove(0),
        Op::Reschedule(0, 2),
        Op::Reschedule(1, 70),
        Op::Advance(1, 1),
        Op::Advance(64, usize::MAX),
    ];
    for (start, origin, length) in [(63, 4_096 * 5, 5), (0, 0, 4), (u64::MAX - 66, 1, 4)] {
        for sequence in 0..OPS.len().pow(length) {
            let mut pair = Pair::new(start, origin);
            let mut rest = sequence;
            for _ in 0..length {
                pair.apply(OPS[rest % OPS.len()]);
                rest /= OPS.len();
            }
            pair.settle(1);
            pair.advance(u64::MAX, usize::MAX);
            assert!(pair.wheel.is_empty());
        }
    }
}

/// Four values at the borders of the top level, in every order of insertion and with every one of
/// them removed or moved.
#[test]
fn c021_small_sequences_beyond_the_top_level() {
    const FAR: [u64; 4] = [TURN - 1, TURN, TURN + 1, 3 * TURN];
    let orders = (0..256_usize).map(|n| [n % 4, n / 4 % 4, n / 16 % 4, n / 64]);
    for (start, origin) in [
        (0, 0),
        (1, TURN / 2),
        (TURN - 1, 1),
        (u64::MAX - 2 * TURN, TURN / 2),
    ] {
        for order in orders.clone() {
            for op in [
                Op::Remove(1),
                Op::Reschedule(0, 5),
                Op::Reschedule(2, i128::from(TURN)),
            ] {
                for jump in [1, TURN - 1, TURN, 4 * TURN] {
                    let mut pair = Pair::new(start, origin);
                    for n in order {
                        pair.apply(Op::Insert(i128::from(FAR[n])));
                    }
                    pair.apply(op);
                    pair.apply(Op::Wake);
                    pair.apply(Op::Advance(jump, 2));
                    pair.apply(op);
                    pair.finish();
                }
            }
        }
    }
}
