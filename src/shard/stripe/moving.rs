//! Filing, moving and cancelling: what producers do to an entry that is there.

use std::borrow::Borrow;

use super::super::entry::{End, Phase, Slot};
use super::answers::{Cancelling, Moving};
use super::staging::positions_of;
use super::{EntryId, KeyHash, Sight, SightPhase, Stripe, micros};
use crate::tick::{Tick, Time};
use crate::wheel::{Entries, Place};

impl<K, V> Stripe<K, V> {
    /// Stages an entry that is nowhere, or queues it if it is due.
    #[inline]
    pub(super) fn file(&mut self, slot: u32, deadline: Time, now: Time) {
        if deadline <= now || self.table.all_due {
            self.queue(slot, now);
            return;
        }
        if deadline == Time::MAX {
            return;
        }
        let mut position = self.staging.put(slot, deadline);
        if position.is_none() {
            let floor = self.file_staged(self.staging.all(), now);
            self.publish(self.table.tick().start_of(floor));
            position = self.staging.put(slot, deadline);
        }
        let (Some(armed), Some(position)) = (self.table.armed_mut(slot), position) else {
            unreachable!("an armed entry is filed, and all places have just been emptied");
        };
        armed.place = Place::STAGED;
        armed.position = position;
        self.publish_deadline(deadline);
    }

    /// Files the staged entries at these positions (a mask), and returns the earliest tick at which
    /// the wheel looks at one of them.
    pub(super) fn file_staged(&mut self, staged: u32, now: Time) -> Tick {
        let tick = self.table.tick();
        let mut least = Tick::MAX;
        let mut dues = [Tick::ZERO; u32::BITS as usize];
        // All of their deadlines first, so that the misses overlap.
        for position in positions_of(staged) {
            let Some(armed) = self.table.armed_mut(self.staging.slot(position)) else {
                unreachable!("STAGE-1: what is staged is armed");
            };
            armed.place = Place::NONE;
            let due = tick.at_or_after(armed.deadline);
            dues[position as usize] = due;
            least = least.min(due);
        }
        if staged != 0 {
            // A wheel that had nothing to do meets them at the present, not where it stopped; but
            // not after what is overdue, which is to expire in order.
            self.wheel.catch_up(tick.begun_by(now).min(least));
        }
        let mut floor = Tick::MAX;
        for position in positions_of(staged) {
            let slot = self.staging.slot(position);
            self.staging.remove(position);
            let due = dues[position as usize];
            floor = floor.min(self.wheel.insert(slot, due, &mut self.table));
        }
        floor
    }

    /// Files what is staged and due by the tick that has begun at `now`.
    pub(super) fn file_due(&mut self, now: Time) {
        let tick = self.table.tick();
        let begun = tick.start_of(tick.begun_by(now));
        let mut due = self.staging.due_by(begun);
        for position in positions_of(due) {
            let armed = self.table.armed(self.staging.slot(position));
            let deadline = armed.map_or(Time::ZERO, |armed| armed.deadline);
            if deadline > begun {
                // Pushed out meanwhile: it stays, and says so from now on (STAGE-2).
                self.staging.raise(position, deadline);
                due &= !(1 << position);
            }
        }
        if due != 0 {
            self.file_staged(due, now);
        }
    }

    /// The deadline of an armed entry changes. Later than where it is filed: one write, the ticker
    /// files it again when it comes by. Earlier: it is moved now.
    #[inline]
    pub(super) fn refile(&mut self, slot: u32, deadline: Time, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is moved");
        };
        // WHEEL-3: it is looked at no later than at its old deadline, or at the wheel's present. So
        // for one that is not earlier, the usual touch, the wheel need not be asked.
        let is_filed = armed.phase == Phase::Pending && armed.place != Place::NONE;
        if is_filed && deadline >= armed.deadline && deadline > now && deadline != Time::MAX {
            armed.deadline = deadline;
            return;
        }
        self.refile_or_pull_in(slot, deadline, now);
    }

    #[inline(never)]
    fn refile_or_pull_in(&mut self, slot: u32, deadline: Time, now: Time) {
        let tick = self.table.tick();
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is moved");
        };
        let place = armed.place;
        if armed.phase == Phase::Queued {
            armed.deadline = deadline;
            // ENTRY-1: the ticket bit stays; the ticket finds nothing, or what is queued again by
            // then.
            armed.phase = Phase::Pending;
            armed.position = 0;
            self.counters.queued -= 1;
            self.file(slot, deadline, now);
            return;
        }
        if place == Place::STAGED {
            let position = armed.position;
            armed.deadline = deadline;
            if deadline > now && deadline != Time::MAX {
                self.staging.lower(position, deadline);
                self.publish_deadline(deadline);
                return;
            }
            armed.place = Place::NONE;
            self.staging.remove(position);
            self.file(slot, deadline, now);
            return;
        }
        let floor = self.wheel.filed_floor(place);
        let stays = floor.is_some_and(|floor| {
            deadline > now && deadline != Time::MAX && deadline >= tick.start_of(floor)
        });
        if stays {
            armed.deadline = deadline;
            return;
        }
        if floor.is_some() {
            // Before the new deadline is written: the wheel may ask for the one it filed by.
            self.wheel.remove(slot, &mut self.table);
        }
        if let Some(armed) = self.table.armed_mut(slot) {
            armed.deadline = deadline;
        }
        self.file(slot, deadline, now);
    }

    /// Pending -> Queued, at once: the ticket goes through the injector, not through a tick. Unless
    /// that would evade the pace.
    #[inline(never)]
    fn queue(&mut self, slot: u32, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is queued");
        };
        if !armed.ticket && (self.paced || self.after.ticket.is_some()) {
            // One hold of the lock hands over one ticket. The rest of a batch is the ticker's, and
            // with a pace all is: only a ticket that is out already may be used once more.
            self.file_as_due(slot, now);
            return;
        }
        armed.phase = Phase::Queued;
        armed.position = micros(now.since(armed.deadline).as_nanos());
        self.counters.queued += 1;
        if !armed.ticket {
            armed.ticket = true;
            self.after.ticket = Some(slot);
            self.left = true;
        }
    }

    /// Files a due entry that is nowhere: the ticker collects it when it looks in its tick, the
    /// next one at the latest.
    fn file_as_due(&mut self, slot: u32, now: Time) {
        let begun = self.table.tick().begun_by(now);
        self.catch_up(begun);
        self.file_at(slot, begun.max(self.table.due(slot)));
    }

    /// The wheel comes to `now` if it has nothing to do on the way, and not after what is staged
    /// and overdue.
    pub(super) fn catch_up(&mut self, now: Tick) {
        let staged = self.table.tick().at_or_after(self.staging.earliest());
        self.wheel.catch_up(now.min(staged));
    }

    /// Files an entry that is nowhere, and lowers what the ticker sees if the wheel looks there
    /// earlier.
    #[inline]
    pub(super) fn file_at(&mut self, slot: u32, due: Tick) {
        let floor = self.wheel.insert(slot, due, &mut self.table);
        self.publish(self.table.tick().start_of(floor));
    }

    /// Lowers what the ticker sees, if the tick of a deadline begins before.
    #[inline]
    fn publish_deadline(&mut self, deadline: Time) {
        // Its tick does not begin before it, so mostly there is nothing to divide.
        if deadline < self.published {
            let tick = self.table.tick();
            self.publish(tick.start_of(tick.at_or_after(deadline)));
        }
    }

    /// Lowers what the ticker sees, if the wheel wants to be looked at earlier.
    #[inline]
    pub(super) fn publish(&mut self, next: Time) {
        if next < self.published {
            self.published = next;
            self.after.lowered = Some(next);
            self.left = true;
        }
    }

    pub(super) fn next_wake(&self) -> Time {
        let tick = self.table.tick();
        let filed = self
            .wheel
            .next_wake()
            .map_or(Time::MAX, |wake| tick.start_of(wake));
        match self.staging.earliest() {
            Time::MAX => filed,
            staged => filed.min(tick.start_of(tick.at_or_after(staged))),
        }
    }

    /// For the ticker alone: the truth, which may be later than what was published.
    pub(crate) fn republish(&mut self) -> Time {
        self.published = self.next_wake();
        self.published
    }

    /// The exact next moment at which this stripe has something to do.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn next_due(&self) -> Time {
        self.next_wake()
    }

    // === moving and cancelling ===

    pub(crate) fn reschedule<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.find(hash, key) {
            Some(slot) => self.reschedule_slot(slot, deadline, now, only_earlier),
            None => Moving::NotFound,
        }
    }

    pub(crate) fn reschedule_id(
        &mut self,
        id: EntryId,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        match self.get_id(id) {
            None => Moving::NotFound,
            // What is kept is another arming, unless it is this one's next round.
            Some(Sight {
                phase: SightPhase::Running { kept: Some(_) },
                ..
            }) if !self.keeps_a_round(id.slot) => Moving::Running,
            Some(_) => self.reschedule_slot(id.slot, deadline, now, only_earlier),
        }
    }

    /// Moves whatever the slot holds.
    #[inline]
    pub(crate) fn reschedule_slot(
        &mut self,
        slot: u32,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        if let Some(armed) = self.table.armed(slot) {
            let before = armed.deadline;
            if only_earlier && deadline >= before {
                return Moving::Unchanged { deadline: before };
            }
            self.refile(slot, deadline, now);
            return Moving::Moved { before };
        }
        let Some(at) = self.run_at(slot) else {
            return Moving::NotFound;
        };
        let Some(kept) = &mut self.runs[at].kept else {
            return self.move_next_round(at, deadline, only_earlier);
        };
        let before = kept.deadline;
        if only_earlier && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        kept.deadline = deadline;
        Moving::Moved { before }
    }

    #[inline]
    pub(crate) fn cancel<Q>(&mut self, hash: KeyHash, key: &Q) -> Cancelling<K, V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        match self.find(hash, key) {
            Some(slot) => self.cancel_slot(slot),
            None => Cancelling::NotFound,
        }
    }

    #[inline]
    pub(crate) fn cancel_id(&mut self, id: EntryId) -> Cancelling<K, V> {
        match self.table.armed(id.slot) {
            Some(armed) if armed.generation == id.generation => self.cancel_slot(id.slot),
            Some(_) => Cancelling::NotFound,
            None => self.cancel_run(id),
        }
    }

    /// By an id whose slot holds nothing armed: the run in progress, or the arming kept for after
    /// it.
    #[inline(never)]
    fn cancel_run(&mut self, id: EntryId) -> Cancelling<K, V> {
        match self.get_id(id) {
            None => Cancelling::NotFound,
            Some(Sight {
                phase: SightPhase::Running { .. },
                ..
            }) => {
                if self.keeps_a_round(id.slot) {
                    return self.cancel_kept(id.slot, true);
                }
                if let Some(at) = self.run_at(id.slot) {
                    self.tell(at);
                }
                Cancelling::Running(id)
            }
            // The id of a kept arming means that one alone; the run in progress is not told.
            Some(_) => self.cancel_kept(id.slot, false),
        }
    }

    /// Cancels whatever the slot holds.
    #[inline]
    pub(crate) fn cancel_slot(&mut self, slot: u32) -> Cancelling<K, V> {
        match self.cancel_armed(slot) {
            Some((deadline, key, value)) => Cancelling::Cancelled {
                deadline,
                run: None,
                dropped: (Some(key), Some(value)),
            },
            None => self.cancel_running(slot),
        }
    }

    /// The usual case of [`cancel_slot`](Self::cancel_slot), on its own: joined with the other one
    /// the answer would be copied on its way.
    #[inline]
    pub(crate) fn cancel_armed(&mut self, slot: u32) -> Option<(Time, K, V)> {
        let taken = self.take_armed(slot, End::Cancelled)?;
        self.counters.cancelled += 1;
        self.no_longer_pending();
        Some(taken)
    }

    /// The other case: a key that runs. Cancels the arming kept for after the run, and tells the
    /// run.
    pub(crate) fn cancel_running(&mut self, slot: u32) -> Cancelling<K, V> {
        self.cancel_kept(slot, true)
    }

    /// Tells a run that it was cancelled.
    fn tell(&mut self, at: usize) {
        let run = &mut self.runs[at];
        run.cancelled = true;
        #[cfg(feature = "tokio")]
        if !run.watchers.is_empty() {
            self.after.told.append(&mut run.watchers);
            self.left = true;
        }
    }

    #[inline(never)]
    fn cancel_kept(&mut self, slot: u32, tell_the_run: bool) -> Cancelling<K, V> {
        let Some(at) = self.run_at(slot) else {
            return Cancelling::NotFound;
        };
        if tell_the_run {
            self.tell(at);
        }
        let run = &mut self.runs[at];
        let id = run.id;
        match run.kept.take() {
            Some(kept) => {
                self.counters.cancelled += 1;
                self.kept_is_gone(at);
                Cancelling::Cancelled {
                    deadline: kept.deadline,
                    run: Some(id),
                    dropped: (None, Some(kept.value)),
                }
            }
            None => Cancelling::Running(id),
        }
    }

    /// Unlinks an armed entry from the wheel and the index and frees its slot.
    pub(super) fn take_out(&mut self, slot: u32, end: End) -> (Time, K, V) {
        match self.take_armed(slot, end) {
            Some(taken) => taken,
            None => unreachable!("only an armed entry is taken out"),
        }
    }

    /// The same, if the slot holds an armed entry.
    #[inline]
    fn take_armed(&mut self, slot: u32, end: End) -> Option<(Time, K, V)> {
        let armed = self.table.armed(slot)?;
        if armed.phase == Phase::Queued {
            self.counters.queued -= 1;
        }
        let (bits, place, position) = (armed.hash, armed.place, armed.position);
        if place == Place::STAGED {
            self.staging.remove(position);
        } else if place != Place::NONE {
            self.wheel.unlink(slot, place, position, &mut self.table);
        }
        self.index.remove(bits, slot);
        let Slot::Armed(armed) = self.table.vacate(slot, end) else {
            unreachable!("it was armed");
        };
        Some((armed.deadline, armed.key, armed.value))
    }

    #[inline]
    pub(super) fn no_longer_pending(&mut self) {
        self.counters.pending -= 1;
        self.put_permit_back();
    }

    /// The permit of an arming that ended.
    #[inline]
    pub(super) fn put_permit_back(&mut self) {
        if let Some(pool) = &self.bound {
            pool.put_back(&mut self.permits);
        }
    }
}
