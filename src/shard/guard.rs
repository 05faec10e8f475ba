//! A guard for a stripe's lock, for calls that go on with the stripe after a decision.
//!
//! Most calls pass a closure to [`Shards::with`]: they touch one entry and return an answer, and
//! the guard would cost them several percent of their instructions. A call that arms or cancels
//! holds the guard instead. It moves keys and values into the stripe or out of it, and often has to
//! drop some of them without the lock. With a closure, each of those would need a variable outside.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::{DeferredActions, Locked, ReentrancyGuard, Shards, Stripe};
use crate::sync::MutexGuard;

/// The owner of the stripes, which runs the deferred actions.
pub(crate) trait RunDeferred<K, V> {
    fn shards(&self) -> &Shards<K, V>;

    /// Does the deferred actions of one operation, after the doorbell was rung. Called without a
    /// lock, and only if there may be any.
    fn run_deferred(&self, stripe: usize, deferred: DeferredActions);
}

/// A stripe under its lock. The drop publishes the due moment, releases the lock, and then performs
/// the deferred actions. The fields are dropped in this order.
pub(crate) struct StripeGuard<'a, K, V, O: RunDeferred<K, V>> {
    stripe: MutexGuard<'a, Stripe<K, V>>,
    after: AfterUnlock<'a, K, V, O>,
}

impl<'a, K, V, O: RunDeferred<K, V>> StripeGuard<'a, K, V, O> {
    #[inline]
    pub(crate) fn lock(owner: &'a O, number: usize) -> Self
    where
        K: 'a,
        V: 'a,
    {
        let Locked(stripe, no_calls) = Locked::new(owner.shards(), number);
        StripeGuard {
            stripe,
            after: AfterUnlock {
                owner,
                number,
                no_calls,
                deferred: None,
                stored: PhantomData,
            },
        }
    }

    /// Publishes the due moment and takes the actions that follow the release of the lock.
    #[inline(never)]
    fn publish(&mut self) {
        // No ticker serves an inert stripe, so nobody needs to be notified.
        if !self.after.no_calls.is_inert() {
            let shards = self.after.owner.shards();
            let deferred = shards.publish_due(self.after.number, &mut self.stripe);
            self.after.deferred = Some(deferred);
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> Deref for StripeGuard<'_, K, V, O> {
    type Target = Stripe<K, V>;

    #[inline]
    fn deref(&self) -> &Stripe<K, V> {
        &self.stripe
    }
}

impl<K, V, O: RunDeferred<K, V>> DerefMut for StripeGuard<'_, K, V, O> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stripe<K, V> {
        &mut self.stripe
    }
}

impl<K, V, O: RunDeferred<K, V>> Drop for StripeGuard<'_, K, V, O> {
    #[inline]
    fn drop(&mut self) {
        // Most operations leave nothing to do, so only the test is inlined into every call.
        if self.stripe.has_deferred() {
            self.publish();
        }
    }
}

/// What follows the release of the lock. It contains the thread's mark, which outlives the lock.
struct AfterUnlock<'a, K, V, O: RunDeferred<K, V>> {
    owner: &'a O,
    number: usize,
    no_calls: ReentrancyGuard,
    deferred: Option<DeferredActions>,
    stored: PhantomData<fn(K, V)>,
}

impl<K, V, O: RunDeferred<K, V>> AfterUnlock<'_, K, V, O> {
    #[inline(never)]
    fn perform(&mut self, deferred: DeferredActions) {
        self.owner.shards().ring(self.number, &deferred);
        // After the doorbell, because this runs the deferred drops, which may take long.
        self.no_calls.end();
        self.owner.run_deferred(self.number, deferred);
    }
}

impl<K, V, O: RunDeferred<K, V>> Drop for AfterUnlock<'_, K, V, O> {
    #[inline]
    fn drop(&mut self) {
        if let Some(deferred) = self.deferred.take() {
            self.perform(deferred);
        }
    }
}
