//! Which of the waiting calls travel in the next commit.

use std::collections::{HashSet, VecDeque};

use super::reply::Answering;
use crate::store::Call;

/// A call on its way to the store.
pub(crate) struct WriteRequest {
    pub(crate) call: Call,
    pub(crate) answering: Answering,
    /// Of queue and key.
    pub(super) hash: u64,
}

/// The greatest number of calls in one commit.
pub(super) const LARGEST: usize = 1_000;

/// How many waiting calls are looked at for one commit. It bounds the work when most of them have
/// the same key.
pub(super) const WINDOW: usize = 4 * LARGEST;

/// Takes calls for one commit, at most one for each queue and key. The others stay in their order.
pub(super) fn take(waiting: &mut VecDeque<WriteRequest>) -> Vec<WriteRequest> {
    let mut batch = Vec::new();
    let mut left = VecDeque::new();
    // Two keys with the same hash only travel one after the other.
    let mut keys = HashSet::new();
    for _ in 0..WINDOW {
        if batch.len() == LARGEST {
            break;
        }
        let Some(request) = waiting.pop_front() else {
            break;
        };
        match keys.insert(request.hash) {
            true => batch.push(request),
            false => left.push_back(request),
        }
    }
    while let Some(request) = left.pop_back() {
        waiting.push_front(request);
    }
    batch
}
