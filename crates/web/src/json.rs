//! Answers of a store as JSON: of `/api/v1`, and of the command. Times are UTC, to the second.

use serde_json::{Value, json};
use tourbillon_durable::{DeadTimer, QueueCounts, StoredNode, StoredTimer};
use tourbillon_leases::{HeldLock, Holder, Mode};

use crate::schedules;
use crate::times::time;

/// JSON of the store, or the text itself if it is none.
#[must_use]
pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The numbers of a queue.
#[must_use]
pub fn queue(counts: &QueueCounts) -> Value {
    json!({"queue": counts.queue, "waiting": counts.waiting, "within_minute": counts.within_minute,
        "within_ten_minutes": counts.within_ten_minutes, "overdue": counts.overdue, "running": counts.running,
        "dead": counts.dead, "oldest": counts.oldest.map(time), "paused": counts.paused})
}

/// A timer with its schedule, without its payload and meta data.
#[must_use]
pub fn timer(timer: &StoredTimer) -> Value {
    json!({"queue": timer.queue, "key": timer.key, "state": timer.state.as_str(), "due": time(timer.due),
        "planned": time(timer.planned), "attempts": timer.attempt, "errors": timer.fails, "crashes": timer.crashes,
        "node": timer.node, "running_since": timer.running.map(time), "cancelled": timer.cancelled,
        "follows": timer.follows, "schedule": schedules::json(timer, None, None)})
}

/// A dead letter, without its payload and meta data.
#[must_use]
pub fn letter(letter: &DeadTimer) -> Value {
    json!({"id": letter.id, "queue": letter.queue, "key": letter.key, "given_up": time(letter.at),
        "planned": time(letter.planned), "attempts": letter.attempt, "errors": letter.fails, "crashes": letter.crashes,
        "error": letter.error, "has_timer": letter.has_timer})
}

/// A process with handlers.
#[must_use]
pub fn node(node: &StoredNode) -> Value {
    json!({"id": node.id, "name": node.name, "queues": node.queues, "joined": time(node.joined),
        "silent_ms": node.silent_for.as_millis() as u64, "gone": node.gone.map(time)})
}

/// A lock that is held.
#[must_use]
pub fn lock(lock: &HeldLock) -> Value {
    json!({"name": lock.name, "owner": lock.holder.owner, "token": lock.holder.token,
        "remaining_ms": lock.holder.remaining.as_millis() as u64, "mode": lock.holder.mode.to_string(),
        "holders": lock.holder.holders, "data": lock.holder.data})
}

/// How a lock is held, and by how many if that may be several.
#[must_use]
pub fn mode(holder: &Holder) -> String {
    match holder.mode {
        Mode::Exclusive => holder.mode.to_string(),
        mode => format!("{mode}, held by {}", holder.holders),
    }
}
