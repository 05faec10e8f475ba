//! The wheel that keeps its own values.

use std::fmt;

use super::core::CoreWheel;
use super::filing::{self, Budget};
use super::full::FullError;
use super::slab::Slab;
use super::store::{Expired, Key, Node, Store};
use crate::tick::Tick;

/// Values that wait for their due tick. See the [module](super).
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Tick, Wheel};
///
/// let mut wheel = Wheel::new();
/// let tea = wheel.insert(Tick::new(180), "tea");
/// let egg = wheel.insert(Tick::new(300), "egg");
/// wheel.reschedule(tea, Tick::new(240));
/// wheel.remove(egg);
///
/// let mut ready = Vec::new();
/// let progress = wheel.advance(Tick::new(1_000), usize::MAX, |expired| ready.push(expired));
/// assert_eq!((progress.expired, progress.more), (1, false));
/// assert_eq!((ready[0].due, ready[0].value), (Tick::new(240), "tea"));
/// ```
#[doc(alias("timing_wheel", "heap"))]
pub struct Wheel<T> {
    core: CoreWheel,
    store: Store<T>,
}

/// How far [`Wheel::advance`] came.
///
/// # Examples
///
/// ```
/// use tourbillon::wheel::{Tick, Wheel};
///
/// let mut wheel = Wheel::new();
/// for n in 0..5 {
///     wheel.insert(Tick::new(10), n);
/// }
/// let mut batches = Vec::new();
/// loop {
///     let progress = wheel.advance(Tick::new(10), 2, drop);
///     batches.push(progress.expired);
///     if !progress.more {
///         break;
///     }
/// }
/// assert_eq!(batches, [2, 2, 1]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[must_use = "`more` says whether the budget ended before the work"]
pub struct Progress {
    /// How many values expired.
    pub expired: usize,
    /// Whether the budget was used up before all that is due had expired. Call again.
    pub more: bool,
}

impl<T> Wheel<T> {
    /// An empty wheel at [`Tick::ZERO`]. It allocates nothing yet.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let wheel = Wheel::<String>::new();
    /// assert_eq!(wheel.now(), Tick::ZERO);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Wheel::starting_at(Tick::ZERO)
    }

    /// An empty wheel at `start`, any tick there is.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::starting_at(Tick::new(1_000_000));
    /// wheel.insert(Tick::new(1_000_003), "soon");
    /// assert_eq!(wheel.next_wake(), Some(Tick::new(1_000_003)));
    /// ```
    #[must_use]
    pub fn starting_at(start: Tick) -> Self {
        Wheel::with_origin(start, 0)
    }

    /// An empty wheel at `start` whose slots of higher levels begin `origin` ticks earlier.
    ///
    /// Wheels of one origin cascade at the same ticks, multiples of 64, 4,096 and so on. Whoever
    /// drives many wheels gives each an origin of its own, any number, so that their cascades
    /// don't fall together. Nothing else depends on it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// // What is due at tick 100 waits on level 1, and moves down when its slot begins.
    /// let mut wheel = Wheel::new();
    /// wheel.insert(Tick::new(100), ());
    /// assert_eq!(wheel.next_wake(), Some(Tick::new(64)));
    ///
    /// let mut wheel = Wheel::with_origin(Tick::ZERO, 10);
    /// wheel.insert(Tick::new(100), ());
    /// assert_eq!(wheel.next_wake(), Some(Tick::new(54)));
    /// ```
    #[must_use]
    pub fn with_origin(start: Tick, origin: u64) -> Self {
        Wheel {
            core: CoreWheel::new(start, origin),
            store: Store::new(Slab::new()),
        }
    }

    /// Keeps `value` until `due`, and returns the key under which it can be reached until then.
    ///
    /// A due tick at or before [`now`](Wheel::now) expires with the next call of
    /// [`advance`](Wheel::advance), also one that does not move on. [`Tick::MAX`] is a tick like
    /// any other. The key may be dropped if nobody is going to remove or reschedule the value.
    ///
    /// # Panics
    ///
    /// If 2³² - 2 values are there already; [`try_insert`](Wheel::try_insert) hands the value back
    /// instead.
    ///
    /// # Complexity
    ///
    /// Constant, apart from the growth of a slot's buffer.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::starting_at(Tick::new(10));
    /// wheel.insert(Tick::new(3), "late already");
    /// let progress = wheel.advance(Tick::new(10), 1, |expired| assert_eq!(expired.due.get(), 3));
    /// assert_eq!(progress.expired, 1);
    /// ```
    pub fn insert(&mut self, due: Tick, value: T) -> Key {
        match self.try_insert(due, value) {
            Ok(key) => key,
            Err(_) => panic!("the wheel is full: it holds as many values as it has numbers for"),
        }
    }

    /// [`insert`](Wheel::insert) that does not panic.
    ///
    /// # Errors
    ///
    /// [`FullError`], with the value inside, if 2³² - 2 values are there already. (A place that has
    /// been used 2³² times counts as a value for ever.)
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.try_insert(Tick::new(3), "value")?;
    /// assert!(wheel.remove(key).is_some());
    /// # Ok::<_, tourbillon::wheel::FullError<&str>>(())
    /// ```
    pub fn try_insert(&mut self, due: Tick, value: T) -> Result<Key, FullError<T>> {
        let key = self.store.occupy(due, value).map_err(FullError)?;
        self.core.insert(key.id, due, &mut self.store);
        Ok(key)
    }

    /// Takes a value out before it expires; `None` if the key is stale.
    ///
    /// # Complexity
    ///
    /// Constant.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(3), "value");
    /// assert_eq!(wheel.remove(key), Some("value"));
    /// assert_eq!(wheel.remove(key), None);
    /// ```
    pub fn remove(&mut self, key: Key) -> Option<T> {
        self.store.filed(key)?;
        self.core.remove(key.id, &mut self.store);
        drop(self.core.take_spare());
        Some(self.store.vacate(key.id).value)
    }

    /// Makes a value due at another tick and returns the one before; `None` if the key is stale.
    ///
    /// # Complexity
    ///
    /// Constant. A later tick is only written down; when the old one comes, the value is found
    /// and moves on, which counts against the budget of that [`advance`](Wheel::advance). However
    /// often a value is rescheduled, it lies in one place.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(30), "session");
    /// assert_eq!(wheel.reschedule(key, Tick::new(50)), Some(Tick::new(30)));
    /// assert_eq!(wheel.advance(Tick::new(49), usize::MAX, drop).expired, 0);
    /// assert_eq!(wheel.advance(Tick::new(50), usize::MAX, drop).expired, 1);
    /// assert_eq!(wheel.reschedule(key, Tick::new(70)), None);
    /// ```
    pub fn reschedule(&mut self, key: Key, due: Tick) -> Option<Tick> {
        let filed = self.store.filed_mut(key)?;
        let before = filed.due;
        if self
            .core
            .filed_floor(filed.wheel_position)
            .is_some_and(|floor| due >= floor)
        {
            filed.due = due;
        } else {
            self.core.remove(key.id, &mut self.store);
            self.store.filed_mut(key)?.due = due;
            self.core.insert(key.id, due, &mut self.store);
        }
        Some(before)
    }

    /// The value under this key, unless the key is stale.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(3), "value");
    /// assert_eq!(wheel.get(key), Some(&"value"));
    /// ```
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        self.store.filed(key).map(|filed| &filed.value)
    }

    /// The value under this key, to be changed, unless the key is stale.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(3), 1);
    /// *wheel.get_mut(key).unwrap() += 1;
    /// assert_eq!(wheel.remove(key), Some(2));
    /// ```
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.store.filed_mut(key).map(|filed| &mut filed.value)
    }

    /// When the value under this key is due, unless the key is stale.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(3), "value");
    /// assert_eq!(wheel.due(key), Some(Tick::new(3)));
    /// ```
    #[must_use]
    pub fn due(&self, key: Key) -> Option<Tick> {
        self.store.filed(key).map(|filed| filed.due)
    }

    /// Turns the wheel to `now` and hands out what is due by then, as far as the budget goes.
    ///
    /// A value never expires before its due tick. With [`Progress::more`] nothing is lost and
    /// [`now`](Wheel::now) has come as far as the work: call again, with the same or a later tick.
    /// A tick before [`now`](Wheel::now) does nothing.
    ///
    /// `budget` bounds the values that expire or are found rescheduled, and once more the values
    /// that move to a lower level; so a call's time is bounded by it, whatever has accumulated. A
    /// budget of zero does nothing but say whether there is something to do; `usize::MAX` is no
    /// bound.
    ///
    /// The wheel can't be reached from the callback. What is to be armed again is collected there
    /// and inserted afterwards; if it is due at once, the next call hands it out, so that values
    /// which arm each other for now don't keep one call busy for ever.
    ///
    /// # Panics
    ///
    /// Only if the callback does. The value it was called with is gone; all others are still
    /// there and the next call goes on with them.
    ///
    /// # Ordering
    ///
    /// By due tick, if the budget is not used up; values due at the same tick come in no particular
    /// order. What a cascade that the budget cut off has not yet moved comes later. So does, in a
    /// jump over more than one whole turn of the top level, what lay beyond it.
    ///
    /// # Complexity
    ///
    /// In proportion to the values that expire or move, and the occupied slots on the way.
    /// Constant for an empty wheel.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// wheel.insert(Tick::new(5), "every five ticks");
    /// let mut rounds = 0;
    /// for now in 0..=20 {
    ///     let mut again = Vec::new();
    ///     while wheel.advance(Tick::new(now), 256, |expired| again.push(expired)).more {}
    ///     for expired in again {
    ///         rounds += 1;
    ///         wheel.insert(Tick::new(expired.due.get() + 5), expired.value);
    ///     }
    /// }
    /// assert_eq!(rounds, 4);
    /// ```
    pub fn advance(
        &mut self,
        now: Tick,
        budget: usize,
        mut expired: impl FnMut(Expired<T>),
    ) -> Progress {
        let mut left = Budget {
            expired: budget,
            allowed: usize::MAX,
            cascaded: budget,
        };
        let mut count = 0;
        let progress = self
            .core
            .advance(now, &mut left, &mut self.store, &mut |store, id| {
                count += 1;
                // The callback may panic: the place is free before it is called.
                expired(store.vacate(id));
            });
        drop(self.core.take_spare());
        Progress {
            expired: count,
            more: progress != filing::CoreProgress::Done,
        }
    }

    /// The earliest tick at which [`advance`](Wheel::advance) has something to do; `None` for an
    /// empty wheel.
    ///
    /// That is the due tick of the next value if it is less than 64 ticks away, mostly; else the
    /// tick at which values move to a lower level, and [`now`](Wheel::now) if work is left over. It
    /// is never later than the next due tick. It may be earlier than there is need if a value was
    /// removed or rescheduled; advancing to it then moves it on, so a loop that sleeps until it
    /// does not spin.
    ///
    /// # Complexity
    ///
    /// Constant: a look at six bitmaps.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// assert_eq!(wheel.next_wake(), None);
    /// wheel.insert(Tick::new(63), "on level 0");
    /// assert_eq!(wheel.next_wake(), Some(Tick::new(63)));
    /// ```
    #[must_use]
    pub fn next_wake(&self) -> Option<Tick> {
        self.core.next_wake()
    }

    /// The tick the wheel has come to: that of the last [`advance`](Wheel::advance), or an earlier
    /// one if work was left over.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// wheel.insert(Tick::new(3), 'a');
    /// wheel.insert(Tick::new(4), 'b');
    /// assert!(wheel.advance(Tick::new(9), 1, drop).more);
    /// assert_eq!(wheel.now(), Tick::new(3));
    /// assert!(!wheel.advance(Tick::new(9), 1, drop).more);
    /// assert_eq!(wheel.now(), Tick::new(9));
    /// ```
    #[must_use]
    pub fn now(&self) -> Tick {
        self.core.now()
    }

    /// How many values are waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// wheel.insert(Tick::new(3), 'a');
    /// assert_eq!(wheel.len(), 1);
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.len()
    }

    /// Whether no value is waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::Wheel;
    ///
    /// assert!(Wheel::<u8>::new().is_empty());
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.core.is_empty()
    }

    /// All waiting values with their keys and due ticks, in no particular order.
    ///
    /// # Complexity
    ///
    /// A full walk takes time in proportion to the most values that were ever there at once.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon::wheel::{Tick, Wheel};
    ///
    /// let mut wheel = Wheel::new();
    /// let key = wheel.insert(Tick::new(3), 'a');
    /// assert!(wheel.iter().eq([(key, Tick::new(3), &'a')]));
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (Key, Tick, &T)> {
        self.store
            .nodes
            .iter()
            .zip(0..)
            .filter_map(|(node, id)| match node {
                Node::Filed(filed) => {
                    let key = Key {
                        id,
                        generation: filed.generation,
                    };
                    Some((key, filed.due, &filed.value))
                }
                Node::Free { .. } => None,
            })
    }
}

// A wheel goes wherever its values may go.
const _: () = {
    const fn goes_to_threads<T: Send + Sync>() {}
    goes_to_threads::<Wheel<u8>>();
    goes_to_threads::<Key>();
};

impl<T> Default for Wheel<T> {
    fn default() -> Self {
        Wheel::new()
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("now", &self.now())
            .field("len", &self.len())
            .field("next_wake", &self.next_wake())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
