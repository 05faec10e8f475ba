//! Panics that a program catches: all main types can be used afterwards.
//!
//! The locks of this crate have no poison. User code that runs under one (the `Eq` and `Clone` of a
//! key, a closure that gets a value) is called before anything is changed for its entry. All other
//! user code runs without a lock, and what its panic interrupts is finished by drops. So a panic
//! leaves an engine as it was before the call, or as it is after it. Only a value that a closure
//! has changed in part stays like that, and the user's own types answer for it. **UNWIND-1**
//!
//! The front ends, their handles, futures and guards consist of engines, so they need no impl of
//! their own. What contains closures or futures of the user, such as builders, tasks and reports,
//! is not marked: it is as safe as they are.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::clock::{Clock, ManualClock};
use crate::engine::{Engine, Frontend, Server};
#[cfg(feature = "stream")]
use crate::expiry::Expirations;
use crate::keyed::{Debounce, Throttle};
use crate::scheduler::Closing;

impl<F: Frontend> UnwindSafe for Engine<F> {}
impl<F: Frontend> RefUnwindSafe for Engine<F> {}

impl<F: Frontend> UnwindSafe for Server<F> {}
impl<F: Frontend> RefUnwindSafe for Server<F> {}

// The waiters of a clock are changed by this crate alone.
impl UnwindSafe for Clock {}
impl RefUnwindSafe for Clock {}

impl UnwindSafe for ManualClock {}
impl RefUnwindSafe for ManualClock {}

// An item is in the channel, or was taken.
impl<R> UnwindSafe for Closing<R> {}
impl<R> RefUnwindSafe for Closing<R> {}

#[cfg(feature = "stream")]
impl<K, V> UnwindSafe for Expirations<K, V> {}
#[cfg(feature = "stream")]
impl<K, V> RefUnwindSafe for Expirations<K, V> {}

// A closure that merges gets the values of one window, which stays in its table.
impl<K, V, S> UnwindSafe for Debounce<K, V, S> {}
impl<K, V, S> RefUnwindSafe for Debounce<K, V, S> {}

impl<K, V, S> UnwindSafe for Throttle<K, V, S> {}
impl<K, V, S> RefUnwindSafe for Throttle<K, V, S> {}
