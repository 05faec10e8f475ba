//! The timers of one queue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::row::Row;
use crate::store::StoreTime;
use crate::sync::Arc;

/// The timers of one queue.
#[derive(Default)]
pub(super) struct QueueRow {
    pub(super) rows: BTreeMap<Arc<str>, Row>,
    /// The order in which nodes poll them. It has exactly one entry for each row.
    order: BTreeSet<(u16, StoreTime, Arc<str>)>,
}

impl QueueRow {
    pub(super) fn put(&mut self, key: &str, row: Row) {
        let key = match self.rows.get_key_value(key) {
            Some((key, old)) => {
                let key = Arc::clone(key);
                self.order.remove(&(old.shard, old.due, Arc::clone(&key)));
                key
            }
            None => Arc::from(key),
        };
        self.order.insert((row.shard, row.due, Arc::clone(&key)));
        self.rows.insert(key, row);
    }

    pub(super) fn delete(&mut self, key: &str) {
        if let Some((key, row)) = self.rows.remove_entry(key) {
            self.order.remove(&(row.shard, row.due, key));
        }
    }

    /// The timers of a shard that are due at `from` or later and before `until`, in order.
    pub(super) fn due(
        &self,
        shard: u16,
        from: StoreTime,
        until: StoreTime,
    ) -> impl Iterator<Item = (&Arc<str>, &Row)> {
        // The empty key is less than all others. A range that ends before it begins would panic.
        let entry = |due| (shard, due, Arc::from(""));
        let bounds = (
            Bound::Included(entry(from)),
            Bound::Excluded(entry(until.max(from))),
        );
        let bounds = (from < until).then_some(bounds);
        bounds
            .into_iter()
            .flat_map(|bounds| self.order.range(bounds))
            .filter_map(|(_, _, key)| self.rows.get_key_value(key))
    }
}
