//! Random parts of the calls of a store, for the tests that compare one store with the memory.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::subsequence;
use tourbillon_durable::store::Outcome;

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
