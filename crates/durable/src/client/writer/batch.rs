//! Which of the waiting calls travel in the next commit.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use super::capacity::Reservation;
use super::reply::CallReply;
use crate::store::{Action, Call};

/// A call on its way to the store.
pub(crate) struct WriteRequest {
    pub(super) call: Call,
    pub(super) reply: CallReply,
    /// The hash of queue and key.
    pub(super) hash: u64,
    /// Its part of the bounds on waiting calls.
    pub(super) reservation: Reservation,
    /// When its wait for a lock is over, once it was found locked or stands behind a call that was.
    pub(super) until: Option<Instant>,
}

/// The greatest number of calls in one commit.
pub(super) const LARGEST: usize = 1_000;

/// The greatest number of bytes in one commit, except that a call which is larger travels alone.
pub(super) const LARGEST_BYTES: usize = 8 * 1024 * 1024;

/// How many waiting calls are looked at for one commit. It bounds the work when most of them have
/// the same key.
pub(super) const WINDOW: usize = 4 * LARGEST;

/// The bytes of a call's texts.
pub(super) fn bytes(call: &Call) -> usize {
    let payload = match &call.action {
        Action::Schedule { payload, .. }
        | Action::ScheduleIfAbsent { payload, .. }
        | Action::Declare { payload, .. } => payload.bytes(),
        Action::Reschedule { .. } | Action::Cancel => 0,
    };
    call.key.len() + payload
}

/// Takes calls for one commit, at most one for each queue and key. The others stay in their order.
/// It takes at least one call, if one waits, and not more than `most`.
pub(super) fn take(waiting: &mut VecDeque<WriteRequest>, most: usize) -> Vec<WriteRequest> {
    let mut batch: Vec<WriteRequest> = Vec::new();
    let mut left = VecDeque::new();
    let mut size = 0;
    // Two keys with the same hash only travel one after the other.
    let mut keys = HashSet::new();
    for _ in 0..WINDOW {
        if batch.len() >= most {
            break;
        }
        let Some(request) = waiting.pop_front() else {
            break;
        };
        if !keys.insert(request.hash) {
            left.push_back(request);
            continue;
        }
        size += request.reservation.bytes();
        if size > LARGEST_BYTES && !batch.is_empty() {
            waiting.push_front(request);
            break;
        }
        batch.push(request);
    }
    while let Some(request) = left.pop_back() {
        waiting.push_front(request);
    }
    batch
}
