//! The way of one client to its server, with troubles in both directions: a proxy that passes bytes on
//! and knows no protocol.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What happens to the bytes on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Connections are cut, and new ones are closed at once.
    Cut,
    /// Each piece is delayed by this span.
    Delay(Duration),
    /// Pieces wait until the trouble is over, and arrive.
    Hold,
    /// Pieces are lost. A connection that lost some is cut when the trouble is over.
    Swallow,
    /// A piece is lost, and its connection is cut at once.
    Lose,
}

/// A direction of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the server.
    Up,
    /// From the server.
    Down,
    /// Both.
    Both,
}

impl Way {
    fn includes(self, way: Way) -> bool {
        self == Way::Both || self == way
    }
}

struct State {
    server: SocketAddr,
    trouble: Option<(Trouble, Way)>,
    slow: Duration,
    closed: bool,
    streams: Vec<TcpStream>,
}

type Shared = Arc<Mutex<State>>;

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A proxy on a port of the loopback device. Its connections are cut when it is dropped.
pub struct Proxy {
    port: u16,
    state: Shared,
    accepts: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Stands in front of a server. Without trouble, each piece of an answer is delayed by `slow`.
    pub fn before(server: SocketAddr, slow: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let state = Arc::new(Mutex::new(State {
            server,
            trouble: None,
            slow,
            closed: false,
            streams: Vec::new(),
        }));
        Ok(Proxy {
            port: listener.local_addr()?.port(),
            accepts: Some(thread::spawn({
                let state = Arc::clone(&state);
                move || accept(&listener, &state)
            })),
            state,
        })
    }

    /// The port of the proxy.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Begins a trouble, and ends the one before.
    pub fn begin(&self, trouble: Trouble, way: Way) {
        let mut state = locked(&self.state);
        state.trouble = Some((trouble, way));
        if trouble == Trouble::Cut {
            cut(&mut state);
        }
    }

    /// Ends the trouble.
    pub fn end(&self) {
        let mut state = locked(&self.state);
        // The rest of a stream that lost a piece can't be understood.
        if matches!(state.trouble.take(), Some((Trouble::Swallow, _))) {
            cut(&mut state);
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn cut(state: &mut State) {
    for stream in state.streams.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = locked(&self.state);
            state.closed = true;
            state.trouble = None;
            cut(&mut state);
        }
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        cut(&mut locked(&self.state));
    }
}

fn accept(listener: &TcpListener, state: &Shared) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        let mut locked = locked(state);
        if locked.closed {
            return;
        }
        if matches!(locked.trouble, Some((Trouble::Cut, _))) {
            continue;
        }
        // On the loopback device this succeeds or fails at once.
        let Ok(server) = TcpStream::connect(locked.server) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copies = [&client, &server, &client, &server].map(TcpStream::try_clone);
        let [Ok(one), Ok(two), Ok(from), Ok(to)] = copies else {
            continue;
        };
        locked.streams.extend([one, two]);
        for (from, to, way) in [(from, to, Way::Up), (server, client, Way::Down)] {
            let state = Arc::clone(state);
            thread::spawn(move || {
                // The end of either direction is the end of the connection.
                let _ = pump(&from, &to, way, &state);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    }
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    way: Way,
    state: &Mutex<State>,
) -> io::Result<()> {
    let trouble = || {
        let locked = locked(state);
        match locked.trouble {
            Some((what, which)) if which.includes(way) => Some(what),
            _ if way == Way::Down && !locked.slow.is_zero() => Some(Trouble::Delay(locked.slow)),
            _ => None,
        }
    };
    let mut buffer = vec![0; 16 * 1_024];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        match trouble() {
            None | Some(Trouble::Cut) => {}
            Some(Trouble::Swallow) => continue,
            Some(Trouble::Lose) => return Ok(()),
            Some(Trouble::Delay(time)) => thread::sleep(time),
            Some(Trouble::Hold) => {
                while trouble() == Some(Trouble::Hold) {
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
        to.write_all(&buffer[..read])?;
    }
}
