//! What one key remembers between its calls: the values that wait, and how long the window lasts.
//!
//! ```text
//!            first call                    the timer, at or after `due`
//!  no window ----------> window open ---------------------------------> run what waits
//!      ^                  |  ^   | further call: joins what waits             |
//!      |                  |  '---'                                            |
//!      |                  | nothing waits, and `due` has passed               |
//!      '------------------'<--------------------------------------------------'
//! ```
//!
//! `due` is the end of the window, and the time at which the trailing value runs. For a debounce it
//! is `quiet`, the wait after the last call, and at most `cap`, the maximum wait after the last
//! run. For a throttle it is the wait after the start of the last run.

use std::time::Duration;

use crate::tick::Time;

/// Which calls of a [`Debounce`](crate::keyed::Debounce) or a [`Throttle`](crate::keyed::Throttle)
/// run: the first one of a window, the last one, or both.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::keyed::{Edges, Throttle};
/// use tourbillon::Scheduler;
///
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let reports = Throttle::builder(&scheduler.handle(), Duration::from_secs(1))
///     .edges(Edges::Leading)
///     .build(|_, line: &str| println!("{line}"));
/// reports.call("disk", "sector 7 is unreadable")?;
/// reports.call("disk", "sector 8 is unreadable")?; // too early, and no trailing run
/// assert!(!scheduler.settle().is_empty());
/// assert!(!reports.is_pending("disk"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Edges {
    /// The first call of a window runs at once. The values of further calls are dropped.
    Leading,
    /// All calls of a window become one run, at its end.
    Trailing,
    /// The first call of a window runs at once. If more calls follow, they become one run, at its
    /// end.
    Both,
}

impl Edges {
    fn has_leading(self) -> bool {
        self != Edges::Trailing
    }

    fn has_trailing(self) -> bool {
        self != Edges::Leading
    }
}

/// What a window is counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WindowKind {
    /// From the last call, and at most this long from the last run.
    SinceCall { max_wait: Option<Duration> },
    /// From the start of the last run.
    SinceRun,
}

/// The options of all windows of one debounce or throttle.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowRules {
    pub(super) kind: WindowKind,
    pub(super) edges: Edges,
    wait: Duration,
}

impl WindowRules {
    pub(super) fn new(kind: WindowKind, edges: Edges, wait: Duration) -> Self {
        // A timer that is due at once would be handed over under the lock of its window.
        let wait = wait.max(Duration::from_nanos(1));
        WindowRules { kind, edges, wait }
    }

    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// Returns the latest end of a window that is counted from `from`.
    fn cap(&self, from: Time) -> Time {
        match self.kind {
            WindowKind::SinceCall {
                max_wait: Some(limit),
            } => from + limit.max(self.wait),
            _ => Time::MAX,
        }
    }
}

/// Combines a further value with the one that waits.
pub(super) type Merge<V> = dyn Fn(&mut V, V) + Send + Sync;

/// The window of one key.
pub(super) struct Window<V> {
    /// The value of the leading run, until it starts.
    ready: Option<V>,
    /// The value of the trailing run.
    waiting: Option<V>,
    /// Whether the trailing run is to start without waiting for the end of the window.
    flushed: bool,
    quiet: Time,
    cap: Time,
    /// When the last run started.
    ran: Option<Time>,
}

impl<V> Window<V> {
    /// Opens a window by the call of `value` at `now`.
    pub(super) fn open(rules: &WindowRules, value: V, now: Time) -> Self {
        let mut window = Window {
            ready: None,
            waiting: None,
            flushed: false,
            quiet: now + rules.wait,
            cap: rules.cap(now),
            ran: None,
        };
        if rules.edges.has_leading() {
            window.ready = Some(value);
        } else {
            window.waiting = Some(value);
        }
        window
    }

    /// Adds a further call. Returns the value that is not needed any more, which the caller drops
    /// without a lock.
    pub(super) fn add(
        &mut self,
        rules: &WindowRules,
        value: V,
        now: Time,
        merge: Option<&Merge<V>>,
    ) -> Option<V> {
        if self.is_over(now) {
            let ran = self.ran;
            *self = Window::open(rules, value, now);
            self.ran = ran;
            return None;
        }
        // First of all, since it may panic: then the call has changed nothing else.
        let unneeded = match (&mut self.waiting, merge) {
            _ if !rules.edges.has_trailing() => Some(value),
            (Some(waiting), Some(merge)) => {
                merge(waiting, value);
                None
            }
            (waiting, _) => waiting.replace(value),
        };
        if rules.kind != WindowKind::SinceRun {
            // Two callers may have read the clock in the other order.
            self.quiet = self.quiet.max(now + rules.wait);
        }
        unneeded
    }

    /// Returns the end of the window.
    fn due(&self) -> Time {
        self.quiet.min(self.cap)
    }

    /// Returns whether a run will follow.
    pub(super) fn is_pending(&self) -> bool {
        self.ready.is_some() || self.waiting.is_some()
    }

    /// Returns whether a value waits that has to run at once.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.is_some() || self.flushed
    }

    /// Returns whether nothing waits and the next call opens a new window.
    fn is_over(&self, now: Time) -> bool {
        !self.is_pending() && now >= self.due()
    }

    /// Takes the value that has to run at `now`, if there is one.
    pub(super) fn take(&mut self, rules: &WindowRules, now: Time) -> Option<V> {
        let value = match self.ready.take() {
            Some(value) => value,
            None if self.flushed || now >= self.due() => {
                self.flushed = false;
                self.waiting.take()?
            }
            None => return None,
        };
        self.ran = Some(now);
        self.cap = rules.cap(now);
        if rules.kind == WindowKind::SinceRun {
            self.quiet = now + rules.wait;
        }
        Some(value)
    }

    /// Returns when the timer has to look at this window again, or `None` if the window is over.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        if self.is_ready() {
            Some(now)
        } else {
            (!self.is_over(now)).then(|| self.due())
        }
    }

    /// Makes the trailing run start at once. Returns whether a run will follow.
    pub(super) fn flush(&mut self) -> bool {
        self.flushed = self.waiting.is_some();
        self.is_pending()
    }

    /// Takes all values out. A window that counts from a run stays open, if there was a run. Any
    /// other window is over.
    pub(super) fn cancel(&mut self, rules: &WindowRules, now: Time) -> WindowValues<V> {
        self.flushed = false;
        self.quiet = match (rules.kind, self.ran) {
            (WindowKind::SinceRun, Some(ran)) => ran + rules.wait,
            _ => now,
        };
        WindowValues(self.ready.take(), self.waiting.take())
    }

    /// Takes the window apart.
    pub(super) fn into_values(self) -> WindowValues<V> {
        WindowValues(self.ready, self.waiting)
    }
}

/// The values of the leading and of the trailing run.
pub(super) struct WindowValues<V>(pub(super) Option<V>, pub(super) Option<V>);

impl<V> WindowValues<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none() && self.1.is_none()
    }
}
