//! When to start more workers: pure logic over times and counters.
//!
//! A ticker whose tickets wait asks at least once per limit. If no ticket at all was claimed for
//! the limit, every worker is stuck in a task: one more is started, then two, then four, until
//! claims move again. Workers that were just started claim one ticket each and may get stuck in it
//! like the others, so as many claims as that don't count as movement: with a hundred blocking
//! tasks the number doubles instead of growing one by one.

use std::time::Duration;

use crate::tick::Time;

/// The longest pause between two looks of a ticker that can't start anybody.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// One per ticker. Several tickers may each start workers for one and the same stall; the seats
/// bound that.
#[derive(Debug)]
pub(crate) struct GrowthWatch {
    limit: Duration,
    stall: Option<Stall>,
}

#[derive(Clone, Copy, Debug)]
struct Stall {
    claims: u64,
    /// When the last look was.
    seen: Time,
    /// When claims are compared next.
    due: Time,
    /// How many were started last; their first claims are expected.
    started: usize,
    /// How long to wait after the next fruitless look.
    pause: Duration,
}

/// What a ticker should do about the number of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// Nothing waits: sleep as long as the wheels allow.
    Calm,
    /// Sleep until this moment at most, and look again.
    LookAgain(Time),
    /// Start this many workers, and look again.
    Start { count: usize, look_again: Time },
}

impl GrowthWatch {
    /// `limit`: how long tickets wait without any claim before a worker is started.
    pub(crate) fn new(limit: Duration) -> Self {
        GrowthWatch { limit, stall: None }
    }

    /// Called by a ticker before it sleeps. `waiting`: a ticket of its is unclaimed; `claims`: the
    /// pool's; `at_most`: seats that are free.
    pub(crate) fn look(&mut self, now: Time, waiting: bool, claims: u64, at_most: usize) -> Growth {
        if !waiting {
            self.stall = None;
            return Growth::Calm;
        }
        let fresh = Stall {
            claims,
            seen: now,
            due: now + self.limit,
            started: 0,
            pause: self.limit,
        };
        let Some(stall) = &mut self.stall else {
            return self.remember(fresh);
        };
        let moved = claims.wrapping_sub(stall.claims);
        if moved > stall.started as u64 || now < stall.seen {
            // Claims move, or the clock was set back and `due` means nothing any more.
            return self.remember(fresh);
        }
        stall.seen = now;
        if now < stall.due {
            return Growth::LookAgain(stall.due);
        }
        stall.claims = claims;
        if at_most == 0 {
            stall.pause = stall
                .pause
                .saturating_mul(2)
                .min(LONGEST_PAUSE.max(self.limit));
            stall.due = now + stall.pause;
            // Nobody was started, so no claim is expected.
            stall.started = 0;
            return Growth::LookAgain(stall.due);
        }
        let count = stall.started.saturating_mul(2).clamp(1, at_most);
        stall.started = count;
        stall.pause = self.limit;
        stall.due = now + self.limit;
        Growth::Start {
            count,
            look_again: stall.due,
        }
    }

    fn remember(&mut self, stall: Stall) -> Growth {
        self.stall = Some(stall);
        Growth::LookAgain(stall.due)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(2);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn start(count: usize, look_again: u64) -> Growth {
        Growth::Start {
            count,
            look_again: at(look_again),
        }
    }

    #[test]
    fn nothing_waits_nothing_to_do() {
        let mut watch = GrowthWatch::new(LIMIT);
        assert_eq!(watch.look(at(0), false, 0, 9), Growth::Calm);
        assert_eq!(watch.look(at(50), false, 0, 9), Growth::Calm);
    }

    #[test]
    fn a_stall_starts_one_then_two_then_four() {
        let mut watch = GrowthWatch::new(LIMIT);
        assert_eq!(watch.look(at(10), true, 5, 9), Growth::LookAgain(at(12)));
        assert_eq!(watch.look(at(11), true, 5, 9), Growth::LookAgain(at(12)));
        assert_eq!(watch.look(at(12), true, 5, 9), start(1, 14));
        assert_eq!(watch.look(at(14), true, 5, 8), start(2, 16));
        assert_eq!(watch.look(at(16), true, 5, 6), start(4, 18));
        assert_eq!(watch.look(at(18), true, 5, 2), start(2, 20));
    }

    #[test]
    fn the_first_claims_of_those_started_do_not_end_a_stall() {
        let mut watch = GrowthWatch::new(LIMIT);
        watch.look(at(0), true, 0, 9);
        assert_eq!(watch.look(at(2), true, 0, 9), start(1, 4));
        // The new one claimed a ticket and is stuck like the others.
        assert_eq!(watch.look(at(4), true, 1, 8), start(2, 6));
        assert_eq!(watch.look(at(6), true, 3, 6), start(4, 8));
        // More than those four claimed: movement.
        assert_eq!(watch.look(at(8), true, 8, 2), Growth::LookAgain(at(10)));
        assert_eq!(watch.look(at(10), true, 8, 2), start(1, 12));
    }

    #[test]
    fn any_claim_within_the_limit_is_movement() {
        let mut watch = GrowthWatch::new(LIMIT);
        for now in 0..20 {
            let look = watch.look(at(now), true, now, 9);
            assert_eq!(look, Growth::LookAgain(at(now + 2)));
        }
    }

    #[test]
    fn at_the_maximum_it_looks_less_and_less_often() {
        let mut watch = GrowthWatch::new(LIMIT);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let Growth::LookAgain(then) = watch.look(at(now), true, 0, 0) else {
                panic!("no seat is free");
            };
            pauses.push(then.since(at(now)).as_millis());
            now = u64::try_from(then.since(Time::ZERO).as_millis()).unwrap();
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100, 100]);
        // A seat got free.
        assert_eq!(watch.look(at(now), true, 0, 3), start(1, now + 2));
    }

    #[test]
    fn a_clock_set_back_begins_anew() {
        let mut watch = GrowthWatch::new(LIMIT);
        watch.look(at(1_000), true, 0, 9);
        assert_eq!(watch.look(at(5), true, 0, 9), Growth::LookAgain(at(7)));
        assert_eq!(watch.look(at(7), true, 0, 9), start(1, 9));
    }

    #[test]
    fn the_end_of_time_saturates() {
        let mut watch = GrowthWatch::new(Duration::MAX);
        assert_eq!(watch.look(at(1), true, 0, 9), Growth::LookAgain(Time::MAX));
    }
}
