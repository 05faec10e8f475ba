//! Many keys in one call: sorted by stripe once, and one hold of a lock serves several of them.

use std::borrow::Borrow;

use super::{KeyHash, Stripe};

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

/// The keys by stripe; those of one stripe in the caller's order, so that two calls for one key are
/// settled in it.
pub(crate) fn by_stripe<'a, Q: ?Sized>(
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
    places.sort_unstable_by_key(|place| (place.stripe, place.index));
    places
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
