//! The bytes of a connection, over TCP or a Unix socket, plain or with TLS.
//!
//! **WIRE-1** Connecting, the handshake, and each read and write end with the limit of the call.
//! The system has limits for single operations only. So each operation gets the time that is left
//! for the call. An operation that a signal interrupts begins again with the time that is left
//! then.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::Path;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};

/// The longest limit. It is as good as no limit, and adding it to a time never overflows.
const LONGEST_LIMIT: Duration = Duration::from_secs(24 * 3_600);

/// The time by which a call has to end.
#[derive(Clone, Copy)]
pub(super) struct Limit(Instant);

impl Limit {
    /// Creates a limit that ends after this time.
    pub(super) fn new(limit: Duration) -> Self {
        Limit(Instant::now() + limit.min(LONGEST_LIMIT))
    }

    /// Returns the time that is left, or `None` if there is none.
    pub(super) fn left(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time that is left, or an error for an operation of the system.
    fn or_late(self) -> io::Result<Duration> {
        self.left().ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// A socket for which WIRE-1 holds.
pub(super) struct Timed {
    socket: Socket,
    limit: Limit,
}

/// The two kinds of sockets.
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Timed {
    /// Connects over TCP. After the idle time `keepalive` the system probes the other side.
    pub(super) fn tcp(
        address: &SocketAddr,
        keepalive: Option<Duration>,
        limit: Limit,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(address, limit.or_late()?)?;
        stream.set_nodelay(true)?;
        if let Some(after) = keepalive {
            // The number of probes and the time between them are left to the system.
            let keepalive = TcpKeepalive::new().with_time(after);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(Timed {
            socket: Socket::Tcp(stream),
            limit,
        })
    }

    /// Connects to a Unix socket. This waits, too, if the server does not accept connections.
    #[cfg(unix)]
    pub(super) fn unix(path: &Path, limit: Limit) -> io::Result<Self> {
        use redis::io::tcp::socket2::{Domain, SockAddr, Socket as Raw, Type};
        let raw = Raw::new(Domain::UNIX, Type::STREAM, None)?;
        let address = SockAddr::unix(path)?;
        in_time(limit, |left| {
            // For a Unix socket the write timeout is also the limit of connecting.
            raw.set_write_timeout(Some(left))?;
            raw.connect(&address)
        })?;
        let socket = Socket::Unix(UnixStream::from(std::os::fd::OwnedFd::from(raw)));
        Ok(Timed { socket, limit })
    }
}

/// Runs an operation with the time that is left, and repeats it after each interruption.
fn in_time<T>(limit: Limit, mut operation: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation(limit.or_late()?) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Linux returns this error when the timeout of a socket has passed.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            other => return other,
        }
    }
}

impl Read for Timed {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let socket = &mut self.socket;
        in_time(self.limit, |left| match socket {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(to)
            }
            #[cfg(unix)]
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(left))?;
                stream.read(to)
            }
        })
    }
}

impl Write for Timed {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let socket = &mut self.socket;
        in_time(self.limit, |left| match socket {
            Socket::Tcp(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(from)
            }
            #[cfg(unix)]
            Socket::Unix(stream) => {
                stream.set_write_timeout(Some(left))?;
                stream.write(from)
            }
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        // There is no buffer.
        Ok(())
    }
}

/// The bytes of one connection.
pub(super) enum Wire {
    Plain(Timed),
    #[cfg(feature = "redis-tls")]
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, Timed>>),
}

impl Wire {
    /// Sets the limit of everything that is read and written from now on.
    pub(super) fn limit(&mut self, limit: Limit) {
        match self {
            Wire::Plain(timed) => timed.limit = limit,
            #[cfg(feature = "redis-tls")]
            Wire::Tls(stream) => stream.sock.limit = limit,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(timed) => timed.read(to),
            #[cfg(feature = "redis-tls")]
            Wire::Tls(stream) => stream.read(to),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(timed) => timed.write(from),
            #[cfg(feature = "redis-tls")]
            Wire::Tls(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(timed) => timed.flush(),
            #[cfg(feature = "redis-tls")]
            Wire::Tls(stream) => stream.flush(),
        }
    }
}
