//! The call that gives an entry another key.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;

use super::content::MapEntry;
use super::grouped::member;
use super::insert::is_over;
use super::members::Member;
use super::tag::Tag;
use super::{ExpiryMap, InsertRefusal, MapHasher};
use crate::clock::Reading;
use crate::shard::{KeyHash, Stripe};

/// A rename that was refused. Nothing has changed, and the new key comes back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, RenameRefusal};
///
/// # let stepped = ExpiryMap::<&str, u32>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// let error = map.rename("anonymous-5", "ada-9").unwrap_err();
/// assert_eq!(error.key, "ada-9");
/// assert_eq!(error.refusal, RenameRefusal::NotFound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenameError<K> {
    /// The new key.
    pub key: K,
    /// The reason.
    pub refusal: RenameRefusal,
}

/// The reason why an entry did not get another key. It is an error by itself, too, for callers that
/// do not need the key in a [`RenameError`].
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, InsertRefusal, RenameRefusal};
///
/// # let stepped = ExpiryMap::<&str, u32>::builder().build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// map.insert("anonymous-5", 5)?;
/// map.insert("ada-9", 9)?;
/// let refusal = map.rename("anonymous-5", "ada-9").unwrap_err().into_reason();
/// assert_eq!(refusal, RenameRefusal::Insert(InsertRefusal::Occupied));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RenameRefusal {
    /// There is no entry for the old key, or its lifetime is over, or it was evicted.
    NotFound,
    /// The new key can't be inserted. [`Occupied`](InsertRefusal::Occupied): it has an entry.
    /// [`Full`](InsertRefusal::Full) means here that a stripe holds four billion entries.
    Insert(InsertRefusal),
}

impl<K> RenameError<K> {
    /// Drops the key, and keeps the reason as an error.
    ///
    /// The reason can be passed on by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>`, as
    /// [`InsertError::into_reason`](crate::InsertError::into_reason) explains.
    #[must_use]
    pub fn into_reason(self) -> RenameRefusal {
        self.refusal
    }
}

impl<K> fmt::Display for RenameError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl fmt::Display for RenameRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RenameRefusal::NotFound => f.write_str("there is no entry for the old key"),
            RenameRefusal::Insert(refusal) => refusal.fmt(f),
        }
    }
}

impl<K> fmt::Debug for RenameError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenameError")
            .field("refusal", &self.refusal)
            .finish_non_exhaustive()
    }
}

impl<K> std::error::Error for RenameError<K> {}

impl std::error::Error for RenameRefusal {}

/// The outcome of one look, and the ids of the entry before and after it if it was renamed.
type Attempted<K, P> = (Attempt<K, P>, Option<[Member; 2]>);

/// The outcome of one look at both keys, under the locks of their stripes.
enum Attempt<K, P> {
    /// The entry has the new key. All that was dropped is to be dropped without a lock: the old
    /// key, and an entry of the new key whose lifetime was over.
    Renamed(Option<K>, (Option<K>, Option<P>)),
    Refused(RenameRefusal),
    /// Both keys are the same one.
    Unchanged,
    /// The entry is not in the group any more in which it was found.
    Again,
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Gives the entry of `old` the key `new`, in one step: at each moment the entry is found by
    /// exactly one of them. Use it for a session whose id changes at log-in.
    ///
    /// The entry keeps its value, the time of its last touch, the end of its lifetime and its
    /// group. A removal and an insertion would start both times anew, and there would be no entry
    /// in between. The listener of [`on_removal`](crate::ExpiryMapBuilder::on_removal) is not
    /// called.
    ///
    /// An entry that is due and not yet delivered can be renamed, like any other, and is delivered
    /// under its new key. An entry that a handler has right now can't. If `new` has an entry whose
    /// lifetime is over, that one is replaced. If both keys are equal, nothing changes.
    ///
    /// # Errors
    ///
    /// The error contains `new`. [`NotFound`](RenameRefusal::NotFound): there is no entry for
    /// `old`. [`Insert`](RenameRefusal::Insert): `new` can't be inserted, since it [has an
    /// entry](InsertRefusal::Occupied) or the map is [closed](InsertRefusal::Closed). A full map or
    /// group does not matter.
    ///
    /// # Blocking
    ///
    /// Holds the locks of two stripes, and for an entry in a group that of the group. It never
    /// waits for one stripe's lock while it holds another. Calls for all entries of the map, such
    /// as `iter`, may see the entry twice or not at all if it is renamed meanwhile. Calls for its
    /// group see it once.
    ///
    /// # Complexity
    ///
    /// Constant: two hashes, and three probes. If full groups evict, linear in the entries of the
    /// group.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::ExpiryMap;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let sessions = stepped.map();
    /// sessions.insert(7, "cart: 2 books")?;
    /// let deadline = sessions.deadline(&7);
    /// stepped.advance(Duration::from_secs(20));
    /// // Ada logs in. Whoever knew the id of before knows nothing of her session.
    /// sessions.rename(&7, 8_461)?;
    /// assert_eq!(sessions.get(&7), None);
    /// assert_eq!(sessions.get(&8_461), Some("cart: 2 books"));
    /// assert_eq!(sessions.deadline(&8_461), deadline);
    /// # Ok(())
    /// # }
    /// ```
    pub fn rename<Q>(&self, old: &Q, new: K) -> Result<(), RenameError<K>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let from = self.hash_of(old);
        let to = self.hash_of(&new);
        let mut new = Some(new);
        let refusal = loop {
            let (_, reading) = self.engine.clock_and_reading();
            // The group's lock comes before the stripes' (GROUP-1), so this looks twice.
            let location = self.engine.shards().peek(from.0, |stripe| {
                let (entry, _) = stripe.pending_payload(stripe.find(from.1, old)?)?;
                entry.tag.location()
            });
            let mut attempt =
                || self.try_rename(old, from, &mut new, to, location.as_ref(), reading);
            let answer = match &location {
                Some(location) => S::Tag::rename_at(location, attempt),
                None => attempt().0,
            };
            match answer {
                Attempt::Renamed(old_key, dropped) => {
                    drop(old_key);
                    let (key, old) = dropped;
                    drop(self.replaced(key.as_ref(), old));
                    return Ok(());
                }
                Attempt::Unchanged => return Ok(()),
                Attempt::Refused(refusal) => break refusal,
                Attempt::Again => {}
            }
        };
        let Some(key) = new else {
            unreachable!("a refused call takes nothing");
        };
        Err(RenameError { key, refusal })
    }

    /// Renames the entry if it is still at `location`. Also returns its ids before and after, if it
    /// was renamed.
    fn try_rename<Q>(
        &self,
        old: &Q,
        (from, old_hash): (usize, KeyHash),
        new: &mut Option<K>,
        (to, new_hash): (usize, KeyHash),
        location: Option<&<S::Tag as Tag>::Location>,
        reading: Reading,
    ) -> Attempted<K, MapEntry<V, S::Tag>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let clock = self.engine.clock();
        self.engine.with_pair([from, to], |one, other| {
            let refused = |refusal| (Attempt::Refused(refusal), None);
            let insert = |refusal| refused(RenameRefusal::Insert(InsertRefusal::of(refusal)));
            if let Some(refusal) = one.refuses_all() {
                return insert(refusal);
            }
            let found = one.find(old_hash, old).and_then(|slot| {
                let (entry, _) = one.pending_payload(slot)?;
                let lives = entry.lives(reading, clock);
                lives.then(|| (slot, entry.tag.is_at(location)))
            });
            let Some((slot, is_at_location)) = found else {
                return refused(RenameRefusal::NotFound);
            };
            if !is_at_location {
                return (Attempt::Again, None);
            }
            let Some(key) = new else {
                unreachable!("only a call that succeeds takes the key");
            };
            // All user code runs here, before anything is changed: the keys' `Eq`.
            let target: &Stripe<_, _> = other.as_deref().unwrap_or(one);
            if other.is_none() && target.find::<K>(new_hash, key) == Some(slot) {
                return (Attempt::Unchanged, None);
            }
            let if_absent = !is_over(target, new_hash, key, clock);
            let admission = match target.admit_moved(new_hash, key, if_absent) {
                Ok(admission) => admission,
                Err(refusal) => return insert(refusal),
            };
            let before = one.pending_id(slot);
            let (Some(before), Some((old_key, deadline, entry)), Some(key)) =
                (before, one.move_out(slot), new.take())
            else {
                unreachable!("the entry was found under this lock");
            };
            let target = other.unwrap_or(one);
            let now = reading.low();
            let arming = target.move_in(admission, new_hash, key, entry, deadline, now);
            let ids = [member(from, before), member(to, arming.id)];
            (Attempt::Renamed(old_key, arming.dropped), Some(ids))
        })
    }
}
