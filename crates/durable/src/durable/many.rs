//! Calls on many timers.

use std::collections::HashSet;

use serde::Serialize;

use super::Durable;
use crate::calls::{
    AnswerList, CallError, CancelAnswer, FromAnswer, Invalid, ScheduleAnswer, Sent, names,
};
use crate::client::{CallReply, Collector};
use crate::store::schedule::Schedule;
use crate::store::{Action, Call, Meta};

/// The results of several calls, in their order.
type Results<A> = Vec<Result<A, CallError>>;

/// # Many at once
impl Durable {
    /// Schedules several timers of a queue, each as by [`schedule`](Self::schedule). The results
    /// have the order of the timers.
    ///
    /// Each is a call of its own: one that is refused fails alone. They travel in commits of up to
    /// 1,000.
    ///
    /// # Errors
    ///
    /// The name of the queue is refused, two of the timers have the same key, or the timers have
    /// been stopped. Then none was scheduled.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed all of them: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let trials = [("anna", 14_u64), ("ben", 30)];
    /// let days = |days: u64| Duration::from_secs(86_400 * days);
    /// let trials = trials.map(|(key, length)| (key, days(length), length));
    /// let results = timers.schedule_many("trial-end", trials).wait()?;
    /// assert!(results.iter().all(Result::is_ok));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("enqueue_many", "bulk insert", "batch"))]
    pub fn schedule_many<K: AsRef<str>, W: Into<Schedule>, T: Serialize>(
        &self,
        queue: &str,
        timers: impl IntoIterator<Item = (K, W, T)>,
    ) -> Sent<Vec<Result<ScheduleAnswer, CallError>>> {
        self.scheduled_many(queue, timers, None)
    }

    pub(super) fn scheduled_many<K: AsRef<str>, W: Into<Schedule>, T: Serialize>(
        &self,
        queue: &str,
        timers: impl IntoIterator<Item = (K, W, T)>,
        meta: Option<&Meta>,
    ) -> Sent<Results<ScheduleAnswer>> {
        let limit = self.inner().payload_limit;
        let meta = self.inner().traced(meta);
        let actions = timers.into_iter().map(|(key, when, payload)| {
            let checked = self.checked(when, &payload, limit, meta.as_ref());
            let action = checked.map(|(when, payload)| Action::Schedule { when, payload });
            (key, action)
        });
        self.call_many(queue, actions)
    }

    /// Cancels several timers of a queue, each as by [`cancel`](Self::cancel). The results have the
    /// order of the keys.
    ///
    /// # Errors
    ///
    /// The name of the queue is refused, two of the keys are the same, or the timers have been
    /// stopped. Then none was cancelled.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed all of them: see [`Sent::wait`].
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
    /// let answers = timers.cancel_many("pay-by", ["order:7", "order:8"]).wait()?;
    /// assert!(answers[0].as_ref().is_ok_and(|answer| answer.is_cancelled()));
    /// assert!(answers[1].as_ref().is_ok_and(|answer| !answer.is_cancelled()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel_many<K: AsRef<str>>(
        &self,
        queue: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Sent<Vec<Result<CancelAnswer, CallError>>> {
        let actions = keys.into_iter().map(|key| (key, Ok(Action::Cancel)));
        self.call_many(queue, actions)
    }

    fn call_many<K: AsRef<str>, A: FromAnswer>(
        &self,
        queue: &str,
        actions: impl Iterator<Item = (K, Result<Action, Invalid>)>,
    ) -> Sent<Results<A>> {
        let inner = self.inner();
        if let Some(refusal) = inner.refusal() {
            return Sent::known(Err(refusal));
        }
        let queue = match inner.queue(queue) {
            Ok(queue) => queue,
            Err(invalid) => return Sent::known(Err(invalid.into())),
        };
        // All are checked before the first one is sent.
        let calls: Vec<Result<Call, Invalid>> = actions
            .map(|(key, action)| {
                Ok(Call {
                    queue: queue.clone(),
                    key: names::key(key.as_ref())?,
                    action: action?,
                })
            })
            .collect();
        let mut keys = HashSet::new();
        for call in calls.iter().flatten() {
            if !keys.insert(&call.key) {
                let invalid = Invalid::SameKey(call.key.to_string());
                return Sent::known(Err(invalid.into()));
            }
        }
        if calls.is_empty() {
            return Sent::known(Ok(Vec::new()));
        }
        let (reply, sent) = Sent::answers(&inner.alarm, take_all);
        let collector = Collector::new(calls.len(), reply);
        let calls = calls.into_iter().enumerate().filter_map(|(index, call)| {
            let reply = CallReply::part(&collector, index);
            match call {
                Ok(call) => Some((call, reply)),
                Err(invalid) => {
                    reply.send(Err(invalid.into()));
                    None
                }
            }
        });
        inner.writers.send_many(calls);
        inner.sent(sent)
    }
}

fn take_all<A: FromAnswer>(answers: AnswerList) -> Results<A> {
    let answers = answers.into_iter();
    answers.map(|answer| answer.and_then(A::take)).collect()
}
