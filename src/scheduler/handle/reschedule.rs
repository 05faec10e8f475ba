//! The calls that move a pending timer.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use super::super::answers::{PullIn, Reschedule};
use super::Handle;
use crate::tick::Time;

impl<K, S> Handle<K, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Moves the pending timer of `key` to `delay` from now. The timer keeps its task and its id.
    /// This never arms a timer.
    ///
    /// A timer that is due and queued but has not started is moved, too. While a round of a
    /// repeating timer runs, this sets when the next round is due; see [`repeat`](Self::repeat).
    ///
    /// # Complexity
    ///
    /// Constant. To a later time it takes one probe and one write: the wheel is not touched until
    /// the old time comes.
    pub fn reschedule<Q>(&self, key: &Q, delay: Duration) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        self.move_to(key, now + delay, now)
    }

    /// Like [`reschedule`](Self::reschedule), to a time of the scheduler's clock.
    pub fn reschedule_at<Q>(&self, key: &Q, at: Time) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.move_to(key, at, self.now())
    }

    fn move_to<Q>(&self, key: &Q, deadline: Time, now: Time) -> Reschedule
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .with(stripe, |stripe| {
                stripe.reschedule(hash, key, deadline, now, false)
            })
            .into()
    }

    /// Moves the pending timer of `key` to `delay` from now if that is earlier than its deadline.
    /// This never delays a timer.
    pub fn pull_in<Q>(&self, key: &Q, delay: Duration) -> PullIn
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let now = self.now();
        let (stripe, hash) = self.hash_of(key);
        self.engine
            .with(stripe, |stripe| {
                stripe.reschedule(hash, key, now + delay, now, true)
            })
            .into()
    }
}
