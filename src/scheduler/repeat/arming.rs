//! `Handle::repeat`.

use std::hash::{BuildHasher, Hash};

use super::super::answers::Scheduled;
use super::super::answers::refused;
use super::super::handle::{Handle, Upsert};
use super::super::task::Task;
use super::next::IntoNext;
use super::period::Period;
use super::rhythm::{NoRhythm, Rhythm};
use super::round::Round;
use super::task::Repeat;
use crate::error::ScheduleError;
use crate::shard::mix;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Runs `task` again and again, as `period` says, until it answers
    /// [`Next::Stop`](crate::Next::Stop), the key is cancelled or armed anew, or the scheduler
    /// ends. A task that returns nothing just goes on. What is pending under the same key is
    /// replaced, as by [`schedule`](Self::schedule).
    ///
    /// Each round is an arming of its own: it is counted as one, has a [`TimerId`](crate::TimerId)
    /// of its own (the answer names the first; [`get`](Self::get) tells the present one) and can be
    /// moved or cancelled while it is pending. Rounds of one key never overlap; they run on
    /// whichever worker is free.
    ///
    /// Between two rounds every call does what it does to any pending timer. While a round runs:
    ///
    /// | call | what it does |
    /// |---|---|
    /// | [`cancel`](Self::cancel), also by id | answers *running*, tells the run, and no round follows |
    /// | [`cancel_all`](Self::cancel_all) | the same, for each repeating key that runs |
    /// | [`reschedule`](Self::reschedule) | *moved*: the next round is due then, whatever this one answers; a fixed rate's grid begins anew there |
    /// | [`pull_in`](Self::pull_in) | *moved*: the next round is due then, or earlier if this one's answer says so |
    /// | [`schedule`](Self::schedule), `repeat` | kept for after the run, in place of the repetition, which is none of [`Scheduled::replaced`]; cancelled by its id before the run ends, it leaves the repetition as it was |
    /// | [`schedule_if_absent`](Self::schedule_if_absent) | refused, [`Occupied`](ScheduleError::Occupied) |
    /// | shutdown | the round ends and none follows: the task is dropped, and comes back only between two rounds |
    ///
    /// With `max_pending`, a repeating timer keeps its place while its rounds run, so that the next
    /// one is never refused.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule), and [`ZeroPeriod`](ScheduleError::ZeroPeriod); and
    /// [`NoRound`](ScheduleError::NoRound) if the schedule function knows no first time. The task
    /// comes back in the error, and nothing was changed; key and period are dropped.
    ///
    /// # Panics
    ///
    /// If the schedule function does when it is asked for the first time.
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
        let now = self.now();
        // The engine's seed is in the hash already, so that what is stepped repeats.
        let (_, hash) = self.hash_of(&key);
        let random = mix(hash.0 ^ now.as_nanos());
        let least_grace = self.engine().face.least_grace;
        let (rhythm, deadline) = match Rhythm::begin(period, now, random, least_grace) {
            Ok(begun) => begun,
            Err(NoRhythm::Zero) => return Err(ScheduleError::ZeroPeriod(task)),
            Err(NoRhythm::NoRound) => return Err(ScheduleError::NoRound(task)),
        };
        let mut given = Some((key, Box::new(Repeat::new(task, rhythm))));
        let answer = self.arm_boxed(&mut given, deadline, now, Upsert::Always, |repeat| {
            Task::of(repeat)
        });
        answer.map_err(|refusal| match given {
            Some((_key, repeat)) => refused(refusal, repeat.into_task()),
            None => unreachable!("what is refused is not taken"),
        })
    }
}
