//! The call that arms a repeating timer: `Handle::repeat`.

use std::hash::{BuildHasher, Hash};

use super::super::answers::Scheduled;
use super::super::handle::{Handle, Upsert};
use super::cadence::{Cadence, InvalidCadence};
use super::next::IntoNext;
use super::period::Period;
use super::round::Round;
use super::task::Repeat;
use crate::error::ScheduleError;
use crate::shard::splitmix64;
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Runs `task` repeatedly, as `period` says. What is pending under the same key is replaced, as
    /// by [`schedule`](Self::schedule). The repetition ends when:
    ///
    /// - the task answers [`Next::Stop`](crate::Next::Stop); a task that returns nothing continues,
    /// - the key is cancelled or armed anew,
    /// - the scheduler ends.
    ///
    /// Each round is an arming of its own. It counts as one, can be moved or cancelled while it is
    /// pending, and has its own [`TimerId`](crate::TimerId): this call returns the first one, and
    /// [`get`](Self::get) the present one. Rounds of one key never overlap. They run on any free
    /// worker.
    ///
    /// Between two rounds, every call acts as on any pending timer. While a round runs:
    ///
    /// | call | effect |
    /// |---|---|
    /// | [`cancel`](Self::cancel), also by id | answers *running* and notifies the run; no round follows |
    /// | [`cancel_all`](Self::cancel_all) | the same, for each repeating key that runs |
    /// | [`reschedule`](Self::reschedule) | answers *moved*: the next round is due at that time, whatever the running round answers; the grid of a fixed rate begins anew there |
    /// | [`pull_in`](Self::pull_in) | answers *moved*: the next round is due at that time, or earlier if the running round's answer says so |
    /// | [`run_now`](Self::run_now) | answers *running*, and changes nothing |
    /// | [`schedule`](Self::schedule), `repeat` | the new timer runs after the round, and replaces the repetition when the round ends; [`Scheduled::replaced`] is not set for this; if the new timer is cancelled by its id before that, the repetition continues |
    /// | [`schedule_if_absent`](Self::schedule_if_absent) | refused with [`Occupied`](ScheduleError::Occupied) |
    /// | shutdown | the round ends and none follows here; with [`HandBack`](crate::Shutdown::HandBack) the task comes back if the round ends within the shutdown's limit, and otherwise it is dropped |
    ///
    /// With `max_pending`, a repeating timer keeps its permit while its rounds run, so the next
    /// round is never refused.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule), and [`ZeroPeriod`](ScheduleError::ZeroPeriod), and
    /// [`NoRound`](ScheduleError::NoRound) if the schedule function or the calendar returns no first
    /// time, and
    /// [`PeriodOption`](ScheduleError::PeriodOption) if the period was given an option that it does
    /// not have. The error contains the task, and nothing was changed. Key and period are dropped.
    ///
    /// # Panics
    ///
    /// Panics if the schedule function or the calendar panics when it is asked for the first time.
    ///
    /// # Complexity
    ///
    /// As for [`schedule`](Self::schedule). The closure is boxed once, not for each round.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Missed, Period, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// let second = Duration::from_secs(1);
    /// let mut sent = 0;
    /// timers.repeat("heartbeat", Period::fixed_rate(second).missed(Missed::Skip), move |round| {
    ///     sent += 1;
    ///     println!("heartbeat {sent}, {} missed", round.missed());
    /// })?;
    /// assert_eq!(scheduler.advance(10 * second).len(), 10);
    /// // The process stands still for ten seconds: none of the ten is made up for.
    /// assert_eq!(scheduler.jump_to(scheduler.now() + 10 * second).len(), 0);
    /// assert_eq!(scheduler.advance(second).len(), 1);
    /// assert!(timers.cancel("heartbeat").is_cancelled());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("setInterval", "cron", "periodic", "every", "heartbeat"))]
    pub fn repeat<F, R>(
        &self,
        key: K,
        period: Period,
        task: F,
    ) -> Result<Scheduled, ScheduleError<F>>
    where
        F: FnMut(&Round<'_, K, S>) -> R + Send + 'static,
        R: IntoNext + 'static,
    {
        let (begun, task) = self.begin_cadence(&key, period, task)?;
        let repeat = Repeat::new(task, begun.cadence);
        let (deadline, now) = (begun.deadline, begun.now);
        self.arm_task(
            key,
            repeat,
            deadline,
            now,
            Upsert::Always,
            Repeat::into_task,
        )
    }

    /// Makes the cadence of a task, and returns the task. Called without a lock, because a schedule
    /// function is user code.
    pub(in crate::scheduler) fn begin_cadence<F>(
        &self,
        key: &K,
        period: Period,
        task: F,
    ) -> Result<(BegunCadence, F), ScheduleError<F>> {
        let now = self.now();
        // The hash depends on the engine's seed, so a stepped scheduler repeats its jitter.
        let (_, hash) = self.hash_of(key);
        let random = splitmix64(hash.0 ^ now.as_nanos());
        let least_grace = self.engine().frontend.least_grace;
        let first = (period.first).map(|when| self.engine().deadline_from(now, when));
        match Cadence::begin(period, first, now, self.clock(), random, least_grace) {
            Ok((cadence, deadline)) => {
                let begun = BegunCadence {
                    cadence,
                    deadline,
                    now,
                };
                Ok((begun, task))
            }
            Err(InvalidCadence::Zero) => Err(ScheduleError::ZeroPeriod(task)),
            Err(InvalidCadence::NoRound) => Err(ScheduleError::NoRound(task)),
            Err(InvalidCadence::Option) => Err(ScheduleError::PeriodOption(task)),
        }
    }
}

/// A cadence, and when its first round is due.
pub(in crate::scheduler) struct BegunCadence {
    pub(in crate::scheduler) cadence: Cadence,
    pub(in crate::scheduler) deadline: Time,
    pub(in crate::scheduler) now: Time,
}
