//! One connection, with a limit for each exchange.

use std::fmt;
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use redis::io::tcp::TcpSettings;
use redis::{Client, Cmd, Connection, ConnectionAddr, ConnectionInfo, RedisConnectionInfo, Value};

use super::errors::{Fault, answered};
use crate::leases::StoreError;

/// Longer limits are as good as none, and fit every clock.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3_600);

/// Until when a call may last.
#[derive(Clone, Copy)]
pub(super) struct Limit(Instant);

impl Limit {
    pub(super) fn new(limit: Duration) -> Self {
        Limit(Instant::now() + limit.min(LONGEST_LIMIT))
    }

    /// What is left, unless that is nothing.
    pub(super) fn left(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// Where the server is, and who we are to it.
pub(super) struct Server {
    info: ConnectionInfo,
    /// What is sent first on each connection, with the number of its answers.
    greeting: (Vec<u8>, usize),
}

impl Server {
    pub(super) fn new(info: ConnectionInfo) -> Self {
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
        // The client's own greeting waits for each of its answers as long as for all of them, and
        // goes on to the next when one is late.
        let bare = RedisConnectionInfo::default().set_skip_set_lib_name();
        let tcp = TcpSettings::default().set_nodelay(true);
        Server {
            info: info.set_redis_settings(bare).set_tcp_settings(tcp),
            greeting,
        }
    }

    /// The addresses to try, in their order. A client that is given a name would try each address
    /// of it for as long as the limit is.
    fn addresses(&self) -> Result<Vec<ConnectionAddr>, Fault> {
        let ConnectionAddr::Tcp(host, port) = self.info.addr() else {
            return Ok(vec![self.info.addr().clone()]);
        };
        let unknown = |why: &str| {
            Fault::Other(StoreError::Unavailable(format!(
                "{self}: the name of the host is not to be found{why}"
            )))
        };
        let found = (host.as_str(), *port).to_socket_addrs();
        let found: Vec<_> = found
            .map_err(|error| unknown(&format!(": {error}")))?
            .map(|address| ConnectionAddr::Tcp(address.ip().to_string(), *port))
            .collect();
        if found.is_empty() {
            return Err(unknown(""));
        }
        Ok(found)
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.addr().fmt(f)
    }
}

/// A connection whose answers are in step with what was asked. One on which something went wrong is
/// never used again: what answers to it is still under way would be taken for the next ones.
pub(super) struct Link {
    connection: Connection,
}

impl Link {
    /// Connects. Looking up the name of a host is the system's affair, and has limits of its own.
    pub(super) fn open(server: &Server, limit: Limit) -> Result<Link, Fault> {
        let mut fault = Fault::late(server);
        let addresses = server.addresses()?;
        for (tried, address) in (0..).zip(&addresses) {
            let Some(left) = limit.left() else {
                return Err(fault);
            };
            // One that swallows everything leaves time for the others.
            let left = left / (addresses.len() as u32 - tried);
            let opened = Client::open(server.info.clone().set_addr(address.clone()))
                .and_then(|client| client.get_connection_with_timeout(left));
            match opened {
                Ok(connection) => {
                    let mut link = Link { connection };
                    link.greet(server, limit)?;
                    return Ok(link);
                }
                Err(error) => fault = Fault::of(&error, server),
            }
        }
        Err(fault)
    }

    fn greet(&mut self, server: &Server, limit: Limit) -> Result<(), Fault> {
        let (greeting, answers) = &server.greeting;
        if *answers == 0 {
            return Ok(());
        }
        for answer in self.exchange(server, greeting, *answers, limit)? {
            if let Value::ServerError(error) = answer {
                return Err(Fault::Other(answered(&error)));
            }
        }
        Ok(())
    }

    /// Sends commands and takes as many answers, one round trip for all. An answer that comes in
    /// pieces may have what is left of the limit for each piece; ours fit into one.
    pub(super) fn exchange(
        &mut self,
        server: &Server,
        commands: &[u8],
        answers: usize,
        limit: Limit,
    ) -> Result<Vec<Value>, Fault> {
        let late = || Fault::late(server);
        let fault = |error| Fault::of(&error, server);
        let left = limit.left().ok_or_else(late)?;
        self.connection
            .set_write_timeout(Some(left))
            .map_err(fault)?;
        self.connection
            .send_packed_command(commands)
            .map_err(fault)?;
        let mut taken = Vec::with_capacity(answers);
        while taken.len() < answers {
            let left = limit.left().ok_or_else(late)?;
            self.connection
                .set_read_timeout(Some(left))
                .map_err(fault)?;
            match self.connection.recv_response().map_err(fault)? {
                Value::Push { .. } => {}
                answer => taken.push(answer),
            }
        }
        Ok(taken)
    }

    /// The connection itself, for one that listens from now on.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }
}
