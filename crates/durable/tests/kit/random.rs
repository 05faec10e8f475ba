//! Random parts of the calls of a store, for the tests that compare one store with the memory.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::json;
use tourbillon_durable::Meta;
use tourbillon_durable::store::{ClaimedRun, Outcome, Payload, Run, StoreTime};

/// No meta, one without a schedule, or one with a schedule, which may be paused.
pub(crate) fn meta(number: u8) -> Option<Meta> {
    let mut meta = json!({ "of": number });
    match number % 6 {
        0 | 1 => return None,
        2 | 3 => {}
        kind => {
            meta["cron"] = json!({
                "expression": "@daily", "zone": "UTC", "at": "2026-12-01T00:00:00Z",
                "paused": kind == 5 && number % 4 == 1,
            });
        }
    }
    Some(Meta::of_json(meta.to_string()))
}

/// A step to an occurrence whose time is in units that the test chooses.
fn step() -> impl Strategy<Value = Outcome> {
    let metas = prop_oneof![Just(meta(4)), Just(meta(5))];
    (-4_i64..4, metas).prop_map(|(units, meta)| step_to(StoreTime::from_micros(units), meta))
}

fn step_to(due: StoreTime, meta: Option<Meta>) -> Outcome {
    Outcome::Step(Arc::new(ClaimedRun {
        run: Run {
            queue: "".into(),
            key: "".into(),
            generation: 0,
            attempt: 0,
        },
        due,
        planned: due,
        fails: 0,
        crashes: 0,
        stepped: false,
        payload: Payload {
            meta,
            ..Payload::from("0")
        },
    }))
}

/// The same end, with the time of the occurrence that `at` gives for its units.
pub(crate) fn placed(outcome: &Outcome, at: impl Fn(i64) -> StoreTime) -> Outcome {
    match outcome {
        Outcome::Step(run) => step_to(at(run.due.as_micros()), run.payload.meta.clone()),
        other => other.clone(),
    }
}

/// Each kind of end of a run.
pub(crate) fn outcome<S>(span: impl Fn() -> S) -> impl Strategy<Value = Outcome>
where
    S: Strategy<Value = Duration>,
{
    prop_oneof![
        Just(Outcome::Done),
        span().prop_map(Outcome::Again),
        span().prop_map(Outcome::Retry),
        span().prop_map(Outcome::GiveBack),
        Just(Outcome::Dead("it failed".to_owned())),
        step(),
    ]
}

/// Up to five different timers in any order: the numbers of one of two queues, and of a key.
pub(crate) fn places(keys: usize) -> impl Strategy<Value = Vec<(usize, usize)>> {
    let all: Vec<_> = (0..2)
        .flat_map(|queue| (0..keys).map(move |key| (queue, key)))
        .collect();
    subsequence(all, 1..6).prop_shuffle()
}

/// Calls on different timers.
pub(crate) fn writes<D, S>(
    keys: usize,
    doing: impl Fn() -> S,
) -> impl Strategy<Value = Vec<(usize, usize, D)>>
where
    D: std::fmt::Debug,
    S: Strategy<Value = D>,
{
    places(keys).prop_flat_map(move |places| {
        let calls = proptest::collection::vec(doing(), places.len());
        calls.prop_map(move |doings| {
            let calls = places.iter().zip(doings);
            calls
                .map(|((queue, key), doing)| (*queue, *key, doing))
                .collect()
        })
    })
}
