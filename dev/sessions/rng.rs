//! SplitMix64: a random number generator of three lines, so that a seed gives the same numbers on
//! every machine and in every version.

/// A stream of random numbers that depends only on its seed.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product is the result. Its bias is below 2^-40 for the small bounds
        // here.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
