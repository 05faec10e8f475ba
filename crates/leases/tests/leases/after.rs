//! A store in memory whose calls are pending for a while, and a gate at which futures wait.

use std::future::{Future, poll_fn, ready};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, MemoryStore,
    Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
};

/// Asks a store in memory between two waits, which the call itself begins, and not its first poll.
pub(crate) struct After<F, G> {
    memory: MemoryStore,
    before: F,
    after: G,
}

impl<F> After<F, fn() -> std::future::Ready<()>> {
    /// Waits, and asks then.
    pub(crate) fn new(memory: MemoryStore, before: F) -> Self {
        After {
            memory,
            before,
            after: || ready(()),
        }
    }
}

impl<G> After<fn() -> std::future::Ready<()>, G> {
    /// Asks, and answers after a wait.
    pub(crate) fn answering(memory: MemoryStore, after: G) -> Self {
        After {
            memory,
            before: || ready(()),
            after,
        }
    }
}

impl<F, P, G, Q> After<F, G>
where
    F: Fn() -> P,
    P: Future<Output = ()> + Send + 'static,
    G: Fn() -> Q,
    Q: Future<Output = ()> + Send + 'static,
{
    fn call<'a, T: Send + 'a>(&'a self, call: StoreFuture<'a, T>) -> StoreFuture<'a, T> {
        let (before, after) = ((self.before)(), (self.after)());
        Box::pin(async move {
            before.await;
            let answer = call.await;
            after.await;
            answer
        })
    }
}

impl<F, P, G, Q> LeaseStore for After<F, G>
where
    F: Fn() -> P + Send + Sync + 'static,
    P: Future<Output = ()> + Send + 'static,
    G: Fn() -> Q + Send + Sync + 'static,
    Q: Future<Output = ()> + Send + 'static,
{
    fn destination(&self, name: &str) -> Destination {
        self.memory.destination(name)
    }

    fn can_share(&self) -> bool {
        self.memory.can_share()
    }

    fn acquire<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        self.call(self.memory.acquire(destination, batch, limit))
    }

    fn renew<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        self.call(self.memory.renew(destination, batch, limit))
    }

    fn release<'a>(
        &'a self,
        destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        self.call(self.memory.release(destination, batch, limit))
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        self.call(self.memory.detach(detach, limit))
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        self.call(self.memory.resume(resume, limit))
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        self.call(self.memory.holder_of(name, limit))
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        self.memory.watch(name, waker)
    }
}

/// A gate at which futures wait. It is open at first. Clones are the same gate.
#[derive(Clone, Default)]
pub(crate) struct AsyncGate(Arc<Mutex<GateState>>);

#[derive(Default)]
struct GateState {
    is_shut: bool,
    waiting: usize,
    wakers: Vec<Waker>,
}

/// Counts a future while it waits.
struct Waits(AsyncGate);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().waiting -= 1;
    }
}

impl AsyncGate {
    pub(crate) fn pass(&self) -> impl Future<Output = ()> + Send + use<> {
        let gate = self.clone();
        async move {
            gate.0.lock().unwrap().waiting += 1;
            let _waits = Waits(gate.clone());
            poll_fn(|context| {
                let mut state = gate.0.lock().unwrap();
                if !state.is_shut {
                    return Poll::Ready(());
                }
                state.wakers.push(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
    }

    pub(crate) fn shut(&self) {
        self.0.lock().unwrap().is_shut = true;
    }

    pub(crate) fn open(&self) {
        let wakers = {
            let mut state = self.0.lock().unwrap();
            state.is_shut = false;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The number of futures that wait at it.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().unwrap().waiting
    }
}
