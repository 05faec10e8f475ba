//! Limits the expirations per second over all shards. Tickers reserve one share of the limit after
//! the other (the virtual scheduling of the generic cell rate algorithm, ITU-T I.371).
//!
//! ```text
//! shares of  1 . 2 . 1 . 2 . 3 . 1 .      each as long as the pace needs for it
//!              |   |   |   |   |   |
//! ticker 1   ##      ##          ##       ## due entries expire, all at once if there are many;
//! ticker 2       ##      ##               then the ticker reserves the next share, while it holds
//! ticker 3                   ##           entries back
//! ```
//!
//! - **PACE-1** Two shares begin at least one share length apart, and nothing of a share expires
//!   before the share begins. A share may have begun before it is reserved, but by no more than
//!   [`CATCH_UP`]. So a ticker that wakes late continues at once with its arrears, and a quiet time
//!   saves up no more than that.
//! - **PACE-2** A ticker holds one share at a time, and reserves the next one only when it holds
//!   entries back. So tickers that hold entries back take turns: between two shares of one ticker,
//!   each other ticker has at most one. A ticker with little to do waits for at most one share
//!   of each other ticker, however many entries the others have.
//! - **PACE-3** The rest of a share is kept until it is used. So a ticker that has an entry only
//!   now and then need not wait for a turn for each one.
//! - **PACE-4** Each ticker has at most one share that has not begun. So at any moment these shares
//!   reach no farther ahead than one share length per shard. A moment that is farther ahead dates
//!   from before the clock was set back, and the pace starts anew.
//!
//! Everything that expires in a window of length T, both ends included, belongs to one of two kinds
//! of shares:
//!
//! - Shares that the tickers held before the window: at most one per ticker, by PACE-2 and PACE-3.
//! - Shares that are reserved in the window. They begin in it, or at most `CATCH_UP` before it. So
//!   by PACE-1 there are at most (T + `CATCH_UP`) / length + 1 of them.
//!
//! Together, this is what the pace allows in T plus one millisecond, plus one share, plus one share
//! per shard.

use std::num::NonZeroU32;

use super::{Engine, FrontendTypes};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tick::Time;

/// The number of shares per second that each ticker gets when all of them are busy.
///
/// A share is what may expire in a millisecond, divided by the number of shards, and at least 1. So
/// a ticker wakes about once in a millisecond. With shorter shares, the time that waking takes
/// would break the pace. With longer ones, the workers would get their work in larger lumps.
const SHARES_PER_SECOND: usize = 1_000;
/// How far in the past a share may begin when it is reserved, in nanoseconds.
///
/// Without it, a late ticker would lose pace: any ticker may wake late, and if only one of many
/// shards has due entries, its shares are too short to wake for each of them. A millisecond is
/// enough for a machine that is not busy, and negligible at a slow pace.
const CATCH_UP: u64 = 1_000_000;

/// The pace that all tickers share.
#[derive(Debug)]
pub(super) struct Pace {
    /// The number of expirations under one reservation.
    share: usize,
    /// The length of a share, in nanoseconds.
    length: u64,
    /// How far ahead the end of the reserved shares may be: PACE-4, plus one share that is being
    /// reserved.
    horizon: u64,
    /// The earliest begin of the next share, in nanoseconds of the clock.
    next: AtomicU64,
    held_back: AtomicU64,
}

/// One ticker's share.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// `Time::ZERO` before the first share.
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

    /// Returns how many entries may expire now: the rest of the share, if the share has begun.
    pub(super) fn allowed(&self, share: &mut Share, now: Time) -> usize {
        if self.is_far(share.begin.as_nanos(), now) {
            *share = Share::default();
        }
        if share.begin <= now { share.left } else { 0 }
    }

    /// Returns when the next entry may expire, at the earliest. It reserves the next share if the
    /// present one is used up. Called when entries are held back.
    ///
    /// The clock is read in here, after the reservations of others. With an earlier reading, a
    /// ticker that was held up in between would take their progress for a clock that was set back
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
                // `Time::MAX` means never, and no ticker would wake then.
                Some(begin.saturating_add(self.length).min(u64::MAX - 1))
            };
            // AcqRel, Acquire: pairs with itself, so that a ticker that sees a reservation reads
            // the clock no earlier than the ticker that made it.
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

    /// Returns whether a moment dates from before the clock was set back (PACE-4).
    fn is_far(&self, begin: u64, now: Time) -> bool {
        begin.saturating_sub(now.as_nanos()) > self.horizon
    }
}

impl Share {
    /// Uses up a part of the share.
    pub(super) fn take(&mut self, expired: usize) {
        debug_assert!(
            expired <= self.left,
            "PACE-1: more expired than the share had left"
        );
        self.left -= expired;
    }
}

impl<F: FrontendTypes> Engine<F> {
    /// Returns how often the pace held due entries back.
    pub(crate) fn held_back(&self) -> u64 {
        self.pace.as_ref().map_or(0, Pace::held_back)
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

    /// Uses the rest of its share, which has begun, and reserves the next one.
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
        assert_eq!(
            pace.held_back(),
            3,
            "of six shares, two began in the past and one at once"
        );
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
            // Rounded up, plus one for the moment itself.
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
        assert_eq!(
            pace.allowed(&mut share, at(5 * SECOND)),
            1,
            "the rest of a share is kept"
        );
        share.take(1);
        let now = at(9);
        assert_eq!(reserve(&pace, &mut share, now), at(1_000_000));
        assert_eq!(
            reserve(&pace, &mut share, at(99)),
            at(1_000_000),
            "a second call reserves nothing"
        );
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
        // Rounded so that the pace is never exceeded.
        let thirds = pace(3, 1);
        assert_eq!(thirds.length, 333_333_334);
    }

    /// One ticker is held up while it reserves, until others are far ahead of what its clock
    /// showed.
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
        // Set back by less than the horizon: the ticker just waits.
        let little = at(SECOND - 100);
        assert_eq!(pace.allowed(&mut other, little), 0);
        assert_eq!(reserve(&pace, &mut other, little), early);
        for _ in 0..5 {
            let begin = reserve(&pace, &mut Share::default(), Time::MAX);
            assert!(begin >= behind(Time::MAX));
        }
    }
}
