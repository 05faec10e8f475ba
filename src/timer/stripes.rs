//! The choice of the stripe for a timer without a key, and for a sleep.

use std::cell::Cell;

use super::TimerFrontend;
use crate::engine::Engine;
use crate::sync::{thread_local, unique_number};

/// Number of stripes over which the timers of one thread are spread. With a single stripe, all
/// workers meet at its lock when many timers of a thread are due at once, and one ticker collects
/// them all.
const STRIPES_PER_THREAD: u32 = 8;

/// Number of timers that a thread arms in one stripe before it goes on to the next one. While a
/// thread stays at a stripe, the stripe's lines stay in the cache of its processor.
const ARMED_IN_A_ROW: u32 = 64;

thread_local! {
    /// A number per thread, which spreads threads over stripes, and the number of timers that the
    /// thread has armed.
    static THREAD_ARMED: (u32, Cell<u32>) = (unique_number(), Cell::new(0));
}

/// Returns the stripe that takes the next timer of the current thread.
pub(super) fn next_stripe_of_thread(engine: &Engine<TimerFrontend>) -> usize {
    let (number, before) = THREAD_ARMED.with(|(number, armed)| {
        let before = armed.get();
        armed.set(before.wrapping_add(1));
        (*number, before)
    });
    stripe_of(number, before, engine.shards().stripes())
}

/// Returns the stripe that takes all sleeps of the current thread.
///
/// With one stripe, one ticker wakes up for them, and it takes all sleeps of a tick under one hold
/// of the lock. Each wake-up of a thread costs more than a hundred claims. Workers do not meet at
/// the lock as they do for tasks, since wake-ups are claimed together.
pub(super) fn stripe_of_sleeps(engine: &Engine<TimerFrontend>) -> usize {
    let number = THREAD_ARMED.with(|(number, _)| *number);
    number as usize & (engine.shards().stripes() - 1)
}

/// Returns the stripe for the next timer of a thread that has armed `before` timers. The number of
/// stripes is a power of two.
fn stripe_of(thread: u32, before: u32, stripes: usize) -> usize {
    let turn = before / ARMED_IN_A_ROW % STRIPES_PER_THREAD;
    // Far apart, so that threads with consecutive numbers share few stripes. Odd, so that the
    // stripes belong to different shards.
    let stride = (stripes / STRIPES_PER_THREAD as usize) | 1;
    (thread as usize + turn as usize * stride) & (stripes - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn stripes_of(thread: u32, stripes: usize) -> HashSet<usize> {
        let armed = 0..ARMED_IN_A_ROW * STRIPES_PER_THREAD;
        armed
            .map(|before| stripe_of(thread, before, stripes))
            .collect()
    }

    #[test]
    fn a_thread_has_several_stripes_of_all_shards() {
        for stripes in [1, 2, 8, 128, 1_024] {
            let found = stripes_of(5, stripes);
            assert!(found.iter().all(|stripe| *stripe < stripes));
            assert_eq!(found.len(), stripes.min(STRIPES_PER_THREAD as usize));
            // A stripe belongs to the shard of its number modulo the number of shards.
            for shards in [2, 4, 8].into_iter().filter(|shards| *shards <= stripes) {
                let shards_found: HashSet<_> = found.iter().map(|stripe| stripe % shards).collect();
                assert_eq!(shards_found.len(), shards, "{stripes} stripes");
            }
        }
    }

    #[test]
    fn threads_with_consecutive_numbers_share_few_stripes() {
        let all: HashSet<_> = (0..9).flat_map(|thread| stripes_of(thread, 128)).collect();
        assert_eq!(all.len(), 9 * STRIPES_PER_THREAD as usize);
    }

    #[test]
    fn a_thread_stays_at_a_stripe_for_a_while() {
        let changes =
            (1..1_000).filter(|before| stripe_of(0, before - 1, 128) != stripe_of(0, *before, 128));
        assert_eq!(changes.count(), 999 / ARMED_IN_A_ROW as usize);
    }
}
