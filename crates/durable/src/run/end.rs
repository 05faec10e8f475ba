//! How handlers have ended, as the node needs to know it.

use std::error::Error;

use super::ending::{Ending, HandlerError};
use crate::calls::CompleteError;
use crate::sync::catch_panic;

/// The greatest length of an error that is stored, in bytes.
const LONGEST_ERROR: usize = 4 * 1024;

/// How a handler has ended.
pub(crate) enum End {
    Succeeded(Ending),
    Failed {
        error: String,
        /// Whether `complete_in` was fenced: another node has the run.
        is_fenced: bool,
    },
    Panicked(String),
}

impl End {
    /// Reads the handler's answer. It calls code of the user's error, so call it within
    /// `catch_panic`.
    pub(crate) fn of(result: Result<Ending, HandlerError>) -> Self {
        match result {
            Ok(ending) => End::Succeeded(ending),
            Err(error) => End::Failed {
                is_fenced: is_fenced(error.as_ref()),
                error: text_of(error.as_ref()),
            },
        }
    }

    /// Drops a value of the user's after the handler. If that panics, the run has panicked.
    pub(crate) fn after_drop<T>(self, value: T) -> Self {
        match catch_panic(move || drop(value)) {
            Ok(()) => self,
            Err(message) => End::Panicked(message),
        }
    }
}

/// The error and its sources, unless their text is part of it already.
fn text_of(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source
        && text.len() < LONGEST_ERROR
    {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    bounded(text)
}

/// Cuts a text to the length that is stored. Some stores can't keep NUL characters.
pub(super) fn bounded(mut text: String) -> String {
    if text.len() > LONGEST_ERROR {
        let mut end = LONGEST_ERROR;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    match text.contains('\0') {
        true => text.replace('\0', "\u{FFFD}"),
        false => text,
    }
}

fn is_fenced(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    // An error may be its own source.
    for _ in 0..64 {
        let Some(error) = next else { return false };
        if let Some(CompleteError::Fenced) = error.downcast_ref::<CompleteError>() {
            return true;
        }
        next = error.source();
    }
    false
}
