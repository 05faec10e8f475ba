//! The calls that cancel.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};

use super::super::answers::Cancel;
use super::Handle;
use crate::job::{drop_catching, drop_each};

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Cancels the pending timer of `key` and drops its task. [`Cancel::Cancelled`] means that the
    /// task has not started and never will, even if it was due and queued for a worker.
    ///
    /// A run in progress continues, but is notified; see
    /// [`Firing::is_cancelled`](crate::Firing::is_cancelled). No further round of a repeating task
    /// follows it.
    ///
    /// # Complexity
    ///
    /// Constant. The memory is free at once. No clock is read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// use tourbillon::Cancel;
    ///
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("request 7", Duration::from_secs(5), |_| println!("timed out"))?;
    /// assert!(timers.cancel("request 7").is_cancelled());
    /// assert_eq!(timers.cancel("request 7"), Cancel::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("clearTimeout", "abort", "dequeue"))]
    pub fn cancel<Q>(&self, key: &Q) -> Cancel
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let mut stripe = self.engine.lock(stripe);
        let reason = match stripe.cancel_usual(hash, key) {
            Ok((deadline, key, task)) => {
                stripe.unlock();
                drop_catching((key, task));
                return Cancel::Cancelled {
                    deadline,
                    running: false,
                };
            }
            Err(reason) => reason,
        };
        let Some(slot) = stripe.find_other(reason, hash, key) else {
            return Cancel::NotFound;
        };
        let cancelling = stripe.cancel_slot(slot);
        drop(stripe);
        Self::answer(cancelling)
    }
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Cancels all pending timers and returns their number. Running tasks continue. A repeating
    /// task that runs is notified and gets no further round; it is not included in the number.
    ///
    /// # Complexity
    ///
    /// Linear in the greatest number of timers that existed at one time since the last
    /// [`shrink_to_fit`](Self::shrink_to_fit), in portions per stripe. A timer that is armed during
    /// the call may or may not be cancelled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// timers.schedule("b", Duration::from_secs(2), |_| ())?;
    /// assert_eq!(timers.cancel_all(), 2);
    /// assert!(timers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        let taken = self.engine.take_pending(false);
        let count = taken.len();
        drop_each(taken.into_iter().map(|(key, _, task)| (key, task)));
        count
    }
}
