//! Filing, moving and cancelling: the operations of producers on an entry that exists.

use std::borrow::Borrow;

use super::super::entry::{Armed, End, Phase};
use super::answers::{Cancelling, Moving};
use super::staging::positions_of;
use super::{EntryId, EntryInfo, EntryPhase, KeyHash, NotUsual, Stripe, micros_between};
use crate::tick::{Tick, Time};
use crate::wheel::{EntryStore, WheelPosition};

impl<K, V> Stripe<K, V> {
    /// Returns whether a timer with this deadline waits for it: the timer is not due, and it is due
    /// some day.
    #[inline]
    pub(super) fn waits(&self, deadline: Time, now: Time) -> bool {
        deadline > now && deadline != Time::MAX && !self.table.all_due
    }

    /// Stages an entry that is neither staged nor filed, or queues it if it is due.
    #[inline(never)]
    pub(super) fn file(&mut self, slot: u32, deadline: Time, now: Time) {
        if !self.waits(deadline, now) {
            // An entry that is never due concerns neither the wheel nor the ticker (ENTRY-5).
            if deadline <= now || self.table.all_due {
                self.queue(slot, now);
            }
            return;
        }
        let mut free_place = self.staging.free_place();
        if free_place.is_none() {
            // All places are taken. Filing them together lets the cache misses of their slots
            // overlap.
            let floor = self.file_staged(self.staging.all(), now);
            self.publish(self.table.tick().start_of(floor));
            free_place = self.staging.free_place();
        }
        let (Some(armed), Some(position)) = (self.table.armed_mut(slot), free_place) else {
            unreachable!("only an armed entry is filed, and all places have just been emptied");
        };
        armed.wheel_position = WheelPosition::STAGED;
        armed.position = position;
        self.staging.put(position, slot, deadline);
        self.publish_deadline(deadline);
    }

    /// Files the staged entries at these positions (a mask). Returns the earliest tick at which the
    /// wheel looks at one of them.
    pub(super) fn file_staged(&mut self, staged: u32, now: Time) -> Tick {
        let tick = self.table.tick();
        let mut least = Tick::MAX;
        let mut dues = [Tick::ZERO; u32::BITS as usize];
        // All deadlines are read first, so that the cache misses overlap.
        for position in positions_of(staged) {
            let Some(armed) = self.table.armed_mut(self.staging.slot(position)) else {
                unreachable!("STAGE-1: what is staged is armed");
            };
            armed.wheel_position = WheelPosition::NONE;
            let due = tick.at_or_after(armed.deadline);
            dues[position as usize] = due;
            least = least.min(due);
        }
        if staged != 0 {
            // A wheel that had nothing to do is moved to the present, so that entries are placed
            // relative to it and not to the tick where it stopped. It must not pass overdue
            // entries, which have to expire in order.
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

    /// Files the staged entries that are due by the last tick that has begun at `now`.
    pub(super) fn file_due(&mut self, now: Time) {
        let tick = self.table.tick();
        let begun = tick.start_of(tick.begun_by(now));
        let mut due = self.staging.due_by(begun);
        for position in positions_of(due) {
            let armed = self.table.armed(self.staging.slot(position));
            let deadline = armed.map_or(Time::ZERO, |armed| armed.deadline);
            if deadline > begun {
                // The entry was moved to a later deadline. It stays staged, now with that deadline
                // (STAGE-2).
                self.staging.raise(position, deadline);
                due &= !(1 << position);
            }
        }
        if due != 0 {
            self.file_staged(due, now);
        }
    }

    /// Changes the deadline of an armed entry. If the new one is later than the moment at which the
    /// entry is looked at, this is a single write: see `Armed::put_off`. Otherwise the entry is
    /// moved now.
    #[inline]
    pub(super) fn refile(&mut self, slot: u32, deadline: Time, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is moved");
        };
        if !armed.put_off(deadline, now) {
            self.refile_or_pull_in(slot, deadline, now);
        }
    }

    /// Changes the deadline of an armed entry in all other cases: it is Queued, staged, or nowhere,
    /// or the new deadline may be earlier than the moment at which the wheel looks at it.
    #[inline(never)]
    pub(super) fn refile_or_pull_in(&mut self, slot: u32, deadline: Time, now: Time) {
        let tick = self.table.tick();
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is moved");
        };
        let wheel_position = armed.wheel_position;
        if armed.phase == Phase::Queued {
            armed.deadline = deadline;
            // ENTRY-1: the ticket bit stays, since the ticket is still under way. Its claim finds a
            // Pending entry and does nothing, or finds the entry Queued again.
            armed.phase = Phase::Pending;
            armed.position = 0;
            self.counters.queued -= 1;
            self.file(slot, deadline, now);
            return;
        }
        if wheel_position == WheelPosition::STAGED {
            let position = armed.position;
            armed.deadline = deadline;
            if deadline > now && deadline != Time::MAX {
                // A later deadline leaves the staged one as it is: filing will correct it
                // (STAGE-2).
                self.staging.lower(position, deadline);
                self.publish_deadline(deadline);
                return;
            }
            // Due now or never: the entry must leave the staging area.
            armed.wheel_position = WheelPosition::NONE;
            self.staging.remove(position);
            self.file(slot, deadline, now);
            return;
        }
        // The wheel reads the deadline when it gets to the slot. So the entry may stay unless it
        // would then be late, or must not be in the wheel at all.
        let floor = self.wheel.filed_floor(wheel_position);
        let stays = floor.is_some_and(|floor| {
            deadline > now && deadline != Time::MAX && deadline >= tick.start_of(floor)
        });
        if stays {
            armed.deadline = deadline;
            return;
        }
        if floor.is_some() {
            // Before the new deadline is written, because the wheel may ask for the deadline by
            // which it filed the entry.
            self.wheel.remove(slot, &mut self.table);
        }
        if let Some(armed) = self.table.armed_mut(slot) {
            armed.deadline = deadline;
        }
        self.file(slot, deadline, now);
    }

    /// Queues a Pending entry at once: its ticket goes through the injector instead of through a
    /// tick. An entry whose ticket would evade the pace is filed as due instead.
    #[inline(never)]
    fn queue(&mut self, slot: u32, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            unreachable!("only an armed entry is queued");
        };
        if !armed.ticket && (self.paced || self.deferred.ticket.is_some()) {
            // One hold of the lock hands over at most one ticket. The other due entries of a batch
            // go through the ticker, and with a pace all of them do. Only a ticket that is under
            // way already may be used once more.
            self.file_as_due(slot, now);
            return;
        }
        armed.phase = Phase::Queued;
        armed.position = micros_between(armed.deadline, now);
        self.counters.queued += 1;
        if !armed.ticket {
            armed.ticket = true;
            self.deferred.ticket = Some(slot);
            self.has_deferred = true;
        }
    }

    /// Files a due entry that is neither staged nor filed. The ticker collects it in its tick, or
    /// in the next one at the latest.
    fn file_as_due(&mut self, slot: u32, now: Time) {
        let begun = self.table.tick().begun_by(now);
        self.catch_up(begun);
        self.file_at(slot, begun.max(self.table.due(slot)));
    }

    /// Moves the wheel to `now` if it has nothing to do on the way, but not past overdue staged
    /// entries.
    pub(super) fn catch_up(&mut self, now: Tick) {
        let staged = self.table.tick().at_or_after(self.staging.earliest());
        self.wheel.catch_up(now.min(staged));
    }

    /// Files an entry that is neither staged nor filed, and publishes an earlier due moment if the
    /// wheel will look there earlier.
    #[inline]
    pub(super) fn file_at(&mut self, slot: u32, due: Tick) {
        let floor = self.wheel.insert(slot, due, &mut self.table);
        self.publish(self.table.tick().start_of(floor));
    }

    /// Publishes an earlier due moment if the tick of `deadline` begins before the published one.
    #[inline]
    pub(super) fn publish_deadline(&mut self, deadline: Time) {
        // The tick does not begin before the deadline, so in most cases the division can be
        // skipped.
        if deadline < self.published {
            self.publish_tick_of(deadline);
        }
    }

    /// Publishes the moment at which the tick of `deadline` begins, if that is earlier than the
    /// published one.
    #[inline(never)]
    fn publish_tick_of(&mut self, deadline: Time) {
        let tick = self.table.tick();
        self.publish(tick.start_of(tick.at_or_after(deadline)));
    }

    /// Publishes an earlier due moment, if `next` is earlier than the published one.
    #[inline]
    pub(super) fn publish(&mut self, next: Time) {
        if next < self.published {
            self.published = next;
            self.deferred.lowered = Some(next);
            self.has_deferred = true;
        }
    }

    /// Returns the moment at which the wheel or a staged entry needs the ticker next.
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

    /// Publishes the exact due moment, which may be later than the published one. Only the ticker
    /// calls this (STRIPE-3).
    pub(crate) fn republish(&mut self) -> Time {
        self.published = self.next_wake();
        self.published
    }

    /// Returns the exact next moment at which this stripe has work.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn next_due(&self) -> Time {
        self.next_wake()
    }

    // === moving and cancelling ===

    /// Moves the deadline of a pending arming of `key`. `read` returns the new deadline and the
    /// current time; see [`usual_after`](Self::usual_after).
    #[inline(always)]
    pub(crate) fn reschedule<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
        read: impl FnOnce() -> (Time, Time),
        only_earlier: bool,
    ) -> Moving
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let ((deadline, now), found) = self.usual_after(hash, key, read);
        let Some((slot, armed)) = found else {
            return match self.find_by_search(hash, key) {
                Some(slot) => self.reschedule_slot(slot, deadline, now, only_earlier),
                None => Moving::NotFound,
            };
        };
        let before = armed.deadline;
        if only_earlier && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        if !armed.put_off(deadline, now) {
            self.refile_or_pull_in(slot, deadline, now);
        }
        Moving::Moved { before }
    }

    /// Moves the deadline of the arming `id`, if it is pending.
    #[inline]
    pub(crate) fn reschedule_id(
        &mut self,
        id: EntryId,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        match self.table.armed(id.slot) {
            Some(armed) if armed.generation == id.generation => {
                self.reschedule_slot(id.slot, deadline, now, only_earlier)
            }
            _ => self.reschedule_run_id(id, deadline, only_earlier),
        }
    }

    /// Moves by an id whose slot holds another arming, a run or nothing.
    #[inline(never)]
    fn reschedule_run_id(&mut self, id: EntryId, deadline: Time, only_earlier: bool) -> Moving {
        match self.get_id(id) {
            None => Moving::NotFound,
            // The successor is another arming, unless it is the next round of this one.
            Some(EntryInfo {
                phase: EntryPhase::Running { successor: Some(_) },
                ..
            }) if !self.keeps_a_round(id.slot) => Moving::Running,
            Some(_) => self.reschedule_run(id.slot, deadline, only_earlier),
        }
    }

    /// Moves the pending arming in `slot`: the entry, the successor of a run, or the next round.
    #[inline]
    pub(crate) fn reschedule_slot(
        &mut self,
        slot: u32,
        deadline: Time,
        now: Time,
        only_earlier: bool,
    ) -> Moving {
        let Some(armed) = self.table.armed_mut(slot) else {
            return self.reschedule_run(slot, deadline, only_earlier);
        };
        let before = armed.deadline;
        if only_earlier && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        if !armed.put_off(deadline, now) {
            self.refile_or_pull_in(slot, deadline, now);
        }
        Moving::Moved { before }
    }

    /// Moves the successor of the run in `slot`, or its next round.
    #[inline(never)]
    fn reschedule_run(&mut self, slot: u32, deadline: Time, only_earlier: bool) -> Moving {
        let Some(at) = self.run_at(slot) else {
            return Moving::NotFound;
        };
        let Some(successor) = &mut self.runs[at].successor else {
            return self.move_next_round(at, deadline, only_earlier);
        };
        let before = successor.deadline;
        if only_earlier && deadline >= before {
            return Moving::Unchanged { deadline: before };
        }
        // A successor is filed when its run ends, so nothing else has to move.
        successor.deadline = deadline;
        Moving::Moved { before }
    }

    /// Cancels the pending arming of `key`, and marks a run of it as cancelled.
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

    /// Cancels the arming `id`: both cases in one.
    pub(crate) fn cancel_id(&mut self, id: EntryId) -> Cancelling<K, V> {
        match self.cancel_armed_id(id) {
            Some(cancelled) => Cancelling::of_armed(cancelled),
            None => self.cancel_run(id),
        }
    }

    /// Cancels by an id whose slot holds no armed entry of this generation: the id means the run in
    /// progress or its successor, or it is stale.
    #[inline(never)]
    pub(crate) fn cancel_run(&mut self, id: EntryId) -> Cancelling<K, V> {
        match self.get_id(id) {
            None => Cancelling::NotFound,
            Some(EntryInfo {
                phase: EntryPhase::Running { .. },
                ..
            }) => {
                // The run has ended except for its completion, so the cancellation ends the
                // repetition.
                if self.keeps_a_round(id.slot) {
                    return self.cancel_successor(id.slot, true);
                }
                if let Some(at) = self.run_at(id.slot) {
                    self.tell(at);
                }
                Cancelling::Running(id)
            }
            // The id of a successor means the successor alone, so the run in progress is not
            // marked.
            Some(_) => self.cancel_successor(id.slot, false),
        }
    }

    /// Cancels the pending arming in `slot`, and marks a run in it as cancelled.
    #[inline(never)]
    pub(crate) fn cancel_slot(&mut self, slot: u32) -> Cancelling<K, V> {
        match self.cancel_armed(slot) {
            Some(cancelled) => Cancelling::of_armed(cancelled),
            None => self.cancel_running(slot),
        }
    }

    /// Cancels the entry in `slot` if it is Pending or Queued. This is the common case of
    /// [`cancel_slot`](Self::cancel_slot).
    pub(crate) fn cancel_armed(&mut self, slot: u32) -> Option<(Time, K, V)> {
        self.cancel_if(slot, |_| true)
    }

    /// Cancels the arming `id` if it is Pending or Queued. In all other cases the caller goes on
    /// with [`cancel_run`](Self::cancel_run).
    #[inline(always)]
    pub(crate) fn cancel_armed_id(&mut self, id: EntryId) -> Option<(Time, K, V)> {
        self.cancel_if(id.slot, |armed| armed.generation == id.generation)
    }

    #[inline(always)]
    fn cancel_if(
        &mut self,
        slot: u32,
        is_it: impl FnOnce(&Armed<K, V>) -> bool,
    ) -> Option<(Time, K, V)> {
        let armed = self.take_armed(slot, End::Cancelled, is_it)?;
        self.count_cancelled();
        self.index.remove(armed.hash, slot);
        Some((armed.deadline, armed.key, armed.value))
    }

    /// Cancels the [usual](Self::usual) entry of `key`. In all other cases the caller goes on with
    /// [`find_other`](Self::find_other).
    #[inline(always)]
    pub(crate) fn cancel_usual<Q>(
        &mut self,
        hash: KeyHash,
        key: &Q,
    ) -> Result<(Time, K, V), NotUsual>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let line = self.index.first_at_home(hash.bits())?;
        let is_it = |armed: &Armed<K, V>| armed.key.borrow() == key;
        let Some(armed) = self.take_armed(line.slot, End::Cancelled, is_it) else {
            return Err(NotUsual::Unknown);
        };
        self.count_cancelled();
        self.index.remove_at_home(line);
        Ok((armed.deadline, armed.key, armed.value))
    }

    #[inline(always)]
    fn count_cancelled(&mut self) {
        self.counters.cancelled += 1;
        self.no_longer_pending();
    }

    /// Cancels the successor of a run, and marks the run as cancelled.
    pub(crate) fn cancel_running(&mut self, slot: u32) -> Cancelling<K, V> {
        self.cancel_successor(slot, true)
    }

    /// Marks a run as cancelled, and has its watchers woken after unlocking.
    fn tell(&mut self, at: usize) {
        let run = &mut self.runs[at];
        run.cancelled = true;
        #[cfg(feature = "tokio")]
        if !run.watchers.is_empty() {
            self.deferred.to_notify.append(&mut run.watchers);
            self.has_deferred = true;
        }
    }

    /// Cancels the successor of the run in `slot`, and marks the run as cancelled if `tell_the_run`
    /// is set.
    #[inline(never)]
    fn cancel_successor(&mut self, slot: u32, tell_the_run: bool) -> Cancelling<K, V> {
        let Some(at) = self.run_at(slot) else {
            return Cancelling::NotFound;
        };
        if tell_the_run {
            self.tell(at);
        }
        let run = &mut self.runs[at];
        let id = run.id;
        match run.successor.take() {
            Some(successor) => {
                self.counters.cancelled += 1;
                self.successor_removed(at);
                Cancelling::Cancelled {
                    deadline: successor.deadline,
                    run: Some(id),
                    dropped: (None, Some(successor.value)),
                }
            }
            None => Cancelling::Running(id),
        }
    }

    /// Takes an armed entry out of the wheel and the index, and frees its slot.
    pub(super) fn take_out(&mut self, slot: u32, end: End) -> (Time, K, V) {
        let Some(armed) = self.take_armed(slot, end, |_| true) else {
            unreachable!("only an armed entry is taken out");
        };
        self.index.remove(armed.hash, slot);
        (armed.deadline, armed.key, armed.value)
    }

    /// Takes the entry in `slot` out of the wheel and frees the slot, if it is armed and `is_it`
    /// returns true for it. The caller removes its line from the index.
    #[inline(always)]
    fn take_armed(
        &mut self,
        slot: u32,
        end: End,
        is_it: impl FnOnce(&Armed<K, V>) -> bool,
    ) -> Option<Armed<K, V>> {
        let armed = self.table.vacate_armed(slot, end, is_it)?;
        match armed.wheel_position {
            WheelPosition::STAGED => self.staging.remove(armed.position),
            WheelPosition::NONE if armed.phase == Phase::Queued => self.counters.queued -= 1,
            WheelPosition::NONE => {}
            filed => self.unlink(slot, filed, armed.position),
        }
        Some(armed)
    }

    /// Takes an entry out of the wheel. The wheel reads only the other entries of its slot, so the
    /// entry itself may be gone already.
    #[inline(never)]
    fn unlink(&mut self, slot: u32, wheel_position: WheelPosition, position: u32) {
        self.wheel
            .unlink(slot, wheel_position, position, &mut self.table);
    }

    /// Counts an arming as no longer pending, and returns its permit.
    #[inline]
    pub(super) fn no_longer_pending(&mut self) {
        self.counters.pending -= 1;
        self.put_permit_back();
    }

    /// Returns the permit of an arming that ended.
    #[inline]
    pub(super) fn put_permit_back(&mut self) {
        if let Some(pool) = &self.bound {
            pool.put_back(&mut self.permits);
        }
    }
}
