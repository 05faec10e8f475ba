//! Finalizes hashes, so that a hasher that returns numbers unchanged is good enough.
//!
//! One multiplication by a random constant is not enough. For keys in a sequence or with a stride,
//! the low half of the product grows in steps of one size. With about one constant in a hundred,
//! that size is close to a simple fraction of the range, such as a third. Then the home rows of all
//! keys fall into a few rows of the index, and the lookup of an absent key reads a hundred rows.
//!
//! With a second multiplication, all bits of the first product influence every bit that is used.
//! Then consecutive keys are spread as well as random ones; the test shows it.

use super::KeyHash;
use super::splitmix64;

/// The random constant of one engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashFinalizer(u64);

impl HashFinalizer {
    pub(super) fn new(seed: u64) -> Self {
        HashFinalizer(splitmix64(seed) | 1)
    }

    /// Finalizes `hash`.
    #[inline]
    pub(super) fn of(self, hash: u64) -> KeyHash {
        KeyHash(self.times(self.times(hash ^ self.0)))
    }

    /// Multiplies by the constant and combines both halves of the product.
    #[inline]
    fn times(self, number: u64) -> u64 {
        let product = u128::from(number).wrapping_mul(u128::from(self.0));
        (product as u64) ^ ((product >> 64) as u64)
    }
}

/// How far hashes spread over stripes and the rows of their indexes.
#[cfg(all(test, not(loom)))]
pub(crate) mod spread {
    use super::super::Index;
    use super::*;

    const STRIPES: usize = 16;
    const KEYS: u64 = 16_000;

    type Pattern = fn(u64) -> u64;

    /// Keys as programs have them, and hashes that a hasher returns if it leaves them unchanged.
    pub(crate) const PATTERNS: [(&str, Pattern); 5] = [
        ("a sequence", |n| n),
        ("steps of 1,000", |n| 1_000 * n),
        ("pages", |n| 4_096 * n),
        ("pointers", |n| 0x55d0_1234_5670 + 48 * n),
        ("upper halves", |n| n << 32),
    ];

    /// Same as `Shards::stripe_of`.
    fn stripe_of(hash: KeyHash) -> usize {
        (hash.0 >> 48) as usize & (STRIPES - 1)
    }

    /// Returns the greatest number of rows that the lookup of an absent key reads in any of the
    /// stripes, after keys with the hashes of the first numbers were inserted.
    pub(crate) fn longest_way(hash_of: impl Fn(u64) -> KeyHash) -> usize {
        let rows = Index::rows_for(KEYS as usize / STRIPES);
        let mut homes = vec![0; STRIPES * rows];
        for number in 0..KEYS {
            let hash = hash_of(number);
            homes[stripe_of(hash) * rows + Index::home_in(rows, hash.bits())] += 1;
        }
        let ways = homes.chunks(rows).map(Index::longest_way);
        ways.max().unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::spread::{PATTERNS, longest_way};
    use super::*;

    const SEEDS: u64 = 1_000;
    /// Random home rows reach 31 rows in 130,000 tables of this size: where rows are full, probe
    /// sequences join.
    const LONGEST: usize = 32;

    #[test]
    fn seeds_are_spread_as_by_the_published_generator() {
        // Its first numbers from these states.
        let published = [0xE220_A839_7B1D_CDAF, 6_457_827_717_110_365_317];
        assert_eq!([0, 1_234_567].map(splitmix64), published);
    }

    #[test]
    fn no_constant_makes_long_ways_of_usual_keys() {
        for (name, pattern) in PATTERNS {
            for seed in 0..SEEDS {
                let finalizer = HashFinalizer::new(seed);
                let longest = longest_way(|number| finalizer.of(pattern(number)));
                assert!(longest <= LONGEST, "{name}, seed {seed}: {longest} rows");
            }
        }
    }
}
