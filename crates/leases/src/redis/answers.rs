//! What the answers of the scripts mean.

use std::time::Duration;

use redis::Value;

use super::errors::{answered, cut};
use crate::store::{Holder, Released, StoreError};

/// Returns what a server has answered, unless that is an error.
pub(super) fn good(answer: Result<Value, StoreError>) -> Result<Value, StoreError> {
    match answer? {
        Value::ServerError(error) => Err(answered(&error)),
        answer => Ok(answer),
    }
}

/// Turns the answer to a release into its result.
pub(super) fn given_back(answer: Result<Value, StoreError>) -> Result<Released, StoreError> {
    match good(answer)? {
        Value::Int(1) => Ok(Released::Released),
        Value::Int(0) => Ok(Released::NotHeld),
        other => Err(unexpected(&other)),
    }
}

/// Turns the answer to the question for a holder into its result.
pub(super) fn holder(answer: &Value, longest: Duration) -> Result<Option<Holder>, StoreError> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let Value::Array(parts) = answer else {
        return Err(unexpected(answer));
    };
    match &parts[..] {
        [] => Ok(None),
        [owner, token, Value::Int(left), data] => {
            let token = text(token).and_then(|token| token.parse().ok());
            let (Some(owner), Some(token), Some(data)) = (text(owner), token, text(data)) else {
                return Err(unexpected(answer));
            };
            let remaining = time_left(*left, longest);
            Ok(Some(Holder::new(owner, token, remaining).with_data(data)))
        }
        _ => Err(unexpected(answer)),
    }
}

/// The rest of a lease. The number is negative if somebody has removed the expiry of the key by
/// hand.
pub(super) fn time_left(millis: i64, longest: Duration) -> Duration {
    u64::try_from(millis).map_or(longest, Duration::from_millis)
}

/// Returns the error that says why nothing is granted yet. `why` is a number of `guard.lua`.
pub(super) fn waits(micros: i64, why: i64) -> StoreError {
    let wait = Duration::from_micros(micros.unsigned_abs());
    match why {
        1 => StoreError::Restarted { wait },
        _ => StoreError::Emptied {
            wait,
            evicted: why == 3,
        },
    }
}

/// Returns the error for an unexpected answer to a call that may have granted something.
pub(super) fn strange(answer: &Value) -> StoreError {
    StoreError::Unavailable(unexpected(answer).to_string())
}

pub(super) fn unexpected(answer: &Value) -> StoreError {
    let shown = cut(&format!("{answer:?}"));
    StoreError::Refused(format!("an answer that none of the scripts gives: {shown}"))
}
