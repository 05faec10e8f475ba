//! A term of a candidate, while it lasts.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tourbillon::Time;
use tourbillon::coop::YieldPoint;

use super::{Change, Election, TermEnd};
use crate::keep_alive::{Loss, Lost};
use crate::manager::{LeaseFuture, LeaseGuard, ReleaseError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// The part of a term that its candidate can reach.
pub(super) struct TermState {
    pub(super) token: u64,
    /// When the candidate was elected.
    pub(super) since: Time,
    lost: Lost,
    resigned: AtomicBool,
    wakers: Mutex<Wakers>,
    /// In a forked copy of the process the lock may stay locked for ever.
    origin: Origin,
}

/// The tasks that await the end of a term, by the places of their futures.
#[derive(Default)]
struct Wakers {
    next: u64,
    waiting: Vec<(u64, Waker)>,
}

impl TermState {
    pub(super) fn new(guard: &LeaseGuard, since: Time) -> Self {
        TermState {
            token: guard.token(),
            since,
            lost: guard.lost(),
            resigned: AtomicBool::new(false),
            wakers: Mutex::default(),
            origin: Origin::here(),
        }
    }

    /// Whether the candidate leads.
    pub(super) fn leads(&self) -> bool {
        !self.is_resigned() && !self.lost.is_lost()
    }

    fn is_resigned(&self) -> bool {
        // Acquire: pairs with the Release in `resign`.
        self.resigned.load(Ordering::Acquire)
    }

    pub(super) fn resign(&self) {
        // Release: the leader's work sees what was done before the resignation. The flag is set
        // before the wakers are taken, and a task leaves its waker before it reads the flag. The
        // lock puts the two in an order, so the task is woken or sees the flag.
        self.resigned.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut self.wakers.lock().waiting);
        // Wakers are user code, so they run without the lock, and one that panics costs no other.
        for (_, waker) in wakers {
            let _ = catch_panic(|| waker.wake());
        }
    }

    fn leave_waker(&self, place: &mut Option<u64>, waker: &Waker) {
        if self.origin.is_elsewhere() {
            return;
        }
        // Cloned before the lock, and the one before is dropped after it: both are user code.
        let waker = waker.clone();
        let mut wakers = self.wakers.lock();
        let number = *place.get_or_insert(wakers.next);
        wakers.next = wakers.next.max(number + 1);
        let left = wakers.waiting.iter_mut().find(|(of, _)| *of == number);
        let before = match left {
            Some((_, left)) => Some(std::mem::replace(left, waker)),
            None => {
                wakers.waiting.push((number, waker));
                None
            }
        };
        drop(wakers);
        drop(before);
    }

    fn take_waker(&self, place: u64) {
        if self.origin.is_elsewhere() {
            return;
        }
        let mut wakers = self.wakers.lock();
        let at = wakers.waiting.iter().position(|(of, _)| *of == place);
        let taken = at.map(|at| wakers.waiting.swap_remove(at));
        // The drop of a waker is user code, too.
        drop(wakers);
        drop(taken);
    }
}

/// A term of this candidate. Dropping it ends the term.
///
/// An [`Election`] creates it when its candidate is elected.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leases, MemoryStore, TermEnd};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let leases = Leases::new(MemoryStore::new())?;
/// let election = leases.election("scheduler");
/// let leadership = election.lead().await?;
/// while leadership.is_leader() && leadership.feed() {
///     println!("token {}, for {:?} at least", leadership.token(), leadership.remaining());
///     election.resign(); // usually from another task
/// }
/// leadership.over().await; // ready, since the candidate has resigned
/// assert_eq!(leadership.end().await, TermEnd::Resigned);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it ends the term"]
pub struct Leadership {
    /// Taken when the term ends.
    guard: Option<LeaseGuard>,
    token: u64,
    state: Arc<TermState>,
    election: Election,
    /// Whether the candidate has told its end.
    told: bool,
}

impl Leadership {
    pub(super) fn new(guard: LeaseGuard, state: Arc<TermState>, election: Election) -> Self {
        Leadership {
            token: guard.token(),
            guard: Some(guard),
            state,
            election,
            told: false,
        }
    }

    fn guard(&self) -> &LeaseGuard {
        let guard = self.guard.as_ref();
        guard.expect("only the calls that consume the leadership take it")
    }

    /// Returns whether this candidate leads, by the clock of this machine. This calls nobody, and
    /// costs about as much as [`LeaseGuard::is_held`].
    ///
    /// It is false once the lease is lost or the candidate has [resigned](Election::resign). By this
    /// clock the lease ends before anybody else can be elected.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        !self.state.is_resigned() && self.guard().is_held()
    }

    /// Returns the token of the term. It is greater than that of every earlier term of the
    /// election. Send it with every write, so that a [`Fence`](crate::Fence) can refuse those of
    /// former leaders.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Reports that the leader is alive; see [`Election::fed_every`]. Returns false if the lease is
    /// lost.
    #[allow(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn feed(&self) -> bool {
        self.guard().feed()
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

    /// Ends the term. The answer says how it ended. After it another candidate can be elected. If
    /// the store fails, the others wait until the lease has run out.
    ///
    /// If the future is dropped, the term ends as by the drop of the leadership. If it is kept after
    /// its first poll and not polled again, another candidate can be elected after a lease at the
    /// latest. A future that is kept unused keeps the term.
    ///
    /// # Blocking
    ///
    /// As for [`LeaseGuard::release`].
    pub fn end(self) -> LeaseFuture<TermEnd> {
        let (leases, mut term) = (self.election.leases.clone(), self);
        leases.answer(async move {
            term.leaves();
            let released = match term.guard.take() {
                Some(guard) => Some(guard.release().await),
                None => None,
            };
            term.ended(released.as_ref())
        })
    }

    /// Takes the term out of those of the candidate. From now on it does not count as one that leads,
    /// and can't be resigned: its lock is given back.
    fn leaves(&self) {
        // In a forked copy the lock may stay locked for ever.
        if !self.state.origin.is_elsewhere() {
            let mut terms = self.election.candidate.terms.lock();
            terms.retain(|term| !Arc::ptr_eq(term, &self.state));
        }
    }

    fn ended(&mut self, released: Option<&Result<(), ReleaseError>>) -> TermEnd {
        let loss = match released {
            Some(Err(ReleaseError::Lost(loss))) => Some(*loss),
            Some(Err(ReleaseError::NotHeld)) => Some(Loss::NotHeld),
            // A release without an answer does not change that the term lasted until then.
            _ => None,
        };
        let (token, end) = (self.token, self.end_by(loss));
        self.told = true;
        self.election.tell(&Change::Ended { token, end });
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
        self.leaves();
        let (election, is_forked) = (&self.election, self.state.origin.is_elsewhere());
        // The work has panicked, or the user has dropped the term or the future that ends it.
        let guard = self.guard.take();
        let loss = guard.as_ref().and_then(|guard| guard.lost().loss());
        drop(guard);
        // The others go first after a resignation (ELECT-3), however the term has ended.
        if self.state.is_resigned() && !is_forked {
            election.comes_last(self.token);
        }
        if !self.told {
            let (token, end) = (self.token, self.end_by(loss));
            // A second panic would end the process.
            let _ = catch_panic(|| election.tell(&Change::Ended { token, end }));
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
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
            .field("election", &self.election.name)
            .field("guard", &self.guard)
            .field("resigned", &self.state.is_resigned())
            .finish()
    }
}
