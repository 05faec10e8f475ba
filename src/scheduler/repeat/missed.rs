//! What happens to a late round of a fixed rate: a pure function of the grid, the deadline, the
//! current time, the policy and the grace.
//!
//! The grid is `point`, `point + period`, and so on. For a late round, all points that have come by
//! now are treated together. The first of them is the round's own.
//!
//! | policy | of ten points that have come | the next one after that |
//! |---|---|---|
//! | `Skip` | none runs, ten are skipped | the first after now |
//! | `Once` | the last one runs now, the nine before it are skipped | the first after now |
//! | `AtMost(3)` | the last three run now, one after the other, the seven before are skipped | the first after now |
//! | `All` | ten run now, one after the other | the first after now |
//!
//! Rounds that are made up need no state in between. After one of them, the next point of the grid
//! is still in the past. So it counts as late in turn, and is made up by the same rule.

use std::time::Duration;

use crate::tick::Time;

/// What happens to the missed rounds of a [fixed rate](super::Period::fixed_rate). A round is
/// missed if it could not start within its [grace](super::Period::grace), because the process was
/// suspended, the machine was busy, or an earlier round took too long.
///
/// The next round that runs reports by [`Round::missed`](super::Round::missed) how many rounds were
/// skipped for good. If some missed rounds are made up, those are the latest ones. So all skipped
/// rounds were due before the round that reports them.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Missed, Period, Scheduler};
///
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// let second = Duration::from_secs(1);
/// timers.repeat("report", Period::fixed_rate(second).missed(Missed::Once), |_| ())?;
/// // Ten rounds are missed, and one of them is made up.
/// let fired = scheduler.jump_to(timers.now() + 10 * second);
/// assert_eq!(fired.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("misfire", "MissedTickBehavior"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Missed {
    /// No missed round is made up. The next round is at the next point of the grid in the future. A
    /// round that is late by less than its [grace](super::Period::grace) is not missed, and runs at
    /// once.
    ///
    /// After a pause of ten periods, one round runs in the next period and reports that ten were
    /// missed.
    ///
    /// On a machine that is always late by more than the grace, no round would ever run. So after a
    /// round was put off three times in a row, a late round runs all the same.
    #[default]
    Skip,
    /// One late round runs at once, whatever the number of missed rounds. It is the latest of them.
    Once,
    /// At most this many late rounds run, one after the other. They are the latest ones, each with
    /// its own deadline; earlier ones are skipped. 0 is [`Skip`](Self::Skip), 1 is
    /// [`Once`](Self::Once).
    AtMost(u64),
    /// Every missed round is made up, one after the other, until the grid has caught up.
    All,
}

impl Missed {
    /// Returns how many of `due` missed rounds run.
    pub(super) fn made(self, due: u64) -> u64 {
        match self {
            Missed::Skip => 0,
            Missed::Once => 1,
            Missed::AtMost(most) => most.min(due),
            Missed::All => due,
        }
    }
}

/// A round whose ticket is being claimed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueRound {
    /// The round's point of the grid.
    pub(crate) point: Time,
    /// The grid's period in nanoseconds; not zero.
    pub(crate) period: u64,
    /// When the round was due: its point, moved by the jitter.
    pub(crate) deadline: Time,
}

/// The fate of a round that is being claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The deadline with which a round starts now, if one does. It belongs to the first point that
    /// is not skipped, and is never later than now.
    pub(crate) runs: Option<Time>,
    /// The number of rounds that are skipped for good.
    pub(crate) missed: u64,
    /// The next point of the grid. If a round starts now, it is the point after that round;
    /// otherwise it is the first point in the future.
    pub(crate) next: Time,
}

/// Decides which of the points that have come run, and how many are skipped.
pub(crate) fn plan(due: DueRound, now: Time, policy: Missed, grace: Duration) -> Plan {
    let late = now.since(due.deadline);
    let (missed, runs) = if late.is_zero() || late < grace {
        // Not missed, so the round runs with its own deadline.
        (0, Some(due.deadline))
    } else {
        // The round's own point always counts: with jitter a round may be late before its point.
        let passed = now.as_nanos().saturating_sub(due.point.as_nanos());
        let come = (passed / due.period).saturating_add(1);
        let made = policy.made(come);
        let missed = come - made;
        // The jitter is kept, but a round must not start before its deadline.
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

/// Returns the first point of the grid that is not before `no_earlier`.
pub(super) fn first_from(point: Time, period: u64, no_earlier: Time) -> Time {
    let ahead = no_earlier.as_nanos().saturating_sub(point.as_nanos());
    after(point, period, ahead.div_ceil(period))
}

/// Returns the point that is `steps` periods after `point`.
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

    fn due(point: u64) -> DueRound {
        DueRound {
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
            // Early, because everything was made due.
            let early = plan(due(500), at(3), policy, GRACE);
            assert_eq!(early, planned(Some(500), 0, 600));
        }
        // The least lateness that counts as missed.
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
        // A round that starts on time is never missed, even without any grace.
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
        // The round before was at 1,000. The pause ends at 2,000 or within the next period.
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

    /// Claims one round after the other at the same moment until the next one is in the future.
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
                        assert_eq!(
                            runs + missed,
                            pause + 1,
                            "REPEAT-3: every point ran or was skipped"
                        );
                        assert_eq!(
                            next,
                            at(1_000 + (pause + 1) * P),
                            "the next point is on the grid"
                        );
                        let late = pause * P + rest;
                        if late > 0 && Duration::from_nanos(late) >= grace {
                            let bound = policy.made(pause + 1);
                            // Rounds that are late by less than the grace are not missed and run in
                            // addition.
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
        let early = DueRound {
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
        // A round whose jitter puts it after its point keeps that jitter when it is made up, but is
        // never due later than it starts.
        let late = DueRound {
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
        let far = DueRound {
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
