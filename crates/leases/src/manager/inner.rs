//! The part of leases that their handles and guards share.

use std::fmt;
use std::time::Duration;

use tourbillon::{Clock, reentrancy};

use super::background::{BackgroundQueue, Tally};
use super::error::LockError;
use super::id::LeaseId;
use super::leaving::Leaving;
use super::request::Queued;
use super::stats::{AcquireFailures, Asks, LeaseStats};
use crate::keep_alive::{Batch, KeepAlive, KeepAliveStats, KeepOptions};
use crate::store::{
    Holder, LeaseStore, Mode, Outcome, Renewal, StoreError, StoreFuture, WaitQueue,
};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The shared part of [`Leases`](crate::Leases), its guards and its timers.
pub(super) struct LeasesInner {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) keep_alive: KeepAlive<LeaseId>,
    pub(super) clock: Clock,
    /// The first part of every owner's name.
    pub(super) instance: String,
    /// What the store says about these leases where they hold a lock.
    pub(super) holder_data: String,
    /// The default length of a lease.
    pub(super) lease: Duration,
    /// The mean pause between two attempts of a waiting caller, if it was set.
    pub(super) poll: Option<Duration>,
    /// How long the drop of a guard waits for the store.
    pub(super) drop_limit: Duration,
    /// The waiting callers, which are woken when the leases are closed.
    pub(super) waiting: WaitQueue,
    /// The pending releases.
    pub(super) background: BackgroundQueue<Queued>,
    /// The callers of each destination that are being noted as gone.
    pub(super) leaving: Leaving,
    /// The number of pending releases.
    pub(super) releases: Arc<Tally>,
    /// The number of names that the store gave back.
    pub(super) released: AtomicU64,
    pub(super) asks: Asks,
    pub(super) acquire_failures: AcquireFailures,
    /// The number of users' handles.
    pub(super) handles: AtomicUsize,
    /// How long the drop of the last handle waits.
    pub(super) end_limit: Duration,
}

impl LeasesInner {
    /// Returns an owner that nobody else has, as `LeaseStore` promises.
    pub(super) fn owner(&self) -> String {
        // The process id is read now, since this process may be a forked copy of the one that
        // built the leases.
        let (process, number) = (std::process::id(), self.keep_alive.number());
        format!("{}:{process}:{number}", self.instance)
    }

    /// Checks the name and the options of a lock, and starts what keeps it.
    pub(super) fn check(
        &self,
        name: &str,
        keep: &KeepOptions,
        lease: Duration,
    ) -> Result<(), LockError> {
        if self.keep_alive.is_forked() {
            return Err(LockError::Store {
                name: name.to_owned(),
                error: StoreError::Forked,
            });
        }
        // Under a lock of the crate this panics before the store is asked. If the thread is
        // panicking already it returns an error instead. Then nothing is asked: a granted lock
        // could not be kept.
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
        LockError::check_length(name)?;
        let most = self.store.longest_lease();
        if lease > most {
            let name = name.to_owned();
            return Err(LockError::TooLong { name, lease, most });
        }
        let checked = self.keep_alive.check(keep);
        checked.map_err(|error| LockError::of_keep(name, error))
    }

    /// Checks that the store can grant a name in this mode.
    pub(super) fn check_mode(&self, name: &str, mode: Mode) -> Result<(), LockError> {
        if mode == Mode::Exclusive {
            return Ok(());
        }
        let name = name.to_owned();
        match mode {
            Mode::Permit { of } if !mode.is_possible() => Err(LockError::Permits { name, of }),
            _ if self.store.can_share() => Ok(()),
            _ => {
                let error = StoreError::no_sharing(&name);
                Err(LockError::Store { name, error })
            }
        }
    }

    /// Calls the store about a name, as [`call_store`](Self::call_store) does.
    pub(super) async fn ask_store<'a, T>(
        &'a self,
        name: &str,
        limit: Duration,
        call: impl FnOnce(&'a dyn LeaseStore) -> StoreFuture<'a, T>,
    ) -> Result<T, LockError> {
        let answer = self.call_store(limit, call).await;
        answer.map_err(|error| LockError::Store {
            name: name.to_owned(),
            error,
        })
    }

    /// Asks the store who holds a name.
    pub(super) async fn holder(&self, name: &str) -> Result<Option<Holder>, LockError> {
        // Under a lock of the crate this panics before the store is asked.
        let _ = reentrancy::check();
        if name.is_empty() {
            return Err(LockError::EmptyName);
        }
        LockError::check_length(name)?;
        let limit = self.lease / 3;
        let call = self.ask_store(name, limit, |store| store.holder_of(name, limit));
        call.await
    }

    /// Renews a batch by a call to the store. This is the renewal function of the `KeepAlive`.
    pub(super) async fn renew(
        store: Arc<dyn LeaseStore>,
        batch: Batch<LeaseId>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let renewals: Vec<_> = batch
            .entries()
            .map(|entry| {
                let id = entry.key();
                let renewal = Renewal::new(id.name(), id.secret(), entry.lease());
                let mut renewal = renewal.in_mode(id.mode());
                renewal.holds = u32::try_from(id.holds()).unwrap_or(u32::MAX);
                renewal
            })
            .collect();
        let call = store.renew(batch.destination(), &renewals, batch.limit());
        call.await
    }

    pub(super) fn stats(&self) -> LeaseStats {
        self.stats_with(self.keep_alive.stats())
    }

    /// Adds what the leases count to the statistics of the renewals.
    pub(super) fn stats_with(&self, renewals: KeepAliveStats) -> LeaseStats {
        self.asks.fill(LeaseStats {
            // A forked copy has no background queue, and the lock may stay locked forever.
            releases_queued: match self.keep_alive.is_forked() {
                true => 0,
                false => self.releases.entered(),
            },
            // Relaxed: a counter.
            released: self.released.load(Ordering::Relaxed),
            ..LeaseStats::of(renewals)
        })
    }
}

/// Prints the name that users know: [`Leases`](crate::Leases).
impl fmt::Debug for LeasesInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("instance", &self.instance)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
