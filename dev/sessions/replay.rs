//! Replays a log through the engine on the clock of the test kit.
//!
//! Every open session is an entry of a map, with its client as the key. A request touches the
//! entry, or starts a session if there is none. The session ends when the entry expires. So the map
//! alone decides how the log is divided into sessions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tourbillon::{ExpiryMap, Time, Touch};

use crate::log::{Client, Log};

/// The summary of a log, which is the last line of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) requests: u64,
    pub(crate) clients: u64,
    pub(crate) sessions: u64,
    /// The longest session, first to last request, in seconds.
    pub(crate) longest: u64,
    /// The sum over all sessions, in seconds.
    pub(crate) total_duration: u64,
    /// The most requests in one session.
    pub(crate) max_hits: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            requests,
            clients,
            sessions,
            longest,
            total_duration,
            max_hits,
        } = self;
        write!(
            f,
            "requests {requests} clients {clients} sessions {sessions} longest {longest} "
        )?;
        write!(f, "total_duration {total_duration} max_hits {max_hits}")
    }
}

/// A session that has not ended.
#[derive(Debug)]
struct Open {
    first: Time,
    last: Time,
    hits: u64,
}

impl Summary {
    fn end(&mut self, session: &Open) {
        let duration = session.last.since(session.first).as_secs();
        self.sessions += 1;
        self.longest = self.longest.max(duration);
        self.total_duration += duration;
        self.max_hits = self.max_hits.max(session.hits);
    }
}

fn lock(ended: &Mutex<Summary>) -> MutexGuard<'_, Summary> {
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replays `log` with sessions that end after `idle`. The seed decides in which order shards and
/// workers take their steps; the summary does not depend on it. `progress` gets the number of
/// requests so far, after each request.
///
/// An error describes a wrong answer of the engine.
pub(crate) fn replay(
    log: &Log,
    idle: Duration,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<Summary, String> {
    // Requests are applied and entries expire on one thread, so the lock is never contended. It is
    // needed only because the handler must be `Sync`.
    let ended = Arc::new(Mutex::new(Summary::default()));
    let totals = Arc::clone(&ended);
    let stepped = ExpiryMap::<Client, Open>::builder()
        .time_to_idle(idle)
        // Timestamps are whole seconds, so a tick of a second loses nothing: an idle time with a
        // fraction ends at the next whole second, where the next request may be.
        .tick(Duration::from_secs(1))
        // Each request checks all stripes, and a single thread never waits for a lock. With the
        // usual 128 stripes a replay takes three times as long.
        .shards(2)
        .stripes(8)
        .build_stepped(seed, move |_, expired| lock(&totals).end(&expired.value))
        .map_err(|error| error.to_string())?;
    let sessions = stepped.map();
    let start = log.requests.first().map_or(0, |request| request.instant);

    for (done, request) in (1..).zip(&log.requests) {
        let since_start = u64::try_from(request.instant - start).expect("the log is sorted");
        let now = Time::ZERO + Duration::from_secs(since_start);
        // First run all due entries, including those that are due right now: a gap of exactly the
        // idle time ends a session.
        stepped.advance_to(now);
        let client = &log.clients[request.client as usize];
        match sessions.touch(client) {
            // The very first request may touch its session at the time at which it was created.
            Touch::Touched { .. } | Touch::Unchanged { .. } => {
                sessions.update(client, |session| {
                    session.last = now;
                    session.hits += 1;
                });
            }
            Touch::NotFound => {
                let session = Open {
                    first: now,
                    last: now,
                    hits: 1,
                };
                let inserted = sessions
                    .insert(Client::clone(client), session)
                    .map_err(|error| error.to_string())?;
                assert!(inserted.replaced.is_none(), "a session that no touch found");
            }
            Touch::Expired => return Err("an expired session was not ended".to_owned()),
            other => {
                return Err(format!(
                    "an answer that this program does not know: {other:?}"
                ));
            }
        }
        progress(done);
    }
    while stepped.advance_to_next() {}

    let stats = sessions.stats();
    if !stats.balances() || stats.pending != 0 || stats.panicked != 0 {
        return Err(format!(
            "the engine's counters are not what a replay leaves: {stats:?}"
        ));
    }
    Ok(Summary {
        requests: log.requests.len() as u64,
        clients: log.clients.len() as u64,
        ..*lock(&ended)
    })
}
