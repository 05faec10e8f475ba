//! Replays a log through the engine on the test kit's clock.
//!
//! Every client is a key, every open session a pending timer. A request touches its client's timer;
//! where there is none, it starts a session. The session ends when the timer fires, so how the log
//! falls into sessions is decided by the engine alone.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tourbillon::{Reschedule, Scheduler, Time};

use crate::log::{Client, Log};

/// What a log comes to; printed as the last line of a replay.
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

/// The open sessions and the totals of the ended ones. Requests are applied and timers run on one
/// thread, so the lock is never contended; tasks are `Send` and need one all the same.
#[derive(Debug, Default)]
struct Book {
    open: HashMap<Client, Open>,
    ended: Summary,
}

impl Book {
    fn end(&mut self, client: &Client) {
        let session = self
            .open
            .remove(client)
            .expect("a timer fires for an open session");
        let duration = session.last.since(session.first).as_secs();
        let ended = &mut self.ended;
        ended.sessions += 1;
        ended.longest = ended.longest.max(duration);
        ended.total_duration += duration;
        ended.max_hits = ended.max_hits.max(session.hits);
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replays `log` with sessions that end after `idle`. The seed decides in which order shards and
/// workers take their steps; the summary does not depend on it. `progress` is told after each
/// request how many have been applied.
///
/// An error says what the engine answered that it should not have.
pub(crate) fn replay(
    log: &Log,
    idle: Duration,
    seed: u64,
    mut progress: impl FnMut(u64),
) -> Result<Summary, String> {
    let stepped = Scheduler::<Client>::builder()
        // Timestamps are whole seconds, so a tick of a second loses nothing: an idle time with a
        // fraction ends at the next whole second, where the next request may be.
        .tick(Duration::from_secs(1))
        // Each request looks at all stripes, and one thread never waits for a lock: with the usual
        // 128 stripes a replay takes three times as long.
        .shards(2)
        .stripes(8)
        .build_stepped(seed)
        .map_err(|error| error.to_string())?;
    let timers = stepped.handle();
    let book = Arc::new(Mutex::new(Book::default()));
    let start = log.requests.first().map_or(0, |request| request.instant);

    for (done, request) in (1..).zip(&log.requests) {
        let since_start = u64::try_from(request.instant - start).expect("the log is sorted");
        let now = Time::ZERO + Duration::from_secs(since_start);
        // First all that is due, the very instant included: a gap of exactly the idle time ends a
        // session.
        stepped.advance_to(now);
        let client = &log.clients[request.client as usize];
        match timers.reschedule(client, idle) {
            Reschedule::Moved { .. } => {
                let mut book = lock(&book);
                let session = book
                    .open
                    .get_mut(client)
                    .expect("a timer is an open session");
                session.last = now;
                session.hits += 1;
            }
            Reschedule::NotFound => {
                let session = Open {
                    first: now,
                    last: now,
                    hits: 1,
                };
                let before = lock(&book).open.insert(Client::clone(client), session);
                assert!(before.is_none(), "a session without a timer");
                let book = Arc::clone(&book);
                timers
                    .schedule(Client::clone(client), idle, move |firing| {
                        lock(&book).end(firing.key());
                    })
                    .map_err(|error| error.to_string())?;
            }
            answer => return Err(format!("a touch with all settled was answered {answer:?}")),
        }
        progress(done);
    }
    while stepped.advance_to_next().is_some() {}

    let stats = timers.stats();
    if !stats.balances() || stats.pending != 0 || stats.panicked != 0 {
        return Err(format!(
            "the engine's counters are not what a replay leaves: {stats:?}"
        ));
    }
    let book = lock(&book);
    if !book.open.is_empty() {
        return Err(format!("{} sessions never ended", book.open.len()));
    }
    Ok(Summary {
        requests: log.requests.len() as u64,
        clients: log.clients.len() as u64,
        ..book.ended
    })
}
