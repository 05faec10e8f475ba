//! One term: the time from a grant to its end, which is a generation of its own.
//!
//! ```text
//!          depart ------> under way ---- land: renewed, later `until` ----.
//!        /                    |                                            \
//!   Kept <--------------------'---- land: failed, or overdue ---------------+--> Kept
//!    |  \
//!    |   '-- stop ------------------------------------------------> Stopped
//!    '------ the clock, `not held`, cap, not fed, close ----------> Lost
//! ```
//!
//! All of it lies under one lock, and what has ended has ended:
//!
//! - **TERM-1** The clock decides. Every call settles the term by `now` first: from `until` on (or
//!   the cap, or the time by which it was to be fed) it is lost, whatever an answer says later.
//! - **TERM-2** Nothing departs after the end. `depart` looks and notes the flight in one hold of
//!   the lock; `stop` ends it and finds the flight in one hold. So after `stop` either no request
//!   is under way and none will be, or there is one and [`settled`](Term::settled) waits for it.
//! - **TERM-3** An answer belongs to the term that asked. It can't reach another one, since a
//!   flight is landed on the term itself and not looked up by a name; and on an ended term it
//!   changes nothing.
//! - **TERM-4** The loss is told exactly once, by whoever ends the term, after the lock.
//! - **TERM-5** In a forked copy of the process the term is lost, and its lock is not taken: a
//!   thread that the copy does not have may hold it. So every call that a holder can make looks at
//!   the origin first.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon::{Clock, ClockParker, ClockUnparker, Time};

use crate::panics::contain;
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Mutex, MutexGuard, Origin};

/// Why a lease was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// It ran out by the local clock without a renewal that succeeded.
    Expired,
    /// The backend said that it is held no more.
    NotHeld,
    /// The holder did not call `feed` in time, so it counts as dead.
    NotFed,
    /// It was held for as long as it may be in all.
    HeldTooLong,
    /// What renewed it was closed.
    Closed,
    /// This process is a forked copy of the one that holds it, and renews nothing. The original may
    /// hold it still.
    Forked,
}

impl std::error::Error for Loss {}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "it ran out without a renewal",
            Loss::NotHeld => "the store says that it is held no more",
            Loss::NotFed => "it was not fed in time",
            Loss::HeldTooLong => "it was held for as long as it may be",
            Loss::Closed => "the leases or the watchdog were closed",
            Loss::Forked => "it belongs to the process that this one was forked from",
        })
    }
}

/// How a term stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Good until `until` by the last renewal; it ends at `ends` if nothing happens.
    Kept {
        until: Time,
        ends: Time,
    },
    Stopped,
    Lost(Loss),
}

/// What stopping it did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    Now,
    /// It was lost before.
    Lost(Loss),
    /// It was stopped before.
    Before,
}

/// A renewal that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flight(u64);

/// How a flight ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Landing {
    Renewed { until: Time },
    NotHeld,
    Failed,
}

/// Told of the loss, without a lock.
pub(crate) type OnLoss = Box<dyn Fn(Loss) + Send + Sync>;

pub(crate) struct Term {
    state: Mutex<State>,
    on_loss: OnLoss,
    origin: Origin,
}

struct State {
    stage: Stage,
    until: Time,
    cap: Time,
    feed: Option<Feed>,
    /// The one under way, and until when it may be.
    flight: Option<(Flight, Time)>,
    flights: u64,
    renewals: u64,
    /// Who waits for the flight to land.
    landing: Vec<ClockUnparker>,
    /// Who wants to know of the loss.
    senders: Vec<Sender<Loss>>,
    wakers: Vec<(u64, Waker)>,
    next_waker: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Kept,
    Stopped,
    Lost(Loss),
}

#[derive(Clone, Copy)]
struct Feed {
    period: Duration,
    until: Time,
}

impl State {
    fn ends(&self) -> Time {
        let fed = self.feed.map_or(Time::MAX, |feed| feed.until);
        self.until.min(self.cap).min(fed)
    }

    /// TERM-1. The reason is that which came first.
    fn overdue(&self, now: Time) -> Option<Loss> {
        let ends = self.ends();
        if now < ends {
            return None;
        }
        Some(if ends == self.until {
            Loss::Expired
        } else if ends == self.cap {
            Loss::HeldTooLong
        } else {
            Loss::NotFed
        })
    }
}

impl Term {
    /// Begins. Fed for the first time at `now`.
    pub(crate) fn new(
        now: Time,
        until: Time,
        cap: Time,
        feed: Option<Duration>,
        on_loss: OnLoss,
    ) -> Self {
        Term {
            state: Mutex::new(State {
                stage: Stage::Kept,
                until,
                cap,
                feed: feed.map(|period| Feed {
                    period,
                    until: now + period,
                }),
                flight: None,
                flights: 0,
                renewals: 0,
                landing: Vec::new(),
                senders: Vec::new(),
                wakers: Vec::new(),
                next_waker: 0,
            }),
            on_loss,
            origin: Origin::here(),
        }
    }

    /// TERM-5.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// How it stands at `now`.
    pub(crate) fn look(&self, now: Time) -> Standing {
        if self.is_forked() {
            return Standing::Lost(Loss::Forked);
        }
        let state = self.state.lock();
        if state.stage == Stage::Kept
            && let Some(loss) = state.overdue(now)
        {
            self.lose(state, loss);
            return Standing::Lost(loss);
        }
        match state.stage {
            Stage::Kept => Standing::Kept {
                until: state.until,
                ends: state.ends(),
            },
            Stage::Stopped => Standing::Stopped,
            Stage::Lost(loss) => Standing::Lost(loss),
        }
    }

    /// How often it was renewed.
    pub(crate) fn renewals(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        self.state.lock().renewals
    }

    /// A renewal is about to be sent, and may be under way until `limit`: TERM-2. None departs
    /// while another one is under way.
    pub(crate) fn depart(&self, now: Time, limit: Time) -> Option<Flight> {
        let mut state = self.state.lock();
        if state.stage != Stage::Kept || state.flight.is_some() {
            return None;
        }
        if let Some(loss) = state.overdue(now) {
            self.lose(state, loss);
            return None;
        }
        state.flights += 1;
        let flight = Flight(state.flights);
        state.flight = Some((flight, limit));
        Some(flight)
    }

    /// The answer to a flight; one that was given up may still land. Whether the term goes on.
    pub(crate) fn land(&self, flight: Flight, now: Time, landing: Landing) -> bool {
        let mut state = self.state.lock();
        let mut waiting = Vec::new();
        if state
            .flight
            .is_some_and(|(under_way, _)| under_way == flight)
        {
            state.flight = None;
            waiting = std::mem::take(&mut state.landing);
        }
        let mut goes_on = false;
        if state.stage == Stage::Kept {
            let loss = match (state.overdue(now), landing) {
                (Some(loss), _) => Some(loss),
                (None, Landing::NotHeld) => Some(Loss::NotHeld),
                (None, Landing::Renewed { until }) => {
                    // An answer that was overtaken says less than is known.
                    state.until = state.until.max(until);
                    state.renewals += 1;
                    None
                }
                (None, Landing::Failed) => None,
            };
            match loss {
                Some(loss) => self.lose(state, loss),
                None => {
                    goes_on = true;
                    drop(state);
                }
            }
        } else {
            drop(state);
        }
        waiting.iter().for_each(ClockUnparker::unpark);
        goes_on
    }

    /// Whether this one is under way, and was not given up.
    pub(crate) fn awaits(&self, flight: Flight) -> bool {
        let under_way = self.state.lock().flight;
        under_way.is_some_and(|(under_way, _)| under_way == flight)
    }

    /// Until when a renewal is under way. One whose time has passed is given up, which is answered
    /// once.
    pub(crate) fn under_way(&self, now: Time) -> UnderWay {
        let mut state = self.state.lock();
        match state.flight {
            None => UnderWay::Nothing,
            Some((_, limit)) if now < limit => UnderWay::Until(limit),
            Some(_) => {
                state.flight = None;
                let waiting = std::mem::take(&mut state.landing);
                drop(state);
                waiting.iter().for_each(ClockUnparker::unpark);
                UnderWay::GivenUp
            }
        }
    }

    /// The holder is alive. Whether it still holds.
    pub(crate) fn feed(&self, now: Time) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = self.state.lock();
        if state.stage != Stage::Kept {
            return false;
        }
        if let Some(loss) = state.overdue(now) {
            self.lose(state, loss);
            return false;
        }
        if let Some(feed) = &mut state.feed {
            // Who was overtaken read the clock before, and takes nothing back.
            feed.until = feed.until.max(now + feed.period);
        }
        true
    }

    /// The holder gives it up: TERM-2.
    pub(crate) fn stop(&self, now: Time) -> Stopped {
        if self.is_forked() {
            return Stopped::Lost(Loss::Forked);
        }
        let mut state = self.state.lock();
        match state.stage {
            Stage::Stopped => Stopped::Before,
            Stage::Lost(loss) => Stopped::Lost(loss),
            Stage::Kept => {
                if let Some(loss) = state.overdue(now) {
                    self.lose(state, loss);
                    return Stopped::Lost(loss);
                }
                state.stage = Stage::Stopped;
                let gone = (
                    std::mem::take(&mut state.senders),
                    std::mem::take(&mut state.wakers),
                );
                drop(state);
                // Who awaits a loss that will never be looks again.
                wake_all(gone.1);
                Stopped::Now
            }
        }
    }

    /// Lost for a reason from outside.
    pub(crate) fn end(&self, loss: Loss) {
        let state = self.state.lock();
        if state.stage == Stage::Kept {
            self.lose(state, loss);
        }
    }

    /// Waits until no renewal is under way any more, or its time has passed.
    pub(crate) fn settled(&self, clock: &Clock) {
        if self.is_forked() {
            return;
        }
        let parker = ClockParker::new(clock);
        loop {
            let until = {
                let mut state = self.state.lock();
                match state.flight {
                    Some((_, limit)) if clock.now() < limit => {
                        state.landing.push(parker.unparker());
                        limit
                    }
                    _ => return,
                }
            };
            parker.park_until(until);
        }
    }

    /// A channel that gets the loss, or is disconnected by a stop.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        if self.is_forked() {
            // There is room for one.
            let _ = sender.send(Loss::Forked);
            return receiver;
        }
        let mut state = self.state.lock();
        match state.stage {
            Stage::Kept => state.senders.push(sender),
            Stage::Stopped => {}
            Stage::Lost(loss) => {
                drop(state);
                // Nobody else has it, so there is room.
                let _ = sender.send(loss);
            }
        }
        receiver
    }

    /// Wakes the waker at the end, in the place of the one that was left under this number before.
    /// Nothing is left if it has ended: look again.
    pub(crate) fn leave_waker(&self, place: &mut Option<u64>, waker: &Waker) {
        if self.is_forked() {
            return;
        }
        let mut new = waker.clone();
        let mut state = self.state.lock();
        if state.stage != Stage::Kept {
            return;
        }
        match place.and_then(|place| state.wakers.iter_mut().find(|(number, _)| *number == place)) {
            Some((_, left)) => std::mem::swap(left, &mut new),
            None => {
                state.next_waker += 1;
                *place = Some(state.next_waker);
                let number = state.next_waker;
                state.wakers.push((number, new));
                return;
            }
        }
        drop(state);
        drop(new);
    }

    /// Nobody waits there any more.
    pub(crate) fn take_waker(&self, place: u64) {
        if self.is_forked() {
            return;
        }
        let mut state = self.state.lock();
        let at = state.wakers.iter().position(|(number, _)| *number == place);
        let waker = at.map(|at| state.wakers.swap_remove(at));
        drop(state);
        drop(waker);
    }

    /// TERM-4. Everybody is told without the lock.
    fn lose(&self, mut state: MutexGuard<'_, State>, loss: Loss) {
        state.stage = Stage::Lost(loss);
        let senders = std::mem::take(&mut state.senders);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for sender in senders {
            // There is room for one, and one is sent.
            let _ = sender.send(loss);
        }
        // What it drops may be user code.
        let _ = contain(|| (self.on_loss)(loss));
        wake_all(wakers);
    }
}

/// A runtime's code; whatever it does, the others are woken.
fn wake_all(wakers: Vec<(u64, Waker)>) {
    for (_, waker) in wakers {
        let _ = contain(|| waker.wake());
    }
}

/// What is known of a flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnderWay {
    Nothing,
    Until(Time),
    GivenUp,
}

#[cfg(all(test, not(loom)))]
#[path = "term/tests.rs"]
mod tests;
