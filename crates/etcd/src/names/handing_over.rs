//! How names are handed over by tickets.

use tourbillon_leases::{Detached, Resumed, StoreError};

use super::renewing::{Found, Keeps};
use super::{ATTEMPTS, Names, changed};
use crate::messages::PutRequest;
use crate::record::Record;

/// A name that its holder detaches.
pub(crate) struct DetachedBy {
    pub(crate) name: String,
    /// The hashes of the secret and of the ticket.
    pub(crate) hash: String,
    pub(crate) ticket: String,
    /// The length of the lease after it is resumed, in seconds.
    pub(crate) ttl: i64,
    pub(crate) terms: String,
}

/// A name that somebody resumes.
pub(crate) struct ResumedBy {
    pub(crate) name: String,
    /// The hash of the ticket.
    pub(crate) ticket: String,
    pub(crate) owner: String,
    pub(crate) data: String,
    /// The hash of the new secret.
    pub(crate) hash: String,
}

impl Names {
    pub(crate) async fn detach(&self, detach: &DetachedBy) -> Result<Detached, StoreError> {
        for _ in 0..ATTEMPTS {
            let entry = self.entry(&detach.name).await?;
            let held = entry
                .as_ref()
                .and_then(|one| Some((one, one.held_with(&detach.hash)?)));
            let Some((entry, record)) = held else {
                return Ok(Detached::NotHeld);
            };
            let record = Record {
                ticket: detach.ticket.clone(),
                detached: detach.ttl,
                terms: detach.terms.clone(),
                ..record.clone()
            };
            let put = PutRequest {
                key: self.key(&detach.name),
                value: record.to_value(),
                lease: 0,
                ignore_lease: true,
            };
            if self.put_if_as_of(entry.revision, put).await? {
                return Ok(Detached::Detached);
            }
        }
        Err(changed(&detach.name))
    }

    pub(crate) async fn resume(&self, resume: &ResumedBy) -> Result<Option<Resumed>, StoreError> {
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.entry(&resume.name).await? else {
                return Ok(None);
            };
            let Some(record) = &entry.record else {
                return Ok(None);
            };
            let resumed = Resumed::new(entry.token, record.terms.clone());
            // A call whose answer was lost. A secret that never resumed the name proves nothing here.
            if record.is_held_with(&resume.hash) && record.detached > 0 && record.ticket.is_empty()
            {
                let keeps = Keeps {
                    ttl: record.lease,
                    never_shortens: true,
                };
                let found = Found {
                    name: &resume.name,
                    entry: entry.clone(),
                    keeps,
                };
                return match self.keep(&[found]).await?.pop() {
                    Some(Ok(true)) => Ok(Some(resumed)),
                    Some(Err(error)) => Err(error),
                    _ => Ok(None),
                };
            }
            if record.ticket.is_empty() || record.ticket != resume.ticket {
                return Ok(None);
            }
            // The length and the terms stay, for a repetition of this call.
            let record = Record {
                owner: resume.owner.clone(),
                data: resume.data.clone(),
                secret: resume.hash.clone(),
                lease: record.detached,
                ticket: String::new(),
                detached: record.detached,
                terms: record.terms.clone(),
            };
            let ttl = record.lease;
            if self.replace(&resume.name, &entry, &record, ttl).await? {
                return Ok(Some(resumed));
            }
        }
        Err(changed(&resume.name))
    }
}
