//! Values that expire.

use std::hint::black_box;
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::test_util::SteppedMap;
use tourbillon::{ExpiryMap, ExpiryMapBuilder, GroupedBy, GroupedExpiryMap};

use crate::{KEYS, SEED, STRIPES};

type Kit = (SteppedMap<u32, u64>, ExpiryMap<u32, u64>);
type Grouped = (
    SteppedMap<u32, u64, GroupedBy<u32>>,
    GroupedExpiryMap<u32, u64, u32>,
);

type Devices = (SteppedMap<u64, u32>, ExpiryMap<u64, u32>);

const IDLE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
/// As many as the members of each.
const GROUPS: u32 = 100;

fn builder() -> ExpiryMapBuilder<u32, u64> {
    let builder = ExpiryMap::builder().shards(1).stripes(STRIPES).workers(1);
    builder.time_to_idle(IDLE)
}

/// Tables and slabs have grown already.
fn empty() -> Kit {
    let kit = builder().build_stepped(SEED, |_, expired| _ = black_box(expired));
    let kit = kit.expect("the options are valid");
    let map = kit.map();
    fill(&map);
    map.clear();
    (kit, map)
}

fn fill(map: &ExpiryMap<u32, u64>) {
    for key in KEYS {
        map.insert(key, key.into()).expect("it is open");
    }
}

/// A second after everything was inserted.
fn full() -> Kit {
    let (kit, map) = empty();
    fill(&map);
    kit.advance(SECOND);
    (kit, map)
}

fn devices() -> Devices {
    let builder = ExpiryMap::builder().shards(1).stripes(STRIPES).workers(1);
    let builder = builder.time_to_idle(IDLE);
    let kit = builder.build_stepped(SEED, |_, expired| _ = black_box(expired));
    let kit = kit.expect("the options are valid");
    let map = kit.map();
    for key in KEYS {
        map.insert(key.into(), 0).expect("it is open");
    }
    kit.advance(SECOND);
    (kit, map)
}

fn grouped() -> Grouped {
    let builder = builder().groups();
    let kit = builder.build_stepped(SEED, |_, expired| _ = black_box(expired));
    let kit = kit.expect("the options are valid");
    let map = kit.map();
    for key in KEYS {
        let inserted = map.entry(key).group(&(key % GROUPS)).insert(key.into());
        inserted.expect("it is open");
    }
    (kit, map)
}

#[library_benchmark(setup = empty)]
#[bench::per_call()]
fn insert(kit: Kit) -> Kit {
    for key in KEYS {
        black_box(kit.1.insert(key, key.into())).expect("it is open");
    }
    kit
}

#[library_benchmark(setup = full)]
#[bench::per_call()]
fn touch(kit: Kit) -> Kit {
    for key in KEYS {
        black_box(kit.1.touch(&key));
    }
    kit
}

// Ten members in a call, after a second each time.
#[library_benchmark(setup = grouped)]
#[bench::per_call()]
fn touch_of_a_group(kit: Grouped) -> Grouped {
    let clock = kit.0.clock();
    for _ in 0..KEYS.end / GROUPS {
        clock.advance(SECOND);
        for group in 0..GROUPS {
            black_box(kit.1.touch_group(&group));
        }
    }
    kit
}

#[library_benchmark(setup = full)]
#[bench::per_call()]
fn get(kit: Kit) -> Kit {
    for key in KEYS {
        black_box(kit.1.get(&key));
    }
    kit
}

#[library_benchmark(setup = full)]
#[bench::per_call()]
fn update(kit: Kit) -> Kit {
    for key in KEYS {
        black_box(kit.1.update(&key, |value| *value += 1));
    }
    kit
}

// Signs of life of keys that are known. In a map of its own type: it shares no code with the paths above, whose calls
// might otherwise be inlined less.
#[library_benchmark(setup = devices)]
#[bench::per_call()]
fn touch_with_or_insert(kit: Devices) -> Devices {
    for key in KEYS {
        let entry = kit.1.entry(key.into());
        let answer = entry.touch_with(|count| *count += 1).or_insert_with(|| 1);
        black_box(answer).expect("it is open");
    }
    kit
}

#[library_benchmark(setup = full)]
#[bench::per_call()]
fn remove(kit: Kit) -> Kit {
    for key in KEYS {
        black_box(kit.1.remove(&key));
    }
    kit
}

// Everything expires at one moment, and goes to the handler.
#[library_benchmark(setup = empty)]
#[bench::per_call()]
fn insert_and_expire(kit: Kit) -> Kit {
    fill(&kit.1);
    kit.0.jump_to(kit.0.now() + IDLE);
    assert!(kit.1.is_empty());
    kit
}

library_benchmark_group!(
    name = expiry,
    benchmarks = [
        insert,
        touch,
        touch_of_a_group,
        get,
        update,
        touch_with_or_insert,
        remove,
        insert_and_expire,
    ]
);
