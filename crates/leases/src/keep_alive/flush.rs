//! Flushes: the due renewals of one destination are sent, and their outcomes are applied.

use std::time::Duration;

use tourbillon::Time;

use super::cadence;
use super::events::What;
use super::lease_state::{InFlight, LeaseStatus, RenewalOutcome};
use super::queue::DestinationQueue;
use super::renewal_loop::{Registration, RenewalLoop, SharedQueue, count};
use super::timers::{MAX_FLUSHES, TimerKey};
use super::{Batch, Entry};
use crate::store::{Outcome, StoreError};
use crate::sync::atomic::Ordering;
use crate::sync::{Arc, catch_panic};

impl<K: Clone + Send + Sync + 'static> RenewalLoop<K> {
    /// Arms a flush of the queue within `window` (QUEUE-2). Arms none if a flush of the present
    /// epoch runs, since that one takes everything.
    pub(super) fn arm_flush(self: &Arc<Self>, queue: &SharedQueue<K>, now: Time, window: Duration) {
        let Some(epoch) = queue.supervise(now) else {
            return;
        };
        let alarm = TimerKey::Flush(queue.number, epoch);
        let (renewal_loop, own) = (Arc::downgrade(self), Arc::clone(queue));
        self.timers.flush(alarm, window, move || {
            let Some(renewal_loop) = renewal_loop.upgrade() else {
                return;
            };
            // Relaxed: only a bound. A flush beyond it does nothing: the next round of each queued
            // registration arms another one.
            let running = renewal_loop.flushes.fetch_add(1, Ordering::Relaxed);
            if running < MAX_FLUSHES {
                renewal_loop.flush(&own, epoch);
            }
            // Relaxed: as above.
            let before = renewal_loop.flushes.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a flush ends once");
        });
    }

    /// Sends the queued renewals, and reports the end to the queue whatever happens. A panic is
    /// possible, since a key's `Drop` is user code.
    fn flush(self: &Arc<Self>, queue: &SharedQueue<K>, epoch: u64) {
        let _ = catch_panic(|| self.send_all(queue, epoch));
        // Renewals may have been queued after the last batch was taken (QUEUE-2).
        if queue.ended(epoch) {
            self.arm_flush(queue, self.now(), Duration::ZERO);
        } else {
            self.sweep(queue);
        }
    }

    /// Sends the queued renewals batch by batch, until the queue is empty or the flush is given up.
    fn send_all(self: &Arc<Self>, queue: &SharedQueue<K>, epoch: u64) {
        let limit = cadence::call_limit(queue.queue_key.shortest());
        loop {
            let now = self.now();
            // The flush counts as overdue from here, before the batch is taken. So it is given up
            // even if something other than the call holds it up.
            if !queue.sends(epoch, now + limit) {
                return;
            }
            // The most urgent lease bounds the limit of the whole call. If it has less time left
            // than a call may take, only leases with at most twice its time share its batch. So the
            // limit is not cut for all others.
            let mut reach = None;
            let batch = queue.take(epoch, self.most, |until| {
                let remaining = until.since(now);
                let reach = *reach.get_or_insert(if remaining < limit {
                    remaining * 2
                } else {
                    Duration::MAX
                });
                remaining <= reach
            });
            if batch.is_empty() {
                return;
            }
            self.taken(&batch, now);
            if !self.send(queue, epoch, &batch) {
                return;
            }
        }
    }

    /// Notes that a batch has left the queue. Posts an event about the latest renewal, if it is
    /// late.
    fn taken(&self, batch: &[Arc<Registration<K>>], now: Time) {
        let mut latest: Option<(Duration, &Registration<K>)> = None;
        for registration in batch {
            let mut plan = registration.plan.lock();
            plan.queued = None;
            // One event for the batch: all of them were delayed by the same flush.
            let by = now.since(plan.due);
            if by > cadence::late(registration.lease) && latest.is_none_or(|(most, _)| by > most) {
                latest = Some((by, registration));
            }
        }
        if let Some((by, registration)) = latest {
            count(&self.counts.late);
            self.tell(registration, What::Late { by });
        }
    }

    /// Sends a batch. If it is refused as a whole or its call panics, sends each renewal alone.
    /// Returns false if the flush was given up meanwhile.
    fn send(
        self: &Arc<Self>,
        queue: &DestinationQueue<Arc<Registration<K>>>,
        epoch: u64,
        batch: &[Arc<Registration<K>>],
    ) -> bool {
        let Some(again) = self.send_once(queue, epoch, batch) else {
            return false;
        };
        if again {
            // All single calls together may take as long as one call. A renewal that has had no
            // turn by then stays due, and its next round queues it again.
            let until = self.now() + cadence::call_limit(queue.queue_key.shortest());
            for registration in batch {
                if self.now() >= until {
                    self.timers.move_to(registration.number, until);
                    continue;
                }
                if self
                    .send_once(queue, epoch, std::slice::from_ref(registration))
                    .is_none()
                {
                    return false;
                }
            }
        }
        true
    }

    /// Sends a batch once. Returns whether each renewal has to be tried alone, or `None` if the
    /// flush was given up.
    fn send_once(
        self: &Arc<Self>,
        queue: &DestinationQueue<Arc<Registration<K>>>,
        epoch: u64,
        batch: &[Arc<Registration<K>>],
    ) -> Option<bool> {
        // Read before the request is sent: every lease counts from here (RENEW-3).
        let sent = self.now();
        let mut limit = Duration::MAX;
        let mut going = Vec::with_capacity(batch.len());
        for registration in batch {
            if let LeaseStatus::Held { until, .. } = registration.lease_state.look(sent) {
                limit = limit
                    .min(cadence::call_limit(registration.lease))
                    .min(until.since(sent));
                going.push(registration);
            }
        }
        let overdue = sent + limit;
        // The limit is known only now. A lease that has ended since the loop above begins nothing.
        let mut in_flights: Vec<(&Arc<Registration<K>>, InFlight)> =
            Vec::with_capacity(going.len());
        for registration in going {
            if let Some(in_flight) = registration.lease_state.begin_renewal(sent, overdue) {
                in_flights.push((registration, in_flight));
            }
        }
        if in_flights.is_empty() {
            return Some(false);
        }
        // The renewals are in flight, but nothing was sent. They must not stay so, or a stop would
        // wait for them.
        if !queue.sends(epoch, overdue) {
            self.complete_all(&in_flights, RenewalOutcome::Failed);
            return None;
        }
        // The clock is read again, since the process may have been paused (RENEW-2). `overdue` is
        // no later than the end of any lease of the batch. If it has passed, nothing is sent, and
        // the next round of each registration runs at once.
        let limit = overdue.since(self.now());
        if limit.is_zero() {
            self.complete_all(&in_flights, RenewalOutcome::Failed);
            for (registration, _) in &in_flights {
                self.timers.move_to(registration.number, sent);
            }
            return Some(false);
        }
        count(&self.counts.batches);
        let entries: Vec<Entry<'_, K>> = in_flights
            .iter()
            .map(|(registration, _)| Entry {
                key: &registration.key,
                lease: registration.lease,
            })
            .collect();
        let answer = catch_panic(|| {
            (self.renew)(&Batch {
                destination: queue.queue_key.destination,
                entries: &entries,
                limit,
            })
        });
        // One bad key may be the reason for a refusal or a panic. A batch of one has no other keys
        // to save, so its error counts.
        let whole = in_flights.len() > 1;
        let outcomes = match answer {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(StoreError::Refused(_))) | Err(_) if whole => {
                self.complete_all(&in_flights, RenewalOutcome::Failed);
                count(&self.counts.alone);
                return Some(true);
            }
            Ok(Err(error)) => vec![Outcome::Failed(error); in_flights.len()],
            Err(panic) => {
                let error = StoreError::Unavailable(format!("the renewal panicked: {panic}"));
                vec![Outcome::Failed(error); in_flights.len()]
            }
        };
        // The renewal function is user code and may return too few outcomes. Each renewal in flight
        // needs one all the same.
        let mut outcomes = outcomes.into_iter();
        for (registration, in_flight) in in_flights {
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::Failed(StoreError::Unavailable("its outcome is missing".to_owned()))
            });
            self.completed(registration, in_flight, sent, outcome);
        }
        Some(false)
    }

    /// Completes all renewals of a batch with the same outcome, without events.
    fn complete_all(
        &self,
        in_flights: &[(&Arc<Registration<K>>, InFlight)],
        outcome_of_renewal: RenewalOutcome,
    ) {
        let now = self.now();
        for (registration, in_flight) in in_flights {
            registration
                .lease_state
                .complete_renewal(*in_flight, now, outcome_of_renewal);
        }
    }

    /// Applies the outcome of one renewal: plans the next renewal or attempt, and posts the events.
    fn completed(
        &self,
        registration: &Arc<Registration<K>>,
        in_flight: InFlight,
        sent: Time,
        outcome: Outcome,
    ) {
        let now = self.now();
        match outcome {
            Outcome::Renewed => {
                let until = sent + self.good_for(registration.lease);
                if !registration.lease_state.complete_renewal(
                    in_flight,
                    now,
                    RenewalOutcome::Renewed { until },
                ) {
                    return;
                }
                count(&self.counts.renewed);
                let renewals = registration.lease_state.renewals();
                // The interval counts from `sent`, as the lease does: a slow answer must not cost
                // time.
                let due = cadence::next(sent, registration.lease, self.random(registration.number));
                {
                    let mut plan = registration.plan.lock();
                    plan.due = due;
                    plan.failed = 0;
                    plan.failing = None;
                    plan.warned = false;
                }
                // The holder may have stopped it meanwhile. Then its timer is cancelled already.
                if let LeaseStatus::Held { until, ends } = registration.lease_state.look(now) {
                    self.timers.move_to(registration.number, due.min(ends));
                    self.tell(registration, What::Renewed { until, renewals });
                    if self.alarm_after == Some(renewals) {
                        self.tell(registration, What::HeldLong { renewals });
                    }
                }
            }
            Outcome::NotHeld => {
                registration
                    .lease_state
                    .complete_renewal(in_flight, now, RenewalOutcome::NotHeld);
            }
            Outcome::Failed(error) => {
                // A renewal that was given up counted as a failure at that moment. Its late answer
                // does not count once more.
                let awaited = registration.lease_state.awaits(in_flight);
                if registration
                    .lease_state
                    .complete_renewal(in_flight, now, RenewalOutcome::Failed)
                    && awaited
                {
                    self.failed(registration, error, now);
                }
            }
        }
    }

    /// Plans the next attempt after a failed one. A failure never ends a registration.
    pub(super) fn failed(&self, registration: &Registration<K>, error: StoreError, now: Time) {
        count(&self.counts.failed);
        let LeaseStatus::Held { until, ends } = registration.lease_state.look(now) else {
            return;
        };
        let (next, attempts) = {
            let mut plan = registration.plan.lock();
            plan.failed = plan.failed.saturating_add(1);
            let since = plan.failing.take().map_or(now, |(since, _)| since);
            plan.failing = Some((since, error.to_string()));
            let random = self.random(registration.number);
            plan.due = cadence::retry(now, until, registration.lease, plan.failed, random);
            // The timer also has to wake the round that posts the warning.
            let risk = cadence::at_risk(until, registration.lease);
            let next = if plan.warned {
                plan.due
            } else {
                plan.due.min(risk)
            };
            (next, plan.failed)
        };
        self.timers.move_to(registration.number, next.min(ends));
        let remaining = ends.since(now);
        self.tell(
            registration,
            What::Failed {
                error,
                attempts,
                remaining,
            },
        );
    }
}
