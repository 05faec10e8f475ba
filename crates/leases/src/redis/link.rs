//! One connection to the server, with a limit for each exchange.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use redis::{Cmd, ConnectionAddr, ConnectionInfo, Parser, Value};

use super::errors::{CallFault, answered};
#[cfg(feature = "redis-tls")]
use super::tls::Tls;
pub(super) use super::wire::Limit;
use super::wire::{Timed, Wire};
use crate::store::StoreError;

/// The address of the server, and how to log in.
pub(super) struct Server {
    address: Address,
    #[cfg(feature = "redis-tls")]
    tls: Option<Tls>,
    /// The idle time after which the system probes the connection.
    keepalive: Option<Duration>,
    /// The first commands on each connection, and the number of their answers.
    greeting: (Vec<u8>, usize),
}

enum Address {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl Server {
    /// Creates a server. Returns `None` if the kind of address is not supported.
    pub(super) fn new(info: &ConnectionInfo, keepalive: Option<Duration>) -> Option<Self> {
        let settings = info.redis_settings();
        let mut greeting = (Vec::new(), 0);
        let mut add = |cmd: &Cmd| {
            cmd.write_packed_command(&mut greeting.0);
            greeting.1 += 1;
        };
        if let Some(password) = settings.password() {
            let mut auth = redis::cmd("AUTH");
            if let Some(user) = settings.username() {
                auth.arg(user);
            }
            add(auth.arg(password));
        }
        if settings.db() != 0 {
            add(redis::cmd("SELECT").arg(settings.db()));
        }
        Some(Server {
            address: match info.addr() {
                ConnectionAddr::Tcp(host, port) => Address::Tcp(host.clone(), *port),
                ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
                _ => return None,
            },
            #[cfg(feature = "redis-tls")]
            tls: None,
            keepalive,
            greeting,
        })
    }

    /// Returns the host, or `None` for a Unix socket.
    #[cfg(feature = "redis-tls")]
    pub(super) fn host(&self) -> Option<&str> {
        match &self.address {
            Address::Tcp(host, _) => Some(host),
            Address::Unix(_) => None,
        }
    }

    #[cfg(feature = "redis-tls")]
    pub(super) fn with_tls(self, tls: Tls) -> Self {
        Server {
            tls: Some(tls),
            ..self
        }
    }

    /// Looks up the addresses of a host, in the order in which they are tried.
    fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, CallFault> {
        let unknown = |why: &str| {
            CallFault::Other(StoreError::Unavailable(format!(
                "{self}: the name of the host is not to be found{why}"
            )))
        };
        let found = (host, port).to_socket_addrs();
        let found: Vec<_> = found
            .map_err(|error| unknown(&format!(": {error}")))?
            .collect();
        if found.is_empty() {
            return Err(unknown(""));
        }
        Ok(found)
    }

    /// Connects to the first address that works.
    fn connect(&self, limit: Limit) -> Result<Wire, CallFault> {
        let (host, port) = match &self.address {
            Address::Tcp(host, port) => (host, *port),
            #[cfg(unix)]
            Address::Unix(path) => {
                let connected = Timed::unix(path, limit);
                return connected
                    .map(Wire::Plain)
                    .map_err(|error| CallFault::of(&error, self));
            }
            #[cfg(not(unix))]
            Address::Unix(_) => {
                let error = io::ErrorKind::Unsupported.into();
                return Err(CallFault::of(&error, self));
            }
        };
        let mut fault = CallFault::late(self);
        let addresses = self.addresses(host, port)?;
        for (tried, address) in (0..).zip(&addresses) {
            let Some(left) = limit.left() else {
                return Err(fault);
            };
            // Each address gets an equal share of the time that is left. So an address that does
            // not answer leaves time for the others.
            let limit = Limit::new(left / (addresses.len() as u32 - tried));
            let connected = Timed::tcp(address, self.keepalive, limit);
            let connected = connected.and_then(|timed| self.secured(timed));
            match connected {
                Ok(wire) => return Ok(wire),
                Err(error) => fault = CallFault::of(&error, self),
            }
        }
        Err(fault)
    }

    #[cfg_attr(
        not(feature = "redis-tls"),
        allow(
            clippy::unused_self,
            clippy::unnecessary_wraps,
            reason = "with TLS they are used"
        )
    )]
    fn secured(&self, timed: Timed) -> io::Result<Wire> {
        #[cfg(feature = "redis-tls")]
        if let Some(tls) = &self.tls {
            return tls.over(timed);
        }
        Ok(Wire::Plain(timed))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

/// A connection whose answers are in step with its requests.
///
/// After an error it is never used again: an answer that is still under way would be taken for the
/// answer to the next request.
pub(super) struct Link {
    wire: Wire,
    /// Parses answers, and keeps the part of the next answer that it has read.
    parser: Parser,
}

impl Link {
    /// Connects and logs in. The lookup of a host name has the limits of the system, not this one.
    pub(super) fn open(server: &Server, limit: Limit) -> Result<Link, CallFault> {
        let mut link = Link {
            wire: server.connect(limit)?,
            parser: Parser::new(),
        };
        link.greet(server, limit)?;
        Ok(link)
    }

    /// Sends the first commands.
    fn greet(&mut self, server: &Server, limit: Limit) -> Result<(), CallFault> {
        let (greeting, answers) = &server.greeting;
        if *answers == 0 {
            return Ok(());
        }
        for answer in self.exchange(server, greeting, *answers, limit)? {
            if let Value::ServerError(error) = answer {
                return Err(CallFault::Other(answered(&error)));
            }
        }
        Ok(())
    }

    /// Sends commands and receives their answers, in one round trip.
    pub(super) fn exchange(
        &mut self,
        server: &Server,
        commands: &[u8],
        answers: usize,
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
        self.send(server, commands, limit)?;
        (0..answers).map(|_| self.receive(server, limit)).collect()
    }

    /// Sends commands.
    pub(super) fn send(
        &mut self,
        server: &Server,
        commands: &[u8],
        limit: Limit,
    ) -> Result<(), CallFault> {
        self.wire.limit(limit);
        let sent = self.wire.write_all(commands);
        sent.and_then(|()| self.wire.flush())
            .map_err(|error| CallFault::of(&error, server))
    }

    /// Receives the next answer or message. After [`CallFault::Late`] the wait can go on.
    pub(super) fn receive(&mut self, server: &Server, limit: Limit) -> Result<Value, CallFault> {
        self.wire.limit(limit);
        let mut noted = Noted {
            wire: &mut self.wire,
            error: None,
        };
        let answer = self.parser.parse_value(&mut noted);
        answer.map_err(|error| match noted.error {
            Some(error) => CallFault::of(&error, server),
            None => CallFault::Other(StoreError::Unavailable(format!("{server}: {error}"))),
        })
    }
}

/// A reader that keeps the error of a read, since the parser wraps the error and hides its kind.
struct Noted<'a> {
    wire: &'a mut Wire,
    error: Option<io::Error>,
}

impl Read for Noted<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = match self.wire.read(to) {
            Ok(0) if !to.is_empty() => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server has closed the connection",
            )),
            read => read,
        };
        read.map_err(|error| {
            let kind = error.kind();
            self.error = Some(error);
            kind.into()
        })
    }
}
