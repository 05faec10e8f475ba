//! Calls on armings by their ids: moves of one, and moves and cancellations of many.

use std::time::Duration;

use super::{Engine, Frontend};
use crate::clock::QuickReading;
use crate::job::drop_each;
use crate::shard::batch::{ITEMS_PER_HOLD, Located};
use crate::shard::{Cancelling, EntryId, Moving, UsualCall};
use crate::when::When;

/// A usual call of an engine.
type UsualEngineCall<'a, F> =
    UsualCall<'a, <F as super::FrontendTypes>::Key, <F as super::FrontendTypes>::Payload>;

impl<F: Frontend> Engine<F> {
    /// Moves the arming `id`. Each path converts its own answer, so that the
    /// functions for the rare cases are called last.
    #[inline(always)]
    pub(crate) fn reschedule_id<R: From<Moving>>(
        &self,
        stripe: usize,
        id: EntryId,
        when: When,
    ) -> R {
        let Some(delay) = when.delay() else {
            return self.move_id_to(stripe, id, when);
        };
        let Some((nanos, mut call)) = self.usual_by_id(stripe, delay) else {
            return self.reschedule_id_unusual(stripe, id, delay);
        };
        let put_off = |reading: QuickReading| {
            call.stripe()
                .put_usual_off_by_id(id, reading.after_counted(nanos))
        };
        let Some(before) = self.clock.quick_reading().and_then(put_off) else {
            return self.reschedule_id_after(call, stripe, id, delay);
        };
        call.end();
        Moving::Moved { before }.into()
    }

    /// Begins a usual call, unless it is known before the lock that it is not one, or the lock is
    /// not free.
    #[inline(always)]
    fn usual_by_id(&self, stripe: usize, delay: Duration) -> Option<(u64, UsualEngineCall<'_, F>)> {
        let nanos = QuickReading::counted(delay)?;
        Some((nanos, UsualCall::lock(self.usual()?, stripe)?))
    }

    /// Ends a usual call that has changed nothing, and moves the arming in the general way.
    #[cold]
    #[inline(never)]
    fn reschedule_id_after<R: From<Moving>>(
        &self,
        call: UsualEngineCall<'_, F>,
        stripe: usize,
        id: EntryId,
        delay: Duration,
    ) -> R {
        call.end();
        self.reschedule_id_unusual(stripe, id, delay)
    }

    /// Moves the arming in all cases. A delay is passed in registers, and a `When` would not be.
    #[cold]
    #[inline(never)]
    fn reschedule_id_unusual<R: From<Moving>>(
        &self,
        stripe: usize,
        id: EntryId,
        delay: Duration,
    ) -> R {
        self.move_id_to(stripe, id, delay.into())
    }

    fn move_id_to<R: From<Moving>>(&self, stripe: usize, id: EntryId, when: When) -> R {
        let (deadline, now) = self.resolve(when);
        self.with(stripe, |stripe| {
            stripe.reschedule_id(id, deadline, now, false).into()
        })
    }

    /// Moves many armings to one deadline; see `shard/batch.rs`. `id_of` returns the id of an item.
    /// The answers are in the order of the caller's list, which has `count` items: those that are
    /// not located are not found.
    pub(crate) fn reschedule_ids<T, R: From<Moving> + Clone>(
        &self,
        located: &[Located<T>],
        id_of: impl Fn(&Located<T>) -> EntryId,
        when: When,
        count: usize,
    ) -> Vec<R> {
        let (deadline, now) = self.resolve_exactly(when);
        let mut answers = vec![R::from(Moving::NotFound); count];
        // A hold of the lock can hand over one timer that is due at once, so these go one by one.
        let per_stripe = if deadline <= now { 1 } else { ITEMS_PER_HOLD };
        let mut groups = self.groups(located, per_stripe);
        while groups.lock_next() {
            groups.prefetch(&id_of);
            groups.each(|stripe, located| {
                let moving = stripe.reschedule_id(id_of(located), deadline, now, false);
                answers[located.index()] = moving.into();
            });
            groups.release();
        }
        answers
    }

    /// Cancels many armings. `answer` is called under the stripe's lock with each result, and
    /// returns what is to be dropped without it.
    pub(crate) fn cancel_ids<T, A, B>(
        &self,
        located: &[Located<T>],
        id_of: impl Fn(&Located<T>) -> EntryId,
        mut answer: impl FnMut(&Located<T>, Cancelling<F::Key, F::Payload>) -> (A, B),
    ) {
        let mut garbage = Vec::with_capacity(ITEMS_PER_HOLD.min(located.len()));
        let mut groups = self.groups(located, ITEMS_PER_HOLD);
        while groups.lock_next() {
            groups.prefetch(&id_of);
            groups.each(|stripe, located| {
                let cancelling = stripe.cancel_id(id_of(located));
                garbage.push(answer(located, cancelling));
            });
            groups.release();
            // Keys and tasks are user code, so they are dropped between two holds of the locks.
            drop_each(garbage.drain(..));
        }
    }
}
