//! One connection to a server: blocking calls with time limits, and reconnects.
//!
//! The client is async. A runtime of the connection's own drives it on the thread that makes the
//! call. So a call can end although the server does not answer any more.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::connector::Connector;
use crate::error::PostgresError;
use crate::failure::{Effect, Failure, ends_connection, lost};
use crate::security::Driven;
use crate::session::Session;
use crate::sync::catch_panic;

/// A connection that is opened when it is used, and opened again after it was lost.
///
/// Its calls block on a runtime of its own. So they are for threads that may block, such as the
/// thread of [`Connector::apart`] and those of `spawn_blocking`. Within a future they fail with
/// [`PostgresError::Refused`], after a panic of tokio that reaches the panic hook. A program that is
/// built to abort on panics ends there. A link can be dropped anywhere.
///
/// In a forked copy of its process each call fails with [`PostgresError::Forked`]. There the drop
/// leaks the connection, since its close would end the session of the original process.
///
/// # Examples
///
/// A store keeps a link. Each call of the store begins with [`ready`](Self::ready):
///
/// ```no_run
/// use std::borrow::Cow;
/// use std::time::Duration;
///
/// use tourbillon_postgres::{Client, Connector, Effect, Failure, Link, PostgresError, Session};
///
/// const LIMIT: Duration = Duration::from_secs(5);
///
/// /// What a new connection has to find.
/// async fn check(client: &Client) -> Result<(), Failure> {
///     let found = client.query_one("select to_regclass('shop.lease') is not null", &[]).await;
///     match found.map(|row| row.get(0)) {
///         Ok(true) => Ok(()),
///         Ok(false) => Err(PostgresError::Refused("there is no table".to_owned()).into()),
///         Err(error) => Err(PostgresError::Unavailable(error.to_string()).into()),
///     }
/// }
///
/// fn renew(link: &mut Link, name: &str) -> Result<bool, Failure> {
///     link.ready(LIMIT, check)?;
///     let sql = "update shop.lease set until = clock_timestamp() + '30 s' where name = $1 returning 1";
///     let rows = link.query(Effect::Writes, LIMIT, sql, || Cow::Borrowed(sql), &[&name])?;
///     Ok(!rows.is_empty())
/// }
///
/// # fn connect(connector: Connector) -> Result<(), Failure> {
/// let mut link = Link::new(connector, Session::usual(LIMIT, Duration::from_secs(1)))?;
/// renew(&mut link, "invoices")?;
/// # Ok(())
/// # }
/// ```
pub struct Link {
    connector: Connector,
    session: Session,
    open: Option<Open>,
    /// The runtime of this link alone, until the drop. The connection's task runs on it.
    runtime: Option<Runtime>,
}

/// An open connection with its prepared statements. [`Link::run`] passes it to its work.
pub struct Open {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    _driven: Driven,
}

impl Open {
    /// Wraps a new connection, such as that of [`Connector::open`]. No statement is prepared yet.
    #[must_use]
    pub fn new(client: Client, driven: Driven) -> Self {
        Open {
            client,
            statements: HashMap::new(),
            _driven: driven,
        }
    }

    /// Returns the driver's client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the statement of this name, and prepares it when it is used first. `text` returns
    /// its SQL, which may differ from the name, for instance in its schema.
    ///
    /// # Errors
    ///
    /// The error of the driver if the server refuses the statement, or the connection is lost.
    pub async fn prepare<'a>(
        &mut self,
        name: &'static str,
        text: impl FnOnce() -> Cow<'a, str>,
    ) -> Result<Statement, Error> {
        if let Some(known) = self.statements.get(name) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(&text()).await?;
        self.statements.insert(name, statement.clone());
        Ok(statement)
    }
}

impl Link {
    /// How long an answer may take beyond the server's limit before the connection is given up:
    /// 2 s. A caller with a strict limit of its own subtracts this time from the server's limit.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// Makes a connection that is not open yet. [`ready`](Self::ready) opens it with the settings
    /// of `session`, also after it was lost.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Unavailable`] if the system refuses what a runtime needs.
    pub fn new(connector: Connector, session: Session) -> Result<Self, PostgresError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            PostgresError::Unavailable(format!("no runtime for a connection: {error}"))
        })?;
        Ok(Link {
            connector,
            session,
            open: None,
            runtime: Some(runtime),
        })
    }

    /// Opens the connection if it is not open, or has ended since it was used last. A new
    /// connection is passed to `check`. It is closed again if `check` fails, or takes longer than
    /// `limit` and [`GRACE`](Self::GRACE) together.
    ///
    /// # Errors
    ///
    /// Those of [`Connector::open`] and of `check`. [`PostgresError::Refused`] within a future.
    pub fn ready<E: From<PostgresError>>(
        &mut self,
        limit: Duration,
        check: impl AsyncFnOnce(&Client) -> Result<(), E>,
    ) -> Result<(), E> {
        let runtime = usable(&self.connector, self.runtime.as_ref())?;
        // The connection's task notices its end here, before anything is sent.
        turns(runtime);
        match self.open.take() {
            Some(open) if !open.client.is_closed() => self.open = Some(open),
            _ => {
                let connect = self.connector.open(&self.session, "", |_, _| ());
                // The runtime panics if it gets no thread for the search for a host's address.
                let connected = catch_panic(|| runtime.block_on(connect)).unwrap_or_else(|panic| {
                    let why = format!("the connection has panicked: {panic}");
                    Err(PostgresError::Unavailable(why))
                });
                let (client, driven) = connected.inspect_err(|_| turns(runtime))?;
                let mut taken = Taken::new(runtime, Some(Open::new(client, driven)));
                let most = limit.saturating_add(Link::GRACE);
                if let Some(open) = &taken.open {
                    let limited = async { timeout(most, check(&open.client)).await };
                    runtime.block_on(limited).unwrap_or_else(|_| {
                        let why = format!("a new connection could not be checked within {limit:?}");
                        Err(PostgresError::Unavailable(why).into())
                    })?;
                }
                self.open = taken.open.take();
            }
        }
        Ok(())
    }

    /// Runs a statement once, and returns all of its rows. The server should end the statement
    /// after `limit`, by its `statement_timeout`. If there is no answer [2 s](Self::GRACE) later,
    /// the connection is given up.
    ///
    /// `name` is the name of the prepared statement, and `text` returns its SQL: see
    /// [`Open::prepare`].
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn query<'a>(
        &mut self,
        effect: Effect,
        limit: Duration,
        name: &'static str,
        text: impl FnOnce() -> Cow<'a, str>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.run(effect, limit, async |open: &mut Open| {
            let statement = open.prepare(name, text).await?;
            open.client().query(&statement, values).await
        })
    }

    /// Runs statements without values.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use tourbillon_postgres::{Failure, Link};
    /// # fn example(link: &mut Link) -> Result<(), Failure> {
    /// let settings = link.session().statements();
    /// link.batch(std::time::Duration::from_secs(5), &settings)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(&mut self, limit: Duration, sql: &str) -> Result<(), Failure> {
        self.run(Effect::Writes, limit, async |open: &mut Open| {
            open.client().batch_execute(sql).await
        })
    }

    /// Runs `work` on the open connection. All of it may take `limit` and [`GRACE`](Self::GRACE)
    /// together. The work must end each transaction that it begins, also after an error. Otherwise
    /// the next call runs in that transaction, or fails because it has failed.
    ///
    /// # Errors
    ///
    /// An error of the driver or of the server: [`Failure`] tells them apart. Further errors are
    /// [`PostgresError::Unavailable`] if the connection is not open, and [`PostgresError::Refused`]
    /// within a future.
    ///
    /// The connection is given up in these cases:
    ///
    /// - There is no answer in time.
    /// - The error is not an answer of the server, or is an answer that
    ///   [ends the connection](ends_connection).
    /// - The work panics.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_postgres::{Effect, Failure, Link};
    /// # fn example(link: &mut Link) -> Result<(), Failure> {
    /// // Two statements, and one limit.
    /// let (now, open) = link.run(Effect::Reads, Duration::from_secs(5), async |open| {
    ///     let now = open.prepare("now", || "select clock_timestamp()::text".into()).await?;
    ///     let now = open.client().query_one(&now, &[]).await?;
    ///     let open = open.client().query("select pid from pg_stat_activity", &[]).await?;
    ///     Ok((now, open.len()))
    /// })?;
    /// # let _ = (now, open);
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T>(
        &mut self,
        effect: Effect,
        limit: Duration,
        work: impl AsyncFnOnce(&mut Open) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let runtime = usable(&self.connector, self.runtime.as_ref())?;
        // If the work panics, nobody knows in which state it has left the session.
        let mut taken = Taken::new(runtime, self.open.take());
        let Some(open) = taken.open.as_mut() else {
            let why = "the connection has ended".to_owned();
            return Err(PostgresError::Unavailable(why).into());
        };
        let limit = limit.saturating_add(Link::GRACE);
        let limited = async { timeout(limit, work(open)).await };
        let (result, is_over) = match runtime.block_on(limited) {
            Ok(Ok(value)) => (Ok(value), false),
            Ok(Err(error)) => {
                let failure = Failure::of(effect, error);
                let is_over = failure.code().is_none_or(ends_connection);
                (Err(failure), is_over)
            }
            Err(_) => {
                let why = "no answer within the time limit".to_owned();
                (Err(lost(effect, why).into()), true)
            }
        };
        if !is_over {
            self.open = taken.open.take();
        }
        result
    }

    /// Asks an additional question, such as the reason of a failure. Returns `None` if the
    /// connection is not open, if there is no answer within `limit`, and where the other calls are
    /// refused. The connection stays as it is in each case.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_postgres::Link;
    /// # fn example(link: &Link) {
    /// let asked = link.ask(Duration::from_secs(5), async |client| {
    ///     client.simple_query("select to_regclass('shop.lease')").await.is_ok()
    /// });
    /// assert_ne!(asked, Some(false));
    /// # }
    /// ```
    pub fn ask<T>(&self, limit: Duration, question: impl AsyncFnOnce(&Client) -> T) -> Option<T> {
        let open = self.open.as_ref()?;
        let runtime = usable(&self.connector, self.runtime.as_ref()).ok()?;
        let limited = async { timeout(limit, question(&open.client)).await };
        runtime.block_on(limited).ok()
    }

    /// Returns the settings of its sessions.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Returns whether the connection was open after its last use. It may have ended since.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use tourbillon_postgres::{Connector, Link, PostgresError, Session};
    /// # fn example(connector: Connector, session: Session) -> Result<(), PostgresError> {
    /// assert!(!Link::new(connector, session)?.is_open());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

/// A connection in use. If it is not taken out of this, it is given up, and ends before the drop
/// returns: later nobody drives it, and its transaction would keep its locks.
struct Taken<'a> {
    runtime: &'a Runtime,
    open: Option<Open>,
}

impl<'a> Taken<'a> {
    fn new(runtime: &'a Runtime, open: Option<Open>) -> Self {
        Taken { runtime, open }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            drop(open);
            let _ = catch_panic(|| turns(self.runtime));
        }
    }
}

/// Gives the task of the connection some turns, in which it notices an end.
fn turns(runtime: &Runtime) {
    runtime.block_on(async {
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    });
}

/// Returns the runtime of a link, if the calling thread may block on it.
fn usable<'a>(
    connector: &Connector,
    runtime: Option<&'a Runtime>,
) -> Result<&'a Runtime, PostgresError> {
    if connector.is_elsewhere() {
        return Err(PostgresError::Forked);
    }
    // Only the drop takes it.
    let ended = || PostgresError::Unavailable("the connection has ended".to_owned());
    let runtime = runtime.ok_or_else(ended)?;
    // A thread for blocking calls belongs to a runtime as well, and may block. Only a trial tells
    // it from a thread that drives futures.
    if Handle::try_current().is_ok() && catch_panic(|| runtime.block_on(async {})).is_err() {
        return Err(PostgresError::Refused(
            "a connection that blocks was used within a future: use it on a thread for blocking \
             calls, such as one of `spawn_blocking`"
                .to_owned(),
        ));
    }
    Ok(runtime)
}

impl Drop for Link {
    fn drop(&mut self) {
        let (open, runtime) = (self.open.take(), self.runtime.take());
        if self.connector.is_elsewhere() {
            // The drop of the runtime would take its sockets out of the original's list of events.
            std::mem::forget((open, runtime));
            return;
        }
        drop(open);
        if let Some(runtime) = runtime {
            // A search for the address of a host may still go on. Its end can't be waited for on a
            // thread of another runtime.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("connector", &self.connector)
            .field("open", &self.open.is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("statements", &self.statements.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::caller::TEST;

    const LIMIT: Duration = Duration::from_secs(60);

    fn link(port: u16) -> Link {
        let url = format!("postgres://x@127.0.0.1:{port}/x?connect_timeout=60");
        let connector = Connector::builder(&url, TEST).expect("a URL").build();
        let connector = connector.expect("a host");
        Link::new(connector, Session::usual(LIMIT, LIMIT)).expect("a runtime")
    }

    #[test]
    fn a_connection_that_is_not_open_is_told_and_nothing_is_asked() {
        let mut link = link(1);
        let failed = link.batch(LIMIT, "select 1").expect_err("it is not open");
        let ended = PostgresError::Unavailable("the connection has ended".to_owned());
        assert_eq!(failed.error(), &ended);
        assert!(link.ask(LIMIT, async |_| ()).is_none());
        assert!(!link.is_open());
    }

    #[test]
    fn within_a_future_calls_are_refused_and_the_drop_does_no_harm() {
        let mut link = link(1);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let ready: Result<(), PostgresError> = link.ready(LIMIT, async |_| Ok(()));
            let called = link.batch(LIMIT, "select 1").map_err(Failure::into_error);
            for refused in [ready, called] {
                let refused = refused.expect_err("it would block the runtime");
                assert!(!refused.may_pass(), "{refused}");
                assert!(refused.to_string().contains("spawn_blocking"), "{refused}");
            }
            assert!(link.ask(LIMIT, async |_| ()).is_none());
            // Its own runtime can be used afterwards, on a thread that may block.
            let call = move || {
                let called = link.batch(LIMIT, "select 1").map_err(Failure::into_error);
                (link, called)
            };
            let called = tokio::task::spawn_blocking(call).await;
            let (link, called) = called.expect("it does not panic");
            assert!(called.is_err_and(|ended| ended.may_pass()));
            drop(link);
        });
    }

    #[test]
    fn a_server_that_is_not_there_may_come_and_is_not_checked() {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut link = link(port);
        let ready: Result<(), Failure> = link.ready(LIMIT, async |_| panic!("there is no client"));
        let failed = ready.expect_err("nobody listens");
        assert!(failed.error().may_pass(), "{failed:?}");
        assert!(failed.answer().is_none());
    }
}
