//! The state of one lease, from its grant to its end.
//!
//! ```text
//!                         begin_renewal
//!   Held ---------------------------------------------------> Held, in flight
//!    ^                                                              |
//!    '---- complete_renewal: renewed (later `until`), failed -------|
//!    '---- in_flight_status: given up at its limit -----------------'
//!
//!   Held, in flight or not
//!    |---- stop --------------------------------------------------> Stopped
//!    '---- the clock, the cap, not fed, `not held`, end ----------> Lost
//! ```
//!
//! One lock protects the whole state. An ended lease stays ended.
//!
//! - **LEASE-1** The clock decides. Before it does anything else, a call compares `now` with the
//!   end of the lease: `until`, the cap, or the time by which the holder had to feed it. From the
//!   earliest of these on the lease is lost, whatever an answer says later.
//! - **LEASE-2** No renewal begins after the end. `begin_renewal` checks the state and notes the
//!   renewal under one hold of the lock. `stop` ends the lease under one hold, too. So after
//!   `stop` either no renewal is in flight and none will begin, or
//!   [`wait_for_in_flight`](LeaseState::wait_for_in_flight) waits for the one that is.
//! - **LEASE-3** An answer reaches only the lease that asked, since it is applied to this object
//!   and not looked up by a name. It changes nothing about an ended lease.
//! - **LEASE-4** The loss is reported exactly once, by the call that ends the lease, after that
//!   call has released the lock.
//! - **LEASE-5** In a forked copy of the process the lease is lost, and the lock is not taken: it
//!   may be held by a thread that the copy does not have. So every call that a holder can make
//!   checks the origin first.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon::{Clock, ClockParker, Time};

use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Arc, Mutex, MutexGuard, Origin, catch_panic};

/// Why a lease was lost.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon_leases::{Leases, Loss, MemoryStore};
///
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report").wait()?;
/// leases.close(Duration::from_secs(1));
/// assert_eq!(guard.lost().loss(), Some(Loss::Closed));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ran out by the local clock before another renewal succeeded.
    Expired,
    /// The backend answered that this owner no longer holds it.
    NotHeld,
    /// The holder did not call `feed` in time, so it counts as dead.
    NotFed,
    /// The lease reached its longest hold.
    HeldTooLong,
    /// The [`Leases`](crate::Leases) or the [`KeepAlive`](crate::KeepAlive) were closed.
    Closed,
    /// This process is a forked copy of the holder and renews nothing. The original process may
    /// still hold the lease.
    Forked,
}

impl std::error::Error for Loss {}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "it ran out without a renewal",
            Loss::NotHeld => "the store says that it is no longer held",
            Loss::NotFed => "it was not fed in time",
            Loss::HeldTooLong => "it reached its longest hold",
            Loss::Closed => "the leases or the keep-alive were closed",
            Loss::Forked => "it belongs to the process that this one was forked from",
        })
    }
}

/// The status of a lease at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeaseStatus {
    /// It is held. `until` is the end by the last renewal. `ends` is the earliest end of all:
    /// `until`, the cap, or the feeding period.
    Held {
        until: Time,
        ends: Time,
    },
    Stopped,
    Lost(Loss),
}

/// The result of a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stopped {
    /// This call stopped the lease.
    Now,
    /// The lease was lost before.
    Lost(Loss),
    /// The lease was stopped before.
    Before,
}

/// Names a renewal that has begun. Its number tells it from earlier and later ones of the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InFlight(u64);

/// A lease that is held after the outcome of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StillHeld {
    /// As those of [`LeaseStatus::Held`].
    pub(crate) until: Time,
    pub(crate) ends: Time,
    /// The number of renewals that have succeeded.
    pub(crate) renewals: u64,
}

/// How a renewal ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RenewalOutcome {
    Renewed { until: Time },
    NotHeld,
    Failed,
}

/// Called with the loss, without a lock.
pub(crate) type OnLoss = Box<dyn Fn(Loss) + Send + Sync>;

/// The state of one lease, its waiting threads and its waiting tasks.
pub(crate) struct LeaseState {
    state: Mutex<State>,
    /// Notifies the owner of this lease of the loss.
    on_loss: OnLoss,
    origin: Origin,
}

struct State {
    stage: Stage,
    /// The end by the last successful renewal.
    until: Time,
    /// The end of the longest hold.
    cap: Time,
    feed: Option<Feed>,
    /// The renewal in flight, and the moment from which it counts as given up.
    in_flight: Option<(InFlight, Time)>,
    /// The number of renewals that have begun, which numbers them.
    in_flights: u64,
    /// The number of renewals that have succeeded.
    renewals: u64,
    /// Threads and tasks that wait until no renewal is in flight.
    waiters: Vec<Waker>,
    /// Channels that get the loss.
    senders: Vec<Sender<Loss>>,
    /// Tasks that await the loss, each under the number it has left its waker under.
    wakers: Vec<(u64, Waker)>,
    next_waker: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Held,
    Stopped,
    Lost(Loss),
}

#[derive(Clone, Copy)]
/// The holder has to feed the lease before `until`, and then once per `period`.
struct Feed {
    period: Duration,
    until: Time,
}

impl State {
    /// Returns the earliest end: by the lease, the cap, or the feeding period.
    fn ends(&self) -> Time {
        let fed = self.feed.map_or(Time::MAX, |feed| feed.until);
        self.until.min(self.cap).min(fed)
    }

    /// Returns the loss if the lease is over at `now` (LEASE-1). The end that came first is the
    /// reason.
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

impl LeaseState {
    /// Returns a held lease. It counts as fed at `now`.
    pub(crate) fn new(
        now: Time,
        until: Time,
        cap: Time,
        feed: Option<Duration>,
        on_loss: OnLoss,
    ) -> Self {
        LeaseState {
            state: Mutex::new(State {
                stage: Stage::Held,
                until,
                cap,
                feed: feed.map(|period| Feed {
                    period,
                    until: now + period,
                }),
                in_flight: None,
                in_flights: 0,
                renewals: 0,
                waiters: Vec::new(),
                senders: Vec::new(),
                wakers: Vec::new(),
                next_waker: 0,
            }),
            on_loss,
            origin: Origin::here(),
        }
    }

    /// Whether this process is a forked copy of the holder (LEASE-5).
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Returns the status at `now`. Ends the lease if it is over.
    pub(crate) fn look(&self, now: Time) -> LeaseStatus {
        if self.is_forked() {
            return LeaseStatus::Lost(Loss::Forked);
        }
        self.status(now)
    }

    /// Looks like [`look`](Self::look), for rounds and flushes: a forked copy has none of their
    /// threads, so they save the system call.
    pub(crate) fn status(&self, now: Time) -> LeaseStatus {
        let state = self.state.lock();
        // The first caller after the end finds the loss, so no thread has to run in time for it.
        if state.stage == Stage::Held
            && let Some(loss) = state.overdue(now)
        {
            self.lose(state, loss);
            return LeaseStatus::Lost(loss);
        }
        match state.stage {
            Stage::Held => LeaseStatus::Held {
                until: state.until,
                ends: state.ends(),
            },
            Stage::Stopped => LeaseStatus::Stopped,
            Stage::Lost(loss) => LeaseStatus::Lost(loss),
        }
    }

    /// Returns the number of successful renewals.
    pub(crate) fn renewals(&self) -> u64 {
        if self.is_forked() {
            return 0;
        }
        self.state.lock().renewals
    }

    /// Begins a renewal that may be in flight until `limit` (LEASE-2). Returns `None` if the lease
    /// has ended or another renewal is in flight. The caller sends the renewal after this call.
    pub(crate) fn begin_renewal(&self, now: Time, limit: Time) -> Option<InFlight> {
        let mut state = self.state.lock();
        if state.stage != Stage::Held || state.in_flight.is_some() {
            return None;
        }
        if let Some(loss) = state.overdue(now) {
            self.lose(state, loss);
            return None;
        }
        state.in_flights += 1;
        let in_flight = InFlight(state.in_flights);
        state.in_flight = Some((in_flight, limit));
        Some(in_flight)
    }

    /// Applies the outcome of a renewal, also of one that was given up before. Returns whether the
    /// lease is still held.
    pub(crate) fn complete_renewal(
        &self,
        in_flight: InFlight,
        now: Time,
        outcome_of_renewal: RenewalOutcome,
    ) -> bool {
        let held = self.complete(in_flight, now, outcome_of_renewal);
        held.is_some()
    }

    /// Applies an outcome as [`complete_renewal`](Self::complete_renewal) does. Returns what is held.
    pub(crate) fn complete(
        &self,
        in_flight: InFlight,
        now: Time,
        outcome_of_renewal: RenewalOutcome,
    ) -> Option<StillHeld> {
        let mut state = self.state.lock();
        // Another renewal may be in flight if this one was given up. Then the waiting threads wait
        // for that one.
        let mut waiting = Vec::new();
        if state
            .in_flight
            .is_some_and(|(in_flight_status, _)| in_flight_status == in_flight)
        {
            state.in_flight = None;
            waiting = std::mem::take(&mut state.waiters);
        }
        let mut held = None;
        if state.stage == Stage::Held {
            // The clock comes first: an answer after the end revives nothing (LEASE-1).
            let loss = match (state.overdue(now), outcome_of_renewal) {
                (Some(loss), _) => Some(loss),
                (None, RenewalOutcome::NotHeld) => Some(Loss::NotHeld),
                (None, RenewalOutcome::Renewed { until }) => {
                    // Answers may arrive in another order than their requests were sent. An older
                    // one must not shorten the lease.
                    state.until = state.until.max(until);
                    state.renewals += 1;
                    None
                }
                (None, RenewalOutcome::Failed) => None,
            };
            match loss {
                Some(loss) => self.lose(state, loss),
                None => {
                    held = Some(StillHeld {
                        until: state.until,
                        ends: state.ends(),
                        renewals: state.renewals,
                    });
                    drop(state);
                }
            }
        } else {
            drop(state);
        }
        // Both branches have released the lock. A woken thread takes it at once.
        wake_all(waiting);
        held
    }

    /// Whether this renewal is in flight and was not given up.
    pub(crate) fn awaits(&self, in_flight: InFlight) -> bool {
        let in_flight_status = self.state.lock().in_flight;
        in_flight_status.is_some_and(|(in_flight_status, _)| in_flight_status == in_flight)
    }

    /// Returns whether a renewal is in flight, and until when. Gives it up if its limit has passed,
    /// and reports that exactly once.
    pub(crate) fn in_flight_status(&self, now: Time) -> InFlightStatus {
        let mut state = self.state.lock();
        match state.in_flight {
            None => InFlightStatus::Nothing,
            Some((_, limit)) if now < limit => InFlightStatus::Until(limit),
            Some(_) => {
                // The next renewal may begin, although the answer to this one may still come.
                state.in_flight = None;
                let waiting = std::mem::take(&mut state.waiters);
                drop(state);
                wake_all(waiting);
                InFlightStatus::GivenUp
            }
        }
    }

    /// Notes that the holder is alive. Returns whether the lease is still held.
    pub(crate) fn feed(&self, now: Time) -> bool {
        if self.is_forked() {
            return false;
        }
        let mut state = self.state.lock();
        if state.stage != Stage::Held {
            return false;
        }
        if let Some(loss) = state.overdue(now) {
            self.lose(state, loss);
            return false;
        }
        if let Some(feed) = &mut state.feed {
            // A thread may read the clock and be overtaken by another feed. Its older time must not
            // shorten the period.
            feed.until = feed.until.max(now + feed.period);
        }
        true
    }

    /// Stops the lease for its holder (LEASE-2).
    pub(crate) fn stop(&self, now: Time) -> Stopped {
        if self.is_forked() {
            return Stopped::Lost(Loss::Forked);
        }
        let mut state = self.state.lock();
        match state.stage {
            Stage::Stopped => Stopped::Before,
            Stage::Lost(loss) => Stopped::Lost(loss),
            Stage::Held => {
                // A holder that was paused for too long has to learn it from its stop.
                if let Some(loss) = state.overdue(now) {
                    self.lose(state, loss);
                    return Stopped::Lost(loss);
                }
                state.stage = Stage::Stopped;
                // Taken out now, and dropped or woken without the lock: both run code of others.
                // The drop of the senders disconnects the channels.
                let gone = (
                    std::mem::take(&mut state.senders),
                    std::mem::take(&mut state.wakers),
                );
                drop(state);
                // Wakes the tasks that await the loss. They find that it will never come.
                wake_all(gone.1.into_iter().map(|(_, waker)| waker));
                Stopped::Now
            }
        }
    }

    /// Ends the lease with a loss, if it is still held.
    pub(crate) fn end(&self, loss: Loss) {
        let state = self.state.lock();
        if state.stage == Stage::Held {
            self.lose(state, loss);
        }
    }

    /// Waits until no renewal is in flight, or until its limit has passed.
    pub(crate) fn wait_for_in_flight(&self, clock: &Clock) {
        let parker = ClockParker::new(clock);
        let waker = Waker::from(Arc::new(parker.unparker()));
        while let Some(until) = self.in_flight_until(|| clock.now(), &waker) {
            parker.park_until(until);
        }
    }

    /// Returns the limit of the renewal that is in flight. Returns `None` if there is none, or if
    /// its limit has passed. The waker is woken when that renewal has an outcome, or is given up.
    pub(crate) fn in_flight_until(&self, now: impl Fn() -> Time, waker: &Waker) -> Option<Time> {
        if self.is_forked() {
            return None;
        }
        // Cloned before the lock is taken: a waker is a runtime's code.
        let own = waker.clone();
        let mut state = self.state.lock();
        match state.in_flight {
            Some((_, limit)) if now() < limit => {
                // Left under the lock of the check: an answer in between wakes it.
                if !state.waiters.iter().any(|left| left.will_wake(waker)) {
                    state.waiters.push(own);
                }
                Some(limit)
            }
            _ => None,
        }
    }

    /// Returns a channel that gets the loss, or is disconnected by a stop.
    pub(crate) fn loss_channel(&self) -> Receiver<Loss> {
        let (sender, receiver) = bounded(1);
        if self.is_forked() {
            // The channel is new and has room for one.
            let _ = sender.send(Loss::Forked);
            return receiver;
        }
        let mut state = self.state.lock();
        match state.stage {
            Stage::Held => state.senders.push(sender),
            Stage::Stopped => {}
            Stage::Lost(loss) => {
                drop(state);
                // Nobody else has this channel, so there is room.
                let _ = sender.send(loss);
            }
        }
        receiver
    }

    /// Leaves a waker that is woken when the lease ends. Replaces the waker that was left under the
    /// number in `place`, and stores a new number there if there was none.
    ///
    /// Leaves nothing if the lease has ended, so the caller has to check again after this call.
    pub(crate) fn leave_waker(&self, place: &mut Option<u64>, waker: &Waker) {
        if self.is_forked() {
            return;
        }
        let mut new = waker.clone();
        let mut state = self.state.lock();
        if state.stage != Stage::Held {
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
        // The old waker is dropped without the lock, since its drop is a runtime's code.
        drop(state);
        drop(new);
    }

    /// Removes the waker that was left under this number.
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

    /// Ends the lease with a loss, and reports it without the lock (LEASE-4).
    fn lose(&self, mut state: MutexGuard<'_, State>, loss: Loss) {
        state.stage = Stage::Lost(loss);
        let senders = std::mem::take(&mut state.senders);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        for sender in senders {
            // Each channel has room for one and gets only this one.
            let _ = sender.send(loss);
        }
        // The function may drop a key, which is user code. The wakers are woken all the same.
        let _ = catch_panic(|| (self.on_loss)(loss));
        wake_all(wakers.into_iter().map(|(_, waker)| waker));
    }
}

/// Wakes all wakers. A waker is a runtime's code: if one panics, the others are woken all the same.
fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_panic(|| waker.wake());
    }
}

/// Whether a renewal is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InFlightStatus {
    /// No renewal is in flight.
    Nothing,
    /// A renewal is in flight and may be until this moment.
    Until(Time),
    /// A renewal was in flight for too long. The call that returns this has given it up.
    GivenUp,
}

#[cfg(all(test, not(loom)))]
mod tests;
