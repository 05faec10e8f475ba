//! Renews and releases what is held, and asks who holds a name.

use redis::Value;

use super::answers::{given_back, holder, unexpected};
use super::errors::answered;
use super::link::Limit;
use super::pool::Whose;
use super::scripts::Call;
use super::{RedisCalls, millis};
use crate::store::{Holder, Holding, LeaseStore, Outcome, Released, Renewal, StoreError};

impl RedisCalls {
    pub(super) fn leave_now(&self, name: &str, limit: Limit) -> Result<(), StoreError> {
        if self.0.pool.is_forked() {
            return Err(StoreError::Forked);
        }
        // The name is reserved for this store, and others of this store still wait for it.
        if self.0.listener.wait_queue.waits_for(name) {
            return Ok(());
        }
        let call = Call::new(&self.0.scripts.leave, [self.0.options.keys.lock(name)])
            .arg(self.0.listener.own())
            .arg(self.0.options.keys.channel())
            .arg(&self.0.listener.message(name));
        self.call_one(name, call, limit).map(|_| ())
    }

    pub(super) fn renew_now(
        &self,
        batch: &[Renewal<'_>],
        limit: Limit,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut outcomes = vec![Outcome::Renewed; batch.len()];
        let mut calls = Vec::with_capacity(batch.len());
        let mut places = Vec::with_capacity(batch.len());
        for (at, renewal) in batch.iter().enumerate() {
            if let Err(error) = self.valid(renewal.name, renewal.lease) {
                outcomes[at] = Outcome::Failed(error);
                continue;
            }
            places.push(at);
            let key = self.0.options.keys.lock(renewal.name);
            let call = Call::new(&self.0.scripts.renew, [key]);
            calls.push(
                call.arg(renewal.secret.reveal())
                    .arg(&millis(renewal.lease))
                    .arg(&renewal.holds)
                    .arg(&u8::from(renewal.never_shortens)),
            );
        }
        if calls.is_empty() {
            return Ok(outcomes);
        }
        let answers = self.0.pool.call(Whose::Flush, &calls, limit)?;
        for (at, answer) in places.into_iter().zip(answers) {
            outcomes[at] = match answer {
                Value::Int(1) => Outcome::Renewed,
                Value::Int(0) => Outcome::NotHeld,
                Value::ServerError(error) => Outcome::Failed(answered(&error)),
                other => Outcome::Failed(unexpected(&other)),
            };
        }
        Ok(outcomes)
    }

    pub(super) fn release_now(
        &self,
        batch: &[Holding<'_>],
        limit: Limit,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        if self.0.pool.is_forked() {
            return Err(StoreError::Forked);
        }
        let released = match batch {
            [] => return Ok(Vec::new()),
            [held] => {
                let whose = Whose::GivingBack(self.destination(held.name));
                self.0.pool.call(whose, &[self.giving_back(held)], limit)
            }
            _ => {
                let calls: Vec<_> = batch.iter().map(|held| self.giving_back(held)).collect();
                self.0.pool.call(Whose::Flush, &calls, limit)
            }
        };
        // Wake callers of this process. They may have come after the last acquire that was refused,
        // so the release was not announced. Even without an answer the names may be free.
        for held in batch {
            self.0.listener.wait_queue.released(held.name);
        }
        Ok(released?.into_iter().map(given_back).collect())
    }

    pub(super) fn holder_now(
        &self,
        name: &str,
        limit: Limit,
    ) -> Result<Option<Holder>, StoreError> {
        let call = Call::new(&self.0.scripts.holder, [self.0.options.keys.lock(name)]);
        let answer = self.call_one(name, call, limit)?;
        holder(&answer, self.0.options.longest_lease)
    }
}
