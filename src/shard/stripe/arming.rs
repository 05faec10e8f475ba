//! Arming: into a free slot, in place of what is pending, or kept for after a run.

use std::borrow::Borrow;

use super::super::entry::{Armed, End, Phase, Slot};
use super::answers::{Admission, Arming, Keyless, Refusal, Target};
use super::{EntryId, Gate, Kept, KeyHash, Stripe};
use crate::tick::Time;
use crate::wheel::Place;

impl<K, V> Stripe<K, V> {
    /// Whether `key` may be armed. Takes a permit where one is needed, so an admission must be
    /// used.
    pub(crate) fn admit<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        if_absent: bool,
    ) -> Result<Admission, Refusal>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if self.gate != Gate::Open {
            return Err(self.refusal());
        }
        let target = match self.find(hash, key) {
            None => Target::Vacant,
            Some(slot) => match self.run_at(slot) {
                None => Target::Armed(slot),
                Some(run) => Target::Running(run),
            },
        };
        let needs_permit = match &target {
            Target::Vacant => {
                if !self.table.has_room() {
                    return Err(Refusal::NoSlot);
                }
                true
            }
            Target::Armed(_) if if_absent => return Err(Refusal::Occupied),
            Target::Armed(slot) => {
                let worn = self
                    .table
                    .armed(*slot)
                    .is_some_and(|armed| armed.generation == u32::MAX);
                if worn && !self.table.has_room() {
                    return Err(Refusal::NoSlot);
                }
                false
            }
            Target::Running(at) => {
                let run = &self.runs[*at];
                if !run.waiters.is_empty() {
                    return Err(Refusal::Closing);
                }
                if if_absent && (run.kept.is_some() || run.goes_on()) {
                    return Err(Refusal::Occupied);
                }
                if self.newest(run.id.slot) == u32::MAX {
                    return Err(Refusal::NoSlot);
                }
                run.kept.is_none() && !run.holds_permit()
            }
        };
        if needs_permit
            && let Some(pool) = &self.bound
            && !pool.take(&mut self.permits)
        {
            return Err(Refusal::NoPermit);
        }
        Ok(Admission(target))
    }

    #[cold]
    fn refusal(&self) -> Refusal {
        match self.gate {
            Gate::Inert => Refusal::UnderLock,
            Gate::Open | Gate::Closed => Refusal::Closed,
        }
    }

    /// A keyless arming's admission.
    #[inline]
    pub(crate) fn admit_keyless(&mut self) -> Result<Keyless, Refusal> {
        if self.gate != Gate::Open {
            return Err(self.refusal());
        }
        if !self.table.has_room() {
            return Err(Refusal::NoSlot);
        }
        if let Some(pool) = &self.bound
            && !pool.take(&mut self.permits)
        {
            return Err(Refusal::NoPermit);
        }
        Ok(Keyless(()))
    }

    /// Arms what has no key, so that it is not put into the index.
    #[inline]
    pub(crate) fn arm_keyless(
        &mut self,
        _admission: Keyless,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        self.arm_new(None, key, value, deadline, now)
    }

    /// Arms a key that was admitted as [vacant](Admission::is_vacant): the usual case of
    /// [`arm`](Self::arm), without its large answer.
    #[inline]
    pub(crate) fn arm_vacant(
        &mut self,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        self.arm_new(Some(hash), key, value, deadline, now)
    }

    /// Arms `key` as admitted; an admission is used once.
    pub(crate) fn arm(
        &mut self,
        Admission(target): Admission,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        match target {
            Target::Vacant => Arming {
                id: self.arm_vacant(hash, key, value, deadline, now),
                replaced: None,
                after_run: false,
                dropped: (None, None),
            },
            Target::Armed(slot) => {
                self.counters.scheduled += 1;
                self.counters.replaced += 1;
                self.replace(slot, hash, key, value, deadline, now)
            }
            Target::Running(at) => {
                self.counters.scheduled += 1;
                self.keep(at, key, value, deadline)
            }
        }
    }

    #[inline(never)]
    fn arm_new(
        &mut self,
        hash: Option<KeyHash>,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        let bits = hash.map_or(0, KeyHash::bits);
        let (slot, generation) = self.table.occupy(&self.floors, |generation| Armed {
            key,
            value,
            deadline,
            hash: bits,
            generation,
            position: 0,
            place: Place::NONE,
            phase: Phase::Pending,
            ticket: false,
        });
        if hash.is_some() {
            self.index.insert(bits, slot);
        }
        self.file(slot, deadline, now);
        EntryId { slot, generation }
    }

    fn replace(
        &mut self,
        slot: u32,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("the admission names an armed slot");
        };
        let replaced = Some(armed.deadline);
        if armed.generation == u32::MAX {
            // ENTRY-3: the slot is used up, the key moves to another one.
            let (_, old_key, old_value) = self.take_out(slot, End::Cancelled);
            let id = self.arm_new(Some(hash), key, value, deadline, now);
            return Arming {
                id,
                replaced,
                after_run: false,
                dropped: (Some(old_key), Some(old_value)),
            };
        }
        armed.generation += 1;
        let generation = armed.generation;
        let old = std::mem::replace(&mut armed.value, value);
        self.refile(slot, deadline, now);
        Arming {
            id: EntryId { slot, generation },
            replaced,
            after_run: false,
            dropped: (Some(key), Some(old)),
        }
    }

    fn keep(&mut self, at: usize, key: K, value: V, deadline: Time) -> Arming<K, V> {
        let slot = self.runs[at].id.slot;
        let Some(busy) = self.table.busy_mut(slot) else {
            unreachable!("ENTRY-4: a run has a Running slot");
        };
        busy.newest += 1;
        let generation = busy.newest;
        let before = self.runs[at].kept.replace(Kept {
            is_round: false,
            generation,
            deadline,
            value,
        });
        match &before {
            Some(_) => self.counters.replaced += 1,
            None => {
                self.counters.pending += 1;
                self.runs[at].pass_permit_on();
            }
        }
        Arming {
            id: EntryId { slot, generation },
            replaced: before.as_ref().map(|kept| kept.deadline),
            after_run: true,
            dropped: (Some(key), before.map(|kept| kept.value)),
        }
    }

    pub(super) fn newest(&self, slot: u32) -> u32 {
        match self.table.slot(slot) {
            Some(Slot::Running(busy)) => busy.newest,
            Some(Slot::Armed(armed)) => armed.generation,
            _ => 0,
        }
    }
}
