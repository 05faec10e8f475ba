//! The calls that find the entry of a key, or insert one.
//!
//! Each of them first looks for the entry. If there is none, it makes the value without a lock, and
//! inserts it if the key is still absent. If another thread was faster, the call finds that entry
//! and drops its own value.

use std::borrow::Borrow;
use std::convert::Infallible;
use std::hash::{BuildHasher, Hash};

use super::{
    ExpiryMap, Found, GetOrInsertError, GroupedBy, InsertError, InsertRefusal, Inserted, MapHasher,
    TouchOrInsert,
};

/// The outcome of [`find_or_put`].
enum FoundOrPut<T, M, V> {
    Found(T),
    Put { kept: M, inserted: Inserted<V> },
}

/// Returns what `find` finds. If it finds nothing, inserts by `put` the value that `make` returns.
/// `make` also returns something to keep besides the value. It is called once at most, and `find`
/// is not called again after it has found something.
fn find_or_put<K, V, T, M, E>(
    mut key: K,
    mut find: impl FnMut(&K) -> Option<T>,
    make: impl FnOnce() -> Result<(V, M), E>,
    put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
) -> Result<FoundOrPut<T, M, V>, GetOrInsertError<K, V, E>> {
    if let Some(found) = find(&key) {
        return Ok(FoundOrPut::Found(found));
    }
    // Made once and without a lock, even if the loop repeats.
    let (mut value, kept) = make().map_err(GetOrInsertError::Make)?;
    loop {
        let error = match put(key, value) {
            Ok(inserted) => return Ok(FoundOrPut::Put { kept, inserted }),
            Err(error) => error,
        };
        if error.refusal != InsertRefusal::Occupied {
            return Err(GetOrInsertError::Insert(error));
        }
        if let Some(found) = find(&error.key) {
            return Ok(FoundOrPut::Found(found));
        }
        // The entry has gone again in between.
        (key, value) = (error.key, error.value);
    }
}

/// Returns the only error that is left if the value can always be made.
fn insertion_error<K, V>(error: GetOrInsertError<K, V, Infallible>) -> InsertError<K, V> {
    match error {
        GetOrInsertError::Make(never) => match never {},
        GetOrInsertError::Insert(error) => error,
        GetOrInsertError::Recursive(_) | GetOrInsertError::Closed => {
            unreachable!("only calls that wait return this")
        }
    }
}

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Touches the entry of `key` and calls `change` with its value, as
    /// [`touch_with`](Self::touch_with) does. If there is no entry, inserts the value that `make`
    /// returns. Use it for something that may come back after its entry has expired, such as a
    /// device.
    ///
    /// Exactly one of both happens, unless the call fails. `change` does not get a value that was
    /// inserted. An entry whose lifetime is over counts as absent: if it has not been delivered
    /// yet, it is replaced.
    ///
    /// `change` runs [under a lock](Self#user-code-under-a-lock). `make` runs without a lock and
    /// may call the map. If another thread inserts an entry meanwhile, that entry is touched, and
    /// the value is dropped.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    ///
    /// # Complexity
    ///
    /// As for [`touch`](Self::touch) if there is an entry; plus that of [`insert`](Self::insert) if
    /// there is none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, TouchOrInsert};
    ///
    /// # let stepped = ExpiryMap::<u64, u32>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let devices = stepped.map();
    /// let hear_from = |device| {
    ///     devices.touch_or_insert_with(
    ///         device,
    ///         |messages| {
    ///             *messages += 1;
    ///             *messages
    ///         },
    ///         || 1,
    ///     )
    /// };
    /// assert!(hear_from(7)?.is_inserted());
    /// match hear_from(7)? {
    ///     TouchOrInsert::Touched { result, .. } => assert_eq!(result, 2),
    ///     _ => println!("a new device, or one that comes back"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch_or_insert_with<R>(
        &self,
        key: K,
        change: impl FnOnce(&mut V) -> R,
        make: impl FnOnce() -> V,
    ) -> Result<TouchOrInsert<R, V>, InsertError<K, V>> {
        self.touch_or_put(key, change, make, |key, value| {
            self.insert_if_absent(key, value)
        })
    }

    /// Returns a clone of the value of `key`, without touching the entry. If there is none, inserts
    /// the value that `make` returns. If two calls do this at the same time, both may call `make`,
    /// and both return the inserted value.
    ///
    /// `make` runs without a lock and may call the map. If its value is not needed, it is dropped.
    /// The value's `Clone` runs under a lock if the entry was there.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
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
    /// let first = map.get_or_insert_with(7, || "Ada")?;
    /// let second = map.get_or_insert_with(7, || unreachable!("there is an entry"))?;
    /// assert_eq!((first.into_value(), second.into_value()), ("Ada", "Ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_insert_with(
        &self,
        key: K,
        make: impl FnOnce() -> V,
    ) -> Result<Found<V>, InsertError<K, V>>
    where
        V: Clone,
    {
        let put = |key, value| self.insert_if_absent(key, value);
        self.get_or_put(key, || Ok(make()), put)
            .map_err(insertion_error)
    }

    /// Like [`get_or_insert_with`](Self::get_or_insert_with), with a `make` that may fail. Then
    /// nothing is inserted, and nothing has changed. If `make` is costly, see
    /// [`get_or_compute`](Self::get_or_compute).
    ///
    /// # Errors
    ///
    /// [`Make`](GetOrInsertError::Make) contains the error of `make`, and
    /// [`Insert`](GetOrInsertError::Insert) that of the insertion, with key and value.
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
    /// let port = |text: &'static str| map.get_or_try_insert_with(text, || text.parse());
    /// assert_eq!(port("8080")?.into_value(), 8080);
    /// assert!(port("http").is_err());
    /// assert!(!map.contains("http"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_try_insert_with<E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        V: Clone,
    {
        let put = |key, value| self.insert_if_absent(key, value);
        self.get_or_put(key, make, put)
    }

    pub(super) fn get_or_put<E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
        put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        V: Clone,
    {
        // Cloned without a lock, before the insertion. The map keeps the value that was made.
        let make = || {
            let made = make()?;
            let kept = made.clone();
            Ok((made, kept))
        };
        let answer = find_or_put(key, |key| self.get(key), make, put)?;
        Ok(match answer {
            FoundOrPut::Found(value) => Found::Present(value),
            FoundOrPut::Put { kept, inserted } => Found::Inserted {
                value: kept,
                deadline: inserted.deadline,
                replaced: inserted.replaced,
            },
        })
    }

    fn touch_or_put<R>(
        &self,
        key: K,
        change: impl FnOnce(&mut V) -> R,
        make: impl FnOnce() -> V,
        put: impl Fn(K, V) -> Result<Inserted<V>, InsertError<K, V>>,
    ) -> Result<TouchOrInsert<R, V>, InsertError<K, V>> {
        let mut change = Some(change);
        let touch = |key: &K| {
            let (touch, result) = self.touch_with(key, |value| {
                let Some(change) = change.take() else {
                    unreachable!("a touch that finds an entry is the last one");
                };
                change(value)
            });
            Some((touch, result?))
        };
        let answer = find_or_put(key, touch, || Ok((make(), ())), put);
        Ok(match answer.map_err(insertion_error)? {
            FoundOrPut::Found((touch, result)) => TouchOrInsert::Touched { touch, result },
            FoundOrPut::Put { inserted, .. } => TouchOrInsert::Inserted {
                deadline: inserted.deadline,
                replaced: inserted.replaced,
            },
        })
    }
}

/// # Groups, if the key is absent
///
/// These calls exist on a [`GroupedExpiryMap`](crate::GroupedExpiryMap).
impl<K, V, G, S> ExpiryMap<K, V, GroupedBy<G, S>>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    G: Hash + Eq + Send + 'static,
{
    /// Like [`insert_in`](Self::insert_in), unless there is an entry for the key, in any group or
    /// in none. An entry whose lifetime is over does not count: if it has not been delivered yet,
    /// it is replaced.
    ///
    /// # Errors
    ///
    /// As for [`insert_in`](Self::insert_in), and [`Occupied`](InsertRefusal::Occupied). If there
    /// is an entry for the key, a full group does not matter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, InsertRefusal};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert_in_if_absent("ada", 1, "phone")?;
    /// let error = map.insert_in_if_absent("grace", 1, "laptop").unwrap_err();
    /// assert_eq!(error.refusal, InsertRefusal::Occupied);
    /// assert_eq!(map.group_of(&1).as_deref(), Some("ada"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_in_if_absent<Q>(
        &self,
        group: &Q,
        key: K,
        value: V,
    ) -> Result<Inserted<V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        self.put_in(group, key, value, self.expiry(), true)
    }

    /// Like [`touch_or_insert_with`](Self::touch_or_insert_with), with an insertion in a group. An
    /// entry that is there is touched, whatever group it is in, and stays in that group.
    ///
    /// # Errors
    ///
    /// As for [`insert_in`](Self::insert_in).
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
    /// let first = map.touch_or_insert_in("ada", 1, |_| (), || "phone")?;
    /// assert!(first.is_inserted());
    /// let second = map.touch_or_insert_in("ada", 1, |device| *device = "new phone", || "phone")?;
    /// assert!(!second.is_inserted());
    /// assert_eq!(map.group_entries("ada"), [(1, "new phone")]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch_or_insert_in<Q, R>(
        &self,
        group: &Q,
        key: K,
        change: impl FnOnce(&mut V) -> R,
        make: impl FnOnce() -> V,
    ) -> Result<TouchOrInsert<R, V>, InsertError<K, V>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
    {
        self.touch_or_put(key, change, make, |key, value| {
            self.insert_in_if_absent(group, key, value)
        })
    }

    /// Like [`get_or_try_insert_with`](Self::get_or_try_insert_with), with an insertion in a group.
    /// An entry that is there is found, whatever group it is in, and stays in that group. A `make`
    /// that can't fail returns `Ok::<_, Infallible>(value)`.
    ///
    /// # Errors
    ///
    /// [`Make`](GetOrInsertError::Make) contains the error of `make`, and
    /// [`Insert`](GetOrInsertError::Insert) that of [`insert_in`](Self::insert_in), with key and
    /// value.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::ExpiryMap;
    /// # let stepped = ExpiryMap::<u64, String>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .groups::<String>()
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// let name = |bytes: &[u8]| String::from_utf8(bytes.to_vec());
    /// let phone = map.get_or_try_insert_in("ada", 1, || name(b"phone"))?;
    /// assert_eq!(phone.into_value(), "phone");
    /// assert!(map.get_or_try_insert_in("ada", 2, || name(b"\xff")).is_err());
    /// assert_eq!(map.group_len("ada"), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_or_try_insert_in<Q, E>(
        &self,
        group: &Q,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Found<V>, GetOrInsertError<K, V, E>>
    where
        G: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = G> + ?Sized,
        V: Clone,
    {
        let put = |key, value| self.insert_in_if_absent(group, key, value);
        self.get_or_put(key, make, put)
    }
}
