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
//! - **ELECT-3** A candidate that has resigned, or lets the others lead first (SERVE-2), steps back:
//!   it asks for the lock again when it has seen another leader, or when two seconds have passed
//!   without one. Otherwise it would be elected again, since it asks first. It looks now and then,
//!   so it may miss a term that is shorter.
//! - **ELECT-4** A stop ends the wait of a candidate, or asks its work to stop. The lock is released
//!   as after a resignation, and nothing else of the same leases ends.

mod change;
mod leaders;
mod leadership;
mod serving;
mod status;

use std::fmt;
use std::time::Duration;

use tourbillon::Time;

use crate::manager::{Acquisition, LeaseFuture, LeaseGuard, Leases, LockError, StopSignal};
use crate::store::{Holder, StoreError};
use crate::sync::{Arc, Mutex};
pub use change::{Change, TermEnd};
pub use leaders::Leader;
use leaders::Lookout;
use leadership::TermState;
pub use leadership::{Leadership, Over};
use status::Campaigns;
pub use status::{ElectionRole, ElectionStatus};

/// One candidate in an election. Of all candidates of one name, one leads at a time.
///
/// [`serve`](Self::serve) takes part in the election for as long as the program wants: it waits
/// until this candidate is elected, runs work, and campaigns again when the term is over. For one
/// term there is [`lead`](Self::lead). Processes that only follow hear from
/// [`leaders`](Self::leaders) who leads.
///
/// A leader that dies, is cut off or stands still is replaced when its lease has run out. A leader
/// that still exists learns of that first, by its own clock: see [`Leadership::is_leader`]. As with
/// locks, a leader that was paused in the middle of a write can't know that another one was elected.
/// Its [token](Leadership::token) lets the resource [refuse](crate::Fence) the write.
///
/// Clones are the same candidate. It has no threads of its own.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon_leases::{Leases, MemoryStore};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let leases = Leases::builder(MemoryStore::new()).lease(Duration::from_secs(10)).build()?;
/// let election = leases.election("scheduler").on_change(|change| println!("{change}"));
///
/// let mut plans = 0;
/// election.serve(|leadership| {
///     while leadership.is_leader() {
///         plans += 1; // .. a portion of work, with leadership.token()
///         if plans == 3 {
///             election.stop(); // usually from another thread, when the program ends
///         }
///     }
/// })?;
/// # assert_eq!(plans, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "it is elected only while it serves or leads"]
pub struct Election {
    leases: Leases,
    name: String,
    on_change: Option<Arc<OnChange>>,
    options: ElectionOptions,
    candidate: Arc<Candidate>,
}

/// The options of the lock, where they are not the defaults.
#[derive(Clone, Copy, Default)]
struct ElectionOptions {
    lease: Option<Duration>,
    feed: Option<Duration>,
    max_hold: Option<Duration>,
}

type OnChange = dyn Fn(&Change) + Send + Sync;

/// What the clones of an election share.
#[derive(Default)]
struct Candidate {
    /// The present terms. There is one at most, except that a candidate may be elected again while
    /// the work of a lost term still goes on.
    terms: Mutex<Vec<Arc<TermState>>>,
    /// Why the candidate does not ask for the lock (ELECT-3, SERVE-2).
    steps_back: Mutex<Option<StepBack>>,
    /// Ends waits. An `Arc`, since waiting callers keep it.
    stop: Arc<StopSignal>,
    campaigns: Mutex<Campaigns>,
    /// The channels of [`leaders`](Election::leaders).
    lookout: Lookout,
}

/// A resignation that the candidate still respects.
#[derive(Clone, Copy)]
struct StepBack {
    /// The token of the term that ended by it. A leader with a greater one is another one.
    token: u64,
    /// When the candidate may lead again though nobody else does.
    until: Time,
}

/// The first pause between two looks at who leads, and the longest one.
const LOOKS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// After this time without another leader the candidate leads again. Those who wait ask at least
/// once a second.
const ALONE: Duration = Duration::from_secs(2);

impl Leases {
    /// Returns a candidate in the election of this name. This does not call the store.
    ///
    /// An election uses the lock of its name: who holds that lock leads. The lease of the leader is
    /// the default of these leases.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler").lease(Duration::from_secs(10));
    /// let leadership = election.lead().wait()?;
    /// println!("leads with token {}", leadership.token());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election {
            leases: self.clone(),
            name: name.into(),
            on_change: None,
            options: ElectionOptions::default(),
            candidate: Arc::default(),
        }
    }
}

impl Election {
    /// Sets a callback that is called when this candidate is elected, before its work begins, and
    /// when its term has ended, after its work. A candidate that [serves](Self::serve) also reports
    /// that the store refuses it.
    ///
    /// It runs on the thread or task that campaigns. If it panics, the campaign panics, and the
    /// term ends.
    pub fn on_change(mut self, tell: impl Fn(&Change) + Send + Sync + 'static) -> Self {
        self.on_change = Some(Arc::new(tell));
        self
    }

    /// Sets the length of the leader's lease, as [`Acquisition::lease`] does. The default is that of
    /// the leases.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Demands that the leader calls [`Leadership::feed`] at least once in each `period`, as
    /// [`Acquisition::fed_every`] does. The term of a leader that hangs then ends by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler").fed_every(Duration::from_secs(60));
    /// let leadership = election.lead().wait()?;
    /// for portion in 1..=3 {
    ///     println!("portion {portion}");
    ///     assert!(leadership.feed()); // the leader is alive
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fed_every(mut self, period: Duration) -> Self {
        self.options.feed = Some(period);
        self
    }

    /// Sets the longest term, as [`Acquisition::max_hold`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let hour = Duration::from_secs(3600);
    /// let leadership = leases.election("scheduler").max_hold(hour).lead().wait()?;
    /// assert!(leadership.is_leader()); // for an hour at most
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.options.max_hold = Some(most);
        self
    }

    /// Returns the name of the election.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// assert_eq!(leases.election("scheduler").name(), "scheduler");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits until this candidate is elected. The term lasts until the [`Leadership`] is dropped or
    /// [ended](Leadership::end). A service calls [`serve`](Self::serve), which goes on after the
    /// term and after refusals of the store.
    ///
    /// If the future is dropped, the campaign ends.
    ///
    /// # Errors
    ///
    /// As for [`Acquisition::wait`], and [`LockError::Stopped`] after a [stop](Self::stop).
    ///
    /// # Blocking
    ///
    /// [`wait`](LeaseFuture::wait) blocks until the candidate is elected.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore, TermEnd};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// // One of the processes migrates the tables. The others find them migrated.
    /// let leadership = leases.election("migration").lead().wait()?; // or .await?
    /// println!("migrating with token {}", leadership.token());
    /// assert_eq!(leadership.end().wait(), TermEnd::Completed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lead(&self) -> LeaseFuture<Result<Leadership, LockError>> {
        let election = self.clone();
        self.leases.answer(async move {
            let _waits = election.waits()?;
            let mut looks = LOOKS.0;
            while election.is_back() {
                let leader = election.leader().await;
                if !election.steps_back(&mut looks, leader) {
                    break;
                }
                if !election.rest(looks).await {
                    return Err(election.without_end());
                }
            }
            let lock = election.acquisition().acquire().await;
            Ok(election.elected(lock.map_err(|error| election.or_stopped(error))?))
        })
    }

    /// Asks this candidate to stop leading. Returns whether it had a term.
    ///
    /// From now on [`Leadership::is_leader`] is false, and the future of the work of
    /// [`serve_async`](Self::serve_async) is dropped. The next leader is elected when the work has
    /// returned, and not before. A campaign that still waits goes on.
    ///
    /// The other candidates come first. The next campaign of this one asks for the lock only when it has
    /// seen that another candidate leads. It waits for that for two seconds at most, or for one lease if
    /// that is shorter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore, TermEnd};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler");
    /// let leadership = election.lead().wait()?;
    /// assert!(election.resign()); // usually from another thread
    /// assert!(!leadership.is_leader());
    /// assert_eq!(leadership.end().wait(), TermEnd::Resigned);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resign(&self) -> bool {
        // As in `stop`.
        if self.leases.is_forked() {
            return false;
        }
        let terms = self.candidate.terms.lock().clone();
        let mut led = false;
        for term in terms {
            led = true;
            term.resign();
        }
        led
    }

    /// Stops this candidate and its clones, for good. [`serve`](Self::serve) returns when its work
    /// has, or when a call to the store that is under way has ended. A campaign that waits fails with
    /// [`LockError::Stopped`], and so do later ones. A leader is asked to stop, as by
    /// [`resign`](Self::resign). Nothing else of the same leases changes, and
    /// [`leaders`](Self::leaders) goes on.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, LockError, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let _leader = leases.election("scheduler").lead().wait()?;
    /// let candidate = leases.election("scheduler");
    /// let waits = std::thread::spawn({
    ///     let candidate = candidate.clone();
    ///     move || candidate.lead().wait()
    /// });
    /// candidate.stop(); // the program ends
    /// assert!(matches!(waits.join().unwrap(), Err(LockError::Stopped { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop(&self) {
        // In a forked copy the locks may stay locked for ever, and nothing of this process leads.
        if self.leases.is_forked() {
            return;
        }
        self.candidate.stop.stop();
        self.resign();
    }

    /// Asks the store who leads. The answer is `None` if nobody does. Everything that
    /// [`Leases::holder`] says holds here, too.
    ///
    /// # Errors
    ///
    /// As for [`Leases::holder`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_leases::{Leases, MemoryStore};
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler");
    /// assert!(election.leader().wait()?.is_none());
    /// let leadership = election.lead().wait()?;
    /// let leader = election.leader().wait()?.expect("it leads");
    /// assert_eq!(leader.token, leadership.token());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leader(&self) -> LeaseFuture<Result<Option<Holder>, LockError>> {
        self.leases.holder(&self.name)
    }

    /// Returns the error of a campaign. A program that ends stops its candidates and closes its
    /// leases. A campaign that finds both reports the stop.
    fn or_stopped(&self, error: LockError) -> LockError {
        match error {
            LockError::Closed { name } if self.candidate.stop.is_stopped() => {
                LockError::Stopped { name }
            }
            error => error,
        }
    }

    /// Whether the candidate has resigned, and nobody else is known to have led since. One that is
    /// stopped asks nobody: the acquire says so. So it is in a forked copy of the process.
    fn is_back(&self) -> bool {
        !self.leases.is_forked()
            && !self.leases.is_over(&self.candidate.stop)
            && self.candidate.steps_back.lock().is_some()
    }

    /// Waits for `pause`, or until there is nothing to wait for any more. Returns false if nothing
    /// could end the wait.
    async fn rest(&self, pause: Duration) -> bool {
        self.leases.pause(pause, &self.candidate.stop).await
    }

    /// Returns the error for a wait that nothing could end.
    fn without_end(&self) -> LockError {
        match self.leases.is_forked() {
            true => self.forked(),
            false => LockError::Closed {
                name: self.name.clone(),
            },
        }
    }

    /// Decides whether the candidate still leaves the lead to others, by who leads now. Doubles the
    /// pause until it looks again.
    fn steps_back(&self, looks: &mut Duration, leader: Result<Option<Holder>, LockError>) -> bool {
        // The process may have been forked since `is_back`, and the lock may stay locked for ever.
        if self.leases.is_forked() {
            return false;
        }
        let mut steps_back = self.candidate.steps_back.lock();
        let Some(back) = *steps_back else {
            return false;
        };
        let is_over = match leader {
            Ok(leader) => leader.is_some_and(|leader| leader.token > back.token),
            // A store that can't tell: the time decides.
            Err(LockError::Store { error, .. }) => error == StoreError::Forked,
            // The acquire fails in the same way.
            Err(_) => true,
        };
        let now = self.leases.now();
        if is_over || now >= back.until {
            *steps_back = None;
            return false;
        }
        *looks = (*looks * 2).min(LOOKS.1).min(back.until.since(now));
        true
    }

    /// Notes that a term has ended after which the others lead first.
    fn comes_last(&self, token: u64) {
        let until = self.leases.now() + self.lease_length().min(ALONE);
        *self.candidate.steps_back.lock() = Some(StepBack { token, until });
    }

    /// Returns the length of the leader's lease.
    fn lease_length(&self) -> Duration {
        self.options.lease.unwrap_or(self.leases.default_lease())
    }

    /// Returns the acquire of a term's lock.
    fn acquisition(&self) -> Acquisition<'_> {
        let options = self.options;
        let mut acquisition = self.leases.lock(&self.name);
        if let Some(lease) = options.lease {
            acquisition = acquisition.lease(lease);
        }
        if let Some(period) = options.feed {
            acquisition = acquisition.fed_every(period);
        }
        if let Some(most) = options.max_hold {
            acquisition = acquisition.max_hold(most);
        }
        acquisition.stopped_by(&self.candidate.stop)
    }

    fn elected(&self, guard: LeaseGuard) -> Leadership {
        let now = self.leases.now();
        self.candidate.stop.failing().note(None, now);
        let state = Arc::new(TermState::new(&guard, now));
        self.candidate.terms.lock().push(Arc::clone(&state));
        let token = guard.token();
        // Made before the callback, so that the term ends if that panics.
        let leadership = Leadership::new(guard, Arc::clone(&state), self.clone());
        // A stop that came before the term was in the list has not reached it.
        if self.candidate.stop.is_stopped() {
            state.resign();
        }
        self.tell(&Change::Elected { token });
        leadership
    }

    fn tell(&self, change: &Change) {
        if let Some(tell) = &self.on_change {
            tell(change);
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name)
            .field("role", &self.status().role)
            .finish_non_exhaustive()
    }
}
