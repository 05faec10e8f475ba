//! The store.

use std::fmt;
use std::task::Waker;
use std::time::Duration;

use tourbillon_leases::{
    Acquired, Claim, Destination, Detach, Detached, Holder, Holding, LeaseStore, LockPage,
    LockPaging, Outcome, Released, Renewal, Resume, Resumed, StoreError, StoreFuture, Watch,
};

use crate::build_error::EtcdBuildError;
use crate::exchange::Exchange;
use crate::limit::Limit;
use crate::links::Links;
use crate::listening::{Ear, listen};
use crate::names::{
    DetachedBy, Ended, LONGEST_LEASE, Names, Renewed, ResumedBy, Wanted, checked_lease,
    checked_name, hashed, seconds,
};
use crate::record::Record;
use crate::runtime::{OfProcess, OwnThread};
use crate::sync::Arc;
use crate::sync::channel::{RecvTimeoutError, channel};

mod builder;

pub use builder::EtcdStoreBuilder;

#[doc = include_str!("store.md")]
#[derive(Clone)]
pub struct EtcdStore(Arc<EtcdInner>);

struct EtcdInner {
    own: OfProcess<Connections>,
    prefix: Arc<str>,
}

/// What a forked copy must not touch.
struct Connections {
    thread: OwnThread,
    links: Arc<Links>,
    ear: Arc<Ear>,
}

impl EtcdStore {
    /// Creates a store on the servers of this URL, with the defaults of the [builder](Self::builder). The store
    /// connects when it is used first.
    ///
    /// # Errors
    ///
    /// If the URL can't be read, or asks for TLS without the feature `tls`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_etcd::EtcdStore;
    ///
    /// let store = EtcdStore::open("etcd://a.example.com:2379,b.example.com:2379")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(url: &str) -> Result<EtcdStore, EtcdBuildError> {
        EtcdStore::builder(url).build()
    }

    /// Returns a builder of a store on the servers of this URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_etcd::EtcdStore;
    /// let store = EtcdStore::builder("etcd://localhost").prefix("shop/locks/").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(url: &str) -> EtcdStoreBuilder {
        EtcdStoreBuilder::new(url)
    }

    /// Checks that there is a cluster that carries out calls of this user. A store can be used without this call,
    /// which reports a missing server, a wrong password or missing rights at the start of a program.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if no server is reached, or the servers have no leader.
    /// [`StoreError::Refused`] if the user is not accepted, or may not read and write the keys.
    /// [`StoreError::Forked`] in a forked copy of the process.
    ///
    /// # Blocking
    ///
    /// Until the answer, or the limit.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tourbillon_etcd::EtcdStore;
    /// let store = EtcdStore::open("etcd://localhost")?;
    /// store.check(Duration::from_secs(5))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self, limit: Duration) -> Result<(), StoreError> {
        let own = self.0.own.get()?;
        let (names, ends) = (self.0.names(own, limit), Limit::new(limit));
        let (tell, told) = channel();
        // The task ends with this future.
        let call = own.thread.call(async move {
            let _ = tell.send(names.check().await);
            Ok(())
        })?;
        // A bit later than the call itself, whose error names the server.
        let answer = told.recv_timeout(ends.left() + Duration::from_millis(3));
        drop(call);
        answer.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(ends.reached("no answer of etcd")),
            RecvTimeoutError::Disconnected => Err(StoreError::Unavailable(
                "etcd: the check has panicked".to_owned(),
            )),
        })
    }

    fn new(links: Links, prefix: &str) -> Self {
        EtcdStore(Arc::new(EtcdInner {
            own: OfProcess::new(Connections {
                thread: OwnThread::default(),
                links: Arc::new(links),
                ear: Arc::new(Ear::default()),
            }),
            prefix: Arc::from(prefix),
        }))
    }
}

impl EtcdInner {
    fn names(&self, own: &Connections, limit: Duration) -> Names {
        Names {
            exchange: Exchange {
                links: Arc::clone(&own.links),
                limit: Limit::new(limit),
            },
            prefix: Arc::clone(&self.prefix),
        }
    }

    /// Makes a call on the thread of the store.
    async fn call<T, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Names) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let own = self.own.get()?;
        let call = call(self.names(own, limit));
        own.thread.call(call)?.await
    }
}

impl LeaseStore for EtcdStore {
    fn longest_lease(&self) -> Duration {
        Duration::from_secs(LONGEST_LEASE.unsigned_abs())
    }

    fn acquire<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Claim<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Acquired, StoreError>>> {
        Box::pin(async move {
            let wanted = batch.iter().map(|claim| {
                checked_name(claim.name)?;
                Ok(Wanted {
                    name: claim.name.to_owned(),
                    record: Record {
                        owner: claim.owner.to_owned(),
                        data: claim.data.to_owned(),
                        lease: checked_lease(claim.lease)?,
                        secret: hashed(claim.secret),
                        ..Record::default()
                    },
                })
            });
            let wanted: Vec<_> = wanted.collect();
            let call = |names: Names| async move { names.acquire(&wanted).await };
            self.0.call(limit, call).await
        })
    }

    fn renew<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Renewal<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let renewals = batch.iter().map(|renewal| {
                checked_name(renewal.name)?;
                Ok(Renewed {
                    name: renewal.name.to_owned(),
                    hash: hashed(renewal.secret),
                    ttl: checked_lease(renewal.lease)?,
                    never_shortens: renewal.never_shortens,
                })
            });
            let renewals: Vec<_> = renewals.collect();
            let call = |names: Names| async move { names.renew(&renewals).await };
            let renewed = self.0.call(limit, call).await?.into_iter();
            let outcome = |renewed| match renewed {
                Ok(true) => Outcome::Renewed,
                Ok(false) => Outcome::NotHeld,
                Err(error) => Outcome::Failed(error),
            };
            Ok(renewed.map(outcome).collect())
        })
    }

    fn release<'a>(
        &'a self,
        _destination: Destination,
        batch: &'a [Holding<'a>],
        limit: Duration,
    ) -> StoreFuture<'a, Vec<Result<Released, StoreError>>> {
        Box::pin(async move {
            let ended = batch.iter().map(|held| {
                checked_name(held.name)?;
                Ok(Ended {
                    name: held.name.to_owned(),
                    hash: hashed(held.secret),
                    rest: seconds(held.rest).min(LONGEST_LEASE),
                })
            });
            let ended: Vec<_> = ended.collect();
            let call = |names: Names| async move { names.release(&ended).await };
            let released = self.0.call(limit, call).await;
            // Also after an error, since the names may be free all the same.
            if let Ok(own) = self.0.own.get() {
                batch.iter().for_each(|held| own.ear.released(held.name));
            }
            released
        })
    }

    fn detach<'a>(&'a self, detach: &'a Detach<'a>, limit: Duration) -> StoreFuture<'a, Detached> {
        Box::pin(async move {
            checked_name(detach.name)?;
            let by = DetachedBy {
                name: detach.name.to_owned(),
                hash: hashed(detach.secret),
                ticket: hashed(detach.ticket),
                ttl: checked_lease(detach.lease)?,
                terms: detach.terms.to_owned(),
            };
            let call = |names: Names| async move { names.detach(&by).await };
            self.0.call(limit, call).await
        })
    }

    fn resume<'a>(
        &'a self,
        resume: &'a Resume<'a>,
        limit: Duration,
    ) -> StoreFuture<'a, Option<Resumed>> {
        Box::pin(async move {
            checked_name(resume.name)?;
            let by = ResumedBy {
                name: resume.name.to_owned(),
                ticket: hashed(resume.ticket),
                owner: resume.owner.to_owned(),
                data: resume.data.to_owned(),
                hash: hashed(resume.secret),
            };
            let call = |names: Names| async move { names.resume(&by).await };
            self.0.call(limit, call).await
        })
    }

    fn holder_of<'a>(&'a self, name: &'a str, limit: Duration) -> StoreFuture<'a, Option<Holder>> {
        Box::pin(async move {
            checked_name(name)?;
            let name = name.to_owned();
            let call = |names: Names| async move { names.holder(&name).await };
            self.0.call(limit, call).await
        })
    }

    /// The pages are in the order of the names.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        paging: &'a LockPaging,
        limit: Duration,
    ) -> StoreFuture<'a, LockPage> {
        Box::pin(async move {
            let (prefix, paging) = (prefix.to_owned(), paging.clone());
            let call = |names: Names| async move { names.list(&prefix, &paging).await };
            self.0.call(limit, call).await
        })
    }

    fn watch(&self, name: &str, waker: &Waker) -> Option<Box<dyn Watch>> {
        let own = self.0.own.get().ok()?;
        let place = own.ear.queue.watch(name, waker);
        if own.ear.has_to_start() {
            let (ear, links) = (Arc::clone(&own.ear), Arc::clone(&own.links));
            let listens = listen(ear, links, Arc::clone(&self.0.prefix));
            // If no thread can be started, the call of the user tells it.
            if own.thread.start(listens).is_err() {
                own.ear.was_not_started();
            }
        }
        Some(place)
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("EtcdStore");
        if let Ok(own) = self.0.own.get() {
            shown
                .field("links", &own.links)
                .field("listens", &own.ear.hears());
        }
        shown
            .field("prefix", &self.0.prefix)
            .finish_non_exhaustive()
    }
}
