//! Limits of how often calls of a key run.
//!
//! [`Debounce`] runs a key when its calls have stopped for a while, and [`Throttle`] at most once
//! per window. Both arm their timers on a [`Scheduler`](crate::Scheduler).

mod calls;
mod debounce;
mod shared;
mod throttle;
mod window;

pub use debounce::{Debounce, DebounceBuilder};
pub use throttle::{Throttle, ThrottleBuilder};
pub use window::Edges;
