//! Claim, run, settle.
//!
//! A claim turns a ticket into a run under the stripe's lock, or finds that there is nothing to
//! run. It is made right before the task starts: nothing is ever claimed in advance, so what waits
//! can be cancelled. Settling one run and claiming the next ticket of the same stripe take one
//! lock.
//!
//! A payload that runs again is kept for after its run, before that is settled and under a lock of
//! its own: so one that does not go on is dropped while the key still runs, and who waits for the
//! run's end finds it gone.

use super::outside::InUserCode;
use super::{Engine, Face, inside};
use crate::job::{Claim, Ticket, contain};
use crate::shard::{Claimed, EntryId, Settled, Stays, when_unlocked};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::tick::Time;

/// What a run is told.
#[derive(Debug)]
pub(crate) struct Fire<'a, K> {
    pub(crate) key: &'a K,
    pub(crate) stripe: u32,
    pub(crate) id: EntryId,
    pub(crate) deadline: Time,
    pub(crate) started: Time,
}

/// A run of a batch.
#[derive(Debug)]
pub(crate) struct Batched<K, V> {
    pub(crate) key: K,
    pub(crate) value: V,
    pub(crate) deadline: Time,
    pub(crate) started: Time,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended<P> {
    pub(crate) panicked: bool,
    /// The payload, if it may run again.
    pub(crate) stays: Option<Stays<P>>,
    /// It goes on elsewhere, and is settled there.
    pub(crate) left: bool,
}

/// The engine as the executor sees it.
pub(crate) struct Server<F: Face> {
    engine: Arc<Engine<F>>,
    access: F::Access,
}

/// A run that has ended and is not settled yet.
struct Done {
    stripe: u32,
    id: EntryId,
    panicked: bool,
}

/// A claim, with what counts user code that follows it outside of a run.
type Claiming<'a, F> = (
    Claimed<<F as Face>::Key, <F as Face>::Payload>,
    Option<InUserCode<'a, F>>,
);

impl<F: Face> Server<F> {
    pub(super) fn new(engine: &Arc<Engine<F>>) -> Arc<Self> {
        Arc::new(Server {
            access: F::access(engine),
            engine: Arc::clone(engine),
        })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<F>> {
        &self.engine
    }

    /// Settles `done`, if anything, and claims. A claimed run counts itself, and the key of the
    /// settled one is dropped while it is under way; other user code is counted by the answer.
    fn claim(&self, ticket: Ticket, done: Option<Done>) -> Claiming<'_, F> {
        let engine = &self.engine;
        let now = engine.now();
        let number = ticket.stripe as usize;
        let done = match done {
            Some(done) if done.stripe != ticket.stripe => {
                engine.settle(done.stripe, done.id, done.panicked);
                None
            }
            done => done,
        };
        let (settled, claimed, user_code) = engine.with(number, |stripe| {
            let settled = done.map(|done| stripe.settle(done.id, done.panicked, now));
            let claimed = stripe.claim_as(ticket.slot, now, F::start);
            let follows = match &claimed {
                Claimed::Run { .. } => false,
                Claimed::KeyPanicked { .. } => true,
                Claimed::Nothing => settled.as_ref().is_some_and(Settled::leaves_user_code),
            };
            (settled, claimed, follows.then(|| engine.after_run(number)))
        });
        let shard = engine.shards().shard_of(number);
        shard.backlog.claimed(&shard.bell);
        if let Some(settled) = settled {
            after_settling(settled);
        }
        (claimed, user_code)
    }

    /// The next round is kept for after the run, or the payload goes.
    #[inline(never)]
    fn go_on(&self, stripe: u32, id: EntryId, stays: Stays<F::Payload>) {
        let left = self
            .engine
            .with(stripe as usize, |stripe| stripe.arm_next_round(id, stays));
        if left.is_some() {
            // Its drop is user code.
            let _ = contain(|| drop(left));
        }
    }

    /// Runs a claimed task. What must be settled afterwards, if anything.
    fn run(&self, ticket: Ticket, claimed: Claimed<F::Key, F::Payload>) -> Option<Done> {
        match claimed {
            Claimed::Nothing => None,
            Claimed::KeyPanicked {
                panic,
                key,
                value,
                deadline,
            } => {
                // Told as what it is: a panic of this arming, with no key to show but the original.
                let message = contain(|| std::panic::resume_unwind(panic)).err();
                let fire = Fire {
                    key: &key,
                    stripe: ticket.stripe,
                    id: EntryId::gone(ticket.slot),
                    deadline,
                    started: self.engine.now(),
                };
                let message = message.unwrap_or_default();
                // It is out, with all that belongs to it, before anybody is told.
                let _ = contain(|| drop(value));
                let _ = contain(|| F::panicked(&self.access, &fire, &message));
                let _ = contain(|| drop(key));
                None
            }
            Claimed::Run {
                key,
                value,
                id,
                deadline,
                started,
            } => {
                let fire = Fire {
                    key: &key,
                    stripe: ticket.stripe,
                    id,
                    deadline,
                    started,
                };
                let ended = F::run_to_its_end(&self.access, &fire, value);
                let Ended {
                    panicked,
                    stays,
                    left,
                } = ended;
                if let Some(stays) = stays {
                    self.go_on(ticket.stripe, id, stays);
                }
                let _ = contain(|| drop(key));
                if left {
                    return None;
                }
                Some(Done {
                    stripe: ticket.stripe,
                    id,
                    panicked,
                })
            }
        }
    }
}

/// For faces that run several at once. The batch is claimed right before it runs, as a single run
/// would be: one hold of the lock and one reading of the clock for all of a stripe.
impl<F: Face> Server<F> {
    fn serve_batches(&self, first: Ticket, more: &mut dyn FnMut() -> Option<Ticket>, limit: usize) {
        let mut next = Some(first);
        while let Some(first) = next {
            let mut tickets = vec![first];
            while tickets.len() < limit {
                let Some(ticket) = more() else {
                    break;
                };
                tickets.push(ticket);
            }
            self.serve_batch(&tickets);
            // Not before: nobody else could take it while the batch runs.
            next = if tickets.len() == limit { more() } else { None };
        }
    }

    fn serve_batch(&self, tickets: &[Ticket]) {
        let engine = &self.engine;
        let started = engine.now();
        let mut batch = Vec::with_capacity(tickets.len());
        let mut done = Vec::with_capacity(tickets.len());
        let mut claimed = Vec::with_capacity(tickets.len());
        for same in of_one_stripe(tickets, |ticket| ticket.stripe) {
            let stripe = same[0].stripe;
            let _user_code = engine.with(stripe as usize, |claiming| {
                let claims = same
                    .iter()
                    .map(|ticket| claiming.claim_as(ticket.slot, started, F::start));
                claimed.extend(claims);
                let panicked = |claim: &_| matches!(claim, Claimed::KeyPanicked { .. });
                let follows = claimed.iter().any(panicked);
                follows.then(|| engine.after_run(stripe as usize))
            });
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
                    other => {
                        self.run(*ticket, other);
                    }
                }
            }
        }
        let Some(first) = batch.first() else {
            return;
        };
        // The keys go into the batch, and one has to be named if it panics.
        let (key, deadline) = (contain(|| first.key.clone()), first.deadline);
        let ended = contain(|| F::run_batch(&self.access, batch));
        let panicked = ended.is_err();
        if let (Err(message), Ok(key)) = (&ended, &key) {
            let fire = Fire {
                key,
                stripe: done[0].stripe,
                id: done[0].id,
                deadline,
                started,
            };
            let _ = contain(|| F::panicked(&self.access, &fire, message));
        }
        let _ = contain(|| drop(key));
        let mut settled = Vec::with_capacity(done.len());
        let mut user_code = None;
        for same in of_one_stripe(&done, |done| done.stripe) {
            let now = engine.now();
            let number = same[0].stripe as usize;
            engine.with(number, |stripe| {
                let ends = same.iter();
                settled.extend(ends.map(|done| stripe.settle(done.id, panicked, now)));
                // Until the last of them is settled the runs count themselves.
                if settled.len() == done.len() && settled.iter().any(Settled::leaves_user_code) {
                    user_code = Some(engine.after_run(number));
                }
            });
        }
        for settled in settled {
            after_settling(settled);
        }
        drop(user_code);
    }
}

impl<F: Face> Engine<F> {
    /// A run has ended.
    pub(super) fn settle(&self, stripe: u32, id: EntryId, panicked: bool) {
        let now = self.now();
        let number = stripe as usize;
        let (settled, _user_code) = self.with(number, |stripe| {
            let settled = stripe.settle(id, panicked, now);
            let follows = settled.leaves_user_code();
            (settled, follows.then(|| self.after_run(number)))
        });
        after_settling(settled);
    }
}

/// Without a lock.
fn after_settling<K>(settled: Settled<K>) {
    for (_, waiter) in settled.waiters {
        // A task's waker is its runtime's code.
        let _ = contain(|| waiter.wake());
    }
    if settled.key.is_some() {
        // The key's `Drop` is user code. Nobody could do anything about its panic.
        let _ = contain(|| drop(settled.key));
    }
}

/// What lies side by side and is of one stripe.
fn of_one_stripe<T>(list: &[T], stripe: impl Fn(&T) -> u32) -> impl Iterator<Item = &[T]> {
    list.chunk_by(move |one, next| stripe(one) == stripe(next))
}

impl<F: Face> Claim for Server<F> {
    fn serve(&self, first: Ticket, more: &mut dyn FnMut() -> Option<Ticket>) {
        // For everything that may be user code: the task, what is told of its panic, and drops.
        let _inside = inside::Inside::enter(self.engine.tag());
        if let Some(limit) = F::batch(&self.access) {
            return self.serve_batches(first, more, limit.get());
        }
        let mut next = Some(first);
        let mut done = None;
        while let Some(ticket) = next {
            let (claimed, _user_code) = self.claim(ticket, done.take());
            done = self.run(ticket, claimed);
            next = more();
        }
        if let Some(done) = done {
            self.engine.settle(done.stripe, done.id, done.panicked);
        }
    }

    fn look_ahead(&self, tickets: &[Ticket]) {
        for same in of_one_stripe(tickets, |ticket| ticket.stripe) {
            let stripe = same[0].stripe as usize;
            let engine = &self.engine;
            engine.with(stripe, |stripe| {
                stripe.look_ahead(same.iter().map(|ticket| ticket.slot));
            });
        }
    }

    fn give_back(&self, tickets: &[Ticket]) {
        // Relaxed: a count.
        self.engine.faults().refused.fetch_add(1, Ordering::Relaxed);
        // By the drop of a job, which may happen anywhere.
        let (engine, tickets) = (Arc::clone(&self.engine), tickets.to_vec());
        when_unlocked(move || engine.take_back(&tickets));
    }
}

impl<F: Face> std::fmt::Debug for Server<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
