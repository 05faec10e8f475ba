//! The arguments and answers of the store's calls that hand a name over.

use std::fmt;
use std::time::Duration;

use super::secret::Secret;

/// The arguments of a [detach](crate::LeaseStore::detach).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Claim, Detach, LeaseStore, MemoryStore, Resume, Secret};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let (store, limit) = (MemoryStore::new(), Duration::from_secs(5));
/// let (lease, secret, ticket) = (Duration::from_secs(30), Secret::new("u7Hq"), Secret::new("9vLz"));
/// let claim = Claim::new("report", "owner 1", secret, lease);
/// store.acquire(store.destination("report"), &[claim], limit).await?;
/// let detach = Detach::new("report", secret, ticket, lease).with_terms("page 7");
/// store.detach(&detach, limit).await?;
///
/// let resume = Resume::new("report", ticket, "owner 2", Secret::new("e4Wd"));
/// let resumed = store.resume(&resume, limit).await?.expect("it is detached");
/// assert_eq!(resumed.terms, "page 7");
/// // The ticket is used up.
/// let resume = Resume::new("report", ticket, "owner 3", Secret::new("m0Xc"));
/// assert_eq!(store.resume(&resume, limit).await?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Detach<'a> {
    /// The name to detach.
    pub name: &'a str,
    /// The secret with which it is held.
    pub secret: Secret<'a>,
    /// The secret with which it can be resumed, once.
    pub ticket: Secret<'a>,
    /// The length of the lease after it is resumed.
    pub lease: Duration,
    /// What is returned to the caller that resumes it. The store does not read it, and shows it to
    /// nobody else, since it may contain secrets.
    pub terms: &'a str,
}

/// Leaves the terms out, since they may contain secrets.
impl fmt::Debug for Detach<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detach")
            .field("name", &self.name)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl<'a> Detach<'a> {
    /// Creates a detach without terms.
    #[must_use]
    pub fn new(name: &'a str, secret: Secret<'a>, ticket: Secret<'a>, lease: Duration) -> Self {
        Detach {
            name,
            secret,
            ticket,
            lease,
            terms: "",
        }
    }

    /// Returns the same detach, with what is returned to the caller that resumes.
    #[must_use]
    pub fn with_terms(self, terms: &'a str) -> Self {
        Detach { terms, ..self }
    }
}

/// The result of a detach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Detached {
    /// The name can be resumed with the ticket.
    Detached,
    /// The name is not held with this secret.
    NotHeld,
}

/// The arguments of a [resume](crate::LeaseStore::resume). [`Detach`] shows the call.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Resume, Secret};
///
/// let resume = Resume::new("report", Secret::new("9vLz"), "owner 2", Secret::new("e4Wd"));
/// assert_eq!(resume.with_data("10.0.0.7").data, "10.0.0.7");
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Resume<'a> {
    /// The name to resume.
    pub name: &'a str,
    /// The ticket that was written when the name was detached.
    pub ticket: Secret<'a>,
    /// The owner that will hold the name.
    pub owner: &'a str,
    /// The secret that proves from now on who holds the name.
    pub secret: Secret<'a>,
    /// What the caller says about itself, for people who ask who [holds](crate::Holder::data) the
    /// name.
    pub data: &'a str,
}

impl<'a> Resume<'a> {
    /// Creates a resume by a caller that says nothing about itself.
    #[must_use]
    pub fn new(name: &'a str, ticket: Secret<'a>, owner: &'a str, secret: Secret<'a>) -> Self {
        Resume {
            name,
            ticket,
            owner,
            secret,
            data: "",
        }
    }

    /// Returns the same resume, by a caller that says this about itself.
    #[must_use]
    pub fn with_data(self, data: &'a str) -> Self {
        Resume { data, ..self }
    }
}

/// The answer to a resume that has succeeded.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::Resumed;
///
/// let resumed = Resumed::new(7, "page 7".to_owned());
/// assert_eq!((resumed.token, resumed.terms.as_str()), (7, "page 7"));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// The token of the grant, which stays the same.
    pub token: u64,
    /// What was [written](Detach::terms) when the name was detached.
    pub terms: String,
}

impl Resumed {
    /// Creates the answer of a store.
    #[must_use]
    pub fn new(token: u64, terms: String) -> Self {
        Resumed { token, terms }
    }
}

/// Leaves the terms out, since they may contain secrets.
impl fmt::Debug for Resumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resumed")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
