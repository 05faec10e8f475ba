//! Helpers that limit how often calls of a key run: [`Debounce`] and [`Throttle`].
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
