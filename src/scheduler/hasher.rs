//! The default hasher. It is wrapped in types of this crate, so that signatures do not show which
//! hasher it is.

use std::any::TypeId;
use std::hash::{BuildHasher, Hash, Hasher};

use crate::shard::{KeyHash, Shards};

/// The default hasher: ahash, with keys that differ from process to process.
///
/// The builder accepts any other `BuildHasher`. A hash that leaves small integers as they are is
/// fine, since the hashes of any other hasher are finalized before they are used.
///
/// # Examples
///
/// ```
/// use std::hash::BuildHasher;
///
/// let hasher = tourbillon::RandomState::default();
/// assert_eq!(hasher.hash_one("key"), hasher.clone().hash_one("key"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct RandomState(ahash::RandomState);

/// The hasher of [`RandomState`].
///
/// # Examples
///
/// ```
/// use std::hash::{BuildHasher, Hasher};
/// use tourbillon::{KeyHasher, RandomState};
///
/// let mut hasher: KeyHasher = RandomState::default().build_hasher();
/// hasher.write_u64(7);
/// let hash = hasher.finish();
/// ```
#[derive(Clone, Debug)]
pub struct KeyHasher(ahash::AHasher);

impl RandomState {
    /// Makes the same keys from the same seed, for simulations.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn seeded(seed: u64) -> Self {
        let [a, b, c, d] = [1, 2, 3, 4].map(|n| crate::shard::splitmix64(seed ^ n));
        RandomState(ahash::RandomState::with_seeds(a, b, c, d))
    }
}

impl BuildHasher for RandomState {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0.build_hasher())
    }
}

/// Hashes a key or the name of a group.
///
/// ahash mixes all bits at its end, so its hashes are not finalized once more: two multiplications
/// that each call would wait for. Hashes of all other hashers are finalized.
#[inline]
pub(crate) fn hash_of<K, V, S, Q>(shards: &Shards<K, V>, hasher: &S, key: &Q) -> KeyHash
where
    S: BuildHasher + 'static,
    Q: Hash + ?Sized,
{
    let hash = hasher.hash_one(key);
    // The compiler knows the result of this comparison.
    if TypeId::of::<S>() == TypeId::of::<RandomState>() {
        KeyHash(hash)
    } else {
        shards.finalize_hash(hash)
    }
}

macro_rules! forward {
    ($($method:ident: $number:ty),*) => {
        $(
            #[inline]
            fn $method(&mut self, number: $number) {
                self.0.$method(number);
            }
        )*
    };
}

impl Hasher for KeyHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0.finish()
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    forward!(
        write_u8: u8, write_u16: u16, write_u32: u32, write_u64: u64, write_u128: u128,
        write_usize: usize
    );
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::shard::spread::{PATTERNS, longest_way};

    #[test]
    fn ahash_spreads_usual_keys_without_another_finalizer() {
        for (name, pattern) in PATTERNS {
            for seed in 0..100 {
                let state = RandomState::seeded(seed);
                let longest = longest_way(|number| KeyHash(state.hash_one(pattern(number))));
                assert!(longest <= 32, "{name}, seed {seed}: {longest} rows");
            }
        }
    }
}
