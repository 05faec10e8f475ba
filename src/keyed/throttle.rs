//! Runs a key at most once per window.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use crate::error::ScheduleError;
use crate::scheduler::{Firing, Handle, RandomState};
use crate::sync::Arc;

use super::calls::Calls;
use super::shared::{keyed_calls, keyed_options};
use super::window::{Edges, Merge, WindowKind, WindowRules};

/// Runs each key at most once per window, however often it is called, as `throttle` of lodash and
/// RxJS does: a progress display, or an alarm that must not flood its readers.
///
/// A run opens a window of the *wait*, counted from its start by the scheduler's clock, which is
/// read right before the run. Calls that come in the window become one run at its end, with the
/// latest value; see [`Edges`] and [`merge`](ThrottleBuilder::merge). That run opens the next
/// window.
///
/// | edges | one call | several calls in one window |
/// |---|---|---|
/// | [`Both`](Edges::Both), the default | runs at once | the first value runs at once, and the last one at the end |
/// | [`Leading`](Edges::Leading) | runs at once | the first value runs at once, the others are dropped |
/// | [`Trailing`](Edges::Trailing) | runs after the wait | the last value runs, after the wait |
///
/// Two runs of a key never start within one window, also if many threads call at the same time, and
/// if a run is late or cancelled. The exceptions are [`flush`](Self::flush), a shutdown, and a call
/// after [`take_pending`](Self::take_pending).
///
/// Runs are tasks of the scheduler. They start on a worker, never inside of a call, and two runs of
/// one key never overlap. If a run takes longer than its window, the next one follows it. A panic
/// is counted and reported as that of any task, and the window stays as it is. A key without a
/// window takes no memory and no timer.
///
/// The timer of a window has the key itself, so a key must have no other timer in the same scheduler.
/// Other keys may have some. Do not cancel, replace or move it by the scheduler's [`Handle`]. Dropping a throttle
/// cancels nothing.
///
/// # Shutdown
///
/// As for [`Debounce`](crate::keyed::Debounce#shutdown). The last values of a key run without
/// waiting for the end of its window.
///
/// # Panics
///
/// A key's `Hash`, `Eq`, `Clone` and drop may run under a lock, and must not call this crate.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::keyed::Throttle;
/// use tourbillon::Scheduler;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let progress = Throttle::builder(&scheduler.handle(), Duration::from_secs(1))
///     .build(|firing, percent| println!("{}: {percent} %", firing.key()));
/// progress.call("import", 1)?;
/// scheduler.settle(); // import: 1 %
/// progress.call("import", 2)?;
/// progress.call("import", 3)?;
/// assert!(progress.is_pending("import"));
/// scheduler.advance(Duration::from_secs(1)); // import: 3 %
/// assert!(!progress.is_pending("import"));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rate_limit")]
pub struct Throttle<K, V, S = RandomState> {
    calls: Arc<Calls<K, V, S>>,
}

/// The options of a [`Throttle`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::keyed::{Edges, Throttle};
/// use tourbillon::Scheduler;
///
/// let scheduler = Scheduler::<u64>::new()?;
/// let alarms = Throttle::builder(&scheduler.handle(), Duration::from_secs(60))
///     .edges(Edges::Leading)
///     .build(|firing, alarm: String| println!("device {}: {alarm}", firing.key()));
/// alarms.call(7, "no paper".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct ThrottleBuilder<K, V, S = RandomState> {
    handle: Handle<K, S>,
    wait: Duration,
    edges: Edges,
    merge: Option<Box<Merge<V>>>,
}

impl<K, V, S> Throttle<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a builder. Runs are tasks of the scheduler of `handle`. `wait` is the length of a
    /// window. A window of zero ends with the next tick.
    pub fn builder(handle: &Handle<K, S>, wait: Duration) -> ThrottleBuilder<K, V, S> {
        ThrottleBuilder {
            handle: handle.clone(),
            wait,
            edges: Edges::Both,
            merge: None,
        }
    }

    /// Drops the values of `key` that have not run. A run in progress continues. A window that a
    /// run has opened stays open, so that the next run is not too early. Returns whether there was
    /// a value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::keyed::Throttle;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let progress = Throttle::builder(&scheduler.handle(), Duration::from_secs(1))
    ///     .build(|firing, percent| println!("{}: {percent} %", firing.key()));
    /// progress.call("import", 1)?;
    /// assert!(progress.cancel("import"));
    /// assert!(!progress.is_pending("import"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::must_use_candidate, reason = "called for its effect, too")]
    pub fn cancel<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.calls.cancel(key)
    }
}

impl<K, V, S> ThrottleBuilder<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Builds the throttle. `run` gets the run of the scheduler, with the key, and the value. It
    /// may call the throttle and the scheduler.
    #[must_use]
    pub fn build(
        self,
        run: impl Fn(&Firing<'_, K, S>, V) + Send + Sync + 'static,
    ) -> Throttle<K, V, S> {
        let rules = WindowRules::new(WindowKind::SinceRun, self.edges, self.wait);
        Throttle {
            calls: Calls::new(rules, self.merge, Box::new(run), self.handle),
        }
    }
}

keyed_calls!(Throttle);
keyed_options!(Throttle, ThrottleBuilder, "Edges::Both");
