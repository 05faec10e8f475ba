//! The steps of a due timer: it is collected as a ticket, claimed, run and completed.

use std::iter::once_with;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::entry::{End, Phase, Slot, Table};
use super::answers::{Claimed, Completed, Start};
use super::repeating::Repeating;
use super::{EXHAUSTED, EntryId, Run, Stripe, micros_between};
use crate::clock::ClaimReading;
#[cfg(all(test, not(loom)))]
use crate::clock::{Clock, ManualClock};
use crate::stats::Latenesses;
use crate::tick::{Tick, Time};
use crate::wheel::{Budget, CoreProgress};

impl<K, V> Stripe<K, V> {
    /// Collects entries that are due at `now` as tickets (slot numbers), within the budget. The
    /// caller then calls [`republish`](Self::republish) under the same lock.
    pub(crate) fn collect(
        &mut self,
        now: Time,
        budget: &mut Budget,
        out: &mut Vec<u32>,
    ) -> CoreProgress {
        let target = self.table.tick().begun_by(now);
        // Staged entries are filed first, so that all due entries expire in the wheel's order.
        self.file_due(now);
        let Stripe {
            wheel,
            table,
            counters,
            ..
        } = self;
        wheel.advance(
            target,
            budget,
            table,
            &mut |table: &mut Table<K, V>, slot| {
                let Some(armed) = table.armed_mut(slot) else {
                    return;
                };
                armed.phase = Phase::Queued;
                armed.position = micros_between(armed.deadline, now);
                counters.queued += 1;
                // ENTRY-1: a ticket of an earlier phase may still be under way. Its claim will find
                // this entry Queued.
                if !armed.ticket {
                    armed.ticket = true;
                    out.push(slot);
                }
            },
        )
    }

    /// Takes buffers that the caller frees after unlocking.
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<u32>> {
        self.wheel.take_spare()
    }

    /// Prefetches the data that the claims and completions of these slots will read. The reads do
    /// not depend on each other, so their cache misses overlap. `payload` prefetches what a payload
    /// points to.
    pub(crate) fn prefetch_claims(
        &mut self,
        slots: impl Iterator<Item = u32> + Clone,
        payload: impl Fn(&mut V),
    ) {
        // In passes: the row of the index, and the address of what a payload points to, are known
        // by the entry. With few instructions for each slot, the processor sees more of them ahead.
        let mut seen = 0;
        for slot in slots.clone() {
            if let Some(armed) = self.table.armed(slot) {
                seen += self.index.prefetch(armed.hash);
            }
        }
        // In a second pass: the address of what a payload points to is in the entry, which the
        // first pass has fetched.
        for slot in slots {
            if let Some(armed) = self.table.armed_mut(slot) {
                payload(&mut armed.value);
            }
        }
        // Keeps the compiler from removing the reads.
        std::hint::black_box(seen);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn claim(&mut self, slot: u32, now: Time) -> Claimed<K, V>
    where
        K: Clone,
    {
        self.claim_at(slot, now, |_, _| Start::Once)
    }

    /// Claims at an exact moment.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn claim_at(
        &mut self,
        slot: u32,
        now: Time,
        start: impl FnOnce(&mut V, Time) -> Start,
    ) -> Claimed<K, V>
    where
        K: Clone,
    {
        let clock = Clock::manual(&ManualClock::starting_at(now));
        let present = &mut ClaimReading::new(&clock);
        self.claim_as(slot, present, |value, deadline, _| start(value, deadline))
    }

    /// Turns a ticket into a run, if it is still valid and `start` does not defer it. `start` gets
    /// the payload, its deadline and the present. It makes the present exact if it decides by it
    /// (READING-6).
    pub(crate) fn claim_as(
        &mut self,
        slot: u32,
        present: &mut ClaimReading<'_>,
        start: impl FnOnce(&mut V, Time, &mut ClaimReading<'_>) -> Start,
    ) -> Claimed<K, V>
    where
        K: Clone,
    {
        let Some(armed) = self.table.armed_mut(slot) else {
            self.table.ticket_back(slot);
            return Claimed::Nothing;
        };
        // The ticket ends here, whatever it finds. A timer that was moved to a later deadline is
        // Pending, and gets a new ticket when it is due again.
        debug_assert!(armed.ticket, "ENTRY-1: a ticket has its bit");
        armed.ticket = false;
        if armed.phase != Phase::Queued {
            return Claimed::Nothing;
        }
        // Lateness is measured from this deadline, even if the run gets a later one.
        let was_due = armed.deadline;
        let repeating = match start(&mut armed.value, was_due, present) {
            Start::Once => None,
            Start::Round(deadline) => {
                armed.deadline = deadline;
                Some(Repeating::new())
            }
            Start::PutOff(deadline) => {
                // The payload has not started, so it is moved like any Queued entry.
                self.refile(slot, deadline, present.exact());
                return Claimed::Nothing;
            }
        };
        // The run needs a key of its own, since the entry keeps one for lookups. The clone is user
        // code and may panic, so it is made before the counters and the entry change.
        let key = match catch_unwind(AssertUnwindSafe(|| armed.key.clone())) {
            Ok(key) => key,
            Err(panic) => {
                // Without a key there is nothing to run with. The arming ends as if its task had
                // panicked.
                let (deadline, key, value) = self.take_out(slot, End::Ran);
                self.counters.ran += 1;
                self.counters.panicked += 1;
                self.no_longer_pending();
                return Claimed::KeyPanicked {
                    panic,
                    key,
                    value,
                    deadline,
                };
            }
        };
        self.counters.queued -= 1;
        self.counters.ran += 1;
        self.counters.pending -= 1;
        // ROUND-1: a payload that may run again keeps its permit.
        if repeating.is_none() {
            self.put_permit_back();
        }
        let line = u32::try_from(self.runs.len()).unwrap_or(u32::MAX);
        let Some((value, deadline, generation, tick_lag)) = self.table.start(slot, line) else {
            unreachable!("it was armed a moment ago");
        };
        // The reading may be a cheap one or older than a move of the entry, or the clock may have
        // been set back. The reported start is never before the deadline, except in a shutdown that
        // runs everything. There an exact reading tells whether the deadline has come (READING-6).
        let now = if self.table.all_due {
            present.exact()
        } else {
            present.low().max(deadline)
        };
        self.record(now, was_due, tick_lag);
        // No ticket refers to the slot now, so this is the moment at which it can be exchanged.
        let slot = self.replace_exhausted_slot(slot, generation);
        let id = EntryId {
            slot,
            generation: self.newest(slot),
        };
        // Not by `push`, which copies the run from where it was made. To read in words what has just
        // been written in bytes stalls the processor.
        self.runs.extend(once_with(|| Run {
            id,
            deadline,
            started: now,
            cancelled: false,
            waiters: Vec::new(),
            #[cfg(feature = "tokio")]
            watchers: Vec::new(),
            successor: None,
            repeating,
        }));
        Claimed::Run {
            key,
            value,
            id,
            deadline,
            started: now,
        }
    }

    /// Claims a ticket whose payload only wakes a task, as `is_wake_up` decides, and completes that
    /// run at once. The caller drops the key and wakes the task after unlocking. Returns `None`,
    /// and changes nothing, if the ticket stands for something else.
    pub(crate) fn claim_wake_up(
        &mut self,
        slot: u32,
        now: Time,
        is_wake_up: impl FnOnce(&V) -> bool,
    ) -> Option<(K, V)> {
        let armed = self.table.armed_mut(slot)?;
        if armed.phase != Phase::Queued || !is_wake_up(&armed.value) {
            return None;
        }
        debug_assert!(armed.ticket, "ENTRY-1: a ticket has its bit");
        armed.ticket = false;
        let tick_lag = armed.position;
        let (deadline, key, value) = self.take_out(slot, End::Ran);
        self.counters.ran += 1;
        self.no_longer_pending();
        // As for other runs, the start is never before the deadline.
        self.record(now.max(deadline), deadline, tick_lag);
        Some((key, value))
    }

    /// Returns whether a ticket stands for a payload of which this holds.
    #[inline(never)]
    pub(crate) fn has_queued(&mut self, slot: u32, holds: impl FnOnce(&V) -> bool) -> bool {
        let armed = self.table.armed_mut(slot);
        armed.is_some_and(|armed| armed.phase == Phase::Queued && holds(&armed.value))
    }

    /// Counts wake-ups that panicked after their claim.
    pub(crate) fn count_panics(&mut self, panics: u64) {
        self.counters.panicked += panics;
    }

    /// Records the lateness of a run, and its two parts: until the ticker collected it, and from
    /// then on.
    fn record(&mut self, now: Time, deadline: Time, tick_lag: u32) {
        let late = now.as_nanos().saturating_sub(deadline.as_nanos());
        let lateness = self
            .lateness
            .get_or_insert_with(|| Box::new(Latenesses::new()));
        // `tick_lag` is rounded down to microseconds. So it exceeds the total only if the clock was
        // set back, or if the claim read it before the ticker did: hence the `min`. A saturated
        // value means that nearly all of the delay came before the collection, so the total is
        // used.
        let until_queued = match tick_lag {
            u32::MAX => late,
            micros => late.min(u64::from(micros) * 1_000),
        };
        lateness.total.record(late);
        lateness.tick.record(until_queued);
        lateness.queue.record(late - until_queued);
    }

    /// ENTRY-3: moves a run out of a slot whose generations are half used. A key that arms itself
    /// in every run would otherwise exhaust the generations of its slot, without the slot ever
    /// being free. This is done while no ticket refers to the slot.
    fn replace_exhausted_slot(&mut self, slot: u32, generation: u32) -> u32 {
        if generation < EXHAUSTED {
            return slot;
        }
        let Some(Slot::Running(busy)) = self.table.slot(slot) else {
            return slot;
        };
        let bits = busy.hash;
        let Some(fresh) = self.table.move_to_fresh_slot(slot, &self.floors) else {
            return slot;
        };
        self.index.renumber(bits, slot, fresh);
        fresh
    }

    /// Completes the run `id`. `now` reads the clock, for what follows the run (READING-6).
    pub(crate) fn complete(
        &mut self,
        id: EntryId,
        panicked: bool,
        now: impl FnOnce() -> Time,
    ) -> Completed<K> {
        self.counters.panicked += u64::from(panicked);
        let Some(at) = self.run_at(id.slot) else {
            unreachable!("ENTRY-4: a run is completed exactly once");
        };
        #[allow(unused_mut, reason = "with tasks there are watchers to notify")]
        let mut run = self.runs.swap_remove(at);
        // `swap_remove` put the last run into the gap, so the entry of that run gets its new index.
        if let Some(moved) = self.runs.get(at).map(|run| run.id.slot)
            && let Some(busy) = self.table.busy_mut(moved)
        {
            busy.run = at as u32;
        }
        #[cfg(feature = "tokio")]
        // Tasks that watch for a cancellation are woken as well, since none will come.
        run.waiters.append(&mut run.watchers);
        // ROUND-1: the run still has its permit, since no next round was armed.
        if run.holds_permit() {
            self.put_permit_back();
        }
        let key = match run.successor {
            Some(successor) if self.keeps => {
                self.keep_successor(id.slot, successor);
                None
            }
            Some(successor) => {
                self.table.resume(
                    id.slot,
                    successor.value,
                    successor.deadline,
                    successor.generation,
                );
                // The entry stays in the index, and keeps its key.
                self.file(id.slot, successor.deadline, now());
                None
            }
            None => {
                let (bits, newest) = match self.table.slot(id.slot) {
                    Some(Slot::Running(busy)) => (busy.hash, busy.newest),
                    _ => unreachable!("ENTRY-4: a run has a Running slot"),
                };
                // The free slot remembers how its newest arming ended. A successor that was
                // cancelled did not run.
                let end = if newest == id.generation {
                    End::Ran
                } else {
                    End::Cancelled
                };
                self.index.remove(bits, id.slot);
                match self.table.vacate(id.slot, end) {
                    Slot::Running(busy) => Some(busy.key),
                    _ => None,
                }
            }
        };
        Completed {
            key,
            waiters: run.waiters,
        }
    }

    /// Takes back a ticket that will not be claimed. Its timer is filed again and expires with the
    /// next tick.
    pub(crate) fn give_back(&mut self, slot: u32, now: Time) {
        let Some(armed) = self.table.armed_mut(slot) else {
            self.table.ticket_back(slot);
            return;
        };
        armed.ticket = false;
        if armed.phase != Phase::Queued {
            return;
        }
        armed.phase = Phase::Pending;
        armed.position = 0;
        self.counters.queued -= 1;
        let tick = self.table.tick();
        self.catch_up(tick.begun_by(now));
        // The next tick, not this one: an executor that refuses every batch would be offered the
        // timer again at once.
        let next = Tick::new(tick.begun_by(now).get().saturating_add(1));
        self.file_at(slot, next);
    }
}
