//! The error of a connection or of a call on it.

use std::fmt;

/// The reason why a connection can't be made, or a call on it has failed.
///
/// # Examples
///
/// ```
/// use tourbillon_postgres::PostgresError;
///
/// let error = PostgresError::Unavailable("the server is gone".to_owned());
/// assert!(error.may_pass());
/// assert!(!PostgresError::Refused("permission denied".to_owned()).may_pass());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PostgresError {
    /// The server can't be reached, or is busy, and the call has changed nothing. It may succeed
    /// later.
    Unavailable(String),
    /// The answer was lost: the call may have been carried out.
    Unknown(String),
    /// The server, or this crate, has refused the call, and it was not carried out. The same call
    /// will be refused again.
    Refused(String),
    /// This process was forked after the [`Connector`](crate::Connector) was made, and the
    /// connections belong to the original process.
    Forked,
}

impl PostgresError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        !matches!(self, PostgresError::Refused(_) | PostgresError::Forked)
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostgresError::Unavailable(why) => write!(f, "the server is unavailable: {why}"),
            PostgresError::Unknown(why) => write!(
                f,
                "the server's answer was lost, and the call may have been carried out: {why}"
            ),
            PostgresError::Refused(why) => write!(f, "the call is refused: {why}"),
            PostgresError::Forked => f.write_str(
                "the connections were made before this process was forked, and belong to the \
                 original process: make them after the fork",
            ),
        }
    }
}

impl std::error::Error for PostgresError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_reason_and_says_what_may_pass() {
        let cases = [
            (PostgresError::Unavailable("why".to_owned()), true),
            (PostgresError::Unknown("why".to_owned()), true),
            (PostgresError::Refused("why".to_owned()), false),
            (PostgresError::Forked, false),
        ];
        for (error, may_pass) in cases {
            let text = error.to_string();
            let says_why = text.ends_with("why") || text.ends_with("make them after the fork");
            assert!(says_why, "{text}");
            assert_eq!(error.may_pass(), may_pass, "{text}");
        }
    }
}
