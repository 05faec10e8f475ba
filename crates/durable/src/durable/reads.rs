//! The calls that read timers, and those for operators.

use super::Durable;
use crate::calls::{
    CallError, DeadFilter, DeadTimer, Invalid, Paging, Sent, StoredTimer, TimerFilter, names,
};
use crate::node::Input;
use crate::run::NodeSender;
use crate::store::{Connection, DeadPage, QueueCounts, Revived, StoreError, StoredNode};

/// # Read and operate
///
/// These calls have a connection of their own, so that a long list delays no call that schedules.
/// They are carried out one after the other. Up to 4,096 of them may wait; further ones fail at
/// once with [`CallError::Unavailable`].
impl Durable {
    /// Reads one timer.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why it can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("pay-by", "order:7", Duration::from_secs(900), &7).wait()?;
    /// let timer = timers.get("pay-by", "order:7").wait()?.expect("it was scheduled");
    /// assert_eq!(timer.payload_as::<u64>()?, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, queue: &str, key: &str) -> Sent<Option<StoredTimer>> {
        let checked = || Ok((names::queue(queue)?, names::key(key)?));
        self.read(checked(), |(queue, key), connection| {
            Ok(connection.get(&queue, &key)?.map(StoredTimer::from))
        })
    }

    /// Reads the timers of a filter in the order of their due times, queues and keys. See [`Paging`]
    /// and [`TimerFilter`].
    ///
    /// A timer that is moved between two pages may be in both of them, or in none.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why they can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// # use tourbillon_durable::{Durable, Memory, Paging, TimerFilter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// let of_queue = timers.list("pay-by", &Paging::first(100)).wait()?;
    /// assert_eq!(of_queue[0].key, "order:7");
    /// let soon = TimerFilter::all().due(..SystemTime::now() + 60 * minute);
    /// assert_eq!(timers.list(soon, &Paging::first(100)).wait()?, of_queue);
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(&self, filter: impl Into<TimerFilter>, paging: &Paging) -> Sent<Vec<StoredTimer>> {
        self.read(filter.into().page(paging), |page, connection| {
            let timers = connection.list(&page)?.into_iter();
            Ok(timers.map(StoredTimer::from).collect())
        })
    }

    /// Counts the timers of all queues, and tells for each how far it is behind. Numbers go up to
    /// [`QueueCounts::MOST`], so the call takes no longer if there are more.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why they can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, SystemTime};
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// for queue in timers.counts().wait()? {
    ///     let behind = queue.oldest.and_then(|oldest| SystemTime::now().duration_since(oldest).ok());
    ///     println!("{}: {} overdue, behind by {behind:?}", queue.queue, queue.overdue);
    ///     assert_eq!(queue.waiting, 1);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("queue length", "backlog", "monitoring"))]
    pub fn counts(&self) -> Sent<Vec<QueueCounts>> {
        self.read(Ok(()), |(), connection| connection.counts())
    }

    /// Pauses a queue for all nodes, until it is [resumed](Self::resume). Nodes that start later do
    /// not run its timers either. Present runs go on. A timer that a node has claimed already, or
    /// claims at this very moment, may still start.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the queue may have been paused all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.pause("webhook").wait()?; // while the receiver is repaired
    /// assert!(timers.counts().wait()?[0].paused);
    /// timers.resume("webhook").wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause(&self, queue: &str) -> Sent<()> {
        self.set_paused(queue, true)
    }

    /// Resumes a queue that was [paused](Self::pause). Timers that are overdue start at once, by
    /// the bounds of the queue, except for those that are [too late](crate::Late::ExpireAfter).
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether the queue may have been resumed all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.pause("webhook").wait()?;
    /// timers.schedule("webhook", "order:7", minute, &7).wait()?;
    /// timers.resume("webhook").wait()?; // the receiver is repaired
    /// assert!(!timers.counts().wait()?[0].paused);
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&self, queue: &str) -> Sent<()> {
        self.set_paused(queue, false)
    }

    /// Pauses one schedule for all nodes, until it is [resumed](Self::resume_schedule), and returns
    /// whether there is a schedule with this key. A run that is under way goes on. A retry
    /// waits until the schedule is resumed. A start with another definition leaves it paused.
    /// [`run_now`](Self::run_now) runs it once in addition.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether it may have been paused all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "cron")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tourbillon_durable::{Cron, Durable, Memory, StoredState};
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("remind", "customer:7", Cron::new("0 9 * * *", "UTC")?, &7).wait()?;
    /// assert!(timers.pause_schedule("remind", "customer:7").wait()?); // while the customer is away
    /// let timer = timers.get("remind", "customer:7").wait()?.expect("it is kept");
    /// assert_eq!(timer.state, StoredState::Paused);
    /// assert!(!timers.pause_schedule("remind", "customer:8").wait()?); // there is none
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cron"))]
    /// # fn main() {}
    /// ```
    pub fn pause_schedule(&self, queue: &str, key: &str) -> Sent<bool> {
        self.set_schedule_paused(queue, key, true)
    }

    /// Resumes a schedule that was [paused](Self::pause_schedule), and returns whether there is a
    /// schedule with this key. What it has missed meanwhile is made up as its policy says, as after an
    /// outage.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether it may have been resumed all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "cron")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tourbillon_durable::{Cron, Durable, Memory, StoredState};
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("remind", "customer:7", Cron::new("0 9 * * *", "UTC")?, &7).wait()?;
    /// timers.pause_schedule("remind", "customer:7").wait()?;
    /// assert!(timers.resume_schedule("remind", "customer:7").wait()?); // the customer is back
    /// let timer = timers.get("remind", "customer:7").wait()?.expect("it is kept");
    /// assert_eq!(timer.state, StoredState::Waiting);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "cron"))]
    /// # fn main() {}
    /// ```
    pub fn resume_schedule(&self, queue: &str, key: &str) -> Sent<bool> {
        self.set_schedule_paused(queue, key, false)
    }

    fn set_schedule_paused(&self, queue: &str, key: &str, paused: bool) -> Sent<bool> {
        let node = self.node_sender();
        let checked = names::queue(queue).and_then(|queue| Ok((queue, names::key(key)?)));
        self.read(checked, move |(queue, key), connection| {
            let found = connection.pause_schedule(&queue, &key, paused)?;
            poll_now(node);
            Ok(found)
        })
    }

    fn set_paused(&self, queue: &str, paused: bool) -> Sent<()> {
        let node = self.node_sender();
        self.read(names::queue(queue), move |queue, connection| {
            connection.set_paused(&queue, paused)?;
            poll_now(node);
            Ok(())
        })
    }

    /// Reads all nodes in the order in which they joined: the processes with handlers. One that is
    /// gone is kept for a day at least.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why they can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_durable::{Due, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new())
    ///     .name("shop-1")
    ///     .handle("pay-by", |due: &Due<u64>| println!("order {}", due.payload()))
    ///     .start()?;
    /// # while timers.nodes().wait()?.is_empty() { std::thread::yield_now(); }
    /// for node in timers.nodes().wait()? {
    ///     println!("{} handles {:?}, seen {:?} ago", node.name, node.queues, node.silent_for);
    ///     assert!(node.name.starts_with("shop-1"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("processes", "workers", "members"))]
    pub fn nodes(&self) -> Sent<Vec<StoredNode>> {
        self.read(Ok(()), |(), connection| connection.nodes())
    }

    /// Reads dead letters in the order of their [numbers](DeadTimer::id): those of the filter with a
    /// greater number than `after`, at most `limit`, from 1 to 10,000. The first page is after 0.
    /// A page also ends when its payloads have 8 MiB, and only an empty one says that there are no
    /// more.
    ///
    /// Dead letters are kept for 30 days, unless
    /// [`keep_dead_for`](crate::DurableBuilder::keep_dead_for) of the processes with handlers says
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why they can't be read.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has read it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let mut after = 0;
    /// loop {
    ///     let page = timers.dead("pay-by", after, 1_000).wait()?;
    ///     let Some(last) = page.last() else { break };
    ///     after = last.id;
    ///     for letter in &page {
    ///         println!("{} was given up: {}", letter.key, letter.error);
    ///     }
    /// }
    /// assert_eq!(after, 0); // there were none
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("dead letter", "dlq", "failed jobs"))]
    pub fn dead(
        &self,
        filter: impl Into<DeadFilter>,
        after: i64,
        limit: u32,
    ) -> Sent<Vec<DeadTimer>> {
        self.read(filter.into().page(after, limit), |page, connection| {
            let letters = connection.dead(&page)?.into_iter();
            Ok(letters.map(DeadTimer::from).collect())
        })
    }

    /// Turns a dead letter into a timer that is due now, with no errors or crashes counted and with
    /// another token.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether it may have been revived all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory, Revived};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// match timers.revive(7).wait()? {
    ///     Revived::Revived { queue, key } => println!("{queue} {key} is due now"),
    ///     Revived::Exists => println!("its key has a timer again"),
    ///     other => assert_eq!(other, Revived::NotFound),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("requeue", "retry", "redrive"))]
    pub fn revive(&self, id: i64) -> Sent<Revived> {
        let node = self.node_sender();
        self.read(Ok(id), move |id, connection| {
            let revived = connection.revive(id)?;
            poll_now(node);
            Ok(revived)
        })
    }

    /// Revives all dead letters of a filter, in the order of their numbers. One whose key has a timer
    /// again is left as it is.
    ///
    /// Each is a commit of its own. Other calls that read wait meanwhile. After an error those that
    /// were revived before stay so, and the call can be repeated.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why it ended early.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let report = timers.revive_dead("webhook").wait()?; // the receiver is repaired
    /// println!("{} revived, {} have a timer again", report.revived, report.exist);
    /// # assert_eq!((report.revived, report.exist), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("requeue", "retry all", "redrive"))]
    pub fn revive_dead(&self, filter: impl Into<DeadFilter>) -> Sent<RevivedDead> {
        let node = self.node_sender();
        self.read(first_page(filter.into()), move |page, connection| {
            let mut report = RevivedDead::default();
            let done = each_page(page, connection, |ids, connection| {
                for id in ids {
                    match connection.revive(*id)? {
                        Revived::Revived { .. } => report.revived += 1,
                        Revived::Exists => report.exist += 1,
                        Revived::NotFound => {}
                    }
                }
                Ok(())
            });
            poll_now(node);
            done.map(|()| report)
        })
    }

    /// Deletes a dead letter, and returns whether there was one with this number.
    ///
    /// # Errors
    ///
    /// [`CallError`] says whether it may have been deleted all the same.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// assert!(!timers.discard(7).wait()?); // there is none
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("delete", "purge"))]
    pub fn discard(&self, id: i64) -> Sent<bool> {
        self.read(Ok(id), |id, connection| Ok(connection.discard(&[id])? > 0))
    }

    /// Deletes all dead letters of a filter, and returns their number.
    ///
    /// Up to 1,000 are deleted in one commit. Other calls that read wait meanwhile. After an error
    /// those that were deleted before stay so, and the call can be repeated.
    ///
    /// # Errors
    ///
    /// [`CallError`] says why it ended early.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when the store has committed it: see [`Sent::wait`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{DeadFilter, Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// let week = Duration::from_secs(7 * 24 * 60 * 60);
    /// let old = DeadFilter::queue("webhook").older_than(week);
    /// assert_eq!(timers.discard_dead(old).wait()?, 0); // there were none
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("delete", "purge", "prune"))]
    pub fn discard_dead(&self, filter: impl Into<DeadFilter>) -> Sent<u64> {
        self.read(first_page(filter.into()), |page, connection| {
            let mut discarded = 0;
            each_page(page, connection, |ids, connection| {
                discarded += connection.discard(ids)?;
                Ok(())
            })?;
            Ok(discarded)
        })
    }

    fn node_sender(&self) -> Option<NodeSender> {
        self.inner().node.as_ref().map(|node| node.sender.clone())
    }

    /// Sends a read whose arguments were checked.
    pub(super) fn read<C: Send + 'static, T: Send + 'static>(
        &self,
        checked: Result<C, Invalid>,
        read: impl FnOnce(C, &mut dyn Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Sent<T> {
        let inner = self.inner();
        if let Some(refusal) = inner.refusal() {
            return Sent::known(Err(refusal));
        }
        match checked {
            Ok(checked) => {
                let sent = inner
                    .reader
                    .send(move |connection| read(checked, connection));
                inner.sent(sent)
            }
            Err(invalid) => Sent::known(Err(CallError::Invalid(invalid))),
        }
    }
}

/// What became of the dead letters of [`Durable::revive_dead`].
///
/// # Examples
///
/// ```
/// # use tourbillon_durable::{Durable, Memory, RevivedDead};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// let report: RevivedDead = timers.revive_dead("webhook").wait()?;
/// assert_eq!(report.revived, 0); // there were none
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RevivedDead {
    /// Those that are timers again, due now.
    pub revived: u64,
    /// Those that were left as they are, since their keys have timers.
    pub exist: u64,
}

/// The first part of what a call is about that changes many dead letters.
fn first_page(filter: DeadFilter) -> Result<DeadPage, Invalid> {
    filter.page(i64::MIN, 1_000)
}

/// Calls `each` with the numbers of all dead letters of a filter, a page at a time.
fn each_page(
    mut page: DeadPage,
    connection: &mut dyn Connection,
    mut each: impl FnMut(&[i64], &mut dyn Connection) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    loop {
        let letters = connection.dead(&page)?;
        let Some(last) = letters.last() else {
            return Ok(());
        };
        page.after = last.id;
        let ids: Vec<i64> = letters.iter().map(|letter| letter.id).collect();
        each(&ids, connection)?;
    }
}

/// Timers of this process may be due now.
fn poll_now(node: Option<NodeSender>) {
    if let Some(node) = node {
        node.send(Input::PollNow);
    }
}
