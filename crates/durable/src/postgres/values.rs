//! What a call sends to the server, and in which order.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::wire::{Json, Span, Time};
use crate::store::{Action, Call, DueAt, Meta, Outcome, StoreTime};

/// The values of some calls.
pub(super) struct SentCalls<'a> {
    queues: Vec<&'a str>,
    keys: Vec<&'a str>,
    pub(super) actions: Vec<i16>,
    delays: Vec<Option<Span>>,
    times: Vec<Option<Time>>,
    payloads: Vec<Option<Json<'a>>>,
    metas: Vec<Option<Json<'a>>>,
}

impl<'a> SentCalls<'a> {
    pub(super) fn new(calls: &'a [Call], some: &[usize]) -> Self {
        let of = |index: &usize| &calls[*index];
        let parts = || some.iter().map(|index| parts(&of(index).action));
        SentCalls {
            queues: some.iter().map(|index| &*of(index).queue).collect(),
            keys: some.iter().map(|index| &*of(index).key).collect(),
            actions: parts().map(|(action, ..)| action).collect(),
            delays: parts().map(|(_, delay, ..)| delay).collect(),
            times: parts().map(|(_, _, at, ..)| at).collect(),
            payloads: parts().map(|(.., payload, _)| payload).collect(),
            metas: parts().map(|(.., meta)| meta).collect(),
        }
    }

    pub(super) fn values(&self) -> [&(dyn ToSql + Sync); 7] {
        [
            &self.queues,
            &self.keys,
            &self.actions,
            &self.delays,
            &self.times,
            &self.payloads,
            &self.metas,
        ]
    }
}

/// The indices of calls in the order in which rows are locked.
pub(super) fn order(calls: &[Call]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_unstable_by(|a, b| place(&calls[*a]).cmp(&place(&calls[*b])));
    order
}

/// Where a call lies in the order in which rows are locked.
fn place(call: &Call) -> (&str, &str) {
    (&call.queue, &call.key)
}

/// The number of an action, and what belongs to it: the delay, the time, the payload and the meta.
pub(super) type Parts<'a> = (
    i16,
    Option<Span>,
    Option<Time>,
    Option<Json<'a>>,
    Option<Json<'a>>,
);

pub(super) fn parts(action: &Action) -> Parts<'_> {
    let (number, when, payload) = match action {
        Action::Schedule { when, payload } => (0, Some(when), Some(payload)),
        Action::ScheduleIfAbsent { when, payload } => (1, Some(when), Some(payload)),
        Action::Declare { when, payload } => (4, Some(when), Some(payload)),
        Action::Reschedule { when } => (2, Some(when), None),
        Action::Cancel => (3, None, None),
    };
    let (delay, at) = match when {
        Some(DueAt::After(span)) => (Some(Span(*span)), None),
        Some(DueAt::At(time)) => (None, Some(Time((*time).into()))),
        None => (None, None),
    };
    let meta = payload.and_then(|payload| payload.meta.as_ref());
    let meta = meta.map(|meta| Json(meta.as_str()));
    (
        number,
        delay,
        at,
        payload.map(|payload| Json(payload)),
        meta,
    )
}

/// The values of some ends of runs.
#[derive(Default)]
pub(super) struct SentEnds<'a> {
    pub(super) outcomes: Vec<i16>,
    pub(super) delays: Vec<Span>,
    pub(super) errors: Vec<Option<String>>,
    /// The next occurrences of timers with a schedule, and their metas.
    pub(super) nexts: Vec<Option<Time>>,
    pub(super) metas: Vec<Option<Json<'a>>>,
}

impl<'a> SentEnds<'a> {
    pub(super) fn new(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        let mut ends = SentEnds::default();
        for outcome in outcomes {
            let none = Duration::ZERO;
            let (number, delay, error, next): (_, _, _, Option<(StoreTime, &Meta)>) = match outcome
            {
                Outcome::Done => (0, none, None, None),
                Outcome::Again(after) => (1, *after, None, None),
                Outcome::Retry(after) => (2, *after, None, None),
                Outcome::Dead(error) => (3, none, Some(text(error)), None),
                Outcome::GiveBack(after) => (4, *after, None, None),
                Outcome::Next(next) => (0, none, None, Some((next.due, &next.meta))),
                Outcome::DeadThen(error, next) => {
                    (3, none, Some(text(error)), Some((next.due, &next.meta)))
                }
                Outcome::Step(run) => {
                    let meta = run.payload.meta.as_ref();
                    (5, none, None, meta.map(|meta| (run.due, meta)))
                }
            };
            ends.outcomes.push(number);
            ends.delays.push(Span(delay));
            ends.errors.push(error);
            ends.nexts.push(next.map(|(due, _)| Time(due)));
            ends.metas.push(next.map(|(_, meta)| Json(meta.as_str())));
        }
        ends
    }
}

/// Text that the server can keep.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

pub(super) fn small(number: u16) -> i16 {
    i16::try_from(number).unwrap_or(i16::MAX)
}

pub(super) fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
