//! Events about callers that wait for a lock.
//!
//! A repeating timer on the workers for renewals posts the events of each wait. So a hanging call
//! to the store holds up no event. The caller notes each answer of the store, and ends the events
//! when it returns.
//!
//! **WAIT-1**: no event of a wait is posted after the wait has ended. The end is noted under the
//! lock that the timer holds while it posts.

use std::time::Duration;

use tourbillon::{Next, Time};

use super::events::What;
use super::renewal_loop::RenewalLoop;
use super::timer_key::TimerKey;
use super::timers::Timers;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// The time from the beginning of a wait to its first event. Each following pause is twice as long.
pub(in super::super) const FIRST: Duration = Duration::from_secs(1);
/// The time after which a call to the store is reported although it has not failed yet.
const SLOW: Duration = Duration::from_millis(500);

/// A wait of a caller. Dropping it ends the events.
pub(in super::super) struct Waits {
    number: u64,
    timers: Arc<Timers>,
    /// The report of this caller (WAIT-1).
    state: Arc<Mutex<WaitState>>,
    origin: Origin,
}

/// What the events say about a wait.
#[derive(Default)]
struct WaitState {
    over: bool,
    /// When the call to the store began that has no answer yet.
    asked: Option<Time>,
    /// The store's last answer, if it was an error.
    error: Option<StoreError>,
}

impl WaitState {
    /// Returns why the store does not grant the lock: a slow call, or the error of the last answer.
    fn error(&self, now: Time) -> Option<StoreError> {
        match self.asked {
            Some(asked) if now.since(asked) >= SLOW => {
                let millis = now.since(asked).as_millis();
                let why = format!("no answer for {millis} ms, the call is still under way");
                Some(StoreError::Unavailable(why))
            }
            _ => self.error.clone(),
        }
    }
}

impl Waits {
    /// Notes that a call to the store begins.
    pub(in super::super) fn asks(&self, now: Time) {
        self.state.lock().asked = Some(now);
    }

    /// Notes that the store has answered.
    pub(in super::super) fn answered(&self, error: Option<StoreError>) {
        let before = {
            let mut state = self.state.lock();
            state.asked = None;
            std::mem::replace(&mut state.error, error)
        };
        // The old error is dropped without the lock, since the timer takes it for each event.
        drop(before);
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        // In a forked copy of the process the lock may stay locked forever, and there is no timer.
        if self.origin.is_elsewhere() {
            return;
        }
        self.state.lock().over = true;
        self.timers.cancel(TimerKey::Registration(self.number));
    }
}

impl<K: Clone + Send + Sync + 'static> RenewalLoop<K> {
    /// Posts events about a wait that begins now. `key` makes the key of an event when one is
    /// posted.
    pub(super) fn waits(self: &Arc<Self>, key: impl Fn() -> K + Send + 'static) -> Waits {
        let number = self.number();
        let since = self.now();
        let state = Arc::new(Mutex::new(WaitState::default()));
        let own = Arc::clone(&state);
        let renewal_loop = Arc::downgrade(self);
        let mut pause = FIRST;
        // Without a timer everything is closed, and the wait is about to end anyway.
        let _armed = self.timers.repeat(number, since + FIRST, move || {
            let Some(renewal_loop) = renewal_loop.upgrade() else {
                return Next::Stop;
            };
            let now = renewal_loop.now();
            // The lock is released while the event is prepared, since that runs user code.
            let error = {
                let state = own.lock();
                if state.over {
                    return Next::Stop;
                }
                state.error(now)
            };
            // The key's `Clone` is user code. Its panic costs only this event.
            let event = catch_panic(|| {
                let what = What::Waiting { since, error };
                renewal_loop.events.prepare(&key(), now, what)
            });
            match event {
                Ok(Some(event)) => {
                    let state = own.lock();
                    // The wait may have ended while the event was prepared (WAIT-1). Copies without
                    // room are dropped without the lock.
                    let left = if state.over {
                        Vec::new()
                    } else {
                        renewal_loop
                            .events
                            .post(&renewal_loop.timers, number, event)
                    };
                    drop(state);
                    drop(left);
                }
                Ok(None) => {}
                Err(_) => renewal_loop.events.miss(1),
            }
            pause = pause.saturating_mul(2);
            Next::At(now + pause)
        });
        Waits {
            number,
            timers: Arc::clone(&self.timers),
            state,
            origin: Origin::here(),
        }
    }
}
