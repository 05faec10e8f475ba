//! Which timers and dead letters a call is about.

use std::ops::{Bound, RangeBounds};
use std::time::{Duration, SystemTime};

use super::names::{self, Invalid};
use super::timer_info::Paging;
use crate::store::{DeadPage, Page, StoreTime, StoredState};

/// Which timers to [`list`](crate::Durable::list). The name of a queue is the filter of all its timers.
///
/// # Examples
///
/// ```
/// # use std::time::{Duration, SystemTime};
/// # use tourbillon_durable::{Durable, Memory, Paging, TimerFilter, StoredState};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timers = Durable::builder(Memory::new()).start()?;
/// timers.schedule("pay-by", "customer:7:order:1", Duration::from_secs(900), &1).wait()?;
/// timers.schedule("remind", "customer:7", Duration::from_secs(60), &()).wait()?;
/// let of_customer = TimerFilter::all().prefix("customer:7");
/// assert_eq!(timers.list(of_customer.clone(), &Paging::first(100)).wait()?.len(), 2);
/// let soon = SystemTime::now() + Duration::from_secs(300);
/// assert_eq!(timers.list(of_customer.due(..soon), &Paging::first(100)).wait()?.len(), 1);
/// let late = TimerFilter::queue("pay-by").state(StoredState::Overdue);
/// assert_eq!(timers.list(late, &Paging::first(100)).wait()?, []);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TimerFilter {
    queue: Option<String>,
    prefix: String,
    due: (Bound<SystemTime>, Bound<SystemTime>),
    state: Option<StoredState>,
    schedules: bool,
}

impl TimerFilter {
    /// The timers of all queues.
    #[must_use]
    pub fn all() -> Self {
        TimerFilter {
            queue: None,
            prefix: String::new(),
            due: (Bound::Unbounded, Bound::Unbounded),
            state: None,
            schedules: false,
        }
    }

    /// The timers of a queue.
    #[must_use]
    pub fn queue(queue: &str) -> Self {
        TimerFilter {
            queue: Some(queue.to_owned()),
            ..TimerFilter::all()
        }
    }

    /// Only timers whose keys begin with this text. An empty one changes nothing.
    ///
    /// The stores find the keys by an index, and sort what they have found: a page takes as long as
    /// there are timers with the prefix. Over all queues each queue costs a look more.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Only timers that are due within a range of time.
    #[must_use]
    pub fn due(mut self, range: impl RangeBounds<SystemTime>) -> Self {
        self.due = (range.start_bound().cloned(), range.end_bound().cloned());
        self
    }

    /// Only timers in this state. To find those that run, the stores read all timers of the filter.
    #[must_use]
    pub fn state(mut self, state: StoredState) -> Self {
        self.state = Some(state);
        self
    }

    /// Only timers with a schedule: those that run each time that a calendar says. The stores read all
    /// timers of the filter to find them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_durable::{Durable, Memory, Paging, TimerFilter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let timers = Durable::builder(Memory::new()).start()?;
    /// timers.schedule("remind", "customer:7", Duration::from_secs(60), &7).wait()?; // once
    /// let schedules = TimerFilter::queue("remind").schedules();
    /// assert_eq!(timers.list(schedules, &Paging::first(100)).wait()?, []);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn schedules(mut self) -> Self {
        self.schedules = true;
        self
    }

    /// Checks the filter.
    pub(crate) fn page(self, paging: &Paging) -> Result<Page, Invalid> {
        if let Some(queue) = &self.queue {
            names::queue(queue)?;
        }
        names::prefix(&self.prefix)?;
        // The store's times are whole microseconds.
        let behind = |time: SystemTime| StoreTime::from(time) + Duration::from_micros(1);
        Ok(Page {
            queue: self.queue,
            prefix: self.prefix,
            state: self.state,
            schedules: self.schedules,
            from: match self.due.0 {
                Bound::Included(time) => StoreTime::from(time),
                Bound::Excluded(time) => behind(time),
                Bound::Unbounded => StoreTime::from_micros(i64::MIN),
            },
            until: match self.due.1 {
                Bound::Included(time) => behind(time),
                Bound::Excluded(time) => StoreTime::from(time),
                Bound::Unbounded => StoreTime::from_micros(i64::MAX),
            },
            after: paging
                .after
                .as_ref()
                .map(|(due, queue, key)| (StoreTime::from(*due), queue.clone(), key.clone())),
            limit: names::page_limit(paging.limit)?,
        })
    }
}

impl From<&str> for TimerFilter {
    fn from(queue: &str) -> Self {
        TimerFilter::queue(queue)
    }
}

/// Which dead letters a call is about: [`dead`](crate::Durable::dead),
/// [`revive_dead`](crate::Durable::revive_dead) or [`discard_dead`](crate::Durable::discard_dead).
/// The name of a queue is the filter of all its dead letters.
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
/// assert_eq!(timers.discard_dead(old).wait()?, 0);
/// let of_customer = DeadFilter::all().prefix("customer:7:");
/// assert_eq!(timers.dead(of_customer, 0, 100).wait()?, []);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadFilter {
    queue: Option<String>,
    prefix: String,
    older_than: Option<Duration>,
}

impl DeadFilter {
    /// The dead letters of all queues.
    #[must_use]
    pub fn all() -> Self {
        DeadFilter {
            queue: None,
            prefix: String::new(),
            older_than: None,
        }
    }

    /// The dead letters of a queue.
    #[must_use]
    pub fn queue(queue: &str) -> Self {
        DeadFilter {
            queue: Some(queue.to_owned()),
            ..DeadFilter::all()
        }
    }

    /// Only dead letters whose keys begin with this text. An empty one changes nothing.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Only dead letters that were given up so long ago or longer, by the store's clock.
    #[must_use]
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Checks the filter.
    pub(crate) fn page(self, after: i64, limit: u32) -> Result<DeadPage, Invalid> {
        if let Some(queue) = &self.queue {
            names::queue(queue)?;
        }
        names::prefix(&self.prefix)?;
        Ok(DeadPage {
            queue: self.queue,
            prefix: self.prefix,
            older_than: self.older_than,
            after,
            limit: names::page_limit(limit)?,
        })
    }
}

impl From<&str> for DeadFilter {
    fn from(queue: &str) -> Self {
        DeadFilter::queue(queue)
    }
}
