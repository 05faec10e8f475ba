//! Memory that is given back after a peak.

use std::hash::BuildHasher;

use super::handle::Handle;

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Gives back memory that a peak has left behind.
    ///
    /// A scheduler keeps the place of a timer that has ended for the next one. So there is memory
    /// for the greatest number of timers there were at one time, in each stripe, and
    /// [`pending`](Self::pending) and [`cancel_all`](Self::cancel_all) walk over as many places,
    /// until this is called. Keys and tasks need no call: they are dropped when their timer ends.
    ///
    /// Timers do not move. Each stripe keeps the places up to the last one that is in use, or that
    /// has been used a billion times, in blocks of 4,096. New timers take the first free places
    /// from then on. So if an old timer holds much memory, a later call, after that one has ended,
    /// gives it back. An id that is out of date is still not found, whatever takes its place.
    ///
    /// # Blocking
    ///
    /// Each stripe is locked for as long as its walk takes: about 0.3 ms with one million timers in 128
    /// stripes.
    ///
    /// # Complexity
    ///
    /// Linear in the number of places, one stripe after the other.
    ///
    /// # Panics
    ///
    /// If it is called from a key's `Eq` or `Clone`, which run under a lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::Scheduler;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<u64>::builder().build_stepped(1)?;
    /// let timers = scheduler.handle();
    /// for key in 0..10_000 {
    ///     timers.schedule(key, Duration::from_secs(30), |_| ())?;
    /// }
    /// for key in 1..10_000 {
    ///     timers.cancel(&key);
    /// }
    /// timers.shrink_to_fit();
    /// assert_eq!(scheduler.advance(Duration::from_secs(30)).len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shrink_to_fit(&self) {
        self.engine().shrink_to_fit();
    }
}
