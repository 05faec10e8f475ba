//! What the answers of the scripts mean.

use std::time::Duration;

use redis::Value;

use super::errors::{answered, cut};
use crate::store::{Holder, Mode, Released, StoreError};

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
        [owner, token, Value::Int(left), data, rest @ ..] => {
            let token = text(token).and_then(|token| token.parse().ok());
            let (Some(owner), Some(token), Some(data)) = (text(owner), token, text(data)) else {
                return Err(unexpected(answer));
            };
            let remaining = time_left(*left, longest);
            let holder = Holder::new(owner, token, remaining).with_data(data);
            let (mode, holders) = match rest {
                [] => (Mode::Exclusive, 1),
                [mode, Value::Int(count)] => {
                    let mode = text(mode).and_then(|text| mode_of(&text));
                    let mode = mode.ok_or_else(|| unexpected(answer))?;
                    (mode, usize::try_from(*count).unwrap_or(1))
                }
                _ => return Err(unexpected(answer)),
            };
            Ok(Some(holder.in_mode(mode, holders)))
        }
        _ => Err(unexpected(answer)),
    }
}

/// Returns a mode in the words of the scripts, and the number of permits.
pub(super) fn mode_text(mode: Mode) -> (String, u32) {
    match mode {
        Mode::Permit { of } => (format!("p{of}"), of),
        _ => ("s".to_owned(), 0),
    }
}

fn mode_of(text: &str) -> Option<Mode> {
    if text == "s" {
        return Some(Mode::Shared);
    }
    let of = text.strip_prefix('p')?.parse().ok()?;
    Some(Mode::Permit { of })
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
