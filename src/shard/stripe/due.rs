//! The way of a due timer: collected as a ticket, claimed, run, settled.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::entry::{End, Phase, Slot, Table};
use super::answers::{Claimed, Settled, Start};
use super::repeating::Repeating;
use super::{EntryId, Run, Stripe, WORN, micros};
use crate::stats::Latenesses;
use crate::tick::{Tick, Time};
use crate::wheel::{Budget, CoreProgress};

impl<K, V> Stripe<K, V> {
    /// Collects what is due at `now` as tickets (slot numbers), within the budget. Then
    /// [`republish`](Self::republish) is called under the same lock.
    pub(crate) fn collect(
        &mut self,
        now: Time,
        budget: &mut Budget,
        out: &mut Vec<u32>,
    ) -> CoreProgress {
        let target = self.table.tick().begun_by(now);
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
                armed.position = micros(now.since(armed.deadline).as_nanos());
                counters.queued += 1;
                if !armed.ticket {
                    armed.ticket = true;
                    out.push(slot);
                }
            },
        )
    }

    /// Buffers to be freed outside the lock.
    pub(crate) fn take_spare(&mut self) -> Vec<Vec<u32>> {
        self.wheel.take_spare()
    }

    /// Reads what claims and settling of these slots will read: the reads don't depend on each
    /// other, so that their misses overlap.
    pub(crate) fn look_ahead(&self, slots: impl Iterator<Item = u32>) {
        let mut seen = 0;
        for slot in slots {
            if let Some(armed) = self.table.armed(slot) {
                seen += self.index.glance(armed.hash);
            }
        }
        std::hint::black_box(seen);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn claim(&mut self, slot: u32, now: Time) -> Claimed<K, V>
    where
        K: Clone,
    {
        self.claim_as(slot, now, |_, _, _| Start::Once)
    }

    /// Turns a ticket into a run, if it still stands for something and `start` does not put it off;
    /// that is given the payload, the deadline and the present.
    pub(crate) fn claim_as(
        &mut self,
        slot: u32,
        now: Time,
        start: impl FnOnce(&mut V, Time, Time) -> Start,
    ) -> Claimed<K, V>
    where
        K: Clone,
    {
        let Some(armed) = self.table.armed_mut(slot) else {
            self.table.ticket_back(slot);
            return Claimed::Nothing;
        };
        debug_assert!(armed.ticket, "ENTRY-1: a ticket has its bit");
        armed.ticket = false;
        if armed.phase != Phase::Queued {
            return Claimed::Nothing;
        }
        // Lateness is counted from here, also if the run bears a later deadline.
        let was_due = armed.deadline;
        let repeating = match start(&mut armed.value, was_due, now) {
            Start::Once => None,
            Start::Round(deadline) => {
                armed.deadline = deadline;
                Some(Repeating::new())
            }
            Start::PutOff(deadline) => {
                // It has not started: it is moved, like any queued one.
                self.refile(slot, deadline, now);
                return Claimed::Nothing;
            }
        };
        let key = match catch_unwind(AssertUnwindSafe(|| armed.key.clone())) {
            Ok(key) => key,
            Err(panic) => {
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
        if repeating.is_none() {
            self.put_permit_back();
        }
        let line = u32::try_from(self.runs.len()).unwrap_or(u32::MAX);
        let Some((value, deadline, generation, tick_lag)) = self.table.start(slot, line) else {
            unreachable!("it was armed a moment ago");
        };
        // The clock may have been read before the entry was moved, or it was set back.
        let now = if self.table.all_due {
            now
        } else {
            now.max(deadline)
        };
        self.record(now, was_due, tick_lag);
        let slot = self.spare_a_worn_slot(slot, generation);
        let id = EntryId {
            slot,
            generation: self.newest(slot),
        };
        self.runs.push(Run {
            id,
            deadline,
            cancelled: false,
            waiters: Vec::new(),
            #[cfg(feature = "tokio")]
            watchers: Vec::new(),
            kept: None,
            repeating,
        });
        Claimed::Run {
            key,
            value,
            id,
            deadline,
            started: now,
        }
    }

    fn record(&mut self, now: Time, deadline: Time, tick_lag: u32) {
        let late = u64::try_from(now.since(deadline).as_nanos()).unwrap_or(u64::MAX);
        let lateness = self
            .lateness
            .get_or_insert_with(|| Box::new(Latenesses::new()));
        // Kept in microseconds: never more than the whole.
        // What is more than its field holds is how late it was collected, too.
        let until_queued = match tick_lag {
            u32::MAX => late,
            micros => late.min(u64::from(micros) * 1_000),
        };
        lateness.total.record(late);
        lateness.tick.record(until_queued);
        lateness.queue.record(late - until_queued);
    }

    /// ENTRY-3: a key that arms itself in every run would use its slot's generations up without the
    /// slot ever being free, so a worn slot is exchanged while no ticket refers to it.
    fn spare_a_worn_slot(&mut self, slot: u32, generation: u32) -> u32 {
        if generation < WORN {
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

    /// The run `id` has ended.
    pub(crate) fn settle(&mut self, id: EntryId, panicked: bool, now: Time) -> Settled<K> {
        self.counters.panicked += u64::from(panicked);
        let Some(at) = self.run_at(id.slot) else {
            unreachable!("ENTRY-4: a run is settled once");
        };
        #[allow(unused_mut, reason = "with tasks there is somebody to tell")]
        let mut run = self.runs.swap_remove(at);
        if let Some(moved) = self.runs.get(at).map(|run| run.id.slot)
            && let Some(busy) = self.table.busy_mut(moved)
        {
            busy.run = at as u32;
        }
        #[cfg(feature = "tokio")]
        run.waiters.append(&mut run.watchers);
        if run.holds_permit() {
            self.put_permit_back();
        }
        let key = match run.kept {
            Some(kept) => {
                self.table
                    .resume(id.slot, kept.value, kept.deadline, kept.generation);
                self.file(id.slot, kept.deadline, now);
                None
            }
            None => {
                let (bits, newest) = match self.table.slot(id.slot) {
                    Some(Slot::Running(busy)) => (busy.hash, busy.newest),
                    _ => unreachable!("ENTRY-4: a run has a Running slot"),
                };
                // The slot remembers its newest arming: one that was kept and is gone did not run.
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
        Settled {
            key,
            waiters: run.waiters,
        }
    }

    /// A ticket that nobody will claim: its timer is filed again and comes with the next tick.
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
        let next = Tick::new(tick.begun_by(now).get().saturating_add(1));
        self.file_at(slot, next);
    }
}
