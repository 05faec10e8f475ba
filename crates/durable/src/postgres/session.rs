//! The settings of a session, and what stands between it and the server.
//!
//! The settings travel with the start of the connection, as `options`. So the server has them from
//! the first moment, they belong to this connection, and nobody else can get them. A pooler such as
//! PgBouncer refuses such options, or drops them. One that gives each session a connection of the
//! server's own, and resets it afterwards, gets the settings by statements. One that shares
//! connections between transactions is refused: the settings would reach other programs, and
//! neither prepared statements nor `listen` would last.

use std::hash::{BuildHasher, RandomState};

use tokio_postgres::{Client, Error, SimpleQueryMessage};

use super::failure::not_connected;
use crate::store::StoreError;

/// How often a pooler is asked which connections of the server it uses.
const ROUNDS: usize = 4;

/// Settings with their values.
#[derive(Clone, Debug)]
pub(super) struct Session(Vec<(&'static str, String)>);

impl Session {
    pub(super) fn new(settings: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        Session(settings.into_iter().collect())
    }

    /// The settings as options of a new connection, after those that the URL has, and the mark by
    /// which [`has`] recognizes that the server got them.
    pub(super) fn options(&self, of_url: Option<&str>, mark: &str) -> String {
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
                if matches!(character, ' ' | '\\') {
                    options.push('\\');
                }
                options.push(character);
            }
        }
        options
    }

    /// The settings as statements.
    pub(super) fn statements(&self) -> String {
        let set = self.0.iter().map(|(name, value)| match *name {
            // A list, whose parts would be one name within quotes.
            "search_path" => format!("set {name} = {value}; "),
            name => format!("set {name} = '{value}'; "),
        });
        set.collect()
    }
}

/// A setting that no server knows, and every server keeps.
const MARK: &str = "tourbillon.session";

/// A mark that no other connection has.
pub(super) fn mark() -> String {
    format!("{:x}", RandomState::new().hash_one(0))
}

/// Whether the connection has the settings that it was started with.
pub(super) async fn has(client: &Client, mark: &str) -> Result<bool, Error> {
    let asked = format!("select current_setting('{MARK}', true)");
    Ok(value(client, &asked).await?.as_deref() == Some(mark))
}

/// Whether a pooler has refused the options of a connection.
pub(super) fn is_refused(error: &Error) -> bool {
    error.as_db_error().is_some_and(|error| {
        error.code().code() == "08P01" && error.message().contains("startup parameter")
    })
}

/// Refuses a pooler that shares connections of the server between sessions. The two clients have
/// connections to it of their own, and have set nothing.
pub(super) async fn check_pooler(one: &Client, other: &Client) -> Result<(), StoreError> {
    const SHARED: &str = "a pooler such as PgBouncer stands before the server, and gives each transaction \
         another connection of it, on which neither settings nor prepared statements nor `listen` last: \
         connect to the server itself, or to a pool with `pool_mode = session`";
    let mut processes = Vec::new();
    // Each twice: a pooler may hand out the connection that was used last, or go round.
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
        false => Err(StoreError::Refused(SHARED.to_owned())),
    }
}

/// The value that a query returns. It prepares nothing.
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
        ]);
        assert_eq!(
            session.options(Some("-c geqo=off"), "7"),
            "-c geqo=off -c statement_timeout=5000 -c search_path=pg_catalog,\\ pg_temp \
             -c default_transaction_isolation=read\\ \\\\committed -c tourbillon.session=7"
        );
        assert_eq!(
            session.statements(),
            "set statement_timeout = '5000'; set search_path = pg_catalog, pg_temp; \
             set default_transaction_isolation = 'read \\committed'; "
        );
        assert_ne!(mark(), mark());
    }
}
