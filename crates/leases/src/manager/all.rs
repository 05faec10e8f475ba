//! Acquires all of several locks, and waits for them.
//!
//! - **ALL-1** A call holds some of its names while it waits only for a name that is greater than all
//!   of these. So calls never wait for each other in a circle, whatever the order of their names.
//! - **ALL-2** A future that waits, and is not polled any more, gives back what it holds: see
//!   `amid_wait.rs`. Its next poll begins anew.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tourbillon::Time;

use super::acquisition::Acquisition;
use super::amid_wait::{Added, AfterLook, AmidWait};
use super::error::LockError;
use super::guard::LeaseGuard;
use super::inner::LeasesInner;
use super::lease_future::LeaseFuture;
use super::locks::Leases;
use super::many::Answers;
use crate::keep_alive::{KeepOptions, TimerKey};
use crate::store::StoreError;
use crate::sync::Arc;

impl Leases {
    /// Acquires all of the locks, and waits for them. Returns one guard for each name, in their
    /// order. Call [`wait`](LockAll::wait) to block, or await it.
    ///
    /// The call asks for all locks at once; those of one destination of the store take one round
    /// trip. If one is held, the call keeps the locks whose names sort before it, by their bytes, and
    /// gives back the rest. It waits for the held one in its turn, like [`lock`](Self::lock), and
    /// then asks for the rest again. So calls that name the same locks in different orders don't wait
    /// for each other in a circle. A caller that already holds another lock while it waits here may
    /// wait forever.
    ///
    /// A name that occurs twice is locked once, and has two guards. To give all locks back
    /// together, pass the guards to [`release_many`](Self::release_many). [`each`](LockAll::each)
    /// locks the free ones and does not wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let both = leases.lock_all(["account/2", "account/1"]).wait()?;
    /// assert_eq!(both[0].name(), "account/2");
    /// for released in leases.release_many(both).wait() {
    ///     released?; // an error if it was not held to the end
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        let names = names.into_iter().map(|name| name.as_ref().to_owned());
        LockAll {
            leases: self.clone(),
            names: names.collect(),
            within: None,
        }
    }
}

/// A call for several locks. Made by [`Leases::lock_all`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, LockError, MemoryStore};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let leases = Leases::new(MemoryStore::new())?;
/// let stock = leases.lock("stock/7").wait()?;
/// let order = leases.lock_all(["order/42", "stock/7"]).within(Duration::from_millis(20));
/// assert!(matches!(order.await, Err(LockError::TimedOut { name, .. }) if name == "stock/7"));
/// stock.release().wait()?;
/// assert_eq!(leases.lock_all(["order/42", "stock/7"]).await?.len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing is acquired until it is waited for, or awaited"]
pub struct LockAll {
    leases: Leases,
    names: Vec<String>,
    within: Option<Duration>,
}

impl LockAll {
    /// Limits how long the call waits in all. Without this it waits for as long as it takes.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = Some(limit);
        self
    }

    /// Acquires the locks, and blocks until all of them are held.
    ///
    /// # Errors
    ///
    /// After an error the call holds no lock. Those that it has held are given back in the
    /// background, like the locks of dropped guards.
    ///
    /// - [`LockError::TimedOut`] if somebody else held a lock when the [limit](Self::within) was
    ///   over, and [`LockError::Unanswered`] if the store failed then.
    /// - For each name the other errors of [`Acquisition::wait`].
    ///
    /// # Blocking
    ///
    /// Blocks until the limit, or for one call to the store after it.
    pub fn wait(self) -> Result<Vec<LeaseGuard>, LockError> {
        let leases = self.leases.clone();
        leases.block_on(self.acquire())
    }

    /// Acquires those of the locks that are free, and waits for none. Returns one result for each
    /// name, in their order.
    ///
    /// It does for each name what [`Acquisition::at_once`] does, but the names of one destination of
    /// the store travel together: on a Redis server 100 locks take one round trip. To hold all or
    /// none, collect into a `Result`: the first error then drops all guards. If a name occurs twice,
    /// the second result is [`Held`](LockError::Held).
    ///
    /// If the future is dropped, no further call is made, and locks that were granted are given
    /// back in the background. If it is kept and not polled, it holds nothing for longer than a
    /// lease. Names whose call is over by the next poll fail with [`LockError::Store`]. If that
    /// poll comes after half of a lease, it gives back what was granted, and asks for all names
    /// again.
    ///
    /// # Errors
    ///
    /// For each name those of [`Acquisition::at_once`]. If a destination of the store does not
    /// answer, its remaining names fail with [`LockError::Store`], and are not sent. Names that run
    /// out of time fail in the same way.
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks for one call after the other: one call for each
    /// destination and [batch](crate::LeasesBuilder::batch) of names. All of them together take at
    /// most a third of the lease, or the [limit](Self::within) if that is shorter. Each destination
    /// gets a share of what is left, so that one which does not answer leaves time for the others.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{LeaseGuard, Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let taken = leases.lock("account/2").wait()?;
    /// let each = leases.lock_all(["account/1", "account/2"]).each().wait();
    /// assert!(each[0].is_ok());
    /// assert!(matches!(each[1], Err(LockError::Held { .. })));
    /// # drop((each, taken));
    ///
    /// let all: Result<Vec<LeaseGuard>, LockError> =
    ///     leases.lock_all(["account/1", "account/2"]).each().wait().into_iter().collect();
    /// assert_eq!(all?.len(), 2); // both, or an error
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn each(self) -> LeaseFuture<Answers> {
        let leases = self.leases.clone();
        leases.answer(async move { self.leases.try_many(&self.names, self.end()).await })
    }

    /// Returns when the time to wait is over, if it counts from now on.
    fn end(&self) -> Time {
        let now = self.leases.now();
        self.within.map_or(Time::MAX, |limit| now + limit)
    }

    /// Checks the names.
    fn names(&self) -> Result<Names, LockError> {
        let inner = &self.leases.inner;
        let mut sorted = self.names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        for name in &sorted {
            inner.check(name, &KeepOptions::for_lease(inner.lease), inner.lease)?;
        }
        Ok(Names {
            sorted,
            end: self.end(),
        })
    }

    /// Acquires the locks. A task or a waiting thread polls this.
    async fn acquire(self) -> Result<Vec<LeaseGuard>, LockError> {
        let inner = Arc::clone(&self.leases.inner);
        let names = self.names()?;
        let held = HeldAmidWait::new(&inner);
        let mut going = pin!(self.go(&names, &held));
        poll_fn(|context| {
            // In a forked copy nothing wakes the future, and a lock may stay locked forever.
            if inner.keep_alive.is_forked() {
                let (name, error) = (names.first(), StoreError::Forked);
                return Poll::Ready(Err(LockError::Store { name, error }));
            }
            held.held.polled(context.waker());
            going.as_mut().poll(context)
        })
        .await
    }

    /// Asks and waits. What it holds while it waits is in `held`.
    async fn go(&self, names: &Names, held: &HeldAmidWait) -> Result<Vec<LeaseGuard>, LockError> {
        let (leases, inner) = (&self.leases, &self.leases.inner);
        loop {
            let (round, count) = held.held.begin(LeaseGuard::is_held);
            let sorted = &names.sorted[count..];
            let answers = leases.try_many(sorted, names.end).await;
            let found = Sifted::of(answers);
            leases.give_back_together(found.others);
            let Some(refusal) = found.refusal else {
                let Some(mut all) = held.held.take(round) else {
                    continue;
                };
                all.extend(found.first);
                if all.iter().all(LeaseGuard::is_held) {
                    return Ok(names.guards(&self.names, all));
                }
                continue;
            };
            if !held.add(round, found.first) {
                continue;
            }
            names.may_wait(inner, refusal)?;
            let Some(count) = held.held.count(round) else {
                continue;
            };
            let next = names.next(leases, count).acquire().await?;
            held.add(round, vec![next]);
        }
    }
}

/// The future counts its limit from the first poll. You may drop it, or keep it without a poll: see
/// [`Acquisition`](crate::Acquisition#drop). While it waits it is woken now and then. If it is not
/// polled for half of a lease, or for three quarters of it at most, the locks that it has already
/// are given back, and the next poll begins anew. After an error they are given back in the
/// background.
impl IntoFuture for LockAll {
    type Output = Result<Vec<LeaseGuard>, LockError>;
    type IntoFuture = LeaseFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let leases = self.leases.clone();
        leases.answer(self.acquire())
    }
}

impl fmt::Debug for LockAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAll")
            .field("names", &self.names)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

/// The names of a call.
struct Names {
    /// Each one once.
    sorted: Vec<String>,
    /// When the time to wait is over.
    end: Time,
}

impl Names {
    /// Returns the acquire of one of the sorted names.
    fn next<'a>(&'a self, leases: &'a Leases, at: usize) -> Acquisition<'a> {
        let next = leases.lock(&self.sorted[at]);
        match self.end {
            Time::MAX => next,
            end => next.within(end.since(leases.now())),
        }
    }

    /// Returns one guard for each name that was asked for, of the locks of all names.
    fn guards(&self, asked: &[String], held: Vec<LeaseGuard>) -> Vec<LeaseGuard> {
        let mut held: Vec<_> = held.into_iter().map(Ok).collect();
        let mut guards: Vec<LeaseGuard> = Vec::with_capacity(asked.len());
        for name in asked {
            let at = self.sorted.binary_search(name);
            let at = at.expect("the sorted names are those that were asked for");
            // The place of its guard, if the name has occurred before.
            let guard = match std::mem::replace(&mut held[at], Err(guards.len())) {
                Ok(guard) => guard,
                Err(first) => {
                    held[at] = Err(first);
                    guards[first].one_more()
                }
            };
            guards.push(guard);
        }
        guards
    }

    /// Returns the name that stands for all in an error.
    fn first(&self) -> String {
        self.sorted.first().cloned().unwrap_or_default()
    }

    /// Returns the error of the call, unless it may wait for the name that was refused.
    fn may_wait(&self, inner: &LeasesInner, refusal: LockError) -> Result<(), LockError> {
        let late = inner.clock.now() >= self.end;
        Err(match refusal {
            LockError::Held { name, .. } if late => LockError::TimedOut { name },
            LockError::Store { name, error } if late && error.may_pass() => {
                LockError::Unanswered { name, error }
            }
            LockError::Held { .. } => return Ok(()),
            LockError::Store { error, .. } if error.may_pass() => return Ok(()),
            refusal => refusal,
        })
    }
}

/// What came of the names that were asked for together.
struct Sifted {
    /// The locks before the first refusal.
    first: Vec<LeaseGuard>,
    refusal: Option<LockError>,
    /// The locks after it.
    others: Vec<LeaseGuard>,
}

impl Sifted {
    fn of(answers: Answers) -> Self {
        let (mut first, mut others, mut refusal) = (Vec::new(), Vec::new(), None);
        for answer in answers {
            match answer {
                Ok(guard) if refusal.is_none() => first.push(guard),
                Ok(guard) => others.push(guard),
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
        }
        Sifted {
            first,
            refusal,
            others,
        }
    }
}

/// The locks that a future holds while it waits for others (ALL-2).
struct HeldAmidWait {
    inner: Arc<LeasesInner>,
    held: Arc<AmidWait<LeaseGuard>>,
    timer: TimerKey,
}

impl HeldAmidWait {
    fn new(inner: &Arc<LeasesInner>) -> Self {
        HeldAmidWait {
            inner: Arc::clone(inner),
            held: Arc::new(AmidWait::new()),
            timer: TimerKey::Call(inner.keep_alive.number()),
        }
    }

    /// Adds locks of this round. Gives them back, and returns false, if the round is over.
    fn add(&self, round: u64, guards: Vec<LeaseGuard>) -> bool {
        match self.held.add(round, guards) {
            Added::Done => true,
            Added::Arm => {
                look_later(&self.inner, &self.held, self.timer);
                true
            }
            Added::Over => false,
        }
    }
}

/// Looks after a quarter of a lease whether the future is polled.
fn look_later(inner: &Arc<LeasesInner>, held: &Arc<AmidWait<LeaseGuard>>, timer: TimerKey) {
    let (own, of) = (Arc::clone(inner), Arc::clone(held));
    let look = move || match of.look() {
        AfterLook::Nothing => {}
        AfterLook::GiveBack(guards) => drop(guards),
        AfterLook::Wake(waker) => {
            look_later(&own, &of, timer);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    };
    inner.keep_alive.after(timer, inner.lease / 4, look);
}

impl Drop for HeldAmidWait {
    fn drop(&mut self) {
        // In a forked copy the lock may stay locked forever.
        if !self.inner.keep_alive.is_forked() {
            self.inner.keep_alive.cancel(self.timer);
            self.held.begin(|_| false);
        }
    }
}
