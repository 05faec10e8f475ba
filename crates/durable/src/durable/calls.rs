//! Calls on one timer.

use std::time::Duration;

use serde::Serialize;

use super::Durable;
use crate::calls::{
    CallError, CancelAnswer, FromAnswer, IfAbsentAnswer, Invalid, RescheduleAnswer, ScheduleAnswer,
    Sent, names,
};
use crate::client::CallReply;
use crate::store::schedule::Schedule;
use crate::store::{Action, Call, DueAt, Meta, Payload};

/// # Schedule, move and cancel
///
/// A call is sent when it returns, and never blocks, neither for the store nor for other calls. Its
/// answer comes by a [`Sent`].
///
/// Calls of many threads travel to the store together, and each is answered after its own commit. A
/// single call is not delayed for that. Calls on one key are carried out in the order in which they
/// were made.
///
/// Up to 65,536 calls, with up to 64 MiB of keys and payloads, may wait for each connection that
/// writes. A call or a batch of calls that comes below both bounds is taken as a whole. Further
/// ones fail at once with [`CallError::Unavailable`]. Up to 1,000 calls with up to 8 MiB travel in
/// one commit.
///
/// A call whose row a transaction of yours has locked waits for `PostgresBuilder::lock_limit`, which
/// is 1 s by default, and then fails with [`CallError::Unavailable`]. Later calls on the same key
/// wait behind it. Calls on other keys do not.
impl Durable {
    /// Schedules a timer, and replaces one with the same queue and key.
    ///
    /// `when` is a delay or a point in time; [`DueAt`] has the rules. If a run of the key is under
    /// way, the new timer *follows* it: it starts after the end of the run, at its due time or
    /// later, and replaces whatever else would come of the run. If the run fails, it is not tried
    /// again. If its process dies, it is not repeated. What shall happen beside a run needs a key
    /// of its own.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the timer may have been scheduled all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed the call: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let first = timers.schedule("pay-by", "order:7", Duration::from_secs(900), &7).wait()?;
    /// assert_eq!(first.replaced, None);
    /// let sooner = first.due - Duration::from_secs(60);
    /// let second = timers.schedule("pay-by", "order:7", sooner, &7).wait()?;
    /// assert_eq!((second.due, second.replaced), (sooner, Some(first.due)));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("enqueue", "delay", "defer", "run_at", "perform_in"))]
    pub fn schedule<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> Sent<ScheduleAnswer> {
        self.scheduled(queue, key, when, payload, None)
    }

    /// Schedules a timer, unless there is one with the same queue and key, or one runs.
    ///
    /// It is safe to repeat after an answer was lost, while the timer has not run.
    ///
    /// # Errors
    ///
    /// As for [`schedule`](Self::schedule).
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed the call: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let day = Duration::from_secs(86_400);
    /// assert!(timers.schedule_if_absent("digest", "anna", day, &()).wait()?.is_scheduled());
    /// assert!(!timers.schedule_if_absent("digest", "anna", day, &()).wait()?.is_scheduled());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("unique job", "deduplicate", "enqueue_unique"))]
    pub fn schedule_if_absent<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> Sent<IfAbsentAnswer> {
        self.scheduled_if_absent(queue, key, when, payload, None)
    }

    /// Moves a timer. It is due then, as [`DueAt`] says, keeps its payload and its token, and its
    /// counts of errors and crashes start anew.
    ///
    /// While a run of the key is under way, the timer that waits for its end is moved, if there is
    /// one.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the timer may have been moved all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed the call: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// assert!(timers.reschedule("pay-by", "order:7", 30 * minute).wait()?.is_moved());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("postpone", "delay", "snooze"))]
    pub fn reschedule(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<DueAt>,
    ) -> Sent<RescheduleAnswer> {
        self.call(queue, key, |_| {
            let when = names::when(when)?;
            Ok(Action::Reschedule { when })
        })
    }

    /// Makes a timer due now: [`reschedule`](Self::reschedule) with a delay of zero.
    ///
    /// # Errors
    ///
    /// As for [`reschedule`](Self::reschedule).
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed the call: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("remind", "anna", Duration::from_secs(900), &()).wait()?;
    /// assert!(timers.run_now("remind", "anna").wait()?.is_moved());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("hurry", "trigger", "fire", "promote"))]
    pub fn run_now(&self, queue: &str, key: &str) -> Sent<RescheduleAnswer> {
        self.reschedule(queue, key, Duration::ZERO)
    }

    /// Cancels a timer. If it runs, the run goes on, and no other one follows.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the timer may have been cancelled all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed the call: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// assert!(timers.cancel("pay-by", "order:7").wait()?.is_cancelled());
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("delete", "remove", "abort"))]
    pub fn cancel(&self, queue: &str, key: &str) -> Sent<CancelAnswer> {
        self.call(queue, key, |_| Ok(Action::Cancel))
    }

    pub(super) fn scheduled<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
        meta: Option<&Meta>,
    ) -> Sent<ScheduleAnswer> {
        self.call(queue, key, |limit| {
            let meta = self.inner().traced(meta);
            let (when, payload) = self.checked(when, payload, limit, meta.as_ref())?;
            Ok(Action::Schedule { when, payload })
        })
    }

    pub(super) fn scheduled_if_absent<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
        meta: Option<&Meta>,
    ) -> Sent<IfAbsentAnswer> {
        self.call(queue, key, |limit| {
            let meta = self.inner().traced(meta);
            let (when, payload) = self.checked(when, payload, limit, meta.as_ref())?;
            Ok(Action::ScheduleIfAbsent { when, payload })
        })
    }

    /// Checks what a call schedules, and writes the payload.
    pub(super) fn checked<T: Serialize + ?Sized>(
        &self,
        when: impl Into<Schedule>,
        payload: &T,
        limit: usize,
        meta: Option<&Meta>,
    ) -> Result<(DueAt, Payload), Invalid> {
        names::scheduled(when, payload, limit, meta, || self.inner().wall_clock())
    }

    /// Checks a call and sends it.
    pub(super) fn call<A: FromAnswer>(
        &self,
        queue: &str,
        key: &str,
        action: impl FnOnce(usize) -> Result<Action, Invalid>,
    ) -> Sent<A> {
        let inner = self.inner();
        if let Some(refusal) = inner.refusal() {
            return Sent::known(Err(refusal));
        }
        let call = || {
            Ok(Call {
                queue: inner.queue(queue)?,
                key: names::key(key)?,
                action: action(inner.payload_limit)?,
            })
        };
        match call() {
            Ok(call) => {
                let (reply, sent) = Sent::answer(&inner.alarm, A::take);
                inner.writers.send(call, CallReply::one(reply));
                inner.sent(sent)
            }
            Err(invalid) => Sent::known(Err(CallError::Invalid(invalid))),
        }
    }
}
