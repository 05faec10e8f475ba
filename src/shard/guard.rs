//! A guard of a stripe's lock, for calls that move keys and values into a stripe or out of it.
//!
//! There are two ways to take a stripe's lock and perform the deferred actions after it:
//!
//! - A call that touches one entry and returns an answer passes a closure to [`Shards::with`].
//! - A call that arms or cancels holds a [`StripeGuard`]. It drops some keys and values without the
//!   lock, or returns them to its caller. With a closure, each of those would need a variable
//!   outside.

use std::ops::{Deref, DerefMut};

use super::{DeferredActions, Locked, Shards, Stripe};

/// The owner of the stripes, which runs the deferred actions.
pub(crate) trait RunDeferred<K, V> {
    fn shards(&self) -> &Shards<K, V>;

    /// Does the deferred actions of one operation, after the doorbell was rung. Called without a
    /// lock, and only if there may be any.
    fn run_deferred(&self, stripe: usize, deferred: DeferredActions);
}

/// A stripe under its lock. The drop publishes the due moment, releases the lock, and then performs
/// the deferred actions.
pub(crate) struct StripeGuard<'a, K, V, O: RunDeferred<K, V>> {
    /// Present until the drop.
    locked: Option<Locked<'a, K, V>>,
    owner: &'a O,
    number: usize,
}

impl<'a, K, V, O: RunDeferred<K, V>> StripeGuard<'a, K, V, O> {
    #[inline]
    pub(crate) fn lock(owner: &'a O, number: usize) -> Self
    where
        K: 'a,
        V: 'a,
    {
        StripeGuard {
            locked: Some(Locked::new(owner.shards(), number)),
            owner,
            number,
        }
    }

    /// Unlocks and performs the deferred actions.
    #[inline(never)]
    fn perform(&mut self) {
        if let Some(locked) = self.locked.take() {
            let deferred = self.owner.shards().publish(self.number, locked);
            self.owner.run_deferred(self.number, deferred);
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> Deref for StripeGuard<'_, K, V, O> {
    type Target = Stripe<K, V>;

    #[inline]
    fn deref(&self) -> &Stripe<K, V> {
        match &self.locked {
            Some(locked) => &locked.0,
            None => unreachable!("the lock is held until the drop"),
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> DerefMut for StripeGuard<'_, K, V, O> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stripe<K, V> {
        match &mut self.locked {
            Some(locked) => &mut locked.0,
            None => unreachable!("the lock is held until the drop"),
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> Drop for StripeGuard<'_, K, V, O> {
    #[inline]
    fn drop(&mut self) {
        // Most operations leave nothing to do, so only the test is inlined into every call.
        if self.has_deferred() {
            self.perform();
        }
    }
}
