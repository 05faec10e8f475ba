//! How leases are renewed, and get another length.

use futures_util::future::join_all;
use tourbillon_leases::StoreError;

use super::{Answers, Entry, Names, changed};
use crate::exchange::{Term, strange};
use crate::record::Record;

/// A lease that is to be renewed.
pub(crate) struct Renewed {
    pub(crate) name: String,
    /// The hash of the secret.
    pub(crate) hash: String,
    pub(crate) ttl: i64,
    pub(crate) never_shortens: bool,
}

/// The length that a lease is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Keeps {
    pub(super) ttl: i64,
    pub(super) never_shortens: bool,
}

/// A name that is held by the caller, as it was read.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) entry: Entry,
    pub(super) keeps: Keeps,
}

/// What a renewal does to a lease.
enum Step {
    /// It has the right length, and is to be renewed.
    Renew,
    /// More than the right length is left, as was said in this term.
    Lasts(Term),
    /// Another one has taken its place, or that has failed.
    Done(Result<bool, StoreError>),
}

impl Names {
    /// Renews those that are held with their secret, and returns whether each is.
    pub(crate) async fn renew(
        &self,
        batch: &[Result<Renewed, StoreError>],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let mut answers = Answers::new(batch, |renewed| &renewed.name);
        while let Some(portion) = answers.portions.pop_front() {
            let renewals: Vec<_> = portion
                .iter()
                .filter_map(|&at| batch[at].as_ref().ok())
                .collect();
            let answered = self.renew_portion(&renewals).await;
            answers.place(portion, answered);
        }
        answers.into_result()
    }

    async fn renew_portion(
        &self,
        renewals: &[&Renewed],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let keys = renewals.iter().map(|one| self.key(&one.name));
        let (term, kvs) = self.exchange.read(keys, false).await?;
        let found = kvs.iter().zip(renewals).map(|(kv, one)| {
            let entry = kv.as_ref().map(Entry::of)?;
            entry.held_with(&one.hash)?;
            let keeps = Keeps {
                ttl: one.ttl,
                never_shortens: one.never_shortens,
            };
            Some(Found {
                name: &one.name,
                entry,
                keeps,
            })
        });
        let found: Vec<_> = found.collect();
        let is_held: Vec<_> = found.iter().map(Option::is_some).collect();
        let found: Vec<_> = found.into_iter().flatten().collect();
        let mut kept = self.keep_since(term, &found).await?.into_iter();
        let answer = |is_held| match is_held {
            true => kept.next().unwrap_or(Ok(false)),
            false => Ok(false),
        };
        Ok(is_held.into_iter().map(answer).collect())
    }

    /// Renews what was read by another call's means, and so reads once more before.
    pub(super) async fn keep(
        &self,
        found: &[Found<'_>],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let keys = found.iter().map(|one| self.key(one.name));
        let (term, _) = self.exchange.read(keys.take(1), true).await?;
        self.keep_since(term, found).await
    }

    /// Renews leases that were read in this term.
    async fn keep_since(
        &self,
        term: Term,
        found: &[Found<'_>],
    ) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        let steps = join_all(found.iter().map(|one| self.step(one))).await;
        let renews = steps
            .iter()
            .zip(found)
            .filter(|(step, _)| matches!(step, Step::Renew));
        let leases: Vec<_> = renews.map(|(_, one)| one.entry.lease).collect();
        let mut lives = Vec::new();
        if !leases.is_empty() {
            lives = self.exchange.keep_alive(&leases).await?;
        }
        // The second read confirms these: the place of each, the term of its answer, and whether it is alive.
        let mut lives = lives.into_iter();
        let mut confirms = Vec::new();
        let mut answers = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            answers.push(match step {
                Step::Done(answer) => answer,
                Step::Lasts(during) => {
                    confirms.push((at, during, true));
                    Ok(true)
                }
                Step::Renew => {
                    let (during, is_alive) = lives.next().ok_or_else(strange)?;
                    confirms.push((at, during, is_alive));
                    Ok(is_alive)
                }
            });
        }
        if confirms.is_empty() {
            return Ok(answers);
        }
        // ETCD-3.
        let keys = confirms.iter().map(|&(at, ..)| self.key(found[at].name));
        let (after, kvs) = self.exchange.read(keys, true).await?;
        for ((at, during, is_alive), kv) in confirms.into_iter().zip(kvs) {
            let is_same = kv.map(|kv| kv.lease == found[at].entry.lease);
            let is_confirmed = (during, after) == (term, term);
            answers[at] = confirmed(is_same, is_alive, is_confirmed)
                .unwrap_or_else(|| Err(changed(found[at].name)));
        }
        Ok(answers)
    }

    /// Finds out what a renewal does to a lease, and gives it another length if it needs one.
    async fn step(&self, found: &Found<'_>) -> Step {
        let Some(record) = &found.entry.record else {
            return Step::Done(Err(changed(found.name)));
        };
        let Keeps {
            ttl,
            never_shortens,
        } = found.keeps;
        if record.lease == ttl {
            return Step::Renew;
        }
        if record.lease > ttl && never_shortens {
            match self.exchange.time_to_live(found.entry.lease).await {
                Ok(Some(left)) if left.least >= ttl => return Step::Lasts(left.term),
                Ok(_) => {}
                Err(error) => return Step::Done(Err(error)),
            }
        }
        let record = Record {
            lease: ttl,
            ..record.clone()
        };
        let is_put = self.replace(found.name, &found.entry, &record, ttl).await;
        Step::Done(match is_put {
            Ok(true) => Ok(true),
            Ok(false) => Err(changed(found.name)),
            Err(error) => Err(error),
        })
    }
}

/// The answer to a renewal by what the second read has found: whether the key still has the lease, if there is the key,
/// whether the lease was alive, and whether the term was the same all the time (ETCD-3). `None` if another call of the
/// holder has given the key another lease.
fn confirmed(
    is_same: Option<bool>,
    is_alive: bool,
    is_confirmed: bool,
) -> Option<Result<bool, StoreError>> {
    Some(match (is_same, is_alive, is_confirmed) {
        (Some(false), ..) => return None,
        (Some(true), true, true) => Ok(true),
        (Some(true), _, false) => Err(StoreError::Unavailable(
            "etcd: the leader, or the server, has changed during the renewal".to_owned(),
        )),
        // The lease has run out, and the key is about to be deleted. But servers before 3.4.20 also say so of leases that
        // live on, so only the end of the key is the end of the holding.
        (Some(true), false, true) => Err(StoreError::Unavailable(
            "etcd: the lease has ended, and its key is still there".to_owned(),
        )),
        // Its lease has run out, or somebody has deleted the key.
        (None, ..) => Ok(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_counts_only_if_the_key_has_its_lease_and_no_leader_was_elected_meanwhile() {
        for is_same in [None, Some(false), Some(true)] {
            for (is_alive, is_confirmed) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let answer = confirmed(is_same, is_alive, is_confirmed);
                let counts = (is_same, is_alive, is_confirmed) == (Some(true), true, true);
                assert_eq!(answer == Some(Ok(true)), counts);
                // The name is lost for good only if the key is gone.
                assert_eq!(answer == Some(Ok(false)), is_same.is_none());
                assert_eq!(answer.is_none(), is_same == Some(false));
            }
        }
    }
}
