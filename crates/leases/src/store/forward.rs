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

/// Implements the trait for a type that has another store: every method is that store's. `$call` is
/// the future of a call, and `$future` what becomes of it.
macro_rules! forward {
    ($type:ident, |$own:ident| $store:expr, |$call:ident| $future:expr) => {
        impl<S: LeaseStore + ?Sized> LeaseStore for $type<S> {
            fn destination(&self, name: &str) -> Destination {
                let $own = self;
                $store.destination(name)
            }

            fn longest_lease(&self) -> Duration {
                let $own = self;
                $store.longest_lease()
            }

            fn acquire<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Claim<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
                let $own = self;
                let $call = $store.acquire(destination, batch, limit);
                $future
            }

            fn leave<'a>(
                &'a self,
                name: &'a str,
                owner: &'a str,
                limit: Duration,
            ) -> StoreFuture<'a, ()> {
                let $own = self;
                let $call = $store.leave(name, owner, limit);
                $future
            }

            fn renew<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Renewal<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Outcome>> {
                let $own = self;
                let $call = $store.renew(destination, batch, limit);
                $future
            }

            fn release<'a>(
                &'a self,
                destination: Destination,
                batch: &'a [Holding<'a>],
                limit: Duration,
            ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
                let $own = self;
                let $call = $store.release(destination, batch, limit);
                $future
            }

            fn detach<'a>(
                &'a self,
                detach: &'a Detach<'a>,
                limit: Duration,
            ) -> StoreFuture<'a, Detached> {
                let $own = self;
                let $call = $store.detach(detach, limit);
                $future
            }

            fn resume<'a>(
                &'a self,
                resume: &'a Resume<'a>,
                limit: Duration,
            ) -> StoreFuture<'a, Option<Resumed>> {
                let $own = self;
                let $call = $store.resume(resume, limit);
                $future
            }

            fn holder_of<'a>(
                &'a self,
                name: &'a str,
                limit: Duration,
            ) -> StoreFuture<'a, Option<Holder>> {
                let $own = self;
                let $call = $store.holder_of(name, limit);
                $future
            }

            fn list<'a>(
                &'a self,
                prefix: &'a str,
                paging: &'a LockPaging,
                limit: Duration,
            ) -> StoreFuture<'a, LockPage> {
                let $own = self;
                let $call = $store.list(prefix, paging, limit);
                $future
            }

            fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
                let $own = self;
                $store.watch(name, waker)
            }
        }
    };
}

forward!(Arc, |own| (**own), |call| call);
forward!(Box, |own| (**own), |call| call);
#[cfg(all(feature = "tokio", not(loom)))]
forward!(TokioStore, |own| own.store, |call| own.within(call));
