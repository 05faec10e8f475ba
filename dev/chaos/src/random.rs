//! SplitMix64: three lines, the same numbers for every system.

/// Maps a number to one that looks random. Different numbers have different results.
#[inline]
pub fn mixed(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers that its seed decides.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number. Inlined, as is [`below`](Random::below): benchmarks draw one for each call.
    #[inline]
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// A number below `bound`, which is not zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product; its bias is far below what could be measured.
        let product = u128::from(self.number()) * u128::from(bound);
        u64::try_from(product >> 64).expect("half of 128 bits")
    }
}
