//! The requests of one call of a store.

use std::future::Future;

use futures_util::future::join_all;
use prost::Message;
use tokio::time::timeout;
use tonic::Status;
use tourbillon_leases::StoreError;

use crate::failure::{Fault, is_of_connection, is_stale_token};
use crate::limit::Limit;
use crate::links::{Link, Links};
use crate::messages::{
    KeyValue, LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RANGE, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, TXN, TxnRequest, TxnResponse,
};
use crate::sync::Arc;

/// The server that has answered, and the term of its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Term {
    member: u64,
    term: u64,
}

impl Term {
    fn of(header: Option<&ResponseHeader>) -> Result<Self, StoreError> {
        let header = header.ok_or_else(strange)?;
        Ok(Term {
            member: header.member_id,
            term: header.raft_term,
        })
    }
}

/// How long a lease still lasts, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLeft {
    pub(crate) term: Term,
    /// The server cuts off parts of a second.
    pub(crate) least: i64,
    /// The length of the lease.
    pub(crate) whole: i64,
}

/// The requests of one call.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub(crate) links: Arc<Links>,
    pub(crate) limit: Limit,
}

impl Exchange {
    /// Sends a request, and once more if the server does not know the token of the connection any more.
    async fn ask<T, F>(&self, send: impl Fn(Arc<Link>) -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut has_fresh_token = false;
        loop {
            let link = self.links.link(self.limit).await?;
            // A timer may fire a millisecond late, and then nothing is to be sent any more.
            if self.limit.left().is_zero() {
                let what = format!("nothing was sent to etcd at {}", link.server);
                return Err(self.limit.reached(&what).into());
            }
            link.asks();
            match timeout(self.limit.left(), send(Arc::clone(&link))).await {
                Ok(Ok(answer)) => {
                    link.has_answered();
                    return Ok(answer);
                }
                Ok(Err(status)) if is_stale_token(&status) && !has_fresh_token => {
                    has_fresh_token = true;
                    link.give_up();
                }
                Ok(Err(status)) => {
                    match is_of_connection(&status) {
                        true => link.give_up(),
                        false => link.has_answered(),
                    }
                    return Err(Fault::of(&link.server, &status));
                }
                Err(_) => {
                    link.has_timed_out();
                    let what = format!("no answer of etcd at {}", link.server);
                    return Err(self.limit.reached(&what).into());
                }
            }
        }
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> Result<A, Fault>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.ask(|link| {
            let message = message.clone();
            async move { link.unary(path, message).await }
        })
        .await
    }

    /// Carries out a transaction. One that only reads waits until the server knows all that was written before.
    pub(crate) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, StoreError> {
        Ok(self.unary(TXN, txn).await?)
    }

    /// Reads keys, of which there are at most as many as a transaction may have. The newest values are read.
    pub(crate) async fn read(
        &self,
        keys: impl IntoIterator<Item = Vec<u8>>,
        keys_only: bool,
    ) -> Result<(Term, Vec<Option<KeyValue>>), StoreError> {
        let range = |key| RangeRequest {
            keys_only,
            ..RangeRequest::of(key)
        };
        let ranges = keys.into_iter().map(range).map(RequestOp::range);
        let asks = TxnRequest {
            success: ranges.collect(),
            ..TxnRequest::default()
        };
        let number = asks.success.len();
        let answer = self.txn(asks).await?;
        let term = Term::of(answer.header.as_ref())?;
        let ranges = answer.responses.into_iter();
        let ranges: Option<Vec<_>> = ranges.map(|response| response.into_range()).collect();
        let ranges = ranges.filter(|ranges| ranges.len() == number);
        let values = ranges.ok_or_else(strange)?.into_iter();
        Ok((term, values.map(|mut range| range.kvs.pop()).collect()))
    }

    pub(crate) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, StoreError> {
        Ok(self.unary(RANGE, range).await?)
    }

    /// Makes a lease of this many seconds, or more if the server has a greater minimum. Returns its number.
    pub(crate) async fn grant(&self, ttl: i64) -> Result<i64, StoreError> {
        let asks = LeaseGrantRequest { ttl };
        let granted: LeaseGrantResponse = self.unary(LEASE_GRANT, asks).await?;
        Ok(granted.id)
    }

    /// Ends a lease, and deletes the keys that have it. Returns whether there was one.
    pub(crate) async fn revoke(&self, id: i64) -> Result<bool, StoreError> {
        let asks = LeaseRevokeRequest { id };
        match self
            .unary::<_, LeaseRevokeResponse>(LEASE_REVOKE, asks)
            .await
        {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_missing => Ok(false),
            Err(fault) => Err(fault.error),
        }
    }

    /// Ends leases that nobody needs. If that fails, they run out.
    pub(crate) async fn discard(&self, leases: impl IntoIterator<Item = i64>) {
        join_all(leases.into_iter().map(|id| self.revoke(id))).await;
    }

    /// Renews leases. Returns for each one whether there was one, and the answers' terms.
    pub(crate) async fn keep_alive(&self, leases: &[i64]) -> Result<Vec<(Term, bool)>, StoreError> {
        let answers = self
            .ask(|link| {
                let asks = leases.iter().map(|&id| LeaseKeepAliveRequest { id });
                let asks = tokio_stream::iter(asks.collect::<Vec<_>>());
                async move {
                    let mut stream = link.streaming(LEASE_KEEP_ALIVE, asks).await?;
                    let mut answers: Vec<LeaseKeepAliveResponse> = Vec::new();
                    while let Some(answer) = stream.message().await? {
                        answers.push(answer);
                    }
                    Ok(answers)
                }
            })
            .await?;
        // The server answers in the order of the requests.
        if answers.len() != leases.len() || !leases.iter().eq(answers.iter().map(|one| &one.id)) {
            return Err(strange());
        }
        let term = |one: &LeaseKeepAliveResponse| Ok((Term::of(one.header.as_ref())?, one.ttl > 0));
        answers.iter().map(term).collect()
    }

    /// Returns how long a lease still lasts, or `None` if there is no such lease.
    pub(crate) async fn time_to_live(&self, id: i64) -> Result<Option<TimeLeft>, StoreError> {
        let asks = LeaseTimeToLiveRequest { id };
        let answer = self.unary::<_, LeaseTimeToLiveResponse>(LEASE_TIME_TO_LIVE, asks);
        match answer.await {
            Ok(lives) if lives.ttl < 0 => Ok(None),
            Ok(lives) => Ok(Some(TimeLeft {
                term: Term::of(lives.header.as_ref())?,
                least: lives.ttl,
                whole: lives.granted_ttl,
            })),
            Err(fault) if fault.is_missing => Ok(None),
            Err(fault) => Err(fault.error),
        }
    }
}

/// The error of an answer in another form. The request may have been executed.
pub(crate) fn strange() -> StoreError {
    StoreError::Unavailable("etcd: an answer in a form that this version does not know".to_owned())
}
