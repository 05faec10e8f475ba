//! Calls that give their timers a meta.

use serde::Serialize;

use super::Durable;
use crate::calls::{CallError, IfAbsentAnswer, ScheduleAnswer, Sent};
use crate::store::Meta;
use crate::store::schedule::Schedule;

/// The calls that schedule timers, with a [`Meta`] for each: [`Durable::meta`] returns it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use std::collections::BTreeMap;
/// # use tourbillon_durable::{Durable, Memory, Meta};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
/// let (of_acme, day) = (timers.meta(&meta), Duration::from_secs(86_400));
/// of_acme.schedule("pay-by", "order:7", day, &7).wait()?;
/// of_acme.schedule_if_absent("welcome", "anna", day, "anna").wait()?;
/// of_acme.schedule_many("pay-by", [("order:8", day, 8), ("order:9", day, 9)]).wait()?;
/// let timer = timers.get("pay-by", "order:9").wait()?.expect("it was scheduled");
/// assert_eq!(timer.meta, Some(meta));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing alone: make a call with it"]
pub struct WithMeta<'t> {
    timers: &'t Durable,
    meta: &'t Meta,
}

impl Durable {
    /// Gives the timers of the next call a [`Meta`]: `timers.meta(&meta).schedule(..)`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use std::collections::BTreeMap;
    /// use tourbillon_durable::{Durable, Memory, Meta};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// let meta = Meta::new(&BTreeMap::from([("tenant", "acme")]))?;
    /// timers.meta(&meta).schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// let timer = timers.get("pay-by", "order:7").wait()?.expect("it was scheduled");
    /// assert_eq!(timer.meta, Some(meta));
    /// # Ok(())
    /// # }
    /// ```
    pub fn meta<'t>(&'t self, meta: &'t Meta) -> WithMeta<'t> {
        WithMeta { timers: self, meta }
    }
}

impl WithMeta<'_> {
    /// Schedules a timer, as [`Durable::schedule`] does.
    pub fn schedule<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> Sent<ScheduleAnswer> {
        self.timers
            .scheduled(queue, key, when, payload, Some(self.meta))
    }

    /// Schedules a timer, unless there is one, as [`Durable::schedule_if_absent`] does. One that is
    /// there keeps its meta.
    pub fn schedule_if_absent<T: Serialize + ?Sized>(
        &self,
        queue: &str,
        key: &str,
        when: impl Into<Schedule>,
        payload: &T,
    ) -> Sent<IfAbsentAnswer> {
        self.timers
            .scheduled_if_absent(queue, key, when, payload, Some(self.meta))
    }

    /// Schedules several timers, as [`Durable::schedule_many`] does. Each of them has the meta.
    pub fn schedule_many<K: AsRef<str>, W: Into<Schedule>, T: Serialize>(
        &self,
        queue: &str,
        timers: impl IntoIterator<Item = (K, W, T)>,
    ) -> Sent<Vec<Result<ScheduleAnswer, CallError>>> {
        self.timers.scheduled_many(queue, timers, Some(self.meta))
    }
}
