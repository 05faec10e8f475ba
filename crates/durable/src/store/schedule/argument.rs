//! A schedule on its way from a call to a store: its first occurrence, and its meta.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::json;

use super::plan::{Calendar, store_time};
use super::{CronSchedule, Members, close};
use crate::store::{DueAt, Meta, StoreTime};

/// Why a schedule has no first occurrence: there are no data of its zone any more, or no date is
/// left before the year 10,000.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NoDate(pub(crate) String);

impl CronSchedule {
    /// The first occurrence after `now`, with the meta of the timer. Without `now` the timer is due at
    /// once, and the node that claims it reckons the first one.
    pub(crate) fn first(
        &self,
        now: Option<SystemTime>,
        meta: Option<&Meta>,
    ) -> Result<(DueAt, Meta), NoDate> {
        let calendar = Calendar::new(self.clone()).map_err(NoDate)?;
        let mut due = DueAt::After(Duration::ZERO);
        let mut schedule = self.members();
        if let Some(now) = now {
            let now = StoreTime::from(now);
            let after = Timestamp::from_microsecond(now.as_micros());
            let first = after.ok().and_then(|after| calendar.first_after(after));
            let first = first.ok_or_else(|| NoDate("it has no date that is left".to_owned()))?;
            schedule.insert("at".to_owned(), json!(first.to_string()));
            schedule.insert("offset".to_owned(), json!(calendar.offset(first)));
            due = store_time(first).into();
        }
        let others = meta.map_or_else(|| Ok(Members::new()), Meta::parse);
        // A meta that was checked is an object.
        Ok((due, close(others.unwrap_or_default(), schedule)))
    }
}
