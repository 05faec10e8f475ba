//! Moves of one arming by its id.

use std::time::Duration;

use super::{Engine, Frontend};
use crate::clock::QuickReading;
use crate::shard::{EntryId, Moving, UsualCall};
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
}
