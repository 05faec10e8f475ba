//! Why a timer has not run.

use std::time::{Duration, SystemTime};

use tourbillon_durable::{QueueCounts, StoredNode, StoredState, StoredTimer};

use crate::times::{distance, short};

/// A process that was silent for so long is worth a word: three times the usual interval of beats.
const SILENT: Duration = Duration::from_secs(9);

/// A timer that is overdue for less may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(3);

/// Says in sentences why a timer has not run yet, the most likely reason first. `counts` are those of
/// its queue, and `nodes` those of the store that are not gone.
#[must_use]
pub fn why(
    timer: &StoredTimer,
    counts: Option<&QueueCounts>,
    nodes: &[StoredNode],
    now: SystemTime,
) -> Vec<String> {
    let mut why = Vec::new();
    let handlers = nodes
        .iter()
        .filter(|node| node.queues.contains(&timer.queue));
    let handlers: Vec<&StoredNode> = handlers.collect();
    let is_paused =
        timer.state == StoredState::Paused || counts.is_some_and(|counts| counts.paused);
    // Nodes join and beat by the store's clock, so a join that lies ahead tells of a clock that was
    // set back.
    let ahead = nodes
        .iter()
        .filter_map(|node| node.joined.duration_since(now).ok())
        .max();
    if let Some(ahead) = ahead.filter(|ahead| *ahead > ON_ITS_WAY) {
        why.push(format!(
            "A process joined {} in the future of this machine's clock: a clock was set back, or differs \
             from the store's clock. Timers wait until the store's clock is where it was.",
            short(ahead)
        ));
    }
    if timer.state == StoredState::Running {
        let node = timer.node.as_deref().unwrap_or("a process");
        let since = timer.running.map_or(String::new(), |since| {
            format!(", since {}", distance(since, now))
        });
        let silent = nodes
            .iter()
            .find(|other| Some(&other.name) == timer.node.as_ref());
        why.push(format!(
            "It runs now on {node}{since}: attempt {}.",
            timer.attempt
        ));
        if let Some(silent) = silent
            .map(|node| node.silent_for)
            .filter(|silent| *silent > SILENT)
        {
            why.push(format!(
                "That process has been silent for {}. If it is dead, another one runs the timer again when its lease ends.",
                short(silent)
            ));
        }
        return why;
    }
    if is_paused {
        why.push("The queue is paused: its timers wait until it is resumed.".to_owned());
    }
    if handlers.is_empty() {
        why.push(match nodes.is_empty() {
            true => "No process with handlers is alive.".to_owned(),
            false => "No process that is alive has a handler for this queue.".to_owned(),
        });
    } else if let Some(least) = handlers.iter().map(|node| node.silent_for).min()
        && least > SILENT
    {
        why.push(format!(
            "All {} processes with a handler for this queue are silent, for {} at least: they have died, or do not \
             reach the store.",
            handlers.len(),
            short(least)
        ));
    }
    if timer.fails > 0 {
        why.push(format!(
            "Its handler has failed {} times. The next attempt is at its due time; the errors are in the log of the process.",
            timer.fails
        ));
    }
    if timer.crashes > 0 {
        why.push(format!(
            "{} processes have died during its run.",
            timer.crashes
        ));
    }
    match now.duration_since(timer.due) {
        Err(ahead) => why.push(format!("It is due in {}.", short(ahead.duration()))),
        Ok(late) if why.is_empty() && late < ON_ITS_WAY => {
            why.push("It is due now, and starts within moments.".to_owned());
        }
        Ok(late) if why.is_empty() => {
            let running = counts.map_or(0, |counts| counts.running);
            why.push(format!(
                "It is due for {}, and processes for its queue are alive. {running} timers of the queue run: perhaps as \
                 many as may run at one time, or the queue has a pace.",
                short(late)
            ));
        }
        Ok(_) => {}
    }
    why
}
