//! How names are released.

use futures_util::future::join_all;
use tourbillon_leases::{Released, StoreError};

use super::{Answers, Entry, Names, changed};

/// A name that is to be released.
pub(crate) struct Ended {
    pub(crate) name: String,
    /// The hash of the secret.
    pub(crate) hash: String,
    /// The seconds for which the name stays locked.
    pub(crate) rest: i64,
}

impl Names {
    pub(crate) async fn release(
        &self,
        batch: &[Result<Ended, StoreError>],
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let mut answers = Answers::new(batch, |ended| &ended.name);
        for portion in answers.portions.clone() {
            let ended: Vec<_> = portion
                .iter()
                .filter_map(|&at| batch[at].as_ref().ok())
                .collect();
            let answered = self.release_portion(&ended).await;
            answers.place(&portion, answered);
        }
        answers.into_result()
    }

    async fn release_portion(
        &self,
        ended: &[&Ended],
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let keys = ended.iter().map(|one| self.key(&one.name));
        let (_, kvs) = self.exchange.read(keys, false).await?;
        let releases = kvs.iter().zip(ended).map(async |(kv, one)| {
            let entry = kv.as_ref().map(Entry::of);
            let held = entry
                .as_ref()
                .and_then(|entry| Some((entry, entry.held_with(&one.hash)?)));
            let Some((entry, record)) = held else {
                return Ok(Released::NotHeld);
            };
            if one.rest == 0 {
                // Only this holding has the lease (ETCD-2).
                return Ok(match self.exchange.revoke(entry.lease).await? {
                    true => Released::Released,
                    false => Released::NotHeld,
                });
            }
            let rest = record.clone().released(one.rest);
            match self.replace(&one.name, entry, &rest, one.rest).await? {
                true => Ok(Released::Released),
                false => Err(changed(&one.name)),
            }
        });
        Ok(join_all(releases).await)
    }
}
