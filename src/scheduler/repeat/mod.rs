//! Timers that repeat.
//!
//! | file | content |
//! |---|---|
//! | `arming.rs` | `Handle::repeat` |
//! | `period.rs` | the period that a caller asks for |
//! | `missed.rs` | what happens to late rounds: a pure function |
//! | `calendar.rs` | which dates of a calendar have come, and which of them run |
//! | `cron.rs` | cron expressions, as a calendar |
//! | `cadence.rs` | when the rounds of one key are due |
//! | `round.rs` | a task's view of its round |
//! | `next.rs` | the answer of a round |
//! | `task.rs` | the closure with its cadence, as the payload of an entry |
//!
//! A round is an arming like any other. While it runs, the worker that runs it holds the payload.
//! When it has ended, the payload becomes the successor of the run, with the deadline of the next
//! round, as an explicit `schedule` would. Completing the run files it.
//!
//! So cancelling, moving and replacing a repeating key need no state of their own, with one
//! exception: before the round has ended there is no successor yet. Until then, `Repeating` in
//! `shard/stripe/repeating.rs` records what calls asked for.
//!
//! - **REPEAT-1** The stripe never knows a period. The payload decides at the claim what happens to
//!   a late round, under the lock and by arithmetic alone. A round that is put off is moved, and
//!   has not started.
//! - **REPEAT-2** The cadence knows the deadline that it asked for. If it is woken at another one,
//!   a call moved the timer. Then a grid begins anew at that deadline, or, if it is in the past,
//!   where the round runs. Such a round is never missed.
//! - **REPEAT-4** An extra round touches neither the grid nor what was missed. The round that was
//!   pending before it follows it, at its own deadline, unless the task or a call decides
//!   otherwise.
//! - **REPEAT-5** A calendar is asked outside of all locks. So its timer runs in order to look at
//!   the wall clock: at least once an hour, and when a date seems to have come. A look that finds
//!   no date is no round, and the task does not see it.
//! - **REPEAT-3** The rounds that ran and the rounds that were skipped and reported add up to the
//!   points of the grid.

mod arming;
mod cadence;
mod calendar;
#[cfg(feature = "cron")]
mod cron;
mod missed;
mod next;
mod period;
mod round;
mod task;

#[cfg(feature = "cron")]
pub use cron::{Cron, CronError};
pub use missed::Missed;
pub use next::{IntoNext, Next};
pub use period::{AfterPanic, Period, SoFar};
pub use round::Round;

pub(super) use cadence::Cadence;
pub(crate) use cadence::PUT_OFF_AT_MOST;
#[cfg(feature = "tokio")]
pub(super) use cadence::RoundInfo;
pub(crate) use missed::{DueRound, plan};
