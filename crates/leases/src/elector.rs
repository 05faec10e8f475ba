//! Leader elections: one of several candidates leads at a time.
//!
//! An election is a lock, and a *term* is the time from its grant to its end. So everything that is
//! promised of locks holds for leaders, and this module adds only the form in which they work.
//!
//! - **ELECT-1** A term ends by its guard: when the guard is released, or when its lease is lost by
//!   the local clock. Either comes before anybody else can be granted the lock.
//! - **ELECT-2** A resignation does not release the lock. It asks the leader's work to stop, and
//!   the guard is released when the work has returned. So the work of two leaders never overlaps,
//!   unless it goes on after its lease was lost.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon::Health;
use tourbillon::coop::YieldPoint;

use crate::keep_alive::{Loss, Lost};
use crate::manager::{LeaseFuture, LeaseGuard, Leases, LockError, ReleaseError};
use crate::store::Holder;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, catch_panic};

/// A candidate in an election: among all candidates of one name, one leads at a time.
///
/// [`run_while_leader`](Self::run_while_leader) waits until this candidate is elected, and then
/// runs work. A leader that dies, is cut off or stands still is replaced when its lease has run
/// out. A leader that still exists learns of that first, by its own clock: see
/// [`Leadership::is_leader`]. As with locks, a leader that was paused in the middle of a write
/// can't know that another one was elected. Its [token](Leadership::token) lets the resource
/// [refuse](crate::Fence) the write.
///
/// Clones are the same candidate. An elector has no threads of its own.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::builder(MemoryStore::new()).lease(Duration::from_secs(10)).build()?;
/// let elector = leases.elector("scheduler").on_change(|change| println!("{change}"));
///
/// let term = elector.run_while_leader(|leadership| {
///     let mut plans = 0;
///     while leadership.is_leader() && plans < 3 {
///         plans += 1; // .. a portion of work, with leadership.token()
///     }
///     plans
/// })?;
/// println!("{} plans, and the term has {}", term.result, term.end);
/// # assert_eq!(term.result, 3);
/// # Ok(())
/// # }
/// ```
///
/// A candidate that wants to lead for as long as it lives calls it in a loop:
///
/// ```no_run
/// # use tourbillon_leases::{Elector, LockError};
/// # fn serve(elector: &Elector) -> Result<(), LockError> {
/// loop {
///     elector.run_while_leader(|leadership| {
///         while leadership.is_leader() {
///             // .. a portion of work ..
///         }
///     })?;
/// }
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it is elected only while `run_while_leader` or a `campaign` runs"]
pub struct Elector {
    leases: Leases,
    name: String,
    on_change: Option<Arc<OnChange>>,
    terms: Arc<Terms>,
}

type OnChange = dyn Fn(&Change) + Send + Sync;

/// The present terms of a candidate. There is one at most, except that a candidate may be elected
/// again while the work of a lost term still goes on.
#[derive(Default)]
struct Terms(Mutex<Vec<Arc<TermState>>>);

/// The part of a term that its candidate can reach.
#[derive(Default)]
struct TermState {
    resigned: AtomicBool,
    wakers: Mutex<Wakers>,
}

/// The tasks that await the end of a term, by the places of their futures.
#[derive(Default)]
struct Wakers {
    next: u64,
    waiting: Vec<(u64, Waker)>,
}

impl TermState {
    fn is_resigned(&self) -> bool {
        // Acquire: pairs with the Release in `resign`.
        self.resigned.load(Ordering::Acquire)
    }

    fn resign(&self) {
        // Release: the leader's work sees what was done before the resignation. The flag is set
        // before the wakers are taken, and a task leaves its waker before it reads the flag. The
        // lock puts the two in an order, so the task is woken or sees the flag.
        self.resigned.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut self.wakers.lock().waiting);
        // Wakers are user code, so they run without the lock.
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    fn leave_waker(&self, place: &mut Option<u64>, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        let number = *place.get_or_insert(wakers.next);
        wakers.next = wakers.next.max(number + 1);
        match wakers.waiting.iter_mut().find(|(of, _)| *of == number) {
            Some((_, left)) => left.clone_from(waker),
            None => wakers.waiting.push((number, waker.clone())),
        }
    }

    fn take_waker(&self, place: u64) {
        let mut wakers = self.wakers.lock();
        let at = wakers.waiting.iter().position(|(of, _)| *of == place);
        let taken = at.map(|at| wakers.waiting.swap_remove(at));
        // The drop of a waker is user code, too.
        drop(wakers);
        drop(taken);
    }
}

/// How a term ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TermEnd {
    /// The work has returned.
    Completed,
    /// The candidate has [resigned](Elector::resign).
    Resigned,
    /// The lease was lost, so another candidate may lead since then.
    Lost(Loss),
}

impl fmt::Display for TermEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermEnd::Completed => f.write_str("ended with its work"),
            TermEnd::Resigned => f.write_str("ended by a resignation"),
            TermEnd::Lost(loss) => write!(f, "lost its lease: {loss}"),
        }
    }
}

/// A term that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Term<R> {
    /// The result of the work.
    pub result: R,
    /// How the term ended.
    pub end: TermEnd,
}

/// A change that a candidate reports to its [callback](Elector::on_change).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The candidate leads.
    #[non_exhaustive]
    Elected {
        /// The token of the term, which is greater than that of every earlier term of the election.
        token: u64,
    },
    /// The candidate does not lead any more, and its work has ended.
    #[non_exhaustive]
    Ended {
        /// The token of the term.
        token: u64,
        /// How it ended.
        end: TermEnd,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Elected { token } => write!(f, "elected with token {token}"),
            Change::Ended { token, end } => write!(f, "the term with token {token} has {end}"),
        }
    }
}

impl Leases {
    /// Returns a candidate in the election of this name. This does not call the store.
    ///
    /// An election uses the lock of its name: who holds that lock leads. The lease of the leader is
    /// the default of these leases.
    pub fn elector(&self, name: impl Into<String>) -> Elector {
        Elector {
            leases: self.clone(),
            name: name.into(),
            on_change: None,
            terms: Arc::default(),
        }
    }
}

impl Elector {
    /// Sets a callback that is called when this candidate is elected, before its work begins, and
    /// when its term has ended, after its work.
    ///
    /// It runs on the thread or task that campaigns. If it panics, the campaign panics, and the
    /// term ends.
    pub fn on_change(mut self, tell: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Some(Arc::new(tell));
        self
    }

    /// Returns the name of the election.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until this candidate is elected, and runs `work`. The term ends when `work` returns.
    ///
    /// `work` should ask [`Leadership::is_leader`] before each portion, and return when it is not
    /// the leader any more. Nothing can stop it from outside. If it panics, the term ends and the
    /// panic goes on.
    ///
    /// # Errors
    ///
    /// As for [`Leases::lock`]. Then `work` was not called.
    ///
    /// # Blocking
    ///
    /// Blocks until the candidate is elected, and then for as long as `work` runs.
    pub fn run_while_leader<R>(
        &self,
        work: impl FnOnce(&Leadership) -> R,
    ) -> Result<Term<R>, LockError> {
        let leadership = self.campaign()?;
        let result = work(&leadership);
        let end = leadership.end();
        Ok(Term { result, end })
    }

    /// Waits until this candidate is elected, and runs the future of `work`, as a future. The term
    /// ends when that future is ready.
    ///
    /// The future of `work` is **dropped** when the lease is lost or the candidate resigns. Then
    /// the result is `None`. It stops at its next `await`, so work between two of them should be
    /// short.
    ///
    /// The future needs no particular runtime. If it is dropped, the campaign or the term ends.
    ///
    /// # Errors
    ///
    /// As for [`Leases::lock_async`]. Then `work` was not called.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore, TermEnd};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let elector = leases.elector("scheduler");
    /// let resigns = elector.clone();
    /// let term = elector
    ///     .run_while_leader_async(async move |leadership| {
    ///         println!("leads with token {}", leadership.token());
    ///         resigns.resign(); // usually from another task
    ///         std::future::pending::<()>().await
    ///     })
    ///     .await?;
    /// assert_eq!((term.result, term.end), (None, TermEnd::Resigned));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn run_while_leader_async<R>(
        &self,
        work: impl AsyncFnOnce(&Leadership) -> R,
    ) -> Result<Term<Option<R>>, LockError> {
        let leadership = self.campaign_async().await?;
        let result = {
            let mut work = pin!(work(&leadership));
            let mut over = leadership.over();
            poll_fn(|context| {
                // The end of the term comes first, so that no work begins after it.
                if over.poll_over(context).is_ready() {
                    return Poll::Ready(None);
                }
                work.as_mut().poll(context).map(Some)
            })
            .await
        };
        let end = leadership.end_async().await;
        Ok(Term { result, end })
    }

    /// Waits until this candidate is elected. The term ends when the value is dropped or
    /// [ended](Leadership::end).
    ///
    /// # Errors
    ///
    /// As for [`Leases::lock`].
    ///
    /// # Blocking
    ///
    /// Blocks until the candidate is elected.
    pub fn campaign(&self) -> Result<Leadership, LockError> {
        Ok(self.elected(self.leases.lock(&self.name)?))
    }

    /// Waits until this candidate is elected, like [`campaign`](Self::campaign), as a future.
    /// Dropping the future ends the campaign.
    ///
    /// # Errors
    ///
    /// As for [`Leases::lock_async`].
    pub fn campaign_async(&self) -> LeaseFuture<Result<Leadership, LockError>> {
        let elector = self.clone();
        LeaseFuture::new(async move {
            let guard = elector.leases.lock_async(&elector.name).await?;
            Ok(elector.elected(guard))
        })
    }

    /// Asks this candidate to stop leading. Returns whether it had a term.
    ///
    /// From now on [`Leadership::is_leader`] is false, and the future of
    /// [`run_while_leader_async`](Self::run_while_leader_async) is dropped. The next leader is
    /// elected when the work has returned, and not before. A campaign that still waits goes on.
    pub fn resign(&self) -> bool {
        let terms = self.terms.0.lock().clone();
        let mut led = false;
        for term in terms {
            led = true;
            term.resign();
        }
        led
    }

    /// Returns whether the leases of this candidate are alive and ready: see
    /// [`Leases::health`](crate::Leases::health). A candidate that waits for its election, or leads, is
    /// well in both cases.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let elector = leases.elector("scheduler");
    /// let leadership = elector.campaign()?;
    /// assert!(elector.health().is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.leases.health()
    }

    /// Asks the store who leads. Returns `None` if nobody does. Everything that
    /// [`Leases::holder`] says holds here, too.
    ///
    /// # Errors
    ///
    /// As for [`Leases::holder`].
    pub fn leader(&self) -> Result<Option<Holder>, LockError> {
        self.leases.holder(&self.name)
    }

    /// Asks the store who leads, like [`leader`](Self::leader), as a future.
    ///
    /// # Errors
    ///
    /// As for [`Leases::holder`].
    pub fn leader_async(&self) -> LeaseFuture<Result<Option<Holder>, LockError>> {
        self.leases.holder_async(&self.name)
    }

    fn elected(&self, guard: LeaseGuard) -> Leadership {
        let state = Arc::new(TermState::default());
        self.terms.0.lock().push(Arc::clone(&state));
        let token = guard.fencing_token();
        // Made before the callback, so that the term ends if that panics.
        let leadership = Leadership {
            guard: Some(guard),
            state,
            elector: self.clone(),
        };
        self.tell(&Change::Elected { token });
        leadership
    }

    fn tell(&self, change: &Change) {
        if let Some(tell) = &self.on_change {
            tell(change);
        }
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("name", &self.name)
            .field("leads", &!self.terms.0.lock().is_empty())
            .finish_non_exhaustive()
    }
}

/// A term of this candidate. Dropping it ends the term.
///
/// An [`Elector`] creates it when its candidate is elected.
#[must_use = "dropping it ends the term"]
pub struct Leadership {
    /// Taken when the term ends.
    guard: Option<LeaseGuard>,
    state: Arc<TermState>,
    elector: Elector,
}

impl Leadership {
    fn guard(&self) -> &LeaseGuard {
        let guard = self.guard.as_ref();
        guard.expect("only the calls that consume the leadership take it")
    }

    /// Returns whether this candidate leads, by the clock of this machine. This calls nobody, and
    /// costs about as much as [`LeaseGuard::is_held`].
    ///
    /// It is false once the lease is lost or the candidate has [resigned](Elector::resign). The
    /// lease is lost here before anybody else can be elected.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        !self.state.is_resigned() && self.guard().is_held()
    }

    /// Returns the token of the term. It is greater than that of every earlier term of the
    /// election. Send it with every write, so that a [`Fence`](crate::Fence) can refuse those of
    /// former leaders.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.guard().fencing_token()
    }

    /// Returns how long the term lasts at least, if nobody resigns. It is renewed in the
    /// background.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    /// Returns a future that is ready when this candidate does not lead any more. After a loss of
    /// the lease it is ready with the next tick, as [`Lost`](crate::Lost) says, and after a
    /// resignation at once.
    pub fn over(&self) -> Over {
        Over {
            lost: self.guard().lost(),
            state: Arc::clone(&self.state),
            place: None,
            yield_point: YieldPoint::default(),
        }
    }

    /// Ends the term, and returns how it ended. Another candidate can be elected when this returns,
    /// or when the lease has run out if the store fails.
    ///
    /// # Blocking
    ///
    /// As for [`LeaseGuard::release`].
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn end(mut self) -> TermEnd {
        let token = self.token();
        let released = self.guard.take().map(LeaseGuard::release);
        self.ended(token, released.as_ref())
    }

    /// Ends the term like [`end`](Self::end), as a future.
    pub fn end_async(mut self) -> LeaseFuture<TermEnd> {
        LeaseFuture::new(async move {
            let token = self.token();
            let released = match self.guard.take() {
                Some(guard) => Some(guard.release_async().await),
                None => None,
            };
            self.ended(token, released.as_ref())
        })
    }

    fn ended(&self, token: u64, released: Option<&Result<(), ReleaseError>>) -> TermEnd {
        let loss = match released {
            Some(Err(ReleaseError::Lost(loss))) => Some(*loss),
            Some(Err(ReleaseError::NotHeld)) => Some(Loss::NotHeld),
            // A release without an answer does not change that the term lasted until then.
            _ => None,
        };
        let end = self.end_by(loss);
        self.elector.tell(&Change::Ended { token, end });
        end
    }

    fn end_by(&self, loss: Option<Loss>) -> TermEnd {
        match loss {
            Some(loss) => TermEnd::Lost(loss),
            None if self.state.is_resigned() => TermEnd::Resigned,
            None => TermEnd::Completed,
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        let elector = &self.elector;
        let mut terms = elector.terms.0.lock();
        terms.retain(|term| !Arc::ptr_eq(term, &self.state));
        drop(terms);
        // The work has panicked, or the user has dropped the term.
        if let Some(guard) = self.guard.take() {
            let (token, end) = (guard.fencing_token(), self.end_by(guard.lost().loss()));
            drop(guard);
            // A second panic would end the process.
            let _ = catch_panic(|| elector.tell(&Change::Ended { token, end }));
        }
    }
}

/// The end of a term, as a future. See [`Leadership::over`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Over {
    lost: Lost,
    state: Arc<TermState>,
    /// The number under which this future has left its waker.
    place: Option<u64>,
    yield_point: YieldPoint,
}

impl Future for Over {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut yield_point = std::mem::take(&mut self.yield_point);
        let over = yield_point.poll(context, |context| self.poll_over(context));
        self.yield_point = yield_point;
        over
    }
}

impl Over {
    /// Polls for the end, which is never put off.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.state.leave_waker(&mut self.place, context.waker());
        if self.state.is_resigned() {
            return Poll::Ready(());
        }
        self.lost.poll_loss(context).map(|_| ())
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.state.take_waker(place);
        }
    }
}

impl fmt::Debug for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Over")
            .field("lost", &self.lost)
            .field("resigned", &self.state.is_resigned())
            .finish()
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("election", &self.elector.name)
            .field("guard", &self.guard)
            .field("resigned", &self.state.is_resigned())
            .finish()
    }
}
