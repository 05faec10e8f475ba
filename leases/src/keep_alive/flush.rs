//! Passes: what is due at one destination goes out, and what came of it lands.

use std::time::Duration;

use tourbillon::Time;

use super::super::store::{Outcome, StoreError};
use super::cadence;
use super::events::What;
use super::lease_state::{InFlight, LeaseStatus, RenewalOutcome};
use super::queue::DestinationQueue;
use super::renewal_loop::{Registration, RenewalLoop, SharedQueue, count};
use super::timers::{MAX_FLUSHES, TimerKey};
use super::{Batch, Entry};
use crate::panics::catch_panic;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl<K: Clone + Send + Sync + 'static> RenewalLoop<K> {
    /// QUEUE-2: unless a pass of the present epoch runs, which takes it.
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
            // Relaxed: a bound. Those that look after the series arm it again.
            let running = renewal_loop.flushes.fetch_add(1, Ordering::Relaxed);
            if running < MAX_FLUSHES {
                renewal_loop.flush(&own, epoch);
            }
            // Relaxed: as above.
            renewal_loop.flushes.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Sends what is due, and comes back to the lane whatever happens: a key's `Drop` is user code.
    fn flush(self: &Arc<Self>, queue: &SharedQueue<K>, epoch: u64) {
        let _ = catch_panic(|| self.send_all(queue, epoch));
        if queue.ended(epoch) {
            self.arm_flush(queue, self.now(), Duration::ZERO);
        } else {
            self.sweep(queue);
        }
    }

    /// Batch by batch.
    fn send_all(self: &Arc<Self>, queue: &SharedQueue<K>, epoch: u64) {
        let limit = cadence::call_limit(queue.queue_key.shortest());
        loop {
            let now = self.now();
            // Whatever else may hold it up, it is noticed.
            if !queue.sends(epoch, now + limit) {
                return;
            }
            // Who has less time than a call may take gets a call of its own, so that the limit of
            // nobody else is the shorter for it.
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

    /// A batch is in the queue no more. Tells of the one that is latest, if that is late.
    fn taken(&self, batch: &[Arc<Registration<K>>], now: Time) {
        let mut latest: Option<(Duration, &Registration<K>)> = None;
        for registration in batch {
            let mut plan = registration.plan.lock();
            plan.queued = None;
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

    /// Sends a batch, and each one alone if the batch is refused as a whole or panics. False if the
    /// pass was given up meanwhile.
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
            // All of them together may take as long as one call; who has not had its turn by then is
            // due as before.
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

    /// Sends a batch once. Whether each is to be tried alone.
    fn send_once(
        self: &Arc<Self>,
        queue: &DestinationQueue<Arc<Registration<K>>>,
        epoch: u64,
        batch: &[Arc<Registration<K>>],
    ) -> Option<bool> {
        // RENEW-3.
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
        if !queue.sends(epoch, overdue) {
            self.complete_all(&in_flights, RenewalOutcome::Failed);
            return None;
        }
        // RENEW-2: no later than the first of them ends, which bounds the limit.
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
        let mut outcomes = outcomes.into_iter();
        for (registration, in_flight) in in_flights {
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::Failed(StoreError::Unavailable("it got no outcome".to_owned()))
            });
            self.completed(registration, in_flight, sent, outcome);
        }
        Some(false)
    }

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
                let due = cadence::next(sent, registration.lease, self.random(registration.number));
                {
                    let mut plan = registration.plan.lock();
                    plan.due = due;
                    plan.failed = 0;
                    plan.warned = false;
                }
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
                // One that was given up has failed then.
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

    /// An attempt failed: never the end of the series.
    pub(super) fn failed(&self, registration: &Registration<K>, error: StoreError, now: Time) {
        count(&self.counts.failed);
        let LeaseStatus::Held { until, ends } = registration.lease_state.look(now) else {
            return;
        };
        let (next, attempts) = {
            let mut plan = registration.plan.lock();
            plan.failed = plan.failed.saturating_add(1);
            let random = self.random(registration.number);
            plan.due = cadence::retry(now, until, registration.lease, plan.failed, random);
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
