//! Passes: what is due at one destination goes out, and what came of it lands.

use std::time::Duration;

use tourbillon::Time;

use super::super::store::{Outcome, StoreError};
use super::events::What;
use super::lane::Lane;
use super::machine::{Machine, Series, SharedLane, count};
use super::rhythm;
use super::term::{Flight, Landing, Standing};
use super::timers::{Alarm, MAX_PASSES};
use super::{Batch, Entry};
use crate::panics::contain;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

impl<K: Clone + Send + Sync + 'static> Machine<K> {
    /// LANE-2: unless a pass of the present epoch runs, which takes it.
    pub(super) fn arm_pass(self: &Arc<Self>, lane: &SharedLane<K>, now: Time, window: Duration) {
        let Some(epoch) = lane.supervise(now) else {
            return;
        };
        let alarm = Alarm::Pass(lane.number, epoch);
        let (machine, own) = (Arc::downgrade(self), Arc::clone(lane));
        self.timers.pass(alarm, window, move || {
            let Some(machine) = machine.upgrade() else {
                return;
            };
            // Relaxed: a bound. Those that look after the series arm it again.
            let running = machine.passes.fetch_add(1, Ordering::Relaxed);
            if running < MAX_PASSES {
                machine.pass(&own, epoch);
            }
            // Relaxed: as above.
            machine.passes.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Sends what is due, and comes back to the lane whatever happens: a key's `Drop` is user code.
    fn pass(self: &Arc<Self>, lane: &SharedLane<K>, epoch: u64) {
        let _ = contain(|| self.send_all(lane, epoch));
        if lane.ended(epoch) {
            self.arm_pass(lane, self.now(), Duration::ZERO);
        } else {
            self.sweep(lane);
        }
    }

    /// Batch by batch.
    fn send_all(self: &Arc<Self>, lane: &SharedLane<K>, epoch: u64) {
        let limit = rhythm::call_limit(lane.route.shortest());
        loop {
            let now = self.now();
            // Whatever else may hold it up, it is noticed.
            if !lane.sends(epoch, now + limit) {
                return;
            }
            // Who has less time than a call may take gets a call of its own, so that the limit of
            // nobody else is the shorter for it.
            let mut reach = None;
            let batch = lane.take(epoch, self.most, |until| {
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
            if !self.send(lane, epoch, &batch) {
                return;
            }
        }
    }

    /// A batch is in the queue no more. Tells of the one that is latest, if that is late.
    fn taken(&self, batch: &[Arc<Series<K>>], now: Time) {
        let mut latest: Option<(Duration, &Series<K>)> = None;
        for series in batch {
            let mut plan = series.plan.lock();
            plan.queued = None;
            let by = now.since(plan.due);
            if by > rhythm::late(series.lease) && latest.is_none_or(|(most, _)| by > most) {
                latest = Some((by, series));
            }
        }
        if let Some((by, series)) = latest {
            count(&self.counts.late);
            self.tell(series, What::Late { by });
        }
    }

    /// Sends a batch, and each one alone if the batch is refused as a whole or panics. False if the
    /// pass was given up meanwhile.
    fn send(
        self: &Arc<Self>,
        lane: &Lane<Arc<Series<K>>>,
        epoch: u64,
        batch: &[Arc<Series<K>>],
    ) -> bool {
        let Some(again) = self.send_once(lane, epoch, batch) else {
            return false;
        };
        if again {
            // All of them together may take as long as one call; who has not had its turn by then is
            // due as before.
            let until = self.now() + rhythm::call_limit(lane.route.shortest());
            for series in batch {
                if self.now() >= until {
                    self.timers.move_to(series.number, until);
                    continue;
                }
                if self
                    .send_once(lane, epoch, std::slice::from_ref(series))
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
        lane: &Lane<Arc<Series<K>>>,
        epoch: u64,
        batch: &[Arc<Series<K>>],
    ) -> Option<bool> {
        // RENEW-3.
        let sent = self.now();
        let mut limit = Duration::MAX;
        let mut going = Vec::with_capacity(batch.len());
        for series in batch {
            if let Standing::Kept { until, .. } = series.term.look(sent) {
                limit = limit
                    .min(rhythm::call_limit(series.lease))
                    .min(until.since(sent));
                going.push(series);
            }
        }
        let overdue = sent + limit;
        let mut flights: Vec<(&Arc<Series<K>>, Flight)> = Vec::with_capacity(going.len());
        for series in going {
            if let Some(flight) = series.term.depart(sent, overdue) {
                flights.push((series, flight));
            }
        }
        if flights.is_empty() {
            return Some(false);
        }
        if !lane.sends(epoch, overdue) {
            self.land_all(&flights, Landing::Failed);
            return None;
        }
        // RENEW-2: no later than the first of them ends, which bounds the limit.
        let limit = overdue.since(self.now());
        if limit.is_zero() {
            self.land_all(&flights, Landing::Failed);
            for (series, _) in &flights {
                self.timers.move_to(series.number, sent);
            }
            return Some(false);
        }
        count(&self.counts.batches);
        let entries: Vec<Entry<'_, K>> = flights
            .iter()
            .map(|(series, _)| Entry {
                key: &series.key,
                lease: series.lease,
            })
            .collect();
        let answer = contain(|| {
            (self.renew)(&Batch {
                destination: lane.route.destination,
                entries: &entries,
                limit,
            })
        });
        let whole = flights.len() > 1;
        let outcomes = match answer {
            Ok(Ok(outcomes)) => outcomes,
            Ok(Err(StoreError::Refused(_))) | Err(_) if whole => {
                self.land_all(&flights, Landing::Failed);
                count(&self.counts.alone);
                return Some(true);
            }
            Ok(Err(error)) => vec![Outcome::Failed(error); flights.len()],
            Err(panic) => {
                let error = StoreError::Unavailable(format!("the renewal panicked: {panic}"));
                vec![Outcome::Failed(error); flights.len()]
            }
        };
        let mut outcomes = outcomes.into_iter();
        for (series, flight) in flights {
            let outcome = outcomes.next().unwrap_or_else(|| {
                Outcome::Failed(StoreError::Unavailable("it got no outcome".to_owned()))
            });
            self.landed(series, flight, sent, outcome);
        }
        Some(false)
    }

    fn land_all(&self, flights: &[(&Arc<Series<K>>, Flight)], landing: Landing) {
        let now = self.now();
        for (series, flight) in flights {
            series.term.land(*flight, now, landing);
        }
    }

    fn landed(&self, series: &Arc<Series<K>>, flight: Flight, sent: Time, outcome: Outcome) {
        let now = self.now();
        match outcome {
            Outcome::Renewed => {
                let until = sent + self.good_for(series.lease);
                if !series.term.land(flight, now, Landing::Renewed { until }) {
                    return;
                }
                count(&self.counts.renewed);
                let renewals = series.term.renewals();
                let due = rhythm::next(sent, series.lease, self.random(series.number));
                {
                    let mut plan = series.plan.lock();
                    plan.due = due;
                    plan.failed = 0;
                    plan.warned = false;
                }
                if let Standing::Kept { until, ends } = series.term.look(now) {
                    self.timers.move_to(series.number, due.min(ends));
                    self.tell(series, What::Renewed { until, renewals });
                    if self.alarm_after == Some(renewals) {
                        self.tell(series, What::HeldLong { renewals });
                    }
                }
            }
            Outcome::NotHeld => {
                series.term.land(flight, now, Landing::NotHeld);
            }
            Outcome::Failed(error) => {
                // One that was given up has failed then.
                let awaited = series.term.awaits(flight);
                if series.term.land(flight, now, Landing::Failed) && awaited {
                    self.failed(series, error, now);
                }
            }
        }
    }

    /// An attempt failed: never the end of the series.
    pub(super) fn failed(&self, series: &Series<K>, error: StoreError, now: Time) {
        count(&self.counts.failed);
        let Standing::Kept { until, ends } = series.term.look(now) else {
            return;
        };
        let (next, attempts) = {
            let mut plan = series.plan.lock();
            plan.failed = plan.failed.saturating_add(1);
            let random = self.random(series.number);
            plan.due = rhythm::retry(now, until, series.lease, plan.failed, random);
            let risk = rhythm::at_risk(until, series.lease);
            let next = if plan.warned {
                plan.due
            } else {
                plan.due.min(risk)
            };
            (next, plan.failed)
        };
        self.timers.move_to(series.number, next.min(ends));
        let remaining = ends.since(now);
        self.tell(
            series,
            What::Failed {
                error,
                attempts,
                remaining,
            },
        );
    }
}
