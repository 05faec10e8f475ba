//! A producer that starts timers at a given rate, for the workloads that ask how late those are
//! while something else is going on.

use std::thread;
use std::time::{Duration, Instant};

use super::kit::between;
use crate::recorder::{Stamp, fired_so_far, wait_until_fired};
use crate::system::Keyed;
use crate::wire::Request;
use crate::workload::Metric;
use chaos::random::Random;

/// How late such timers are.
pub(super) const LATENESS: &[Metric] = &[
    Metric::less("p50", "ms"),
    Metric::less("p99", "ms"),
    Metric::less("p99.9", "ms"),
    Metric::longest("max", "ms"),
];

/// What the producer does.
pub(super) struct Paced {
    /// The delays, evenly between these.
    pub(super) from: Duration,
    pub(super) to: Duration,
    /// So many tasks, evenly spread, are long.
    pub(super) long: u32,
    /// So many are started in each step.
    pub(super) per_step: u32,
    /// Whole milliseconds.
    pub(super) step: Duration,
}

impl Paced {
    /// 10,000 a second, due 10 to 60 ms later, none of them long.
    pub(super) const TYPICAL: Self = Paced {
        from: Duration::from_millis(10),
        to: Duration::from_millis(60),
        long: 0,
        per_step: 10,
        step: Duration::from_millis(1),
    };

    /// Starts timers until the time of the request is over, and waits until all have fired, for
    /// `limit` at most. Returns when it began, and how many they were.
    pub(super) fn run<S: Keyed>(
        &self,
        system: &S,
        request: &Request,
        limit: Duration,
    ) -> (Instant, u64) {
        let fired_before = fired_so_far();
        let began = Instant::now();
        let count = self.produce(system, request);
        wait_until_fired(fired_before + count, limit);
        (began, count)
    }

    /// Starts timers for as many milliseconds as the request says; returns how many they were.
    ///
    /// A timer is due its delay after the moment at which the producer should have started it. So
    /// what a call takes, because it waits for a lock that a cascade holds, is lateness, also of
    /// the timers that have to wait behind it. Only when the producer itself slept too long the
    /// plan moves on by that.
    fn produce<S: Keyed>(&self, system: &S, request: &Request) -> u64 {
        let steps = request.amount as u32 / self.step.as_millis() as u32;
        let total = steps * self.per_step;
        let gap = total / self.long.max(1);
        let mut rng = Random::new(request.seed);
        system.on_thread(|| {
            let mut planned = Instant::now();
            let mut number = 0;
            while number < total {
                if let Some(left) = planned.checked_duration_since(Instant::now()) {
                    thread::sleep(left);
                    let woke = Instant::now();
                    if woke > planned + self.step {
                        planned = woke;
                    }
                }
                for _ in 0..self.per_step {
                    let due = planned + between(&mut rng, self.from, self.to);
                    let long = self.long > 0 && number % gap == gap / 2;
                    let key = Stamp { due, long, number }.encode();
                    system.start(key, due.saturating_duration_since(Instant::now()));
                    number += 1;
                }
                planned += self.step;
            }
        });
        u64::from(total)
    }
}
