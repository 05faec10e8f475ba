//! The permanent name of a timer.

use std::fmt;

use crate::sync::Arc;

/// The permanent name of one timer: its queue, key and generation.
///
/// Send its text as an idempotency key.
///
/// # Examples
///
/// ```
/// # use tourbillon_durable::Due;
/// fn charge(due: &Due<u64>) {
///     let idempotency_key = due.token().to_string();
///     // .. send it with the request to the payment service ..
/// #   let _ = idempotency_key;
/// }
/// # let _ = charge;
/// ```
///
/// Or keep it in a table of your own, with a unique key of three columns:
///
/// ```
/// # use tourbillon_durable::Token;
/// fn columns(token: &Token) -> (&str, &str, i64) {
///     (token.queue(), token.key(), token.generation())
/// }
/// # let _ = columns;
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Token {
    queue: Arc<str>,
    key: Box<str>,
    generation: i64,
}

impl Token {
    pub(crate) fn new(queue: &Arc<str>, key: Box<str>, generation: i64) -> Self {
        let queue = Arc::clone(queue);
        Token {
            queue,
            key,
            generation,
        }
    }

    /// Returns the queue.
    #[must_use]
    pub fn queue(&self) -> &str {
        &self.queue
    }

    /// Returns the key within the queue.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the number that no other timer with this queue and key ever has.
    #[must_use]
    pub fn generation(&self) -> i64 {
        self.generation
    }
}

/// Writes `queue/key/generation`, with the generation as 16 hexadecimal digits.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:016x}", self.queue, self.key, self.generation)
    }
}
