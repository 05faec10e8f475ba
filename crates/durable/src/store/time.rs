//! Time as the stores keep it: microseconds of the wall clock.
//!
//! The store's clock alone decides what is due. The clocks of the machines that use it only decide
//! when they ask.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sync::Arc;
use crate::sync::atomic::{AtomicI64, Ordering};

/// A point in time by the store's clock, in microseconds since 1970 (UTC). Users meet a
/// [`SystemTime`] in its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StoreTime(i64);

/// The end of the year 9999, the last one that all stores and formats can show.
const LATEST: i64 = 253_402_300_799_999_999;

impl StoreTime {
    /// The latest time that a timer can be due at: the end of the year 9999.
    pub const LATEST: StoreTime = StoreTime(LATEST);

    /// Returns the time with this number of microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        StoreTime(micros)
    }

    /// Returns the number of microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the time that is earlier by `span`. At the least possible time it saturates.
    #[must_use]
    pub fn back_by(self, span: Duration) -> StoreTime {
        StoreTime(self.0.saturating_sub(micros(span)))
    }
}

/// A span in whole microseconds, rounded up, so that nothing is due early.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

impl std::ops::Add<Duration> for StoreTime {
    type Output = StoreTime;

    /// Rounds the span up to whole microseconds, and saturates.
    fn add(self, span: Duration) -> StoreTime {
        StoreTime(self.0.saturating_add(micros(span)))
    }
}

impl From<SystemTime> for StoreTime {
    /// Rounds up to whole microseconds, so that nothing is due early, and saturates.
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => StoreTime(micros(after)),
            Err(before) => {
                let before = before.duration().as_micros();
                StoreTime(i64::try_from(before).map_or(i64::MIN, |before| -before))
            }
        }
    }
}

impl From<StoreTime> for SystemTime {
    fn from(time: StoreTime) -> Self {
        let span = Duration::from_micros(time.0.unsigned_abs());
        let moved = match time.0 {
            0.. => UNIX_EPOCH.checked_add(span),
            _ => UNIX_EPOCH.checked_sub(span),
        };
        // A system whose time ends earlier than ours: nothing better than its epoch can be said.
        moved.unwrap_or(UNIX_EPOCH)
    }
}

/// The wall clock of a store that lives in this process, or in a file of this machine.
///
/// It is the system's clock, or one that a test moves.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use tourbillon_durable::WallClock;
///
/// let clock = WallClock::manual(UNIX_EPOCH);
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), UNIX_EPOCH + Duration::from_secs(60));
/// ```
#[derive(Clone)]
pub struct WallClock(Source);

#[derive(Clone)]
enum Source {
    System,
    Manual(Arc<AtomicI64>),
}

impl WallClock {
    /// The system's clock. It may be set forward or back at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::UNIX_EPOCH;
    /// use tourbillon_durable::WallClock;
    ///
    /// let clock = WallClock::system();
    /// clock.set(UNIX_EPOCH); // moves manual clocks alone
    /// assert!(clock.now() > UNIX_EPOCH);
    /// ```
    #[must_use]
    pub fn system() -> Self {
        WallClock(Source::System)
    }

    /// A clock that stands still until it is moved. Its clones show the same time. It keeps
    /// microseconds, rounded up.
    #[must_use]
    pub fn manual(start: SystemTime) -> Self {
        let start = StoreTime::from(start);
        WallClock(Source::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.store_time().into()
    }

    /// Returns the time as a store keeps it.
    pub(crate) fn store_time(&self) -> StoreTime {
        match &self.0 {
            Source::System => StoreTime::from(SystemTime::now()),
            // Acquire: pairs with the stores in `set` and `advance`, so that who sees a time also
            // sees what was done before the clock was moved.
            Source::Manual(time) => StoreTime(time.load(Ordering::Acquire)),
        }
    }

    /// Sets a manual clock for a test.
    #[cfg(feature = "test-util")]
    pub(crate) fn set_for_test(&self, now: StoreTime) -> Result<(), super::StoreError> {
        match &self.0 {
            Source::System => Err(super::StoreError::Refused(super::NO_CLOCK.to_owned())),
            Source::Manual(shared) => {
                // Release: pairs with the load in `store_time`.
                shared.store(now.0, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Sets a manual clock, forward or back. The system's clock is left alone.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, UNIX_EPOCH};
    /// use tourbillon_durable::WallClock;
    ///
    /// let clock = WallClock::manual(UNIX_EPOCH + Duration::from_secs(60));
    /// clock.set(UNIX_EPOCH); // as a time server may do
    /// assert_eq!(clock.now(), UNIX_EPOCH);
    /// ```
    pub fn set(&self, time: SystemTime) {
        if let Source::Manual(shared) = &self.0 {
            // Release: pairs with the load in `store_time`.
            shared.store(StoreTime::from(time).0, Ordering::Release);
        }
    }

    /// Moves a manual clock forward, at most to the latest time that it can show. The system's clock
    /// is left alone.
    pub fn advance(&self, span: Duration) {
        if let Source::Manual(shared) = &self.0 {
            let later = |now: i64| Some(now.saturating_add(micros(span)));
            // AcqRel, Acquire: pairs with the load in `store_time`. It never fails.
            let _ = shared.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
        }
    }
}

impl Default for WallClock {
    fn default() -> Self {
        WallClock::system()
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Source::System => "system",
            Source::Manual(_) => "manual",
        };
        f.debug_struct("WallClock")
            .field("kind", &kind)
            .field("now", &self.now())
            .finish()
    }
}
