//! The words between a user and a store: what a call may say, what it answers, and why it fails.
//! The stores use them, too, for calls within a transaction of the user's. Nothing here calls a
//! store.
//!
//! May use `store`, whose calls and answers these are in the time of the system.

mod answers;
mod complete;
mod errors;
mod filters;
mod in_transaction;
mod limit;
pub(crate) mod names;
pub(crate) mod sent;
mod timer_info;

pub(crate) use answers::FromAnswer;
pub use answers::{CancelAnswer, IfAbsentAnswer, RescheduleAnswer, ScheduleAnswer};
pub use complete::{CompleteError, CompletesRun, Completion};
pub use errors::{CallError, StartError};
pub use filters::{DeadFilter, TimerFilter};
#[doc(hidden)]
pub use in_transaction::CallWithin;
pub use in_transaction::{Awaited, InTransaction, TakesCalls};
pub(crate) use limit::Alarm;
pub use names::Invalid;
pub use sent::Sent;
pub(crate) use sent::{AnswerList, ReplySender};
pub use timer_info::{DeadTimer, Paging, StoredTimer};
