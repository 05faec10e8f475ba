//! The holder of a name, and pages of names that are held.

use futures_util::future::try_join_all;
use tourbillon_leases::{HeldLock, Holder, LockPage, LockPaging, StoreError};

use super::{Entry, Names};
use crate::messages::{RangeRequest, behind};

/// The most keys that are read at one time. As many leases are then asked for their ends.
const STEP: usize = 128;

impl Names {
    pub(crate) async fn holder(&self, name: &str) -> Result<Option<Holder>, StoreError> {
        let entry = self.entry(name).await?;
        self.held_by(entry).await
    }

    /// The holder, or `None` if the lease has run out meanwhile, or the value is another program's.
    async fn held_by(&self, entry: Option<Entry>) -> Result<Option<Holder>, StoreError> {
        let Some(entry) = entry else { return Ok(None) };
        let Some(record) = &entry.record else {
            return Ok(None);
        };
        let Some(remaining) = self.remaining(&entry).await? else {
            return Ok(None);
        };
        let holder = Holder::new(record.owner.clone(), entry.token, remaining);
        Ok(Some(holder.with_data(record.data.clone())))
    }

    /// The place of a page is the last key before it, behind the prefix of the store, in hexadecimal digits: a key
    /// of another program may be no text.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        paging: &LockPaging,
    ) -> Result<LockPage, StoreError> {
        let end = behind(&self.key(prefix));
        let most = paging.limit.max(1);
        let mut from = self.key(prefix);
        if let Some(place) = &paging.after {
            let after = [self.prefix.as_bytes(), &bytes_of(place)?].concat();
            from = from.max(behind_one(after));
        }
        let mut locks: Vec<HeldLock> = Vec::new();
        while from < end || end == [0] {
            let step = STEP.min(most - locks.len());
            let range = RangeRequest {
                key: from,
                range_end: end.clone(),
                limit: i64::try_from(step).unwrap_or(i64::MAX),
                keys_only: false,
            };
            let found = self.exchange.range(range).await?;
            let Some(last) = found.kvs.last() else { break };
            let names = found.kvs.iter().filter_map(|kv| {
                let name = Names::name_of(&self.prefix, &kv.key)?;
                Some((name, Entry::of(kv)))
            });
            let held = names.map(async |(name, entry)| {
                let holder = self.held_by(Some(entry)).await?;
                Ok::<_, StoreError>(holder.map(|one| HeldLock::new(name.to_owned(), one)))
            });
            locks.extend(try_join_all(held).await?.into_iter().flatten());
            if !found.more {
                break;
            }
            if locks.len() >= most || self.exchange.limit.is_half_over() {
                let place = digits_of(&last.key[self.prefix.len()..]);
                return Ok(LockPage::new(locks, Some(place), paging));
            }
            from = behind_one(last.key.clone());
        }
        Ok(LockPage::new(locks, None, paging))
    }
}

/// The first key behind this one.
fn behind_one(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(place: &str) -> Result<Vec<u8>, StoreError> {
    let unknown = || StoreError::Refused("this store has given no such place of a page".to_owned());
    let pairs = place.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    pairs.map(|pair| byte(pair).ok_or_else(unknown)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_any_key() {
        for key in [&b""[..], b"orders/1", b"\xff\0"] {
            assert_eq!(bytes_of(&digits_of(key)).as_deref(), Ok(key));
        }
        for wrong in ["0", "0g", "orders", "é"] {
            assert!(
                matches!(bytes_of(wrong), Err(StoreError::Refused(_))),
                "{wrong}"
            );
        }
    }
}
