//! When a timer is to be due, as the caller says it.

use std::time::Duration;

use super::time::StoreTime;

/// A due time, as the caller gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DueAt {
    /// After this span, from the moment at which the store reads its clock.
    After(Duration),
    /// At this time. One that has passed is due at once.
    At(StoreTime),
}

impl DueAt {
    /// Returns the due time of a call that reads the store's clock at `now`. It is never in the
    /// past.
    #[must_use]
    pub fn due(self, now: StoreTime) -> StoreTime {
        match self {
            DueAt::After(span) => (now + span).min(StoreTime::LATEST),
            DueAt::At(time) => time.max(now).min(StoreTime::LATEST),
        }
    }
}
