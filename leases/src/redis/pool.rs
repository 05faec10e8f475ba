//! The connections of a store, and calls on them.
//!
//! **POOL-1** No call goes out on a connection that has been idle for longer than [`LONGEST_IDLE`].
//! A device between here and the server may have forgotten such a connection and drop what is sent
//! on it: then a call would have no answer, and cost its whole limit.

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

/// Connections that nobody uses just now, and turns for those who want one.
pub(super) struct Pool {
    server: Arc<Server>,
    most: usize,
    /// The one used last is used next, so that those beyond what is needed stay unused. Each with the
    /// moment at which it was put back, so the later ones stand behind.
    idle: Mutex<Vec<(Link, Time)>>,
    /// What tells how long they were idle. It goes on while the machine is suspended.
    clock: Clock,
    /// Of each destination: one that hangs keeps its own, and no others.
    turns: Mutex<HashMap<Destination, ConnectionTurns>>,
    origin: Origin,
}

type ConnectionTurns = (Sender<()>, Receiver<()>);

/// A connection that was idle for longer is closed, and not used again.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// Whose call it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// One of the user's threads, of which there may be any number. It goes to this destination.
    User(Destination),
    /// A pass's, of renewals or releases. There are few at a time, and they must not stand in line
    /// behind the others.
    Flush,
}

/// A turn, until it is dropped.
struct Turn(Receiver<()>);

impl Drop for Turn {
    fn drop(&mut self) {
        // There is one of ours in it.
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

    /// Whether this process is a forked copy of the one that made it. The copy has the same
    /// connections, and would take the answers that the original waits for.
    pub(super) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    pub(super) fn idle(&self) -> usize {
        self.idle.lock().len()
    }

    /// Calls scripts, all in one round trip, and answers with what each of them answered.
    ///
    /// If a connection that had been idle turns out to be gone, all of it is sent once more on a new
    /// one. What was sent first may have been executed all the same, and that makes nobody believe what is not so, since the owner is the
    /// same: a second acquire grants again, a second renewal renews again, and a second release finds
    /// nothing, which is what it says. Only if what was sent first arrives when all is over, an acquire
    /// takes the name for nobody, for a lease.
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
                // The others were idle for longer: whatever befell this one befell them.
                let others = std::mem::take(&mut *self.idle.lock());
                drop(others);
            }
            match fault {
                CallFault::Lost(_) if reused => {}
                fault => return Err(fault.into()),
            }
        }
    }

    /// The connection that was used last: POOL-1. Those that are too old are closed, without the
    /// lock.
    fn take_idle(&self) -> Option<Link> {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        let old = idle.partition_point(|(_, since)| now.since(*since) > LONGEST_IDLE);
        let old: Vec<_> = idle.drain(..old).collect();
        let last = idle.pop();
        drop(idle);
        drop(old);
        last.map(|(link, _)| link)
    }

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

    /// Calls on one connection, which is kept if all went well.
    fn call_on(
        &self,
        mut link: Link,
        calls: &[Call<'_>],
        limit: Limit,
    ) -> Result<Vec<Value>, CallFault> {
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
        // After a failover the name of the host may lead to another server.
        let demoted = |answer: &Value| match answer {
            // Servers before version 7 say it in the words of an `ERR`.
            Value::ServerError(error) => {
                let words = error.details().unwrap_or_default();
                error.code() == "READONLY" || words.contains("-READONLY")
            }
            _ => false,
        };
        if !answers.iter().any(demoted) {
            let mut idle = self.idle.lock();
            if idle.len() < self.most {
                // Read under the lock, so that they stand in the order of these.
                idle.push((link, self.clock.now()));
            }
        }
        Ok(answers)
    }

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

/// The code of an answer that is an error.
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

    /// Answers everything with a number; each connection is told.
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
        // It is told before the first answer, or with it.
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
        // They are idle for 60, 59 and 58 s now, and a moment later for more.
        clock.advance(LONGEST_IDLE - 3 * second + Duration::from_nanos(1));
        let last = pool.take_idle();
        assert_eq!((last.is_some(), pool.idle()), (true, 1));
        clock.advance(second);
        assert_eq!((pool.take_idle().is_none(), pool.idle()), (true, 0));
    }
}
