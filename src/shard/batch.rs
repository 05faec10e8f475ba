//! Calls for many keys, or for many ids.
//!
//! Each item of a call has a stripe. The items are sorted by it once, so that one hold of a lock
//! serves several of them. A call also holds the locks of several stripes at a time: a *group*. A
//! processor executes some hundreds of instructions out of order, and about as many go from one
//! key's reads to the next one's. So their cache misses hardly overlap. A pass that only reads has
//! few instructions for each key. With 256 keys on 128 stripes, one lock covers only two keys. So
//! several locks are held at once, and a pass covers all of them.
//!
//! A group is served in these steps:
//!
//! 1. [`Groups::lock_next`] takes the locks.
//! 2. Passes read, and change nothing: [`Groups::find`], or [`Groups::prefetch`] for ids. A key's
//!    `Eq` is called here, and no other user code is called under the locks.
//! 3. [`Groups::each_at`] does the work, or [`Groups::arm_each`], or [`Groups::each`] for ids.
//! 4. [`Groups::release`] unlocks, and does the deferred actions.
//! 5. The caller drops what is left over, and arms one by one what has to be.

use std::borrow::Borrow;
use std::hint::black_box;

use super::{Admission, EntryId, KeyHash, ReentrancyGuard, Refusal, RunDeferred, Shards, Stripe};
use crate::sync::MutexGuard;
use crate::wheel::NO_ENTRY;

/// Greatest number of items that are served under one hold of the locks.
pub(crate) const ITEMS_PER_HOLD: usize = 64;

/// Greatest number of stripes whose locks are held at a time.
const STRIPES_PER_HOLD: usize = 16;

/// An item of a call for many: what is looked for, its stripe, and the position of its answer.
#[derive(Clone, Copy)]
pub(crate) struct Located<T> {
    pub(crate) item: T,
    stripe: u32,
    /// Position of the item in the caller's list.
    index: u32,
}

impl<T> Located<T> {
    /// Locates the item at position `index` of the caller's list.
    pub(crate) fn new(index: usize, stripe: usize, item: T) -> Self {
        Located {
            item,
            stripe: stripe as u32,
            index: index as u32,
        }
    }

    /// Returns the position of the item in the caller's list.
    #[inline]
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    pub(crate) fn stripe(&self) -> usize {
        self.stripe as usize
    }
}

/// A key that is looked up, and its hash.
pub(crate) struct Sought<'a, Q: ?Sized> {
    hash: KeyHash,
    key: &'a Q,
}

impl<Q: ?Sized> Clone for Sought<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for Sought<'_, Q> {}

/// Sorts keys by stripe, as [`by_stripe`] does. `hash_of` returns the stripe of a key and its hash.
pub(crate) fn keys_by_stripe<'a, Q: ?Sized>(
    stripes: usize,
    keys: impl IntoIterator<Item = &'a Q>,
    hash_of: impl Fn(&Q) -> (usize, KeyHash),
) -> Vec<Located<Sought<'a, Q>>> {
    let located = keys.into_iter().enumerate().map(|(index, key)| {
        let (stripe, hash) = hash_of(key);
        Located::new(index, stripe, Sought { hash, key })
    });
    by_stripe(stripes, located.collect())
}

/// Sorts items by stripe; `stripes` is the number of stripes. Items of one stripe stay in the
/// caller's order, so that two operations on one key are performed in it.
pub(crate) fn by_stripe<T: Copy>(stripes: usize, mut located: Vec<Located<T>>) -> Vec<Located<T>> {
    // With few items, counting over all stripes would take longer than a sort by comparison.
    if located.len() < stripes {
        located.sort_unstable_by_key(|located| (located.stripe, located.index));
        return located;
    }
    // A counting sort takes a quarter of the time of a sort by comparison.
    let mut next = vec![0; stripes];
    for located in &located {
        next[located.stripe()] += 1;
    }
    let mut before = 0;
    for next in &mut next {
        before += std::mem::replace(next, before);
    }
    let mut sorted = located.clone();
    for located in located {
        let next = &mut next[located.stripe()];
        sorted[*next] = located;
        *next += 1;
    }
    sorted
}

/// The slots in which the keys of a group are, in its order; `NO_ENTRY` for a key that is absent.
pub(crate) struct Slots([u32; ITEMS_PER_HOLD]);

/// The items of a group that were not armed under its locks.
#[derive(Default)]
pub(crate) struct NotArmed {
    /// Items that were refused, by their positions.
    pub(crate) refused: Vec<(usize, Refusal)>,
    /// Items that have to be armed one by one, in this order, before the next group.
    pub(crate) left: Vec<Located<KeyHash>>,
}

/// The items of a call that arms many keys. An item is named by its position.
pub(crate) trait ArmMany<K, V> {
    /// Returns the key of an item that has no answer yet.
    fn key(&self, index: usize) -> &K;

    /// Returns whether the entry in a slot is not to be replaced. Called under the stripe's lock.
    fn keeps(&self, stripe: &Stripe<K, V>, slot: u32) -> bool {
        let _ = (stripe, slot);
        false
    }

    /// Arms an item. Called under the stripe's lock, so it must not call user code.
    fn arm(&mut self, stripe: &mut Stripe<K, V>, admission: Admission, item: &Located<KeyHash>);

    /// Settles what was replaced under the last hold of the locks. Called without a lock.
    fn settle(&mut self);

    /// Answers an item that was refused. Called without a lock.
    fn refuse(&mut self, index: usize, refusal: Refusal);
}

/// A locked stripe and the items to be served under its lock.
struct LockedStripe<'s, 'p, K, V, T> {
    number: usize,
    stripe: MutexGuard<'s, Stripe<K, V>>,
    located: &'p [Located<T>],
}

/// Serves items that are sorted by stripe in groups, each under one hold of several stripes' locks.
///
/// STRIPE-1: the first lock of a group is waited for. Every further lock is only tried; if another
/// thread has it, the group ends before that stripe. So a call never waits while it holds a lock,
/// and no two calls wait for each other.
pub(crate) struct Groups<'s, 'p, K, V, O, T> {
    owner: &'s O,
    rest: &'p [Located<T>],
    per_stripe: usize,
    held: Vec<LockedStripe<'s, 'p, K, V, T>>,
    // Behind `held`, so that a panic drops it after the locks (DEFER-1).
    flag: Option<ReentrancyGuard>,
}

impl<'s, 'p, K, V, O: RunDeferred<K, V>, T> Groups<'s, 'p, K, V, O, T> {
    /// Begins with the first item. One hold of a lock serves at most `per_stripe` items.
    pub(crate) fn new(owner: &'s O, located: &'p [Located<T>], per_stripe: usize) -> Self {
        Groups {
            owner,
            rest: located,
            per_stripe,
            held: Vec::with_capacity(STRIPES_PER_HOLD),
            flag: None,
        }
    }

    /// Locks the stripes of the next group. Returns false at the end.
    #[inline]
    pub(crate) fn lock_next(&mut self) -> bool {
        debug_assert!(self.held.is_empty(), "the group before was released");
        if self.rest.is_empty() {
            return false;
        }
        let shards: &'s Shards<K, V> = self.owner.shards();
        let flag = self.flag.insert(shards.begin());
        let is_inert = flag.is_inert();
        // One group: as many stripes as can be locked without waiting, within the bounds on stripes
        // and on items.
        let mut room = ITEMS_PER_HOLD;
        while let Some(first) = self.rest.first()
            && room > 0
            && self.held.len() < STRIPES_PER_HOLD
        {
            let number = first.stripe();
            let stripe = if is_inert {
                if !self.held.is_empty() {
                    break;
                }
                shards.inert().lock()
            } else if self.held.is_empty() {
                shards.stripes[number].lock()
            } else if let Some(stripe) = shards.stripes[number].try_lock() {
                stripe
            } else {
                // Also if this group has the lock, and has served as many items as it may.
                break;
            };
            let same = self.rest.iter().take(room.min(self.per_stripe));
            let same = same.take_while(|located| located.stripe == first.stripe);
            let (located, others) = self.rest.split_at(same.count());
            room -= located.len();
            self.rest = others;
            self.held.push(LockedStripe {
                number,
                stripe,
                located,
            });
        }
        true
    }

    /// Unlocks the stripes of the group, and does their deferred actions.
    #[inline]
    pub(crate) fn release(&mut self) {
        // Nobody needs to be told of a stripe that stays empty.
        let is_inert = (self.flag.as_ref()).is_some_and(ReentrancyGuard::is_inert);
        let mut left = Vec::new();
        for LockedStripe { number, stripe, .. } in &mut self.held {
            if stripe.has_deferred() && !is_inert {
                left.push((*number, self.owner.shards().publish_due(*number, stripe)));
            }
        }
        // Due moments were stored under the locks; bells are rung without them (STRIPE-4).
        self.held.clear();
        for (number, deferred) in &left {
            self.owner.shards().ring(*number, deferred);
        }
        // Only now, because this runs the deferred drops, which may take long.
        drop(self.flag.take());
        for (number, deferred) in left {
            self.owner.run_deferred(number, deferred);
        }
    }

    /// Looks all keys of the group up.
    ///
    /// Each pass reads one thing for each key, with few instructions in between. The processor sees
    /// some hundred instructions ahead, so it fetches this thing for many keys at a time. A pass
    /// that did more for a key would wait more often.
    #[inline(never)]
    pub(crate) fn find_by<'k, Q>(
        &self,
        hash_of: impl Fn(&Located<T>) -> KeyHash,
        key_of: impl Fn(&Located<T>) -> &'k Q,
    ) -> Slots
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized + 'k,
    {
        let mut seen = 0;
        for held in &self.held {
            for located in held.located {
                seen += held.stripe.prefetch(hash_of(located));
            }
        }
        // Keeps the compiler from removing the reads of the first pass.
        black_box(seen);
        let mut slots = [NO_ENTRY; ITEMS_PER_HOLD];
        let mut all_slots = slots.iter_mut();
        for held in &self.held {
            let stripe = &*held.stripe;
            for (located, slot) in held.located.iter().zip(&mut all_slots) {
                *slot = stripe.candidate(hash_of(located));
            }
        }
        let mut all_slots = slots.iter_mut();
        for held in &self.held {
            let stripe = &*held.stripe;
            for (located, slot) in held.located.iter().zip(&mut all_slots) {
                if *slot == NO_ENTRY {
                    *slot = stripe.candidate_behind(hash_of(located));
                }
            }
        }
        let mut all_slots = slots.iter_mut();
        for held in &self.held {
            let stripe = &*held.stripe;
            for (located, slot) in held.located.iter().zip(&mut all_slots) {
                if *slot != NO_ENTRY && !stripe.is_at(*slot, key_of(located)) {
                    *slot = Self::search(stripe, hash_of(located), key_of(located));
                }
            }
        }
        Slots(slots)
    }

    /// Searches a key whose candidate is another key's slot: the bits are equal, or the line was
    /// removed.
    #[cold]
    #[inline(never)]
    fn search<Q>(stripe: &Stripe<K, V>, hash: KeyHash, key: &Q) -> u32
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        stripe.find(hash, key).unwrap_or(NO_ENTRY)
    }

    /// Reads the entries of the group's ids, so that their cache misses overlap.
    #[inline(never)]
    pub(crate) fn prefetch(&self, id_of: impl Fn(&Located<T>) -> EntryId) {
        let mut seen = 0_u32;
        for held in &self.held {
            for located in held.located {
                seen ^= held.stripe.prefetch_slot(id_of(located).slot);
            }
        }
        // Keeps the compiler from removing the reads.
        black_box(seen);
    }

    /// Calls `serve` with each item of the group, in order, and its stripe.
    #[inline]
    pub(crate) fn each(&mut self, mut serve: impl FnMut(&mut Stripe<K, V>, &Located<T>)) {
        for held in &mut self.held {
            for located in held.located {
                serve(&mut held.stripe, located);
            }
        }
    }

    /// Calls `serve` with each key that was found, in order, its stripe and its slot. What `serve`
    /// does may free a slot, and does not fill one.
    #[inline]
    pub(crate) fn each_at(
        &mut self,
        slots: &Slots,
        mut serve: impl FnMut(&mut Stripe<K, V>, u32, &Located<T>),
    ) {
        let mut slots = slots.0.iter();
        self.each(|stripe, located| {
            if let Some(slot) = slots.next()
                && *slot != NO_ENTRY
            {
                serve(stripe, *slot, located);
            }
        });
    }
}

impl<K, V, O: RunDeferred<K, V>> Groups<'_, '_, K, V, O, KeyHash> {
    /// Arms each item of the group that is admitted, in order. `slots` says which keys were present
    /// before.
    ///
    /// An item that would need more than its admission is left to be armed alone: if its key comes
    /// twice, or if there is no permit. So are those behind it in its stripe, which may have the
    /// same key.
    #[inline]
    pub(crate) fn arm_each(&mut self, slots: &Slots, items: &mut impl ArmMany<K, V>) -> NotArmed {
        let mut not_armed = NotArmed::default();
        let mut slots = slots.0.iter();
        for held in &mut self.held {
            let stripe = &mut *held.stripe;
            let mut one_by_one = false;
            for (at, (located, slot)) in held.located.iter().zip(&mut slots).enumerate() {
                let before = &held.located[..at];
                let is_first = || before.iter().all(|before| before.item != located.item);
                let admitted = match one_by_one {
                    true => None,
                    false => stripe.admit_found(located.item, *slot, is_first, |stripe| {
                        items.keeps(stripe, *slot)
                    }),
                };
                match admitted {
                    Some(Ok(admission)) => items.arm(stripe, admission, located),
                    None | Some(Err(Refusal::NoPermit)) => {
                        one_by_one = true;
                        not_armed.left.push(*located);
                    }
                    Some(Err(refusal)) => not_armed.refused.push((located.index(), refusal)),
                }
            }
        }
        not_armed
    }
}

impl<K, V, O: RunDeferred<K, V>, Q: Eq + ?Sized> Groups<'_, '_, K, V, O, Sought<'_, Q>>
where
    K: Borrow<Q>,
{
    /// Looks all keys of the group up before anything is changed, so that an `Eq` that panics
    /// leaves all stripes as they were.
    #[inline]
    pub(crate) fn find(&self) -> Slots {
        self.find_by(|located| located.item.hash, |located| located.item.key)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::{DeferredActions, Layout};
    use super::*;
    use crate::tick::{TickSize, Time};

    const STRIPES: usize = 32;

    fn shards() -> Shards<u64, u64> {
        let layout = Layout {
            shards: 2,
            stripes: STRIPES,
            tick: TickSize::from_nanos(1_000_000),
            now: Time::ZERO,
            backlog: 16,
            max_pending: None,
            paced: false,
            seed: 7,
        };
        Shards::new(&layout)
    }

    /// Tests have no deferred actions.
    impl RunDeferred<u64, u64> for Shards<u64, u64> {
        fn shards(&self) -> &Shards<u64, u64> {
            self
        }

        fn run_deferred(&self, stripe: usize, _: DeferredActions) {
            panic!("stripe {stripe} has deferred actions");
        }
    }

    /// Returns sorted places. The stripe of a key is the key modulo the number of stripes.
    fn located(keys: &[u64]) -> Vec<Located<Sought<'_, u64>>> {
        keys_by_stripe(STRIPES, keys, |key| {
            (*key as usize % STRIPES, KeyHash(*key))
        })
    }

    fn numbers<T>(groups: &Groups<'_, '_, u64, u64, Shards<u64, u64>, T>) -> Vec<usize> {
        groups.held.iter().map(|held| held.number).collect()
    }

    #[test]
    fn few_and_many_keys_are_sorted_alike() {
        for count in [0, 1, STRIPES as u64 - 1, STRIPES as u64, 300] {
            let keys: Vec<u64> = (0..count).map(|key| key * key % 97).collect();
            let located = located(&keys);
            assert_eq!(located.len(), keys.len());
            assert!(located.is_sorted_by_key(|located| (located.stripe, located.index)));
            for located in located {
                let key = keys[located.index()];
                assert_eq!((*located.item.key, located.item.hash), (key, KeyHash(key)));
                assert_eq!(located.stripe(), key as usize % STRIPES);
            }
        }
    }

    #[test]
    fn groups_are_bounded_and_serve_each_place_once_in_its_order() {
        let shards = shards();
        // Two keys for each stripe, and one stripe with more keys than a group holds.
        let keys: Vec<u64> = (0..64).chain([5; 150]).collect();
        let located = located(&keys);
        for per_stripe in [1, 3, ITEMS_PER_HOLD] {
            let mut served = Vec::new();
            let mut most = (0, 0);
            let mut groups = Groups::new(&shards, &located, per_stripe);
            while groups.lock_next() {
                assert!(numbers(&groups).is_sorted_by(|a, b| a < b));
                let before = served.len();
                let in_one = |held: &LockedStripe<'_, '_, _, _, _>| held.located.len();
                assert!(groups.held.iter().all(|held| in_one(held) <= per_stripe));
                groups.each(|_, located| served.push((located.stripe, located.index)));
                most.0 = most.0.max(groups.held.len());
                most.1 = most.1.max(served.len() - before);
                groups.release();
            }
            let all: Vec<_> = located.iter().map(|p| (p.stripe, p.index)).collect();
            assert_eq!(served, all);
            let most_items = if per_stripe == ITEMS_PER_HOLD {
                ITEMS_PER_HOLD
            } else {
                most.1
            };
            assert_eq!(most.1, most_items);
            assert!(most.0 > 1 || per_stripe == 1);
        }
    }

    #[test]
    fn a_lock_that_is_taken_is_waited_for_with_none_held() {
        let shards = shards();
        let keys: Vec<u64> = (0..8).collect();
        let (sent, groups) = mpsc::channel();
        thread::scope(|scope| {
            let taken = shards.stripes[3].lock();
            let (shards, keys) = (&shards, &keys);
            scope.spawn(move || {
                let located = located(keys);
                let mut groups = Groups::new(shards, &located, ITEMS_PER_HOLD);
                while groups.lock_next() {
                    sent.send(numbers(&groups)).expect("the receiver is alive");
                    groups.release();
                }
            });
            assert_eq!(groups.recv(), Ok(vec![0, 1, 2]));
            let began = Instant::now();
            while (0..3).any(|stripe| shards.stripes[stripe].try_lock().is_none()) {
                assert!(began.elapsed() < Duration::from_secs(60), "still locked");
                thread::yield_now();
            }
            drop(taken);
            assert_eq!(groups.recv(), Ok(vec![3, 4, 5, 6, 7]));
        });
    }

    #[test]
    fn what_is_called_under_the_locks_must_not_take_one_and_may_panic() {
        let shards = shards();
        let keys = [1, 2, 3];
        let located = located(&keys);
        let nested = AssertUnwindSafe(|| {
            let mut groups = Groups::new(&shards, &located, ITEMS_PER_HOLD);
            groups.lock_next();
            shards.peek(9, |_| ());
        });
        let panic = catch_unwind(nested).expect_err("the call takes a lock and panics");
        let message = panic.downcast_ref::<&str>().expect("a message");
        assert!(message.contains("run under a lock"), "{message}");
        // All locks are free again, and the thread may take locks.
        let mut served = 0;
        let mut groups = Groups::new(&shards, &located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            groups.each(|_, _| served += 1);
            groups.release();
        }
        assert_eq!(served, 3);
    }
}
