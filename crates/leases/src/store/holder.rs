//! The holder of a name, and pages of held names.

use std::time::Duration;

use super::Mode;

/// The holder of a name, by the store. If several hold it, this is the one whose lease ends last.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// let leases = Leases::new(MemoryStore::new())?;
/// let guard = leases.lock("report").wait()?;
/// let holder = leases.holder("report").wait()?.expect("it is held");
/// assert_eq!(holder.owner, guard.id().owner());
/// assert_eq!(leases.holder("other").wait()?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Holder {
    /// The owner, which proves nothing: who knows it can neither renew nor release. Owners of
    /// [`Leases`](crate::Leases) begin with the [instance](crate::LeasesBuilder::instance), which
    /// is the name of the machine by default.
    pub owner: String,
    /// The token of the grant.
    pub token: u64,
    /// How long the lease still lasts, unless it is renewed.
    pub remaining: Duration,
    /// What the holder says about itself, see
    /// [`LeasesBuilder::holder_data`](crate::LeasesBuilder::holder_data). Empty by default.
    pub data: String,
    /// How the name is held.
    pub mode: Mode,
    /// How many hold the name, at least one. More than one only if it is [shared](Mode::Shared) or held
    /// with [permits](Mode::Permit).
    pub holders: usize,
}

impl Holder {
    /// Creates the answer of a store.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_leases::Holder;
    ///
    /// let holder = Holder::new("node-3:1".to_owned(), 7, Duration::from_secs(30));
    /// assert_eq!((holder.token, holder.data.as_str()), (7, ""));
    /// ```
    #[must_use]
    pub fn new(owner: String, token: u64, remaining: Duration) -> Self {
        Holder {
            owner,
            token,
            remaining,
            data: String::new(),
            mode: Mode::Exclusive,
            holders: 1,
        }
    }

    /// Returns the same answer, for a name that so many hold in this mode.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon_leases::{Holder, Mode};
    ///
    /// let holder = Holder::new("node-3:1".to_owned(), 7, Duration::from_secs(30));
    /// assert_eq!((holder.mode, holder.holders), (Mode::Exclusive, 1));
    /// assert_eq!(holder.in_mode(Mode::Shared, 5).holders, 5);
    /// ```
    #[must_use]
    pub fn in_mode(self, mode: Mode, holders: usize) -> Self {
        Holder {
            mode,
            holders,
            ..self
        }
    }

    /// Returns the same answer, with what the holder says about itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::Holder;
    /// let holder = Holder::new("node-3:1".to_owned(), 7, Duration::from_secs(30));
    /// assert_eq!(holder.with_data("10.0.0.7").data, "10.0.0.7");
    /// ```
    #[must_use]
    pub fn with_data(self, data: impl Into<String>) -> Self {
        Holder {
            data: data.into(),
            ..self
        }
    }
}

/// A name that is held, and who holds it. One of a page of [`Leases::list`](crate::Leases::list).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{HeldLock, Holder};
///
/// let holder = Holder::new("node-3:1".to_owned(), 7, Duration::from_secs(30));
/// let held = HeldLock::new("report".to_owned(), holder);
/// assert_eq!(held.holder.token, 7);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name of the lock.
    pub name: String,
    /// Who holds it.
    pub holder: Holder,
}

impl HeldLock {
    /// Creates one answer of a store.
    #[must_use]
    pub fn new(name: String, holder: Holder) -> Self {
        HeldLock { name, holder }
    }
}

/// Which locks a page has, of all those that [`Leases::list`](crate::Leases::list) finds.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, LockPaging, MemoryStore};
///
/// # let leases = Leases::new(MemoryStore::new())?;
/// let guards = leases.lock_all(["orders/1", "orders/2", "orders/3"]).each().wait();
/// let mut paging = LockPaging::first(2);
/// let mut found = 0;
/// loop {
///     let page = leases.list("orders/", &paging).wait()?;
///     found += page.locks.len();
///     match page.next {
///         Some(next) => paging = next,
///         None => break,
///     }
/// }
/// assert_eq!(found, guards.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LockPaging {
    /// Where the page before has ended, in the words of the store. `None` for the first page.
    pub after: Option<String>,
    /// The greatest number of locks, at least one.
    pub limit: usize,
}

impl LockPaging {
    /// The first locks, at most this number. Zero counts as one. A page of Redis may have a few more,
    /// since it ends between two steps over the keys.
    #[must_use]
    pub fn first(limit: usize) -> Self {
        LockPaging {
            after: None,
            limit: limit.max(1),
        }
    }

    /// The locks that follow the page with this [`next`](LockPage::next), at most this number: for a
    /// page whose address holds the place. Zero counts as one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockPaging, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let _guards = leases.lock_all(["a", "b"]).each().wait();
    /// let first = leases.list("", &LockPaging::first(1)).wait()?;
    /// let place = first.next.and_then(|next| next.after).expect("there is another lock");
    /// let second = leases.list("", &LockPaging::behind(place, 10)).wait()?;
    /// assert_eq!(second.locks[0].name, "b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn behind(place: impl Into<String>, limit: usize) -> Self {
        LockPaging {
            after: Some(place.into()),
            ..LockPaging::first(limit)
        }
    }
}

/// A page of the locks that are held. Returned by [`Leases::list`](crate::Leases::list).
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{LockPage, LockPaging};
///
/// // A store has found nothing yet, and goes on behind the key 40.
/// let page = LockPage::new(Vec::new(), Some("40".to_owned()), &LockPaging::first(100));
/// assert_eq!(page.next, Some(LockPaging::behind("40", 100)));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockPage {
    /// The locks of this page, sorted by name. There may be none although more follow.
    pub locks: Vec<HeldLock>,
    /// How to ask for the next page, or `None` if this is the last one.
    pub next: Option<LockPaging>,
}

impl LockPage {
    /// Creates the answer of a store: the page that was asked for by `paging`, and where the next one
    /// begins, if there may be more.
    #[must_use]
    pub fn new(locks: Vec<HeldLock>, next: Option<String>, paging: &LockPaging) -> Self {
        LockPage {
            locks,
            next: next.map(|place| LockPaging::behind(place, paging.limit)),
        }
    }
}
