//! What a server says of its own work: `MONITOR` of Redis, which names every command that is
//! executed, with the server's time. A PostgreSQL server has a trigger for that.
//!
//! Two things can be seen there and nowhere else: renewals of what has ended, and the order of the
//! grants. While the server is down or starts, nothing is seen.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::site;

/// What a command did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// Somebody asked for a renewal. Of PostgreSQL: it was renewed.
    Renewal {
        owner: String,
        /// Microseconds of the server's clock.
        at: u64,
    },
    /// The server granted it.
    Grant { owner: String, token: u64 },
}

#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// By lock, in the server's order.
    seen: Mutex<HashMap<String, Vec<Seen>>>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, HashMap<String, Vec<Seen>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) enum Watch {
    /// Of each server.
    Monitors(Vec<Monitor>),
    /// Of the PostgreSQL server at this port.
    Trigger(u16),
}

impl Watch {
    /// What was seen of a lock at each server since this was asked last.
    pub(crate) fn take(&self, lock: &str) -> Vec<Vec<Seen>> {
        match self {
            Watch::Monitors(monitors) => monitors.iter().map(|of| of.take(lock)).collect(),
            Watch::Trigger(port) => vec![site::seen(*port, lock)],
        }
    }
}

pub(crate) struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(crate) fn of(port: u16) -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut owners = HashMap::new();
            while !own.ends.load(Ordering::Relaxed) {
                // It is killed now and then.
                if listen(port, &own, &mut owners).is_err() {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        Monitor {
            shared,
            thread: Some(thread),
        }
    }

    fn take(&self, lock: &str) -> Vec<Seen> {
        self.shared.seen().remove(lock).unwrap_or_default()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(port: u16, shared: &Shared, owners: &mut HashMap<String, String>) -> io::Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(b"MONITOR\r\n")?;
    // So that the end is noticed when nobody says anything.
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    while !shared.ends.load(Ordering::Relaxed) {
        match stream.read_until(b'\n', &mut line) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) if line.ends_with(b"\n") => {
                if let Some((lock, seen)) = parse(&String::from_utf8_lossy(&line), owners) {
                    shared.seen().entry(lock).or_default().push(seen);
                }
                line.clear();
            }
            // The rest of the line is still to come.
            Ok(_) => {}
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::TimedOut
}

/// The lock, and what happened to it, if this is about one.
/// Renewals name the secret of a grant, and `owners` says whose it is.
fn parse(line: &str, owners: &mut HashMap<String, String>) -> Option<(String, Seen)> {
    let (time, rest) = line.trim_end().strip_prefix('+')?.split_once(' ')?;
    let (_, words) = rest.split_once("] ")?;
    let words = words.strip_prefix('"')?.strip_suffix('"')?;
    let words: Vec<&str> = words.split("\" \"").collect();
    match words[..] {
        [
            "EVALSHA" | "EVAL",
            _,
            "1",
            key,
            secret,
            lease,
            count,
            "0" | "1",
        ] => {
            // A release has as many words, but they are no numbers.
            let (_, _) = (lease.parse::<u64>().ok()?, count.parse::<u64>().ok()?);
            let (seconds, micros) = time.split_once('.')?;
            let at = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
            let owner = owners.get(secret)?.clone();
            Some((lock(key)?, Seen::Renewal { owner, at }))
        }
        [
            "HSET",
            key,
            "owner",
            owner,
            "secret",
            secret,
            "count",
            _,
            "token",
            token,
            ..,
        ] => {
            let token = token.parse().ok()?;
            let owner = owner.to_owned();
            owners.insert(secret.to_owned(), owner.clone());
            Some((lock(key)?, Seen::Grant { owner, token }))
        }
        _ => None,
    }
}

fn lock(key: &str) -> Option<String> {
    let (_, name) = key.split_once('{')?;
    Some(name.strip_suffix("}:lock")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_and_grants_are_told_from_the_rest() {
        let mut owners = HashMap::new();
        let granted = parse(
            r#"+1700000000.000042 [0 lua] "HSET" "t:{x}:lock" "owner" "a:1" "secret" "5e" "count" "1" "token" "17" "lease" "300""#,
            &mut owners,
        );
        let grant = Seen::Grant {
            owner: "a:1".to_owned(),
            token: 17,
        };
        assert_eq!(granted, Some(("x".to_owned(), grant)));
        let mut call = |words: &str| {
            let line = format!("+1700000000.000042 [0 127.0.0.1:5] {words}\r\n");
            parse(&line, &mut owners)
        };
        let renewal = Seen::Renewal {
            owner: "a:1".to_owned(),
            at: 1_700_000_000_000_042,
        };
        for how in [r#""EVALSHA" "5f""#, r#""EVAL" "-- KEYS: lock\nreturn 1""#] {
            let renewed = call(&format!(r#"{how} "1" "t:{{x}}:lock" "5e" "300" "1" "0""#));
            assert_eq!(renewed, Some(("x".to_owned(), renewal.clone())));
        }
        for other in [
            r#""EVALSHA" "5f" "1" "t:{x}:lock" "a:1" "t:released" "9 x" "0""#,
            r#""EVALSHA" "5f" "1" "t:{x}:lock" "a:1" "" "" "0""#,
            r#""EVALSHA" "5f" "2" "t:{x}:lock" "t:{x}:token" "a:1" "300" "9" "0" "1""#,
            r#""EVALSHA" "5f" "1" "t:{x}:lock" "400000""#,
            r#""PING""#,
        ] {
            assert_eq!(call(other), None, "{other}");
        }
        assert_eq!(parse("+OK\r\n", &mut owners), None);
    }
}
