//! The move of a pending payload to another key, which may belong to another stripe.
//!
//! The caller holds the locks of both stripes. It asks the stripe of the new key
//! ([`Stripe::admit_moved`]), takes the payload out of the stripe of the old key
//! ([`Stripe::move_out`]), and arms it under the new one ([`Stripe::move_in`]). Only the first step
//! runs user code and may refuse, and it changes nothing.
//!
//! The payload is the same one before and after: it counts as scheduled once, and keeps its permit.

use super::super::entry::End;
use super::answers::{Admission, Arming, Refusal};
use super::{KeyHash, Stripe, StripeGate};
use crate::tick::Time;

/// The permission to move a payload to a key. It is valid while both locks are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveAdmission {
    admission: Admission,
    /// Whether the payload goes on with its permit. Otherwise it takes the place of another one,
    /// which has a permit.
    needs_permit: bool,
}

impl<K, V> Stripe<K, V> {
    /// Decides whether the payload of another key may be armed under `key`. The payload brings its
    /// permit along, so a bound does not matter. This stripe may also be that of the other key.
    pub(crate) fn admit_moved(
        &self,
        hash: KeyHash,
        key: &K,
        if_absent: bool,
    ) -> Result<MoveAdmission, Refusal>
    where
        K: Eq,
    {
        if self.gate != StripeGate::Open {
            return Err(self.refusal());
        }
        let (admission, needs_permit) = match self.find(hash, key) {
            Some(slot) => {
                let (present, needs_permit) = self.judge_present(slot, if_absent)?;
                (Admission::Present(present), needs_permit)
            }
            None if !self.table.has_room() => return Err(Refusal::NoSlot),
            // No cell of the index is chosen, since the line of the other key is removed first.
            None => (Admission::Vacant(None), true),
        };
        Ok(MoveAdmission {
            admission,
            needs_permit,
        })
    }

    /// Returns why this stripe refuses all armings, if it does.
    pub(crate) fn refuses_all(&self) -> Option<Refusal> {
        (self.gate != StripeGate::Open).then(|| self.refusal())
    }

    /// Takes the pending payload in `slot` out, with its deadline. The permit goes along.
    ///
    /// The key comes with it, unless a run goes on under that key. The stripe is open.
    pub(crate) fn move_out(&mut self, slot: u32) -> Option<(Option<K>, Time, V)> {
        debug_assert!(
            self.gate == StripeGate::Open,
            "a closed stripe reports its end"
        );
        let out = if self.table.armed(slot).is_some() {
            let (deadline, key, value) = self.take_out(slot, End::Cancelled);
            (Some(key), deadline, value)
        } else {
            let run = self.run_at(slot)?;
            let run = &mut self.runs[run];
            debug_assert!(run.repeating.is_none(), "a value of a map does not repeat");
            let successor = run.successor.take()?;
            (None, successor.deadline, successor.value)
        };
        self.counters.pending -= 1;
        Some(out)
    }

    /// Arms a payload that was taken out of the stripe of its old key, under the same hold of both
    /// locks.
    pub(crate) fn move_in(
        &mut self,
        admission: MoveAdmission,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        let arming = self.arm(admission.admission, hash, key, value, deadline, now);
        // It was counted when it was inserted.
        self.counters.scheduled -= 1;
        if !admission.needs_permit {
            self.put_permit_back();
        }
        arming
    }
}
