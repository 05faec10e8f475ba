//! Schedules that a program has by name.

use serde::Serialize;

use super::{DurableBuilder, QueueBuilder};
use crate::calls::{CallError, IfAbsentAnswer, StartError, names};
use crate::durable::Durable;
use crate::run::Named;
use crate::store::schedule::{self, CronSchedule, Schedule};
use crate::store::{Action, Payload};

impl QueueBuilder {
    /// Gives the queue a schedule: a timer with this key, which runs each time that the calendar
    /// says. Each process of the program may say so. It is one timer, and each occurrence runs once.
    ///
    /// The start stores it. One that is there already stays as it is, with its next occurrence, if
    /// its expression, zone, policies and payload are the same. Otherwise the new definition takes
    /// its place, and the next occurrence is the first after now. That happens once for each change,
    /// also while processes of the old version still run: they follow the stored definition, and have
    /// theirs for the start alone. [`CronSchedule::revision`] keeps those of them that start again
    /// from going back.
    ///
    /// A schedule that no process names any more goes on, and is
    /// [flagged](crate::StoredTimer::is_unnamed). [`cancel`](Durable::cancel) removes it, and the next
    /// start of a process that names it stores it again.
    ///
    /// # Errors
    ///
    /// The start fails with [`StartError::Schedule`] if the key or the payload is refused, or the
    /// schedule can't be stored, and with [`StartError::SameSchedule`] if the queue has another one
    /// with this key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Cron, Due, Durable, Memory};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("report", |due: &Due<String>| {
    ///         println!("the report of {:?} for {}", due.scheduled_for(), due.payload());
    ///     })
    ///     .cron("daily", Cron::new("30 2 * * *", "UTC")?, "the team")
    ///     .cron("weekly", Cron::new("0 8 * * MON", "UTC")?, "the board")
    ///     .start()?;
    /// assert!(timers.get("report", "daily").wait()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    #[doc(alias("recurring", "periodic", "crontab", "every"))]
    pub fn cron<T: Serialize + ?Sized>(
        mut self,
        key: impl Into<String>,
        schedule: impl Into<CronSchedule>,
        payload: &T,
    ) -> Self {
        if let Some((queue, ..)) = self.0.queues.last() {
            self.0.named.push(Named {
                queue: queue.clone(),
                key: key.into(),
                schedule: schedule.into(),
                // Its limit may be set later.
                payload: names::payload(payload, usize::MAX),
            });
        }
        self
    }
}

impl DurableBuilder {
    pub(super) fn check_named(&self) -> Result<(), StartError> {
        for (number, named) in self.named.iter().enumerate() {
            let is_same = |other: &Named| other.queue == named.queue && other.key == named.key;
            if self.named[..number].iter().any(is_same) {
                let (queue, key) = (named.queue.clone(), named.key.clone());
                return Err(StartError::SameSchedule { queue, key });
            }
        }
        Ok(())
    }
}

impl Durable {
    /// Stores the schedules that the program has by name.
    pub(in crate::durable) fn declare(&self, named: Vec<Named>) -> Result<(), StartError> {
        let sent: Vec<_> = named
            .into_iter()
            .map(|named| {
                let sent = self.call::<IfAbsentAnswer>(&named.queue, &named.key, |limit| {
                    let json = named.payload?;
                    if json.len() > limit {
                        return Err(names::Invalid::PayloadSize(limit));
                    }
                    let when = Schedule::from(named.schedule);
                    let now = || self.inner().wall_clock();
                    let (when, meta) = names::when_scheduled(when, None, now)?;
                    let meta = meta.as_ref().map(schedule::declared);
                    let payload = Payload { json, meta };
                    Ok(Action::Declare { when, payload })
                });
                (named.queue, named.key, sent)
            })
            .collect();
        for (queue, key, sent) in sent {
            let refused = |error: CallError| StartError::Schedule { queue, key, error };
            sent.wait().map_err(refused)?;
        }
        Ok(())
    }
}
