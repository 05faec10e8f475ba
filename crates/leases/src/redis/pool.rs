//! The connections of a store, and the calls that use them.
//!
//! **POOL-1** No call is sent on a connection that has been idle for longer than [`LONGEST_IDLE`].
//! A device between client and server may have forgotten such a connection, and may drop everything
//! that is sent on it. Then a call would get no answer, and would take its whole limit.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;
use tourbillon::{Clock, Time};

use super::errors::CallFault;
use super::link::{Limit, Link, Server};
use super::scripts::{By, Call};
use crate::store::{Destination, StoreError};
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Arc, Mutex, Origin};

/// Holds the idle connections, and limits how many calls of users are under way.
pub(super) struct Pool {
    server: Arc<Server>,
    most: usize,
    /// The idle connections, each with the time since which it is idle, the latest one last. The
    /// last one is used next, so surplus connections stay idle and are closed some time.
    idle: Mutex<Vec<(Link, Time)>>,
    /// Measures the idle time. This clock goes on while the machine is suspended.
    clock: Clock,
    /// The turns of each destination. A destination that hangs occupies only its own turns.
    turns: Mutex<HashMap<Destination, ConnectionTurns>>,
    origin: Origin,
}

/// A channel as a semaphore: each message in it is a turn that is taken.
type ConnectionTurns = (Sender<()>, Receiver<()>);

/// The longest idle time after which a connection is used again.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// The caller for whom a connection is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// A thread of the user, for this destination. There may be any number of such threads.
    User(Destination),
    /// A release for this destination. It waits for a turn for half of its limit, and then does
    /// without: while calls of users hang, locks are given back all the same.
    GivingBack(Destination),
    /// A flush of renewals or releases. There are few at a time, and they must not wait behind the
    /// calls of users.
    Flush,
}

/// A turn that is taken until this is dropped.
struct Turn(Receiver<()>);

impl Drop for Turn {
    fn drop(&mut self) {
        // The channel holds a message of this turn, so this never blocks and never fails.
        let _ = self.0.try_recv();
    }
}

impl Pool {
    pub(super) fn new(server: Arc<Server>, most: usize, clock: Clock) -> Self {
        Pool {
            server,
            most,
            idle: Mutex::new(Vec::new()),
            clock,
            turns: Mutex::default(),
            origin: Origin::here(),
        }
    }

    /// Returns whether this process is a forked copy of the one that created the pool. The copy has
    /// the same connections, and would take the answers that the original waits for.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Returns the number of idle connections.
    pub(super) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Calls scripts in one round trip, and returns the answer of each.
    ///
    /// If a connection that was idle turns out to be closed, all calls are sent once more on a new
    /// connection. The first request may have been executed all the same. The second one has the
    /// same owner, so nobody gets a wrong result:
    ///
    /// - a second acquire grants again;
    /// - a second renewal renews again;
    /// - a second release finds nothing, and says so.
    ///
    /// There is one exception. If the first request of an acquire arrives after its lock was
    /// released, nobody holds the name, and it stays locked for a lease.
    pub(super) fn call(
        &self,
        whose: Whose,
        calls: &[Call<'_>],
        limit: Limit,
    ) -> Result<Vec<Value>, StoreError> {
        if self.is_forked() {
            return Err(StoreError::Forked);
        }
        let _turn = match whose {
            Whose::User(destination) => Some(self.turn(destination, limit)?),
            Whose::GivingBack(destination) => {
                let half = Limit::new(limit.left().unwrap_or_default() / 2);
                self.turn(destination, half).ok()
            }
            Whose::Flush => None,
        };
        let mut idle = self.take_idle();
        loop {
            let reused = idle.is_some();
            let answers = match idle.take() {
                Some(link) => self.call_on(link, calls, limit),
                None => Link::open(&self.server, limit)
                    .and_then(|link| self.call_on(link, calls, limit)),
            };
            let fault = match answers {
                Ok(answers) => return Ok(answers),
                Err(fault) => fault,
            };
            if reused {
                // The other connections were idle for longer, so what broke this one broke them,
                // too.
                let others = std::mem::take(&mut *self.idle.lock());
                drop(others);
            }
            match fault {
                // This happens at most once: no idle connection is taken in the next round.
                CallFault::Lost(_) if reused => {}
                fault => return Err(fault.into()),
            }
        }
    }

    /// Takes the connection that was used last, and closes those that are too old (POOL-1).
    fn take_idle(&self) -> Option<Link> {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        let old = idle.partition_point(|(_, since)| now.since(*since) > LONGEST_IDLE);
        let old: Vec<_> = idle.drain(..old).collect();
        let last = idle.pop();
        // Unlock first, since closing a connection takes system calls.
        drop(idle);
        drop(old);
        last.map(|(link, _)| link)
    }

    /// Waits for a turn of this destination, within the limit of the call.
    fn turn(&self, destination: Destination, limit: Limit) -> Result<Turn, StoreError> {
        let left = limit.left().ok_or_else(|| CallFault::late(&*self.server))?;
        let (enter, leave) = {
            let mut turns = self.turns.lock();
            let turns = turns.entry(destination);
            turns.or_insert_with(|| bounded(self.most)).clone()
        };
        if enter.send_timeout((), left).is_err() {
            return Err(StoreError::Unavailable(format!(
                "{}: {} calls are under way, and none of them ended in time",
                self.server, self.most
            )));
        }
        Ok(Turn(leave))
    }

    /// Calls scripts on one connection, and puts the connection back into the pool if that
    /// succeeds.
    fn call_on(
        &self,
        mut link: Link,
        calls: &[Call<'_>],
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
        // A hash is much shorter than a script, and the server nearly always has the script.
        let mut answers = self.send(&mut link, calls.iter(), By::Hash, limit)?;
        let again: Vec<usize> = (0..calls.len())
            .filter(|&at| code(&answers[at]) == Some("NOSCRIPT"))
            .collect();
        if !again.is_empty() {
            let calls = again.iter().map(|&at| &calls[at]);
            let better = self.send(&mut link, calls, By::Text, limit)?;
            for (at, answer) in again.into_iter().zip(better) {
                answers[at] = answer;
            }
        }
        // A server that has become a replica answers `READONLY`. Its connection is closed: after a
        // failover the name of the host may lead to another server.
        let demoted = |answer: &Value| match answer {
            // Servers before version 7 have the code in the text of an `ERR`.
            Value::ServerError(error) => {
                let words = error.details().unwrap_or_default();
                error.code() == "READONLY" || words.contains("-READONLY")
            }
            _ => false,
        };
        if !answers.iter().any(demoted) {
            let mut idle = self.idle.lock();
            if idle.len() < self.most {
                // The time is read under the lock, so that the connections are sorted by it.
                idle.push((link, self.clock.now()));
            }
        }
        Ok(answers)
    }

    /// Sends calls in one write, and receives their answers.
    fn send<'a>(
        &self,
        link: &mut Link,
        calls: impl ExactSizeIterator<Item = &'a Call<'a>>,
        by: By,
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
        let answers = calls.len();
        let mut commands = Vec::new();
        for call in calls {
            call.write(by, &mut commands);
        }
        link.exchange(&self.server, &commands, answers, limit)
    }
}

/// Returns the code of an answer that is an error.
fn code(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::scripts::Scripts;
    use super::*;
    use redis::IntoConnectionInfo;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};
    use tourbillon::ManualClock;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Starts a server that answers every command with a number, and reports each connection.
    fn server() -> (Arc<Server>, Receiver<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let (tell, told) = channel();
        let answer = |mut stream: TcpStream| {
            let mut buffer = [0; 4_096];
            while let Ok(1..) = stream.read(&mut buffer) {
                let _ = stream.write_all(b":1\r\n");
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || answer(stream));
                if tell.send(()).is_err() {
                    return;
                }
            }
        });
        let info = url.as_str().into_connection_info().unwrap();
        (Arc::new(Server::new(&info, None).unwrap()), told)
    }

    #[test]
    fn a_connection_that_was_idle_for_more_than_a_minute_is_not_used_again() {
        let (server, connected) = server();
        let clock = ManualClock::new();
        let pool = Pool::new(server, 4, Clock::manual(&clock));
        let scripts = Scripts::new();
        let call = || {
            let call = Call::new(&scripts.ready, ["k".to_owned()]);
            let answer = pool.call(
                Whose::User(Destination::default()),
                &[call],
                Limit::new(LIMIT),
            );
            assert_eq!(answer, Ok(vec![Value::Int(1)]));
            connected.try_iter().count()
        };
        // The connection is reported before the first answer, or at the same time.
        let first = call();
        let first = first + usize::from(first == 0 && connected.recv_timeout(LIMIT).is_ok());
        assert_eq!(first, 1);
        for _ in 0..3 {
            clock.advance(LONGEST_IDLE);
            assert_eq!((call(), pool.idle()), (0, 1));
        }
        clock.advance(LONGEST_IDLE + Duration::from_nanos(1));
        let second = call();
        assert_eq!(pool.idle(), 1);
        assert!(second == 1 || connected.recv_timeout(LIMIT).is_ok());
    }

    #[test]
    fn those_that_are_too_old_go_and_the_younger_ones_stay() {
        let (server, _connected) = server();
        let clock = ManualClock::new();
        let pool = Pool::new(Arc::clone(&server), 4, Clock::manual(&clock));
        let second = Duration::from_secs(1);
        for _ in 0..3 {
            let Ok(link) = Link::open(&server, Limit::new(LIMIT)) else {
                panic!("it takes connections");
            };
            pool.idle.lock().push((link, clock.now()));
            clock.advance(second);
        }
        // The connections have been idle for just over 60, 59 and 58 s.
        clock.advance(LONGEST_IDLE - 3 * second + Duration::from_nanos(1));
        let last = pool.take_idle();
        assert_eq!((last.is_some(), pool.idle()), (true, 1));
        clock.advance(second);
        assert_eq!((pool.take_idle().is_none(), pool.idle()), (true, 0));
    }
}
