//! The hold of two stripes' locks at one time, for the move of an entry to another key.

use super::{DeferredActions, Shards, Stripe};
use crate::sync::MutexGuard;

/// The locks of two stripes. The second one is `None` if both numbers are the same.
type LockedPair<'a, K, V> = (
    MutexGuard<'a, Stripe<K, V>>,
    Option<MutexGuard<'a, Stripe<K, V>>>,
);

impl<K, V> Shards<K, V> {
    /// Runs `operate` under the locks of two stripes, then performs the deferred actions of both,
    /// as [`with`](Self::with) does. `operate` gets one stripe if both numbers are the same, or if
    /// the call must not take a lock; that stripe then refuses everything.
    pub(crate) fn with_pair<R>(
        &self,
        numbers: [usize; 2],
        operate: impl FnOnce(&mut Stripe<K, V>, Option<&mut Stripe<K, V>>) -> R,
        mut act: impl FnMut(usize, DeferredActions),
    ) -> R {
        // Declared before the locks, so that a panic drops it after them (DEFER-1).
        let flag = self.begin();
        if flag.is_inert() {
            return operate(&mut self.inert().lock(), None);
        }
        let [first, second] = numbers;
        let (mut one, mut other) = self.lock_pair(first, second);
        let answer = operate(&mut one, other.as_deref_mut());
        let mut left = [None, None];
        if one.has_deferred() {
            left[0] = Some((first, self.publish_due(first, &mut one)));
        }
        if let Some(other) = &mut other
            && other.has_deferred()
        {
            left[1] = Some((second, self.publish_due(second, other)));
        }
        drop((one, other));
        // Due moments were stored under the locks; bells are rung without them (STRIPE-4).
        for (number, deferred) in left.iter().flatten() {
            self.ring(*number, deferred);
        }
        // Only now, because this runs the deferred drops, which may take long.
        drop(flag);
        for (number, deferred) in left.into_iter().flatten() {
            act(number, deferred);
        }
        answer
    }

    /// Takes two locks. STRIPE-1: one is waited for while none is held, and the other one is only
    /// tried. If another thread has that one, it is the one that is waited for next.
    fn lock_pair(&self, first: usize, second: usize) -> LockedPair<'_, K, V> {
        let (first, second) = (&self.stripes[first], &self.stripes[second]);
        if std::ptr::eq(first, second) {
            return (first.lock(), None);
        }
        loop {
            let one = first.lock();
            if let Some(other) = second.try_lock() {
                return (one, Some(other));
            }
            drop(one);
            let other = second.lock();
            if let Some(one) = first.try_lock() {
                return (one, Some(other));
            }
        }
    }
}
