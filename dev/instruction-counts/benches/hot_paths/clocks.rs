//! One reading of each clock by itself, and a touch that reads the fast one.
//!
//! The fast clock goes on while its path is counted. How often it takes an anchor is up to the
//! machine, so that count is shown and not judged.

use std::hint::black_box;
use std::time::{Duration, Instant};

use gungraun::prelude::*;
use tourbillon::{Clock, ExpiryMap, ManualClock};

use crate::{KEYS, STRIPES};

fn manual() -> Clock {
    Clock::manual(&ManualClock::new())
}

#[library_benchmark]
#[bench::manual(setup = manual)]
#[bench::system(setup = Clock::system)]
#[bench::boottime(setup = Clock::boottime)]
fn now(clock: Clock) -> Clock {
    for _ in KEYS {
        black_box(black_box(&clock).now());
    }
    clock
}

/// A map on the fast clock, which has measured its counter.
fn measured() -> ExpiryMap<u32, u64> {
    let map = ExpiryMap::builder()
        .shards(1)
        .stripes(STRIPES)
        .workers(1)
        .time_to_idle(Duration::from_secs(3_600))
        .clock(Clock::fast());
    let map = map.build(|_, _| ()).expect("the options are valid");
    for key in KEYS {
        map.insert(key, key.into()).expect("it is open");
    }
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        map.touch(&0);
    }
    map
}

#[library_benchmark(setup = measured)]
#[bench::per_call()]
fn touch_by_the_fast_clock_in_real_time(map: ExpiryMap<u32, u64>) -> ExpiryMap<u32, u64> {
    for key in KEYS {
        black_box(map.touch(&key));
    }
    map
}

library_benchmark_group!(
    name = clock,
    benchmarks = [now, touch_by_the_fast_clock_in_real_time]
);
