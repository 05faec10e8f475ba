//! Flushes: the due renewals of one destination are sent, and their outcomes are applied.
//!
//! A flush is a future that the workers poll. At the limit of a call its future is dropped, and its
//! renewals have failed.

use std::time::Duration;

use tourbillon::Time;

use super::batch::{Batch, Sent};
use super::cadence;
use super::events::What;
use super::lease_state::{InFlight, LeaseStatus, RenewalOutcome};
use super::limited::Called;
use super::queue::Flush;
use super::registration::{Registration, SharedQueue};
use super::renewal_loop::{RenewalLoop, count};
use super::timer_key::TimerKey;
use crate::store::{Outcome, StoreError};
use crate::sync::{Arc, catch_panic};

impl<K: Clone + Send + Sync + 'static> RenewalLoop<K> {
    /// Arms a flush of the queue within `window`, unless one runs or is armed (QUEUE-2).
    pub(super) fn arm_flush(self: &Arc<Self>, queue: &SharedQueue<K>, now: Time, window: Duration) {
        if !queue.arms(now + window) {
            return;
        }
        let (renewal_loop, own) = (Arc::downgrade(self), Arc::clone(queue));
        let alarm = TimerKey::Flush(queue.number);
        self.timers.flush(alarm, window, move || {
            if let Some(renewal_loop) = renewal_loop.upgrade()
                && let Some(flush) = Flush::begin(&own)
            {
                let timers = Arc::clone(&renewal_loop.timers);
                timers.poll_here(renewal_loop.send_all(flush));
            }
        });
    }

    /// Sends the queued renewals batch by batch, until the queue is empty.
    async fn send_all(self: Arc<Self>, mut flush: Flush<Arc<Registration<K>>>) {
        let limit = cadence::call_limit(flush.queue().queue_key.shortest());
        loop {
            let now = self.now();
            // The most urgent lease bounds the limit of the whole call. If it has less time left
            // than a call may take, only leases with at most twice its time share its batch. So the
            // limit is not cut for all others.
            let mut reach = None;
            let batch = flush.take(self.most, |until| {
                let remaining = until.since(now);
                let reach = *reach.get_or_insert(if remaining < limit {
                    remaining * 2
                } else {
                    Duration::MAX
                });
                remaining <= reach
            });
            if batch.is_empty() {
                break;
            }
            self.taken(&batch, now);
            self.send(flush.queue(), &batch).await;
            // These may be the last ones, and the drop of a key is user code.
            let _ = catch_panic(|| drop(batch));
        }
        self.sweep(flush.queue());
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
    async fn send(self: &Arc<Self>, queue: &SharedQueue<K>, batch: &[Arc<Registration<K>>]) {
        if !self.send_once(queue, batch).await {
            return;
        }
        // All single calls together may take as long as one call. A renewal that has had no
        // turn by then stays due, and its next round queues it again.
        let until = self.now() + cadence::call_limit(queue.queue_key.shortest());
        for registration in batch {
            if self.now() >= until {
                self.timers.move_to(registration.number, until);
                continue;
            }
            self.send_once(queue, std::slice::from_ref(registration))
                .await;
        }
    }

    /// Sends a batch once. Returns whether each renewal has to be tried alone.
    async fn send_once(
        self: &Arc<Self>,
        queue: &SharedQueue<K>,
        batch: &[Arc<Registration<K>>],
    ) -> bool {
        // Read before the request is sent: every lease counts from here (RENEW-3).
        let sent = self.now();
        let mut limit = Duration::MAX;
        let mut going = Vec::with_capacity(batch.len());
        for registration in batch {
            if let LeaseStatus::Held { until, .. } = registration.lease_state.status(sent) {
                limit = limit
                    .min(cadence::call_limit(registration.lease))
                    .min(until.since(sent));
                going.push(registration);
            }
        }
        let overdue = sent + limit;
        // The limit is known only now. A lease that has ended since the loop above begins nothing.
        let begin = |registration: &Arc<Registration<K>>| {
            let in_flight = registration.lease_state.begin_renewal(sent, overdue)?;
            Some((Arc::clone(registration), in_flight))
        };
        let begun: Vec<_> = going.into_iter().filter_map(begin).collect();
        if begun.is_empty() {
            return false;
        }
        let mut flying = Flying {
            renewal_loop: self,
            sent: Arc::new(begun),
            is_over: false,
        };
        // The clock is read again, since the process may have been paused (RENEW-2). `overdue` is
        // no later than the end of any lease of the batch. If it has passed, nothing is sent, and
        // the next round of each registration runs at once.
        let now = self.now();
        let limit = overdue.since(now);
        if limit.is_zero() {
            flying.fail();
            for (registration, _) in flying.sent.iter() {
                self.timers.move_to(registration.number, sent);
            }
            return false;
        }
        count(&self.counts.batches);
        let batch = Batch {
            destination: queue.queue_key.destination,
            sent: Arc::clone(&flying.sent),
            limit,
        };
        let make = || (self.renew)(batch);
        let called = self.timers.call(now, limit, make).await;
        // One bad key may be the reason for a refusal or a panic. A batch of one has no other keys
        // to save, so its error counts.
        let whole = flying.sent.len() > 1;
        let outcomes = match called {
            Called::Answered(Ok(outcomes)) => outcomes,
            Called::Answered(Err(StoreError::Refused(_))) | Called::Panicked(_) if whole => {
                flying.fail();
                count(&self.counts.alone);
                return true;
            }
            Called::Answered(Err(error)) => vec![Outcome::Failed(error); flying.sent.len()],
            Called::Panicked(panic) => {
                let error = StoreError::Unavailable(format!("the renewal panicked: {panic}"));
                vec![Outcome::Failed(error); flying.sent.len()]
            }
            Called::Unanswered => {
                let now = self.now();
                for (registration, _) in flying.sent.iter() {
                    if let LeaseStatus::Held { .. } = registration.lease_state.status(now) {
                        self.given_up(registration, now);
                    }
                }
                return false;
            }
        };
        // The renewal function is user code and may return too few outcomes. Each renewal in flight
        // needs one all the same.
        let (now, mut outcomes) = (self.now(), outcomes.into_iter());
        for (registration, in_flight) in flying.sent.iter() {
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::Failed(StoreError::Unavailable("its outcome is missing".to_owned()))
            });
            self.completed(registration, *in_flight, sent, now, outcome);
        }
        flying.is_over = true;
        false
    }

    /// Applies the outcome of one renewal: plans the next renewal or attempt, and posts the events.
    fn completed(
        &self,
        registration: &Arc<Registration<K>>,
        in_flight: InFlight,
        sent: Time,
        now: Time,
        outcome: Outcome,
    ) {
        match outcome {
            Outcome::Renewed => {
                let until = sent + self.good_for(registration.lease);
                let renewed = RenewalOutcome::Renewed { until };
                let Some(held) = registration.lease_state.complete(in_flight, now, renewed) else {
                    return;
                };
                count(&self.counts.renewed);
                // The interval counts from `sent`, as the lease does: a slow answer must not cost
                // time.
                let random = self.random_at(registration.number, now);
                let due = cadence::next(sent, registration.lease, random);
                {
                    let mut plan = registration.plan.lock();
                    plan.due = due;
                    plan.failed = 0;
                    plan.failing = None;
                    plan.warned = false;
                }
                // If the holder stops it meanwhile, there is no timer to move.
                self.timers.move_to(registration.number, due.min(held.ends));
                let (until, renewals) = (held.until, held.renewals);
                self.tell(registration, What::Renewed { until, renewals });
                if self.alarm_after == Some(renewals) {
                    self.tell(registration, What::HeldLong { renewals });
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
        let LeaseStatus::Held { until, ends } = registration.lease_state.status(now) else {
            return;
        };
        let (next, attempts) = {
            let mut plan = registration.plan.lock();
            plan.failed = plan.failed.saturating_add(1);
            let since = plan.failing.take().map_or(now, |(since, _)| since);
            plan.failing = Some((since, error.to_string()));
            let random = self.random_at(registration.number, now);
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

/// The renewals of a call that is under way. If it is dropped before they have outcomes, they have
/// failed: nobody waits for them any more.
struct Flying<'a, K: Clone + Send + Sync + 'static> {
    renewal_loop: &'a RenewalLoop<K>,
    sent: Sent<K>,
    is_over: bool,
}

impl<K: Clone + Send + Sync + 'static> Flying<'_, K> {
    /// Completes all renewals as failed, without events.
    fn fail(&mut self) {
        let now = self.renewal_loop.now();
        for (registration, in_flight) in self.sent.iter() {
            let failed = RenewalOutcome::Failed;
            registration
                .lease_state
                .complete_renewal(*in_flight, now, failed);
        }
        self.is_over = true;
    }
}

impl<K: Clone + Send + Sync + 'static> Drop for Flying<'_, K> {
    fn drop(&mut self) {
        if !self.is_over {
            self.fail();
        }
    }
}
