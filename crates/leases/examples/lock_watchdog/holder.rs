//! A holder. It waits for the lock, works while it holds the lock, and starts again. Its work is to
//! ask, a thousand times a second, whether it still holds the lock.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use tourbillon::{Clock, Time};
use tourbillon_leases::{Event, LeaseGuard, LeaseId, LeaseStore, Leases, LockError, Loss, What};

use crate::cable::{Cable, Grant};

/// An order for a holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Cut the connection to the store.
    Cut,
    /// Release the lock, and wait for it again.
    Release,
    /// Release the lock if it is held, and end.
    End,
}

/// A report of a holder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// The holder was granted the lock.
    Holds(Grant),
    /// `is_held()` returned true. The time was read before the call.
    Yes { token: u64, asked: Time },
    /// `is_held()` returned false for the first time.
    Lost { asked: Time, why: String },
    /// A renewal succeeded.
    Renewed {
        at: Time,
        renewals: u64,
        left: Duration,
    },
    /// A renewal failed or is late, or the lease is at risk.
    Trouble { at: Time, what: String },
    /// The holder has released the lock, or its release reported that the lock was lost.
    Released { at: Time, how: String },
    /// The holder can't go on.
    Fails(String),
    /// The holder has ended, and reports nothing more.
    Gone,
}

/// The settings of a holder.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn LeaseStore>,
    /// Whether the holder goes on working after `is_held` has returned false.
    pub(crate) careless: bool,
}

/// The pause between two portions of work.
const PORTION: Duration = Duration::from_millis(1);
/// The capacity for events: more than there are between two portions of work.
const EVENTS: usize = 64;

/// Acquires the lock again and again, until the order to end comes.
pub(crate) fn run(setting: &Setting, orders: &Receiver<Order>, say: &mut dyn FnMut(Said)) {
    if let Err(error) = contend(setting, orders, say) {
        say(Said::Fails(error.to_string()));
    }
    say(Said::Gone);
}

fn contend(
    setting: &Setting,
    orders: &Receiver<Order>,
    say: &mut dyn FnMut(Said),
) -> Result<(), Box<dyn std::error::Error>> {
    let cable = Cable::new(Arc::clone(&setting.store), setting.clock.clone());
    let leases = Leases::builder(cable.clone())
        .lease(setting.lease)
        .clock(setting.clock.clone())
        .instance(&setting.name)
        .build()?;
    let events = leases.events(EVENTS);
    loop {
        // Wait for a limited time, and check for orders in between. Without orders this would be
        // `lock`.
        let guard = match leases.try_lock_for(&setting.lock, setting.lease) {
            Ok(guard) => guard,
            Err(LockError::TimedOut { .. } | LockError::Unanswered { .. }) => {
                match orders.try_recv() {
                    Ok(Order::End) | Err(TryRecvError::Disconnected) => return Ok(()),
                    Ok(Order::Cut) => {
                        cable.cut();
                        continue;
                    }
                    Ok(Order::Release) | Err(TryRecvError::Empty) => continue,
                }
            }
            Err(error) => return Err(error.into()),
        };
        // Only this holder uses this connection, so the last grant is that of the guard.
        let grant = cable
            .last_grant()
            .filter(|grant| grant.token == guard.fencing_token());
        say(Said::Holds(grant.ok_or("a guard without a grant")?));

        let order = work(setting, &guard, orders, say, &cable, || {
            events.try_iter().collect()
        });
        let released = guard.release();
        let how = released.map_or_else(|error| error.to_string(), |()| "gives it back".to_owned());
        let at = setting.clock.now();
        say(Said::Released { at, how });
        if order == Order::End {
            return Ok(());
        }
        // Let the other holder get the lock first.
        thread::sleep(setting.lease / 2);
    }
}

/// Works until the order to release or to end comes. A holder that has lost the lock stops working,
/// but still calls `is_held`, which must never return true again.
fn work(
    setting: &Setting,
    guard: &LeaseGuard,
    orders: &Receiver<Order>,
    say: &mut dyn FnMut(Said),
    cable: &Cable,
    events: impl Fn() -> Vec<Event<LeaseId>>,
) -> Order {
    let token = guard.fencing_token();
    let mut lost = false;
    loop {
        let asked = setting.clock.now();
        if guard.is_held() || setting.careless {
            say(Said::Yes { token, asked });
        } else if !lost {
            lost = true;
            let why = match guard.lost().loss() {
                Some(Loss::Expired) | None => "its lease ran out without a renewal".to_owned(),
                Some(Loss::NotHeld) => "the store says that it is no longer held".to_owned(),
                Some(loss) => format!("{loss:?}"),
            };
            say(Said::Lost { asked, why });
        }
        for event in events() {
            if event.key == *guard.id()
                && let Some(said) = heard(&event)
            {
                say(said);
            }
        }
        match orders.recv_timeout(PORTION) {
            Ok(Order::Cut) => cable.cut(),
            Ok(order) => return order,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Order::End,
        }
    }
}

fn heard(event: &Event<LeaseId>) -> Option<Said> {
    let at = event.at;
    let what = match &event.what {
        What::Renewed {
            until, renewals, ..
        } => {
            return Some(Said::Renewed {
                at,
                renewals: *renewals,
                left: until.since(at),
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
    Some(Said::Trouble { at, what })
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
