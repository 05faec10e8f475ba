//! What all connections to one database share.

use std::fmt;

use tokio_postgres::Client;

use crate::caller::Caller;
use crate::error::PostgresError;
use crate::hosts::Hosts;
use crate::security::Driven;
use crate::session::Session;
use crate::sync::{Arc, Origin, thread};

/// What all connections to one database share: its servers, the password, and the encryption.
/// Clones share one connector.
///
/// A connector belongs to the process that made it. In a forked copy it opens no connection, and
/// connections from before the fork are not used.
///
/// # Examples
///
/// ```no_run
/// use tourbillon_postgres::{Caller, Connector};
///
/// # const CALLER: Caller = Caller { package: "p", builder: "B", threads: "t" };
/// let connector = Connector::builder("postgres://app@a,b/shop", CALLER)?.build()?;
/// assert_eq!(connector.hosts(), ["a:5432", "b:5432"]);
/// assert_eq!(connector.database(), Some("shop"));
/// assert!(!connector.is_elsewhere());
/// # Ok::<(), tourbillon_postgres::PostgresError>(())
/// ```
#[derive(Clone)]
pub struct Connector(Arc<Shared>);

struct Shared {
    origin: Origin,
    hosts: Hosts,
    caller: Caller,
}

impl Connector {
    pub(crate) fn new(hosts: Hosts, caller: Caller) -> Self {
        Connector(Arc::new(Shared {
            origin: Origin::here(),
            hosts,
            caller,
        }))
    }

    /// Returns whether this process is a forked copy of the one that made the connector.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.0.origin.is_elsewhere()
    }

    /// Returns the hosts with their ports, in the order of the URL.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        self.0.hosts.names()
    }

    /// Returns the database that the URL, the service or the environment names.
    #[must_use]
    pub fn database(&self) -> Option<&str> {
        self.0.hosts.database()
    }

    /// Opens a connection to the first server that accepts it, with the settings of `session`, and
    /// runs the statements `first` on it. Each address of each host may take the time of
    /// `connect_timeout`, which is 5 s by default.
    ///
    /// The future must be awaited on a tokio runtime with I/O and time. The runtime drives the
    /// connection until the connection or its client ends. It calls `notified` with the channel and
    /// the payload of each notification.
    ///
    /// # Errors
    ///
    /// - [`PostgresError::Unavailable`] if the error of at least one host may pass.
    /// - [`PostgresError::Refused`] if no error may pass.
    /// - [`PostgresError::Forked`] in a forked copy of the process.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use tourbillon_postgres::{Connector, PostgresError, Session};
    ///
    /// async fn greet(connector: &Connector) -> Result<(), Box<dyn std::error::Error>> {
    ///     let second = Duration::from_secs(1);
    ///     let session = Session::usual(second, second);
    ///     let (client, _driven) = connector.open(&session, "", |_, _| ()).await?;
    ///     client.batch_execute("select 'hello'").await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn open(
        &self,
        session: &Session,
        first: &str,
        notified: impl Fn(&str, &str) + Clone + Send + 'static,
    ) -> Result<(Client, Driven), PostgresError> {
        if self.is_elsewhere() {
            return Err(PostgresError::Forked);
        }
        self.0.hosts.connect(session, first, notified).await
    }

    /// Runs `work` on a new thread, and blocks until it has ended. The caller's thread may belong
    /// to a runtime, where a [`Link`](crate::Link) can't be used.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Unavailable`] if the thread can't be started, or if `work` panics.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_postgres::{Connector, Link, PostgresError, Session};
    /// fn check(connector: &Connector, session: Session) -> Result<(), PostgresError> {
    ///     let by_thread = connector.clone();
    ///     connector.apart(move || {
    ///         let mut link = Link::new(by_thread, session)?;
    ///         link.ready(Duration::from_secs(5), async |_| Ok(()))
    ///     })?
    /// }
    /// ```
    pub fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PostgresError> {
        let (answer, answered) = oneshot::channel();
        let work = move || {
            // This can't fail: the caller waits for the answer below.
            let _ = answer.send(work());
        };
        thread::spawn(self.thread_name("connect"), work).map_err(|error| {
            PostgresError::Unavailable(format!("a thread could not be started: {error}"))
        })?;
        answered.recv().map_err(|_| {
            PostgresError::Unavailable("the thread that connects has ended early".to_owned())
        })
    }

    pub(crate) fn thread_name(&self, work: &str) -> String {
        format!("{}-{work}", self.0.caller.threads)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the configuration's password.
        f.debug_struct("Connector")
            .field("hosts", &self.hosts())
            .field("database", &self.database())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::TEST;

    #[test]
    fn work_apart_returns_its_answer_and_a_panic_of_it_may_pass() {
        let connector = Connector::builder("postgres://x:secret@a,b/d", TEST).expect("a URL");
        let connector = connector.build().expect("hosts");
        let name = connector.apart(|| std::thread::current().name().map(str::to_owned));
        assert_eq!(name, Ok(Some("test-connect".to_owned())));
        let ended: Result<(), _> = connector.apart(|| panic!("too early"));
        let ended = ended.expect_err("it has panicked");
        assert!(
            ended.may_pass() && ended.to_string().contains("early"),
            "{ended}"
        );
        let shown = format!("{connector:?}");
        assert!(
            shown.contains("a:5432") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
