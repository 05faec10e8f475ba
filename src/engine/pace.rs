//! At most so many expirations in a second, over all shards: one share after the other, each
//! reserved by a ticker (the virtual scheduling of the generic cell rate algorithm, ITU-T I.371).
//!
//! ```text
//! shares of  1 . 2 . 1 . 2 . 3 . 1 .      each as long as the pace needs for it
//!              |   |   |   |   |   |
//! ticker 1   ##      ##          ##       ## what is due expires, at once if there is so much
//! ticker 2       ##      ##               then the ticker reserves the next share, while it holds
//! ticker 3                   ##           something back
//! ```
//!
//! - **PACE-1** Shares begin no closer together than one takes, and nothing of one expires before
//!   it begins. It may have begun before it is reserved, but by no more than [`CATCH_UP`]: a ticker
//!   that wakes late goes on at once with what it is behind, and a quiet time leaves no more than
//!   that.
//! - **PACE-2** A ticker has one share at a time, and reserves one only when it holds something
//!   back. So tickers that hold something back take turns: between two shares of one of them, each
//!   other has at most one. And a ticker with little to do waits for one share of each other,
//!   however much they have.
//! - **PACE-3** What is left of a share is kept until it is used: few timers, now and then, need
//!   not wait for a turn each.
//! - **PACE-4** Of shares that have not begun each ticker has one at most, so at any moment they
//!   are no farther ahead than one share for each shard. What is farther is of before the clock was
//!   set back, and the pace begins anew.
//!
//! What expires in a window of length T, both ends included, is of a share that a ticker has had
//! since before, one for each by PACE-2 and PACE-3, or of those reserved in the window. They begin
//! in it, or before it by the time to catch up, so by PACE-1 they are at most (T + `CATCH_UP`) /
//! length + 1. Together: what the pace has in T and a millisecond, and one share, and one for each
//! shard.

use std::num::NonZeroU32;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tick::Time;

/// A share is what may expire in a millisecond, divided by the shards, and 1 at least. A ticker
/// then wakes about once in a millisecond: shorter, and the pace would not be kept for the time
/// that waking takes; longer, and those who do the work would meet it in larger lumps.
const SHARES_PER_SECOND: usize = 1_000;
/// Of many shards one may be the only one with something due. Its shares are so short that it can't
/// wake for each; and any ticker may wake late. In nanoseconds: what a machine that is not busy
/// needs, and nothing to speak of at a slow pace.
const CATCH_UP: u64 = 1_000_000;

/// What all tickers go by.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many may expire under one reservation.
    share: usize,
    /// How long a share takes, in nanoseconds.
    length: u64,
    /// How far ahead the end of what is reserved may be: PACE-4, and one that is reserved just now.
    horizon: u64,
    /// When the next share begins at the earliest, in nanoseconds of the clock.
    next: AtomicU64,
    held_back: AtomicU64,
}

/// One ticker's part.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Nothing, before the first one.
    begin: Time,
    left: usize,
}

impl Pace {
    pub(super) fn new(per_second: NonZeroU32, shards: usize) -> Self {
        let per_second = per_second.get() as usize;
        let share = (per_second / SHARES_PER_SECOND / shards).max(1);
        let length = (1_000_000_000 * share as u64).div_ceil(per_second as u64);
        Pace {
            share,
            length,
            horizon: length * (shards as u64 + 1),
            next: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// How many may expire now: what is left of the share, if it has begun.
    pub(super) fn allowed(&self, share: &mut Share, now: Time) -> usize {
        if self.is_far(share.begin.as_nanos(), now) {
            *share = Share::default();
        }
        if share.begin <= now { share.left } else { 0 }
    }

    /// None may expire now, and something is held back: until when, at the least.
    ///
    /// The clock is read in here, after what others have reserved: by a reading of before, a ticker
    /// that was held up in between would take their progress for a clock that was set back
    /// (PACE-4).
    pub(super) fn reserve(&self, share: &mut Share, clock: impl Fn() -> Time) -> Time {
        if share.left == 0 {
            let mut begin = 0;
            let mut now = Time::ZERO;
            let next = |next| {
                now = clock();
                let least = now.as_nanos().saturating_sub(CATCH_UP);
                begin = if self.is_far(next, now) {
                    least
                } else {
                    least.max(next)
                };
                // The end of the clock is never, and nothing waits for that.
                Some(begin.saturating_add(self.length).min(u64::MAX - 1))
            };
            // AcqRel, Acquire: pairs with itself, so that who sees a reservation reads the clock no
            // earlier than who made it.
            let _ = (self.next).fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
            *share = Share {
                begin: Time::from_nanos(begin),
                left: self.share,
            };
            if share.begin > now {
                // Relaxed: a count.
                self.held_back.fetch_add(1, Ordering::Relaxed);
            }
        }
        share.begin
    }

    pub(super) fn held_back(&self) -> u64 {
        // Relaxed: a count.
        self.held_back.load(Ordering::Relaxed)
    }

    /// Whether a moment is of before the clock was set back. PACE-4.
    fn is_far(&self, begin: u64, now: Time) -> bool {
        begin.saturating_sub(now.as_nanos()) > self.horizon
    }
}

impl Share {
    /// So many have expired.
    pub(super) fn take(&mut self, expired: usize) {
        debug_assert!(expired <= self.left, "PACE-1");
        self.left -= expired;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn pace(per_second: u32, shards: usize) -> Pace {
        Pace::new(NonZeroU32::new(per_second).unwrap(), shards)
    }

    fn reserve(pace: &Pace, share: &mut Share, now: Time) -> Time {
        pace.reserve(share, || now)
    }

    /// Uses the whole of its share, which has begun, and reserves the next one.
    fn next(pace: &Pace, share: &mut Share, now: Time) -> Time {
        let left = pace.allowed(share, now);
        share.take(left);
        reserve(pace, share, now)
    }

    #[test]
    fn shares_follow_each_other_at_the_pace() {
        let pace = pace(10_000, 2);
        assert_eq!(pace.share, 5);
        let mut shares = [Share::default(), Share::default()];
        let mut begins = Vec::new();
        let start = SECOND + 7;
        let mut now = at(start);
        for turn in 0..6 {
            begins.push(next(&pace, &mut shares[turn % 2], now));
            now = now.max(begins[turn.saturating_sub(1)]);
        }
        let turns = (0..6).map(|turn| at(start + turn * 500_000 - CATCH_UP));
        assert!(begins.iter().copied().eq(turns), "{begins:?}");
        assert_eq!(pace.held_back(), 3, "two were behind, one was now");
    }

    #[test]
    fn a_quiet_time_saves_nothing_up_but_a_millisecond() {
        for (per_second, shards) in [(10_000, 2), (10_000, 5), (2_000, 1), (10, 3)] {
            let pace = pace(per_second, shards);
            let mut share = Share::default();
            let mut at_once = 0;
            while next(&pace, &mut share, at(9 * SECOND)) <= at(9 * SECOND) {
                at_once += 1;
            }
            // Rounded up, and one for the moment itself.
            assert_eq!(at_once, CATCH_UP.div_euclid(pace.length) + 1);
        }
    }

    #[test]
    fn a_share_is_used_bit_by_bit_and_not_before_it_begins() {
        let pace = pace(3_000, 1);
        let mut share = Share::default();
        assert_eq!(pace.allowed(&mut share, at(0)), 0);
        assert_eq!(reserve(&pace, &mut share, at(0)), at(0));
        for left in [3, 2] {
            assert_eq!(pace.allowed(&mut share, at(9)), left);
            share.take(1);
        }
        assert_eq!(pace.allowed(&mut share, at(5 * SECOND)), 1, "it is kept");
        share.take(1);
        let now = at(9);
        assert_eq!(reserve(&pace, &mut share, now), at(1_000_000));
        assert_eq!(reserve(&pace, &mut share, at(99)), at(1_000_000), "once");
        assert_eq!(pace.allowed(&mut share, at(999_999)), 0);
        assert_eq!(pace.allowed(&mut share, at(1_000_000)), 3);
    }

    #[test]
    fn the_pace_may_be_slower_than_the_shards_are_many_and_as_fast_as_can_be() {
        let slow = pace(1, 8);
        let mut share = Share::default();
        assert_eq!(reserve(&slow, &mut share, at(0)), at(0));
        assert_eq!(next(&slow, &mut share, at(0)), at(SECOND));
        assert_eq!(slow.share, 1);
        let fast = pace(u32::MAX, 1);
        assert_eq!((fast.share, fast.length), (4_294_967, 1_000_000));
        // Rounded against who would be faster.
        let thirds = pace(3, 1);
        assert_eq!(thirds.length, 333_333_334);
    }

    /// Held up while it reserves, until the others are far ahead of what its clock showed.
    #[test]
    fn the_progress_of_others_is_not_taken_for_a_clock_that_was_set_back() {
        let pace = pace(1_000, 2);
        let clock = Cell::new(SECOND);
        let others = RefCell::new((Share::default(), Time::ZERO));
        let mut share = Share::default();
        let begin = pace.reserve(&mut share, || {
            let read = at(clock.get());
            if clock.get() == SECOND {
                let (other, last) = &mut *others.borrow_mut();
                for _ in 0..50 {
                    *last = next(&pace, other, at(clock.get()));
                    clock.set(last.as_nanos().max(clock.get()));
                }
            }
            read
        });
        let last = others.borrow().1;
        assert_eq!(begin, last + Duration::from_nanos(pace.length));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_stop_it() {
        let pace = pace(1_000, 1);
        let (mut one, mut other) = (Share::default(), Share::default());
        let behind = |time: Time| time - Duration::from_nanos(CATCH_UP);
        let late = at(9 * SECOND);
        assert_eq!(reserve(&pace, &mut one, late), behind(late));
        let early = at(SECOND);
        assert_eq!(pace.allowed(&mut one, early), 0);
        assert_eq!(reserve(&pace, &mut one, early), behind(early));
        assert_eq!(pace.allowed(&mut one, early), 1);
        assert_eq!(reserve(&pace, &mut other, early), early);
        // By so little that waiting is as well.
        let little = at(SECOND - 100);
        assert_eq!(pace.allowed(&mut other, little), 0);
        assert_eq!(reserve(&pace, &mut other, little), early);
        for _ in 0..5 {
            let begin = reserve(&pace, &mut Share::default(), Time::MAX);
            assert!(begin >= behind(Time::MAX));
        }
    }
}
