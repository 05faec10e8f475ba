//! A holder: it waits for the lock, works while it holds it, and starts again. What it does with the
//! lock is to ask, a thousand times a second, whether it still has it.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::Duration;

use tourbillon::{Clock, Time};
use tourbillon_leases::{Event, LeaseGuard, LeaseId, LeaseStore, Leases, LockError, Loss, What};

use crate::cable::{Cable, Grant};

/// What a holder is told to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Cut your cable to the store.
    Cut,
    /// Give the lock back, and queue again.
    Release,
    /// Give back what you have, and end.
    End,
}

/// What a holder says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// It has the lock.
    Holds(Grant),
    /// `is_held()` said yes; the moment was read before the question.
    Yes { token: u64, asked: Time },
    /// `is_held()` said no, for the first time.
    Lost { asked: Time, why: String },
    /// A renewal succeeded.
    Renewed {
        at: Time,
        renewals: u64,
        left: Duration,
    },
    /// A renewal failed, or is at risk, or late.
    Trouble { at: Time, what: String },
    /// It has given the lock back, or was told that it had lost it.
    Released { at: Time, how: String },
    /// It can't go on.
    Fails(String),
    /// It has ended, and says nothing more.
    Gone,
}

/// What a holder is made of.
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn LeaseStore>,
    /// It goes on working whatever `is_held` says.
    pub(crate) careless: bool,
}

/// Between two portions of work.
const PORTION: Duration = Duration::from_millis(1);
/// More events than there are between two portions.
const EVENTS: usize = 64;

/// Holds the lock again and again, until it is told to end.
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
        // For a while, and again, so that orders are heard meanwhile; else this would be `lock`.
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
        // Nobody else uses this cable, so the last grant is that of the guard.
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
        // The others first.
        thread::sleep(setting.lease / 2);
    }
}

/// Works until it is told to release or to end. A holder that has lost the lock stops working, but is
/// still asked: the answer must never be yes again.
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
                Some(Loss::NotHeld) => "the store says that it is held no more".to_owned(),
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
        // The loss is told by the answer to the question, which comes no later.
        _ => return None,
    };
    Some(Said::Trouble { at, what })
}

/// A time for people.
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
