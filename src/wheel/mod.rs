//! A hierarchical timing wheel for those who drive their own event loop.
//!
//! [`Wheel<T>`] keeps values until they are due. It has no threads, no clock and no locks: time is
//! a [`Tick`] that the caller passes in, and says itself how long a tick is. (For timers from many
//! threads see the crate's front page.)
//!
//! ```
//! use tourbillon::wheel::{Tick, Wheel};
//!
//! // Stands for waiting for events with a time limit, and for reading the clock afterwards:
//! // deadlines round up to ticks and the clock rounds down, so nothing is early.
//! fn wait_for_events(_until: Option<Tick>) -> Tick {
//! #   const SLOW_LOOP: u64 = 2;
//! #   Tick::new(_until.map_or(0, Tick::get) + SLOW_LOOP)
//!     // ..
//! }
//!
//! let mut wheel = Wheel::new();
//! wheel.insert(Tick::new(5_000), "second");
//! wheel.insert(Tick::new(10), "first");
//!
//! let mut seen = Vec::new();
//! while !wheel.is_empty() {
//!     let now = wait_for_events(wheel.next_wake());
//!     while wheel.advance(now, 256, |expired| seen.push(expired.value)).more {
//!         // A good place to look whether events have arrived.
//!     }
//! }
//! assert_eq!(seen, ["first", "second"]);
//! ```
//!
//! # Levels
//!
//! Six levels of 64 slots. A value lies on the level of the distance to its due tick, and moves
//! down level by level as time comes closer (it *cascades*), so that every due tick is exact,
//! however far away. At most five moves per value; a value that is removed before, or pushed out
//! again and again, mostly moves less.
//!
//! | level | a slot is (ticks) | the level spans (ticks) | at 1 ms: a slot | the level |
//! |---|---|---|---|---|
//! | 0 | 1 | 64 | 1 ms | 64 ms |
//! | 1 | 64 | 4,096 | 64 ms | 4.1 s |
//! | 2 | 4,096 | 262,144 | 4.1 s | 4.4 min |
//! | 3 | 262,144 | 16,777,216 | 4.4 min | 4.7 h |
//! | 4 | 16,777,216 | 1,073,741,824 | 4.7 h | 12.4 days |
//! | 5 | 1,073,741,824 | 68,719,476,736 | 12.4 days | 2.2 years |
//! | far | a plain list, looked at once per turn of level 5 | the rest | - | 584 million years |
//!
//! # What it costs
//!
//! [`insert`](Wheel::insert), [`remove`](Wheel::remove) and [`reschedule`](Wheel::reschedule) take
//! constant time. [`reschedule`](Wheel::reschedule) to a later tick, which is what touching a
//! session is, only writes the new tick: the value moves when its old slot comes up.
//! [`advance`](Wheel::advance) takes time in proportion to what expires and moves and to the
//! occupied slots on the way, whatever the distance; [`next_wake`](Wheel::next_wake) looks at six
//! bitmaps. A value costs its own size and about 32 bytes. Memory for values is kept at its peak
//! and used again; emptied slots keep at most 1 KiB each, and a wheel 32 KiB for the next ones.

mod buffers;
mod core;
mod drain;
mod filing;
mod full;
mod level;
mod slab;
mod store;
mod values;

pub(crate) use self::core::CoreWheel;
pub(crate) use self::filing::{Budget, CoreProgress, EntryStore, WheelPosition};
pub use self::full::FullError;
#[cfg(all(test, not(loom)))]
pub(crate) use self::slab::CHUNK;
pub(crate) use self::slab::{NO_ENTRY, Slab};
pub use self::store::{Expired, Key};
pub use self::values::{Progress, Wheel};
pub use crate::tick::Tick;
