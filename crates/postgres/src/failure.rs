//! The meaning of errors of the driver and of the server: whether the same call may succeed later,
//! whether it may have been carried out, and whether the connection can still be used.
//!
//! The functions are for statements that do not run by a [`Link`](crate::Link), such as those in a
//! transaction of a user.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::error::PostgresError;

/// Tells whether a call can be repeated without harm if its answer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Effect {
    /// The call changes nothing. Without an answer it fails with [`PostgresError::Unavailable`].
    Reads,
    /// The call changes something. Without an answer it fails with [`PostgresError::Unknown`].
    Writes,
}

/// A call that failed.
///
/// # Examples
///
/// ```
/// use tourbillon_postgres::{Failure, PostgresError};
///
/// /// What a store does next.
/// fn next(failure: &Failure) -> &'static str {
///     match failure.error() {
///         _ if failure.is_conflict() => "send it again at once",
///         _ if failure.is_locked() => "another transaction has the row: try again later",
///         _ if failure.violates("shop", "lease_pkey") => "somebody else was quicker",
///         PostgresError::Unknown(_) => "look before it is sent again",
///         error if error.may_pass() => "try again later",
///         _ => "give up, and say why",
///     }
/// }
///
/// let failure = Failure::from(PostgresError::Unavailable("no answer".to_owned()));
/// assert_eq!(failure.code(), None);
/// assert_eq!(next(&failure), "try again later");
/// ```
#[derive(Debug)]
pub struct Failure {
    error: PostgresError,
    /// The server's answer, if it has given one.
    answer: Option<Error>,
}

impl From<PostgresError> for Failure {
    /// Makes a failure that is no answer of the server.
    fn from(error: PostgresError) -> Self {
        let answer = None;
        Failure { error, answer }
    }
}

impl Failure {
    /// Makes a failure from an error of the driver, which may be an answer of the server.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tourbillon_postgres::{Client, Effect, Failure};
    ///
    /// async fn beat(client: &Client) -> Result<(), Failure> {
    ///     let beaten = client.batch_execute("update shop.node set beat = beat + 1").await;
    ///     beaten.map_err(|error| Failure::of(Effect::Writes, error))
    /// }
    /// ```
    #[must_use]
    pub fn of(effect: Effect, answer: Error) -> Self {
        let why = message(&answer);
        let Some(code) = answer.code() else {
            return Failure::from(match is_of_the_call(&answer) {
                true => PostgresError::Refused(why),
                false => lost(effect, why),
            });
        };
        Failure {
            error: refusal(effect, code, why),
            answer: Some(answer),
        }
    }

    /// Returns the error for the caller, by the usual meaning of the server's code.
    #[must_use]
    pub fn error(&self) -> &PostgresError {
        &self.error
    }

    /// Returns the error for the caller, and drops the server's answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_postgres::{Failure, PostgresError};
    ///
    /// let error = PostgresError::Unknown("no answer".to_owned());
    /// assert_eq!(Failure::from(error.clone()).into_error(), error);
    /// ```
    #[must_use]
    pub fn into_error(self) -> PostgresError {
        self.error
    }

    /// Returns the server's answer, if it has given one. [`message`] returns its text.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_postgres::{Failure, PostgresError};
    ///
    /// let failure = Failure::from(PostgresError::Unavailable("no answer".to_owned()));
    /// assert!(failure.answer().is_none());
    /// ```
    #[must_use]
    pub fn answer(&self) -> Option<&Error> {
        self.answer.as_ref()
    }

    /// Returns the code of the server's answer, if it has given one.
    #[must_use]
    pub fn code(&self) -> Option<&SqlState> {
        self.answer.as_ref().and_then(Error::code)
    }

    /// Returns whether a row violates this unique constraint of a table in this schema.
    #[must_use]
    pub fn violates(&self, schema: &str, constraint: &str) -> bool {
        let answer = self.answer.as_ref().and_then(Error::as_db_error);
        answer.is_some_and(|error| {
            *error.code() == SqlState::UNIQUE_VIOLATION
                && error.schema() == Some(schema)
                && error.constraint() == Some(constraint)
        })
    }

    /// Returns whether the server has ended the statement in favour of another one: see
    /// [`is_conflict`].
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code().is_some_and(is_conflict)
    }

    /// Returns whether the statement could not get a lock in time.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
    }
}

/// Returns the class of a code: its first two characters. A proxy may answer with a shorter code,
/// which has no class.
///
/// # Examples
///
/// ```
/// use tokio_postgres::error::SqlState;
/// use tourbillon_postgres::failure::class;
///
/// assert_eq!(class(&SqlState::UNIQUE_VIOLATION), "23");
/// assert_eq!(class(&SqlState::from_code("7")), "");
/// ```
#[must_use]
pub fn class(code: &SqlState) -> &str {
    code.code().get(..2).unwrap_or_default()
}

/// Returns whether a statement was not sent because its values do not fit it. The driver has no
/// other sign of this error.
fn is_of_the_call(error: &Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing parameter") || text.contains("parameters but got")
}

/// Returns whether the server has ended a statement in favour of another one. The statement can be
/// sent again at once. A transaction of several statements has to be repeated from its beginning.
///
/// # Examples
///
/// ```
/// use tokio_postgres::error::SqlState;
/// use tourbillon_postgres::failure::is_conflict;
///
/// assert!(is_conflict(&SqlState::T_R_DEADLOCK_DETECTED));
/// assert!(!is_conflict(&SqlState::UNIQUE_VIOLATION));
/// ```
#[must_use]
pub fn is_conflict(code: &SqlState) -> bool {
    *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED
}

/// Returns whether a connection is of no more use after an answer with this code:
///
/// - The session has ended.
/// - The server or its system has an internal error.
/// - The primary has become a standby.
/// - A proxy has lost the prepared statements, or a plan is invalid.
/// - A transaction has failed, and nobody has ended it.
///
/// # Examples
///
/// ```
/// use tokio_postgres::error::SqlState;
/// use tourbillon_postgres::failure::ends_connection;
///
/// assert!(ends_connection(&SqlState::ADMIN_SHUTDOWN));
/// assert!(!ends_connection(&SqlState::LOCK_NOT_AVAILABLE));
/// ```
#[must_use]
pub fn ends_connection(code: &SqlState) -> bool {
    let text = code.code();
    matches!(class(code), "08" | "XX" | "58")
        || matches!(
            text,
            // A primary that has become a standby: another connection may find the new one.
            "57P01" | "57P02" | "57P03" | "57P05" | "0A000" | "26000" | "25006"
                // The transaction has failed, or has taken too long, which has ended the session.
                | "25P02" | "25P03" | "25P04"
        )
}

/// Returns the error of a call without an answer.
///
/// # Examples
///
/// ```
/// use tourbillon_postgres::failure::lost;
/// use tourbillon_postgres::{Effect, PostgresError};
///
/// let why = || "no answer within 5 s".to_owned();
/// assert_eq!(lost(Effect::Reads, why()), PostgresError::Unavailable(why()));
/// assert_eq!(lost(Effect::Writes, why()), PostgresError::Unknown(why()));
/// ```
#[must_use]
pub fn lost(effect: Effect, why: String) -> PostgresError {
    match effect {
        Effect::Reads => PostgresError::Unavailable(why),
        Effect::Writes => PostgresError::Unknown(why),
    }
}

/// Returns the server's message with its detail and hint, or the message of the driver.
///
/// # Examples
///
/// ```
/// use tourbillon_postgres::failure::message;
///
/// let error = "port=many".parse::<tokio_postgres::Config>().expect_err("no number");
/// assert!(message(&error).contains("port"));
/// ```
#[must_use]
pub fn message(error: &Error) -> String {
    let Some(db) = error.as_db_error() else {
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            text = format!("{text}: {source}");
        }
        return text;
    };
    described(db.message(), db.code(), [db.detail(), db.hint()])
}

/// Returns a message of the server with its code, detail and hint.
///
/// # Examples
///
/// ```
/// use tokio_postgres::error::SqlState;
/// use tourbillon_postgres::failure::described;
///
/// let text = described("out of memory", &SqlState::OUT_OF_MEMORY, [None, Some("a hint")]);
/// assert_eq!(text, "out of memory (53200); a hint");
/// ```
#[must_use]
pub fn described(message: &str, code: &SqlState, more: [Option<&str>; 2]) -> String {
    let mut text = format!("{message} ({})", code.code());
    for more in more.into_iter().flatten() {
        text = format!("{text}; {more}");
    }
    text
}

/// Translates an error of the server, for a statement that is a transaction of its own. `why` is
/// the text of the error. A store that knows more about a code, such as the meaning of a missing
/// table, checks it before it calls this.
///
/// # Examples
///
/// ```
/// use tokio_postgres::error::SqlState;
/// use tourbillon_postgres::failure::refusal;
/// use tourbillon_postgres::{Effect, PostgresError};
///
/// let error = |code| refusal(Effect::Writes, &code, "why".to_owned());
/// let why = || "why".to_owned();
/// assert_eq!(error(SqlState::TOO_MANY_CONNECTIONS), PostgresError::Unavailable(why()));
/// // The session was ended, perhaps after the commit.
/// assert_eq!(error(SqlState::ADMIN_SHUTDOWN), PostgresError::Unknown(why()));
/// assert_eq!(error(SqlState::SYNTAX_ERROR), PostgresError::Refused(why()));
/// ```
#[must_use]
pub fn refusal(effect: Effect, code: &SqlState, why: String) -> PostgresError {
    let text = code.code();
    match (class(code), text) {
        // The session was ended from outside, perhaps while it waited for a standby's receipt.
        (_, "57P01" | "57P02" | "57P05" | "25P03" | "25P04") | ("08", _) => lost(effect, why),
        (_, "25006") => PostgresError::Refused(format!(
            "{why}: this server is a standby, or a read-only one; connect to the primary"
        )),
        // The server accepts no writes until it was vacuumed. If a row is the reason, the caller
        // checks the code first.
        (_, "54000") => PostgresError::Unavailable(why),
        // A plan that a migration has made invalid, and statements that a proxy has lost.
        (_, "0A000" | "26000") => PostgresError::Unavailable(why),
        ("40" | "53" | "55" | "57" | "58" | "XX", _) => PostgresError::Unavailable(why),
        _ => PostgresError::Refused(why),
    }
}

/// Translates the error of an attempt to connect.
pub(crate) fn not_connected(error: &Error) -> PostgresError {
    #[cfg(feature = "tls")]
    if let Some(why) = crate::tls::refusal(error) {
        return PostgresError::Refused(why);
    }
    let why = message(error);
    // The driver has no other sign of this error. What is missing, such as a password, will be
    // missing again.
    if error.to_string().starts_with("invalid configuration") {
        return PostgresError::Refused(why);
    }
    match error.code().map(class) {
        // Wrong user or password, no such database, no right to connect.
        Some("28" | "3D" | "42" | "22") => PostgresError::Refused(why),
        _ => PostgresError::Unavailable(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_a_code_that_no_server_has_is_refused() {
        for code in ["", "7", "é7", "\u{1f552}"] {
            let code = SqlState::from_code(code);
            assert!(!ends_connection(&code) && !is_conflict(&code));
            let why = || "why".to_owned();
            let refused = refusal(Effect::Writes, &code, why());
            assert_eq!(refused, PostgresError::Refused(why()));
        }
    }

    #[test]
    fn a_transaction_that_took_too_long_has_ended_the_session() {
        for code in ["25P03", "25P04"] {
            let code = SqlState::from_code(code);
            assert!(ends_connection(&code));
            let lost = refusal(Effect::Writes, &code, String::new());
            assert_eq!(lost, PostgresError::Unknown(String::new()));
        }
    }
}
