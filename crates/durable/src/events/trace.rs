//! Events of operators as events of the crate `tracing`. Feature `tracing`.

use tracing::{error, info, warn};

use super::DurableEvent;

/// Whether somebody listens to warnings.
pub(super) fn hears() -> bool {
    tracing::level_enabled!(tracing::Level::WARN)
}

/// Tells the subscriber of an event, which is code of the user. So it is called on the thread of the
/// listener, where no work of the node waits for it.
pub(super) fn tell(event: &DurableEvent) {
    use DurableEvent as E;
    match event {
        E::Failed {
            queue,
            key,
            attempt,
            error,
        } => {
            warn!(target: "tourbillon_durable", queue, key, attempt, error, "a handler has failed");
        }
        E::Panicked {
            queue,
            key,
            attempt,
            message,
        } => {
            let panic = message;
            warn!(target: "tourbillon_durable", queue, key, attempt, panic, "a handler has panicked");
        }
        E::Slow {
            queue,
            key,
            attempt,
            duration,
        } => {
            warn!(target: "tourbillon_durable", queue, key, attempt, ?duration, "a run was slow");
        }
        E::Dead { queue, key, error } => {
            error!(target: "tourbillon_durable", queue, key, error, "a timer was given up");
        }
        E::DeadByCrashes { timers } => {
            let what = "timers were given up, since the processes that ran them ended too often";
            error!(target: "tourbillon_durable", timers, "{what}");
        }
        E::Missed {
            queue,
            key,
            scheduled_for,
            next,
        } => {
            let what = "occurrences of a schedule were left out";
            warn!(target: "tourbillon_durable", queue, key, ?scheduled_for, ?next, "{what}");
        }
        E::Unreadable { queue, key, error } => {
            let what = "a payload or a schedule can't be read";
            warn!(target: "tourbillon_durable", queue, key, error, "{what}");
        }
        E::Refused { queue, key, error } => {
            let what = "the store refuses to claim or to settle a timer";
            warn!(target: "tourbillon_durable", queue, key, error, "{what}");
        }
        E::Fenced {
            queue,
            key,
            attempt,
        } => {
            let what = "a run has ended after another node took its timer over";
            warn!(target: "tourbillon_durable", queue, key, attempt, "{what}");
        }
        E::StoreDown { work, error } => {
            error!(target: "tourbillon_durable", ?work, error, "an outage of the store has begun");
        }
        E::StoreUp => info!(target: "tourbillon_durable", "the outage of the store is over"),
        E::StoreReplaced { error } => {
            error!(target: "tourbillon_durable", error, "the store is not the one that was opened");
        }
        E::DoorbellDown { error } => {
            warn!(target: "tourbillon_durable", error, "the doorbell of the store is not heard");
        }
        E::DoorbellUp => info!(target: "tourbillon_durable", "the doorbell of the store is heard"),
        E::NodeGone => {
            let what = "others have declared this node gone, since it was silent for longer than its lease";
            warn!(target: "tourbillon_durable", "{what}");
        }
        E::Dropped { events } => {
            warn!(target: "tourbillon_durable", events, "the listener of events was too slow for these");
        }
    }
}
