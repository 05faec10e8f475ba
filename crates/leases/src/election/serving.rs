//! Candidates that lead again and again.
//!
//! - **SERVE-1** A refusal of the store pauses the candidacy, and does not end it. It ends by what
//!   the program has done: a stop, a close, a fork, or options that no store can grant. It also
//!   ends if the leases get no threads.
//! - **SERVE-2** A candidate steps back, as after a resignation, when its work has returned while it
//!   led, and when its options have ended the term. So work that returns at once, or a longest term
//!   that is tiny, can't keep the store busy.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tourbillon::reentrancy;

use super::leadership::Leadership;
use super::{Change, Election, TermEnd};
use crate::keep_alive::Loss;
use crate::manager::LockError;
use crate::store::StoreError;

/// The mean of the first pause after a refusal, and the longest mean. With its jitter of a fifth,
/// the longest pause is less than a second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(800));

impl Election {
    /// Leads whenever this candidate can, until it is [stopped](Self::stop). This is how a service
    /// takes part in an election: it campaigns, calls `work` when it is elected, and campaigns again
    /// when the term is over.
    ///
    /// `work` should ask [`Leadership::is_leader`] before each portion, and return when it is not
    /// the leader any more. Nothing can stop it from outside. If it panics, the term ends and the
    /// panic goes on.
    ///
    /// **If `work` returns while it leads**, the candidate lets the others lead first, as after
    /// [`resign`](Self::resign). So does a candidate whose term has ended since it was [not
    /// fed](Self::fed_every) or was [too long](Self::max_hold). To end the service from within
    /// `work`, call [`stop`](Self::stop) and return.
    ///
    /// **A store that fails or refuses** does not end the candidacy. A refusal, for example
    /// while a password is changed, is reported as [`Change::Failed`]. The candidate tries again after
    /// a pause. The pause grows up to about a quarter of the lease, and stays below a second. If the
    /// server is away, the candidate goes on waiting, and the [event](crate#events) `Waiting`
    /// reports it. [`status`](Self::status) and [`health`](Self::health) report both kinds of errors.
    ///
    /// Clones may serve at one time, on several threads. One of them leads then, and the others
    /// wait.
    ///
    /// # Errors
    ///
    /// `Ok` is returned only after a stop. These errors are returned at once:
    ///
    /// - a name or an option that is out of range, such as a lease that the store does not grant,
    /// - [`LockError::Closed`]: the leases are closed,
    /// - [`LockError::Store`] with [`StoreError::Forked`] in a forked copy of the process,
    /// - [`LockError::Spawn`] and [`LockError::Runtime`]: the leases could not start their threads.
    ///
    /// # Panics
    ///
    /// Panics if `work` or the callback of [`on_change`](Self::on_change) does.
    ///
    /// # Blocking
    ///
    /// Blocks until the candidate is stopped, and its work has returned. A call to the store that is
    /// under way ends first, after a third of the lease at most.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler").on_change(|change| println!("{change}"));
    /// let stops = election.clone(); // for whoever hears of the end of the program
    /// let service = std::thread::spawn(move || {
    ///     election.serve(|leadership| {
    ///         while leadership.is_leader() {
    ///             // .. a portion of work, with leadership.token() ..
    /// #           std::thread::yield_now();
    ///         }
    ///     })
    /// });
    /// stops.stop();
    /// service.join().expect("the work does not panic")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(&self, mut work: impl FnMut(&Leadership)) -> Result<(), LockError> {
        let (mut retries, mut waits) = (Retries::default(), None);
        loop {
            // Also during a pause, so that the candidate has waited since the first attempt.
            waits = Some(waits.map_or_else(|| self.waits(), Ok)?);
            match self.lead().wait() {
                Ok(leadership) => {
                    (retries, waits) = (Retries::default(), None);
                    work(&leadership);
                    let (token, led) = (leadership.token(), leadership.is_leader());
                    self.served(token, led, leadership.end().wait());
                }
                Err(error) => match self.tries_again(error, &mut retries)? {
                    Some(pause) => {
                        self.leases.block_on(self.rest(pause));
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    /// Leads whenever this candidate can, like [`serve`](Self::serve), as a future.
    ///
    /// The future of `work` is **dropped** when the lease is lost, or the candidate resigns or is
    /// stopped. It stops at its next `await`, so work between two of them should be short.
    ///
    /// The future needs no particular runtime, and owns what it needs: spawn it as a task. If it is
    /// dropped, the campaign or the term ends.
    ///
    /// # Errors
    ///
    /// As for [`serve`](Self::serve).
    ///
    /// # Panics
    ///
    /// Panics if `work` or the callback of [`on_change`](Self::on_change) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler");
    /// let (tell, mut told) = tokio::sync::mpsc::channel(1);
    /// let service = tokio::spawn(election.serve_async(async move |leadership| {
    ///     let _ = tell.send(leadership.token()).await;
    ///     std::future::pending::<()>().await // .. work that ends with the leadership
    /// }));
    /// println!("leads with token {:?}", told.recv().await);
    /// election.stop(); // the program ends
    /// service.await??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve_async<W: AsyncFnMut(&Leadership)>(
        &self,
        mut work: W,
    ) -> impl Future<Output = Result<(), LockError>> + use<W> {
        // Owned, or the compiler can't prove that the future is `Send`.
        let election = self.clone();
        async move {
            let (mut retries, mut waits) = (Retries::default(), None);
            loop {
                // As in `serve`.
                waits = Some(waits.map_or_else(|| election.waits(), Ok)?);
                match election.lead().await {
                    Ok(leadership) => {
                        (retries, waits) = (Retries::default(), None);
                        until_over(&leadership, work(&leadership)).await;
                        let (token, led) = (leadership.token(), leadership.is_leader());
                        election.served(token, led, leadership.end().await);
                    }
                    Err(error) => match election.tries_again(error, &mut retries)? {
                        Some(pause) => {
                            if !election.rest(pause).await {
                                return Err(election.without_end());
                            }
                        }
                        None => return Ok(()),
                    },
                }
            }
        }
    }

    /// Notes that a term of a service has ended (SERVE-2). `led` says whether it led when its work
    /// returned.
    fn served(&self, token: u64, led: bool, end: TermEnd) {
        let by_options = matches!(end, TermEnd::Lost(Loss::NotFed | Loss::HeldTooLong));
        // A resignation has done so already. A lease that ran out says nothing about the work.
        if led || by_options {
            self.comes_last(token);
        }
    }

    /// Decides what follows a campaign that failed: a pause, `None` after a stop, or the error
    /// (SERVE-1).
    fn tries_again(
        &self,
        error: LockError,
        retries: &mut Retries,
    ) -> Result<Option<Duration>, LockError> {
        match error {
            LockError::Stopped { .. } => return Ok(None),
            LockError::Store { ref error, .. } if may_pass(error) => {
                let failing = self.candidate.stop.failing();
                if failing.note(Some(error), self.leases.now()) {
                    let error = error.clone();
                    self.tell(&Change::Failed { error });
                }
            }
            // The options ended the lease before its grant arrived.
            LockError::Lost { .. } => {}
            _ => return Err(error),
        }
        // The callback may have forked. Nothing would end a pause in the copy.
        if self.leases.is_forked() {
            return Err(self.forked());
        }
        let most = PAUSES.1.min(self.lease_length() / 4);
        Ok(Some(self.leases.spread(retries.pause().min(most))))
    }
}

/// Whether a store that has answered so may grant the lock later.
fn may_pass(error: &StoreError) -> bool {
    match error {
        StoreError::Forked => false,
        // Under a lock of the crate, in a panic: nothing was asked, and a pause changes nothing.
        _ => reentrancy::check().is_ok(),
    }
}

/// The pauses after refusals that follow each other.
#[derive(Default)]
struct Retries {
    tried: u32,
}

impl Retries {
    fn pause(&mut self) -> Duration {
        let pause = PAUSES.0.saturating_mul(1 << self.tried.min(10));
        self.tried = self.tried.saturating_add(1);
        pause
    }
}

/// Runs work until it is ready or the term is over.
pub(super) async fn until_over<R>(
    leadership: &Leadership,
    work: impl Future<Output = R>,
) -> Option<R> {
    let mut work = pin!(work);
    let mut over = leadership.over();
    poll_fn(|context| {
        // The end of the term comes first, so that no work begins after it.
        if over.poll_over(context).is_ready() {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}
