//! A connection's bytes: over TCP or a Unix socket, plain or with TLS.
//!
//! **WIRE-1** Connecting, the handshake, and each read and write end with the limit of the call.
//! The system knows limits of single operations only, so each one gets what is left of the call's.
//! A signal that interrupts an operation does not end it: it begins again with what is left then.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(unix)]
use std::path::Path;
use std::time::{Duration, Instant};

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};

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

    /// What is left for an operation of the system.
    fn or_late(self) -> io::Result<Duration> {
        self.left().ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

/// A socket on which WIRE-1 holds.
pub(super) struct Timed {
    socket: Socket,
    limit: Limit,
}

enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Timed {
    /// `keepalive`: after so long without a word the system asks the other side whether it is there.
    pub(super) fn tcp(
        address: &SocketAddr,
        keepalive: Option<Duration>,
        limit: Limit,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(address, limit.or_late()?)?;
        stream.set_nodelay(true)?;
        if let Some(after) = keepalive {
            // How often it asks, and for how long in vain, is the system's to say.
            let keepalive = TcpKeepalive::new().with_time(after);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        }
        Ok(Timed {
            socket: Socket::Tcp(stream),
            limit,
        })
    }

    /// Where the server does not take connections, connecting waits, too.
    #[cfg(unix)]
    pub(super) fn unix(path: &Path, limit: Limit) -> io::Result<Self> {
        use redis::io::tcp::socket2::{Domain, SockAddr, Socket as Raw, Type};
        let raw = Raw::new(Domain::UNIX, Type::STREAM, None)?;
        let address = SockAddr::unix(path)?;
        in_time(limit, |left| {
            // For a socket of this kind it is the limit of connecting, too.
            raw.set_write_timeout(Some(left))?;
            raw.connect(&address)
        })?;
        let socket = Socket::Unix(UnixStream::from(std::os::fd::OwnedFd::from(raw)));
        Ok(Timed { socket, limit })
    }
}

/// Does it with what is left, again after each interruption.
fn in_time<T>(limit: Limit, mut operation: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation(limit.or_late()?) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Linux says so when the limit of a socket has passed.
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
        // Nothing is kept here.
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
    /// For what is read and written from now on.
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
