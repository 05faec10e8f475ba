//! The calls that move the deadline of an entry.

use std::borrow::Borrow;
use std::hash::Hash;

use super::content::{MapEntry, QuickTimes};
use super::grouping::kind::MapKind;
use super::tag::Tag;
use super::{Expiry, ExpiryMap, MapHasher, Touch};
use crate::clock::{Clock, QuickReading, Reading};
use crate::shard::{JudgedMove, KeyHash, Lookup, PutOff, Shards, Stripe, UsualCall};
use crate::tick::Time;

impl<K, V, S> ExpiryMap<K, V, S>
where
    K: Hash + Eq + Clone + Send + 'static,
    V: Send + 'static,
    S: MapHasher,
{
    /// Restarts the time to idle of `key`.
    ///
    /// # Complexity
    ///
    /// Constant: one probe and one write. The wheel is not touched until the old deadline comes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Touch};
    ///
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(Duration::from_secs(60))
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(matches!(map.touch(&7), Touch::Touched { .. }));
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(map.contains(&7));
    /// assert_eq!(map.touch(&8), Touch::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("refresh", "renew", "heartbeat", "keep_alive"))]
    // Inlined, as usual calls are. If more has to be done, a function of its own does it.
    #[inline(always)]
    pub fn touch<Q>(&self, key: &Q) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some((hash, mut call)) = self.usual(key) else {
            return self.touch_unusual(key);
        };
        let put_off = call.stripe().put_usual_off(
            hash,
            key,
            || self.engine.clock().quick_reading(),
            |session, reading| Some((session.after_touch(reading)?, reading.low())),
            |session, now| session.tag.touch(now),
        );
        let Some(put_off) = put_off else {
            return self.touch_after(call, key);
        };
        call.stripe().count_lookup(Lookup::Touched);
        call.end();
        put_off.into()
    }

    /// Begins a usual call, unless it is known before the lock that it is not one, or the lock is
    /// not free.
    #[inline(always)]
    fn usual<Q>(&self, key: &Q) -> Option<(KeyHash, UsualMapCall<'_, K, V, S>)>
    where
        Q: Hash + ?Sized,
    {
        self.usual_in(self.engine.usual()?, key)
    }

    /// Begins a usual call in `shards`, whatever the clock is. A call that is given its moment
    /// needs no reading.
    #[inline(always)]
    fn usual_in<'a, Q>(
        &self,
        shards: &'a Shards<K, MapEntry<V, S::Tag>>,
        key: &Q,
    ) -> Option<(KeyHash, UsualMapCall<'a, K, V, S>)>
    where
        Q: Hash + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        Some((hash, UsualCall::lock(shards, stripe)?))
    }

    /// Ends a usual call that has changed nothing, and touches the entry in the general way.
    #[cold]
    #[inline(never)]
    fn touch_after<Q>(&self, call: UsualMapCall<'_, K, V, S>, key: &Q) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        call.end();
        self.touch_unusual(key)
    }

    /// Touches an entry in all cases.
    #[cold]
    #[inline(never)]
    fn touch_unusual<Q>(&self, key: &Q) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.with(stripe, move |stripe| {
            let read = || with_moment(clock.reading());
            let judged = stripe.put_key_off(hash, key, read, |session, reading| {
                session.touched(reading, clock)
            });
            touched(stripe, judged)
        })
    }

    /// Calls [`touch`](Self::touch) with the time to idle counted from `now`, a time of the [map's
    /// clock](Self::now) that the caller has read before. The call hardly ever reads the clock if
    /// the entry has no lifetime, a time to idle of at least a second, and a deadline that does not
    /// become earlier. Use it in an event loop that reads the clock once per iteration.
    ///
    /// An old `now` does not move a deadline back. Then the answer is
    /// [`Unchanged`](Touch::Unchanged). Whether a lifetime is over is always decided by the clock.
    /// A `now` that is ahead of the clock makes the entry live longer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon::{ExpiryMap, Touch};
    /// let idle = Duration::from_secs(60);
    /// let stepped = ExpiryMap::<u64, &str>::builder()
    ///     .time_to_idle(idle)
    ///     .build_stepped(1, |_, _| ())?;
    /// let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// let before = map.now();
    /// stepped.advance(Duration::from_secs(10));
    /// let now = map.now();
    /// assert_eq!(map.touch_at(&7, now), Touch::Touched { deadline: now + idle });
    /// assert_eq!(map.touch_at(&7, before), Touch::Unchanged { deadline: now + idle });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Inlined, as `touch` is.
    #[inline(always)]
    pub fn touch_at<Q>(&self, key: &Q, now: Time) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let Some(given) = QuickReading::exact(now) else {
            return self.touch_unusual_at(key, now);
        };
        let Some((hash, mut call)) = self.usual_in(self.engine.shards(), key) else {
            return self.touch_unusual_at(key, now);
        };
        let put_off = call.stripe().put_usual_off(
            hash,
            key,
            || Some(given),
            |session, given| {
                let deadline = session.after_touch_at(given, self.engine.clock())?;
                Some((deadline, given.low()))
            },
            |session, now| session.tag.touch(now),
        );
        let Some(put_off) = put_off else {
            return self.touch_after_at(call, key, now);
        };
        call.stripe().count_lookup(Lookup::Touched);
        call.end();
        put_off.into()
    }

    /// Ends a usual call that has changed nothing, and touches the entry in the general way.
    #[cold]
    #[inline(never)]
    fn touch_after_at<Q>(&self, call: UsualMapCall<'_, K, V, S>, key: &Q, now: Time) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        call.end();
        self.touch_unusual_at(key, now)
    }

    /// Touches an entry in all cases.
    #[cold]
    #[inline(never)]
    fn touch_unusual_at<Q>(&self, key: &Q, now: Time) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        // `Time::MAX` means never. As a moment it would make every entry due.
        let now = now.min(LAST_MOMENT);
        self.engine.with(stripe, |stripe| {
            let judged = stripe.put_key_off(
                hash,
                key,
                // The clock decides what is due, since `now` may be ahead of it.
                || (clock.now(), ()),
                |session, ()| session.touched_at(now, clock),
            );
            touched(stripe, judged)
        })
    }

    /// Touches the entry, and calls `change` with its value, under one lock. Returns the answer of
    /// [`touch`](Self::touch), and the result of `change`.
    ///
    /// The result is `Some` exactly if the answer [is alive](Touch::is_alive). So a caller that was
    /// told that the entry lives on has read and changed that entry. With a `touch` and an
    /// [`update`](Self::update), the entry can end between the two calls.
    ///
    /// `change` runs [under a lock](Self#user-code-under-a-lock), before the deadline moves. If it
    /// panics, the call panics. Then the entry keeps its deadline, and what `change` has done to
    /// the value so far remains.
    ///
    /// # Complexity
    ///
    /// As for [`touch`](Self::touch), plus the time of `change`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{ExpiryMap, Touch};
    ///
    /// struct Session {
    ///     user: &'static str,
    ///     requests: u32,
    /// }
    ///
    /// # let stepped = ExpiryMap::<u64, Session>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// # let session = Session { user: "Ada", requests: 0 };
    /// # assert!(map.insert(7, session).is_ok());
    /// // The session of a request lives on, and says whose it is.
    /// let (touch, user) = map.touch_with(&7, |session| {
    ///     session.requests += 1;
    ///     session.user
    /// });
    /// assert!(touch.is_alive());
    /// assert_eq!(user, Some("Ada"));
    ///
    /// let (touch, user) = map.touch_with(&8, |session| session.user);
    /// assert_eq!((touch, user), (Touch::NotFound, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn touch_with<Q, R>(&self, key: &Q, change: impl FnOnce(&mut V) -> R) -> (Touch, Option<R>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.with(stripe, |stripe| {
            let mut result = None;
            let read = || with_moment(clock.reading());
            let judged = stripe.put_key_off(hash, key, read, |session, reading| {
                let deadline = session.touched(reading, clock)?;
                // Called before the touch: if it panics, the entry keeps its deadline.
                result = Some(change(&mut session.value));
                Some(deadline)
            });
            (touched(stripe, judged), result)
        })
    }

    /// Calls [`touch_with`](Self::touch_with) with the time to idle counted from `now`, as
    /// [`touch_at`](Self::touch_at) does.
    pub(super) fn touch_with_at<R>(
        &self,
        key: &K,
        now: Time,
        change: impl FnOnce(&mut V) -> R,
    ) -> (Touch, Option<R>) {
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        let now = now.min(LAST_MOMENT);
        self.engine.with(stripe, |stripe| {
            let mut result = None;
            // The clock decides what is due, as in `touch_unusual_at`.
            let read = || (clock.now(), ());
            let judged = stripe.put_key_off(hash, key, read, |session, ()| {
                let deadline = session.touched_at(now, clock)?;
                result = Some(change(&mut session.value));
                Some(deadline)
            });
            (touched(stripe, judged), result)
        })
    }

    /// Returns a clone of the value and touches the entry, as [`touch_with`](Self::touch_with)
    /// does. The value's `Clone` runs under a lock.
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
    /// map.insert(7, "Ada")?;
    /// stepped.advance(Duration::from_secs(59));
    /// assert_eq!(map.get_and_touch(&7), Some("Ada"));
    /// stepped.advance(Duration::from_secs(59));
    /// assert!(map.contains(&7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn get_and_touch<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Clone,
    {
        // Cloned before the touch: if `Clone` panics, nothing has changed.
        self.touch_with(key, |value| value.clone()).1
    }

    /// Gives `key` another [`Expiry`]. Its time to idle and its lifetime start now.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tourbillon::{Expiry, ExpiryMap};
    ///
    /// # let stepped = ExpiryMap::<u64, &str>::builder()
    /// #     .time_to_idle(Duration::from_secs(60))
    /// #     .build_stepped(1, |_, _| ())?;
    /// # let map = stepped.map();
    /// map.insert(7, "Ada")?;
    /// // "Remember me": a day instead of the map's own times.
    /// let day = Duration::from_secs(24 * 3600);
    /// assert!(map.set_expiry(&7, Expiry::NEVER.time_to_live(day)).is_alive());
    /// assert_eq!(map.deadline(&7), Some(map.now() + day));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Inlined, as `touch` is. If `expiry` is a constant, its checks are made by the compiler.
    #[inline(always)]
    pub fn set_expiry<Q>(&self, key: &Q, expiry: Expiry) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        // The functions for the other cases get the parts in registers. An `Expiry` would be passed
        // in memory.
        let (idle, lifetime, jitter) = expiry.parts();
        let Some(times) = expiry.quick() else {
            return self.set_unusual(key, idle, lifetime, jitter);
        };
        let Some((hash, mut call)) = self.usual(key) else {
            return self.set_unusual(key, idle, lifetime, jitter);
        };
        let put_off = call.stripe().put_usual_off(
            hash,
            key,
            || Some(QuickTimes::of(times, self.engine.clock().quick_reading()?)),
            |session, times| Some((times.deadline_of(session)?, times)),
            |session, times| times.restart(session),
        );
        let Some(put_off) = put_off else {
            return self.set_after(call, key, idle, lifetime, jitter);
        };
        call.end();
        put_off.into()
    }

    /// Ends a usual call that has changed nothing, and sets the expiry in the general way.
    #[cold]
    #[inline(never)]
    fn set_after<Q>(
        &self,
        call: UsualMapCall<'_, K, V, S>,
        key: &Q,
        idle: u64,
        lifetime: u64,
        jitter: u8,
    ) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        call.end();
        self.set_unusual(key, idle, lifetime, jitter)
    }

    /// Gives another expiry to an entry in all cases.
    #[cold]
    #[inline(never)]
    fn set_unusual<Q>(&self, key: &Q, idle: u64, lifetime: u64, jitter: u8) -> Touch
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let expiry = Expiry::of_parts(idle, lifetime, jitter);
        let (stripe, hash) = self.hash_of(key);
        let clock = self.engine.clock();
        self.engine.with(stripe, move |stripe| {
            let read = || {
                let (times, reading) = expiry.drawn_for(hash, clock.reading(), clock);
                (reading.low(), (reading, times))
            };
            let judged = stripe.move_key(hash, key, read, |session, (reading, times)| {
                (session.lives(reading, clock)).then(|| session.restart(times, reading))
            });
            answer(judged)
        })
    }
}

/// A usual call of a map.
type UsualMapCall<'a, K, V, S> = UsualCall<'a, K, MapEntry<V, <S as MapKind>::Tag>>;

/// The latest moment at which an entry can be touched.
const LAST_MOMENT: Time = Time::from_nanos(u64::MAX - 1);

/// Returns the moment of a reading, and the reading.
#[inline(always)]
fn with_moment(reading: Reading) -> (Time, Reading) {
    (reading.low(), reading)
}

impl From<PutOff> for Touch {
    #[inline(always)]
    fn from(PutOff { before, deadline }: PutOff) -> Self {
        if deadline == before {
            return Touch::Unchanged { deadline };
        }
        Touch::Touched { deadline }
    }
}

/// Touches the entry in `slot`.
#[inline]
pub(super) fn touch_slot<K, V, T: Tag>(
    stripe: &mut Stripe<K, MapEntry<V, T>>,
    slot: u32,
    reading: Reading,
    clock: &Clock,
) -> Touch {
    // The thread that read the clock first may get the lock last. The later deadline that was
    // reported by the other thread stands.
    let judged = stripe.put_off(slot, reading.low(), |session| {
        session.touched(reading, clock)
    });
    touched(stripe, judged)
}

/// Counts what a touch has found, and converts it.
#[inline(always)]
fn touched<K, V>(stripe: &Stripe<K, V>, judged: JudgedMove) -> Touch {
    // Apart, so that the usual case has no table of jumps on its way.
    if let JudgedMove::Moved(deadline) = judged {
        stripe.count_lookup(Lookup::Touched);
        return Touch::Touched { deadline };
    }
    stripe.count_lookup(match judged {
        JudgedMove::Stays(_) | JudgedMove::Moved(_) => Lookup::Touched,
        JudgedMove::NotFound | JudgedMove::Refused => Lookup::Missed,
    });
    answer(judged)
}

#[inline(always)]
fn answer(judged: JudgedMove) -> Touch {
    match judged {
        JudgedMove::Moved(deadline) => Touch::Touched { deadline },
        JudgedMove::Stays(deadline) => Touch::Unchanged { deadline },
        JudgedMove::Refused => Touch::Expired,
        JudgedMove::NotFound => Touch::NotFound,
    }
}
