//! The builder of the calls that insert an entry, or look for one first: `map.entry(key)`.
//!
//! It is a plain value: what the caller has said so far. The types say which calls are possible.
//! `P` says whether the group is named, and `L` what is done with an entry that is there.
//! `insert.rs`, `find_or_insert.rs` and `compute.rs` have the finishing calls.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};

use super::grouping::{GroupNotNamed, InGroup, NoGroup};
use super::{Expiry, ExpiryMap, GroupedBy, InsertError, Inserted, MapHasher, Touch};
use crate::scheduler::RandomState;
use crate::tick::Time;

/// A call for one key, begun with [`ExpiryMap::entry`]: options first, then a finishing call.
///
/// **It takes no lock, and does nothing, before the finishing call.** It is not a place in the map
/// that is held for its owner, as an entry of a `HashMap` is. Other calls for the same key may come
/// at any time, also between two steps of a finishing call. Dropping it drops the key, and nothing
/// else happens.
///
/// | option | |
/// |---|---|
/// | [`group(&g)`](Self::group), [`no_group()`](Self::no_group) | the group of an entry that is inserted. A map with groups needs one of both, and a map without has neither |
/// | [`expiry(e)`](Self::expiry) | how long an entry lives that is inserted |
/// | [`at(now)`](Self::at) | the time of the call, if the caller has read the clock |
/// | [`touch()`](Self::touch) | an entry that is there is touched, too |
/// | [`update(change)`](Self::update), [`touch_with(change)`](Self::touch_with) | an entry that is there is changed, and not cloned |
///
/// | finishing call | if there is an entry | if there is none |
/// |---|---|---|
/// | [`insert(value)`](Self::insert) | replaces it | inserts |
/// | [`insert_if_absent(value)`](Self::insert_if_absent) | refuses, and gives the value back | inserts |
/// | [`or_insert(value)`](Self::or_insert) | finds it | inserts |
/// | [`or_insert_with(make)`](Self::or_insert_with) | finds it | makes the value, and inserts it |
/// | [`or_try_insert_with(make)`](Self::or_try_insert_with) | finds it | the same, with a `make` that may fail |
/// | [`or_compute(compute)`](Self::or_compute) | finds it | the same, and callers that come meanwhile wait for the value |
///
/// An entry whose lifetime is over counts as absent. If it has not been delivered yet, it is
/// replaced.
///
/// The calls that end with `insert` or begin with `or_` use the entry at the time of the finishing
/// call. So one that was kept for long is as good as a new one, unless it was given a time.
///
/// # Blocking
///
/// As for each call of the map; only [`or_compute`](Self::or_compute) waits for another caller.
///
/// # Complexity
///
/// No allocation and no hash before the finishing call. A call that finds the entry costs as much
/// as [`get`](ExpiryMap::get) or [`touch_with`](ExpiryMap::touch_with), and a call that inserts as
/// much as [`insert`](ExpiryMap::insert). A call that looks first, and then inserts, costs both.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{Expiry, ExpiryMap};
///
/// # let stepped = ExpiryMap::<u64, String>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// let name = map.entry(7).or_insert_with(|| "Ada".to_owned())?.into_value();
/// assert_eq!(name, "Ada");
/// // The same, and an entry that is there lives on.
/// map.entry(7).touch().or_insert_with(|| "Ada".to_owned())?;
/// map.entry(8).expiry(Expiry::NEVER).insert("Grace".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "nothing happens before a finishing call, such as `insert` or `or_insert_with`"]
pub struct Entry<'a, K, V, S = RandomState, P = NoGroup, L = Reads<false>>
where
    S: MapHasher,
{
    pub(super) map: &'a ExpiryMap<K, V, S>,
    pub(super) key: K,
    pub(super) times: Times,
    pub(super) place: P,
    pub(super) look: L,
}

/// How long an entry lives, and from when that counts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// `None`: as the map says. It is read where an entry is inserted, since most calls find one.
    pub(super) expiry: Option<Expiry>,
    /// `None`: the time of the insertion.
    pub(super) now: Option<Time>,
}

/// What a finishing call does with an entry that is there: it clones the value, and touches the
/// entry if `TOUCHES`.
///
/// # Examples
///
/// ```
/// use tourbillon::{Entry, ExpiryMap, NoGroup, RandomState, Reads};
///
/// /// An entry whose times start again when it is found.
/// type Used<'a> = Entry<'a, u64, String, RandomState, NoGroup, Reads<true>>;
///
/// # let stepped = ExpiryMap::<u64, String>::builder().build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// let entry: Used<'_> = map.entry(7).touch();
/// entry.or_insert("Ada".to_owned())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reads<const TOUCHES: bool>;

/// What a finishing call does with an entry that is there: it calls `F` with the value, and touches
/// the entry if `TOUCHES`.
///
/// # Examples
///
/// ```
/// use tourbillon::{Changes, Entry, ExpiryMap, NoGroup, RandomState};
///
/// /// Counts a visit.
/// type Visit<'a> = Entry<'a, u64, u32, RandomState, NoGroup, Changes<fn(&mut u32), true>>;
///
/// # let stepped = ExpiryMap::<u64, u32>::builder().build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// let visit: Visit<'_> = map.entry(7).touch_with(|visits| *visits += 1);
/// visit.or_insert(1)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Changes<F, const TOUCHES: bool>(Option<F>);

impl<F, const TOUCHES: bool> fmt::Debug for Changes<F, TOUCHES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

/// Inserts an entry in its place.
#[diagnostic::on_unimplemented(
    message = "the group of the entry is not named",
    label = "this map has groups",
    note = "say `.group(&group)` before this call, or `.no_group()` for an entry in no group"
)]
pub trait Placement<K, V, S: MapHasher> {
    /// Inserts an entry; `if_absent` refuses to replace one that lives.
    fn put(
        &self,
        map: &ExpiryMap<K, V, S>,
        key: K,
        value: V,
        times: Times,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>>;
}

impl<K, V, S> Placement<K, V, S> for NoGroup
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    #[inline]
    fn put(
        &self,
        map: &ExpiryMap<K, V, S>,
        key: K,
        value: V,
        times: Times,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        map.put(key, value, times, if_absent)
    }
}

impl<K, V, G, S, Q> Placement<K, V, GroupedBy<G, S>> for InGroup<'_, Q>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static + Borrow<Q>,
    Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
{
    fn put(
        &self,
        map: &ExpiryMap<K, V, GroupedBy<G, S>>,
        key: K,
        value: V,
        times: Times,
        if_absent: bool,
    ) -> Result<Inserted<V>, InsertError<K, V>> {
        map.put_in(self.0, key, value, times, if_absent)
    }
}

/// Changes an entry that is there.
pub trait Change<K, V, S: MapHasher> {
    /// What comes back of it.
    type Found;

    /// Changes the entry, if it is there. Called until it has found one.
    fn change_in(&mut self, map: &ExpiryMap<K, V, S>, key: &K, times: Times)
    -> Option<Self::Found>;
}

impl<K, V, S, F, R> Change<K, V, S> for Changes<F, false>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
    F: FnOnce(&mut V) -> R,
{
    type Found = R;

    #[inline]
    fn change_in(&mut self, map: &ExpiryMap<K, V, S>, key: &K, _: Times) -> Option<R> {
        map.update(key, |value| taken(&mut self.0)(value))
    }
}

impl<K, V, S, F, R> Change<K, V, S> for Changes<F, true>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
    F: FnOnce(&mut V) -> R,
{
    type Found = (Touch, R);

    #[inline]
    fn change_in(&mut self, map: &ExpiryMap<K, V, S>, key: &K, times: Times) -> Option<(Touch, R)> {
        let change = |value: &mut V| taken(&mut self.0)(value);
        let (touch, result) = match times.now {
            None => map.touch_with(key, change),
            Some(now) => map.touch_with_at(key, now, change),
        };
        Some((touch, result?))
    }
}

fn taken<F>(change: &mut Option<F>) -> F {
    let Some(change) = change.take() else {
        unreachable!("a call that finds an entry looks no more");
    };
    change
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Begins a call for one key that inserts an entry, or looks for one first. **It takes no
    /// lock**, and nothing happens before the finishing call. [`Entry`] lists the options and the
    /// finishing calls.
    ///
    /// In a map with groups, the call has to say where an entry goes that is inserted:
    /// [`group`](Entry::group) or [`no_group`](Entry::no_group).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, u32>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// // Counts the messages of a device, which lives on with each of them.
    /// for _ in 0..3 {
    ///     map.entry(7).touch_with(|messages| *messages += 1).or_insert(1)?;
    /// }
    /// assert_eq!(map.get(&7), Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A map with groups does not let a group be forgotten:
    ///
    /// ```compile_fail,E0277
    /// # use tourbillon::ExpiryMap;
    /// let sessions = ExpiryMap::<u64, &str>::builder().groups::<String>().build(|_, _| ())?;
    /// sessions.entry(1).insert("phone")?; // the group of the entry is not named
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A map without groups has none to name:
    ///
    /// ```compile_fail,E0599
    /// # use tourbillon::ExpiryMap;
    /// let sessions = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
    /// sessions.entry(1).group("ada").insert("phone")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn entry(&self, key: K) -> Entry<'_, K, V, S, S::Place> {
        Entry {
            map: self,
            key,
            times: Times {
                expiry: None,
                now: None,
            },
            place: S::Place::default(),
            look: Reads,
        }
    }
}

impl<K, V, S, P, L> Entry<'_, K, V, S, P, L>
where
    S: MapHasher,
{
    /// Lets an entry that is inserted live as long as `expiry` says, whatever the builder of the
    /// map said. An entry that is there keeps its own expiry; [`set_expiry`](ExpiryMap::set_expiry)
    /// changes that. A time of zero makes the entry expire at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// let stepped = ExpiryMap::<&str, u32>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// let longer = map.expiry().time_to_idle(Duration::from_secs(120));
    /// map.entry("as the others").insert(1)?;
    /// map.entry("for a minute more").expiry(longer).insert(2)?;
    /// map.entry("for good").expiry(Expiry::NEVER).insert(3)?;
    /// stepped.advance(Duration::from_secs(60));
    /// assert_eq!(map.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.times.expiry = Some(expiry);
        self
    }

    /// Counts the times of the entry from `now`, a time of the [map's clock](ExpiryMap::now) that
    /// the caller has read before: for the insertion, and for the touch of an entry that is there.
    /// Use it in an event loop that reads the clock once per iteration.
    ///
    /// The entry never expires before `now` plus its time, even if `now` is ahead of the clock. An
    /// entry whose time has passed already expires at once. A touch acts like
    /// [`touch_at`](ExpiryMap::touch_at): an old `now` does not move a deadline back. Whether a
    /// lifetime is over is always decided by the clock.
    ///
    /// A finishing call that inserts does not read the clock then, unless the entry has a time of
    /// zero or goes to a group, or an entry with a lifetime is there.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let idle = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(idle)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// let now = map.now();
    /// for (key, name) in [(7, "Ada"), (8, "Grace")] {
    ///     map.entry(key).at(now).insert(name)?;
    /// }
    /// assert_eq!(map.deadline(&8), Some(now + idle));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn at(mut self, now: Time) -> Self {
        self.times.now = Some(now);
        self
    }
}

impl<'a, K, V, G, S, L> Entry<'a, K, V, GroupedBy<G, S>, GroupNotNamed, L>
where
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Names the group of an entry that is inserted. An entry that is there stays where it is,
    /// whatever group is named, unless [`insert`](Self::insert) replaces it. If the group does not
    /// exist yet, the insertion calls `to_owned`.
    ///
    /// # Errors
    ///
    /// All finishing calls may be refused with [`GroupFull`](crate::InsertRefusal::GroupFull), if
    /// the group is full and [refuses](crate::GroupFull::Refuse), unless the entry that is replaced
    /// is in the same group. If there is an entry for the key, and the call does not replace it, a
    /// full group does not matter.
    ///
    /// # Complexity
    ///
    /// An insertion in a group takes one hash, one lock and one probe more. Insertions in one group
    /// wait for each other. [`when_group_full`](crate::ExpiryMapBuilder::when_group_full) says what
    /// an eviction costs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.entry(1).group("ada").insert("phone")?;
    /// map.entry(2).group("ada").insert("laptop")?;
    /// assert_eq!(map.group_len("ada"), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn group<Q>(self, group: &'a Q) -> Entry<'a, K, V, GroupedBy<G, S>, InGroup<'a, Q>, L>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        Entry {
            map: self.map,
            key: self.key,
            times: self.times,
            place: InGroup(group),
            look: self.look,
        }
    }

    /// Lets an entry that is inserted be in no group, as [`ExpiryMap::insert`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.entry(3).no_group().or_insert("a visitor")?;
    /// assert_eq!(map.group_of(&3), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn no_group(self) -> Entry<'a, K, V, GroupedBy<G, S>, NoGroup, L> {
        Entry {
            map: self.map,
            key: self.key,
            times: self.times,
            place: NoGroup,
            look: self.look,
        }
    }
}

impl<'a, K, V, S, P> Entry<'a, K, V, S, P, Reads<false>>
where
    S: MapHasher,
{
    /// Touches an entry that is there, too, as [`get_and_touch`](ExpiryMap::get_and_touch) does:
    /// its time to idle starts again. It is an option, and not a second name of each finishing
    /// call, so that a call reads as what it does: touch, or insert.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.entry(7).or_insert("Ada")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert_eq!(map.entry(7).touch().or_insert("Grace")?.into_value(), "Ada");
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(map.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn touch(self) -> Entry<'a, K, V, S, P, Reads<true>> {
        self.looking(Reads)
    }

    /// Changes an entry that is there, as [`ExpiryMap::update`] does, without a touch. The
    /// finishing call then returns the result of `change`, and clones no value. `change` does not
    /// get a value that is inserted: exactly one of both happens, unless the call fails.
    ///
    /// `change` runs [under a lock](ExpiryMap#user-code-under-a-lock). If it panics, the call
    /// panics, and what it has done to the value so far remains.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Updated};
    ///
    /// // At most three calls of an address in each minute.
    /// let calls = ExpiryMap::<&str, u32>::builder()
    ///     .time_to_live(Duration::from_secs(60))
    ///     .build(|_, _| ())?;
    /// let may_call = |address| {
    ///     let count = calls.entry(address).update(|count| {
    ///         *count += 1;
    ///         *count
    ///     });
    ///     Ok::<_, tourbillon::InsertRefusal>(match count.or_insert(1).map_err(|error| error.refusal)? {
    ///         Updated::Present(count) => count <= 3,
    ///         _ => true,
    ///     })
    /// };
    /// let answers = [may_call("::1")?, may_call("::1")?, may_call("::1")?, may_call("::1")?];
    /// assert_eq!(answers, [true, true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "and_modify")]
    #[inline]
    pub fn update<F, R>(self, change: F) -> Entry<'a, K, V, S, P, Changes<F, false>>
    where
        F: FnOnce(&mut V) -> R,
    {
        self.looking(Changes(Some(change)))
    }

    /// Touches and changes an entry that is there, as [`ExpiryMap::touch_with`] does, under one
    /// lock. The finishing call then returns the answer of the touch and the result of `change`,
    /// and clones no value. Use it for something that may come back after its entry has expired,
    /// such as a device.
    ///
    /// Otherwise it is like [`update`](Self::update). If `change` panics, the entry keeps its
    /// deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Updated};
    ///
    /// # let stepped = ExpiryMap::<u64, u32>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let devices = stepped.map();
    /// let hear_from = |device| devices.entry(device).touch_with(|messages| *messages += 1).or_insert(1);
    /// assert!(hear_from(7)?.is_inserted()); // a new device, or one that comes back
    /// match hear_from(7)? {
    ///     Updated::Present((touch, ())) => assert!(touch.is_alive()),
    ///     _ => println!("a new device, or one that comes back"),
    /// }
    /// assert_eq!(devices.get(&7), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn touch_with<F, R>(self, change: F) -> Entry<'a, K, V, S, P, Changes<F, true>>
    where
        F: FnOnce(&mut V) -> R,
    {
        self.looking(Changes(Some(change)))
    }

    #[inline]
    fn looking<L>(self, look: L) -> Entry<'a, K, V, S, P, L> {
        Entry {
            map: self.map,
            key: self.key,
            times: self.times,
            place: self.place,
            look,
        }
    }
}

impl<K, V, S: MapHasher, P, L> fmt::Debug for Entry<'_, K, V, S, P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}
