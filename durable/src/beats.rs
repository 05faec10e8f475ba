//! What a process remembers of its nodes, to see that a database is older than it was: restored from a
//! backup, or emptied.
//!
//! A standby that takes over may lack the last moments, so a few beats that are missing are no sign. The
//! row of a node stays for a day after the node was declared gone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::store::{Epoch, StoreError};
use crate::sync::Mutex;
use crate::time::StoreTime;

/// This number of beats may be missing.
const MAY_MISS: i64 = 5;

/// How long the row of a node that is gone is kept at least.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// What to do, for all errors of this kind.
pub(crate) const REMEDY: &str =
    "stop all processes that use it, put the right one in its place, and start them again";

/// The last good beats of the nodes of a process.
#[derive(Debug, Default)]
pub(crate) struct Beats(Mutex<BTreeMap<Epoch, (i64, StoreTime)>>);

impl Beats {
    /// A beat was good, and this was its number.
    pub(crate) fn good(&self, epoch: Epoch, beat: i64, now: StoreTime) -> Result<(), StoreError> {
        let mut beats = self.0.lock();
        match beats.get(&epoch) {
            Some((last, _)) if beat + MAY_MISS < *last => Err(StoreError::Replaced(format!(
                "the beats of this node have gone from {last} back to {beat}: the database is older than \
                 it was, for instance restored from a backup; {REMEDY}"
            ))),
            last => {
                let most = last.map_or(beat, |(last, _)| beat.max(*last));
                beats.insert(epoch, (most, now));
                Ok(())
            }
        }
    }

    /// A node has no row any more.
    pub(crate) fn missing(&self, epoch: Epoch, now: StoreTime) -> Result<(), StoreError> {
        let mut beats = self.0.lock();
        match beats.get(&epoch) {
            Some((last, at)) if *last > MAY_MISS && now < *at + KEPT => {
                Err(StoreError::Replaced(format!(
                    "the row of this node is not there any more, after {last} beats: the database is older \
                     than it was, for instance restored from a backup, or was emptied; {REMEDY}"
                )))
            }
            _ => {
                beats.remove(&epoch);
                Ok(())
            }
        }
    }

    /// A node was declared gone, or has left.
    pub(crate) fn ended(&self, epoch: Epoch) {
        self.0.lock().remove(&epoch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Epoch = Epoch(7);
    const NOW: StoreTime = StoreTime::from_micros(1_790_000_000_000_000);

    fn after(beats: i64) -> Beats {
        let all = Beats::default();
        for beat in 1..=beats {
            all.good(ME, beat, NOW).expect("it goes up");
        }
        all
    }

    #[test]
    fn a_few_beats_that_are_missing_are_a_standby_and_more_are_an_older_database() {
        let beats = after(20);
        assert_eq!(beats.good(ME, 15, NOW), Ok(()));
        assert!(matches!(
            beats.good(ME, 9, NOW),
            Err(StoreError::Replaced(_))
        ));
        // It stays one.
        assert!(matches!(
            beats.good(ME, 9, NOW),
            Err(StoreError::Replaced(_))
        ));
        assert_eq!(beats.good(ME, 16, NOW), Ok(()));
        assert!(beats.good(ME, 10, NOW).is_err());
    }

    #[test]
    fn a_row_that_vanishes_within_a_day_is_an_older_database_unless_the_node_is_young() {
        assert_eq!(after(5).missing(ME, NOW), Ok(()));
        assert_eq!(after(0).missing(ME, NOW), Ok(()));
        assert!(matches!(
            after(6).missing(ME, NOW),
            Err(StoreError::Replaced(_))
        ));
        assert_eq!(after(6).missing(ME, NOW + KEPT), Ok(()));
        let beats = after(6);
        beats.ended(ME);
        assert_eq!(beats.missing(ME, NOW), Ok(()));
    }
}
