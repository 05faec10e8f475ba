//! Guards of a stripe's lock: for calls that move keys and values into a stripe or out of it, and
//! for usual calls.
//!
//! Calls for one key take a stripe's lock in three ways:
//!
//! - A call that touches one entry and returns an answer passes a closure to [`Shards::with`].
//! - A call that arms or cancels holds a [`StripeGuard`]. It drops some keys and values without the
//!   lock, or returns them to its caller. With a closure, each of those would need a variable
//!   outside.
//! - A touch or a move that writes a later deadline, and needs no change in the wheel, is a
//!   [`UsualCall`]. It has no deferred actions. If more has to be done, or if it would have to wait
//!   for the lock, it changes nothing, and the caller begins anew in the first way. So it keeps
//!   only its arguments for the other cases.
//!
//! A function that is still needed after a call saves registers when it begins: six, in a touch. So
//! a usual call leaves what is rare to functions that it calls last, and that return to the user.
//!
//! A guard costs what a closure costs, as long as it stays in registers: it is inlined, and no
//! function that is not inlined gets it by reference. So it is taken apart before its drop calls
//! anything.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use super::{DeferredActions, Locked, ReentrancyGuard, Shards, Stripe};

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
    /// Present until the release. Never dropped as a field, which would be a second release.
    locked: ManuallyDrop<Option<Locked<'a, K, V>>>,
    owner: &'a O,
    number: usize,
}

impl<'a, K, V, O: RunDeferred<K, V>> StripeGuard<'a, K, V, O> {
    #[inline(always)]
    pub(crate) fn lock(owner: &'a O, number: usize) -> Self
    where
        K: 'a,
        V: 'a,
    {
        StripeGuard {
            locked: ManuallyDrop::new(Some(Locked::new(owner.shards(), number))),
            owner,
            number,
        }
    }

    /// Does what the drop does, but inlined into its caller: for the usual way through a call.
    #[inline(always)]
    pub(crate) fn unlock(mut self) {
        if let Some(locked) = self.locked.take() {
            Self::release(self.owner, self.number, locked);
        }
    }

    #[inline(always)]
    fn release(owner: &O, number: usize, locked: Locked<'a, K, V>) {
        // Most operations leave nothing to do, so only the test is inlined.
        if locked.0.has_deferred() {
            Self::perform(owner, number, locked);
        }
    }

    /// Releases in a drop, which is not the usual way: not inlined into each early return and
    /// unwinding.
    #[inline(never)]
    fn release_in_drop(owner: &O, number: usize, locked: Locked<'a, K, V>) {
        Self::release(owner, number, locked);
    }

    /// Unlocks and performs the deferred actions.
    #[cold]
    #[inline(never)]
    fn perform(owner: &O, number: usize, locked: Locked<'a, K, V>) {
        let deferred = owner.shards().publish(number, locked);
        owner.run_deferred(number, deferred);
    }
}

impl<K, V, O: RunDeferred<K, V>> Deref for StripeGuard<'_, K, V, O> {
    type Target = Stripe<K, V>;

    #[inline]
    fn deref(&self) -> &Stripe<K, V> {
        match &*self.locked {
            Some(locked) => &locked.0,
            None => unreachable!("the lock is held until the drop"),
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> DerefMut for StripeGuard<'_, K, V, O> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Stripe<K, V> {
        match &mut *self.locked {
            Some(locked) => &mut locked.0,
            None => unreachable!("the lock is held until the drop"),
        }
    }
}

impl<K, V, O: RunDeferred<K, V>> Drop for StripeGuard<'_, K, V, O> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(locked) = self.locked.take() {
            Self::release_in_drop(self.owner, self.number, locked);
        }
    }
}

/// A stripe under its lock, for a usual call.
pub(crate) struct UsualCall<'a, K, V>(Locked<'a, K, V>);

impl<'a, K, V> UsualCall<'a, K, V> {
    /// Takes the lock of a stripe, if that is free and the thread has no mark.
    #[inline(always)]
    pub(crate) fn lock(shards: &'a Shards<K, V>, stripe: usize) -> Option<Self> {
        // FORK-1: the state first. In a copy even a lock that is free must not be taken.
        if !ReentrancyGuard::may_begin_alone() {
            return None;
        }
        let guard = shards.stripes.get(stripe)?.try_lock()?;
        Some(UsualCall(Locked(guard, ReentrancyGuard::begin_allowed())))
    }

    #[inline(always)]
    pub(crate) fn stripe(&mut self) -> &mut Stripe<K, V> {
        &mut self.0.0
    }

    /// Releases the lock.
    #[inline(always)]
    pub(crate) fn end(self) {
        // A usual call removes nothing, so a closed stripe can't become empty here.
        debug_assert!(!self.0.0.has_actions(), "a usual call leaves nothing");
    }
}
