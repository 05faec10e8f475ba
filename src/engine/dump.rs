//! What an engine has pending, and what runs. Made while the engine may be in trouble, so it only
//! tries the locks of stripes.

use std::cell::Cell;
use std::fmt::{self, Debug, Write};
use std::time::Duration;

use super::{Engine, ExecutorKind, Frontend};
use crate::executor::Headcount;
use crate::health::{Dump, RunDump, ShardDump};
use crate::job::catch_panic;
use crate::shard::{EntryId, RunInProgress, Stripe};
use crate::sync::{Parker, park_for};

/// The greatest number of slots that are visited under one hold of a lock: some ten microseconds.
const VISITED_PER_HOLD: u32 = 4_096;

/// The pause before a lock is tried again.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of such pauses in one dump.
const PAUSES: u32 = 20;

const SECOND: Duration = Duration::from_secs(1);

/// The greatest number of tasks that are named.
const NAMED: usize = 100;

/// The greatest number of characters of a key.
const KEY_CHARS: usize = 100;

impl<F: Frontend> Engine<F> {
    /// Makes a dump. `show` writes a key; it is called without a lock.
    pub(crate) fn dump(&self, kind: &str, show: fn(&F::Key) -> String) -> Dump {
        let title = match self.name() {
            Some(name) => format!("{kind} {name}"),
            None => kind.to_owned(),
        };
        let health = self.health();
        let mut dump = Dump {
            title,
            health,
            workers: 0,
            idle_workers: 0,
            blocked_workers: None,
            waiting: 0,
            shards: Vec::new(),
            running: Vec::new(),
            running_total: 0,
        };
        if self.is_forked() {
            return dump;
        }
        let headcount = Headcount::of(self.pool());
        dump.workers = headcount.workers;
        dump.idle_workers = headcount.idle;
        dump.blocked_workers = headcount.blocked;
        dump.waiting = match &self.executor_kind {
            ExecutorKind::Foreign(_) => self.pool().queued_hint(),
            ExecutorKind::Pool | ExecutorKind::Inline => self.shards().unclaimed(),
        };
        let pauses = Cell::new(PAUSES);
        let mut runs = Vec::new();
        for shard in 0..self.shards().shards() {
            dump.shards.push(self.dump_shard(shard, &pauses, &mut runs));
        }
        dump.running_total = runs.len();
        // The longest first, and only these are named.
        runs.sort_unstable_by_key(|(_, run)| run.started);
        runs.truncate(NAMED);
        let now = self.now();
        for (stripe, run) in runs {
            dump.running.push(RunDump {
                key: self.key_of(stripe, run.id, &pauses, show),
                since: now.since(run.started),
                cancelled: run.cancelled,
            });
        }
        dump
    }

    fn dump_shard(
        &self,
        shard: usize,
        pauses: &Cell<u32>,
        runs: &mut Vec<(usize, RunInProgress)>,
    ) -> ShardDump {
        let now = self.now();
        let mut counts = ShardDump {
            stepped: now.since(self.signs[shard].stepped()),
            ..ShardDump::default()
        };
        for number in self.stripes_of(Some(shard)) {
            let mut next = Some(0);
            while let Some(from) = next {
                let visited = self.try_stripe(number, pauses, |stripe| {
                    if from == 0 {
                        runs.extend(stripe.runs_in_progress().map(|run| (number, run)));
                    }
                    stripe.visit_pending(from, VISITED_PER_HOLD, |deadline| {
                        let left = deadline.remaining(now);
                        let count = match left {
                            Duration::ZERO => &mut counts.overdue,
                            left if left <= SECOND => &mut counts.within_second,
                            left if left <= SECOND * 60 => &mut counts.within_minute,
                            left if left <= SECOND * 3_600 => &mut counts.within_hour,
                            _ => &mut counts.later,
                        };
                        *count += 1;
                        counts.pending += 1;
                    })
                });
                next = visited.unwrap_or_else(|| {
                    counts.busy += 1;
                    None
                });
            }
        }
        counts
    }

    /// Returns the key of a run as text.
    fn key_of(
        &self,
        stripe: usize,
        id: EntryId,
        pauses: &Cell<u32>,
        show: fn(&F::Key) -> String,
    ) -> String {
        // A `Debug` may take a lock or call the scheduler, so it gets a clone without the lock. Both
        // are user code, and so is the drop.
        let key = self.try_stripe(stripe, pauses, |stripe| {
            let key = stripe.key_of_run(id)?;
            Some(catch_panic(|| key.clone()))
        });
        match key {
            None => "(busy)".to_owned(),
            Some(None) => "(has ended)".to_owned(),
            Some(Some(Err(_))) => "(its Clone panics)".to_owned(),
            Some(Some(Ok(key))) => {
                let shown = catch_panic(move || show(&key));
                shown.unwrap_or_else(|_| "(its Debug panics)".to_owned())
            }
        }
    }

    /// Runs `look` on a stripe if its lock is free, perhaps after pauses.
    fn try_stripe<R>(
        &self,
        number: usize,
        pauses: &Cell<u32>,
        look: impl FnOnce(&Stripe<F::Key, F::Payload>) -> R,
    ) -> Option<R> {
        let mut look = Some(look);
        loop {
            let looked = self
                .shards()
                .try_peek(number, |stripe| look.take().map(|look| look(stripe)));
            match looked {
                Some(looked) => return looked,
                None if pauses.get() == 0 => return None,
                None => {
                    pauses.set(pauses.get() - 1);
                    park_for(&Parker::new(), PAUSE);
                }
            }
        }
    }
}

/// Writes a key by its `Debug`, cut off.
pub(crate) fn show_key<K: Debug>(key: &K) -> String {
    let mut cut = CutOff {
        text: String::new(),
        left: KEY_CHARS,
    };
    // An error says that it was cut off, or that the key has given up.
    if write!(cut, "{key:?}").is_err() {
        cut.text.push_str("..");
    }
    cut.text
}

/// Takes text on one line up to its bound.
struct CutOff {
    text: String,
    left: usize,
}

impl Write for CutOff {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            if self.left == 0 {
                return Err(fmt::Error);
            }
            self.left -= 1;
            // `Debug` escapes these in strings, but a type may write what it wants.
            self.text.push(if char.is_control() { ' ' } else { char });
        }
        Ok(())
    }
}
