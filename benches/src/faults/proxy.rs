//! The way of one holder to its server, with troubles in both directions. Unlike in the proxy of the
//! tests, requests can be late, too, and what is late arrives in the end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::plan::{Trouble, Way};

struct State {
    server: u16,
    trouble: Option<(Trouble, Way)>,
    closed: bool,
    streams: Vec<TcpStream>,
}

type Shared = Arc<Mutex<State>>;

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Proxy {
    port: u16,
    state: Shared,
    accepts: Option<JoinHandle<()>>,
}

impl Proxy {
    /// In front of the server on this port.
    pub(crate) fn before(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let state = Arc::new(Mutex::new(State {
            server,
            trouble: None,
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

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn begin(&self, trouble: Trouble, way: Way) {
        let mut state = locked(&self.state);
        state.trouble = Some((trouble, way));
        if trouble == Trouble::Cut {
            cut(&mut state);
        }
    }

    pub(crate) fn end(&self) {
        let mut state = locked(&self.state);
        // What lost a piece of what was said can't be understood any more.
        if matches!(state.trouble.take(), Some((Trouble::Swallow, _))) {
            cut(&mut state);
        }
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
        // On the loopback device this is at once, or refused.
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, locked.server)) else {
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
                // Whichever end was the first, it is that of the connection.
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
        let trouble = locked(state).trouble;
        trouble.and_then(|(what, which)| which.includes(way).then_some(what))
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
