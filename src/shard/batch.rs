//! Calls for many keys.
//!
//! The keys are sorted by stripe once, so that one hold of a lock serves several of them. A call
//! can also hold the locks of several stripes at a time. A processor executes some hundreds of
//! instructions out of order, and about as many go from one key's reads to the next one's. So their
//! cache misses hardly overlap. A pass that only reads has few instructions for each key. With 256
//! keys on 128 stripes, one lock covers only two keys. So several locks are held at once, and a
//! pass covers all of them.

use std::borrow::Borrow;
use std::hint::black_box;

use super::{DeferredActions, KeyHash, ReentrancyGuard, Shards, Stripe};
use crate::sync::MutexGuard;
use crate::wheel::NO_ENTRY;

/// Greatest number of keys that are served under one hold of a lock.
pub(crate) const KEYS_PER_HOLD: usize = 64;

/// A key with its stripe, its hash and the position of its answer.
pub(crate) struct LocatedKey<'a, Q: ?Sized> {
    key: &'a Q,
    stripe: u32,
    /// Position of the key in the caller's list.
    pub(crate) index: u32,
    hash: KeyHash,
}

impl<Q: ?Sized> Clone for LocatedKey<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for LocatedKey<'_, Q> {}

/// Sorts the keys by stripe; `stripes` is the number of stripes. Keys of one stripe stay in the
/// caller's order, so that two operations on one key are performed in it.
pub(crate) fn by_stripe<'a, Q: ?Sized>(
    stripes: usize,
    keys: impl IntoIterator<Item = &'a Q>,
    hash_of: impl Fn(&Q) -> (usize, KeyHash),
) -> Vec<LocatedKey<'a, Q>> {
    let mut located: Vec<_> = keys
        .into_iter()
        .enumerate()
        .map(|(index, key)| {
            let (stripe, hash) = hash_of(key);
            LocatedKey {
                key,
                stripe: stripe as u32,
                index: index as u32,
                hash,
            }
        })
        .collect();
    // With few keys, counting over all stripes would take longer than a sort by comparison.
    if located.len() < stripes {
        located.sort_unstable_by_key(|located_key| (located_key.stripe, located_key.index));
        return located;
    }
    // A counting sort takes a quarter of the time of a sort by comparison.
    let mut next = vec![0; stripes];
    for located_key in &located {
        next[located_key.stripe as usize] += 1;
    }
    let mut before = 0;
    for next in &mut next {
        before += std::mem::replace(next, before);
    }
    let mut sorted = located.clone();
    for located_key in located {
        let next = &mut next[located_key.stripe as usize];
        sorted[*next] = located_key;
        *next += 1;
    }
    sorted
}

/// Calls `serve` with a stripe and up to `per_hold` of its keys at a time.
pub(crate) fn portions<'a, Q: ?Sized>(
    located: &[LocatedKey<'a, Q>],
    per_hold: usize,
    mut serve: impl FnMut(usize, &[LocatedKey<'a, Q>]),
) {
    for same_stripe in located.chunk_by(|a, b| a.stripe == b.stripe) {
        for portion in same_stripe.chunks(per_hold) {
            serve(portion[0].stripe as usize, portion);
        }
    }
}

/// Looks all keys of a portion up before anything is changed, so that an `Eq` that panics leaves
/// the stripe as it was.
///
/// If a slot is found twice, the first of two cancellations frees it, and it stays free while the
/// lock is held.
pub(crate) fn find_all<K, V, Q>(
    stripe: &Stripe<K, V>,
    located: &[LocatedKey<'_, Q>],
    slots: &mut Vec<Option<u32>>,
) where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    slots.clear();
    slots.extend(
        located
            .iter()
            .map(|located_key| stripe.find(located_key.hash, located_key.key)),
    );
}

/// Greatest number of stripes whose locks are held at a time.
const STRIPES_PER_HOLD: usize = 16;

/// A locked stripe and the keys to be served under its lock.
struct LockedStripe<'s, 'p, 'k, K, V, Q: ?Sized> {
    number: usize,
    stripe: MutexGuard<'s, Stripe<K, V>>,
    located: &'p [LocatedKey<'k, Q>],
}

/// Stripes whose locks are held at the same time, with the keys that are served under them.
pub(crate) struct LockedStripes<'g, 's, 'p, 'k, K, V, Q: ?Sized>(
    &'g mut [LockedStripe<'s, 'p, 'k, K, V, Q>],
);

impl<K, V, Q: ?Sized> LockedStripes<'_, '_, '_, '_, K, V, Q> {
    /// Looks all keys up before anything is changed, like the function [`find_all`], and then calls
    /// `serve` with each key that was found, in order, its stripe and its slot.
    #[inline]
    pub(crate) fn each_found(
        &mut self,
        mut serve: impl FnMut(&mut Stripe<K, V>, u32, &LocatedKey<'_, Q>),
    ) where
        K: Borrow<Q>,
        Q: Eq,
    {
        let mut slots = [NO_ENTRY; KEYS_PER_HOLD];
        self.find_slots(&mut slots);
        let mut slots = slots.iter();
        for held in &mut *self.0 {
            let stripe = &mut *held.stripe;
            for (located_key, slot) in held.located.iter().zip(&mut slots) {
                if *slot != NO_ENTRY {
                    serve(stripe, *slot, located_key);
                }
            }
        }
    }

    /// Writes the slot of each key, or `NO_ENTRY`.
    ///
    /// Each pass reads one thing for each key, with few instructions in between. The processor sees
    /// some hundred instructions ahead, so it fetches this thing for many keys at a time. A pass
    /// that did more for a key would wait more often.
    #[inline(never)]
    fn find_slots(&self, slots: &mut [u32; KEYS_PER_HOLD])
    where
        K: Borrow<Q>,
        Q: Eq,
    {
        let mut seen = 0;
        for held in &*self.0 {
            for located_key in held.located {
                seen += held.stripe.prefetch(located_key.hash);
            }
        }
        // Keeps the compiler from removing the reads of the first pass.
        black_box(seen);
        let mut all_slots = slots.iter_mut();
        for held in &*self.0 {
            let stripe = &*held.stripe;
            for (located_key, slot) in held.located.iter().zip(&mut all_slots) {
                *slot = stripe.candidate(located_key.hash);
            }
        }
        let mut all_slots = slots.iter_mut();
        for held in &*self.0 {
            let stripe = &*held.stripe;
            for (located_key, slot) in held.located.iter().zip(&mut all_slots) {
                if *slot == NO_ENTRY {
                    *slot = stripe.candidate_behind(located_key.hash);
                }
            }
        }
        let mut all_slots = slots.iter_mut();
        for held in &*self.0 {
            let stripe = &*held.stripe;
            for (located_key, slot) in held.located.iter().zip(&mut all_slots) {
                if *slot != NO_ENTRY && !stripe.is_at(*slot, located_key.key) {
                    *slot = Self::search(stripe, located_key);
                }
            }
        }
    }

    /// Searches a key whose candidate is another key's slot: the bits are equal, or the line was
    /// removed.
    #[cold]
    #[inline(never)]
    fn search(stripe: &Stripe<K, V>, located_key: &LocatedKey<'_, Q>) -> u32
    where
        K: Borrow<Q>,
        Q: Eq,
    {
        let slot = stripe.find(located_key.hash, located_key.key);
        slot.unwrap_or(NO_ENTRY)
    }

    /// Calls `serve` with each key of the group, in order, and its stripe.
    #[cfg(all(test, not(loom)))]
    fn each(&mut self, mut serve: impl FnMut(&mut Stripe<K, V>, &LocatedKey<'_, Q>)) {
        for held in &mut *self.0 {
            for located_key in held.located {
                serve(&mut held.stripe, located_key);
            }
        }
    }
}

impl<K, V> Shards<K, V> {
    /// Does the work of [`with_groups`](Self::with_groups) for a call that must not take a lock.
    #[cold]
    fn with_nobody<'k, Q: ?Sized>(
        &self,
        located: &[LocatedKey<'k, Q>],
        mut serve: impl FnMut(&mut LockedStripes<'_, '_, '_, 'k, K, V, Q>),
    ) {
        for same_stripe in located.chunk_by(|a, b| a.stripe == b.stripe) {
            serve(&mut LockedStripes(&mut [LockedStripe {
                number: same_stripe[0].stripe as usize,
                stripe: self.inert().lock(),
                located: same_stripe,
            }]));
        }
    }

    /// Serves keys that are sorted by stripe in groups, each under one hold of several stripes'
    /// locks. Then performs the deferred actions of each stripe, as [`with`](Self::with) does.
    ///
    /// STRIPE-1: the first lock of a group is waited for. Every further lock is only tried; if
    /// another thread has it, the group ends before that stripe. So a call never waits while it
    /// holds a lock, and no two calls wait for each other.
    pub(crate) fn with_groups<'k, Q: ?Sized>(
        &self,
        located: &[LocatedKey<'k, Q>],
        mut serve: impl FnMut(&mut LockedStripes<'_, '_, '_, 'k, K, V, Q>),
        mut act: impl FnMut(usize, DeferredActions),
    ) {
        let mut left = Vec::new();
        // Declared before `held`, so that a panic drops it after the locks (DEFER-1).
        let mut flag: Option<ReentrancyGuard> = None;
        let mut held: Vec<LockedStripe<'_, '_, 'k, K, V, Q>> = Vec::with_capacity(STRIPES_PER_HOLD);
        let mut rest = located;
        while !rest.is_empty() {
            if flag.get_or_insert_with(|| self.begin()).is_inert() {
                return self.with_nobody(rest, serve);
            }
            // One group: as many stripes as can be locked without waiting, within the bounds on
            // stripes and on keys.
            let mut room = KEYS_PER_HOLD;
            while let Some(first) = rest.first()
                && room > 0
                && held.len() < STRIPES_PER_HOLD
            {
                let number = first.stripe as usize;
                let stripe = if held.is_empty() {
                    self.stripes[number].lock()
                } else if let Some(stripe) = self.stripes[number].try_lock() {
                    stripe
                } else {
                    break;
                };
                let same = rest
                    .iter()
                    .take_while(|located_key| located_key.stripe == first.stripe);
                let (located, others) = rest.split_at(same.take(room).count());
                room -= located.len();
                rest = others;
                held.push(LockedStripe {
                    number,
                    stripe,
                    located,
                });
            }
            // All lookups of the group happen in this call, while all of its locks are held.
            serve(&mut LockedStripes(&mut held));
            for LockedStripe { number, stripe, .. } in &mut held {
                if stripe.has_deferred() {
                    left.push((*number, self.publish_due(*number, stripe)));
                }
            }
            // Due moments were stored under the locks; bells are rung without them (STRIPE-4).
            held.clear();
            for (number, deferred) in &left {
                self.ring(*number, deferred);
            }
            // Only now, because this runs the deferred drops, which may take long.
            drop(flag.take());
            for (number, deferred) in left.drain(..) {
                act(number, deferred);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::Layout;
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
        Shards::new(&layout).0
    }

    /// Returns sorted places. The stripe of a key is the key modulo the number of stripes.
    fn located(keys: &[u64]) -> Vec<LocatedKey<'_, u64>> {
        by_stripe(STRIPES, keys, |key| {
            (*key as usize % STRIPES, KeyHash(*key))
        })
    }

    fn numbers<Q: ?Sized>(group: &LockedStripes<'_, '_, '_, '_, u64, u64, Q>) -> Vec<usize> {
        group.0.iter().map(|held| held.number).collect()
    }

    #[test]
    fn few_and_many_keys_are_sorted_alike() {
        for count in [0, 1, STRIPES as u64 - 1, STRIPES as u64, 300] {
            let keys: Vec<u64> = (0..count).map(|key| key * key % 97).collect();
            let located = located(&keys);
            assert_eq!(located.len(), keys.len());
            assert!(
                located.is_sorted_by_key(|located_key| (located_key.stripe, located_key.index))
            );
            for located_key in located {
                let key = keys[located_key.index as usize];
                assert_eq!((*located_key.key, located_key.hash), (key, KeyHash(key)));
                assert_eq!(located_key.stripe as usize, key as usize % STRIPES);
            }
        }
    }

    #[test]
    fn groups_are_bounded_and_serve_each_place_once_in_its_order() {
        let shards = shards();
        // Two keys for each stripe, and one stripe with more keys than a group holds.
        let keys: Vec<u64> = (0..64).chain([5; 150]).collect();
        let located = located(&keys);
        let mut served = Vec::new();
        let mut most = (0, 0);
        shards.with_groups(
            &located,
            |group| {
                assert!(numbers(group).is_sorted_by(|a, b| a < b));
                let before = served.len();
                group.each(|_, located_key| served.push((located_key.stripe, located_key.index)));
                most.0 = most.0.max(group.0.len());
                most.1 = most.1.max(served.len() - before);
            },
            |stripe, _| panic!("stripe {stripe} has deferred actions"),
        );
        let all: Vec<_> = located.iter().map(|p| (p.stripe, p.index)).collect();
        assert_eq!(served, all);
        assert_eq!(most, (STRIPES_PER_HOLD, KEYS_PER_HOLD));
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
                let serve = |group: &mut LockedStripes<'_, '_, '_, '_, _, _, _>| {
                    sent.send(numbers(group)).expect("the receiver is alive");
                };
                shards.with_groups(&located(keys), serve, |_, _| ());
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
        let nested = AssertUnwindSafe(|| {
            let call_again =
                |_: &mut LockedStripes<'_, '_, '_, '_, _, _, _>| shards.peek(9, |_| ());
            shards.with_groups(&located(&keys), call_again, |_, _| ());
        });
        let panic = catch_unwind(nested).expect_err("the call takes a lock and panics");
        let message = panic.downcast_ref::<&str>().expect("a message");
        assert!(message.contains("run under a lock"), "{message}");
        // All locks are free again, and the thread may take locks.
        let mut served = 0;
        shards.with_groups(
            &located(&keys),
            |group| group.each(|_, _| served += 1),
            |_, _| (),
        );
        assert_eq!(served, 3);
    }
}
