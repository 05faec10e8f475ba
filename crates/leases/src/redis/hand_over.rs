//! Detaches locks, and resumes them.

use std::time::Duration;

use redis::Value;

use super::scripts::Call;
use super::{RedisStore, millis};
use crate::remote::Limit;
use crate::store::{Detach, Detached, Resume, Resumed, StoreError};

impl RedisStore {
    pub(super) async fn detach_held(
        &self,
        detach: &Detach<'_>,
        limit: Limit,
    ) -> Result<Detached, StoreError> {
        self.valid(detach.name, detach.lease)?;
        let lock = self.0.options.keys.lock(detach.name);
        let call = Call::new(&self.0.scripts.detach, [lock])
            .arg(detach.secret.reveal())
            .arg(detach.ticket.reveal())
            .arg(&millis(detach.lease))
            .arg(detach.terms);
        match self.call_one(detach.name, call, limit).await? {
            Value::Int(1) => Ok(Detached::Detached),
            Value::Int(0) => Ok(Detached::NotHeld),
            _ => Err(strange()),
        }
    }

    pub(super) async fn resume_detached(
        &self,
        resume: &Resume<'_>,
        limit: Limit,
    ) -> Result<Option<Resumed>, StoreError> {
        let longest = self.0.options.longest_lease;
        self.valid(resume.name, longest)?;
        let lock = self.0.options.keys.lock(resume.name);
        let call = Call::new(&self.0.scripts.resume, [lock])
            .arg(resume.ticket.reveal())
            .arg(resume.owner)
            .arg(resume.secret.reveal())
            .arg(resume.data)
            .arg(&millis(longest));
        let Value::Array(parts) = self.call_one(resume.name, call, limit).await? else {
            return Err(strange());
        };
        match &parts[..] {
            [Value::Int(0)] => Ok(None),
            [Value::Int(2), Value::Int(lease)] => {
                let lease = Duration::from_millis(lease.unsigned_abs());
                let why = format!(
                    "it was detached with a lease of {lease:?}: this store was built for {longest:?} at \
                     most"
                );
                Err(StoreError::Refused(why))
            }
            [Value::Int(1), token, terms] => {
                let token = text(token).and_then(|token| token.parse().ok());
                let (Some(token), Some(terms)) = (token, text(terms)) else {
                    return Err(strange());
                };
                Ok(Some(Resumed::new(token, terms.to_owned())))
            }
            _ => Err(strange()),
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// The error for an unexpected answer. It does not show the answer, which may contain secrets. The
/// call may have been executed.
fn strange() -> StoreError {
    StoreError::Unavailable("an answer that none of the scripts gives".to_owned())
}
