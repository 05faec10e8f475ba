//! The encryption that the `sslmode` of a URL asks for.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::{JoinError, JoinHandle};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Socket};
#[cfg(feature = "tls")]
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::caller::Caller;
use crate::error::PostgresError;

/// The encryption that a URL asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Encryption {
    /// None: `disable`, `allow`, `prefer`, or no mode. `prefer` would not protect anything: an
    /// attacker who can read the connection can also answer that there is no TLS.
    None,
    /// TLS with a certificate of a trusted authority: `verify-ca`.
    TrustedAuthority,
    /// TLS with such a certificate for the name of the host: `verify-full` and `require`.
    TrustedHost,
}

/// Refuses an encryption that this build does not have.
pub(crate) fn check(
    encryption: Encryption,
    has_tls: bool,
    caller: Caller,
) -> Result<(), PostgresError> {
    if encryption == Encryption::None || has_tls {
        return Ok(());
    }
    Err(PostgresError::Refused(format!(
        "the URL asks for TLS, for which {} needs its feature `postgres-tls`",
        caller.package
    )))
}

/// How connections are secured.
#[derive(Clone)]
pub(crate) struct Security {
    #[cfg(feature = "tls")]
    tls: Option<MakeRustlsConnect>,
}

impl Security {
    /// Connections are not encrypted.
    pub(crate) fn none() -> Self {
        Security {
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// All connections are encrypted, except those to a path on the same machine.
    #[cfg(feature = "tls")]
    pub(crate) fn tls(tls: MakeRustlsConnect) -> Self {
        Security { tls: Some(tls) }
    }

    /// Connects. The current runtime drives the connection until it ends, and calls `notified` with
    /// the channel and the payload of each notification.
    pub(crate) async fn connect(
        &self,
        config: &Config,
        notified: impl Fn(&str, &str) + Send + 'static,
    ) -> Result<(Client, Driven), Error> {
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return Ok(drive(config.connect(tls.clone()).await?, notified));
        }
        Ok(drive(config.connect(NoTls).await?, notified))
    }
}

/// The task that drives a connection, as a future. It ends with the client, with the connection or
/// with the runtime. Its result is the error that has ended the connection, if there is one.
///
/// The drop ends the connection, also if the server does not answer.
#[derive(Debug)]
#[must_use = "the connection ends when this is dropped"]
pub struct Driven(JoinHandle<Result<(), Error>>);

impl Future for Driven {
    type Output = Result<Result<(), Error>, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn drive<S>(
    (client, mut connection): (Client, Connection<Socket, S>),
    notified: impl Fn(&str, &str) + Send + 'static,
) -> (Client, Driven)
where
    S: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    let task = tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message? {
                notified(notification.channel(), notification.payload());
            }
        }
        Ok(())
    });
    (client, Driven(task))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::TEST;

    #[test]
    fn a_build_without_tls_refuses_it_and_names_the_feature() {
        for encryption in [Encryption::TrustedHost, Encryption::TrustedAuthority] {
            assert_eq!(check(encryption, true, TEST), Ok(()));
            let refused = check(encryption, false, TEST).expect_err("there is no TLS");
            assert!(!refused.may_pass(), "{refused}");
            let what = "a-package needs its feature `postgres-tls`";
            assert!(refused.to_string().contains(what), "{refused}");
        }
        assert_eq!(check(Encryption::None, false, TEST), Ok(()));
    }
}
