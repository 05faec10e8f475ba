//! What a candidate does, and how the store answers it.

use tourbillon::{Health, Impact, Time};

use super::{Candidate, Election};
use crate::manager::LockError;
use crate::store::StoreError;
use crate::sync::{Arc, Origin};

/// What a candidate does; see [`Election::status`].
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{ElectionRole, Leases, MemoryStore};
///
/// # let leases = Leases::new(MemoryStore::new())?;
/// let election = leases.election("scheduler");
/// assert_eq!(election.status().role, ElectionRole::Idle);
/// let leadership = election.lead().wait()?;
/// assert!(matches!(election.status().role, ElectionRole::Leading { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ElectionRole {
    /// It does not campaign. This is also the role of a leader that has lost its lease or has
    /// resigned, while its work still runs.
    Idle,
    /// It campaigns.
    Waiting,
    /// It leads, by the clock of this machine.
    #[non_exhaustive]
    Leading {
        /// The token of the term.
        token: u64,
    },
}

/// What a candidate does, since when, and the last error of the store. Returned by
/// [`Election::status`].
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Election, ElectionRole};
///
/// /// A line for a page about this process.
/// fn line(election: &Election) -> String {
///     let status = election.status();
///     let what = match status.role {
///         ElectionRole::Leading { token, .. } => format!("leads with token {token}"),
///         ElectionRole::Waiting => "waits".to_owned(),
///         _ => "does not campaign".to_owned(),
///     };
///     match status.error {
///         Some(error) => format!("{what}: {error}"),
///         None => what,
///     }
/// }
/// # let leases = tourbillon_leases::Leases::new(tourbillon_leases::MemoryStore::new())?;
/// # assert_eq!(line(&leases.election("scheduler")), "does not campaign");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ElectionStatus {
    /// What the candidate does.
    pub role: ElectionRole,
    /// When it began to do so, by the clock of the leases. `None` if it is idle.
    pub since: Option<Time>,
    /// The last error of the store, in a campaign or in a look for [`leaders`](Election::leaders).
    /// `None` once the store has answered again.
    pub error: Option<StoreError>,
    /// When the present series of failures began.
    pub failing_since: Option<Time>,
}

impl Election {
    /// Returns whether this candidate waits or leads, since when, and the last error of the store.
    /// This asks no store.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{ElectionRole, Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler");
    /// let leadership = election.lead().wait()?;
    /// let status = election.status();
    /// assert!(matches!(status.role, ElectionRole::Leading { .. }));
    /// assert!(status.since <= Some(leases.now()) && status.error.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn status(&self) -> ElectionStatus {
        // In a forked copy the locks may stay locked for ever.
        if self.leases.is_forked() {
            return ElectionStatus {
                role: ElectionRole::Idle,
                since: None,
                error: Some(StoreError::Forked),
                failing_since: None,
            };
        }
        let candidate = &self.candidate;
        let terms = candidate.terms.lock().clone();
        let leads = terms.iter().find(|term| term.leads());
        let (role, since) = match (leads, candidate.waiting_since()) {
            (Some(term), _) => {
                let token = term.token;
                (ElectionRole::Leading { token }, Some(term.since))
            }
            (None, Some(since)) => (ElectionRole::Waiting, Some(since)),
            (None, None) => (ElectionRole::Idle, None),
        };
        let campaign = candidate.stop.failing().get();
        let failure = campaign.or_else(|| candidate.lookout.failing().get());
        ElectionStatus {
            role,
            since,
            failing_since: failure.as_ref().map(|failure| failure.since),
            error: failure.map(|failure| failure.error),
        }
    }

    /// Returns whether this candidate and its leases are alive and ready, and the reasons if not:
    /// those of [`Leases::health`](crate::Leases::health), and
    ///
    /// - [`StoreFails`](crate::FindingKind::StoreFails): the store fails the campaign, or the looks
    ///   for [`leaders`](Self::leaders). A warning, and not ready after 10 s. Looks that the store
    ///   refuses are a warning for as long as it does.
    ///
    /// Waiting and leading are both well; [`status`](Self::status) tells which it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler");
    /// let leadership = election.lead().wait()?;
    /// assert!(election.health().is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let mut health = self.leases.health();
        if self.leases.is_forked() {
            return health;
        }
        let (name, candidate) = (&self.name, &self.candidate);
        health.extend(candidate.stop.failing().get().map(|failure| {
            let detail = format!("campaigns of {name:?} fail: {}", failure.error);
            self.leases.store_fails(failure.since, detail)
        }));
        health.extend(candidate.lookout.failing().get().map(|failure| {
            let detail = format!("looks for leaders of {name:?} fail: {}", failure.error);
            let mut finding = self.leases.store_fails(failure.since, detail);
            // Some stores can't tell who leads, and the process can do its work all the same.
            if matches!(failure.error, StoreError::Refused(_)) {
                finding.impact = Impact::Warning;
            }
            finding
        }));
        health
    }
}

/// The campaigns of a candidate and its clones that wait.
#[derive(Default)]
pub(super) struct Campaigns {
    waiting: usize,
    since: Time,
}

/// Counts a campaign while it waits.
pub(super) struct CountedCampaign {
    candidate: Arc<Candidate>,
    /// In a forked copy of the process the lock may stay locked for ever.
    origin: Origin,
}

impl Election {
    /// Counts a campaign that waits from now on, until the returned value is dropped. Fails in a
    /// forked copy of the process, where the locks of a candidate may stay locked for ever.
    pub(super) fn waits(&self) -> Result<CountedCampaign, LockError> {
        if self.leases.is_forked() {
            return Err(self.forked());
        }
        let now = self.leases.now();
        let mut campaigns = self.candidate.campaigns.lock();
        if campaigns.waiting == 0 {
            campaigns.since = now;
        }
        campaigns.waiting += 1;
        Ok(CountedCampaign {
            candidate: Arc::clone(&self.candidate),
            origin: Origin::here(),
        })
    }

    pub(super) fn forked(&self) -> LockError {
        let name = self.name.clone();
        let error = StoreError::Forked;
        LockError::Store { name, error }
    }
}

impl Candidate {
    fn waiting_since(&self) -> Option<Time> {
        let campaigns = self.campaigns.lock();
        (campaigns.waiting > 0).then_some(campaigns.since)
    }
}

impl Drop for CountedCampaign {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let mut campaigns = self.candidate.campaigns.lock();
        campaigns.waiting -= 1;
        // An error is over when nobody campaigns any more.
        if campaigns.waiting == 0 {
            let failing = self.candidate.stop.failing();
            failing.note(None, campaigns.since);
        }
    }
}
