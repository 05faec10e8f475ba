//! Stores that hand each call on to another one: pointers, and the context of a runtime.

use std::task::Waker;
use std::time::Duration;

#[cfg(all(feature = "tokio", not(loom)))]
use super::TokioStore;
use super::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
};
use crate::sync::Arc;

/// Implements the trait for a type that has another store: every method is that store's. `$ask` takes
/// the store and makes the call, and `$call` is the future of a call.
macro_rules! forward {
    (
        [$($generics:tt)*] $type:ty, $store:ty,
        |$own:ident, $ask:ident| $asked:expr, |$call:ident| $future:expr
    ) => {
        impl $($generics)* LeaseStore for $type {
            fn destination(&self, name: &str) -> Destination {
                let $own = self;
                let $ask = |store: &$store| store.destination(name);
                $asked
            }

            fn longest_lease(&self) -> Duration {
                let $own = self;
                let $ask = |store: &$store| store.longest_lease();
                $asked
            }

            fn can_share(&self) -> bool {
                let $own = self;
                let $ask = |store: &$store| store.can_share();
                $asked
            }

            fn acquire<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Claim<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
                let $own = self;
                let $ask = |store: &'a $store| store.acquire(destination, batch, limit);
                let $call = $asked;
                $future
            }

            fn leave<'a>(
                &'a self,
                name: &'a str,
                owner: &'a str,
                limit: Duration,
            ) -> StoreFuture<'a, ()> {
                let $own = self;
                let $ask = |store: &'a $store| store.leave(name, owner, limit);
                let $call = $asked;
                $future
            }

            fn renew<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Renewal<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Outcome>> {
                let $own = self;
                let $ask = |store: &'a $store| store.renew(destination, batch, limit);
                let $call = $asked;
                $future
            }

            fn release<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Holding<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
                let $own = self;
                let $ask = |store: &'a $store| store.release(destination, batch, limit);
                let $call = $asked;
                $future
            }

            fn detach<'a>(
                &'a self,
                detach: &'a Detach<'a>,
                limit: Duration,
            ) -> StoreFuture<'a, Detached> {
                let $own = self;
                let $ask = |store: &'a $store| store.detach(detach, limit);
                let $call = $asked;
                $future
            }

            fn resume<'a>(
                &'a self,
                resume: &'a Resume<'a>,
                limit: Duration,
            ) -> StoreFuture<'a, Option<Resumed>> {
                let $own = self;
                let $ask = |store: &'a $store| store.resume(resume, limit);
                let $call = $asked;
                $future
            }

            fn holder_of<'a>(
                &'a self,
                name: &'a str,
                limit: Duration,
            ) -> StoreFuture<'a, Option<Holder>> {
                let $own = self;
                let $ask = |store: &'a $store| store.holder_of(name, limit);
                let $call = $asked;
                $future
            }

            fn list<'a>(
                &'a self,
                prefix: &'a str,
                paging: &'a LockPaging,
                limit: Duration,
            ) -> StoreFuture<'a, LockPage> {
                let $own = self;
                let $ask = |store: &'a $store| store.list(prefix, paging, limit);
                let $call = $asked;
                $future
            }

            fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
                let $own = self;
                let $ask = |store: &$store| store.watch(name, waker);
                $asked
            }
        }
    };
}

#[cfg(feature = "sqlite")]
pub(crate) use forward;

forward!([<S: LeaseStore + ?Sized>] Arc<S>, S, |own, ask| ask(own), |call| call);
forward!([<S: LeaseStore + ?Sized>] Box<S>, S, |own, ask| ask(own), |call| call);
#[cfg(all(feature = "tokio", not(loom)))]
forward!([<S: LeaseStore + ?Sized>] TokioStore<S>, S, |own, ask| own.enter(ask), |call| own
    .within(call));
