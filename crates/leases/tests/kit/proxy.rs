//! Stands between a client and a server on the loopback device, and does to their words what
//! networks do.

#![allow(dead_code, reason = "each test uses a part of the kit")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// What becomes of what the server says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answers {
    Pass,
    /// Each piece waits for so long.
    Delay(Duration),
    /// They wait until something else becomes of them.
    Hold,
    /// They get lost.
    Swallow,
    /// After so many bytes, counted from here on, the connection is cut.
    CutAfter(usize),
}

#[derive(Default)]
struct Seen {
    commands: Vec<Vec<String>>,
    round_trips: usize,
    bytes_up: usize,
    bytes_down: usize,
    connections: usize,
}

struct State {
    port: u16,
    answers: Answers,
    refuses: bool,
    closed: bool,
    streams: Vec<TcpStream>,
    seen: Seen,
}

pub(crate) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
    accepts: Option<JoinHandle<()>>,
}

impl Proxy {
    /// In front of the server on this port.
    pub(crate) fn before(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let state = Arc::new(Mutex::new(State {
            port,
            answers: Answers::Pass,
            refuses: false,
            closed: false,
            streams: Vec::new(),
            seen: Seen::default(),
        }));
        Proxy {
            port: listener.local_addr().expect("it is bound").port(),
            accepts: Some(thread::spawn({
                let state = Arc::clone(&state);
                move || accept(&listener, &state)
            })),
            state,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Connections lead to this server from now on, as after a failover.
    pub(crate) fn leads_to(&self, port: u16) {
        self.state.lock().unwrap().port = port;
        self.cut();
    }

    pub(crate) fn answers(&self, answers: Answers) {
        self.state.lock().unwrap().answers = answers;
    }

    /// Cuts all connections, and those that come are closed at once, until it is told otherwise.
    pub(crate) fn refuses(&self, refuses: bool) {
        self.state.lock().unwrap().refuses = refuses;
        if refuses {
            self.cut();
        }
    }

    /// Cuts all connections.
    pub(crate) fn cut(&self) {
        for stream in self.state.lock().unwrap().streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// The commands of the clients since it was asked last.
    pub(crate) fn commands(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut self.state.lock().unwrap().seen.commands)
    }

    /// How often somebody spoke after an answer, or first, since the start.
    pub(crate) fn round_trips(&self) -> usize {
        self.state.lock().unwrap().seen.round_trips
    }

    /// Bytes to the server, and from it.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let seen = &self.state.lock().unwrap().seen;
        (seen.bytes_up, seen.bytes_down)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().seen.connections
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.lock().unwrap().closed = true;
        self.cut();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        self.cut();
    }
}

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        let mut locked = state.lock().unwrap();
        if locked.closed {
            return;
        }
        if locked.refuses {
            continue;
        }
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, locked.port)) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        locked.seen.connections += 1;
        let copies = [&client, &server].map(|stream| stream.try_clone().expect("a copy"));
        locked.streams.extend(copies);
        // Whose turn it is to speak: true after an answer.
        let asks = Arc::new(Mutex::new(true));
        let up = (client.try_clone(), server.try_clone());
        let (Ok(from), Ok(to)) = up else { continue };
        thread::spawn({
            let (state, asks) = (Arc::clone(state), Arc::clone(&asks));
            move || pump_up(from, to, &state, &asks)
        });
        thread::spawn({
            let state = Arc::clone(state);
            move || pump_down(server, client, &state, &asks)
        });
    }
}

fn pump_up(mut from: TcpStream, mut to: TcpStream, state: &Mutex<State>, asks: &Mutex<bool>) {
    let mut buffer = vec![0; 64 * 1_024];
    let mut unread = Vec::new();
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        {
            let mut state = state.lock().unwrap();
            let seen = &mut state.seen;
            seen.bytes_up += read;
            if std::mem::take(&mut *asks.lock().unwrap()) {
                seen.round_trips += 1;
            }
            unread.extend_from_slice(&buffer[..read]);
            while let Some((command, length)) = command(&unread) {
                seen.commands.push(command);
                unread.drain(..length);
            }
        }
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn pump_down(mut from: TcpStream, mut to: TcpStream, state: &Mutex<State>, asks: &Mutex<bool>) {
    let mut buffer = vec![0; 64 * 1_024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let mut passed = read;
        let mut cut = false;
        let mut delay = Duration::ZERO;
        {
            let mut state = state.lock().unwrap();
            state.seen.bytes_down += read;
            match &mut state.answers {
                Answers::Pass | Answers::Hold => {}
                Answers::Delay(time) => delay = *time,
                Answers::Swallow => passed = 0,
                Answers::CutAfter(left) => {
                    passed = read.min(*left);
                    *left -= passed;
                    cut = *left == 0;
                }
            }
            *asks.lock().unwrap() = true;
        }
        if !delay.is_zero() {
            thread::sleep(delay);
        }
        let is_held = || {
            let state = state.lock().unwrap();
            state.answers == Answers::Hold && !state.closed
        };
        while is_held() {
            thread::park_timeout(Duration::from_millis(1));
        }
        if to.write_all(&buffer[..passed]).is_err() || cut {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
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
