//! Admission of armings: a refusal for want of a permit is exact only after the permits that lie
//! unused in other stripes were collected.

use super::{Engine, Frontend, LockedBy};
use crate::shard::{Refusal, Stripe};

impl<F: Frontend> Engine<F> {
    /// Takes the stripe's lock and admits an arming, which the caller makes under the same hold of
    /// the lock.
    #[inline(always)]
    pub(crate) fn admit<A>(
        &self,
        stripe: usize,
        mut admit: impl FnMut(&mut Stripe<F::Key, F::Payload>) -> Result<A, Refusal>,
    ) -> Result<(LockedBy<'_, F>, A), Refusal> {
        loop {
            let mut guard = self.lock(stripe);
            let refusal = match admit(&mut guard) {
                Ok(admission) => return Ok((guard, admission)),
                Err(refusal) => refusal,
            };
            drop(guard);
            if !self.may_retry(refusal) {
                return Err(refusal);
            }
        }
    }

    /// Admits after a refusal under an earlier hold of the lock.
    #[inline(always)]
    pub(crate) fn admit_again<A>(
        &self,
        refusal: Refusal,
        stripe: usize,
        admit: impl FnMut(&mut Stripe<F::Key, F::Payload>) -> Result<A, Refusal>,
    ) -> Result<(LockedBy<'_, F>, A), Refusal> {
        if !self.may_retry(refusal) {
            return Err(refusal);
        }
        self.admit(stripe, admit)
    }

    /// Returns whether a refused arming may be admitted now. Called without a lock.
    #[inline]
    fn may_retry(&self, refusal: Refusal) -> bool {
        // Other stripes may hold unused permits. A refusal is exact only after those were
        // collected, and collecting takes their locks, so the caller released its own first.
        matches!(refusal, Refusal::NoPermit) && self.shards.collect_permits()
    }
}
