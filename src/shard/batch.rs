//! Many keys in one call: sorted by stripe once, and one hold of a lock serves several of them. Or
//! one hold of several stripes' locks: taking a lock waits for all reads before it, so misses
//! overlap only between locks, and with 256 keys on 128 stripes two of them have the same one.

use std::borrow::Borrow;
use std::hint::black_box;

use super::{Aftermath, KeyHash, NoCalls, Shards, Stripe};
use crate::sync::MutexGuard;

/// So many keys are served under one hold of a lock.
pub(crate) const KEYS_PER_HOLD: usize = 64;

/// A key, where it belongs, and where its answer does.
pub(crate) struct Place<'a, Q: ?Sized> {
    key: &'a Q,
    stripe: u32,
    /// In the caller's order.
    pub(crate) index: u32,
    hash: KeyHash,
}

impl<Q: ?Sized> Clone for Place<'_, Q> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q: ?Sized> Copy for Place<'_, Q> {}

/// The keys by stripe, of which there are so many; those of one stripe in the caller's order, so
/// that two calls for one key are settled in it.
pub(crate) fn by_stripe<'a, Q: ?Sized>(
    stripes: usize,
    keys: impl IntoIterator<Item = &'a Q>,
    hash_of: impl Fn(&Q) -> (usize, KeyHash),
) -> Vec<Place<'a, Q>> {
    let mut places: Vec<_> = keys
        .into_iter()
        .enumerate()
        .map(|(index, key)| {
            let (stripe, hash) = hash_of(key);
            Place {
                key,
                stripe: stripe as u32,
                index: index as u32,
                hash,
            }
        })
        .collect();
    if places.len() < stripes {
        places.sort_unstable_by_key(|place| (place.stripe, place.index));
        return places;
    }
    // Counted rather than compared: a quarter of the time.
    let mut next = vec![0; stripes];
    for place in &places {
        next[place.stripe as usize] += 1;
    }
    let mut before = 0;
    for next in &mut next {
        before += std::mem::replace(next, before);
    }
    let mut sorted = places.clone();
    for place in places {
        let next = &mut next[place.stripe as usize];
        sorted[*next] = place;
        *next += 1;
    }
    sorted
}

/// Up to `per_hold` places of one stripe at a time.
pub(crate) fn portions<'a, Q: ?Sized>(
    places: &[Place<'a, Q>],
    per_hold: usize,
    mut serve: impl FnMut(usize, &[Place<'a, Q>]),
) {
    for same_stripe in places.chunk_by(|a, b| a.stripe == b.stripe) {
        for portion in same_stripe.chunks(per_hold) {
            serve(portion[0].stripe as usize, portion);
        }
    }
}

/// All keys of a portion are looked up before anything is changed: an `Eq` that panics leaves the
/// stripe as it was. A slot that comes twice is freed by the first of two cancellations, and stays
/// so under this hold of the lock.
pub(crate) fn find_all<K, V, Q>(
    stripe: &Stripe<K, V>,
    places: &[Place<'_, Q>],
    slots: &mut Vec<Option<u32>>,
) where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    slots.clear();
    slots.extend(
        places
            .iter()
            .map(|place| stripe.find(place.hash, place.key)),
    );
}

/// So many stripes' locks are held at a time.
const STRIPES_PER_HOLD: usize = 16;

/// A stripe that is locked, and its places.
struct Held<'s, 'p, 'k, K, V, Q: ?Sized> {
    number: usize,
    stripe: MutexGuard<'s, Stripe<K, V>>,
    places: &'p [Place<'k, Q>],
}

/// Stripes whose locks are held at the same time, with the places that are served under them.
pub(crate) struct Group<'g, 's, 'p, 'k, K, V, Q: ?Sized>(&'g mut [Held<'s, 'p, 'k, K, V, Q>]);

impl<K, V, Q: ?Sized> Group<'_, '_, '_, '_, K, V, Q> {
    /// Looks all keys up before anything is changed, as [`find_all`] does; in two passes, of which
    /// the first reads no more than the index lines, so that more of their misses overlap.
    pub(crate) fn find_all(&self, slots: &mut Vec<Option<u32>>)
    where
        K: Borrow<Q>,
        Q: Eq,
    {
        let mut seen = 0;
        for held in &*self.0 {
            for place in held.places {
                seen += held.stripe.glance(place.hash);
            }
        }
        black_box(seen);
        slots.clear();
        for held in &*self.0 {
            let found = |place: &Place<'_, Q>| held.stripe.find(place.hash, place.key);
            slots.extend(held.places.iter().map(found));
        }
    }

    /// All places of the group in their order, with the stripe that each belongs to.
    pub(crate) fn each(&mut self, mut serve: impl FnMut(&mut Stripe<K, V>, &Place<'_, Q>)) {
        for held in &mut *self.0 {
            for place in held.places {
                serve(&mut held.stripe, place);
            }
        }
    }
}

impl<K, V> Shards<K, V> {
    /// [`with_groups`](Self::with_groups) for a call that must not take a lock.
    #[cold]
    fn with_nobody<'k, Q: ?Sized>(
        &self,
        places: &[Place<'k, Q>],
        mut serve: impl FnMut(&mut Group<'_, '_, '_, 'k, K, V, Q>),
    ) {
        for same_stripe in places.chunk_by(|a, b| a.stripe == b.stripe) {
            serve(&mut Group(&mut [Held {
                number: same_stripe[0].stripe as usize,
                stripe: self.inert().lock(),
                places: same_stripe,
            }]));
        }
    }

    /// Serves places that are sorted by stripe in groups: under one hold of several stripes' locks
    /// each. Then does what [`with`](Self::with) does for each of the stripes.
    ///
    /// STRIPE-1: the first lock of a group is waited for. A further one is only tried, and if
    /// somebody has it, the group ends before it: so this never waits while it holds up others, and
    /// no two calls wait for each other.
    pub(crate) fn with_groups<'k, Q: ?Sized>(
        &self,
        places: &[Place<'k, Q>],
        mut serve: impl FnMut(&mut Group<'_, '_, '_, 'k, K, V, Q>),
        mut act: impl FnMut(usize, Aftermath),
    ) {
        let mut left = Vec::new();
        // Out here, so that a panic drops it after the locks (DEFER-1).
        let mut flag: Option<NoCalls> = None;
        let mut held: Vec<Held<'_, '_, 'k, K, V, Q>> = Vec::with_capacity(STRIPES_PER_HOLD);
        let mut rest = places;
        while !rest.is_empty() {
            if flag.get_or_insert_with(NoCalls::begin).is_inert() {
                return self.with_nobody(rest, serve);
            }
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
                let same = rest.iter().take_while(|place| place.stripe == first.stripe);
                let (places, others) = rest.split_at(same.take(room).count());
                room -= places.len();
                rest = others;
                held.push(Held {
                    number,
                    stripe,
                    places,
                });
            }
            serve(&mut Group(&mut held));
            for Held { number, stripe, .. } in &mut held {
                if stripe.has_aftermath() {
                    left.push((*number, self.publish_due(*number, stripe)));
                }
            }
            held.clear();
            for (number, after) in &left {
                self.ring(*number, after);
            }
            // Not before: it does the work of drops that was put off, which may take a while.
            drop(flag.take());
            for (number, after) in left.drain(..) {
                act(number, after);
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

    /// Sorted places of keys whose stripe is their number modulo that of the stripes.
    fn places(keys: &[u64]) -> Vec<Place<'_, u64>> {
        by_stripe(STRIPES, keys, |key| {
            (*key as usize % STRIPES, KeyHash(*key))
        })
    }

    fn numbers<Q: ?Sized>(group: &Group<'_, '_, '_, '_, u64, u64, Q>) -> Vec<usize> {
        group.0.iter().map(|held| held.number).collect()
    }

    #[test]
    fn few_and_many_keys_are_sorted_alike() {
        for count in [0, 1, STRIPES as u64 - 1, STRIPES as u64, 300] {
            let keys: Vec<u64> = (0..count).map(|key| key * key % 97).collect();
            let places = places(&keys);
            assert_eq!(places.len(), keys.len());
            assert!(places.is_sorted_by_key(|place| (place.stripe, place.index)));
            for place in places {
                let key = keys[place.index as usize];
                assert_eq!((*place.key, place.hash), (key, KeyHash(key)));
                assert_eq!(place.stripe as usize, key as usize % STRIPES);
            }
        }
    }

    #[test]
    fn groups_are_bounded_and_serve_each_place_once_in_its_order() {
        let shards = shards();
        // Two of each stripe, and one stripe with more than a group holds.
        let keys: Vec<u64> = (0..64).chain([5; 150]).collect();
        let places = places(&keys);
        let mut served = Vec::new();
        let mut most = (0, 0);
        shards.with_groups(
            &places,
            |group| {
                assert!(numbers(group).is_sorted_by(|a, b| a < b));
                let before = served.len();
                group.each(|_, place| served.push((place.stripe, place.index)));
                most.0 = most.0.max(group.0.len());
                most.1 = most.1.max(served.len() - before);
            },
            |stripe, _| panic!("nothing was left in {stripe}"),
        );
        let all: Vec<_> = places.iter().map(|p| (p.stripe, p.index)).collect();
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
                let serve = |group: &mut Group<'_, '_, '_, '_, _, _, _>| {
                    sent.send(numbers(group)).expect("it is received");
                };
                shards.with_groups(&places(keys), serve, |_, _| ());
            });
            assert_eq!(groups.recv(), Ok(vec![0, 1, 2]));
            let began = Instant::now();
            while (0..3).any(|stripe| shards.stripes[stripe].try_lock().is_none()) {
                assert!(began.elapsed() < Duration::from_secs(60), "they are held");
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
            let call_again = |_: &mut Group<'_, '_, '_, '_, _, _, _>| shards.peek(9, |_| ());
            shards.with_groups(&places(&keys), call_again, |_, _| ());
        });
        let panic = catch_unwind(nested).expect_err("it takes a lock");
        let message = panic.downcast_ref::<&str>().expect("a message");
        assert!(message.contains("run under a lock"), "{message}");
        // All are free again, and so is the thread.
        let mut served = 0;
        shards.with_groups(
            &places(&keys),
            |group| group.each(|_, _| served += 1),
            |_, _| (),
        );
        assert_eq!(served, 3);
    }
}
