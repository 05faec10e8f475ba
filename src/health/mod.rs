//! What probes and people ask of a part of the program: whether it is alive and ready, and what it
//! is busy with.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | health: findings, what they mean for a probe, and since when |
//! | `dump.rs` | what is pending and what runs, as text |
//!
//! The front ends find out, and so do the crates that build on this one.

mod dump;

use core::fmt;
use core::time::Duration;

pub use dump::{Dump, RunDump, ShardDump};

/// Whether a scheduler, a map, a timer, or what another crate builds on them, is alive and ready,
/// and the reasons, with the time since when.
///
/// - **Alive** means that a restart of the process would not help. Only a ticker that stands still
///   makes it false.
/// - **Ready** means that new work will be done. What is not alive is not ready.
///
/// Some findings are only warnings. [`FindingKind`] lists all of them, and the times from which on
/// they are reported. Nothing is remembered between two readings, so a finding ends when its reason
/// does.
///
/// `Display` writes a line that sums up, such as `alive, not ready`, and a line for each finding. That
/// is a body for `GET /healthz`. Values of several parts can be joined with [`extend`](Extend::extend).
///
/// Let a probe fail three times, as it does by default on Kubernetes, before it restarts anything.
/// After a pause of the whole process, or a jump of its clock, the first answer may come before the
/// tickers have gone on.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Health, Scheduler};
///
/// /// Returns the status and the body of an answer to `GET /readyz`.
/// fn readyz(requests: &Scheduler<u64>, sessions: &ExpiryMap<u64, String>) -> (u16, String) {
///     let mut health = requests.handle().health();
///     health.extend(sessions.health());
///     (if health.is_ready() { 200 } else { 503 }, health.to_string())
/// }
///
/// let requests = Scheduler::new()?;
/// let sessions = ExpiryMap::builder().build(|_, _| ())?;
/// assert_eq!(readyz(&requests, &sessions), (200, "alive, ready\n".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("healthz", "liveness", "readiness", "probe"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    findings: Vec<Finding>,
}

/// One reason why something is not well; see [`Health`].
///
/// # Examples
///
/// ```
/// use tourbillon::{FindingKind, Impact, Scheduler, Shutdown};
///
/// let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
/// let timers = scheduler.handle();
/// scheduler.shutdown(Shutdown::HandBack).wait()?;
/// let health = timers.health();
/// let finding = &health.findings()[0];
/// assert_eq!((finding.kind, finding.impact), (FindingKind::ShutDown, Impact::NotReady));
/// assert_eq!(finding.source.as_deref(), Some("requests"));
/// println!("{finding}"); // not ready: requests: shut down for 1.2ms
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// What it is.
    pub kind: FindingKind,
    /// What it means for a probe.
    pub impact: Impact,
    /// The name that the builder was given, if it was.
    pub source: Option<String>,
    /// How long ago it began, by the clock of its source; `None` if that is not known.
    pub since: Option<Duration>,
    /// More in words, with numbers. Empty if there is no more to say.
    pub detail: String,
}

/// What a [`Finding`] means for a probe, from the least to the greatest.
///
/// # Examples
///
/// ```
/// use tourbillon::Impact;
///
/// assert!(Impact::Warning < Impact::NotReady && Impact::NotReady < Impact::NotAlive);
/// assert_eq!(Impact::NotReady.to_string(), "not ready");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum Impact {
    /// It works, but not well.
    Warning,
    /// New work would not be done, or only much later.
    NotReady,
    /// It does nothing any more, and a restart of the process would help.
    NotAlive,
}

/// What a [`Finding`] is about. `Display` writes it in words.
///
/// # Examples
///
/// ```
/// use tourbillon::FindingKind;
///
/// assert_eq!(FindingKind::QueueDelay.as_str(), "queue delay");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum FindingKind {
    /// Its shutdown has begun, or it was dropped. Not ready, and alive: the program wanted it.
    ShutDown,
    /// This process is a forked copy of the one that built it, and nothing of it runs here. Not
    /// ready, and alive.
    Forked,
    /// A ticker has work that is due for 10 s, and has taken no step since. Not alive. With
    /// [`inline`](crate::SchedulerBuilder::inline) execution a task that takes longer has the same
    /// effect.
    TickerStalled,
    /// Tasks wait, and no worker has taken one for 10 s, since all are in longer tasks: blocked, or
    /// computing. Not ready.
    WorkersBlocked,
    /// A task has waited for a worker for 1 s or longer. A warning. The time is that of a task that
    /// waits still, or a little less.
    QueueDelay,
    /// A timer is due for 1 s or longer and was not handed to the workers. A warning. The ticker is
    /// behind, the queue of the workers is full, or the pace holds the timer back. Of durable
    /// timers: a timer is due for 5 s and has not been claimed.
    Overdue,
    /// Calls to a store fail. Of leases: for 10 s, and they are not ready. Of durable timers: a
    /// warning from the first failure on, and not ready after 10 s.
    StoreFails,
    /// A lease that is held has not been renewed in time, and has a third of its length left or
    /// less. A warning.
    RenewalAtRisk,
    /// A node of durable timers does not belong to the others: it has not joined yet, or its node
    /// lease has run out. Not ready.
    NodeAlone,
    /// A node of durable timers does not hear the store's doorbell, so it finds new timers later. A
    /// warning.
    DoorbellDown,
}

impl FindingKind {
    /// Returns it in words, such as `queue delay`. The words may change between versions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FindingKind::ShutDown => "shut down",
            FindingKind::Forked => "forked",
            FindingKind::TickerStalled => "ticker stalled",
            FindingKind::WorkersBlocked => "workers blocked",
            FindingKind::QueueDelay => "queue delay",
            FindingKind::Overdue => "timers overdue",
            FindingKind::StoreFails => "store fails",
            FindingKind::RenewalAtRisk => "renewal at risk",
            FindingKind::NodeAlone => "node alone",
            FindingKind::DoorbellDown => "doorbell down",
        }
    }
}

impl Finding {
    /// Makes a finding without a source and a detail, for crates that build on this one.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Finding, FindingKind, Health, Impact};
    ///
    /// let since = Some(Duration::from_secs(3));
    /// let mut finding = Finding::new(FindingKind::StoreFails, Impact::NotReady, since);
    /// finding.detail = "connection refused".to_owned();
    /// let health = Health::from_iter([finding]);
    /// let text = "alive, not ready\nnot ready: store fails for 3.0s: connection refused\n";
    /// assert_eq!(health.to_string(), text);
    /// ```
    #[must_use]
    pub fn new(kind: FindingKind, impact: Impact, since: Option<Duration>) -> Self {
        Finding {
            kind,
            impact,
            source: None,
            since,
            detail: String::new(),
        }
    }
}

impl Health {
    /// Returns whether a restart of the process would not help: no finding is
    /// [`NotAlive`](Impact::NotAlive).
    ///
    /// # Examples
    ///
    /// ```
    /// let timer = tourbillon::Timer::new()?;
    /// assert!(timer.health().is_alive());
    /// # Ok::<(), tourbillon::BuildError>(())
    /// ```
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.worst() < Some(Impact::NotAlive)
    }

    /// Returns whether new work will be done: all findings are [warnings](Impact::Warning).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::Scheduler;
    ///
    /// let scheduler = Scheduler::<u64>::new()?;
    /// let timers = scheduler.handle();
    /// assert!(timers.health().is_ready());
    /// drop(scheduler);
    /// assert!(!timers.health().is_ready());
    /// # Ok::<(), tourbillon::BuildError>(())
    /// ```
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.worst() < Some(Impact::NotReady)
    }

    /// Returns the reasons, also those that are only warnings. Empty if all is well.
    ///
    /// # Examples
    ///
    /// ```
    /// let timer = tourbillon::Timer::new()?;
    /// for finding in timer.health().findings() {
    ///     eprintln!("{finding}");
    /// }
    /// # Ok::<(), tourbillon::BuildError>(())
    /// ```
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn worst(&self) -> Option<Impact> {
        self.findings.iter().map(|finding| finding.impact).max()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |holds| if holds { "" } else { "not " };
        let (alive, ready) = (not(self.is_alive()), not(self.is_ready()));
        writeln!(f, "{alive}alive, {ready}ready")?;
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.impact)?;
        if let Some(source) = &self.source {
            write!(f, "{source}: ")?;
        }
        write!(f, "{}", self.kind)?;
        if let Some(since) = self.since {
            write!(f, " for {since:.1?}")?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl fmt::Display for Impact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Impact::Warning => "warning",
            Impact::NotReady => "not ready",
            Impact::NotAlive => "not alive",
        })
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Extend<Finding> for Health {
    fn extend<I: IntoIterator<Item = Finding>>(&mut self, more: I) {
        self.findings.extend(more);
    }
}

impl FromIterator<Finding> for Health {
    fn from_iter<I: IntoIterator<Item = Finding>>(findings: I) -> Self {
        Health {
            findings: findings.into_iter().collect(),
        }
    }
}

impl IntoIterator for Health {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.findings.into_iter()
    }
}

/// As an object with `alive`, `ready` and `findings`.
#[cfg(feature = "serde")]
impl serde::Serialize for Health {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut health = serializer.serialize_struct("Health", 3)?;
        health.serialize_field("alive", &self.is_alive())?;
        health.serialize_field("ready", &self.is_ready())?;
        health.serialize_field("findings", &self.findings)?;
        health.end()
    }
}
