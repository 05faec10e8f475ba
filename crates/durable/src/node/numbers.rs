//! Numbers that look random: the same seed gives the same ones, on every machine and in every
//! build.

/// A generator with 64 bits of state (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Numbers(u64);

impl Numbers {
    pub(super) fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

/// Spreads the bits of a number over all bits (the finalizer of SplitMix64).
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Hashes a name (FNV-1a). All nodes must agree on it, so it never changes.
pub(super) fn hash(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_hashes_are_those_of_the_published_algorithms() {
        let mut numbers = Numbers::new(1_234_567);
        assert_eq!(
            [(); 5].map(|()| numbers.next()),
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821,
            ]
        );
        assert_eq!(
            ["", "a", "foobar"].map(hash),
            [
                0xCBF2_9CE4_8422_2325,
                0xAF63_DC4C_8601_EC8C,
                0x8594_4171_F739_67E8
            ]
        );
    }
}
