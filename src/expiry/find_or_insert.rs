//! The calls that find the entry of a key, or insert one.
//!
//! Each of them first looks for the entry. If there is none, it makes the value without a lock, and
//! inserts it if the key is still absent. If another thread was faster, the call finds that entry
//! and drops its own value.

use std::convert::Infallible;
use std::hash::Hash;

use super::entry::{Change, Changes, Entry, Placement, Reads, Times};
use super::{
    EntryError, ExpiryMap, Found, InsertError, InsertRefusal, Inserted, MapHasher, Updated,
};

/// The outcome of [`make_and_put`].
enum FoundOrPut<T, M, V> {
    Found(T),
    Put { kept: M, inserted: Inserted<V> },
}

/// Inserts by `put` the value that `make` returns, since nothing was found. If another thread was
/// faster, returns what `find` finds. `make` also returns something to keep besides the value.
/// `find` is not called again after it has found something.
fn make_and_put<K, V, T, M, E>(
    mut key: K,
    mut find: impl FnMut(&K) -> Option<T>,
    make: impl FnOnce() -> Result<(V, M), E>,
    put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
) -> Result<FoundOrPut<T, M, V>, EntryError<K, V, E>> {
    // Made once and without a lock, even if the loop repeats.
    let (mut value, kept) = make().map_err(EntryError::Make)?;
    loop {
        let error = match put(key, value) {
            Ok(inserted) => return Ok(FoundOrPut::Put { kept, inserted }),
            Err(error) => error,
        };
        if error.refusal != InsertRefusal::Occupied {
            return Err(EntryError::Insert(error));
        }
        if let Some(found) = find(&error.key) {
            return Ok(FoundOrPut::Found(found));
        }
        // The entry has gone again in between.
        (key, value) = (error.key, error.value);
    }
}

/// Returns the only error that is left if the value can always be made.
fn insertion_error<K, V>(error: EntryError<K, V, Infallible>) -> InsertError<K, V> {
    match error {
        EntryError::Make(never) => match never {},
        EntryError::Insert(error) => error,
        EntryError::Recursive(_) | EntryError::Closed | EntryError::TimedOut => {
            unreachable!("only calls that wait return this")
        }
    }
}

impl<K, V, S, P, const TOUCHES: bool> Entry<'_, K, V, S, P, Reads<TOUCHES>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Returns a clone of the value that is there. If there is none, inserts `value` and returns a
    /// clone of it. A `value` that is not needed is dropped;
    /// [`insert_if_absent`](Self::insert_if_absent) gives it back.
    ///
    /// # Errors
    ///
    /// The error contains key and value: the map is [full](InsertRefusal::Full) or
    /// [closed](InsertRefusal::Closed), or the [group](Self::group) is full. An entry that is there
    /// is found in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Found};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// assert!(map.entry(7).or_insert("Ada")?.is_inserted());
    /// assert_eq!(map.entry(7).or_insert("Grace")?, Found::Present("Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_insert(self, value: V) -> Result<Found<V>, InsertError<K, V>>
    where
        V: Clone,
        P: Placement<K, V, S>,
    {
        self.or_insert_with(|| value)
    }

    /// Returns a clone of the value that is there. If there is none, inserts the value that `make`
    /// returns, and returns a clone of it. If two calls do this at the same time, both may call
    /// `make`, and both return the inserted value. If `make` is costly, see
    /// [`or_compute`](Self::or_compute).
    ///
    /// `make` runs without a lock and may call the map, also for the same key. If it panics,
    /// nothing has changed. If another thread inserts an entry meanwhile, that entry is found, and
    /// the value is dropped. The value's `Clone` runs
    /// [under a lock](ExpiryMap#user-code-under-a-lock) if the entry was there.
    ///
    /// # Errors
    ///
    /// As for [`or_insert`](Self::or_insert).
    ///
    /// # Complexity
    ///
    /// As for [`get`](ExpiryMap::get) or [`touch_with`](ExpiryMap::touch_with) if there is an
    /// entry. If there is none, that of [`insert`](ExpiryMap::insert) comes on top, and one clone.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// let first = map.entry(7).or_insert_with(|| "Ada")?;
    /// let second = map.entry(7).or_insert_with(|| unreachable!("there is an entry"))?;
    /// assert_eq!((first.into_value(), second.into_value()), ("Ada", "Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_insert_with(self, make: impl FnOnce() -> V) -> Result<Found<V>, InsertError<K, V>>
    where
        V: Clone,
        P: Placement<K, V, S>,
    {
        match self.map.read::<TOUCHES>(&self.key, self.times) {
            Some(value) => Ok(Found::Present(value)),
            None => self.insert_made(|| Ok(make())).map_err(insertion_error),
        }
    }

    /// Like [`or_insert_with`](Self::or_insert_with), with a `make` that may fail. Then nothing is
    /// inserted, and nothing has changed.
    ///
    /// # Errors
    ///
    /// [`Make`](EntryError::Make) contains the error of `make`, and
    /// [`Insert`](EntryError::Insert) that of the insertion, with key and value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<&str, u16>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// let port = |text: &'static str| map.entry(text).or_try_insert_with(|| text.parse());
    /// assert_eq!(port("8080")?.into_value(), 8080);
    /// assert!(port("http").is_err());
    /// assert!(!map.contains("http"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_try_insert_with<E>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, EntryError<K, V, E>>
    where
        V: Clone,
        P: Placement<K, V, S>,
    {
        match self.map.read::<TOUCHES>(&self.key, self.times) {
            Some(value) => Ok(Found::Present(value)),
            None => self.insert_made(make),
        }
    }

    // Not inlined, so that a call that finds the entry has nothing to do with it.
    #[inline(never)]
    fn insert_made<E>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, EntryError<K, V, E>>
    where
        V: Clone,
        P: Placement<K, V, S>,
    {
        let Entry {
            map, times, place, ..
        } = self;
        map.put_made(
            self.key,
            |key| map.read::<TOUCHES>(key, times),
            make,
            |key, value| place.put(map, key, value, times, true),
        )
    }
}

impl<K, V, S, P, F, T, const TOUCHES: bool> Entry<'_, K, V, S, P, Changes<F, TOUCHES>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
    Changes<F, TOUCHES>: Change<K, V, S, Found = T>,
{
    /// Changes the entry that is there, or inserts `value`, which is dropped if it is not needed.
    /// What is found is the result of [`update`](Entry::update), or the answer of the touch and the
    /// result of [`touch_with`](Entry::touch_with).
    ///
    /// # Errors
    ///
    /// The error contains key and value: the map is [full](InsertRefusal::Full) or
    /// [closed](InsertRefusal::Closed), or the [group](Entry::group) is full. An entry that is
    /// there is changed in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, u32>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let visits = stepped.map();
    /// visits.entry(7).update(|count| *count += 1).or_insert(1)?;
    /// visits.entry(7).update(|count| *count += 1).or_insert(1)?;
    /// assert_eq!(visits.get(&7), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_insert(self, value: V) -> Result<Updated<T, V>, InsertError<K, V>>
    where
        P: Placement<K, V, S>,
    {
        self.or_insert_with(|| value)
    }

    /// Changes the entry that is there, or inserts the value that `make` returns.
    ///
    /// `make` runs without a lock and may call the map, also for the same key. If it panics,
    /// nothing has changed. If another thread inserts an entry meanwhile, that entry is changed,
    /// and the value is dropped.
    ///
    /// # Errors
    ///
    /// As for [`or_insert`](Self::or_insert).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, Vec<&str>>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let carts = stepped.map();
    /// let put = |visitor, book| carts.entry(visitor).touch_with(|cart| cart.push(book)).or_insert_with(|| vec![book]);
    /// assert!(put(7, "Emma")?.is_inserted());
    /// assert!(!put(7, "Ulysses")?.is_inserted());
    /// assert_eq!(carts.get(&7).unwrap(), ["Emma", "Ulysses"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_insert_with(
        mut self,
        make: impl FnOnce() -> V,
    ) -> Result<Updated<T, V>, InsertError<K, V>>
    where
        P: Placement<K, V, S>,
    {
        match self.look.change_in(self.map, &self.key, self.times) {
            Some(found) => Ok(Updated::Present(found)),
            None => self.insert_made(|| Ok(make())).map_err(insertion_error),
        }
    }

    /// Like [`or_insert_with`](Self::or_insert_with), with a `make` that may fail. Then nothing is
    /// inserted, and nothing has changed.
    ///
    /// # Errors
    ///
    /// [`Make`](EntryError::Make) contains the error of `make`, and
    /// [`Insert`](EntryError::Insert) that of the insertion, with key and value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    /// let append = |more| map.entry(7).update(|text| text.push('!')).or_try_insert_with(|| name(more));
    /// assert!(append(b"\xff").is_err());
    /// assert!(append(b"hello").is_ok());
    /// assert!(append(b"\xff").is_ok()); // there is an entry, so nothing is made
    /// assert_eq!(map.get(&7).as_deref(), Some("hello!"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn or_try_insert_with<E>(
        mut self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Updated<T, V>, EntryError<K, V, E>>
    where
        P: Placement<K, V, S>,
    {
        match self.look.change_in(self.map, &self.key, self.times) {
            Some(found) => Ok(Updated::Present(found)),
            None => self.insert_made(make),
        }
    }

    // Not inlined, so that a call that finds the entry has nothing to do with it.
    #[inline(never)]
    fn insert_made<E>(
        self,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Updated<T, V>, EntryError<K, V, E>>
    where
        P: Placement<K, V, S>,
    {
        let Entry {
            map,
            key,
            times,
            place,
            mut look,
        } = self;
        let answer = make_and_put(
            key,
            |key| look.change_in(map, key, times),
            || Ok((make()?, ())),
            |key, value| place.put(map, key, value, times, true),
        )?;
        Ok(match answer {
            FoundOrPut::Found(found) => Updated::Present(found),
            FoundOrPut::Put { inserted, .. } => Updated::Inserted {
                deadline: inserted.deadline,
                replaced: inserted.replaced,
            },
        })
    }
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
    S: MapHasher,
{
    /// Returns a clone of the value of `key`, and touches the entry if `TOUCHES`.
    #[inline]
    pub(super) fn read<const TOUCHES: bool>(&self, key: &K, times: Times) -> Option<V> {
        match times.now {
            _ if !TOUCHES => self.get(key),
            None => self.get_and_touch(key),
            Some(now) => self.touch_with_at(key, now, |value| value.clone()).1,
        }
    }

    /// Inserts by `put` what `make` returns, since `read` has found nothing.
    pub(super) fn put_made<E>(
        &self,
        key: K,
        read: impl FnMut(&K) -> Option<V>,
        make: impl FnOnce() -> Result<V, E>,
        put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
    ) -> Result<Found<V>, EntryError<K, V, E>> {
        // Cloned without a lock, before the insertion. The map keeps the value that was made.
        let make = || {
            let made = make()?;
            let kept = made.clone();
            Ok((made, kept))
        };
        let answer = make_and_put(key, read, make, put)?;
        Ok(match answer {
            FoundOrPut::Found(value) => Found::Present(value),
            FoundOrPut::Put { kept, inserted } => Found::Inserted {
                value: kept,
                deadline: inserted.deadline,
                replaced: inserted.replaced,
            },
        })
    }
}
