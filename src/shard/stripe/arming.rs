//! Arming of timers: in a free slot, in place of a pending arming, or as the successor of a run.
//!
//! The usual arming takes a free slot. Its steps are inlined into the front end's call, from the
//! admission to the release of the lock, so that keys and payloads are not copied from step to
//! step. Everything rare is in functions that are not inlined.

use std::borrow::Borrow;

use super::super::entry::{Armed, End, Slot};
use super::answers::{Admission, Arming, KeylessAdmission, Present, Refusal};
use super::index::Vacancy;
use super::{EntryId, KeyHash, NotUsual, Stripe, StripeGate, Successor};
use crate::tick::Time;
use crate::wheel::{NO_ENTRY, WheelPosition};

impl<K, V> Stripe<K, V> {
    /// Decides whether `key` may be armed. Takes a permit where one is needed, so the admission
    /// must be used.
    #[inline(always)]
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
        if self.gate != StripeGate::Open {
            return Err(self.refusal());
        }
        let vacancy = match self.index.vacancy(hash.bits()) {
            Ok(vacancy) => Some(vacancy),
            // The key's `Eq` in here is the only user code of an admission.
            Err(reason) => match self.find_other(reason, hash, key) {
                Some(slot) => {
                    return self.admit_present(slot, if_absent).map(Admission::Present);
                }
                None => None,
            },
        };
        // Everything that can refuse comes before the permit is taken, so a refusal never has to
        // give a permit back.
        self.admit_new().map(|()| Admission::Vacant(vacancy))
    }

    /// Decides the same in a call for many keys, which has looked all of them up before it armed
    /// the first one. `found` is the slot of the key at that time, or `NO_ENTRY`; `is_first` returns
    /// whether no item before this one, under this hold of the lock, has the key's hash. `keeps`
    /// returns whether the entry in the slot is not to be replaced. Calls no user code.
    ///
    /// Returns `None` if another item may have armed the key since.
    #[inline(always)]
    pub(crate) fn admit_found(
        &mut self,
        hash: KeyHash,
        found: u32,
        is_first: impl FnOnce() -> bool,
        keeps: impl FnOnce(&Self) -> bool,
    ) -> Option<Result<Admission, Refusal>> {
        if self.gate != StripeGate::Open {
            return Some(Err(self.refusal()));
        }
        let vacancy = match self.index.vacancy(hash.bits()) {
            Ok(vacancy) => Some(vacancy),
            Err(NotUsual::Absent) => None,
            Err(NotUsual::Unknown) if !is_first() => return None,
            Err(NotUsual::Unknown) if found != NO_ENTRY => {
                let if_absent = keeps(self);
                return Some(self.admit_present(found, if_absent).map(Admission::Present));
            }
            Err(NotUsual::Unknown) => None,
        };
        Some(self.admit_new().map(|()| Admission::Vacant(vacancy)))
    }

    /// Decides whether a timer without a key may be armed. Takes a permit if there is a bound.
    #[inline]
    pub(crate) fn admit_keyless(&mut self) -> Result<KeylessAdmission, Refusal> {
        if self.gate != StripeGate::Open {
            return Err(self.refusal());
        }
        self.admit_new().map(KeylessAdmission)
    }

    /// Returns the reason for a refusal by the gate.
    #[cold]
    pub(super) fn refusal(&self) -> Refusal {
        match self.gate {
            StripeGate::UnderLock => Refusal::UnderLock,
            StripeGate::Forked => Refusal::Forked,
            StripeGate::Open | StripeGate::Closed => Refusal::Closed,
        }
    }

    /// Admits an arming that takes a free slot.
    #[inline]
    fn admit_new(&mut self) -> Result<(), Refusal> {
        if !self.table.has_room() {
            return Err(Refusal::NoSlot);
        }
        self.take_permit()
    }

    /// Decides whether the key of the entry in `slot` may be armed.
    #[inline(never)]
    fn admit_present(&mut self, slot: u32, if_absent: bool) -> Result<Present, Refusal> {
        let (present, needs_permit) = self.judge_present(slot, if_absent)?;
        if needs_permit {
            self.take_permit()?;
        }
        Ok(present)
    }

    /// Decides the same, and whether the arming needs a permit. Takes none.
    #[inline(always)]
    pub(super) fn judge_present(
        &self,
        slot: u32,
        if_absent: bool,
    ) -> Result<(Present, bool), Refusal> {
        let Some(at) = self.run_at(slot) else {
            if if_absent {
                return Err(Refusal::Occupied);
            }
            // A replacement needs a new generation. Without one it needs another slot (ENTRY-3).
            if self.newest(slot) == u32::MAX && !self.table.has_room() {
                return Err(Refusal::NoSlot);
            }
            return Ok((Present::Armed(slot), false));
        };
        let run = &self.runs[at];
        // Otherwise the key could run again before the waiting call returns.
        if !run.waiters.is_empty() {
            return Err(Refusal::Closing);
        }
        if if_absent && (run.successor.is_some() || run.goes_on()) {
            return Err(Refusal::Occupied);
        }
        // A successor needs a new generation, and cannot move to another slot during the run.
        if self.newest(slot) == u32::MAX {
            return Err(Refusal::NoSlot);
        }
        // A replaced successor passes its permit on, and so does a run that repeats (ROUND-1).
        let needs_permit = run.successor.is_none() && !run.holds_permit();
        Ok((Present::Running(at), needs_permit))
    }

    /// Takes a permit if there is a bound.
    #[inline]
    fn take_permit(&mut self) -> Result<(), Refusal> {
        match &self.bound {
            Some(pool) if !pool.take(&mut self.permits) => Err(Refusal::NoPermit),
            _ => Ok(()),
        }
    }

    /// Arms a timer without a key, which is not in the index. `value` makes its payload.
    #[inline(always)]
    pub(crate) fn arm_keyless(
        &mut self,
        _admission: KeylessAdmission,
        key: K,
        value: impl FnOnce() -> V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        self.occupy(0, key, value, deadline, now)
    }

    /// Arms a key that was admitted as absent.
    #[inline(always)]
    pub(crate) fn arm_vacant(
        &mut self,
        vacancy: Option<Vacancy>,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        self.counters.scheduled += 1;
        self.counters.pending += 1;
        let id = self.occupy(hash.bits(), key, || value, deadline, now);
        match vacancy {
            Some(vacancy) => self.index.fill(vacancy, hash.bits(), id.slot),
            None => self.index.insert(hash.bits(), id.slot),
        }
        id
    }

    /// Arms a key that was admitted as present: in place of its pending arming, or as the successor
    /// of its run.
    #[inline(never)]
    pub(crate) fn arm_present(
        &mut self,
        present: Present,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        self.counters.scheduled += 1;
        match present {
            Present::Armed(slot) => {
                self.counters.replaced += 1;
                self.replace(slot, hash, key, value, deadline, now)
            }
            Present::Running(at) => self.keep(at, key, value, deadline),
        }
    }

    /// Arms `key` as admitted. An admission is used once.
    pub(crate) fn arm(
        &mut self,
        admission: Admission,
        hash: KeyHash,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> Arming<K, V> {
        match admission {
            Admission::Vacant(vacancy) => Arming {
                id: self.arm_vacant(vacancy, hash, key, value, deadline, now),
                replaced: None,
                after_run: false,
                dropped: (None, None),
            },
            Admission::Present(present) => {
                self.arm_present(present, hash, key, value, deadline, now)
            }
        }
    }

    /// Puts a new entry into a free slot, and stages it, or queues it if it is due. The caller adds
    /// its line to the index.
    ///
    /// `value` runs under the lock, so it must not be user code, and it must not panic.
    ///
    /// On the usual way, `value` is called where the entry is written. A value that was made before
    /// would be written to the stack word by word and copied from there in blocks of two words. A
    /// processor waits with such a read until the writes have reached the cache.
    #[inline(always)]
    fn occupy(
        &mut self,
        hash: u32,
        key: K,
        value: impl FnOnce() -> V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        // The usual timer is staged. Its place is chosen first, so that the entry is written once.
        if self.waits(deadline, now)
            && let Some(position) = self.staging.free_place()
        {
            let (slot, generation) = self.table.occupy(&self.floors, |generation| Armed {
                position,
                wheel_position: WheelPosition::STAGED,
                ..Armed::new(key, value(), deadline, hash, generation)
            });
            self.staging.put(position, slot, deadline);
            self.publish_deadline(deadline);
            return EntryId { slot, generation };
        }
        self.occupy_and_file(hash, key, value(), deadline, now)
    }

    /// Arms an entry that is not staged, or only after others were filed.
    #[inline(never)]
    fn occupy_and_file(
        &mut self,
        hash: u32,
        key: K,
        value: V,
        deadline: Time,
        now: Time,
    ) -> EntryId {
        let (slot, generation) = self.table.occupy(&self.floors, |generation| {
            Armed::new(key, value, deadline, hash, generation)
        });
        self.file(slot, deadline, now);
        EntryId { slot, generation }
    }

    /// Replaces the arming in `slot`, which is Pending or Queued.
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
            // ENTRY-3: the generations of the slot are exhausted, so the key moves to another slot.
            let (_, old_key, old_value) = self.take_out(slot, End::Cancelled);
            let id = self.occupy(hash.bits(), key, || value, deadline, now);
            self.index.insert(hash.bits(), id.slot);
            return Arming {
                id,
                replaced,
                after_run: false,
                dropped: (Some(old_key), Some(old_value)),
            };
        }
        // A new generation makes ids of the replaced arming invalid.
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

    /// Makes the arming the successor of the run with index `at`, in place of an earlier successor.
    fn keep(&mut self, at: usize, key: K, value: V, deadline: Time) -> Arming<K, V> {
        let slot = self.runs[at].id.slot;
        let Some(busy) = self.table.busy_mut(slot) else {
            unreachable!("ENTRY-4: a run has a Running slot");
        };
        // The successor has the run's slot and a generation of its own, so that an id means either
        // the run or the successor.
        busy.newest += 1;
        let generation = busy.newest;
        let before = self.runs[at].successor.replace(Successor {
            is_round: false,
            generation,
            deadline,
            value,
        });
        match &before {
            // The replaced successor was counted as pending, and held a permit: both pass to the
            // new one.
            Some(_) => self.counters.replaced += 1,
            None => {
                self.counters.pending += 1;
                self.runs[at].pass_permit_on();
            }
        }
        Arming {
            id: EntryId { slot, generation },
            replaced: before.as_ref().map(|successor| successor.deadline),
            after_run: true,
            // The slot has a key already, which equals this one.
            dropped: (Some(key), before.map(|successor| successor.value)),
        }
    }

    /// Returns the newest generation given out for a slot in use, and 0 for a free slot.
    pub(super) fn newest(&self, slot: u32) -> u32 {
        match self.table.slot(slot) {
            Some(Slot::Running(busy)) => busy.newest,
            Some(Slot::Armed(armed)) => armed.generation,
            _ => 0,
        }
    }
}
