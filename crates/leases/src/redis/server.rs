//! The server: where it is, how to connect, and how to log in.
//!
//! The crate `redis` speaks the protocol over a stream that is made here. Its own streams would use the
//! default provider of rustls, which panics if a program has two of them, and would read the
//! certificates of the system for each connection.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{AsyncConnectionConfig, Pipeline, RedisConnectionInfo, RedisError, Value};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::address::{Address, Seeds};
use super::errors::{CallFault, answered};
use super::received::{Bytes, Received, Watched};
use super::scripts::Standing;
#[cfg(feature = "redis-tls")]
use super::tls::Tls;
use crate::remote::{Limit, Task};
use crate::store::StoreError;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex};

/// Lookups of one name that hang take no more threads than these.
const LOOKUPS: usize = 4;

/// The pause before a Unix socket whose queue is full is tried again. Such a socket wakes nobody.
#[cfg(unix)]
const FULL: Duration = Duration::from_millis(5);

/// How often Sentinels are asked whether the master is another one.
const AGAIN: Duration = Duration::from_secs(3);

/// How long the question may take whether the master is another one.
const ASKING: Duration = Duration::from_secs(5);

/// The address of the server, and how to log in.
pub(super) struct Server {
    address: Address,
    #[cfg(feature = "redis-tls")]
    tls: Option<Tls>,
    /// The idle time after which the system probes the connection.
    keepalive: Option<Duration>,
    login: RedisConnectionInfo,
    /// For each name. One that hangs must not hold up the others.
    lookups: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// What grants say of it. Sentinels tell it at each connect.
    standing: Standing,
    /// The newest epoch that Sentinels have named.
    newest: AtomicU64,
    /// When Sentinels were last asked whether the master is another one.
    asked: Mutex<Instant>,
}

/// A connection for calls. Its clones share it, and it is closed with the last of them.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) connection: MultiplexedConnection,
    pub(super) received: Arc<Received>,
    /// That of its server.
    pub(super) standing: Standing,
    _driver: Arc<Task>,
}

impl Open {
    /// Classifies an error of this connection.
    pub(super) fn fault(&self, error: &RedisError, server: &Server) -> CallFault {
        #[cfg(feature = "redis-tls")]
        if let Some(why) = self.received.tls_refusal() {
            return CallFault::Other(StoreError::Refused(format!("{server}: {why}")));
        }
        match self.received.refusal() {
            Some(error) => CallFault::Other(answered(&error)),
            None => CallFault::of(error, server),
        }
    }
}

impl Server {
    pub(super) fn new(
        address: Address,
        login: RedisConnectionInfo,
        keepalive: Option<Duration>,
    ) -> Self {
        Server {
            address,
            #[cfg(feature = "redis-tls")]
            tls: None,
            keepalive,
            login,
            lookups: Mutex::default(),
            standing: Standing::default(),
            newest: AtomicU64::new(0),
            asked: Mutex::new(Instant::now()),
        }
    }

    /// Returns a node of this cluster.
    pub(super) fn node(&self, host: &str, port: u16, standing: Standing) -> Self {
        let address = Address::Tcp(host.to_owned(), port);
        Server {
            standing,
            #[cfg(feature = "redis-tls")]
            tls: self.tls.clone(),
            ..Server::new(address, self.login.clone(), self.keepalive)
        }
    }

    /// Returns the nodes that can be asked for all of them, if this is a cluster.
    pub(super) fn seeds(&self) -> Option<&Seeds> {
        match &self.address {
            Address::Cluster(seeds) => Some(seeds),
            _ => None,
        }
    }

    #[cfg(feature = "redis-tls")]
    pub(super) fn with_tls(self, tls: Tls) -> Self {
        Server {
            tls: Some(tls),
            ..self
        }
    }

    /// Connects for calls, and logs in. Call this within a runtime.
    pub(super) async fn open(&self, limit: Limit) -> Result<Open, CallFault> {
        let (bytes, standing) = self.connect(limit).await?;
        let mut open = self.speak(bytes, standing).await?;
        self.log_in(&mut open, &self.login).await?;
        Ok(open)
    }

    /// Connects to one node of a cluster, and logs in.
    pub(super) async fn open_at(
        &self,
        host: &str,
        port: u16,
        limit: Limit,
    ) -> Result<Open, CallFault> {
        let bytes = self.connect_tcp(host, port, limit).await?;
        let mut open = self.speak(bytes, Standing::default()).await?;
        self.log_in(&mut open, &self.login).await?;
        Ok(open)
    }

    /// Returns whether the Sentinels have named another master since this epoch. Asks them from time to
    /// time (SENTINEL-3). Call this within a runtime.
    pub(super) fn has_replaced(self: &Arc<Self>, epoch: u64) -> bool {
        if !matches!(self.address, Address::Sentinels(_)) {
            return false;
        }
        let mut asked = self.asked.lock();
        if asked.elapsed() >= AGAIN {
            *asked = Instant::now();
            let server = Arc::clone(self);
            tokio::spawn(async move {
                // Without an answer the connections are used on: the master may be well.
                if let Address::Sentinels(sentinels) = &server.address
                    && let Ok(master) = sentinels.ask(&server, Limit::new(ASKING)).await
                {
                    // Relaxed: as below.
                    server.newest.fetch_max(master.epoch, Ordering::Relaxed);
                }
            });
        }
        drop(asked);
        // Relaxed: only the number is needed, and a later call sees it.
        self.newest.load(Ordering::Relaxed) > epoch
    }

    /// Begins to speak the protocol.
    pub(super) async fn speak(&self, bytes: Bytes, standing: Standing) -> Result<Open, CallFault> {
        let received = Received::new();
        let stream = Watched::new(bytes, Arc::clone(&received));
        // The limits are those of the calls.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        // It logs in later: the crate would hide what the server says.
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let made = MultiplexedConnection::new_with_config(&nobody, stream, config).await;
        let (connection, driver) = made.map_err(|error| CallFault::of(&error, self))?;
        Ok(Open {
            connection,
            received,
            standing,
            _driver: Arc::new(Task::new(tokio::spawn(driver))),
        })
    }

    /// Logs in, and chooses the database.
    pub(super) async fn log_in(
        &self,
        open: &mut Open,
        login: &RedisConnectionInfo,
    ) -> Result<(), CallFault> {
        let mut commands = Pipeline::new();
        if let Some(password) = login.password() {
            commands.cmd("AUTH");
            if let Some(user) = login.username() {
                commands.arg(user);
            }
            commands.arg(password);
        }
        if login.db() != 0 {
            commands.cmd("SELECT").arg(login.db());
        }
        if commands.is_empty() {
            return Ok(());
        }
        let mut connection = open.connection.clone();
        let sent = connection.send_packed_commands(&commands, 0, commands.len());
        for answer in sent.await.map_err(|error| open.fault(&error, self))? {
            if let Value::ServerError(error) = answer {
                return Err(CallFault::Other(answered(&error)));
            }
        }
        Ok(())
    }

    /// Connects to listen, and logs in. `at` is a node, if this is a cluster.
    pub(super) async fn open_listener(
        &self,
        at: Option<&(String, u16)>,
        limit: Limit,
    ) -> Result<PubSub, CallFault> {
        let stream = match at {
            Some((host, port)) => self.connect_tcp(host, *port, limit).await?,
            None => self.connect(limit).await?.0,
        };
        let made = PubSub::new(&self.login, stream).await;
        made.map_err(|error| CallFault::of(&error, self))
    }

    /// Connects, and returns what grants say of the server.
    async fn connect(&self, limit: Limit) -> Result<(Bytes, Standing), CallFault> {
        let own = self.standing.clone();
        match &self.address {
            Address::Tcp(host, port) => Ok((self.connect_tcp(host, *port, limit).await?, own)),
            // Its nodes have servers of their own.
            Address::Cluster(_) => Err(CallFault::late(self)),
            Address::Sentinels(sentinels) => {
                let master = sentinels.ask(self, limit).await?;
                let bytes = self.connect_tcp(&master.host, master.port, limit).await?;
                // Also a smaller one: Sentinels that were set up anew count from 0 again. Relaxed: only
                // the number is needed.
                self.newest.store(master.epoch, Ordering::Relaxed);
                Ok((bytes, Standing::of_epoch(master.epoch)))
            }
            #[cfg(unix)]
            Address::Unix(path) => loop {
                match tokio::net::UnixStream::connect(path).await {
                    Ok(stream) => return Ok((Box::pin(stream), own)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(FULL).await;
                    }
                    Err(error) => return Err(CallFault::of_io(&error, self)),
                }
            },
            #[cfg(not(unix))]
            Address::Unix(_) => Err(CallFault::of_io(&io::ErrorKind::Unsupported.into(), self)),
        }
    }

    /// Connects to the first address of a host that works.
    pub(super) async fn connect_tcp(
        &self,
        host: &str,
        port: u16,
        limit: Limit,
    ) -> Result<Bytes, CallFault> {
        let place = match &self.address {
            Address::Sentinels(_) | Address::Cluster(_) => format!("{self}, at {host}:{port}"),
            _ => self.to_string(),
        };
        let unknown = |why: &str| {
            CallFault::Other(StoreError::Unavailable(format!(
                "{place}: the name of the host is not to be found{why}"
            )))
        };
        let found = self.addresses(host, port).await;
        let found = found.map_err(|error| unknown(&format!(": {error}")))?;
        let mut fault = unknown("");
        for (tried, address) in (0..).zip(&found) {
            // Each address gets an equal share of the time that is left. So an address that does
            // not answer leaves time for the others.
            let share = limit.left() / (found.len() as u32 - tried);
            fault = match timeout(share, self.connect_to(host, *address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => CallFault::of_io(&error, &place),
                Err(_) => CallFault::late(&place),
            };
        }
        Err(fault)
    }

    /// Looks up the name of a host. The system can't be told to stop, so a lookup that nobody wants
    /// any more keeps its thread.
    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let turns = {
            let mut lookups = self.lookups.lock();
            // Nodes come and go: only lookups that go on are counted.
            lookups.retain(|_, turns| Arc::strong_count(turns) > 1);
            let turns = lookups.entry(host.to_owned());
            Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(LOOKUPS))))
        };
        let turn = turns.acquire_owned().await;
        let host = host.to_owned();
        let look_up = spawn_blocking(move || {
            let _turn = turn;
            Ok((&*host, port).to_socket_addrs()?.collect())
        });
        look_up.await?
    }

    /// Connects to an address of a host, whose name the certificate must have.
    #[cfg_attr(
        not(feature = "redis-tls"),
        allow(unused_variables, reason = "only TLS asks for the name")
    )]
    async fn connect_to(&self, host: &str, address: SocketAddr) -> io::Result<Bytes> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        if let Some(after) = self.keepalive {
            // The number of probes and the time between them are left to the system.
            let keepalive = TcpKeepalive::new().with_time(after);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        #[cfg(feature = "redis-tls")]
        if let Some(tls) = &self.tls {
            return Ok(Box::pin(tls.over(stream, host).await?));
        }
        Ok(Box::pin(stream))
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lookups_that_are_over_leave_nothing() {
        let address = Address::Tcp("h".to_owned(), 1);
        let server = Server::new(address, RedisConnectionInfo::default(), None);
        for host in ["localhost", "LOCALHOST", "Localhost"] {
            let _ = server.addresses(host, 1).await;
        }
        assert_eq!(server.lookups.lock().len(), 1);
    }
}
