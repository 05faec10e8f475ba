//! Calls that give their timers a meta.

use serde::Serialize;

use super::Durable;
use crate::calls::{CallError, IfAbsentAnswer, ScheduleAnswer, Sent};
use crate::store::{DueAt, Meta};

/// The calls that schedule timers, with a [`Meta`] for each: [`Durable::meta`] returns it.
#[derive(Clone, Copy, Debug)]
#[must_use = "it does nothing alone: make a call with it"]
pub struct WithMeta<'t> {
    timers: &'t Durable,
    meta: &'t Meta,
}

impl Durable {
    /// Gives the timers of the next call a [`Meta`]: `timers.meta(&meta).schedule(..)`.
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
        when: impl Into<DueAt>,
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
        when: impl Into<DueAt>,
        payload: &T,
    ) -> Sent<IfAbsentAnswer> {
        self.timers
            .scheduled_if_absent(queue, key, when, payload, Some(self.meta))
    }

    /// Schedules several timers, as [`Durable::schedule_many`] does. Each of them has the meta.
    pub fn schedule_many<K: AsRef<str>, W: Into<DueAt>, T: Serialize>(
        &self,
        queue: &str,
        timers: impl IntoIterator<Item = (K, W, T)>,
    ) -> Sent<Vec<Result<ScheduleAnswer, CallError>>> {
        self.timers.scheduled_many(queue, timers, Some(self.meta))
    }
}
