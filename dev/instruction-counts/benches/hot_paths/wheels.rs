//! The wheel alone.

use std::hint::black_box;

use gungraun::prelude::*;
use tourbillon::wheel::{Tick, Wheel};

use crate::{KEYS, delay};

/// A multiple of the span of level 2, so that the slots are those of tick 0.
const START: u64 = 1 << 18;

fn due(key: u32) -> Tick {
    Tick::new(START + delay(key).as_millis() as u64)
}

fn fill(wheel: &mut Wheel<u32>) {
    for key in KEYS {
        wheel.insert(due(key), key);
    }
}

fn drain(wheel: &mut Wheel<u32>) {
    while let Some(now) = wheel.next_wake() {
        while wheel
            .advance(now, 256, |expired| _ = black_box(expired))
            .more
        {}
    }
}

/// The same values have expired before, so that slots and slab have grown already.
fn full() -> Wheel<u32> {
    let mut wheel = Wheel::new();
    for key in KEYS {
        wheel.insert(Tick::new(due(key).get() - START), key);
    }
    drain(&mut wheel);
    while wheel.advance(Tick::new(START), 256, |_| ()).more {}
    fill(&mut wheel);
    wheel
}

#[library_benchmark(setup = full)]
#[bench::per_call()]
fn insert_and_remove(mut wheel: Wheel<u32>) -> Wheel<u32> {
    for key in KEYS {
        let inserted = wheel.insert(due(key), key);
        black_box(wheel.remove(inserted));
    }
    wheel
}

// All values expire, one tick after the other where there is something to do.
#[library_benchmark(setup = full)]
#[bench::per_call()]
fn advance(mut wheel: Wheel<u32>) -> Wheel<u32> {
    while let Some(now) = wheel.next_wake() {
        while wheel
            .advance(now, 256, |expired| _ = black_box(expired))
            .more
        {}
    }
    wheel
}

library_benchmark_group!(name = wheel, benchmarks = [insert_and_remove, advance]);
