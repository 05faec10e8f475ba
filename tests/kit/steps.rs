//! Stepped schedulers keyed by number, and the times of their runs in ticks.

use std::time::Duration;

use tourbillon::test_util::Stepped;
use tourbillon::{Handle, Scheduler, Time};

/// The default tick.
pub const T: Duration = Duration::from_millis(1);

/// The seeds that tests try. A seed decides how shards and workers interleave.
pub const SEEDS: std::ops::Range<u64> = 0..4;

/// A stepped scheduler with default options.
pub fn stepped(seed: u64) -> Stepped<u64> {
    Scheduler::<u64>::builder().build_stepped(seed).unwrap()
}

/// Carries out a test with a stepped scheduler of each seed. A failure names its seed.
pub fn for_each_seed(test: impl Fn(&Stepped<u64>, &Handle<u64>)) {
    for seed in SEEDS {
        let scheduler = stepped(seed);
        let named = NamedSeed(seed);
        test(&scheduler, &scheduler.handle());
        drop(named);
    }
}

/// Tells its seed if the test panics.
struct NamedSeed(u64);

impl Drop for NamedSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed was {}", self.0);
        }
    }
}

/// A stepped scheduler with one stripe, so that all timers due in one tick are one batch.
pub fn narrow(seed: u64) -> Stepped<u64> {
    let builder = Scheduler::<u64>::builder().shards(1).stripes(1);
    builder.build_stepped(seed).unwrap()
}

/// Advances the clock. Returns the start of each run in ticks, with its key.
pub fn runs(scheduler: &Stepped<u64>, by: Duration) -> Vec<(u64, u64)> {
    let ticks = |time: Time| u64::try_from(u128::from(time.as_nanos()) / T.as_nanos()).unwrap();
    let fired = scheduler.advance(by);
    let fired = fired.iter().map(|fired| (ticks(fired.at), fired.key));
    fired.collect()
}
