//! How names are acquired.

use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tourbillon_leases::{Acquired, StoreError};

use super::renewing::{Found, Keeps};
use super::{Answers, Entry, Names, changed};
use crate::exchange::strange;
use crate::messages::{Compare, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::record::Record;

/// The server deletes keys whose leases have run out twice a second. Other keys without a lease are those of other programs.
const SOON: Duration = Duration::from_millis(100);

/// A name that is to be acquired.
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) record: Record,
}

/// The state of a name, as an acquire has found or changed it.
enum Standing {
    Free,
    /// Somebody else has it.
    Taken(Entry),
    /// It is held with the secret of the call, which is a repetition.
    Own(Entry),
    Granted(u64),
}

impl Standing {
    fn of(kv: Option<&KeyValue>, wanted: &Wanted) -> Self {
        let Some(kv) = kv else {
            return Standing::Free;
        };
        let entry = Entry::of(kv);
        match entry.held_with(&wanted.record.secret) {
            Some(_) => Standing::Own(entry),
            None => Standing::Taken(entry),
        }
    }
}

impl Names {
    pub(crate) async fn acquire(
        &self,
        batch: &[Result<Wanted, StoreError>],
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        let mut answers = Answers::new(batch, |wanted| &wanted.name);
        while let Some(portion) = answers.portions.pop_front() {
            let wanted: Vec<_> = portion
                .iter()
                .filter_map(|&at| batch[at].as_ref().ok())
                .collect();
            let answered = self.acquire_portion(&wanted).await;
            answers.place(portion, answered);
        }
        answers.into_result()
    }

    async fn acquire_portion(
        &self,
        wanted: &[&Wanted],
    ) -> Result<Vec<Result<Acquired, StoreError>>, StoreError> {
        // A caller that asks for what others hold costs a read, and no write.
        let keys = wanted.iter().map(|one| self.key(&one.name));
        let (_, kvs) = self.exchange.read(keys, false).await?;
        let each = kvs.iter().zip(wanted);
        let mut standings: Vec<_> = each
            .map(|(kv, one)| Standing::of(kv.as_ref(), one))
            .collect();
        self.take_free(wanted, &mut standings).await?;

        let mut own = Vec::new();
        for (one, standing) in wanted.iter().zip(&standings) {
            if let Standing::Own(entry) = standing {
                let keeps = Keeps {
                    ttl: one.record.lease,
                    never_shortens: true,
                };
                own.push(Found {
                    name: &one.name,
                    entry: entry.clone(),
                    keeps,
                });
            }
        }
        let mut renewed = self.keep(&own).await?.into_iter();

        let answers = wanted.iter().zip(standings).map(|(one, standing)| {
            let again = matches!(standing, Standing::Own(_)).then(|| renewed.next());
            async move {
                match standing {
                    Standing::Granted(token) => Ok(Acquired::granted(token)),
                    Standing::Taken(entry) => {
                        let remaining = self.remaining(&entry).await?;
                        Ok(Acquired::Held {
                            remaining: remaining.unwrap_or(SOON),
                        })
                    }
                    Standing::Own(entry) => match again.flatten() {
                        Some(Ok(true)) => Ok(Acquired::granted(entry.token)),
                        Some(Err(error)) => Err(error),
                        _ => Err(changed(&one.name)),
                    },
                    Standing::Free => Err(strange()),
                }
            }
        });
        Ok(join_all(answers).await)
    }

    /// Takes those that are still free, each by a transaction of its own within a common one (ETCD-1).
    async fn take_free(
        &self,
        wanted: &[&Wanted],
        standings: &mut [Standing],
    ) -> Result<(), StoreError> {
        let is_free = |at: &usize| matches!(standings[*at], Standing::Free);
        let free: Vec<usize> = (0..wanted.len()).filter(is_free).collect();
        if free.is_empty() {
            return Ok(());
        }
        // The server writes the leases of a portion together.
        let grants = free
            .iter()
            .map(|&at| self.exchange.grant(wanted[at].record.lease));
        let leases = try_join_all(grants).await?;
        let each = free.iter().zip(&leases);
        let takes = each.clone().map(|(&at, &lease)| {
            let key = self.key(&wanted[at].name);
            RequestOp::txn(TxnRequest {
                compare: vec![Compare::is_free(key.clone())],
                success: vec![RequestOp::put(PutRequest {
                    key: key.clone(),
                    value: wanted[at].record.to_value(),
                    lease,
                    ignore_lease: false,
                })],
                failure: vec![RequestOp::range(RangeRequest::of(key))],
            })
        });
        let txn = TxnRequest {
            compare: Vec::new(),
            success: takes.collect(),
            // It compares nothing and never fails. Servers without a fix look for the rights to the puts of a
            // transaction, but not to those of one within it (GHSA-rfx7-8w68-q57q).
            failure: vec![self.put_for_rights()],
        };
        let taken = match self.exchange.txn(txn).await {
            Ok(taken) => taken,
            Err(error) => {
                // Nothing was executed. After other errors there may be keys, which a repetition of the call may have
                // taken for its own by now. The end of their leases would free them under a holder.
                if matches!(error, StoreError::Refused(_)) {
                    self.exchange.discard(leases).await;
                }
                return Err(error);
            }
        };
        let token = taken.header.ok_or_else(strange)?.revision.unsigned_abs();
        let mut answers = taken.responses.into_iter();
        let mut unused = Vec::new();
        for (&at, &lease) in each {
            let answer = answers.next().and_then(|answer| answer.into_txn());
            let answer = answer.ok_or_else(strange)?;
            if answer.succeeded {
                standings[at] = Standing::Granted(token);
                continue;
            }
            unused.push(lease);
            let range = answer
                .responses
                .into_iter()
                .next()
                .and_then(|one| one.into_range());
            let kv = range.ok_or_else(strange)?.kvs.pop();
            standings[at] = Standing::of(kv.as_ref(), wanted[at]);
        }
        self.exchange.discard(unused).await;
        Ok(())
    }

    /// How long a lease still lasts at most, unless it is renewed. `None` if its time is over.
    pub(super) async fn remaining(&self, entry: &Entry) -> Result<Option<Duration>, StoreError> {
        let left = self.exchange.time_to_live(entry.lease).await?;
        Ok(left.map(|left| {
            let most = (left.least + 1).min(left.whole);
            Duration::from_secs(most.unsigned_abs())
        }))
    }
}
