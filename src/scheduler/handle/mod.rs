//! The handle of a scheduler.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | `Handle`, and what its calls share |
//! | `schedule.rs` | the calls that arm a timer that runs once |
//! | `reschedule.rs` | the calls that move a pending timer |
//! | `cancel.rs` | the calls that cancel |
//! | `read.rs` | the calls that change nothing |

mod cancel;
mod read;
mod reschedule;
mod schedule;

use std::fmt;
use std::hash::{BuildHasher, Hash};

use super::answers::{Cancel, TimerId};
use super::frontend::SchedulerFrontend;
use super::hasher::{RandomState, hash_of};
use super::task::Task;
use crate::engine::Engine;
use crate::job::drop_catching;
use crate::shard::{Cancelling, EntryId, KeyHash};
use crate::sync::Arc;

/// Schedules, moves and cancels timers of one scheduler, from any thread.
///
/// A handle is cheap to clone and does not keep the scheduler alive. After the scheduler was shut
/// down or dropped, calls that arm a timer return
/// [`ScheduleError::Closed`](crate::ScheduleError::Closed), and all others find nothing.
///
/// # Blocking
///
/// Except for [`CancelAndWait::wait`](crate::CancelAndWait::wait), no call waits for a task. A call
/// takes one stripe's lock at a time, for well under a microsecond; a call for many keys takes up to
/// 16, for some microseconds.
///
/// # Panics
///
/// A key's `Eq`, `Borrow` and `Clone` run under such a lock. They must not call the scheduler: such
/// a call panics with a message. But they may drop schedulers, guards and futures of this crate;
/// the thread does the work of such a drop after it has released the lock. If `Eq`, `Borrow` or
/// `Clone` panics, the call that needed it panics and has changed nothing.
///
/// Tasks and keys are dropped without a lock and may call the scheduler. If such a drop panics, the
/// call that dropped them panics after its work is done.
///
/// # Panic hooks
///
/// In a panic hook that runs while the thread holds such a lock, calls do nothing and do not panic.
/// [The crate's page](crate#panic-hooks) lists what they return.
///
/// # Ordering
///
/// Calls for one key, from any threads, take effect one after the other. A task sees everything
/// that happened before the call that scheduled it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use tourbillon::Scheduler;
/// # let scheduler = Scheduler::<&str>::new()?;
/// # let timers = scheduler.handle();
/// let timeout = Duration::from_secs(30);
/// timers.schedule("request 7", timeout, |firing| println!("{} timed out", firing.key()))?;
/// // A clone is cheap, and any thread may use it.
/// let clone = timers.clone();
/// std::thread::spawn(move || clone.cancel("request 7")).join().unwrap();
/// assert!(timers.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Handle<K, S = RandomState> {
    engine: Arc<Engine<SchedulerFrontend<K, S>>>,
}

/// The key and task of a cancelled or replaced arming. They must be dropped without a lock.
pub(super) type Dropped<K, S> = (Option<K>, Option<Task<K, S>>);

/// Whether an arming may replace a pending timer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Upsert {
    Always,
    IfAbsent,
}

impl<K, S> Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    pub(crate) fn new(engine: Arc<Engine<SchedulerFrontend<K, S>>>) -> Self {
        Handle { engine }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<SchedulerFrontend<K, S>>> {
        &self.engine
    }

    pub(super) fn timer_id(&self, stripe: usize, entry: EntryId) -> TimerId {
        TimerId {
            tag: self.engine.tag(),
            stripe: stripe as u32,
            entry,
        }
    }

    /// Returns the stripe of an id of this scheduler, or `None` for the id of another one.
    pub(super) fn stripe_of(&self, id: TimerId) -> Option<usize> {
        let stripe = id.stripe as usize;
        (id.tag == self.engine.tag() && stripe < self.engine.shards().stripes()).then_some(stripe)
    }

    /// Converts the result of a cancellation, and drops the key and the task without a lock.
    pub(super) fn answer(cancelling: Cancelling<K, Task<K, S>>) -> Cancel {
        let (answer, dropped) = Self::cancel_answer(cancelling);
        drop_catching(dropped);
        answer
    }

    /// Splits the result of a cancellation into the answer and what to drop without a lock.
    #[inline]
    pub(super) fn cancel_answer(cancelling: Cancelling<K, Task<K, S>>) -> (Cancel, Dropped<K, S>) {
        match cancelling {
            Cancelling::Cancelled {
                deadline,
                run,
                dropped,
            } => {
                let running = run.is_some();
                (Cancel::Cancelled { deadline, running }, dropped)
            }
            Cancelling::Running(_) => (Cancel::Running, (None, None)),
            Cancelling::NotFound => (Cancel::NotFound, (None, None)),
        }
    }

    pub(super) fn hash_of<Q>(&self, key: &Q) -> (usize, KeyHash)
    where
        Q: Hash + ?Sized,
    {
        let shards = self.engine.shards();
        let hash = hash_of(shards, &self.engine.frontend.hasher, key);
        (shards.stripe_of(hash), hash)
    }
}

impl<K, S> Clone for Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn clone(&self) -> Self {
        Handle {
            engine: Arc::clone(&self.engine),
        }
    }
}

impl<K, S> fmt::Debug for Handle<K, S>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("engine", &self.engine)
            .finish()
    }
}
