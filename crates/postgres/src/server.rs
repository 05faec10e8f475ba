//! The demands on a server.

use tokio_postgres::{Client, Error};

use crate::error::PostgresError;
use crate::failure::{Effect, message, refusal};

/// The oldest version that is supported. It has `pg_current_xact_id`.
const OLDEST_SERVER: i32 = 130_000;

/// Checks that the server is a primary of version 13 or newer, and that the database has the
/// encoding UTF-8.
///
/// # Errors
///
/// [`PostgresError::Refused`] if the server does not meet these demands. Otherwise the error of the
/// query.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
///
/// use tourbillon_postgres::{Link, PostgresError, check_server};
///
/// fn ready(link: &mut Link) -> Result<(), PostgresError> {
///     link.ready(Duration::from_secs(5), async |client| check_server(client).await)
/// }
/// ```
pub async fn check_server(client: &Client) -> Result<(), PostgresError> {
    let asked = "select current_setting('server_version_num')::int, pg_is_in_recovery(), \
                 current_setting('server_encoding')";
    let row = client.query_one(asked, &[]).await.map_err(failed)?;
    let standby: bool = row.get(1);
    if standby {
        return Err(PostgresError::Refused(
            "this server is a standby: connect to the primary, for instance by several hosts and \
             target_session_attrs=read-write in the URL"
                .to_owned(),
        ));
    }
    check_version(row.get(0))?;
    let encoding: &str = row.get(2);
    if encoding != "UTF8" {
        return Err(PostgresError::Refused(format!(
            "the database has the encoding {encoding}, which can't keep all keys: use one with UTF8"
        )));
    }
    Ok(())
}

fn check_version(number: i32) -> Result<(), PostgresError> {
    if number >= OLDEST_SERVER {
        return Ok(());
    }
    let (major, minor) = (number / 10_000, number % 10_000);
    Err(PostgresError::Refused(format!(
        "the server has the version {major}.{minor}: PostgreSQL {} or newer is needed",
        OLDEST_SERVER / 10_000
    )))
}

#[allow(clippy::needless_pass_by_value, reason = "it is passed to `map_err`")]
fn failed(error: Error) -> PostgresError {
    match error.code() {
        Some(code) => refusal(Effect::Reads, code, message(&error)),
        None => PostgresError::Unavailable(message(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_refused_with_the_version_that_it_has() {
        assert!(check_version(130_000).is_ok());
        assert!(check_version(180_001).is_ok());
        let refused = check_version(120_022).expect_err("version 12 is too old");
        assert!(refused.to_string().contains("12.22"), "{refused}");
        assert!(!refused.may_pass());
    }
}
