//! What visits all timers, in portions: an iterator, and the search for the earliest deadline.

use std::fmt;
use std::hash::BuildHasher;

use super::answers::TimerInfo;
use super::handle::Handle;
use super::hasher::RandomState;
use crate::engine::{Engine, Frontend};
use crate::shard::Stripe;
use crate::tick::Time;

/// The number of slots that are read under one hold of a lock.
const PORTION: usize = 256;

/// An iterator over a scheduler's timers; see [`Handle::pending`].
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
/// let next = timers.pending().min_by_key(|(_, info)| info.deadline);
/// assert_eq!(next.map(|(key, _)| key), Some("a"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pending<'a, K, S = RandomState> {
    handle: &'a Handle<K, S>,
    /// The stripe and the slot to continue at.
    at: (usize, u32),
    portion: std::vec::IntoIter<(K, TimerInfo)>,
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Walks over all timers, pending, queued and **also running** (which [`len`](Self::len) does
    /// not count), in no order. Portions are copied under one stripe's lock at a time, so timers
    /// that come, go or move meanwhile may or may not show.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// # let timers = scheduler.handle();
    /// timers.schedule("a", Duration::from_secs(1), |_| ())?;
    /// for (key, info) in timers.pending() {
    ///     println!("{key} is due at {:?}: {:?}", info.deadline, info.state);
    /// }
    /// assert_eq!(timers.pending().count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pending(&self) -> Pending<'_, K, S> {
        Pending {
            handle: self,
            at: (0, 0),
            portion: Vec::new().into_iter(),
        }
    }
}

impl<K, S> Iterator for Pending<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    type Item = (K, TimerInfo);

    fn next(&mut self) -> Option<Self::Item> {
        let engine = self.handle.engine();
        loop {
            if let Some(next) = self.portion.next() {
                return Some(next);
            }
            let (stripe, from) = self.at;
            // Every stripe has been read.
            if stripe >= engine.shards().stripes() {
                return None;
            }
            let mut seen = Vec::new();
            let on = engine
                .shards()
                .peek(stripe, |stripe| stripe.look(from, PORTION, &mut seen));
            self.at = on.map_or((stripe + 1, 0), |slot| (stripe, slot));
            let tag = engine.tag();
            // Converted without the lock.
            self.portion = seen
                .into_iter()
                .map(|(key, entry_info)| (key, TimerInfo::new(tag, stripe as u32, entry_info)))
                .collect::<Vec<_>>()
                .into_iter();
        }
    }
}

/// Returns the earliest deadline that is still to come, of all armings.
pub(crate) fn next_deadline<F: Frontend>(engine: &Engine<F>) -> Option<Time> {
    let shards = engine.shards();
    let bound = |number| shards.peek(number, |stripe| stripe.no_deadline_before());
    let stripes = 0..shards.stripes();
    let mut order: Vec<_> = stripes.map(|number| (bound(number), number)).collect();
    // In this order, the search ends at the first stripe that has nothing before the earliest
    // deadline found so far.
    order.sort_unstable();
    let now = engine.now();
    let mut earliest = Time::MAX;
    for (bound, number) in order {
        if bound >= earliest {
            break;
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let look = |stripe: &Stripe<_, _>| stripe.earliest_in_range(from, PORTION as u32, now);
            let (here, rest) = shards.peek(number, look);
            earliest = earliest.min(here);
            next = rest;
        }
    }
    (earliest != Time::MAX).then_some(earliest)
}

impl<K, S> fmt::Debug for Pending<'_, K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}
