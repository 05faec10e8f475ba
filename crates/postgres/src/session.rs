//! The settings of a session, and poolers between the client and the server.
//!
//! The start of the connection carries the settings, as `options`. So the server has them from the
//! first moment, they belong to this connection, and no other session can get them. A pooler such
//! as PgBouncer refuses such options, or drops them. There are two kinds of poolers:
//!
//! - A pooler that gives each session its own connection of the server, and resets it afterwards,
//!   gets the settings by statements.
//! - A pooler that shares connections between transactions is refused. The settings would reach
//!   other programs, and neither prepared statements nor `listen` would last.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio_postgres::{Client, Error, SimpleQueryMessage};

use crate::error::PostgresError;
use crate::failure::not_connected;

/// How often a pooler is asked which connections of the server it uses.
const ROUNDS: usize = 4;

/// The shortest time limit: a limit of zero would be none.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest time limit. The server takes no more than 24 days.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// The settings of a session, with their values.
///
/// The start of the connection carries them, as `options`. A pooler that drops or refuses options,
/// and gives each session its own connection of the server, gets them by statements. A pooler that
/// shares connections between transactions is refused.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use tourbillon_postgres::Session;
///
/// let (five, one) = (Duration::from_secs(5), Duration::from_secs(1));
/// let session = Session::usual(five, one).and([("jit", "off")]);
/// let statements = session.statements();
/// assert!(statements.contains("set statement_timeout = '5000'"));
/// assert!(statements.contains("set jit = 'off'"));
///
/// let alone = Session::new([("statement_timeout", "5000".to_owned())]);
/// assert_eq!(alone.statements(), "set statement_timeout = '5000'; ");
/// ```
#[derive(Clone, Debug)]
pub struct Session(Vec<(&'static str, String)>);

impl Session {
    /// Makes a session with these settings alone.
    #[must_use]
    pub fn new(settings: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Session(settings.into_iter().collect())
    }

    /// Makes a session with settings that stores rely on, whatever the defaults of the server, the
    /// database or the role are:
    ///
    /// - Transactions may write, and have the isolation `read committed`.
    /// - The time zone is UTC, and names of the user's tables need their schema.
    /// - A policy that would hide rows is an error.
    /// - The server ends a statement after `statement_limit`, or when it has waited for a lock for
    ///   `lock_limit`. It ends the session of a transaction that was idle for `statement_limit`.
    ///
    /// Both limits are brought into the range of [`limit`](Self::limit).
    #[must_use]
    pub fn usual(statement_limit: Duration, lock_limit: Duration) -> Self {
        let limits = [
            ("statement_timeout", statement_limit),
            ("lock_timeout", lock_limit),
            ("idle_in_transaction_session_timeout", statement_limit),
        ];
        let limits = limits.map(|(name, limit)| (name, Session::millis(limit)));
        Session::new(limits).and([
            ("default_transaction_isolation", "read committed"),
            ("default_transaction_read_only", "off"),
            ("default_transaction_deferrable", "off"),
            ("timezone", "UTC"),
            ("search_path", "pg_catalog, pg_temp"),
            ("row_security", "off"),
            ("client_min_messages", "warning"),
        ])
    }

    /// Adds settings.
    #[must_use]
    pub fn and(mut self, settings: impl IntoIterator<Item = (&'static str, &'static str)>) -> Self {
        let settings = settings.into_iter();
        self.0
            .extend(settings.map(|(name, value)| (name, value.to_owned())));
        self
    }

    /// Returns the limit within the range for a server: at least 10 ms and at most a day.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tourbillon_postgres::Session;
    ///
    /// assert_eq!(Session::limit(Duration::ZERO), Duration::from_millis(10));
    /// ```
    #[must_use]
    pub fn limit(limit: Duration) -> Duration {
        limit.clamp(SHORTEST, LONGEST)
    }

    /// Returns the limit as the value of a setting.
    pub(crate) fn millis(limit: Duration) -> String {
        Session::limit(limit).as_millis().to_string()
    }

    /// Returns the options of a new connection: those of the URL, these settings, and the mark by
    /// which [`has`] recognizes that the server got them.
    pub(crate) fn options(&self, of_url: Option<&str>, mark: &str) -> String {
        let mut options = of_url.unwrap_or_default().to_owned();
        let mark = [(MARK, mark.to_owned())];
        for (name, value) in self.0.iter().chain(&mark) {
            if !options.is_empty() {
                options.push(' ');
            }
            options.push_str("-c ");
            options.push_str(name);
            options.push('=');
            for character in value.chars() {
                // The server would take it for the end of an option.
                if character == '\\' || character.is_ascii_whitespace() || character == '\x0b' {
                    options.push('\\');
                }
                options.push(character);
            }
        }
        options
    }

    /// Returns the settings as statements.
    #[must_use]
    pub fn statements(&self) -> String {
        let set = self.0.iter().map(|(name, value)| match *name {
            // A list. Within quotes the server would take it for one name.
            "search_path" => format!("set {name} = {value}; "),
            name if value.contains('\\') => {
                format!("set {name} = E'{}'; ", quoted(value).replace('\\', r"\\"))
            }
            name => format!("set {name} = '{}'; ", quoted(value)),
        });
        set.collect()
    }
}

/// Returns a value as it stands between quotes in a statement.
fn quoted(value: &str) -> String {
    value.replace('\'', "''")
}

/// A setting that means nothing to a server, and that every server keeps.
const MARK: &str = "tourbillon.session";

/// Returns a mark that no other connection has.
pub(crate) fn mark() -> String {
    format!("{:x}", RandomState::new().hash_one(0))
}

/// Returns whether the connection has the settings that it was started with.
pub(crate) async fn has(client: &Client, mark: &str) -> Result<bool, Error> {
    let asked = format!("select current_setting('{MARK}', true)");
    Ok(value(client, &asked).await?.as_deref() == Some(mark))
}

/// Returns whether a pooler has refused the options of a connection.
pub(crate) fn is_refused(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        error.code().code() == "08P01" && error.message().contains("startup parameter")
    })
}

/// Refuses a pooler that shares connections of the server between sessions. Each of the two clients
/// has a connection to the pooler of its own, and has set nothing.
pub(crate) async fn check_pooler(one: &Client, other: &Client) -> Result<(), PostgresError> {
    const SHARED: &str = "a pooler such as PgBouncer stands before the server, and gives each transaction \
         another connection of it, on which neither settings nor prepared statements nor `listen` last: \
         connect to the server itself, or to a pool with `pool_mode = session`";
    let mut processes = Vec::new();
    // Each client asks twice: a pooler may hand out the last used connection, or take turns.
    for _ in 0..ROUNDS {
        for client in [one, one, other, other] {
            let process = value(client, "select pg_backend_pid()").await;
            processes.push(process.map_err(|error| not_connected(&error))?);
        }
    }
    let of_one = &processes[0];
    let of_other = &processes[2];
    let is_own = processes.chunks(4).all(|round| {
        round[..2].iter().all(|process| process == of_one)
            && round[2..].iter().all(|process| process == of_other)
    });
    match is_own && of_one != of_other {
        true => Ok(()),
        false => Err(PostgresError::Refused(SHARED.to_owned())),
    }
}

/// Returns the value of a query, which is not prepared.
async fn value(client: &Client, sql: &str) -> Result<Option<String>, Error> {
    let messages = client.simple_query(sql).await?;
    Ok(messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(ToOwned::to_owned),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_spaces_are_escaped_in_options_and_quoted_in_statements() {
        let session = Session::new([
            ("statement_timeout", "5000".to_owned()),
            ("search_path", "pg_catalog, pg_temp".to_owned()),
            (
                "default_transaction_isolation",
                r"read \committed".to_owned(),
            ),
            ("application_name", "it's\ta \n".to_owned()),
        ]);
        assert_eq!(
            session.options(Some("-c geqo=off"), "7"),
            "-c geqo=off -c statement_timeout=5000 -c search_path=pg_catalog,\\ pg_temp \
             -c default_transaction_isolation=read\\ \\\\committed \
             -c application_name=it's\\\ta\\ \\\n -c tourbillon.session=7"
        );
        assert_eq!(
            session.statements(),
            "set statement_timeout = '5000'; set search_path = pg_catalog, pg_temp; \
             set default_transaction_isolation = E'read \\\\committed'; \
             set application_name = 'it''s\ta \n'; "
        );
        assert_ne!(mark(), mark());
    }

    #[test]
    fn limits_are_such_as_the_server_takes_and_never_none() {
        let session = Session::usual(Duration::ZERO, Duration::MAX).statements();
        assert!(
            session.contains("set statement_timeout = '10'; "),
            "{session}"
        );
        assert!(
            session.contains("set lock_timeout = '86400000'; "),
            "{session}"
        );
    }
}
