//! The numbers of the queues.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{MemoryState, is_live};
use crate::store::{MOST_COUNTED, QueueCounts, StoreTime};

impl MemoryState {
    pub(in crate::memory) fn counts(&self, now: StoreTime) -> Vec<QueueCounts> {
        const MINUTE: Duration = Duration::from_secs(60);
        let mut counts: BTreeMap<&str, QueueCounts> = BTreeMap::new();
        for (name, queue) in &self.queues {
            for row in queue.rows.values() {
                let held = row
                    .claim
                    .is_some_and(|hold| is_live(&self.nodes, hold.epoch));
                if row.cancelled && !held {
                    continue;
                }
                let counts = counts.entry(name).or_default();
                if held {
                    counts.running += 1;
                    continue;
                }
                let due = row.due.into();
                counts.oldest = Some(counts.oldest.map_or(due, |oldest| oldest.min(due)));
                counts.overdue += u64::from(row.due <= now);
                counts.waiting += u64::from(row.due > now);
                let within = |span| u64::from(row.due > now && row.due <= now + span);
                counts.within_minute += within(MINUTE);
                counts.within_ten_minutes += within(10 * MINUTE);
            }
        }
        for letter in self.letters.values() {
            counts.entry(&letter.queue).or_default().dead += 1;
        }
        for queue in &self.paused {
            counts.entry(queue).or_default().paused = true;
        }
        let named = counts.into_iter().map(|(queue, counts)| QueueCounts {
            queue: queue.to_owned(),
            waiting: counts.waiting.min(MOST_COUNTED),
            within_minute: counts.within_minute.min(MOST_COUNTED),
            within_ten_minutes: counts.within_ten_minutes.min(MOST_COUNTED),
            overdue: counts.overdue.min(MOST_COUNTED),
            running: counts.running.min(MOST_COUNTED),
            dead: counts.dead.min(MOST_COUNTED),
            ..counts
        });
        named.collect()
    }
}
