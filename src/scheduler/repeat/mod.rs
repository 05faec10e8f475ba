//! Timers that repeat.
//!
//! | file | what |
//! |---|---|
//! | `arming.rs` | `Handle::repeat` |
//! | `period.rs` | what is asked for |
//! | `missed.rs` | what becomes of rounds that are late: a pure function |
//! | `rhythm.rs` | when the rounds of one key are due |
//! | `round.rs` | what a round is told |
//! | `next.rs` | what a round answers |
//! | `task.rs` | the closure with its rhythm, as an entry's payload |
//!
//! A round is an arming like any other. While it runs, the payload is with the worker that runs it;
//! when it has ended, the payload is kept for after the run with the deadline of the next round, as
//! an explicit `schedule` would be, and settling files it. So cancelling, moving and replacing a
//! repeating key need no state of their own, but for one thing: before the round has ended there is
//! nothing kept yet, and `Repeating` in `shard/stripe/repeating.rs` holds what calls said
//! meanwhile.
//!
//! - **REPEAT-1** The stripe never knows a period. What is late is decided at the claim, by the
//!   payload, under the lock and by arithmetic alone: a round that is put off is moved, and has not
//!   started.
//! - **REPEAT-2** The rhythm knows the deadline that it asked for. If it is woken at another one,
//!   somebody moved the timer: a grid begins anew there (or, if that lies in the past, where the
//!   round runs), and such a round is never missed.
//! - **REPEAT-3** Rounds that ran and rounds that were left out and told add up to the points of
//!   the grid.

mod arming;
mod missed;
mod next;
mod period;
mod rhythm;
mod round;
mod task;

pub use missed::Missed;
pub use next::{IntoNext, Next};
pub use period::{AfterPanic, Period, SoFar};
pub use round::Round;

pub(super) use rhythm::Rhythm;
