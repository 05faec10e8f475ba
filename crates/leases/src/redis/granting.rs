//! Asks for locks, and checks whether any may be granted.

use redis::{ServerError, Value};

use super::answers::{mode_text, strange, time_left, waits};
use super::errors::{answered, is_cross_slot};
use super::scripts::{Call, Spot};
use super::slot::Whose;
use super::{RedisStore, millis};
use crate::remote::Limit;
use crate::store::{Acquired, Claim, Destination, LeaseStore, Mode, StoreError};
use crate::sync::atomic::Ordering;

impl RedisStore {
    /// Returns the call that asks for a name. With `marker` the same step checks it. In a cluster it always
    /// does: the marker is that of the node (CLUSTER-3).
    fn asking_for(&self, claim: &Claim<'_>, marker: bool) -> Call {
        let keys = &self.0.options.keys;
        let marker = (marker && !self.is_cluster()).then(|| keys.marker(claim.name).to_owned());
        let names = [keys.lock(claim.name), keys.token(claim.name)].into_iter();
        let scripts = &self.0.scripts;
        let call = match claim.mode {
            Mode::Exclusive => Call::new(&scripts.acquire, names.chain(marker)),
            _ => {
                let holders = Some(keys.holders(claim.name));
                Call::new(&scripts.share, names.chain(holders).chain(marker))
            }
        };
        let call = call
            .arg(claim.owner)
            .arg(&millis(claim.lease))
            .arg(&millis(self.0.options.token_life))
            .arg(&self.guard_micros())
            .arg(&u8::from(claim.waits))
            .arg(&u8::from(self.0.options.starts_empty))
            .arg(&claim.waited.as_millis())
            .arg(self.0.listener.own())
            .arg(claim.data)
            .arg(claim.secret.reveal())
            .arg(&Claim::TURN.as_millis())
            .arg(&self.least_micros());
        match claim.mode {
            Mode::Exclusive => call.granting(),
            mode => {
                let (text, permits) = mode_text(mode);
                call.arg(&text).arg(&permits).granting()
            }
        }
    }

    /// Returns whether a call was refused since its marker lies in another slot than its lock.
    fn lies_apart(&self, error: &ServerError) -> bool {
        !self.is_cluster() && is_cross_slot(error)
    }

    /// Asks for a name, and returns the answer unchanged.
    async fn ask_for(
        &self,
        claim: &Claim<'_>,
        marker: bool,
        limit: Limit,
    ) -> Result<Result<Value, ServerError>, StoreError> {
        let to = self.destination(claim.name);
        self.ask(to, self.asking_for(claim, marker), limit).await
    }

    /// Returns the call that releases a name which may not be granted yet. Without an announcement:
    /// nobody can be granted the name now, and waiting callers ask again.
    fn taking_back(&self, claim: &Claim<'_>) -> Call {
        self.releasing(claim.name, claim.mode)
            .arg(claim.secret.reveal())
            .arg("")
            .arg("")
    }

    /// Checks what the step of a grant has not: the marker, if it is `apart`, and once for each store
    /// that the server has all slots.
    async fn confirmed(
        &self,
        destination: Destination,
        name: &str,
        apart: bool,
        limit: Limit,
    ) -> Result<(), StoreError> {
        if apart {
            let marker = Spot::Marker(self.0.options.keys.marker(name).to_owned());
            self.ready(destination, &[marker], true, limit).await?;
        }
        self.has_all_slots(limit).await
    }

    /// Checks a grant. Releases the name if it must not be held.
    ///
    /// The check of the marker comes *after* the grant. If nothing was lost in the time of the longest lease
    /// before the check, no lock that counts was lost before the grant either. A later loss is
    /// found by the next caller. A check before the grant would miss a loss between the two.
    async fn confirm(
        &self,
        claim: &Claim<'_>,
        apart: bool,
        limit: Limit,
    ) -> Result<(), StoreError> {
        let destination = self.destination(claim.name);
        let confirmed = self.confirmed(destination, claim.name, apart, limit);
        let Err(error) = confirmed.await else {
            return Ok(());
        };
        let call = self.taking_back(claim);
        match self.call_one(claim.name, call, limit).await {
            Ok(_) => Err(error),
            Err(also) => Err(StoreError::Unavailable(format!(
                "{error}; and what was granted already could not be given back: {also}"
            ))),
        }
    }

    fn valid_claim(&self, claim: &Claim<'_>) -> Result<(), StoreError> {
        claim.has_permits()?;
        self.valid(claim.name, claim.lease)
    }

    /// Asks for names of one destination. A batch of one checks the marker in the same step.
    pub(super) async fn acquire_now(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Limit,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let [claim] = batch else {
            return self.acquire_batch(destination, batch, limit).await;
        };
        Ok(vec![match self.valid_claim(claim) {
            Ok(()) => self.acquire_one(claim, limit).await,
            Err(error) => Err(error),
        }])
    }

    /// Asks for a name, and checks the marker in the same step or after it.
    async fn acquire_one(&self, claim: &Claim<'_>, limit: Limit) -> Result<Acquired, StoreError> {
        let guarded = self.guard_micros() > 0;
        // Relaxed, here and below: the flag only saves a call that would be refused.
        let mut apart = self.0.apart.load(Ordering::Relaxed);
        let mut answer = self.ask_for(claim, guarded && !apart, limit).await?;
        // A cluster refuses the marker's key here, so ask again without it, now and in later calls.
        if guarded && !apart && answer.as_ref().is_err_and(|error| self.lies_apart(error)) {
            self.0.apart.store(true, Ordering::Relaxed);
            apart = true;
            answer = self.ask_for(claim, false, limit).await?;
        }
        let answer = answer.map_err(|error| answered(&error))?;
        let acquired = self.acquired(claim.name, &answer)?;
        if matches!(acquired, Acquired::Granted { .. }) {
            self.confirm(claim, guarded && apart, limit).await?;
        }
        Ok(acquired)
    }

    /// Asks for names of one destination, and once more for their marker if it lies in another slot.
    async fn acquire_batch(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        limit: Limit,
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let guarded = self.guard_micros() > 0;
        // Relaxed: the flag only saves calls that would be refused.
        let apart = guarded && self.0.apart.load(Ordering::Relaxed);
        let mut answers: Vec<_> = batch
            .iter()
            .map(|claim| self.valid_claim(claim).map(|()| Value::Nil))
            .collect();
        let valid = |answers: &[Result<Value, StoreError>]| -> Vec<usize> {
            (0..answers.len())
                .filter(|&at| answers[at].is_ok())
                .collect()
        };
        let places = valid(&answers);
        let calls: Vec<_> = places
            .iter()
            .map(|&at| self.asking_for(&batch[at], guarded && !apart))
            .collect();
        if calls.is_empty() {
            return Ok(answers
                .into_iter()
                .map(|answer| self.acquired("", &answer?))
                .collect());
        }
        let asked = self
            .0
            .client
            .call(Whose::Callers, destination, calls, limit);
        for (at, answer) in places.into_iter().zip(asked.await?) {
            answers[at] = answer;
        }
        let mut acquired = Vec::with_capacity(batch.len());
        for (claim, answer) in batch.iter().zip(answers) {
            acquired.push(match answer {
                // A cluster refuses the marker's key. Then each one is asked for alone, which also
                // notes that, so that the next batch leaves the marker out.
                Ok(Value::ServerError(error)) if guarded && !apart && self.lies_apart(&error) => {
                    self.acquire_one(claim, limit).await
                }
                Ok(Value::ServerError(error)) => Err(answered(&error)),
                Ok(answer) => self.acquired(claim.name, &answer),
                Err(error) => Err(error),
            });
        }
        let confirmed = self.confirm_batch(destination, batch, &mut acquired, (apart, limit));
        confirmed.await;
        Ok(acquired)
    }

    /// Checks the grants of a batch, as [`confirm`](Self::confirm) does for one name. Releases them if
    /// they must not be held.
    async fn confirm_batch(
        &self,
        destination: Destination,
        batch: &[Claim<'_>],
        acquired: &mut [Result<Acquired, StoreError>],
        (apart, limit): (bool, Limit),
    ) {
        let granted: Vec<_> = (0..batch.len())
            .filter(|&at| matches!(acquired[at], Ok(Acquired::Granted { .. })))
            .collect();
        let Some(&first) = granted.first() else {
            return;
        };
        let confirmed = self.confirmed(destination, batch[first].name, apart, limit);
        let Err(error) = confirmed.await else {
            return;
        };
        let calls = granted
            .iter()
            .map(|&at| self.taking_back(&batch[at]))
            .collect();
        let asked = self
            .0
            .client
            .call(Whose::Callers, destination, calls, limit);
        let released = asked.await.unwrap_or_default();
        for (place, at) in granted.into_iter().enumerate() {
            acquired[at] = Err(match released.get(place) {
                Some(Ok(Value::Int(_))) => error.clone(),
                _ => StoreError::Unavailable(format!(
                    "{error}; and what was granted already could not be given back"
                )),
            });
        }
    }

    /// Returns what the answer to an acquire means. Wakes the next waiting caller of this process, if the
    /// grant has left room for it (SHARE-4).
    fn acquired(&self, name: &str, answer: &Value) -> Result<Acquired, StoreError> {
        let Value::Array(parts) = answer else {
            return Err(strange(answer));
        };
        match parts[..] {
            [Value::Int(0), Value::Int(left)] => Ok(Acquired::Held {
                remaining: time_left(left, self.0.options.longest_lease),
            }),
            [Value::Int(1), Value::Int(token)] if token > 0 => {
                Ok(Acquired::granted(token.unsigned_abs()))
            }
            [
                Value::Int(1),
                Value::Int(token),
                Value::Int(place),
                Value::Int(room),
            ] if token > 0 => {
                if room == 1 {
                    self.0.listener.wait_queue.released(name);
                }
                let (token, place) = (token.unsigned_abs(), u32::try_from(place));
                let place = place.map_err(|_| strange(answer))?;
                Ok(Acquired::Granted { token, place })
            }
            [Value::Int(2), Value::Int(wait), Value::Int(why)] => Err(waits(wait, why)),
            [Value::Int(3), Value::Int(others)] => Err(self.too_short(others)),
            _ => Err(strange(answer)),
        }
    }
}
