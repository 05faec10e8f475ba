//! Why a timer has not run.

use std::time::{Duration, SystemTime};

use tourbillon_durable::{QueueCounts, StoredNode, StoredState, StoredTimer};

use crate::times::{distance, short};

/// A process that was silent for so long is worth a word: three times the usual interval of beats.
pub(crate) const SILENT: Duration = Duration::from_secs(9);

/// A timer that is overdue for less may be on its way.
const ON_ITS_WAY: Duration = Duration::from_secs(3);
/// A due time further ahead than this is the end of all times.
const ALL_TIMES: Duration = Duration::from_secs(1_000 * 365 * 24 * 3_600);

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
    let schedule_is_paused = matches!(timer.schedule(), Some(Ok(schedule)) if schedule.paused);
    let is_paused = !schedule_is_paused && timer.state == StoredState::Paused
        || counts.is_some_and(|counts| counts.paused);
    // Nodes join and beat by the store's clock, so a join that lies ahead tells of a clock that was
    // set back.
    let ahead = nodes
        .iter()
        .filter_map(|node| node.joined.duration_since(now).ok())
        .max();
    if let Some(ahead) = ahead.filter(|ahead| *ahead > ON_ITS_WAY) {
        why.push(format!(
            "A process joined at a time that is {} ahead of this machine's clock. Either a clock was set back, or \
             this machine's clock differs from the store's. After a clock was set back, timers wait until it has \
             reached their due times again.",
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
                "That process has been silent for {}. If it is dead, another process runs the timer again after the \
                 lease has ended.",
                short(silent)
            ));
        }
        return why;
    }
    if schedule_is_paused {
        why.push("This schedule is paused: it has no occurrence until it is resumed.".to_owned());
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
        let (who, have) = match handlers.len() {
            1 => ("The only process".to_owned(), "has"),
            many => (format!("All {many} processes"), "have"),
        };
        why.push(format!(
            "{who} with a handler for this queue {have} been silent for at least {}. Dead processes are silent, and \
             so are processes that can't reach the store.",
            short(least)
        ));
    }
    if timer.fails > 0 {
        why.push(format!(
            "Its handler has failed {}. The next attempt starts at the due time. The log of the process has the errors.",
            times(timer.fails)
        ));
    }
    if timer.crashes > 0 {
        why.push(format!(
            "The process died during a run of this timer: {}.",
            times(timer.crashes)
        ));
    }
    if timer.is_unnamed(nodes) && !nodes.is_empty() {
        why.push(
            "No running process declares this schedule. If it was removed from the program, cancel it."
                .to_owned(),
        );
    }
    match now.duration_since(timer.due) {
        // The end of all times, unless somebody has moved it since.
        Err(ahead) if schedule_is_paused && ahead.duration() > ALL_TIMES => {}
        Err(ahead) => why.push(format!("It is due in {}.", short(ahead.duration()))),
        Ok(late) if why.is_empty() && late < ON_ITS_WAY => {
            why.push("It is due now, and starts within moments.".to_owned());
        }
        Ok(late) if why.is_empty() => {
            let running = counts.map_or(0, |counts| counts.running);
            why.push(format!(
                "It has been due for {}, and a process for its queue is alive. {running} timers of the queue are running. \
                 Perhaps no more may run at one time, or the queue has a limit per second.",
                short(late)
            ));
        }
        Ok(_) => {}
    }
    why
}

/// How often something happened, in words.
fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}
