//! The results of calls. Every result is final: it says what has happened, not what may happen.

use std::fmt;

use crate::error::{FORKED, UNDER_LOCK};
use crate::shard::Refusal;
use crate::tick::Time;

/// The result of an insertion.
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
/// let inserted = map.insert(7, "Ada")?;
/// assert_eq!(inserted.deadline, map.now() + Duration::from_secs(60));
/// assert_eq!(inserted.replaced, None);
/// assert_eq!(map.insert(7, "Grace")?.replaced, Some("Ada"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Inserted<V> {
    /// When the entry expires unless it is touched; [`Time::MAX`] if never.
    pub deadline: Time,
    /// The value of the entry that was replaced, like the result of `HashMap::insert`. It is not
    /// delivered.
    pub replaced: Option<V>,
}

/// The result of [`Entry::or_insert`](crate::Entry::or_insert) and its siblings.
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
/// assert!(matches!(map.entry(7).or_insert_with(|| "Ada")?, Found::Inserted { .. }));
/// assert_eq!(map.entry(7).or_insert_with(|| "Grace")?, Found::Present("Ada"));
/// assert_eq!(map.entry(7).or_insert_with(|| "Grace")?.into_value(), "Ada");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Found<V> {
    /// A clone of the value that was there.
    Present(V),
    /// There was no value, and the one that was made has been inserted.
    Inserted {
        /// A clone of the inserted value.
        value: V,
        /// When the entry expires unless it is touched; [`Time::MAX`] if never.
        deadline: Time,
        /// The value of an entry whose lifetime was over and that had not been delivered yet. It is
        /// not delivered any more.
        replaced: Option<V>,
    },
}

impl<V> Found<V> {
    /// Returns whether an entry was inserted by this call.
    #[must_use]
    pub fn is_inserted(&self) -> bool {
        matches!(self, Found::Inserted { .. })
    }

    /// Returns the value under the key, found or inserted.
    pub fn into_value(self) -> V {
        match self {
            Found::Present(value) | Found::Inserted { value, .. } => value,
        }
    }
}

/// The result of a call that changes the entry of a key, or inserts one: one that begins with
/// [`Entry::update`](crate::Entry::update) or [`Entry::touch_with`](crate::Entry::touch_with).
///
/// `T` is what comes back of an entry that was there: after `update` the result `R` of the closure,
/// and after `touch_with` the pair `(Touch, R)`, with the answer of the touch.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{ExpiryMap, Updated};
///
/// # let stepped = ExpiryMap::<u64, &str>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// match map.entry(7).touch_with(|name| name.len()).or_insert("Ada")? {
///     Updated::Present((_touch, length)) => println!("known, a name of {length} bytes"),
///     _ => println!("new"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Updated<T, V> {
    /// There was an entry, and the closure has got its value.
    Present(T),
    /// There was no entry, and the value that was given or made has been inserted.
    Inserted {
        /// When the entry expires unless it is touched; [`Time::MAX`] if never.
        deadline: Time,
        /// The value of an entry whose lifetime was over and that had not been delivered yet. It is
        /// not delivered any more.
        replaced: Option<V>,
    },
}

impl<T, V> Updated<T, V> {
    /// Returns whether an entry was inserted.
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
    /// assert!(map.entry(7).update(|count| *count += 1).or_insert(1)?.is_inserted());
    /// assert!(!map.entry(7).update(|count| *count += 1).or_insert(1)?.is_inserted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_inserted(&self) -> bool {
        matches!(self, Updated::Inserted { .. })
    }
}

/// The result of a touch.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{ExpiryMap, Touch};
///
/// # let stepped = ExpiryMap::<u64, &str>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// match map.touch(&7) {
///     Touch::Touched { deadline } => println!("lives until {deadline:?}"),
///     Touch::Unchanged { .. } => println!("lives on, but no longer than before"),
///     _ => println!("the session is over: sign in again"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Touch {
    /// The entry lives on, at least until this deadline.
    Touched {
        /// The new deadline.
        deadline: Time,
    },
    /// There is an entry, and the touch does not move its deadline. Either the deadline is the end
    /// of the lifetime already, or another touch came at the same moment or a moment later, or the
    /// entry never expires.
    Unchanged {
        /// The deadline.
        deadline: Time,
    },
    /// It is too late: the delivery has begun and not ended, or the lifetime is over.
    Expired,
    /// Nothing is known of the key.
    NotFound,
}

impl Touch {
    /// Returns whether there is an entry.
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
    /// map.insert(7, "Ada")?;
    /// assert!(map.touch(&7).is_alive());
    /// assert!(!map.touch(&8).is_alive());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_alive(self) -> bool {
        matches!(self, Touch::Touched { .. } | Touch::Unchanged { .. })
    }
}

/// The result of `remove`.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{ExpiryMap, Removed};
///
/// # let stepped = ExpiryMap::<u64, &str>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// map.insert(7, "Ada")?;
/// assert!(matches!(map.remove(&7), Removed::Removed { value: "Ada", .. }));
/// assert_eq!(map.remove(&7), Removed::NotFound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Removed<V> {
    /// The entry is out of the map and is not delivered.
    Removed {
        /// The value.
        value: V,
        /// When the entry would have expired.
        deadline: Time,
    },
    /// It is too late: the delivery has begun and not ended.
    Expired,
    /// Nothing is known of the key.
    NotFound,
}

impl<V> Removed<V> {
    /// Returns the value, if there was an entry.
    pub fn value(self) -> Option<V> {
        match self {
            Removed::Removed { value, .. } => Some(value),
            Removed::Expired | Removed::NotFound => None,
        }
    }
}

/// An insertion that was refused. It changed nothing, and the error contains key and value.
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
/// map.insert(7, "Ada")?;
/// let error = map.entry(7).insert_if_absent("Grace").unwrap_err();
/// assert_eq!((error.key, error.value), (7, "Grace"));
/// println!("not inserted: {error}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InsertError<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// The reason.
    pub refusal: InsertRefusal,
}

/// The reason why an insertion was refused. It is an error by itself, too, for callers that do not
/// need the content of an [`InsertError`]; see [`InsertError::into_reason`].
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, InsertRefusal};
///
/// let map = ExpiryMap::<u64, &str>::builder().max_pending(1).build(|_, _| ())?;
/// map.insert(7, "Ada")?;
/// let error = map.insert(8, "Grace").unwrap_err();
/// assert_eq!(error.refusal, InsertRefusal::Full);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InsertRefusal {
    /// There are `max_pending` entries, or a stripe holds four billion. The error passes when one
    /// of the entries ends.
    Full,
    /// The map is closing or closed. The error is permanent.
    Closed,
    /// There is an entry for the key. Only `insert_if_absent` returns this.
    Occupied,
    /// The group has `max_per_group` entries, and full groups refuse. Only calls that insert in a
    /// group return this. The error passes when one of the entries ends.
    GroupFull,
    /// The calling thread is panicking and holds a lock of this crate. This happens only in panic
    /// hooks and in drops, see [panic hooks](crate#panic-hooks). The error passes when the panic
    /// has left the call that took the lock.
    UnderLock,
    /// This process is a forked copy of the one that built the map; see
    /// [forks](crate::guide::shutdown#forks). The error is permanent.
    Forked,
}

impl InsertRefusal {
    pub(super) fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Closed => InsertRefusal::Closed,
            Refusal::Occupied => InsertRefusal::Occupied,
            Refusal::NoPermit | Refusal::NoSlot => InsertRefusal::Full,
            Refusal::UnderLock => InsertRefusal::UnderLock,
            Refusal::Forked => InsertRefusal::Forked,
            Refusal::Closing => unreachable!("no call of a map waits for a run"),
        }
    }
}

impl<K, V> InsertError<K, V> {
    /// Drops key and value, and keeps the reason as an error.
    ///
    /// The reason can be passed on by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>`.
    /// This error itself can't if the key or the value is not `Sync`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::error::Error;
    /// use tourbillon::{ExpiryMap, InsertError};
    ///
    /// type Hits = ExpiryMap<u64, Cell<u32>>;
    ///
    /// fn begin(hits: &Hits, id: u64) -> Result<(), Box<dyn Error + Send + Sync>> {
    ///     hits.entry(id).insert_if_absent(Cell::new(1)).map_err(InsertError::into_reason)?;
    ///     Ok(())
    /// }
    /// let hits = Hits::builder().build(|_, _| ())?;
    /// assert!(begin(&hits, 7).is_ok());
    /// let refused = begin(&hits, 7).unwrap_err();
    /// assert_eq!(refused.to_string(), "there is an entry for the key already");
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub fn into_reason(self) -> InsertRefusal {
        self.refusal
    }
}

impl<K, V> fmt::Display for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl fmt::Display for InsertRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InsertRefusal::Full => {
                "there are as many entries as max_pending allows; try again when one has ended"
            }
            InsertRefusal::Closed => "the map is closed",
            InsertRefusal::Occupied => "there is an entry for the key already",
            InsertRefusal::UnderLock => UNDER_LOCK,
            InsertRefusal::Forked => FORKED,
            InsertRefusal::GroupFull => {
                "the group has as many entries as max_per_group allows; try again when one has ended"
            }
        })
    }
}

impl<K, V> fmt::Debug for InsertError<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertError")
            .field("refusal", &self.refusal)
            .finish_non_exhaustive()
    }
}

impl<K, V> std::error::Error for InsertError<K, V> {}

impl std::error::Error for InsertRefusal {}

/// An `or_try_insert_with` or `or_compute` that failed: there was no value, and this call has
/// inserted none.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// use tourbillon::{ExpiryMap, EntryError};
///
/// # let stepped = ExpiryMap::<&str, u16>::builder()
/// #     .time_to_idle(Duration::from_secs(60))
/// #     .build_stepped(1, |_, _| ())?;
/// # let map = stepped.map();
/// match map.entry("http").or_try_insert_with(|| "http".parse()) {
///     Ok(port) => println!("port {}", port.into_value()),
///     Err(EntryError::Make(error)) => println!("not a port: {error}"),
///     Err(error) => println!("try again later: {error}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryError<K, V, E> {
    /// The value could not be made. This is the error of the caller's own code.
    Make(E),
    /// The value was made, and its insertion was refused. The error contains key and value.
    Insert(InsertError<K, V>),
    /// The computation of the value has asked for the same value, and would wait for itself. Only
    /// `or_compute` returns this.
    ///
    /// The call from inside the computation gets `None`. If the computation then fails, its own
    /// caller gets the error of the computation.
    Recursive(Option<E>),
    /// The map is shut down, and another caller still computes the value. Only `or_compute` returns
    /// this.
    Closed,
    /// Another caller still computed the value when the limit of this wait had passed. That
    /// computation goes on. Only `or_compute` with a limit returns this.
    TimedOut,
}

/// What a caller gets that has waited for a computation: the value that is in the map, or a value
/// that was refused there.
pub(super) type Computed<V> = Result<V, (V, InsertRefusal)>;

impl<K, V, E> EntryError<K, V, E> {
    /// Drops key and value of an insertion that was refused, and keeps the reason as an error.
    ///
    /// The reason can be passed on by `?` as `anyhow::Error` or `Box<dyn Error + Send + Sync>` if
    /// the error of the caller's own code can. This error itself can't if the key or the value is
    /// not `Sync`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::cell::Cell;
    /// use std::error::Error;
    /// use tourbillon::{ExpiryMap, EntryError};
    ///
    /// type Ports = ExpiryMap<String, Cell<u16>>;
    ///
    /// fn port(ports: &Ports, text: &str) -> Result<u16, Box<dyn Error + Send + Sync>> {
    ///     let parse = || text.parse().map(Cell::new);
    ///     let found = ports.entry(text.to_owned()).or_try_insert_with(parse);
    ///     Ok(found.map_err(EntryError::into_reason)?.into_value().get())
    /// }
    /// let ports = Ports::builder().build(|_, _| ())?;
    /// assert_eq!(port(&ports, "443").unwrap(), 443);
    /// assert!(port(&ports, "http").is_err());
    /// # Ok::<(), Box<dyn Error>>(())
    /// ```
    #[must_use]
    pub fn into_reason(self) -> EntryError<(), (), E> {
        match self {
            EntryError::Make(error) => EntryError::Make(error),
            EntryError::Insert(InsertError { refusal, .. }) => EntryError::Insert(InsertError {
                key: (),
                value: (),
                refusal,
            }),
            EntryError::Recursive(error) => EntryError::Recursive(error),
            EntryError::Closed => EntryError::Closed,
            EntryError::TimedOut => EntryError::TimedOut,
        }
    }
}

impl<K, V, E> fmt::Display for EntryError<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntryError::Make(_) => "the value could not be made, so nothing was inserted",
            EntryError::Insert(_) => "the value was made, and could not be inserted",
            EntryError::Closed => {
                "the map was shut down while another caller computed the value; no value will come"
            }
            EntryError::TimedOut => {
                "another caller still computed the value when the limit had passed"
            }
            EntryError::Recursive(_) => {
                "the computation of the value of a key asked for that value, and would wait for \
                 itself; compute it from something else"
            }
        })
    }
}

impl<K, V, E: fmt::Debug> fmt::Debug for EntryError<K, V, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Make(error) => f.debug_tuple("Make").field(error).finish(),
            EntryError::Insert(error) => f.debug_tuple("Insert").field(error).finish(),
            EntryError::Recursive(error) => f.debug_tuple("Recursive").field(error).finish(),
            EntryError::Closed => f.write_str("Closed"),
            EntryError::TimedOut => f.write_str("TimedOut"),
        }
    }
}

impl<K: 'static, V: 'static, E> std::error::Error for EntryError<K, V, E>
where
    E: std::error::Error + 'static,
{
    /// Returns the error of the caller's own code, or that of the insertion.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EntryError::Make(error) => Some(error),
            EntryError::Insert(error) => Some(error),
            EntryError::Recursive(error) => error.as_ref().map(|error| error as _),
            EntryError::Closed | EntryError::TimedOut => None,
        }
    }
}

/// The result of the shutdown of a map.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Shutdown};
///
/// let map = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
/// map.insert(7, "Ada")?;
/// let report = map.shutdown(Shutdown::HandBack).wait()?;
/// assert_eq!((report.handed_back.len(), report.still_running), (1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpiryReport<K, V> {
    /// The entries that had not been delivered, in no particular order.
    pub handed_back: Vec<ExpiryHandedBack<K, V>>,
    /// The number of threads that were still in user code when the limit had passed: in a handler,
    /// or in code that follows one (the drop of a key, the handler of a panic). These threads end
    /// when that code ends.
    pub still_running: usize,
    /// Whether another call had begun the shutdown. That call gets the report.
    pub already_closed: bool,
}

/// An entry that did not expire.
///
/// # Examples
///
/// ```
/// use tourbillon::{ExpiryMap, Shutdown};
///
/// let map = ExpiryMap::<u64, &str>::builder().build(|_, _| ())?;
/// map.insert(7, "Ada")?;
/// let report = map.shutdown(Shutdown::HandBack).wait()?;
/// for entry in report.handed_back {
///     println!("save {}: {}", entry.key, entry.value);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ExpiryHandedBack<K, V> {
    /// The key of the entry.
    pub key: K,
    /// The value of the entry.
    pub value: V,
    /// When the entry would have expired.
    pub deadline: Time,
}

impl<K, V> Default for ExpiryReport<K, V> {
    /// Makes the report of every call except the first.
    fn default() -> Self {
        ExpiryReport {
            handed_back: Vec::new(),
            still_running: 0,
            already_closed: true,
        }
    }
}

impl<K, V> fmt::Debug for ExpiryReport<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpiryReport")
            .field("handed_back", &self.handed_back.len())
            .field("still_running", &self.still_running)
            .field("already_closed", &self.already_closed)
            .finish()
    }
}
