//! Sessions of a web service: each request keeps its session alive, an idle session ends, a third
//! device signs the oldest one out, and a new password signs all of them out.
//!
//! ```sh
//! cargo run --release --example web_sessions
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::mpsc;
use std::time::Duration;

use tourbillon::{ExpiryMap, GroupFull, GroupedExpiryMap, Shutdown};

/// The session id. In your program it is random and goes into a cookie.
type Id = u64;

struct Session {
    device: &'static str,
    requests: u32,
}

/// The sessions of all users. Those of one user are a group.
type Sessions = GroupedExpiryMap<Id, Session, String>;

/// Half an hour in your program.
const IDLE: Duration = Duration::from_secs(1);
/// Twelve hours in your program: after that the user signs in again, busy or not.
const LIFETIME: Duration = Duration::from_secs(60);

/// Called for each request. Returns how many requests the session has served, or `None` if the user
/// has to sign in.
fn request(sessions: &Sessions, id: Id) -> Option<u32> {
    let (_, requests) = sessions.touch_with(&id, |session| {
        session.requests += 1;
        session.requests
    });
    requests
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let (tell, ended) = mpsc::channel();
    let sessions: Sessions = ExpiryMap::<Id, Session>::builder()
        .time_to_idle(IDLE)
        .time_to_live(LIFETIME)
        .max_pending(1_000_000) // more than this are refused
        .groups::<String>()
        .max_per_group(2)
        .when_group_full(GroupFull::EvictOldest)
        .build(move |_, expired| {
            // Runs on a worker, once for each session that ends by itself.
            let _ = tell.send((expired.value.device, expired.reason));
        })?;

    let ada = "ada".to_owned();
    for (id, device) in [(1, "phone"), (2, "laptop"), (3, "tablet")] {
        let requests = 0;
        sessions
            .entry(id)
            .group(&ada)
            .insert(Session { device, requests })?;
    }
    let (device, reason) = ended.recv()?;
    writeln!(out, "{device} is signed out: {reason:?}")?;

    // The laptop goes on. Nobody uses the tablet.
    let (device, reason) = loop {
        request(&sessions, 2).ok_or("a busy session ended")?;
        match ended.recv_timeout(Duration::from_millis(50)) {
            Ok(ended) => break ended,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
    };
    writeln!(out, "{device} is signed out: {reason:?}")?;
    assert!(request(&sessions, 3).is_none(), "it has to sign in again");

    // A new password.
    for (_, session) in sessions.remove_group(&ada) {
        writeln!(out, "{} is signed out: new password", session.device)?;
    }
    assert!(request(&sessions, 2).is_none());

    let report = sessions.shutdown(Shutdown::HandBack).wait()?;
    writeln!(out, "{} sessions are left", report.handed_back.len())?;
    Ok(())
}
