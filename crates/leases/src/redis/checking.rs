//! Checks a server, or all nodes of a cluster.

use std::time::Duration;

use redis::Value;
use tourbillon::Clock;

use super::RedisStore;
use super::answers::{good, unexpected, waits};
use super::errors::{answered, cut};
use super::scripts::{Call, Spot};
use super::slot::Whose;
use crate::remote::Limit;
use crate::store::{Destination, StoreError, complete};
use crate::sync::atomic::Ordering;

/// How long a thread waits beyond a limit before it concludes that the runtime of the user has stopped.
const OVERDUE: Duration = Duration::from_secs(1);

/// How long the question may take whether a server has all slots.
const SLOTS_LIMIT: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Checks that there is a server that accepts this user and grants locks. A store can be used
    /// without this call, which reports a missing server at the start of a program. There
    /// [`StoreError::Emptied`] and [`StoreError::Restarted`] do no harm, so go on after them. On a server
    /// without data of this prefix, the call starts the wait of all destinations at the same time.
    ///
    /// It writes nothing but the markers, and those only when they change. So if the server can't
    /// write (a replica, no memory, missing rights), that may show only at the first acquire.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if there is no server, [`StoreError::Restarted`] if it started
    /// too recently, [`StoreError::Emptied`] if it is new or has lost its data,
    /// [`StoreError::Refused`] if it does not accept the user, and [`StoreError::Evicts`] if it has a
    /// `maxmemory` and a `maxmemory-policy` that deletes keys. The last one comes only if there is no
    /// other error. Whoever accepts it may go on: the store works all the same.
    ///
    /// # Blocking
    ///
    /// Blocks for `limit` at most, or a second longer if the store uses a runtime of yours that does not
    /// run. Do not call it on the only thread of that runtime: the answer could never come.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{RedisStore, StoreError};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = RedisStore::open("redis://127.0.0.1/")?;
    /// match store.check(Duration::from_secs(5)) {
    ///     // The server works and grants nothing yet. `lock` waits until it does.
    ///     Err(error @ (StoreError::Emptied { .. } | StoreError::Restarted { .. })) => println!("{error}"),
    ///     checked => checked?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self, limit: Duration) -> Result<(), StoreError> {
        let call = self.checked(Limit::new(limit));
        // The call ends at its limit by itself, if its runtime runs.
        complete(
            &Clock::boottime(),
            limit.saturating_add(OVERDUE),
            Box::pin(call),
        )
    }

    async fn checked(&self, limit: Limit) -> Result<(), StoreError> {
        // The markers may belong to several destinations, but are sent in one round trip.
        let spots = self.spots(limit).await?;
        let ready = self
            .ready(Destination::default(), &spots, false, limit)
            .await;
        // A server that will grant locks, though perhaps not yet.
        if let Ok(()) | Err(StoreError::Emptied { .. } | StoreError::Restarted { .. }) = ready {
            self.has_all_slots(limit).await?;
        }
        ready?;
        self.evicts_nothing(&spots, limit).await
    }

    /// Returns whatever has data of its own: the destinations, or the nodes of a cluster.
    pub(super) async fn spots(&self, limit: Limit) -> Result<Vec<Spot>, StoreError> {
        let nodes = self.0.client.nodes(limit).await?;
        let markers = self.0.options.keys.markers().iter();
        Ok(nodes.unwrap_or_else(|| markers.cloned().map(Spot::Marker).collect()))
    }

    /// Checks whether these grant. Returns the longest of several
    /// waits. `granted` says that a lock has been granted, and this decides whether it is kept.
    pub(super) async fn ready(
        &self,
        destination: Destination,
        spots: &[Spot],
        granted: bool,
        limit: Limit,
    ) -> Result<(), StoreError> {
        let calls: Vec<_> = spots
            .iter()
            .map(|spot| {
                Call::at(&self.0.scripts.ready, spot)
                    .arg(&self.guard_micros())
                    .arg(&u8::from(self.0.options.starts_empty))
                    .arg(&self.least_micros())
                    .arg(&u8::from(granted))
                    .granting()
            })
            .collect();
        let mut longest = None;
        let asked = self
            .0
            .client
            .call(Whose::Callers, destination, calls, limit);
        for answer in asked.await? {
            let answer = good(answer)?;
            let (wait, error) = match &answer {
                Value::Array(parts) => match parts[..] {
                    [Value::Int(1), Value::Int(0)] => continue,
                    [Value::Int(2), Value::Int(wait), Value::Int(why)] => (wait, waits(wait, why)),
                    [Value::Int(3), Value::Int(others)] => return Err(self.too_short(others)),
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

    /// Checks that none of these deletes keys when its memory is full.
    pub(super) async fn evicts_nothing(
        &self,
        spots: &[Spot],
        limit: Limit,
    ) -> Result<(), StoreError> {
        let script = &self.0.scripts.policy;
        let calls = spots.iter().map(|spot| Call::at(script, spot)).collect();
        let to = Destination::default();
        let asked = self.0.client.call(Whose::Callers, to, calls, limit);
        for answer in asked.await? {
            match good(answer)? {
                Value::BulkString(none) if none.is_empty() => {}
                Value::BulkString(policy) => {
                    let policy = cut(&String::from_utf8_lossy(&policy));
                    return Err(StoreError::Evicts { policy });
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    }

    /// Refuses a server that sends the client to another one for some names. A program that tries
    /// one of the others would believe that it works.
    ///
    /// Only that refusal counts: behind a proxy a node may hang, and names of the others are granted.
    pub(super) async fn has_all_slots(&self, limit: Limit) -> Result<(), StoreError> {
        // Relaxed: if two calls ask at one time, both get an answer.
        if self.0.has_all_slots.load(Ordering::Relaxed) {
            return Ok(());
        }
        let keys = self.0.options.keys.all_over().into_iter();
        let calls: Vec<_> = keys
            .map(|key| Call::new(&self.0.scripts.holder, [key]))
            .collect();
        let limit = Limit::new(limit.left().min(SLOTS_LIMIT));
        let to = Destination::default();
        let asked = self.0.client.call(Whose::Callers, to, calls, limit);
        let answers = match asked.await {
            Err(StoreError::Forked) => return Err(StoreError::Forked),
            answers => answers.unwrap_or_default(),
        };
        for answer in answers {
            match answer {
                Ok(Value::ServerError(error)) if error.code() == "MOVED" => {
                    return Err(answered(&error));
                }
                _ => {}
            }
        }
        // Relaxed: as above.
        self.0.has_all_slots.store(true, Ordering::Relaxed);
        Ok(())
    }
}
