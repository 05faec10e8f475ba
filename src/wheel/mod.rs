//! Wheel.

mod core;
mod level;
mod slab;

pub(crate) use self::core::{Budget, CoreWheel, Entries, Place, Progress};
pub(crate) use self::slab::{NO_ENTRY, Slab};
pub use crate::tick::Tick;
