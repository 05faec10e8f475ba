//! A run of a timer with a schedule: whether it starts, and what follows it.

#[cfg(not(feature = "cron"))]
pub(crate) use NoOccurrence as Occurrence;
#[cfg(feature = "cron")]
pub(crate) use with_cron::Occurrence;

#[cfg(not(feature = "cron"))]
use crate::store::{ClaimedRun, Next, schedule};
use crate::store::{Outcome, StoreTime};

/// What becomes of a timer that was claimed.
pub(crate) enum Start {
    /// It runs. A plain timer has no occurrence.
    Run(Option<Occurrence>),
    /// It does not run, and ends so.
    #[cfg_attr(
        not(feature = "cron"),
        expect(dead_code, reason = "only a schedule ends without a run")
    )]
    Not(Outcome),
    /// The same, since occurrences were missed: the first of them, when the later one is due, and the
    /// end.
    #[cfg(feature = "cron")]
    Missed(StoreTime, StoreTime, Outcome),
    /// This process can't tell, for this reason.
    Unreadable(String),
}

#[cfg(feature = "cron")]
mod with_cron {
    use std::time::Duration;

    use super::super::node_lease::StoreClock;
    use super::Start;
    use crate::store::schedule::{Begin, CronRun};
    use crate::store::{ClaimedRun, Next, Outcome, StoreTime};
    use crate::sync::{Arc, OnceLock};

    /// An occurrence that runs.
    #[derive(Debug)]
    pub(crate) struct Occurrence {
        run: CronRun,
        clock: Arc<StoreClock>,
        /// What follows it, as `complete_in` has told the store.
        completing: OnceLock<Option<Next>>,
    }

    /// The end of a claim whose occurrence was missed. If the later one is due, it keeps the claim:
    /// under a constant overload that one would be missed too until it is claimed again, and no
    /// occurrence would ever run.
    fn after_missed(claimed: &ClaimedRun, next: Next, now: StoreTime) -> Outcome {
        if next.due > now {
            return Outcome::Next(Box::new(next));
        }
        let mut later = claimed.clone();
        (later.due, later.planned) = (next.due, next.due);
        later.payload.meta = Some(next.meta);
        Outcome::Step(Arc::new(later))
    }

    impl Occurrence {
        pub(crate) fn start(
            claimed: &ClaimedRun,
            crash_limit: u32,
            clock: &Arc<StoreClock>,
            now: StoreTime,
        ) -> Start {
            let is_new = claimed.fails == 0 && claimed.crashes == 0 && !claimed.stepped;
            let meta = claimed.payload.meta.as_ref();
            let run = match CronRun::begin(meta, claimed.planned, is_new, now) {
                None => return Start::Run(None),
                Some(Err(why)) => {
                    return Start::Unreadable(format!("its schedule can't be followed: {why}"));
                }
                Some(Ok(Begin::Wait(next))) => return Start::Not(Outcome::Next(Box::new(next))),
                Some(Ok(Begin::Missed(first, next))) => {
                    let due = next.due;
                    return Start::Missed(first, due, after_missed(claimed, next, now));
                }
                Some(Ok(Begin::Run(run))) => run,
            };
            let occurrence = Occurrence {
                run,
                clock: Arc::clone(clock),
                completing: OnceLock::new(),
            };
            // The store leaves this to the node.
            if claimed.crashes >= crash_limit {
                let times = claimed.crashes;
                let error = format!("the process that ran it ended {times} times during the run");
                return Start::Not(occurrence.end(Outcome::Dead(error)));
            }
            Start::Run(Some(occurrence))
        }

        /// The time that it stands for.
        pub(crate) fn scheduled_for(&self) -> StoreTime {
            self.run.scheduled_for()
        }

        /// Whether it has given way to the next one, or will have after this span.
        pub(crate) fn gives_way(&self, after: Duration) -> bool {
            self.run.is_replaced(self.clock.now() + after)
        }

        pub(crate) fn completing(&self) -> Option<&Next> {
            let next = || self.run.next(self.clock.now(), "done");
            self.completing.get_or_init(next).as_ref()
        }

        /// The end of the run, with what follows.
        pub(crate) fn end(&self, outcome: Outcome) -> Outcome {
            let next = |outcome| self.run.next(self.clock.now(), outcome).map(Box::new);
            match outcome {
                Outcome::Done => next("done").map_or(Outcome::Done, Outcome::Next),
                Outcome::Dead(error) => match next("dead") {
                    Some(next) => Outcome::DeadThen(error, next),
                    None => Outcome::Dead(error),
                },
                other => other,
            }
        }
    }
}

/// Without the feature `cron` there is none.
#[cfg(not(feature = "cron"))]
#[derive(Debug)]
pub(crate) enum NoOccurrence {}

#[cfg(not(feature = "cron"))]
impl NoOccurrence {
    pub(super) fn start<C>(claimed: &ClaimedRun, _: u32, _: &C, _: StoreTime) -> Start {
        match schedule::is_schedule(claimed.payload.meta.as_ref()) {
            false => Start::Run(None),
            true => Start::Unreadable(
                "it has a schedule: build this process with the feature `cron`".to_owned(),
            ),
        }
    }

    pub(super) fn gives_way(&self, _: std::time::Duration) -> bool {
        match *self {}
    }

    pub(super) fn completing(&self) -> Option<&Next> {
        match *self {}
    }

    pub(super) fn end(&self, _: Outcome) -> Outcome {
        match *self {}
    }
}

#[cfg(all(test, feature = "cron", not(loom)))]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use serde_json::json;
    use tourbillon::{Clock, ManualClock};

    use super::super::node_lease::{LocalClock, StoreClock};
    use super::*;
    use crate::store::{ClaimedRun, Meta, Payload, Run};
    use crate::sync::Arc;

    #[test]
    fn what_was_stepped_runs_however_long_the_step_took() {
        let clock = LocalClock::on(Clock::manual(&ManualClock::new()));
        let clock = Arc::new(StoreClock::new(clock));
        let cron = json!({"expression": "@hourly", "zone": "UTC", "grace": 60, "offset": 0,
            "at": "1970-01-01T01:00:00Z"});
        let due = StoreTime::from(UNIX_EPOCH + Duration::from_secs(3_600));
        let late = due + Duration::from_secs(120);
        let start = |stepped, fails, crashes| {
            let claimed = ClaimedRun {
                run: Run {
                    queue: "q".into(),
                    key: "k".into(),
                    generation: 1,
                    attempt: 1,
                },
                due,
                planned: due,
                fails,
                crashes,
                stepped,
                payload: Payload {
                    json: "null".into(),
                    meta: Some(Meta::of_json(json!({ "cron": cron }).to_string())),
                },
            };
            Occurrence::start(&claimed, 3, &clock, late)
        };
        assert!(matches!(start(false, 0, 0), Start::Missed(first, ..) if first == due));
        // Neither is what has begun to run before.
        for (stepped, fails, crashes) in [(true, 0, 0), (false, 1, 0), (false, 0, 1)] {
            let Start::Run(Some(run)) = start(stepped, fails, crashes) else {
                panic!("{stepped} {fails} {crashes}");
            };
            assert_eq!(run.scheduled_for(), due);
        }
    }
}
