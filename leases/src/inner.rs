//! What the handles and guards of one set of leases share.

use std::fmt;
use std::time::Duration;

use tourbillon::{Clock, reentrancy};

use super::background::{BackgroundQueue, Tally};
use super::error::LockError;
use super::id::LeaseId;
use super::keep_alive::{Batch, KeepAlive, KeepOptions};
use super::request::{Queued, Request};
use super::stats::{Asks, LeaseStats};
use super::store::{Destination, LeaseStore, Outcome, Renewal, StoreError};
use super::turns::Turns;
use super::wait_queue::WaitQueue;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The leases, whatever their users have of them.
pub(super) struct LeasesInner {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) keep_alive: KeepAlive<LeaseId>,
    pub(super) clock: Clock,
    pub(super) instance: String,
    pub(super) lease: Duration,
    pub(super) poll: Option<Duration>,
    pub(super) drop_limit: Duration,
    /// Who waits for a lock, to be told of the end.
    pub(super) waiting: WaitQueue,
    /// What is to be given back, and how much that is.
    pub(super) background: BackgroundQueue<Queued>,
    pub(super) releases: Arc<Tally>,
    /// Passes of the line that run.
    pub(super) release_passes: AtomicUsize,
    /// Names that the store gave back.
    pub(super) released: AtomicU64,
    pub(super) asks: Asks,
    /// How many users' handles there are.
    pub(super) handles: AtomicUsize,
    /// How long the drop of the last one waits.
    pub(super) end_limit: Duration,
    /// Without threads: nothing happens while somebody waits.
    pub(super) stepped: bool,
    /// Calls that somebody awaits.
    pub(super) turns: Turns<Destination>,
}

impl LeasesInner {
    /// A request that can be sent, and the threads to keep what it will be granted.
    pub(super) fn request(
        &self,
        name: &str,
        keep: KeepOptions,
        lease: Duration,
    ) -> Result<Request, LockError> {
        if self.keep_alive.is_forked() {
            return Err(LockError::Store {
                name: name.to_owned(),
                error: StoreError::Forked,
            });
        }
        // Under a lock this panics before the store is asked. While the thread panics it does not, and
        // what would be granted could not be kept.
        if reentrancy::check().is_err() {
            let why = "called from a panic under a lock of the crate; nothing was asked".to_owned();
            return Err(LockError::Store {
                name: name.to_owned(),
                error: StoreError::Refused(why),
            });
        }
        if name.is_empty() {
            return Err(LockError::EmptyName);
        }
        let most = self.store.longest_lease();
        if lease > most {
            let name = name.to_owned();
            return Err(LockError::TooLong { name, lease, most });
        }
        let checked = self.keep_alive.check(&keep);
        checked.map_err(|error| LockError::of_keep(name, error))?;
        Ok(Request {
            name: name.to_owned(),
            // The process by its number of now: it may be a copy of the one that made the leases.
            owner: format!(
                "{}:{}:{}",
                self.instance,
                std::process::id(),
                self.keep_alive.number()
            ),
            lease,
            keep,
        })
    }

    pub(super) fn renew(
        store: &dyn LeaseStore,
        batch: &Batch<'_, LeaseId>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let renewals: Vec<_> = batch
            .entries()
            .iter()
            .map(|entry| {
                let id = entry.key();
                let mut renewal = Renewal::new(id.name(), id.owner(), entry.lease());
                renewal.holds = u32::try_from(id.holds()).unwrap_or(u32::MAX);
                renewal
            })
            .collect();
        store.renew(batch.destination(), &renewals, batch.limit())
    }

    pub(super) fn stats(&self) -> LeaseStats {
        self.asks.fill(LeaseStats {
            // A forked copy has no line, and its lock may be held for ever.
            releases_queued: match self.keep_alive.is_forked() {
                true => 0,
                false => self.releases.entered(),
            },
            // Relaxed: a counter.
            released: self.released.load(Ordering::Relaxed),
            ..LeaseStats::of(self.keep_alive.stats())
        })
    }
}

/// As its users know it: [`Leases`](super::Leases).
impl fmt::Debug for LeasesInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("instance", &self.instance)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
