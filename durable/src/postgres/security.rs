//! The encryption that the `sslmode` of a URL asks for.

use std::future::poll_fn;
use std::ops::Range;
use std::str::FromStr;

use tokio::task::JoinHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Socket};
#[cfg(feature = "postgres-tls")]
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::StoreError;

/// The encryption that a URL asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encryption {
    /// None: `disable`, `prefer`, or no mode. `prefer` would not protect anything: an attacker who can read
    /// the connection can also answer that there is no TLS.
    None,
    /// TLS with a certificate of a trusted authority: `verify-ca`.
    TrustedAuthority,
    /// And for the name of the host: `verify-full` and `require`.
    TrustedHost,
}

/// Reads a URL, or a string of `key=value` pairs. The driver does not know all modes of `libpq`.
pub(super) fn read(url: &str) -> Result<(Config, Encryption), StoreError> {
    let modes = modes(url);
    let mut known = url.to_owned();
    for place in modes.iter().rev() {
        if matches!(&url[place.clone()], "verify-ca" | "verify-full") {
            known.replace_range(place.clone(), "require");
        }
    }
    let mut config = Config::from_str(&known).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        StoreError::Refused(match source {
            Some(source) => format!("the URL of the database can't be read: {error}: {source}"),
            None => format!("the URL of the database can't be read: {error}"),
        })
    })?;
    if config.get_ssl_mode() != SslMode::Require {
        config.ssl_mode(SslMode::Disable);
        return Ok((config, Encryption::None));
    }
    // As in the driver, the last one counts.
    let encryption = match modes.last().map(|place| &url[place.clone()]) {
        Some("verify-ca") => Encryption::TrustedAuthority,
        _ => Encryption::TrustedHost,
    };
    Ok((config, encryption))
}

/// Refuses what this build does not have.
pub(super) fn check(encryption: Encryption, has_tls: bool) -> Result<(), StoreError> {
    if encryption == Encryption::None || has_tls {
        return Ok(());
    }
    Err(StoreError::Refused(
        "the URL asks for TLS, for which tourbillon-durable needs its feature `postgres-tls`"
            .to_owned(),
    ))
}

/// Where the values of `sslmode` are in a URL, or in a string of pairs. One that can't be read is the
/// driver's to complain about.
fn modes(url: &str) -> Vec<Range<usize>> {
    let prefix = ["postgres://", "postgresql://"]
        .into_iter()
        .find(|prefix| url.starts_with(prefix));
    match prefix {
        Some(prefix) => modes_of_url(url, prefix.len()),
        None => modes_of_pairs(url),
    }
}

fn modes_of_url(url: &str, mut at: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    if let Some(end) = url[at..].find('@') {
        at += end;
    }
    let Some(query) = url[at..].find('?') else {
        return found;
    };
    at += query + 1;
    for pair in url[at..].split('&') {
        if let Some(value) = pair.strip_prefix("sslmode=") {
            found.push(at + pair.len() - value.len()..at + pair.len());
        }
        at += pair.len() + 1;
    }
    found
}

fn modes_of_pairs(pairs: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut rest = pairs;
    while let Some((key, after)) = rest.split_once('=') {
        let value = after.trim_start();
        let is_quoted = value.starts_with('\'');
        let value = &value[usize::from(is_quoted)..];
        let mut is_escaped = false;
        let end = value.find(|c: char| {
            let is_end = match is_quoted {
                true => c == '\'',
                false => c.is_whitespace(),
            };
            let ends = is_end && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let end = end.unwrap_or(value.len());
        if key.trim() == "sslmode" {
            let start = pairs.len() - value.len();
            found.push(start..start + end);
        }
        rest = value[end..].trim_start_matches('\'');
    }
    found
}

/// How connections are secured.
#[derive(Clone)]
pub(super) struct Security {
    #[cfg(feature = "postgres-tls")]
    tls: Option<MakeRustlsConnect>,
}

impl Security {
    /// Connections are not encrypted.
    pub(super) fn none() -> Self {
        Security {
            #[cfg(feature = "postgres-tls")]
            tls: None,
        }
    }

    /// All connections are encrypted, except those to a path on the same machine.
    #[cfg(feature = "postgres-tls")]
    pub(super) fn tls(tls: MakeRustlsConnect) -> Self {
        Security { tls: Some(tls) }
    }

    /// Connects. The runtime that this is awaited on drives the connection until it ends, and calls
    /// `notified` with the channel and the payload of each notification.
    pub(super) async fn connect(
        &self,
        config: &Config,
        notified: impl Fn(&str, &str) + Send + 'static,
    ) -> Result<(Client, Driven), Error> {
        #[cfg(feature = "postgres-tls")]
        if let Some(tls) = &self.tls {
            return Ok(drive(config.connect(tls.clone()).await?, notified));
        }
        Ok(drive(config.connect(NoTls).await?, notified))
    }
}

/// The task that drives a connection. It ends with the client, with the connection, which may be an error,
/// or with the runtime.
pub(super) type Driven = JoinHandle<Result<(), Error>>;

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
    (client, task)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Encryption {
        read(url).expect(url).1
    }

    #[test]
    fn the_modes_of_libpq_are_known_in_urls_and_pairs() {
        use Encryption::{None, TrustedAuthority, TrustedHost};
        for (mode, expected) in [
            ("disable", None),
            ("prefer", None),
            ("require", TrustedHost),
            ("verify-ca", TrustedAuthority),
            ("verify-full", TrustedHost),
        ] {
            for url in [
                format!("postgres://u:p@h/d?sslmode={mode}"),
                format!("postgresql://h?connect_timeout=3&sslmode={mode}&user=u"),
                format!("host=h sslmode={mode} user=u"),
                format!("host=h sslmode = '{mode}'"),
                format!("password='sslmode=disable' host=h sslmode={mode}"),
                format!("password=it\\ s sslmode={mode} host=h"),
                format!("password='it\\'s' sslmode={mode} host=h"),
                format!("host=h sslmode=disable sslmode=verify-ca sslmode={mode}"),
            ] {
                assert_eq!(of(&url), expected, "{url}");
            }
        }
        assert_eq!(of("host=h"), None);
        assert_eq!(of("postgres://h/d"), None);
        assert_eq!(of("postgres://sslmode=verify-full@h/d"), None);
    }

    #[test]
    fn a_build_without_tls_refuses_it_and_names_the_feature() {
        for encryption in [Encryption::TrustedHost, Encryption::TrustedAuthority] {
            assert_eq!(check(encryption, true), Ok(()));
            let refused = check(encryption, false).expect_err("there is no TLS");
            assert!(!refused.may_pass(), "{refused}");
            assert!(refused.to_string().contains("`postgres-tls`"), "{refused}");
        }
        assert_eq!(check(Encryption::None, false), Ok(()));
    }

    #[test]
    fn all_else_is_as_it_was() {
        let (config, _) =
            read("postgres://u:sslmode=verify-ca@h/d?sslmode=verify-ca").expect("a URL");
        assert_eq!(config.get_password(), Some(&b"sslmode=verify-ca"[..]));
        let (config, _) =
            read("password='sslmode=verify-ca' host=h sslmode=verify-ca").expect("pairs");
        assert_eq!(config.get_password(), Some(&b"sslmode=verify-ca"[..]));
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for url in ["host=h sslmode=verify", "postgres://h?sslmode=", "nonsense"] {
            let refused = read(url).expect_err(url);
            assert!(refused.to_string().contains("can't be read"), "{refused}");
        }
    }
}
