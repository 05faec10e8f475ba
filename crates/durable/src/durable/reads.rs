//! The calls that read timers, and those for operators.

use std::ops::{Bound, RangeBounds};
use std::time::{Duration, SystemTime};

use super::Durable;
use crate::calls::{CallError, DeadTimer, Invalid, Paging, Sent, StoredTimer, names};
use crate::node::Input;
use crate::run::NodeSender;
use crate::store::{Connection, Page, QueueCounts, Revived, StoreError, StoreTime};

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

    /// Reads the timers of a queue that are due within a range of time, in the order of their due
    /// times and keys. See [`Paging`].
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
    /// # use tourbillon_durable::{Durable, Memory, Paging};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// # let minute = Duration::from_secs(60);
    /// timers.schedule("pay-by", "order:7", 15 * minute, &7).wait()?;
    /// let soon = ..SystemTime::now() + 60 * minute;
    /// let timers_of_this_hour = timers.list("pay-by", soon, &Paging::first(100)).wait()?;
    /// assert_eq!(timers_of_this_hour[0].key, "order:7");
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(
        &self,
        queue: &str,
        range: impl RangeBounds<SystemTime>,
        paging: &Paging,
    ) -> Sent<Vec<StoredTimer>> {
        // The store's times are whole microseconds.
        let behind = |time: &SystemTime| StoreTime::from(*time) + Duration::from_micros(1);
        let page = || {
            Ok(Page {
                queue: names::queue(queue)?.to_string(),
                from: match range.start_bound() {
                    Bound::Included(time) => StoreTime::from(*time),
                    Bound::Excluded(time) => behind(time),
                    Bound::Unbounded => StoreTime::from_micros(i64::MIN),
                },
                until: match range.end_bound() {
                    Bound::Included(time) => behind(time),
                    Bound::Excluded(time) => StoreTime::from(*time),
                    Bound::Unbounded => StoreTime::from_micros(i64::MAX),
                },
                after: paging
                    .after
                    .as_ref()
                    .map(|(due, key)| (StoreTime::from(*due), key.clone())),
                limit: names::page_limit(paging.limit)?,
            })
        };
        self.read(page(), |page, connection| {
            let timers = connection.list(&page)?.into_iter();
            Ok(timers.map(StoredTimer::from).collect())
        })
    }

    /// Counts the timers of all queues, and tells for each how far it is behind. It reads them all,
    /// so it takes long if there are many.
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

    fn set_paused(&self, queue: &str, paused: bool) -> Sent<()> {
        let node = self.node_sender();
        self.read(names::queue(queue), move |queue, connection| {
            connection.set_paused(&queue, paused)?;
            poll_now(node);
            Ok(())
        })
    }

    /// Reads the dead letters of a queue in the order of their [numbers](DeadTimer::id): those with
    /// a greater number than `after`, at most `limit`, from 1 to 10,000. The first page is after 0.
    /// A page also ends when its payloads have 8 MiB, and only an empty one says that there are no
    /// more.
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
    /// # let minute = Duration::from_secs(60);
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
    pub fn dead(&self, queue: &str, after: i64, limit: u32) -> Sent<Vec<DeadTimer>> {
        let checked = || Ok((names::queue(queue)?, names::page_limit(limit)?));
        self.read(checked(), move |(queue, limit), connection| {
            let letters = connection.dead(&queue, after, limit)?.into_iter();
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
            Ok(checked) => inner
                .reader
                .send(move |connection| read(checked, connection)),
            Err(invalid) => Sent::known(Err(CallError::Invalid(invalid))),
        }
    }
}

/// Timers of this process may be due now.
fn poll_now(node: Option<NodeSender>) {
    if let Some(node) = node {
        node.send(Input::PollNow);
    }
}
