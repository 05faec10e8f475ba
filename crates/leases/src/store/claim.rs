//! The arguments and the result of an acquire.

use std::time::Duration;

use super::{Mode, Secret};

/// The length of the longest name, in bytes.
pub(crate) const LONGEST_NAME: usize = 1_024;

/// The arguments of an acquire.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Acquired, Claim, LeaseStore, MemoryStore, Secret};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let store = MemoryStore::new();
/// let claim = Claim::new("report", "owner 1", Secret::new("u7Hq"), Duration::from_secs(30));
/// let (destination, limit) = (store.destination("report"), Duration::from_secs(5));
/// let answers = store.acquire(destination, &[claim], limit).await?;
/// assert!(matches!(answers[..], [Ok(Acquired::Granted { .. })]));
///
/// // Another caller, which says who it is, and waits for its turn.
/// let claim = Claim::new("report", "owner 2", Secret::new("e4Wd"), claim.lease);
/// let claim = claim.with_data("10.0.0.7").waiting().waited(Claim::TURN);
/// assert!(claim.is_due());
/// let answers = store.acquire(destination, &[claim], limit).await?;
/// assert!(matches!(answers[..], [Ok(Acquired::Held { .. })]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Claim<'a> {
    /// The name to acquire.
    pub name: &'a str,
    /// The owner that will hold the name. It is shown to everybody, and proves nothing.
    pub owner: &'a str,
    /// The secret that proves from now on who holds the name.
    pub secret: Secret<'a>,
    /// The length of the lease, from the moment of the grant.
    pub lease: Duration,
    /// Whether the caller will wait if somebody holds the name. If so, the store announces the
    /// release.
    pub waits: bool,
    /// How long the caller has waited. A fair store notes since when a caller
    /// [waits](Self::waits), from its first such claim on. If that is a [turn](Claim::TURN) or
    /// longer when the name is released, the store reserves the name, for a few milliseconds, for
    /// callers that [are due](Claim::is_due). Otherwise a caller that asks again right after its
    /// own release is always faster than callers that have to be woken.
    pub waited: Duration,
    /// What the caller says about itself, for people who ask who [holds](crate::Holder::data) the name.
    pub data: &'a str,
    /// How the name is to be held. Only stores that [can share](crate::LeaseStore::can_share) names get
    /// another mode than [`Exclusive`](Mode::Exclusive).
    pub mode: Mode,
}

impl<'a> Claim<'a> {
    /// The wait after which a caller is due: 20 ms. Until then the caller that asks first gets the
    /// name, which is fast. From then on callers take turns. 20 ms is long compared with the cost
    /// of handing a name over, so the throughput stays high, and short for a caller that waits.
    pub const TURN: Duration = Duration::from_millis(20);

    /// The time after its last claim for which a caller counts as [waiting](Self::waits): 1.5 s. While
    /// a caller in another [mode](Self::mode) waits, nobody joins the holders of a name that is shared
    /// or held with permits. The stores of this crate make callers that wait for such a name ask again
    /// within a second, whatever [`poll`](crate::LeasesBuilder::poll) is.
    pub const RECENT: Duration = Duration::from_millis(1_500);

    /// The longest delay between two attempts of a caller that waits for a shared name.
    pub(crate) const AGAIN: Duration = Duration::from_secs(1);

    /// Creates a claim of a caller that does not wait.
    #[must_use]
    pub fn new(name: &'a str, owner: &'a str, secret: Secret<'a>, lease: Duration) -> Self {
        Claim {
            name,
            owner,
            secret,
            lease,
            waits: false,
            waited: Duration::ZERO,
            data: "",
            mode: Mode::Exclusive,
        }
    }

    /// Returns the same claim, for this mode.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon_leases::{Acquired, Claim, LeaseStore, MemoryStore, Mode, Secret};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let store = MemoryStore::new();
    /// let (lease, limit) = (Duration::from_secs(30), Duration::from_secs(5));
    /// let claims = ["u7Hq", "e4Wd"].map(|secret| {
    ///     Claim::new("gpu", "owner 1", Secret::new(secret), lease).in_mode(Mode::Permit { of: 2 })
    /// });
    /// let answers = store.acquire(store.destination("gpu"), &claims, limit).await?;
    /// assert!(matches!(answers[0], Ok(Acquired::Granted { place: 0, .. })));
    /// assert!(matches!(answers[1], Ok(Acquired::Granted { place: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Claim { mode, ..self }
    }

    /// Returns the same claim, by a caller that will wait.
    #[must_use]
    pub fn waiting(self) -> Self {
        Claim {
            waits: true,
            ..self
        }
    }

    /// Returns the same claim, by a caller that has waited for `waited`.
    #[must_use]
    pub fn waited(self, waited: Duration) -> Self {
        Claim { waited, ..self }
    }

    /// Returns the same claim, by a caller that says this about itself.
    #[must_use]
    pub fn with_data(self, data: &'a str) -> Self {
        Claim { data, ..self }
    }

    /// Refuses a number of permits that is out of range, for a store that shares names.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
    pub(crate) fn has_permits(&self) -> Result<(), super::StoreError> {
        let (Mode::Permit { of }, false) = (self.mode, self.mode.is_possible()) else {
            return Ok(());
        };
        let most = Mode::MOST_PERMITS;
        let why = format!("one of {of} permits: choose a number from 1 to {most}");
        Err(super::StoreError::Refused(why))
    }

    /// Returns whether the caller has waited for a [turn](Claim::TURN) or longer. A reserved name
    /// is granted to such a caller.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.waited >= Claim::TURN
    }
}

/// The result of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Acquired {
    /// The owner holds the name for a full lease.
    Granted {
        /// The token, which is greater than that of every earlier grant of the name. Only readers who
        /// hold the name at the same time have the same token.
        token: u64,
        /// The place of a [permit](Mode::Permit), from 0. Else 0.
        place: u32,
    },
    /// Somebody else holds the name, or all of its permits, or holds it in another mode.
    Held {
        /// The time until the caller may get the name, if nobody renews a lease. For a caller that
        /// waits for a permit, it is the time until the first permit ends. For a caller that waits
        /// for a free name, it is the time until the last lease ends. A store may return less.
        remaining: Duration,
    },
}

impl Acquired {
    /// Returns the grant of a whole name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::Acquired;
    ///
    /// assert_eq!(Acquired::granted(7), Acquired::Granted { token: 7, place: 0 });
    /// ```
    #[must_use]
    pub fn granted(token: u64) -> Self {
        Acquired::Granted { token, place: 0 }
    }
}
