//! Limits of how often calls of a key run.
//!
//! [`Debounce`] runs a key when its calls have stopped for a while, and [`Throttle`] at most once
//! per window. Both arm their timers on a [`Scheduler`](crate::Scheduler).
//!
//! # Files
//!
//! | file | content |
//! |---|---|
//! | `window.rs` | what one key remembers between its calls: pure functions, without a clock or a lock |
//! | `calls.rs` | the windows of all keys, and the timer of each of them |
//! | `debounce.rs`, `throttle.rs` | the public types and their builders |
//! | `shared.rs` | the calls and the setters that both types have |

mod calls;
mod debounce;
mod shared;
mod throttle;
mod window;

pub use debounce::{Debounce, DebounceBuilder};
pub use throttle::{Throttle, ThrottleBuilder};
pub use window::Edges;
