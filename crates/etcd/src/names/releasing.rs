//! How names are released.

use futures_util::future::join_all;
use tourbillon_leases::{Released, StoreError};

use super::{ATTEMPTS, Answers, Entry, Names, changed};

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
        while let Some(portion) = answers.portions.pop_front() {
            let ended: Vec<_> = portion
                .iter()
                .filter_map(|&at| batch[at].as_ref().ok())
                .collect();
            let answered = self.release_portion(&ended).await;
            answers.place(portion, answered);
        }
        answers.into_result()
    }

    async fn release_portion(
        &self,
        ended: &[&Ended],
    ) -> Result<Vec<Result<Released, StoreError>>, StoreError> {
        let keys = ended.iter().map(|one| self.key(&one.name));
        let (_, kvs) = self.exchange.read(keys, false).await?;
        let releases = kvs.iter().zip(ended).map(|(kv, one)| {
            let entry = kv.as_ref().map(Entry::of);
            self.release_one(one, entry)
        });
        Ok(join_all(releases).await)
    }

    async fn release_one(
        &self,
        ended: &Ended,
        mut read: Option<Entry>,
    ) -> Result<Released, StoreError> {
        for _ in 0..ATTEMPTS {
            let held = read
                .as_ref()
                .and_then(|entry| Some((entry, entry.held_with(&ended.hash)?)));
            let Some((entry, record)) = held else {
                return Ok(Released::NotHeld);
            };
            let is_released = if ended.rest == 0 {
                self.delete(&ended.name, entry).await?
            } else {
                let rest = record.clone().released(ended.rest);
                self.replace(&ended.name, entry, &rest, ended.rest).await?
            };
            if is_released {
                return Ok(Released::Released);
            }
            // Another call of the holder was faster, such as one that gives the lease another length.
            read = self.entry(&ended.name).await?;
        }
        Err(changed(&ended.name))
    }
}
