//! The shard that a key belongs to.

use crate::store::SHARDS;

/// Returns the shard of a key: the same in every version of the crate, since it is stored with the
/// timer. It is the key's FNV-1a hash.
pub(crate) fn of_key(key: &str) -> u16 {
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // The low bits of the hash depend on the low bits of the key alone, so the high ones join in.
    let folded = hash ^ (hash >> 32);
    u16::try_from(folded % u64::from(SHARDS)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_shard_in_every_version() {
        let shards = ["", "a", "order:7", "order:8", "ключ"].map(of_key);
        // Worked out by another program.
        assert_eq!(shards, [1, 0, 63, 2, 31]);
    }

    #[test]
    fn keys_spread_over_all_shards_about_evenly() {
        let mut counts = [0_u32; SHARDS as usize];
        for number in 0..64_000 {
            counts[usize::from(of_key(&format!("order:{number}")))] += 1;
        }
        for (shard, count) in counts.iter().enumerate() {
            assert!((800..1_200).contains(count), "shard {shard}: {count}");
        }
    }
}
