//! A producer that starts 10,000 timers a second, for the workloads that ask how late those are
//! while something else is going on.

use std::thread;
use std::time::{Duration, Instant};

use super::between;
use crate::recorder::Stamp;
use crate::rng::Rng;
use crate::systems::Keyed;
use crate::wire::Request;

const STEP: Duration = Duration::from_millis(1);
const PER_STEP: u32 = 10;

/// What the producer does.
pub(super) struct Paced {
    /// The delays, evenly between these.
    pub(super) from: Duration,
    pub(super) to: Duration,
    /// So many tasks, evenly spread, are long.
    pub(super) long: u32,
}

impl Paced {
    /// Starts timers for as many milliseconds as the request says; returns how many they were.
    ///
    /// A timer is due its delay after the moment at which the producer should have started it. So
    /// what a call takes, because it waits for a lock that a cascade holds, is lateness, also of the
    /// timers that have to wait behind it. Only when the producer itself slept too long the plan
    /// moves on by that.
    pub(super) fn produce<S: Keyed>(&self, system: &S, request: &Request) -> u64 {
        let total = request.amount as u32 * PER_STEP;
        let gap = total / self.long.max(1);
        let mut rng = Rng::new(request.seed);
        system.on_thread(|| {
            let mut planned = Instant::now();
            let mut number = 0;
            while number < total {
                if let Some(left) = planned.checked_duration_since(Instant::now()) {
                    thread::sleep(left);
                    let woke = Instant::now();
                    if woke > planned + STEP {
                        planned = woke;
                    }
                }
                for _ in 0..PER_STEP {
                    let due = planned + between(&mut rng, self.from, self.to);
                    let long = self.long > 0 && number % gap == gap / 2;
                    let key = Stamp { due, long, number }.encode();
                    system.start(key, due.saturating_duration_since(Instant::now()));
                    number += 1;
                }
                planned += STEP;
            }
        });
        u64::from(total)
    }
}
