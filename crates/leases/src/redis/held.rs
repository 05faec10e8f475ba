//! Renews and releases what is held, and asks who holds a name.

use redis::Value;

use super::answers::{given_back, good, holder, unexpected};
use super::scripts::Call;
use super::slot::Whose;
use super::{RedisStore, millis};
use crate::remote::Limit;
use crate::store::{Destination, Holder, Holding, Mode, Outcome, Released, Renewal, StoreError};

impl RedisStore {
    pub(super) async fn leave_now(&self, name: &str, limit: Limit) -> Result<(), StoreError> {
        if self.0.client.is_forked() {
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
        let left = self.call_one(name, call, limit).await.map(|_| ());
        // Those who have come meanwhile ask again, since what they have noted is gone.
        self.0.listener.wait_queue.released(name);
        left
    }

    pub(super) async fn renew_now(
        &self,
        destination: Destination,
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
            calls.push(self.renewing(renewal));
        }
        if calls.is_empty() {
            return Ok(outcomes);
        }
        let asked = self
            .0
            .client
            .call(Whose::Holders, destination, calls, limit);
        let answers = asked.await?;
        for (at, answer) in places.into_iter().zip(answers) {
            outcomes[at] = match good(answer) {
                Ok(Value::Int(1)) => Outcome::Renewed,
                Ok(Value::Int(0)) => Outcome::NotHeld,
                Ok(other) => Outcome::Failed(unexpected(&other)),
                Err(error) => Outcome::Failed(error),
            };
        }
        Ok(outcomes)
    }

    fn renewing(&self, renewal: &Renewal<'_>) -> Call {
        let (keys, scripts) = (&self.0.options.keys, &self.0.scripts);
        let lock = keys.lock(renewal.name);
        let (secret, lease) = (renewal.secret.reveal(), millis(renewal.lease));
        let call = match renewal.mode {
            Mode::Exclusive => Call::new(&scripts.renew, [lock])
                .arg(secret)
                .arg(&lease)
                .arg(&renewal.holds),
            _ => Call::new(&scripts.share_renew, [lock, keys.holders(renewal.name)])
                .arg(secret)
                .arg(&lease),
        };
        call.arg(&u8::from(renewal.never_shortens))
    }

    /// Returns the call that releases a name which is held in this mode, without its arguments.
    pub(super) fn releasing(&self, name: &str, mode: Mode) -> Call {
        let (keys, scripts) = (&self.0.options.keys, &self.0.scripts);
        match mode {
            Mode::Exclusive => Call::new(&scripts.release, [keys.lock(name)]),
            _ => Call::new(
                &scripts.share_release,
                [keys.lock(name), keys.holders(name)],
            ),
        }
    }

    pub(super) async fn release_now(
        &self,
        destination: Destination,
        batch: &[Holding<'_>],
        limit: Limit,
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        if self.0.client.is_forked() {
            return Err(StoreError::Forked);
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let calls = batch.iter().map(|held| self.giving_back(held)).collect();
        let _wakes = WakesOwn { store: self, batch };
        let asked = self
            .0
            .client
            .call(Whose::Holders, destination, calls, limit);
        Ok(asked.await?.into_iter().map(given_back).collect())
    }

    pub(super) async fn holder_now(
        &self,
        name: &str,
        limit: Limit,
    ) -> Result<Option<Holder>, StoreError> {
        let call = Call::new(&self.0.scripts.holder, [self.0.options.keys.lock(name)]);
        let answer = self.call_one(name, call, limit).await?;
        holder(&answer, self.0.options.longest_lease)
    }
}

/// Wakes callers of this process on drop. They may have come after the last acquire that was refused,
/// so the release was not announced. Even without an answer the names may be free.
struct WakesOwn<'a> {
    store: &'a RedisStore,
    batch: &'a [Holding<'a>],
}

impl Drop for WakesOwn<'_> {
    fn drop(&mut self) {
        // The lock of the queue may stay locked forever in a forked copy.
        if self.store.0.client.is_forked() {
            return;
        }
        for held in self.batch {
            self.store.0.listener.wait_queue.released(held.name);
        }
    }
}
