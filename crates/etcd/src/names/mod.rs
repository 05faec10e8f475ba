//! What a store does to names, each of which is a key.
//!
//! - **ETCD-1** A key is put only in a transaction that finds no such key, or finds the very revision that was read before.
//!   A release deletes it in a transaction of the second kind. The end of the lease would not do: another call of the
//!   holder may have given the key another lease since the read.
//!   So a name is granted to one owner at a time. The token is the revision of the transaction that made the key.
//!   Revisions grow, and later puts to the key leave it, so tokens grow from holder to holder.
//! - **ETCD-2** Each holding has a lease of its own, whose end deletes the key. So a name that is not renewed ends,
//!   whatever else the process renews. A call ends a lease only after the key is gone or has another one. With one lease
//!   for all names of a process, a name whose release was lost would be held for as long as any other is.
//! - **ETCD-3** A renewal counts only between two reads: the key is read, its lease is renewed, and the key is read again.
//!   All three answers have to come from one server, and from one term of its leader. Renewals do not pass through the
//!   log of the cluster. A leader that was replaced and has not noticed it answers them, for up to two election
//!   timeouts, while its successor lets the lease run out. (One whose network was cut answered for another 1.06 s, with the
//!   default timeout of one second.) Reads are confirmed by a majority. So if the term is
//!   the same before and after, no successor was elected in between, and the leader of this term has renewed the lease.
//! - **ETCD-4** A leader ends no lease early. It counts a lease from when it makes or renews it, which is after the caller
//!   has sent its request, by a clock that nobody can set. A new leader gives each lease its full length again. Lengths
//!   are rounded up to seconds. So leases end late, if at all: after a change of the leader, or when a thousand end at one
//!   time. The exception is a server without etcd's change #16822 (in 3.4: #17465, of February 2024). A leader that hung
//!   in a write to its disk may not know that it was replaced, and its successor then carries out its orders to end leases,
//!   also of those that were renewed meanwhile. The store cannot see that before the next renewal.
//! - **ETCD-5** Every call can be repeated, since the secret tells whether it was carried out. Only its hash is stored.

mod acquiring;
mod handing_over;
mod looking;
mod releasing;
mod renewing;

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tourbillon_leases::{Secret, StoreError};

use crate::exchange::Exchange;
use crate::failure::is_too_large;
use crate::messages::{Compare, KeyValue, PutRequest, RangeRequest, RequestOp, TxnRequest};
use crate::record::{Record, hash_of};
use crate::sync::Arc;

pub(crate) use acquiring::Wanted;
pub(crate) use handing_over::{DetachedBy, ResumedBy};
pub(crate) use releasing::Ended;
pub(crate) use renewing::Renewed;

/// The most operations of a transaction, by the default of the server (`--max-txn-ops`), one less for the
/// transaction that is within another one.
pub(crate) const PORTION: usize = 127;

/// The longest lease of etcd, in seconds.
pub(crate) const LONGEST_LEASE: i64 = 9_000_000_000;

/// The longest name in bytes.
pub(crate) const LONGEST_NAME: usize = 1_024;

/// How often a call is tried again that has found something else than it has read.
const ATTEMPTS: usize = 5;

/// The names of a store, during one call.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) exchange: Exchange,
    pub(crate) prefix: Arc<str>,
}

/// A key that somebody has, as it was read.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Entry {
    pub(crate) token: u64,
    pub(crate) revision: i64,
    pub(crate) lease: i64,
    /// `None` if the value is another program's.
    pub(crate) record: Option<Record>,
}

impl Entry {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        Entry {
            token: kv.create_revision.unsigned_abs(),
            revision: kv.mod_revision,
            lease: kv.lease,
            record: Record::read(&kv.value),
        }
    }

    /// The record, if the name is held with the secret of this hash.
    fn held_with(&self, hash: &str) -> Option<&Record> {
        self.record.as_ref().filter(|one| one.is_held_with(hash))
    }
}

impl Names {
    pub(crate) fn key(&self, name: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), name.as_bytes()].concat()
    }

    /// The name of a key.
    pub(crate) fn name_of<'a>(prefix: &str, key: &'a [u8]) -> Option<&'a str> {
        let name = key.strip_prefix(prefix.as_bytes())?;
        std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())
    }

    /// Reads the key of one name.
    async fn entry(&self, name: &str) -> Result<Option<Entry>, StoreError> {
        let (_, mut kvs) = self.exchange.read([self.key(name)], false).await?;
        Ok(kvs.pop().flatten().as_ref().map(Entry::of))
    }

    /// Puts a record with another lease in the place of what was read, and ends the lease of before. Returns
    /// whether it was still there (ETCD-1).
    async fn replace(
        &self,
        name: &str,
        was: &Entry,
        record: &Record,
        ttl: i64,
    ) -> Result<bool, StoreError> {
        let lease = self.exchange.grant(ttl).await?;
        let put = PutRequest {
            key: self.key(name),
            value: record.to_value(),
            lease,
            ignore_lease: false,
        };
        let is_put = self.put_if_as_of(was.revision, put).await;
        match is_put {
            Ok(true) => self.exchange.discard([was.lease]).await,
            Ok(false) => self.exchange.discard([lease]).await,
            // The put may have been executed, so the lease is left to its end.
            Err(_) => {}
        }
        is_put
    }

    /// Deletes the key of a name, and ends its lease. Returns whether it was still as it was read (ETCD-1).
    async fn delete(&self, name: &str, was: &Entry) -> Result<bool, StoreError> {
        let key = self.key(name);
        let delete = RequestOp::delete(key.clone());
        let is_deleted = self.do_if_as_of(key, was.revision, delete).await?;
        if is_deleted {
            self.exchange.discard([was.lease]).await;
        }
        Ok(is_deleted)
    }

    async fn put_if_as_of(&self, revision: i64, put: PutRequest) -> Result<bool, StoreError> {
        let key = put.key.clone();
        self.do_if_as_of(key, revision, RequestOp::put(put)).await
    }

    async fn do_if_as_of(
        &self,
        key: Vec<u8>,
        revision: i64,
        operation: RequestOp,
    ) -> Result<bool, StoreError> {
        let txn = TxnRequest {
            compare: vec![Compare::is_as_of(key, revision)],
            success: vec![operation],
            failure: Vec::new(),
        };
        Ok(self.exchange.txn(txn).await?.succeeded)
    }

    /// Whether the server carries out calls of this user: a transaction with a put that is never executed.
    pub(crate) async fn check(&self) -> Result<(), StoreError> {
        let key = self.key("");
        let txn = TxnRequest {
            compare: vec![Compare::is_as_of(key.clone(), i64::MAX)],
            success: vec![self.put_for_rights()],
            failure: vec![RequestOp::range(RangeRequest::of(key))],
        };
        self.exchange.txn(txn).await.map(drop)
    }

    /// A put of the prefix, which is nobody's name. In a branch that is never executed, it makes the server look whether
    /// the user has the right to write.
    fn put_for_rights(&self) -> RequestOp {
        RequestOp::put(PutRequest {
            key: self.key(""),
            ..PutRequest::default()
        })
    }
}

/// The hash of a secret that a call has.
pub(crate) fn hashed(secret: Secret<'_>) -> String {
    hash_of(secret.reveal())
}

/// Checks a name.
pub(crate) fn checked_name(name: &str) -> Result<(), StoreError> {
    let why = match name.len() {
        0 => "an empty name".to_owned(),
        bytes if bytes > LONGEST_NAME => {
            format!("a name of {bytes} bytes: choose one of at most {LONGEST_NAME}")
        }
        _ => return Ok(()),
    };
    Err(StoreError::Refused(why))
}

/// The seconds of a lease, rounded up: the server's lease must not end before the caller's.
pub(crate) fn checked_lease(lease: Duration) -> Result<i64, StoreError> {
    let why = match seconds(lease) {
        0 => "a lease of zero".to_owned(),
        seconds if seconds > LONGEST_LEASE => {
            format!("a lease of {lease:?}: etcd has leases of up to {LONGEST_LEASE} s")
        }
        seconds => return Ok(seconds),
    };
    Err(StoreError::Refused(why))
}

pub(crate) fn seconds(time: Duration) -> i64 {
    let up = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(up)).unwrap_or(i64::MAX)
}

/// Something else than what was read a moment ago, several times or amid a call that is not tried again.
fn changed(name: &str) -> StoreError {
    let name: String = name.chars().take(64).collect();
    StoreError::Unavailable(format!(
        "etcd: another call has changed the key of {name:?} meanwhile"
    ))
}

/// The answers to a batch, and the portions in which it is asked.
struct Answers<R> {
    answers: Vec<Result<R, StoreError>>,
    /// Those that are still to be asked.
    portions: VecDeque<Vec<usize>>,
    is_in_one: bool,
    /// The error of a portion that has failed as a whole.
    failed: Option<StoreError>,
}

impl<R> Answers<R> {
    /// Items that are wrong have their answer already. No portion has a name twice.
    fn new<T>(batch: &[Result<T, StoreError>], name: impl Fn(&T) -> &str) -> Self {
        let mut portions: VecDeque<Vec<usize>> = VecDeque::new();
        let mut names = HashSet::new();
        for (at, item) in batch.iter().enumerate() {
            let Ok(item) = item else { continue };
            let fits = portions.back().is_some_and(|one| one.len() < PORTION);
            if !fits || !names.insert(name(item)) {
                names = HashSet::from([name(item)]);
                portions.push_back(Vec::new());
            }
            if let Some(last) = portions.back_mut() {
                last.push(at);
            }
        }
        let missing = || StoreError::Unavailable("etcd: its answer is missing".to_owned());
        let answer = |item: &Result<T, StoreError>| {
            Err(item.as_ref().err().cloned().unwrap_or_else(missing))
        };
        Answers {
            answers: batch.iter().map(answer).collect(),
            is_in_one: portions.len() == 1,
            portions,
            failed: None,
        }
    }

    /// Puts the answers of a portion into their places. One that is too large for the server is asked again in halves.
    fn place(
        &mut self,
        mut portion: Vec<usize>,
        answered: Result<Vec<Result<R, StoreError>>, StoreError>,
    ) {
        match answered {
            Ok(answers) => {
                for (at, answer) in portion.into_iter().zip(answers) {
                    self.answers[at] = answer;
                }
            }
            Err(error) if portion.len() > 1 && is_too_large(&error) => {
                let behind = portion.split_off(portion.len() / 2);
                self.portions.push_front(behind);
                self.portions.push_front(portion);
                self.is_in_one = false;
            }
            Err(error) => {
                for at in portion {
                    self.answers[at] = Err(error.clone());
                }
                self.failed = Some(error);
            }
        }
    }

    /// An only portion that has failed is an error of the call. Then the leases may try each item alone.
    fn into_result(self) -> Result<Vec<Result<R, StoreError>>, StoreError> {
        match self.failed {
            Some(error) if self.is_in_one => Err(error),
            _ => Ok(self.answers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_to_seconds() {
        let ms = Duration::from_millis;
        assert_eq!(checked_lease(Duration::from_nanos(1)), Ok(1));
        assert_eq!(checked_lease(ms(2_000)), Ok(2));
        assert_eq!(checked_lease(ms(2_001)), Ok(3));
        assert!(checked_lease(Duration::ZERO).is_err());
        assert!(checked_lease(Duration::MAX).is_err());
        assert_eq!(
            checked_lease(Duration::from_secs(LONGEST_LEASE.unsigned_abs())),
            Ok(LONGEST_LEASE)
        );
    }

    #[test]
    fn a_batch_is_asked_in_portions_without_a_name_twice() {
        let batch: Vec<Result<String, StoreError>> =
            (0..300).map(|at| Ok(format!("n{at}"))).collect();
        let answers = Answers::<()>::new(&batch, |name| name);
        let sizes: Vec<_> = answers.portions.iter().map(Vec::len).collect();
        assert_eq!(sizes, [127, 127, 46]);
        let refused = || StoreError::Refused("no".to_owned());
        let batch = ["a", "b", "a", "", "a", "c"].map(|name| match name {
            "" => Err(refused()),
            name => Ok(name),
        });
        let mut answers = Answers::new(&batch, |name| name);
        assert_eq!(answers.portions, [vec![0, 1], vec![2], vec![4, 5]]);
        answers.place(vec![0, 1], Ok(vec![Ok(1), Ok(2)]));
        answers.place(vec![2], Err(refused()));
        let answers = answers.into_result().unwrap();
        assert_eq!(answers[..4], [Ok(1), Ok(2), Err(refused()), Err(refused())]);
        assert!(matches!(&answers[4], Err(StoreError::Unavailable(_))));
    }

    #[test]
    fn an_only_portion_that_fails_fails_the_call() {
        let batch = [Ok("a"), Ok("b")];
        let mut answers = Answers::<()>::new(&batch, |name| name);
        let refused = StoreError::Refused("no rights".to_owned());
        answers.place(vec![0, 1], Err(refused.clone()));
        assert_eq!(answers.into_result(), Err(refused));
        assert_eq!(
            Answers::<()>::new::<&str>(&[], |name| name).into_result(),
            Ok(vec![])
        );
    }

    #[test]
    fn a_portion_that_is_too_large_is_asked_again_in_halves() {
        let large = || StoreError::Refused("etcdserver: request is too large".to_owned());
        let batch = ["a", "b", "c"].map(Ok);
        let mut answers = Answers::new(&batch, |name| name);
        let mut asked = Vec::new();
        while let Some(portion) = answers.portions.pop_front() {
            asked.push(portion.clone());
            // The last one is too large alone.
            let answered = match portion[..] {
                [0 | 1] => Ok(vec![Ok(portion[0])]),
                _ => Err(large()),
            };
            answers.place(portion, answered);
        }
        assert_eq!(
            asked,
            [vec![0, 1, 2], vec![0], vec![1, 2], vec![1], vec![2]]
        );
        assert_eq!(answers.into_result(), Ok(vec![Ok(0), Ok(1), Err(large())]));
    }

    #[test]
    fn keys_of_others_have_no_name() {
        let name = |key: &[u8]| Names::name_of("p/", key).map(str::to_owned);
        assert_eq!(name(b"p/a/b").as_deref(), Some("a/b"));
        for other in [&b"p/"[..], b"q/a", b"p/\xff"] {
            assert_eq!(name(other), None);
        }
    }
}
