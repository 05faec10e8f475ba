//! The options of one kept key.

use std::time::Duration;

use tourbillon::Time;

/// Options of [`KeepAlive::keep_with`](super::KeepAlive::keep_with): the lease, and how it is
/// renewed.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon_leases::{KeepAlive, KeepOptions, Outcome};
///
/// # let sessions = KeepAlive::<u64>::builder()
/// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
/// let lease = Duration::from_secs(30);
/// let options = KeepOptions::for_lease(lease).fed_every(2 * lease).max_hold(100 * lease);
/// let session = sessions.keep_with(7, &options)?;
/// assert!(session.feed());
///
/// // It counts from before the request that created it, and nothing renews it.
/// let options = KeepOptions::for_lease(lease).since(sessions.now()).without_renewal();
/// let session = sessions.keep_with(8, &options)?;
/// assert!(session.remaining() <= lease);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is kept until `keep_with`"]
pub struct KeepOptions {
    pub(super) lease: Duration,
    pub(super) since: Option<Time>,
    pub(super) renewed: bool,
    pub(super) feed: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
}

impl KeepOptions {
    /// Begins with a lease of this length, which is renewed until it is stopped or lost.
    pub fn for_lease(lease: Duration) -> Self {
        KeepOptions {
            lease,
            since: None,
            renewed: true,
            feed: None,
            max_hold: None,
        }
    }

    /// Counts the lease from `sent`, a moment of the [`KeepAlive`](super::KeepAlive)'s clock.
    ///
    /// It has to be a moment *before* the request that created the lease was sent. By default the
    /// lease counts from the call of [`keep_with`](super::KeepAlive::keep_with). A moment after
    /// that call is replaced by the moment of the call.
    pub fn since(mut self, sent: Time) -> Self {
        self.since = Some(sent);
        self
    }

    /// Turns the renewals off. The key is lost when the lease has run out.
    pub fn without_renewal(mut self) -> Self {
        self.renewed = false;
        self
    }

    /// Requires that the holder calls [`KeepGuard::feed`](super::KeepGuard::feed) within every such
    /// period. If it does not, it counts as dead, and the key is lost.
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.feed = Some(period);
        self
    }

    /// Sets the longest time that the key is held in all. After that time it is no longer renewed
    /// and counts as lost.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// Returns the terms that a lease has apart from its length.
    pub(in super::super) fn terms(&self) -> KeepTerms {
        KeepTerms {
            renewed: self.renewed,
            feed: self.feed,
            ends: self
                .max_hold
                .and_then(|most| self.since.map(|since| since + most)),
        }
    }
}

/// The terms of a lease apart from its length.
pub(in super::super) struct KeepTerms {
    pub(in super::super) renewed: bool,
    pub(in super::super) feed: Option<Duration>,
    /// The end of the longest hold.
    pub(in super::super) ends: Option<Time>,
}
