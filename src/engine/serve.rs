//! Claims tickets, runs their tasks and completes the runs.
//!
//! A claim turns a ticket into a run under the stripe's lock, or finds that the ticket stands for
//! nothing any more. A ticket is claimed right before its task starts, never in advance, so a
//! waiting task can still be cancelled. Completing one run and claiming the next ticket of the same
//! stripe take one hold of the lock.
//!
//! A claim reads the clock in a cheap way, and exactly only if something is decided by the reading:
//! READING-6 in `clock/reading.rs`. A completion that nothing follows reads no clock.
//!
//! A payload that only wakes a task ends with its claim, since there is nothing about its run that
//! a call could ask. So the wake-ups of one stripe that follow each other are claimed under one
//! hold of the lock, and then the tasks are woken. A sleep that is reset or dropped in between has
//! missed its entry, and its task is polled once more than needed.
//!
//! A payload that runs again becomes the successor of its own run. This happens before the run is
//! completed, in a hold of the lock of its own. So a payload that does not run again is dropped
//! while the key still runs, and a thread or task that waits for the run's end finds the payload
//! gone.

use super::frontend::{Batched, Frontend, FrontendTypes, RunInfo, RunOutcome};
use super::user_code::UserCodeScope;
use super::{Engine, ExecutorKind, task_scope};
use crate::clock::ClaimReading;
use crate::job::{AtLock, Claim, Ticket, catch_panic};
use crate::shard::{Claimed, Completed, EntryId, Stripe, when_unlocked};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::tick::Time;

/// The engine as the executor sees it: the other side of a ticket.
pub(crate) struct Server<F: FrontendTypes> {
    engine: Arc<Engine<F>>,
    pub(super) access: F::Access,
}

/// A run that has ended and is not completed yet.
struct Done {
    stripe: u32,
    id: EntryId,
    panicked: bool,
}

/// A claim, and a guard if user code follows that belongs to no run.
type Claiming<'a, F> = (
    Claimed<<F as FrontendTypes>::Key, <F as FrontendTypes>::Payload>,
    Option<UserCodeScope<'a, F>>,
);

/// The wake-ups that one hold of a stripe's lock has claimed, which are complete.
struct WakeUps<F: Frontend> {
    claimed: Vec<(F::Key, F::Payload)>,
    /// The ticket that follows those of the wake-ups.
    next: Option<Ticket>,
    /// Whether nothing may be claimed that is not light.
    only_light: bool,
    /// Whether the ticket is left alone for that reason.
    not_light: bool,
}

impl<F: Frontend> Server<F> {
    pub(super) fn new(engine: &Arc<Engine<F>>) -> Arc<Self> {
        Arc::new(Server {
            access: F::access(engine),
            engine: Arc::clone(engine),
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<F>> {
        &self.engine
    }

    /// Completes `done`, if there is one, and claims `ticket`. If that is a wake-up, the wake-ups
    /// of the same stripe that `more` has next are claimed, too. If only what is light may be
    /// claimed, and the ticket stands for something else, this changes nothing and says so in
    /// `wake_ups`.
    ///
    /// A shutdown must not miss the user code that follows, such as the drop of the completed run's
    /// key. If the claim yields a run, that run is counted while the key is dropped. Otherwise the
    /// returned guard counts this thread.
    fn claim(
        &self,
        ticket: Ticket,
        done: Option<Done>,
        wake_ups: &mut WakeUps<F>,
        at_lock: &AtLock,
        more: &mut dyn FnMut() -> Option<Ticket>,
    ) -> Claiming<'_, F> {
        let engine = &self.engine;
        let mut present = ClaimReading::new(engine.clock());
        let number = ticket.stripe as usize;
        // A run of another stripe is completed under its own stripe's lock. Only within one stripe
        // can completing and claiming share a hold.
        let done = match done {
            Some(done) if done.stripe != ticket.stripe => {
                engine.complete(done.stripe, done.id, done.panicked, at_lock);
                None
            }
            done => done,
        };
        let waits = at_lock.enter();
        let (completed, claimed, user_code) = engine.with(number, |stripe| {
            // In the hold of the claim: a key may get another payload while it is queued.
            if F::LIGHT
                && wake_ups.only_light
                && stripe.has_queued(ticket.slot, |payload| !F::is_light(payload))
            {
                wake_ups.not_light = true;
                return (None, Claimed::Nothing, None);
            }
            let completed =
                done.map(|done| stripe.complete(done.id, done.panicked, || present.exact()));
            if F::HAS_WAKE_UPS {
                wake_ups.claim(stripe, ticket, present.low(), more);
            }
            let claimed = if wake_ups.is_empty() {
                stripe.claim_as(ticket.slot, &mut present, F::start)
            } else {
                Claimed::Nothing
            };
            // USER-1: entered in the hold that completes the run, so that a shutdown finds either
            // the run or this thread in user code.
            let follows = match &claimed {
                Claimed::Run { .. } => false,
                Claimed::KeyPanicked { .. } => true,
                Claimed::Nothing => {
                    !wake_ups.is_empty()
                        || completed.as_ref().is_some_and(Completed::leaves_user_code)
                }
            };
            (
                completed,
                claimed,
                follows.then(|| engine.after_run(number)),
            )
        });
        drop(waits);
        if F::LIGHT && wake_ups.not_light {
            return (claimed, user_code);
        }
        let shard = engine.shards().shard_of(number);
        shard.backlog.claimed(&shard.bell);
        for _ in 1..wake_ups.len() {
            shard.backlog.claimed(&shard.bell);
        }
        if let Some(completed) = completed {
            after_completion(completed);
        }
        (claimed, user_code)
    }

    /// Wakes the tasks of claimed wake-ups, one by one: the waker of each is user code.
    #[inline(never)]
    fn wake_all(&self, stripe: u32, wake_ups: &mut WakeUps<F>) {
        let mut panics = 0;
        for (key, payload) in wake_ups.claimed.drain(..) {
            panics += u64::from(catch_panic(|| F::wake_up(&self.access, payload)).is_err());
            let _ = catch_panic(|| drop(key));
        }
        if panics > 0 {
            self.engine
                .with(stripe as usize, |stripe| stripe.count_panics(panics));
        }
    }

    /// Runs a claimed task. Returns the run to complete afterwards, if there is one.
    fn run(
        &self,
        ticket: Ticket,
        claimed: Claimed<F::Key, F::Payload>,
        at_lock: &AtLock,
    ) -> Option<Done> {
        match claimed {
            Claimed::Nothing => None,
            Claimed::KeyPanicked {
                panic,
                key,
                value,
                deadline,
            } => {
                // The key's `Clone` panicked. This is reported as a panic of the arming. There is
                // no clone, so the handler gets the original key.
                let message = catch_panic(|| std::panic::resume_unwind(panic)).err();
                let info = RunInfo {
                    key: &key,
                    stripe: ticket.stripe,
                    id: EntryId::gone(ticket.slot),
                    deadline,
                    started: self.engine.now(),
                };
                let message = message.unwrap_or_default();
                // The payload is dropped before the panic is reported, so that the handler finds
                // nothing left of the arming.
                let _ = catch_panic(|| drop(value));
                let _ = catch_panic(|| F::panicked(&self.access, &info, &message));
                let _ = catch_panic(|| drop(key));
                None
            }
            Claimed::Run {
                key,
                value,
                id,
                deadline,
                started,
            } => {
                let info = RunInfo {
                    key: &key,
                    stripe: ticket.stripe,
                    id,
                    deadline,
                    started,
                };
                #[cfg(feature = "tracing")]
                let outcome = self.run_traced(&info, value);
                #[cfg(not(feature = "tracing"))]
                let outcome = F::run_to_its_end(&self.access, &info, value);
                let panicked = match outcome {
                    RunOutcome::Done { panicked } => Some(panicked),
                    RunOutcome::Repeat {
                        panicked,
                        payload,
                        next,
                    } => {
                        // Before the run is completed, so that no call finds the key free in
                        // between.
                        self.engine.go_on(ticket.stripe, id, payload, next, at_lock);
                        Some(panicked)
                    }
                    // The runtime that the run continues on completes it.
                    RunOutcome::Detached => None,
                };
                let _ = catch_panic(|| drop(key));
                panicked.map(|panicked| Done {
                    stripe: ticket.stripe,
                    id,
                    panicked,
                })
            }
        }
    }
}

impl<F: Frontend> WakeUps<F> {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of claimed wake-ups. For most front ends the compiler knows that it is 0.
    #[inline]
    fn len(&self) -> usize {
        if F::HAS_WAKE_UPS {
            self.claimed.len()
        } else {
            0
        }
    }

    /// Claims `first` if it is a wake-up, and then the wake-ups of this stripe that `more` has
    /// next. The executor bounds the number of tickets, so it bounds the hold of the lock.
    #[inline(never)]
    fn claim(
        &mut self,
        stripe: &mut Stripe<F::Key, F::Payload>,
        first: Ticket,
        now: Time,
        more: &mut dyn FnMut() -> Option<Ticket>,
    ) {
        let mut next = Some(first);
        while let Some(ticket) = next.filter(|ticket| ticket.stripe == first.stripe)
            && let Some(wake_up) = stripe.claim_wake_up(ticket.slot, now, F::is_wake_up)
        {
            self.claimed.push(wake_up);
            next = more();
        }
        self.next = next;
    }
}

impl<F: Frontend> Server<F> {
    /// Serves a ticket on a ticker, unless it stands for a payload that is not light. Returns
    /// whether it did. It takes the path of all tickets, so that the compiler inlines that one as
    /// before.
    #[inline(never)]
    pub(super) fn serve_if_light(&self, ticket: Ticket) -> bool {
        self.serve_all(ticket, &AtLock::default(), &mut || None, true)
    }

    /// Serves tickets until `more` has none. With `only_light`, there must be a single ticket; it
    /// is left alone if it stands for a payload that is not light, and then this returns false.
    fn serve_all(
        &self,
        first: Ticket,
        at_lock: &AtLock,
        more: &mut dyn FnMut() -> Option<Ticket>,
        only_light: bool,
    ) -> bool {
        // Covers all user code of this call: tasks, panic handlers and drops.
        let _inside = task_scope::TaskScope::enter(self.engine.tag());
        if let Some(limit) = F::batch(&self.access) {
            self.serve_batches(first, at_lock, more, limit.get());
            return true;
        }
        let mut next = Some(first);
        let mut done = None;
        let mut wake_ups = WakeUps {
            claimed: Vec::new(),
            next: None,
            only_light,
            not_light: false,
        };
        while let Some(ticket) = next {
            let (claimed, _user_code) =
                self.claim(ticket, done.take(), &mut wake_ups, at_lock, more);
            if F::LIGHT && wake_ups.not_light {
                return false;
            }
            next = if wake_ups.is_empty() {
                done = self.run(ticket, claimed, at_lock);
                more()
            } else {
                self.wake_all(ticket.stripe, &mut wake_ups);
                wake_ups.next.take()
            };
        }
        if let Some(done) = done {
            self.engine
                .complete(done.stripe, done.id, done.panicked, at_lock);
        }
        true
    }
}

/// Serves front ends that take batches. A batch is claimed right before it runs, like a single run.
/// All tickets of one stripe are claimed under one hold of the lock.
impl<F: Frontend> Server<F> {
    /// Serves batches of at most `limit` tickets until `more` has none.
    fn serve_batches(
        &self,
        first: Ticket,
        at_lock: &AtLock,
        more: &mut dyn FnMut() -> Option<Ticket>,
        limit: usize,
    ) {
        let mut next = Some(first);
        while let Some(first) = next {
            let mut tickets = vec![first];
            while tickets.len() < limit {
                let Some(ticket) = more() else {
                    break;
                };
                tickets.push(ticket);
            }
            self.serve_batch(&tickets, at_lock);
            // Taken only now: while the batch runs, another worker may take this ticket.
            next = if tickets.len() == limit { more() } else { None };
        }
    }

    /// Claims the tickets, runs what they stand for as one batch, and completes the runs.
    fn serve_batch(&self, tickets: &[Ticket], at_lock: &AtLock) {
        let engine = &self.engine;
        let mut present = ClaimReading::new(engine.clock());
        let mut batch = Vec::with_capacity(tickets.len());
        let mut done = Vec::with_capacity(tickets.len());
        let mut claimed = Vec::with_capacity(tickets.len());
        // One hold of the lock claims all tickets of a stripe.
        for same in of_one_stripe(tickets, |ticket| ticket.stripe) {
            let stripe = same[0].stripe;
            let waits = at_lock.enter();
            let _user_code = engine.with(stripe as usize, |claiming| {
                let claims = same
                    .iter()
                    .map(|ticket| claiming.claim_as(ticket.slot, &mut present, F::start));
                claimed.extend(claims);
                // USER-1: a run counts itself, but what follows a panic of a key's `Clone` belongs
                // to no run.
                let panicked = |claim: &_| matches!(claim, Claimed::KeyPanicked { .. });
                let follows = claimed.iter().any(panicked);
                follows.then(|| engine.after_run(stripe as usize))
            });
            drop(waits);
            let shard = engine.shards().shard_of(stripe as usize);
            for (ticket, claimed) in same.iter().zip(claimed.drain(..)) {
                shard.backlog.claimed(&shard.bell);
                match claimed {
                    Claimed::Run {
                        key,
                        value,
                        id,
                        deadline,
                        started,
                    } => {
                        batch.push(Batched {
                            key,
                            value,
                            deadline,
                            started,
                        });
                        done.push(Done {
                            stripe,
                            id,
                            panicked: false,
                        });
                    }
                    // Cancelled or moved meanwhile, or its key's `Clone` panicked: no part of the
                    // batch.
                    other => {
                        self.run(*ticket, other, at_lock);
                    }
                }
            }
        }
        // No ticket stood for a timer any more.
        let Some(first) = batch.first() else {
            return;
        };
        // The batch takes the keys along, but a panic has to be reported with one of them.
        let key = catch_panic(|| first.key.clone());
        let (deadline, started) = (first.deadline, first.started);
        let ended = catch_panic(|| F::run_batch(&self.access, batch));
        let panicked = ended.is_err();
        // Only the first run is named: nobody knows which of them panicked.
        if let (Err(message), Ok(key)) = (&ended, &key) {
            let info = RunInfo {
                key,
                stripe: done[0].stripe,
                id: done[0].id,
                deadline,
                started,
            };
            let _ = catch_panic(|| F::panicked(&self.access, &info, message));
        }
        let _ = catch_panic(|| drop(key));
        let mut completed = Vec::with_capacity(done.len());
        let mut user_code = None;
        // One hold of the lock completes all runs of a stripe.
        for same in of_one_stripe(&done, |done| done.stripe) {
            let number = same[0].stripe as usize;
            let _waits = at_lock.enter();
            engine.with(number, |stripe| {
                let ends = same.iter();
                let now = || engine.now();
                completed.extend(ends.map(|done| stripe.complete(done.id, panicked, now)));
                // A run that is not completed keeps a shutdown waiting. Only the hold that
                // completes the last one has to count the user code that follows.
                if completed.len() == done.len()
                    && completed.iter().any(Completed::leaves_user_code)
                {
                    user_code = Some(engine.after_run(number));
                }
            });
        }
        // Without a lock: wakers and keys are user code. The guard is dropped after all of them.
        for completed in completed {
            after_completion(completed);
        }
        drop(user_code);
    }
}

impl<F: Frontend> Engine<F> {
    /// Makes the payload the successor of its run, or drops it.
    #[inline(never)]
    pub(super) fn go_on(
        &self,
        stripe: u32,
        id: EntryId,
        payload: F::Payload,
        next: Option<Time>,
        at_lock: &AtLock,
    ) {
        let waits = at_lock.enter();
        let refused = self.with(stripe as usize, |stripe| {
            stripe.arm_next_round(id, payload, next)
        });
        drop(waits);
        if refused.is_some() {
            // The payload is user code, and so is its drop.
            let _ = catch_panic(|| drop(refused));
        }
    }

    /// Completes a run that has ended.
    pub(super) fn complete(&self, stripe: u32, id: EntryId, panicked: bool, at_lock: &AtLock) {
        let number = stripe as usize;
        let waits = at_lock.enter();
        let (completed, _user_code) = self.with(number, |stripe| {
            let completed = stripe.complete(id, panicked, || self.now());
            let follows = completed.leaves_user_code();
            (completed, follows.then(|| self.after_run(number)))
        });
        drop(waits);
        after_completion(completed);
    }
}

/// Wakes the waiting threads and tasks, and drops the key. Called without a lock.
fn after_completion<K>(completed: Completed<K>) {
    for (_, waiter) in completed.waiters {
        // A task's waker is code of its runtime.
        let _ = catch_panic(|| waiter.wake());
    }
    if completed.key.is_some() {
        // The key's `Drop` is user code. Its panic is caught, since no caller could handle it.
        let _ = catch_panic(|| drop(completed.key));
    }
}

/// Splits `list` into groups of neighbours that belong to one stripe.
fn of_one_stripe<T>(list: &[T], stripe: impl Fn(&T) -> u32) -> impl Iterator<Item = &[T]> {
    list.chunk_by(move |one, next| stripe(one) == stripe(next))
}

impl<F: Frontend> Claim for Server<F> {
    fn dispatch(&self, first: Ticket, at_lock: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        #[cfg(feature = "tracing")]
        self.engine.tell_faults();
        match &self.engine.executor_kind {
            ExecutorKind::Foreign(executor) => self.submit(executor.as_ref(), first, more),
            ExecutorKind::Pool | ExecutorKind::Inline => self.serve(first, at_lock, more),
        }
    }

    fn serve(&self, first: Ticket, at_lock: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
        let _ = self.serve_all(first, at_lock, more, false);
    }

    fn prefetch_claims(&self, tickets: &[Ticket]) {
        if matches!(self.engine.executor_kind, ExecutorKind::Foreign(_)) {
            // This processor claims none of them.
            return;
        }
        for same in of_one_stripe(tickets, |ticket| ticket.stripe) {
            let stripe = same[0].stripe as usize;
            let engine = &self.engine;
            engine.with(stripe, |stripe| {
                stripe.prefetch_claims(same.iter().map(|ticket| ticket.slot), F::prefetch);
            });
        }
    }

    fn give_back(&self, tickets: &[Ticket]) {
        // Relaxed: a count.
        self.engine.faults().refused.fetch_add(1, Ordering::Relaxed);
        // A job may be dropped anywhere, also under a lock.
        let (engine, tickets) = (Arc::clone(&self.engine), tickets.to_vec());
        when_unlocked(move || engine.take_back(&tickets));
    }
}

impl<F: Frontend> std::fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
