//! The way of clients to their server, with troubles in both directions: a proxy that passes bytes
//! on. It counts them, and if it is told to it notes the commands of Redis among them.

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
    /// Connections are cut as soon as so many bytes have passed, counted together from here on.
    /// With 0 the next piece is lost, and its connection is cut at once.
    CutAfter(usize),
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

/// What a proxy has seen since its start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Connections that were made.
    pub connections: usize,
    /// How often somebody spoke after an answer, or first.
    pub round_trips: usize,
    /// Bytes to the server.
    pub bytes_up: usize,
    /// Bytes from the server.
    pub bytes_down: usize,
}

struct State {
    server: SocketAddr,
    trouble: Option<(Trouble, Way)>,
    slow: Duration,
    seen: Seen,
    /// The commands that clients have sent, if they are noted.
    commands: Option<Vec<Vec<String>>>,
    closed: bool,
    streams: Vec<TcpStream>,
    /// How many connections, of the first ones, are forgotten.
    forgotten: usize,
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
    /// Stands in front of a server of this machine, and notes the commands of Redis.
    pub fn before_redis(port: u16) -> Self {
        let proxy = Proxy::before((Ipv4Addr::LOCALHOST, port).into(), Duration::ZERO);
        let proxy = proxy.expect("a port is free");
        locked(&proxy.state).commands = Some(Vec::new());
        proxy
    }

    /// Stands in front of a server. Without trouble, each piece of an answer is delayed by `slow`.
    pub fn before(server: SocketAddr, slow: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let state = Arc::new(Mutex::new(State {
            server,
            trouble: None,
            slow,
            seen: Seen::default(),
            commands: None,
            closed: false,
            streams: Vec::new(),
            forgotten: 0,
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

    /// The URL of the proxy as a Redis server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Connections lead to this server of this machine from now on, as after a failover.
    pub fn leads_to(&self, port: u16) {
        locked(&self.state).server = (Ipv4Addr::LOCALHOST, port).into();
        self.cut();
    }

    /// Cuts all connections; new ones are made.
    pub fn cut(&self) {
        cut(&mut locked(&self.state));
    }

    /// On the connections that there are nothing passes any more, as if a device on the way had forgotten
    /// them. New ones work.
    pub fn forget(&self) {
        let mut state = locked(&self.state);
        state.forgotten = state.seen.connections;
    }

    /// What it has seen.
    pub fn seen(&self) -> Seen {
        locked(&self.state).seen
    }

    /// The commands of the clients since it was asked last.
    pub fn commands(&self) -> Vec<Vec<String>> {
        let mut state = locked(&self.state);
        state
            .commands
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
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
        let number = locked.seen.connections;
        locked.seen.connections += 1;
        let copies = [&client, &server, &client, &server].map(TcpStream::try_clone);
        let [Ok(one), Ok(two), Ok(from), Ok(to)] = copies else {
            continue;
        };
        locked.streams.extend([one, two]);
        // Whose turn it is to speak: true after an answer.
        let asks = Arc::new(Mutex::new(true));
        for (from, to, way) in [(from, to, Way::Up), (server, client, Way::Down)] {
            let (state, asks) = (Arc::clone(state), Arc::clone(&asks));
            thread::spawn(move || {
                // The end of either direction is the end of the connection.
                let _ = pump(&from, &to, (way, number), &state, &asks);
                let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            });
        }
    }
}

fn pump(
    mut from: &TcpStream,
    mut to: &TcpStream,
    (way, number): (Way, usize),
    state: &Mutex<State>,
    asks: &Mutex<bool>,
) -> io::Result<()> {
    let trouble = || locked(state).trouble_on(way);
    let mut buffer = vec![0; 64 * 1_024];
    let mut unread = Vec::new();
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        if locked(state).forgotten > number {
            continue;
        }
        locked(state).sees(way, &buffer[..read], asks, &mut unread);
        match trouble() {
            None | Some(Trouble::Cut) => {}
            Some(Trouble::Swallow) => continue,
            Some(Trouble::CutAfter(_)) => {
                let passed = locked(state).passes(read);
                to.write_all(&buffer[..passed.min(read)])?;
                if passed <= read {
                    return Ok(());
                }
                continue;
            }
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

impl State {
    fn trouble_on(&self, way: Way) -> Option<Trouble> {
        match self.trouble {
            Some((what, which)) if which.includes(way) => Some(what),
            _ if way == Way::Down && !self.slow.is_zero() => Some(Trouble::Delay(self.slow)),
            _ => None,
        }
    }

    /// How many bytes may pass before the cut. So many of these are counted.
    fn passes(&mut self, bytes: usize) -> usize {
        let Some((Trouble::CutAfter(left), _)) = &mut self.trouble else {
            return usize::MAX;
        };
        let before = *left;
        *left -= bytes.min(before);
        before
    }

    fn sees(&mut self, way: Way, bytes: &[u8], asks: &Mutex<bool>, unread: &mut Vec<u8>) {
        let mut asks = asks.lock().unwrap_or_else(PoisonError::into_inner);
        if way == Way::Down {
            self.seen.bytes_down += bytes.len();
            *asks = true;
            return;
        }
        self.seen.bytes_up += bytes.len();
        self.seen.round_trips += usize::from(std::mem::take(&mut *asks));
        if let Some(commands) = &mut self.commands {
            unread.extend_from_slice(bytes);
            while let Some((command, length)) = command(unread) {
                commands.push(command);
                unread.drain(..length);
            }
        }
    }
}

/// The first command of what a client has sent, and how long it is.
fn command(sent: &[u8]) -> Option<(Vec<String>, usize)> {
    let (words, mut at) = line(sent, 0, b'*')?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let (length, start) = line(sent, at, b'$')?;
        // The line's end belongs to it.
        at = start + length + 2;
        let word = sent.get(start..at)?;
        command.push(String::from_utf8_lossy(&word[..length]).into_owned());
    }
    Some((command, at))
}

/// The number that stands in the line from here on, and where the next one begins.
fn line(sent: &[u8], at: usize, mark: u8) -> Option<(usize, usize)> {
    let rest = sent.get(at..)?;
    let end = rest.iter().position(|&byte| byte == b'\n')?;
    assert_eq!(rest[0], mark, "commands are lists of strings");
    let digits = std::str::from_utf8(&rest[1..end - 1]).expect("a number");
    Some((digits.parse().expect("a number"), at + end + 1))
}
