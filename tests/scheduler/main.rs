//! Timers under keys: arming, moving, cancelling, firing, bounds, and the end of a scheduler.

mod auto_traits;
mod batch;
mod cancel;
mod cancel_running;
mod catch_up;
mod firing;
mod given;
mod hashing;
mod health;
mod ids;
mod keys;
mod limits;
mod metrics;
mod moves;
mod pace;
mod promises;
mod reasons;
mod running;
#[cfg(feature = "serde")]
mod serialized;
mod shrink;
mod shutdown;
mod timer;
mod when;
mod within;
