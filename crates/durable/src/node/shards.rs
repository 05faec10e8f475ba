//! Which shards of a queue belong to which node: rendezvous hashing, so that a node that comes or
//! goes moves only its own shards.

use super::numbers::{hash, mix};
use crate::store::{Epoch, SHARDS};

/// The ranks at which a node polls a shard. Those of a higher rank leave it to the others.
const RANKS: usize = 3;

/// A shard that a node polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) shard: u16,
    /// 0 for the owner. The others poll for what the owner has left lying.
    pub(super) rank: u32,
}

/// The parts of a queue that node `me` polls, among the nodes that handle the queue.
pub(super) fn parts(queue: &str, me: Epoch, nodes: &[Epoch]) -> Vec<Part> {
    let queue = hash(queue);
    let mut parts = Vec::new();
    for shard in 0..SHARDS {
        let seed = mix(queue ^ mix(u64::from(shard)));
        // The epoch decides between equal weights.
        let weight = |epoch: Epoch| (mix(seed ^ epoch.0.cast_unsigned()), epoch);
        let mine = weight(me);
        let greater = nodes.iter().filter(|node| weight(**node) > mine);
        // With many nodes, most shards are not polled. A few nodes tell.
        let rank = greater.take(RANKS).count();
        if rank < RANKS {
            let rank = rank as u32;
            parts.push(Part { shard, rank });
        }
    }
    parts
}

/// The rank of a shard that is not among the parts.
pub(super) const LAST_RANK: u32 = RANKS as u32;
