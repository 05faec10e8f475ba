//! What becomes of a round of a fixed rate that is late: a pure function of the grid, the deadline,
//! the present, the policy and the grace.
//!
//! The grid is `point`, `point + period`, and so on. Of a late round all points that have come by
//! now are looked at together; the first of them is the round's own.
//!
//! | policy | of ten points that have come | the next one after that |
//! |---|---|---|
//! | `Skip` | none runs, ten are left out | the first after now |
//! | `Once` | the last one runs now, the nine before it are left out | the first after now |
//! | `AtMost(3)` | the last three run now, one after the other, the seven before them are left out | the first after now |
//! | `All` | ten run now, one after the other | the first after now |
//!
//! Nothing has to be remembered between the runs that make up for something: each one leaves the
//! points that are still to be run as the grid's next ones, and those are late again.

use std::time::Duration;

use crate::tick::Time;

/// What becomes of rounds of a [fixed rate](super::Period::fixed_rate) that were missed: those that
/// could not start within their [grace](super::Period::grace), since the process was suspended, the
/// machine was busy, or a round before took too long.
///
/// [`Round::missed`](super::Round::missed) of the next round that runs is the number of rounds that
/// were left out for good. If some missed rounds are made up for, they are the latest ones. So the
/// rounds that were left out were all due before the round that reports them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Missed {
    /// No late round: the next one is the next point of the grid that lies ahead. After a pause of
    /// ten periods it is told that ten were missed, and the period after the pause sees one round.
    ///
    /// On a machine that is always late by more than the grace every fourth round runs all the
    /// same.
    #[default]
    Skip,
    /// One late round at once, whatever the number of missed rounds. It is the latest of them.
    Once,
    /// At most this many late rounds, one after the other: the latest ones, each with its own
    /// deadline. Those before them are left out. 0 is [`Skip`](Self::Skip), 1 is
    /// [`Once`](Self::Once).
    AtMost(u64),
    /// Every round is made up for, one after the other, until the grid is caught up with.
    All,
}

impl Missed {
    /// How many of so many are run.
    fn made(self, due: u64) -> u64 {
        match self {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::AtMost(most) => most.min(due),
            Missed::All => due,
        }
    }
}

/// A round that has come to be claimed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    /// Its point of the grid.
    pub(super) point: Time,
    /// The grid's period in nanoseconds; not zero.
    pub(super) period: u64,
    /// When it was due: its point, moved by the jitter.
    pub(super) deadline: Time,
}

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// The deadline with which a round starts now: that of the first point that is not left out.
    /// Never later than now.
    pub(super) runs: Option<Time>,
    /// So many rounds are left out for good.
    pub(super) missed: u64,
    /// The next point of the grid: that of the round after the one that starts now, or, if none
    /// does, the first that lies ahead.
    pub(super) next: Time,
}

pub(super) fn plan(due: Due, now: Time, policy: Missed, grace: Duration) -> Plan {
    let late = now.since(due.deadline);
    let (missed, runs) = if late.is_zero() || late < grace {
        (0, Some(due.deadline))
    } else {
        // At least its own: by the jitter it may be late before its point has come.
        let passed = now.as_nanos().saturating_sub(due.point.as_nanos());
        let come = (passed / due.period).saturating_add(1);
        let made = policy.made(come);
        let missed = come - made;
        let deadline = after(due.deadline, due.period, missed).min(now);
        (missed, (made > 0).then_some(deadline))
    };
    let steps = missed.saturating_add(u64::from(runs.is_some()));
    Plan {
        runs,
        missed,
        next: after(due.point, due.period, steps),
    }
}

/// The first point of the grid that is not before `no_earlier`.
pub(super) fn first_from(point: Time, period: u64, no_earlier: Time) -> Time {
    let ahead = no_earlier.as_nanos().saturating_sub(point.as_nanos());
    after(point, period, ahead.div_ceil(period))
}

fn after(point: Time, period: u64, steps: u64) -> Time {
    point + Duration::from_nanos(period.saturating_mul(steps))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const P: u64 = 100;
    const GRACE: Duration = Duration::from_nanos(P);

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn due(point: u64) -> Due {
        Due {
            point: at(point),
            period: P,
            deadline: at(point),
        }
    }

    fn planned(runs: Option<u64>, missed: u64, next: u64) -> Plan {
        Plan {
            runs: runs.map(at),
            missed,
            next: at(next),
        }
    }

    #[test]
    fn c102_what_is_late_by_less_than_the_grace_runs() {
        for policy in [Missed::Skip, Missed::Once, Missed::AtMost(3), Missed::All] {
            for late in [0, 1, 50, 99] {
                let plan = plan(due(500), at(500 + late), policy, GRACE);
                assert_eq!(plan, planned(Some(500), 0, 600), "{policy:?} {late}");
            }
            // Early, when everything was made due.
            let early = plan(due(500), at(3), policy, GRACE);
            assert_eq!(early, planned(Some(500), 0, 600));
        }
        // The least lateness that is none of less than the grace.
        assert_eq!(
            plan(due(500), at(600), Missed::Skip, GRACE),
            planned(None, 2, 700)
        );
        // A grace of several periods.
        let long = Duration::from_nanos(3 * P);
        assert_eq!(
            plan(due(500), at(799), Missed::Skip, long),
            planned(Some(500), 0, 600)
        );
        assert_eq!(
            plan(due(500), at(800), Missed::Skip, long),
            planned(None, 4, 900)
        );
        // On time is never missed, without any grace, too.
        let none = Duration::ZERO;
        assert_eq!(
            plan(due(500), at(500), Missed::Skip, none),
            planned(Some(500), 0, 600)
        );
        assert_eq!(
            plan(due(500), at(501), Missed::Skip, none),
            planned(None, 1, 600)
        );
    }

    #[test]
    fn c101_after_a_pause_of_ten_periods() {
        // The round before was at 1,000, and the pause ends at 2,000 or within the period after.
        for now in [2_000, 2_001, 2_050, 2_099] {
            for (policy, expected) in [
                (Missed::Skip, planned(None, 10, 2_100)),
                (Missed::Once, planned(Some(2_000), 9, 2_100)),
                (Missed::AtMost(0), planned(None, 10, 2_100)),
                (Missed::AtMost(1), planned(Some(2_000), 9, 2_100)),
                (Missed::AtMost(3), planned(Some(1_800), 7, 1_900)),
                (Missed::AtMost(10), planned(Some(1_100), 0, 1_200)),
                (Missed::AtMost(11), planned(Some(1_100), 0, 1_200)),
                (Missed::All, planned(Some(1_100), 0, 1_200)),
            ] {
                let plan = plan(due(1_100), at(now), policy, GRACE);
                assert_eq!(plan, expected, "{policy:?} {now}");
            }
        }
    }

    /// Claims one round after the other at the same moment until the next one lies ahead.
    fn catch_up(first: u64, now: u64, policy: Missed, grace: Duration) -> (u64, u64, Time) {
        let (mut runs, mut missed) = (0, 0);
        let mut point = at(first);
        while point <= at(now) {
            let plan = plan(due(point.as_nanos()), at(now), policy, grace);
            assert!(plan.next > point);
            runs += u64::from(plan.runs.is_some());
            missed += plan.missed;
            point = plan.next;
        }
        (runs, missed, point)
    }

    #[test]
    fn runs_and_what_is_left_out_add_up_to_the_points_of_the_grid() {
        for pause in 0..40 {
            for rest in [0, 1, 99] {
                let now = 1_000 + pause * P + rest;
                for grace in [1, 50, 100, 101, 250, 1_000] {
                    let grace = Duration::from_nanos(grace);
                    for policy in [
                        Missed::Skip,
                        Missed::Once,
                        Missed::AtMost(2),
                        Missed::AtMost(7),
                        Missed::All,
                    ] {
                        let (runs, missed, next) = catch_up(1_000, now, policy, grace);
                        assert_eq!(runs + missed, pause + 1, "REPEAT-3");
                        assert_eq!(next, at(1_000 + (pause + 1) * P), "on the grid");
                        let late = pause * P + rest;
                        if late > 0 && Duration::from_nanos(late) >= grace {
                            let bound = policy.made(pause + 1);
                            // What is late by less than the grace is not missed and runs besides.
                            let in_time = u64::try_from(grace.as_nanos()).unwrap().div_ceil(P);
                            assert!(runs >= bound && runs <= bound + in_time);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn with_a_grace_of_a_period_the_numbers_are_exact() {
        for pause in 1..40_u64 {
            for rest in [0, 1, 99] {
                let now = 1_000 + pause * P + rest;
                for (policy, runs) in [
                    (Missed::Skip, 0),
                    (Missed::Once, 1),
                    (Missed::AtMost(5), (pause + 1).min(5)),
                    (Missed::All, pause + 1),
                ] {
                    assert_eq!(catch_up(1_000, now, policy, GRACE).0, runs, "{policy:?}");
                }
            }
        }
    }

    #[test]
    fn by_the_jitter_a_round_may_be_late_before_its_point() {
        let early = Due {
            point: at(500),
            period: P,
            deadline: at(450),
        };
        let grace = Duration::from_nanos(20);
        assert_eq!(
            plan(early, at(480), Missed::Skip, grace),
            planned(None, 1, 600)
        );
        assert_eq!(
            plan(early, at(480), Missed::Once, grace),
            planned(Some(450), 0, 600)
        );
        assert_eq!(
            plan(early, at(460), Missed::Skip, grace),
            planned(Some(450), 0, 600)
        );
        // A round that comes after its point stays ahead of it when it is made up for, and is never
        // due later than it starts.
        let late = Due {
            point: at(500),
            period: P,
            deadline: at(530),
        };
        assert_eq!(
            plan(late, at(780), Missed::Once, grace),
            planned(Some(730), 2, 800)
        );
        assert_eq!(
            plan(late, at(710), Missed::Once, grace),
            planned(Some(710), 2, 800)
        );
    }

    #[test]
    fn the_numeric_end_saturates() {
        let far = Due {
            point: at(u64::MAX - 5),
            period: P,
            deadline: at(u64::MAX - 5),
        };
        let plan = plan(far, Time::MAX, Missed::All, Duration::from_nanos(1));
        assert_eq!((plan.runs, plan.next), (Some(far.deadline), Time::MAX));
        assert_eq!(first_from(at(7), u64::MAX, at(8)), Time::MAX);
        assert_eq!(first_from(at(7), 10, at(7)), at(7));
        assert_eq!(first_from(at(7), 10, at(3)), at(7));
        assert_eq!(first_from(at(7), 10, at(8)), at(17));
        assert_eq!(first_from(at(7), 10, at(17)), at(17));
        assert_eq!(first_from(at(7), 10, at(18)), at(27));
    }
}
