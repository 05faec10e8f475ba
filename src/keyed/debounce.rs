//! Runs a key when its calls have stopped for a while.

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

/// Runs the last call of each key when the key has not been called for a while, as `debounce` of
/// lodash and RxJS does: a search while somebody types, a file that is saved again and again.
///
/// A call opens a window, which ends when the key has not been called for the *wait*. Each further
/// call extends it. The values of these calls become one run, at the end; see [`Edges`] and
/// [`merge`](DebounceBuilder::merge). With a [maximum wait](DebounceBuilder::max_wait), a key that
/// is called without end runs all the same.
///
/// | edges | one call | several calls in one window |
/// |---|---|---|
/// | [`Trailing`](Edges::Trailing), the default | runs after the wait | the last value runs, after the wait |
/// | [`Leading`](Edges::Leading) | runs at once | the first value runs at once, the others are dropped |
/// | [`Both`](Edges::Both) | runs at once | the first value runs at once, and the last one after the wait |
///
/// Runs are tasks of the scheduler. They start on a worker, never inside of a call, and two runs of
/// one key never overlap. A call that comes during a run belongs to the open window, or opens the
/// next one. A panic is counted and reported as that of any task, and changes nothing for later
/// calls. A key without a window takes no memory and no timer.
///
/// The timer of a window has the key itself, so a key must have no other timer in the same scheduler.
/// Other keys may have some. Do not cancel, replace or move it by the scheduler's [`Handle`]. Dropping a debounce
/// cancels nothing.
///
/// # Shutdown
///
/// After a shutdown began, calls are refused. In a shutdown that still runs its timers
/// ([`Drain`](crate::Shutdown::Drain), [`RunNow`](crate::Shutdown::RunNow)), the timer of each key
/// runs all its values. Values whose run did not start are left for
/// [`take_pending`](Self::take_pending). That includes trailing values of a key whose leading run
/// was in progress when the shutdown began.
///
/// # Panics
///
/// A key's `Hash`, `Eq`, `Clone` and drop may run under a lock, and must not call this crate.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::keyed::Debounce;
/// use tourbillon::Scheduler;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let ms = Duration::from_millis;
/// let search = Debounce::builder(&scheduler.handle(), ms(300))
///     .max_wait(ms(2000))
///     .build(|firing, text| println!("{} searches for {text:?}", firing.key()));
/// search.call("user 7", "t")?;
/// scheduler.advance(ms(200));
/// search.call("user 7", "ti")?;
/// scheduler.advance(ms(299));
/// assert!(search.is_pending("user 7"));
/// scheduler.advance(ms(1)); // user 7 searches for "ti"
/// assert!(!search.is_pending("user 7"));
/// # Ok(())
/// # }
/// ```
#[doc(alias = "coalesce")]
pub struct Debounce<K, V, S = RandomState> {
    calls: Arc<Calls<K, V, S>>,
}

/// The options of a [`Debounce`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::keyed::{Debounce, Edges};
/// use tourbillon::Scheduler;
///
/// let scheduler = Scheduler::<u64>::new()?;
/// let saves = Debounce::builder(&scheduler.handle(), Duration::from_secs(1))
///     .edges(Edges::Both)
///     .max_wait(Duration::from_secs(10))
///     .build(|firing, text: String| println!("document {}: {text}", firing.key()));
/// saves.call(7, "Dear Ada".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct DebounceBuilder<K, V, S = RandomState> {
    handle: Handle<K, S>,
    wait: Duration,
    max_wait: Option<Duration>,
    edges: Edges,
    merge: Option<Box<Merge<V>>>,
}

impl<K, V, S> Debounce<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Returns a builder. Runs are tasks of the scheduler of `handle`. `wait` is the time without a
    /// call after which a window ends. A wait of zero ends with the next tick.
    pub fn builder(handle: &Handle<K, S>, wait: Duration) -> DebounceBuilder<K, V, S> {
        DebounceBuilder {
            handle: handle.clone(),
            wait,
            max_wait: None,
            edges: Edges::Trailing,
            merge: None,
        }
    }

    /// Drops the values of `key` that have not run, and ends its window: the next call is the first
    /// one of a new window. A run in progress continues. Returns whether there was a value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::keyed::Debounce;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let search = Debounce::builder(&scheduler.handle(), Duration::from_secs(1))
    ///     .build(|_, text| println!("searching for {text:?}"));
    /// search.call("user 7", "ti")?;
    /// assert!(search.cancel("user 7"));
    /// assert!(!search.cancel("user 7"));
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

impl<K, V, S> DebounceBuilder<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Sets how long a key that is called without end may wait for a run: this long after the first
    /// call of its window, and after that, this long after the start of each run. A maximum that is
    /// shorter than the wait counts as the wait. By default there is none.
    ///
    /// With [`Edges::Leading`] the window ends at this time. So the next call runs at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::keyed::Debounce;
    /// # use tourbillon::Scheduler;
    /// # let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
    /// let ms = Duration::from_millis;
    /// let saves = Debounce::builder(&scheduler.handle(), ms(500))
    ///     .max_wait(ms(1000))
    ///     .build(|_, text| println!("saved: {text}"));
    /// for _ in 0..10 {
    ///     saves.call("letter", "Dear Ada")?;
    ///     scheduler.advance(ms(100));
    /// }
    /// // The window is still open, but its value has run.
    /// assert!(!saves.is_pending("letter"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Builds the debounce. `run` gets the run of the scheduler, with the key, and the value. It
    /// may call the debounce and the scheduler.
    #[must_use]
    pub fn build(
        self,
        run: impl Fn(&Firing<'_, K, S>, V) + Send + Sync + 'static,
    ) -> Debounce<K, V, S> {
        let kind = WindowKind::SinceCall {
            max_wait: self.max_wait,
        };
        let rules = WindowRules::new(kind, self.edges, self.wait);
        Debounce {
            calls: Calls::new(rules, self.merge, Box::new(run), self.handle),
        }
    }
}

keyed_calls!(Debounce);
keyed_options!(Debounce, DebounceBuilder, "Edges::Trailing");
