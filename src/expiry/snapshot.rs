//! Snapshots of a map, which can be stored and restored in another process.
//!
//! A snapshot has its times by the calendar, since the clock of a map has no meaning in another
//! process. So the time between the snapshot and the restoration counts.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::content::{MadeEntry, MapEntry};
use super::grouped::member;
use super::many::PORTION;
use super::{ExpiryMap, GroupFull, GroupedBy, InsertError, Inserted, MapHasher};
use crate::clock::{Reading, WallAnchor};
use crate::shard::Stripe;
use crate::tick::Time;

/// The format that this version writes. It reads this one and all older ones.
const FORMAT: u32 = 1;

/// The entries of a map at one moment, to be stored by any format of serde.
///
/// [`ExpiryMap::snapshot`] makes it, and [`ExpiryMap::restore`] uses it. `G` names the groups of a
/// [`GroupedExpiryMap`](crate::GroupedExpiryMap).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::{ExpiryMap, Snapshot};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let sessions = || {
///     let idle = Duration::from_secs(30 * 60);
///     ExpiryMap::<u64, String>::builder().time_to_idle(idle).build(|_, _| ())
/// };
/// // The old process:
/// let old = sessions()?;
/// old.insert(7, "Ada".to_owned())?;
/// let stored = serde_json::to_string(&old.snapshot())?;
///
/// // The new process:
/// let new = sessions()?;
/// let snapshot: Snapshot<u64, String> = serde_json::from_str(&stored)?;
/// let restored = new.restore(snapshot)?;
/// assert_eq!((restored.inserted, restored.refused.len()), (1, 0));
/// assert_eq!(new.get(&7).as_deref(), Some("Ada"));
/// assert!(new.remaining(&7) < Some(Duration::from_secs(30 * 60 + 1)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot<K, V, G = ()> {
    format: u32,
    /// In nanoseconds since 1970, as all times here.
    taken: u64,
    entries: Vec<SavedEntry<K, V, G>>,
}

/// One entry of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct SavedEntry<K, V, G> {
    key: K,
    value: V,
    group: Option<G>,
    /// The time to idle in nanoseconds.
    idle: Option<u64>,
    /// When the entry expires unless it is touched.
    deadline: Option<u64>,
    /// The end of the lifetime.
    end: Option<u64>,
}

impl<K, V, G> Snapshot<K, V, G> {
    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns when the snapshot was taken, by the calendar.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tourbillon::ExpiryMap;
    ///
    /// let map = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
    /// let before = SystemTime::now();
    /// let taken = map.snapshot().taken();
    /// assert!(before - std::time::Duration::from_secs(1) < taken);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn taken(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.taken)
    }
}

/// The result of a restoration.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Snapshot};
///
/// fn start(map: &ExpiryMap<u64, String>, stored: Snapshot<u64, String>) {
///     match map.restore(stored) {
///         Ok(restored) => println!("{} entries, {} past due", restored.inserted, restored.past_due),
///         Err(newer) => eprintln!("{newer}"),
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored<K, V> {
    /// The number of entries that are in the map. Those that are past due count, too.
    pub inserted: usize,
    /// The number of inserted entries whose deadline had passed. They are delivered at once, as any
    /// entry that expires.
    pub past_due: usize,
    /// The entries that the map refused, with the reason: it is full or closed, their group is
    /// full, or it has an entry of the same key, which stays.
    pub refused: Vec<InsertError<K, V>>,
    /// How far the calendar has been set back since the snapshot, if it is earlier now than it was
    /// then. In this case the entries have as long to live as at the snapshot, and not longer.
    pub set_back: Option<Duration>,
}

/// The error of a restoration: the snapshot was written by a newer version of this crate. Nothing
/// was restored.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Snapshot};
///
/// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// let stored = r#"{"format":999,"taken":0,"entries":[]}"#;
/// let stored: Snapshot<u64, String> = serde_json::from_str(stored)?;
/// let error = map.restore(stored).unwrap_err();
/// // The entries are still there, for a newer version of this program.
/// assert!(error.snapshot.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewerFormatError<K, V, G = ()> {
    /// The snapshot.
    pub snapshot: Snapshot<K, V, G>,
}

impl<K, V, G> NewerFormatError<K, V, G> {
    /// Drops the entries of the snapshot, and keeps the reason as an error, which can be passed on
    /// by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>`, also if the values are not
    /// `Sync`.
    #[must_use]
    pub fn into_reason(self) -> NewerFormatError<(), ()> {
        let Snapshot { format, taken, .. } = self.snapshot;
        NewerFormatError {
            snapshot: Snapshot {
                format,
                taken,
                entries: Vec::new(),
            },
        }
    }
}

impl<K, V, G> fmt::Debug for NewerFormatError<K, V, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewerFormatError")
            .field("format", &self.snapshot.format)
            .finish_non_exhaustive()
    }
}

impl<K, V, G> fmt::Display for NewerFormatError<K, V, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.snapshot.format;
        write!(
            f,
            "the snapshot has format {format}, and this version reads formats up to {FORMAT}; \
             restore it with the version that wrote it, or a newer one"
        )
    }
}

impl<K, V, G> std::error::Error for NewerFormatError<K, V, G> {}

/// Converts a time to nanoseconds since 1970; `None` is *never*.
fn to_wall(time: Time, anchor: &WallAnchor) -> Option<u64> {
    let wall = anchor.system_time_of(time)?;
    let since = wall.duration_since(SystemTime::UNIX_EPOCH);
    Some(since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }))
}

/// The moment of a restoration.
struct Arrival {
    /// The moment by the anchor, which need not be the present: only deadlines are counted from it.
    now: Time,
    /// The present by the map's clock.
    present: Reading,
    /// The present by the calendar, but not before the snapshot.
    wall: u64,
    set_back: Option<Duration>,
}

impl Arrival {
    fn new(anchor: &WallAnchor, present: Time, taken: u64) -> Self {
        let wall = to_wall(anchor.time(), anchor).unwrap_or(0);
        Arrival {
            now: anchor.time(),
            present: Reading::given(present),
            wall: wall.max(taken),
            set_back: (wall < taken).then(|| Duration::from_nanos(taken - wall)),
        }
    }

    /// Converts a time of the snapshot to one of the map's clock.
    fn time_of(&self, wall: Option<u64>) -> Time {
        let Some(wall) = wall else { return Time::MAX };
        match wall.checked_sub(self.wall) {
            Some(ahead) => self.now + Duration::from_nanos(ahead),
            None => self.now - Duration::from_nanos(self.wall - wall),
        }
    }

    /// Makes the entry of a map out of one of the snapshot, and says whether it is past due.
    fn entry<V, T: super::tag::Tag>(
        &self,
        value: V,
        (idle, deadline, end): (Option<u64>, Option<u64>, Option<u64>),
    ) -> (MadeEntry<V, T>, bool) {
        let is_past_due = deadline.is_some_and(|deadline| deadline <= self.wall);
        let is_idle = deadline.is_some_and(|deadline| end.is_none_or(|end| end > deadline));
        let deadline = self.time_of(deadline);
        let mut end = self.time_of(end);
        if is_idle {
            // Both may lie before the start of the clock, where all times are the same. The end
            // must not become the reason why the entry expires.
            end = end.max(deadline + Duration::from_nanos(1));
        }
        let entry = MapEntry::of_times(value, idle.unwrap_or(u64::MAX), end);
        ((entry, deadline, self.present), is_past_due)
    }
}

/// Checks the format, and sorts the entries: where the order counts, the one that expires first
/// comes first, or the one whose lifetime ends first.
fn opened<K, V, G>(
    mut snapshot: Snapshot<K, V, G>,
    by_lifetime: bool,
) -> Result<Snapshot<K, V, G>, NewerFormatError<K, V, G>> {
    if snapshot.format > FORMAT {
        return Err(NewerFormatError { snapshot });
    }
    snapshot.entries.sort_by_key(|entry| {
        let end = entry.end.filter(|_| by_lifetime);
        let deadline = entry.deadline.unwrap_or(u64::MAX);
        (end.unwrap_or(u64::MAX), deadline)
    });
    Ok(snapshot)
}

/// Number of entries that are restored in one call for many.
const AT_A_TIME: usize = 8_192;

/// A key, the entry that has been made for it, and its group.
type ToPut<K, V, T, G> = (K, MadeEntry<V, T>, Option<G>);

/// The answer of an insertion.
type Put<K, V> = Result<Inserted<V>, InsertError<K, V>>;

/// Inserts all entries by `put`, some at a time, and draws up the result.
fn restore_all<K, V, G, T: super::tag::Tag>(
    snapshot: Snapshot<K, V, G>,
    anchor: &WallAnchor,
    present: Time,
    put: impl Fn(Vec<ToPut<K, V, T, G>>) -> Vec<Put<K, V>>,
) -> Restored<K, V> {
    let arrival = Arrival::new(anchor, present, snapshot.taken);
    let mut restored = Restored {
        inserted: 0,
        past_due: 0,
        refused: Vec::new(),
        set_back: arrival.set_back,
    };
    let mut entries = snapshot.entries.into_iter();
    while entries.len() > 0 {
        let saved = entries.by_ref().take(AT_A_TIME);
        let (made, are_past_due): (Vec<_>, Vec<_>) = saved
            .map(|saved| {
                let times = (saved.idle, saved.deadline, saved.end);
                let (made, is_past_due) = arrival.entry(saved.value, times);
                ((saved.key, made, saved.group), is_past_due)
            })
            .unzip();
        for (answer, is_past_due) in put(made).into_iter().zip(are_past_due) {
            match answer {
                Ok(_) => {
                    restored.inserted += 1;
                    restored.past_due += usize::from(is_past_due);
                }
                Err(refused) => restored.refused.push(refused),
            }
        }
    }
    restored
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    /// Takes a snapshot. Under the stripe's lock, `locate` returns what is needed to find the
    /// group, and `group_of` finds it without the lock. It returns `None` if the entry has ended.
    fn take_snapshot<M, G>(
        &self,
        anchor: &WallAnchor,
        locate: impl Fn(&Stripe<K, MapEntry<V, S::Tag>>, usize, u32, &MapEntry<V, S::Tag>) -> M,
        group_of: impl Fn(M) -> Option<Option<G>>,
    ) -> Snapshot<K, V, G> {
        let shards = self.engine.shards();
        let mut entries = Vec::new();
        for number in 0..shards.stripes() {
            let mut next = Some(0);
            while let Some(from) = next {
                let (clock, reading) = self.engine.clock_and_reading();
                // Separate vectors, declared outside the lock: if a clone panics under the lock,
                // the earlier clones are dropped without it.
                let (mut keys, mut rest) = (Vec::new(), Vec::new());
                next = shards.peek(number, |stripe| {
                    stripe.for_each_range(from, PORTION, |slot, key, session, deadline| {
                        if session.lives(reading, clock) {
                            keys.push(key.clone());
                            let place = locate(stripe, number, slot, session);
                            rest.push((session.value.clone(), session.times(), deadline, place));
                        }
                    })
                });
                for (key, (value, (idle, end), deadline, place)) in keys.into_iter().zip(rest) {
                    let Some(group) = group_of(place) else {
                        continue;
                    };
                    entries.push(SavedEntry {
                        key,
                        value,
                        group,
                        idle: (idle != u64::MAX).then_some(idle),
                        deadline: to_wall(deadline, anchor),
                        end: to_wall(end, anchor),
                    });
                }
            }
        }
        Snapshot {
            format: FORMAT,
            taken: to_wall(anchor.time(), anchor).unwrap_or(0),
            entries,
        }
    }
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Takes a snapshot of clones of all entries, with the times that they have left, to be stored
    /// and [restored](Self::restore) by another process. So a deploy keeps the sessions. Needs the
    /// feature `serde`.
    ///
    /// Each entry is saved as it was at one moment of this call, but not all at the same moment. To
    /// miss nothing, stop the calls that change the map before. An entry that expires between
    /// the snapshot and the end of the process is delivered here, and a second time after the
    /// restoration.
    ///
    /// # Complexity
    ///
    /// Linear, as [`iter`](Self::iter).
    ///
    /// # Examples
    ///
    /// [`Snapshot`] has one.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<K, V>
    where
        V: Clone,
    {
        self.snapshot_at(&self.clock().wall_anchor())
    }

    /// Calls [`snapshot`](Self::snapshot) with the present by the map's clock and by the calendar.
    /// For tests.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{ExpiryMap, WallAnchor};
    ///
    /// let stepped = ExpiryMap::<u64, &str>::builder().build_stepped(1, |_, _| ())?;
    /// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
    /// let snapshot = stepped.map().snapshot_at(&WallAnchor::new(stepped.now(), noon));
    /// assert_eq!(snapshot.taken(), noon);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot_at(&self, anchor: &WallAnchor) -> Snapshot<K, V>
    where
        V: Clone,
    {
        self.take_snapshot(anchor, |_, _, _, _| (), |()| Some(None))
    }

    /// Inserts the entries of a snapshot with the times that they have left by the calendar.
    /// Entries that are past due are delivered at once. An entry whose key is in the map is
    /// refused: the one in the map is newer.
    ///
    /// An entry keeps its time to idle and the times that it has left, also if the map's own times
    /// are others. Restored into a map that is smaller, the entries that expire first are inserted,
    /// and the others come back.
    ///
    /// # Errors
    ///
    /// [`NewerFormatError`], which gives the snapshot back. All else is counted in [`Restored`],
    /// and what was refused comes back there.
    ///
    /// # Blocking
    ///
    /// If there is room for all entries, they are inserted as by
    /// [`insert_many`](Self::insert_many), which holds up to 16 locks for some microseconds.
    ///
    /// # Complexity
    ///
    /// Sorts the entries, and inserts each of them.
    ///
    /// # Examples
    ///
    /// [`Snapshot`] has one.
    pub fn restore(
        &self,
        snapshot: Snapshot<K, V>,
    ) -> Result<Restored<K, V>, NewerFormatError<K, V>> {
        self.restore_at(snapshot, &self.clock().wall_anchor())
    }

    /// Calls [`restore`](Self::restore) with the present by the map's clock and by the calendar.
    /// For tests.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Self::restore).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tourbillon::{ExpiryMap, WallAnchor};
    ///
    /// let sessions = || {
    ///     let idle = Duration::from_secs(60);
    ///     ExpiryMap::<u64, &str>::builder().time_to_idle(idle).build_stepped(1, |_, _| ())
    /// };
    /// let (old, new) = (sessions()?, sessions()?);
    /// old.map().insert(7, "Ada")?;
    /// let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
    /// let snapshot = old.map().snapshot_at(&WallAnchor::new(old.now(), noon));
    ///
    /// // The new process starts 20 s later.
    /// let later = WallAnchor::new(new.now(), noon + Duration::from_secs(20));
    /// new.map().restore_at(snapshot, &later)?;
    /// assert_eq!(new.map().remaining(&7), Some(Duration::from_secs(40)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore_at(
        &self,
        snapshot: Snapshot<K, V>,
        anchor: &WallAnchor,
    ) -> Result<Restored<K, V>, NewerFormatError<K, V>> {
        let snapshot = opened(snapshot, false)?;
        let present = self.now();
        // A call for many does not say which entries are refused. If some of them have to be, the
        // entries are inserted one by one, in their order.
        let all_fit = self.engine.shards().unused_permits() >= snapshot.len();
        Ok(restore_all(snapshot, anchor, present, |entries| {
            let may_be_due = entries.iter().any(|(_, made, _)| made.1 <= present);
            let entries = entries.into_iter();
            let entries = entries.map(|(key, made, _)| (self.hash_of(&key), key, made));
            if all_fit {
                return self.put_many(entries, may_be_due, true);
            }
            let one_by_one =
                entries.map(|(place, key, made)| self.put_entry(place, key, made, true));
            one_by_one.collect()
        }))
    }
}

impl<K, V, G, S> ExpiryMap<K, V, GroupedBy<G, S>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    G: Hash + Eq + Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    /// Takes a snapshot of all entries and their groups; see [`ExpiryMap::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<K, V, G>
    where
        V: Clone,
    {
        self.snapshot_at(&self.clock().wall_anchor())
    }

    /// Calls [`snapshot`](Self::snapshot) with the present by the map's clock and by the calendar.
    /// For tests.
    #[must_use]
    pub fn snapshot_at(&self, anchor: &WallAnchor) -> Snapshot<K, V, G>
    where
        V: Clone,
    {
        self.take_snapshot(
            anchor,
            |stripe, number, slot, session| {
                let membership = session.tag.membership.as_ref()?;
                Some((membership.location(), number, stripe.pending_id(slot)?))
            },
            |place| match place {
                Some((location, number, id)) => location.group_of(member(number, id)).map(Some),
                None => Some(None),
            },
        )
    }

    /// Inserts the entries of a snapshot in their groups; see [`ExpiryMap::restore`]. A group that
    /// is full refuses or evicts, as [`when_group_full`](crate::ExpiryMapBuilder::when_group_full)
    /// says. As the oldest entry of a group counts the one whose lifetime ends first, and without
    /// lifetimes the one that expires first. As the one that was not touched for the longest time
    /// counts the one that expires first.
    ///
    /// # Errors
    ///
    /// As for [`ExpiryMap::restore`].
    pub fn restore(
        &self,
        snapshot: Snapshot<K, V, G>,
    ) -> Result<Restored<K, V>, NewerFormatError<K, V, G>> {
        self.restore_at(snapshot, &self.clock().wall_anchor())
    }

    /// Calls [`restore`](Self::restore) with the present by the map's clock and by the calendar.
    /// For tests.
    ///
    /// # Errors
    ///
    /// As for [`ExpiryMap::restore`].
    pub fn restore_at(
        &self,
        snapshot: Snapshot<K, V, G>,
        anchor: &WallAnchor,
    ) -> Result<Restored<K, V>, NewerFormatError<K, V, G>> {
        let by_lifetime = self.engine.frontend.groups.when_full == GroupFull::EvictOldest;
        let snapshot = opened(snapshot, by_lifetime)?;
        // One by one: a group that is full refuses or evicts in the order of the entries.
        let put = |(key, made, group)| {
            let place = self.hash_of(&key);
            match group {
                Some(group) => {
                    let group_place = (self.group_hash(&group), &group);
                    self.put_entry_in(group_place, place, key, made, true)
                }
                None => self.put_entry(place, key, made, true),
            }
        };
        Ok(restore_all(snapshot, anchor, self.now(), |entries| {
            entries.into_iter().map(put).collect()
        }))
    }
}
