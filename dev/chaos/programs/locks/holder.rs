//! A holder. It waits for the lock, works while it holds the lock, and starts again. Its work is to
//! ask, a thousand times a second, whether it still holds the lock.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use chaos::clock::{Moment, now};
use serde::{Deserialize, Serialize};
use tourbillon::Clock;
use tourbillon_leases::{Event, LeaseGuard, LeaseId, LeaseStore, Leases, LockError, Loss, What};

use crate::cable::Cable;
use crate::server::Server;

/// What a holder is told. That it is to release the lock and to end is told by the end of the
/// calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Cut the connection to the store.
    Cut,
    /// Release the lock, and wait for it again.
    Release,
}

/// What a holder says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    /// It was granted the lock: the times before the granted call was sent, and after its answer
    /// came.
    Holds {
        token: u64,
        sent: Moment,
        answered: Moment,
    },
    /// `is_held()` returned true. The time was read before the call.
    Yes { token: u64, asked: Moment },
    /// `is_held()` returned false for the first time.
    Lost { asked: Moment, why: String },
    /// A renewal succeeded.
    Renewed {
        at: Moment,
        renewals: u64,
        left: Duration,
    },
    /// A renewal failed or is late, or the lease is at risk.
    Trouble { at: Moment, what: String },
    /// It has released the lock, or its release reported that the lock was lost.
    Released { at: Moment, how: String },
}

/// The settings of a holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    /// The server of holders that are processes.
    pub(crate) server: Option<Server>,
    /// Whether the holder goes on working after `is_held` has returned false.
    pub(crate) careless: bool,
}

/// The pause between two portions of work.
const PORTION: Duration = Duration::from_millis(1);
/// The capacity for events: more than there are between two portions of work.
const EVENTS: usize = 64;

/// Acquires the lock again and again, until it is to leave.
pub(crate) fn run(
    order: &Order,
    store: Arc<dyn LeaseStore>,
    calls: &Receiver<Call>,
    say: &dyn Fn(Word),
) -> io::Result<()> {
    let cable = Cable::new(store);
    let leases = Leases::builder(cable.clone())
        .lease(order.lease)
        .clock(Clock::boottime())
        .instance(&order.name)
        .build()
        .map_err(io::Error::other)?;
    let events = leases.events(EVENTS);
    loop {
        // Wait for a limited time, and look for calls in between. Without calls this would be
        // `lock`.
        let guard = match leases.lock(&order.lock).within(order.lease).wait() {
            Ok(guard) => guard,
            Err(LockError::TimedOut { .. } | LockError::Unanswered { .. }) => {
                match calls.try_recv() {
                    Err(TryRecvError::Disconnected) => return Ok(()),
                    Ok(Call::Cut) => cable.cut(),
                    Ok(Call::Release) | Err(TryRecvError::Empty) => {}
                }
                continue;
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        // Only this holder uses this connection, so the last grant is that of the guard.
        let grant = cable
            .last_grant()
            .filter(|grant| grant.token == guard.token());
        let grant = grant.ok_or_else(|| io::Error::other("a guard without a grant"))?;
        say(Word::Holds {
            token: grant.token,
            sent: grant.sent,
            answered: grant.answered,
        });
        let stays = work(order, &guard, calls, say, &cable, &|| {
            events.try_recv().ok()
        });
        let released = guard.release().wait();
        let how = released.map_or_else(|error| error.to_string(), |()| "gives it back".to_owned());
        say(Word::Released { at: now(), how });
        if !stays {
            return Ok(());
        }
        // Let the other holder get the lock first.
        thread::sleep(order.lease / 2);
    }
}

/// Works until the lock is to be released, and returns whether the holder goes on then. One that
/// has lost the lock stops working, but still calls `is_held`, which must never return true again.
fn work(
    order: &Order,
    guard: &LeaseGuard,
    calls: &Receiver<Call>,
    say: &dyn Fn(Word),
    cable: &Cable,
    next: &dyn Fn() -> Option<Event<LeaseId>>,
) -> bool {
    let token = guard.token();
    let mut lost = false;
    loop {
        let asked = now();
        if guard.is_held() || order.careless {
            say(Word::Yes { token, asked });
        } else if !lost {
            lost = true;
            let why = match guard.lost().loss() {
                Some(Loss::Expired) | None => "its lease ran out without a renewal".to_owned(),
                Some(Loss::NotHeld) => "the store says that it is no longer held".to_owned(),
                Some(loss) => format!("{loss:?}"),
            };
            say(Word::Lost { asked, why });
        }
        while let Some(event) = next() {
            if event.key == *guard.id() {
                heard(&event).into_iter().for_each(say);
            }
        }
        match calls.recv_timeout(PORTION) {
            Ok(Call::Cut) => cable.cut(),
            Ok(Call::Release) => return true,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn heard(event: &Event<LeaseId>) -> Option<Word> {
    let at = event.at.as_nanos();
    let what = match &event.what {
        What::Renewed {
            until, renewals, ..
        } => {
            return Some(Word::Renewed {
                at,
                renewals: *renewals,
                left: until.since(event.at),
            });
        }
        What::Failed {
            error, remaining, ..
        } => format!("renewal failed, {} left: {error}", Millis(*remaining)),
        What::AtRisk { remaining, .. } => format!("at risk: {} left", Millis(*remaining)),
        What::Late { by, .. } => format!("a renewal began {} late", Millis(*by)),
        // A loss needs no report here: `is_held` shows it no later than the event.
        _ => return None,
    };
    Some(Word::Trouble { at, what })
}

/// A duration that is shown in milliseconds.
pub(crate) struct Millis(pub(crate) Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_secs_f64() * 1_000.0;
        if millis < 10.0 {
            write!(f, "{millis:.1} ms")
        } else {
            write!(f, "{millis:.0} ms")
        }
    }
}
