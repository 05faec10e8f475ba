//! What is pending and what runs, as text.

use core::fmt;
use core::time::Duration;

use super::Health;

/// The greatest number of shards, and of running tasks, that are written one by one.
const LISTED: usize = 100;

/// What a scheduler, a map or a timer has pending, and what runs, at one moment: for people who look
/// into a process that is in trouble. `Display` writes it as text of at most some hundred lines.
///
/// The calls that make one wait for no lock. A part whose lock is held by another thread is asked
/// again for some milliseconds, and then counted as *busy*: what it has is in no other number.
///
/// The parts are read one after the other, so this is no snapshot of a scheduler that goes on.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("soon", Duration::from_millis(10), |_| ())?;
/// timers.schedule("later", Duration::from_secs(7200), |_| ())?;
/// let dump = timers.dump();
/// let sum = |count: fn(&tourbillon::ShardDump) -> u64| dump.shards.iter().map(count).sum::<u64>();
/// assert_eq!((sum(|shard| shard.pending), sum(|shard| shard.within_second)), (2, 1));
/// assert!(dump.to_string().starts_with("scheduler: alive, ready\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("debug", "thread_dump", "inspect"))]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Dump {
    /// `scheduler`, `map` or `timer`, and the name that the builder was given.
    pub title: String,
    /// Whether it is alive and ready, and why not.
    pub health: Health,
    /// Number of workers, on a runtime of those that it shares with others.
    pub workers: usize,
    /// Number of workers that have nothing to do.
    pub idle_workers: usize,
    /// Number of workers that wait inside a task; `None` where the system can't say. If there are
    /// more than 32 workers, an estimate.
    pub blocked_workers: Option<usize>,
    /// Number of tasks that are due and wait for a worker. A task whose timer was cancelled counts
    /// until a worker has found that.
    pub waiting: usize,
    /// The pending timers by shard.
    pub shards: Vec<ShardDump>,
    /// The tasks that run for the longest time, 100 at most, the oldest first.
    pub running: Vec<RunDump>,
    /// Number of all tasks that run.
    pub running_total: usize,
}

/// The pending timers of one shard, which one ticker serves. A part of a [`Dump`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// let timer = tourbillon::Timer::new()?;
/// let _timeout = timer.after(Duration::from_secs(30), || ())?;
/// let shards = timer.dump().shards;
/// let with_one = shards.iter().find(|shard| shard.pending > 0).expect("a timer is pending");
/// assert_eq!((with_one.within_minute, with_one.overdue), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardDump {
    /// How long ago the ticker has taken its last step. A ticker with nothing to do takes none.
    pub stepped: Duration,
    /// Number of parts that could not be read, since another thread kept them locked.
    pub busy: u64,
    /// Number of timers that have not started. It is the sum of the next five.
    pub pending: u64,
    /// Those whose deadline has passed.
    pub overdue: u64,
    /// Those that are due within a second.
    pub within_second: u64,
    /// Those that are due later than that, within a minute.
    pub within_minute: u64,
    /// Those that are due later than that, within an hour.
    pub within_hour: u64,
    /// Those that are due later than that, or never.
    pub later: u64,
}

/// A task that runs. A part of a [`Dump`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("report", Duration::from_secs(1), |firing| {
///     let running = firing.handle().dump().running;
///     assert_eq!(running[0].key, "\"report\"");
///     assert_eq!((running[0].since, running[0].cancelled), (Duration::ZERO, false));
/// })?;
/// scheduler.advance(Duration::from_secs(1));
/// assert_eq!(timers.stats().panicked, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RunDump {
    /// The key, as its `Debug` writes it, cut after 100 characters. Empty for timers without a key.
    pub key: String,
    /// How long it runs.
    pub since: Duration,
    /// Whether it was cancelled meanwhile, so that a task which asks for it should end.
    pub cancelled: bool,
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title, self.health)?;
        write!(f, "{} workers, {} idle", self.workers, self.idle_workers)?;
        if let Some(blocked) = self.blocked_workers {
            write!(f, ", {blocked} blocked in tasks")?;
        }
        writeln!(
            f,
            "; {} tasks wait for one, {} run",
            self.waiting, self.running_total
        )?;
        for (number, shard) in self.shards.iter().take(LISTED).enumerate() {
            writeln!(f, "shard {number}: {shard}")?;
        }
        let more = |f: &mut fmt::Formatter<'_>, count: usize, what| match count {
            0 => Ok(()),
            count => writeln!(f, "and {count} more {what}"),
        };
        more(f, self.shards.len().saturating_sub(LISTED), "shards")?;
        for run in self.running.iter().take(LISTED) {
            writeln!(f, "{run}")?;
        }
        let listed = self.running.len().min(LISTED);
        more(f, self.running_total.saturating_sub(listed), "running")
    }
}

impl fmt::Display for ShardDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pending: {} overdue, {} within 1 s, {} within 1 min, {} within 1 h, {} later; \
             last step {:.1?} ago",
            self.pending,
            self.overdue,
            self.within_second,
            self.within_minute,
            self.within_hour,
            self.later,
            self.stepped
        )?;
        match self.busy {
            0 => Ok(()),
            busy => write!(f, "; {busy} parts are busy and not counted"),
        }
    }
}

impl fmt::Display for RunDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "running for {:.1?}", self.since)?;
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        if self.cancelled {
            f.write_str(", cancelled")?;
        }
        Ok(())
    }
}
