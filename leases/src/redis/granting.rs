//! Asks for locks, and checks whether any may be granted.

use redis::{ServerError, Value};

use super::super::store::{Claim, Destination, LeaseStore, StoreError};
use super::answers::{unexpected, waits};
use super::errors::answered;
use super::link::Limit;
use super::pool::Whose;
use super::scripts::Call;
use super::{RedisStore, millis};

impl RedisStore {
    /// Checks whether the destinations of these markers grant. Returns the longest of several
    /// waits.
    pub(super) fn ready(
        &self,
        destination: Destination,
        markers: &[String],
        limit: Limit,
    ) -> Result<(), StoreError> {
        let calls: Vec<_> = markers
            .iter()
            .map(|marker| {
                Call::new(&self.0.scripts.ready, [marker.clone()])
                    .arg(&self.guard_micros())
                    .arg(&u8::from(self.0.options.starts_empty))
            })
            .collect();
        let mut longest = None;
        let whose = Whose::User(destination);
        for answer in self.0.pool.call(whose, &calls, limit)? {
            let (wait, error) = match &answer {
                Value::ServerError(error) => return Err(answered(error)),
                Value::Array(parts) => match parts[..] {
                    [Value::Int(1), Value::Int(0)] => continue,
                    [Value::Int(2), Value::Int(wait), Value::Int(why)] => (wait, waits(wait, why)),
                    _ => return Err(unexpected(&answer)),
                },
                other => return Err(unexpected(other)),
            };
            if longest.as_ref().is_none_or(|(most, _)| *most < wait) {
                longest = Some((wait, error));
            }
        }
        longest.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Asks for a name, and returns the answer unchanged. With `marker` the same step checks it.
    pub(super) fn ask_for(
        &self,
        claim: &Claim<'_>,
        marker: bool,
        limit: Limit,
    ) -> Result<Result<Value, ServerError>, StoreError> {
        let keys = &self.0.options.keys;
        let marker = marker.then(|| keys.marker(claim.name).to_owned());
        let names = [keys.lock(claim.name), keys.token(claim.name)];
        let waited = match claim.is_due() {
            true => millis(claim.waited),
            false => 0,
        };
        let call = Call::new(&self.0.scripts.acquire, names.into_iter().chain(marker))
            .arg(claim.owner)
            .arg(&millis(claim.lease))
            .arg(&millis(self.0.options.token_life))
            .arg(&self.guard_micros())
            .arg(&u8::from(claim.waits))
            .arg(&u8::from(self.0.options.starts_empty))
            .arg(&waited)
            .arg(self.0.listener.own());
        self.ask(claim.name, call, limit)
    }

    /// Checks the marker of a name that was granted without it. Releases the name if the marker
    /// forbids the grant.
    ///
    /// The check comes *after* the grant. If nothing was lost in the time of the longest lease
    /// before the check, no lock that counts was lost before the grant either. A later loss is
    /// found by the next caller. A check before the grant would miss a loss between the two.
    pub(super) fn confirm(&self, claim: &Claim<'_>, limit: Limit) -> Result<(), StoreError> {
        let keys = &self.0.options.keys;
        let marker = keys.marker(claim.name).to_owned();
        let Err(error) = self.ready(self.destination(claim.name), &[marker], limit) else {
            return Ok(());
        };
        // Without an announcement: nobody can be granted the name now, and waiting callers ask
        // again.
        let call = Call::new(&self.0.scripts.release, [keys.lock(claim.name)])
            .arg(claim.owner)
            .arg("")
            .arg("");
        match self.call_one(claim.name, call, limit) {
            Ok(_) => Err(error),
            Err(also) => Err(StoreError::Unavailable(format!(
                "{error}; and what was granted already could not be given back: {also}"
            ))),
        }
    }
}
