//! The URL of a store.

use std::fmt;

use crate::build_error::EtcdBuildError;

/// The port on which etcd serves its clients.
const PORT: &str = "2379";

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) is_tls: bool,
    pub(crate) user: Option<(String, String)>,
    /// Hosts with their ports.
    pub(crate) servers: Vec<String>,
}

/// Leaves the password out.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("is_tls", &self.is_tls)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

impl Address {
    /// Reads `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]..[/]`.
    pub(crate) fn read(url: &str) -> Result<Self, EtcdBuildError> {
        let wrong = |why: &str| Err(EtcdBuildError::Url(why.to_owned()));
        let (is_tls, rest) = match (url.strip_prefix("etcd://"), url.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return wrong("it has to begin with etcd:// or etcds://"),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, hosts) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((user, hosts)) => {
                let Some((name, password)) = user.split_once(':') else {
                    return wrong(
                        "before the @ it needs the name of a user, a colon and a password",
                    );
                };
                match (decoded(name), decoded(password)) {
                    (Some(name), Some(password)) if !name.is_empty() => {
                        (Some((name, password)), hosts)
                    }
                    _ => return wrong("the name of the user, or the password, can't be decoded"),
                }
            }
        };
        if hosts.contains(['/', '?', '#']) {
            return wrong(
                "behind the hosts there may be nothing: write special characters of a password as %XX, and see \
                 EtcdStoreBuilder::prefix for the place of the keys",
            );
        }
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            // The colons of an address of IPv6 are in brackets.
            let end = host.rfind(']').map_or(0, |end| end + 1);
            let server = match host[end..].split_once(':') {
                None => format!("{host}:{PORT}"),
                Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
                    host.to_owned()
                }
                Some(_) => return wrong("the port of a host is no number from 1 to 65535"),
            };
            if server.starts_with(':') || host.contains(char::is_whitespace) {
                return wrong("a host has no name");
            }
            servers.push(server);
        }
        Ok(Address {
            is_tls,
            user,
            servers,
        })
    }
}

/// A text whose special characters are written as `%XX`.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_with_their_defaults() {
        let read = |url: &str| Address::read(url).unwrap();
        let servers = |url: &str| read(url).servers;
        assert_eq!(servers("etcd://localhost"), ["localhost:2379"]);
        assert_eq!(
            servers("etcd://a:1,b,[::1],[::1]:7/"),
            ["a:1", "b:2379", "[::1]:2379", "[::1]:7"]
        );
        assert!(read("etcds://a").is_tls && !read("etcd://a").is_tls);
        let user = read("etcd://app:p%40s%2Fs:w%c3%bC@a").user.unwrap();
        assert_eq!((&*user.0, &*user.1), ("app", "p@s/s:wü"));
        assert_eq!(read("etcd://app:@a").user.unwrap().1, "");
    }

    #[test]
    fn what_is_wrong_is_refused_without_the_password() {
        for url in [
            "",
            "a:2379",
            "http://a",
            "etcd://",
            "etcd://a,",
            "etcd://:2379",
            "etcd://a b",
            "etcd://a:0",
            "etcd://a:65536",
            "etcd://a:x",
            "etcd://a/hidden",
            "etcd://a?hidden=1",
            "etcd://app@a",
            "etcd://:hidden@a",
            "etcd://app:hidden%4@a",
            "etcd://app:hidden%ff@a",
            "etcd://app:hidden/@a/",
        ] {
            // The last one has a slash in its password, which is read as one.
            let Err(error) = Address::read(url) else {
                assert_eq!(url, "etcd://app:hidden/@a/");
                continue;
            };
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("hidden"), "{shown}");
        }
        let address = Address::read("etcd://app:hidden@a").unwrap();
        assert!(!format!("{address:?}").contains("hidden"));
    }
}
