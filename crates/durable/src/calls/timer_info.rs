//! Timers and dead letters as users read them, in the time of the system.

use std::time::SystemTime;

use serde::de::DeserializeOwned;

#[cfg(feature = "cron")]
use crate::store::StoredNode;
#[cfg(feature = "cron")]
use crate::store::schedule::{StoredSchedule, UnreadableSchedule, is_declared};
use crate::store::{DeadLetter, Meta, StoredState, Timer};

/// A timer as it was when it was read.
///
/// One that was scheduled during a run of its key [follows](Self::follows) the run. It is read
/// together with the run: `due`, `planned`, `payload` and `meta` are its own, and `attempt`, `fails`,
/// `crashes` and `running` are those of the run. The payload of the run is not stored any more.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon_durable::{Durable, Memory, StoredState};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// # let minute = Duration::from_secs(60);
/// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
/// let timer = timers.get("pay-by", "order:7").wait()?.expect("it was scheduled");
/// assert_eq!((timer.attempt, timer.state), (0, StoredState::Waiting));
/// assert_eq!(timer.payload, "7");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct StoredTimer {
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it is due next, by the store's clock.
    pub due: SystemTime,
    /// When it was due first, before retries.
    pub planned: SystemTime,
    /// The number of runs so far.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose process died.
    pub crashes: u32,
    /// What it does at the moment.
    pub state: StoredState,
    /// Since when a node has been running it.
    pub running: Option<SystemTime>,
    /// The name of this node.
    pub node: Option<String>,
    /// Whether it was cancelled during its run.
    pub cancelled: bool,
    /// Whether it was scheduled during this run, and starts after it.
    pub follows: bool,
    /// The payload, as JSON.
    pub payload: String,
    /// The meta that it was scheduled with.
    pub meta: Option<Meta>,
}

impl StoredTimer {
    /// Reads the payload as a type.
    ///
    /// # Errors
    ///
    /// The payload does not have this type.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// let timer = timers.get("pay-by", "order:7").wait()?.expect("it was scheduled");
    /// assert_eq!(timer.payload_as::<u64>()?, 7);
    /// assert!(timer.payload_as::<String>().is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }

    /// Returns the schedule of a timer that runs each time that a calendar says. `None`: it runs once.
    ///
    /// # Errors
    ///
    /// The schedule can't be followed: a user of SQL has written it so, or this machine has no data of
    /// its zone.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_durable::{Cron, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let hourly = Cron::new("0 * * * *", "UTC")?;
    /// timers.schedule("sync", "shop", hourly, &7).wait()?;
    /// let timer = timers.get("sync", "shop").wait()?.expect("it was scheduled");
    /// match timer.schedule() {
    ///     Some(Ok(schedule)) => println!("{} {}", schedule.cron.expression(), schedule.cron.zone()),
    ///     Some(Err(unreadable)) => println!("{unreadable}"),
    ///     None => println!("once"),
    /// }
    /// # assert!(timer.schedule().is_some_and(|schedule| schedule.is_ok()));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    #[doc(alias("next run", "last run", "recurring"))]
    #[must_use]
    pub fn schedule(&self) -> Option<Result<StoredSchedule, UnreadableSchedule>> {
        StoredSchedule::of(self.meta.as_ref())
    }

    /// Whether a program has declared this schedule, and no running process does. It may have been
    /// removed from the program. The schedule goes on until it is
    /// [cancelled](crate::Durable::cancel). `nodes` are [those of the store](crate::Durable::nodes).
    ///
    /// While all processes of a program are down, this holds for each of its schedules.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Cron, Due, Durable, Memory, Paging, TimerFilter};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .handle("report", |due: &Due<u64>| println!("{}", due.payload()))
    ///     .cron("daily", Cron::new("30 2 * * *", "UTC")?, &7)
    ///     .start()?;
    /// # while timers.nodes().wait()?.is_empty() { std::thread::yield_now(); }
    /// let nodes = timers.nodes().wait()?;
    /// for timer in timers.list(TimerFilter::all().schedules(), &Paging::first(100)).wait()? {
    ///     assert!(!timer.is_unnamed(&nodes)); // this process names it
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cron")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cron")))]
    #[doc(alias("orphan", "orphaned"))]
    #[must_use]
    pub fn is_unnamed(&self, nodes: &[StoredNode]) -> bool {
        let names = |node: &StoredNode| {
            let keys = node.schedules.get(&self.queue);
            node.gone.is_none() && keys.is_some_and(|keys| keys.contains(&self.key))
        };
        is_declared(self.meta.as_ref()) && !nodes.iter().any(names)
    }
}

impl From<Timer> for StoredTimer {
    fn from(timer: Timer) -> Self {
        StoredTimer {
            queue: timer.queue,
            key: timer.key,
            due: timer.due.into(),
            planned: timer.planned.into(),
            attempt: timer.attempt,
            fails: timer.fails,
            crashes: timer.crashes,
            state: timer.state,
            running: timer.running.map(Into::into),
            node: timer.node,
            cancelled: timer.cancelled,
            follows: timer.follows,
            payload: timer.payload,
            meta: timer.meta,
        }
    }
}

/// A timer that was given up.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_durable::{Due, Durable, DurableEvent, Memory, RetryPolicy};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (gave_up, dead) = std::sync::mpsc::channel();
/// let timers = Durable::builder(Memory::new())
/// #   .on_event(move |event| if let DurableEvent::Dead { .. } = event { drop(gave_up.send(1)) })
///     .handle("mail", |_: &Due<u64>| Err::<(), _>("no such address"))
///     .retry(RetryPolicy::never())
///     .start()?;
/// timers.schedule("mail", "order:7", Duration::ZERO, &7_u64).wait()?;
/// # dead.recv()?;
/// for letter in timers.dead("mail", 0, 100).wait()? {
///     assert_eq!(letter.error, "no such address");
///     assert_eq!(letter.payload_as::<u64>()?, 7);
///     timers.revive(letter.id).wait()?;
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias("dead letter", "dead letter queue", "dlq", "failed job"))]
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeadTimer {
    /// Its number, by which [`revive`](crate::Durable::revive) finds it.
    pub id: i64,
    /// The queue.
    pub queue: String,
    /// The key within the queue.
    pub key: String,
    /// When it was due first.
    pub planned: SystemTime,
    /// When it was given up.
    pub at: SystemTime,
    /// The number of runs.
    pub attempt: u32,
    /// The number of runs that returned an error.
    pub fails: u32,
    /// The number of runs whose process died.
    pub crashes: u32,
    /// Why it was given up.
    pub error: String,
    /// Whether its key has a timer again. Then it can't be revived.
    pub has_timer: bool,
    /// The payload, as JSON.
    pub payload: String,
    /// The meta that it was scheduled with.
    pub meta: Option<Meta>,
}

impl DeadTimer {
    /// Reads the payload as a type.
    ///
    /// # Errors
    ///
    /// The payload does not have this type.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload)
    }
}

impl From<DeadLetter> for DeadTimer {
    fn from(letter: DeadLetter) -> Self {
        DeadTimer {
            id: letter.id,
            queue: letter.queue,
            key: letter.key,
            planned: letter.planned.into(),
            at: letter.at.into(),
            attempt: letter.attempt,
            fails: letter.fails,
            crashes: letter.crashes,
            error: letter.error,
            has_timer: letter.has_timer,
            payload: letter.payload,
            meta: letter.meta,
        }
    }
}

/// Which part of a long list to read.
///
/// A page also ends when its payloads have 8 MiB, so that it holds up no other call for long. Only
/// an empty page says that there are no more timers.
///
/// # Examples
///
/// ```
/// use tourbillon_durable::{Durable, Memory, Paging};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timers = Durable::builder(Memory::new()).start()?;
/// let mut paging = Paging::first(1_000);
/// loop {
///     let page = timers.list("pay-by", &paging).wait()?;
///     let Some(last) = page.last() else { break };
///     paging = Paging::after(last, 1_000);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Paging {
    pub(crate) after: Option<(SystemTime, String, String)>,
    pub(crate) limit: u32,
}

impl Paging {
    /// The first timers, at most this number, from 1 to 10,000.
    #[must_use]
    pub fn first(limit: u32) -> Self {
        Paging { after: None, limit }
    }

    /// The timers that follow the one that was due at this time, at most this number, from 1 to 10,000:
    /// for a page whose address holds the place. That timer need not exist any more.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::SystemTime;
    /// # use tourbillon_durable::{Durable, Memory, Paging};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let place = Paging::behind(SystemTime::now(), "pay-by".into(), "order:7".into(), 50);
    /// assert!(timers.list("pay-by", &place).wait()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn behind(due: SystemTime, queue: String, key: String, limit: u32) -> Self {
        Paging {
            after: Some((due, queue, key)),
            limit,
        }
    }

    /// The timers that follow this one, at most this number, from 1 to 10,000.
    #[must_use]
    pub fn after(last: &StoredTimer, limit: u32) -> Self {
        Paging::behind(last.due, last.queue.clone(), last.key.clone(), limit)
    }
}

/// What operators read, as JSON. Fields may be added; those that are here keep their names and
/// forms.
#[cfg(all(test, feature = "serde"))]
mod tests {
    use serde::Serialize;
    use serde_json::{Value, json, to_value};

    use super::*;
    use crate::events::{DurableEvent, DurableStats, StoreWork};
    use crate::store::{QueueCounts, StoreTime};

    #[track_caller]
    fn is(value: impl Serialize, expected: &Value) {
        assert_eq!(&to_value(value).unwrap(), expected);
    }

    /// A time as serde writes it.
    fn at(secs: u64, nanos: u32) -> Value {
        json!({"secs_since_epoch": secs, "nanos_since_epoch": nanos})
    }

    #[test]
    fn timers_and_dead_letters() {
        let (due, text) = (StoreTime::from_micros(1_000_007), String::from);
        let timer = StoredTimer {
            queue: text("pay-by"),
            key: text("order 7"),
            due: due.into(),
            planned: due.into(),
            attempt: 2,
            fails: 1,
            crashes: 0,
            state: StoredState::Running,
            running: Some(due.into()),
            node: Some(text("shop-1")),
            cancelled: false,
            follows: false,
            payload: text("[7]"),
            meta: Some(Meta::of_json("{\"tenant\":1}")),
        };
        let expected = json!({
            "queue": "pay-by", "key": "order 7", "due": at(1, 7_000), "planned": at(1, 7_000),
            "attempt": 2, "fails": 1, "crashes": 0, "state": "running", "running": at(1, 7_000),
            "node": "shop-1", "cancelled": false,
            "follows": false, "payload": "[7]", "meta": "{\"tenant\":1}",
        });
        is(timer, &expected);
        let dead = DeadTimer {
            id: 3,
            queue: text("pay-by"),
            key: text("order 7"),
            planned: due.into(),
            at: due.into(),
            attempt: 2,
            fails: 2,
            crashes: 0,
            error: text("no"),
            has_timer: true,
            payload: text("[7]"),
            meta: None,
        };
        let expected = json!({
            "id": 3, "queue": "pay-by", "key": "order 7", "planned": at(1, 7_000),
            "at": at(1, 7_000), "attempt": 2, "fails": 2, "crashes": 0, "error": "no",
            "has_timer": true, "payload": "[7]", "meta": null,
        });
        is(dead, &expected);
    }

    #[test]
    fn events() {
        let down = DurableEvent::StoreDown {
            work: StoreWork::Poll,
            error: "no answer".to_owned(),
        };
        let expected = json!({"StoreDown": {"work": "Poll", "error": "no answer"}});
        is(down, &expected);
        is(DurableEvent::StoreUp, &json!("StoreUp"));
        let (queue, key) = ("pay-by".to_owned(), "order 7".to_owned());
        let fenced = DurableEvent::Fenced {
            queue,
            key,
            attempt: 2,
        };
        let expected = json!({"Fenced": {"queue": "pay-by", "key": "order 7", "attempt": 2}});
        is(fenced, &expected);
    }

    #[test]
    fn counts() {
        let counts = QueueCounts {
            queue: "pay-by".to_owned(),
            waiting: 3,
            oldest: Some(StoreTime::from_micros(1_000_007).into()),
            ..QueueCounts::default()
        };
        let expected = json!({
            "queue": "pay-by", "waiting": 3, "within_minute": 0, "within_ten_minutes": 0, "overdue": 0,
            "running": 0,
            "oldest": at(1, 7_000), "dead": 0, "paused": false,
        });
        is(counts, &expected);
        let stats = DurableStats {
            runs: 5,
            ..DurableStats::default()
        };
        let Value::Object(stats) = to_value(stats).unwrap() else {
            panic!("statistics are an object");
        };
        let (runs, others): (Vec<_>, Vec<_>) = stats.iter().partition(|(name, _)| *name == "runs");
        assert_eq!(runs[0].1, 5);
        assert!(others.iter().all(|(_, number)| **number == 0));
        let mut names: Vec<_> = stats.keys().map(String::as_str).collect();
        names.sort_unstable();
        let expected = [
            "cancelled",
            "coming",
            "commits",
            "dead",
            "expired",
            "failed",
            "failed_calls",
            "fenced",
            "given_back",
            "gone",
            "moved",
            "panicked",
            "refused",
            "replaced",
            "retried",
            "rings",
            "running",
            "runs",
            "scheduled",
            "stopped_work",
            "store_errors",
            "succeeded",
            "unreadable",
        ];
        assert_eq!(names, expected);
    }
}
