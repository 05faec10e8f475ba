//! Keyed timers: calls of a handle, and runs that the test kit drives.

use std::hint::black_box;
use std::time::Duration;

use gungraun::prelude::*;
use tourbillon::test_util::Stepped;
use tourbillon::{Handle, Next, Period, Scheduler, SchedulerBuilder, TimerId};

use crate::{KEYS, MISSING, SEED, STRIPES, delay};

type Kit = (Stepped<u32>, Handle<u32>);
type WithIds = (Stepped<u32>, Handle<u32>, Vec<TimerId>);

const FAR: Duration = Duration::from_secs(3_600);

/// Tables and slabs have grown already: every key was pending once.
fn kit_of(builder: SchedulerBuilder<u32>) -> Kit {
    let builder = builder.shards(1).stripes(STRIPES).workers(1);
    let kit = builder.build_stepped(SEED).expect("the options are valid");
    let handle = kit.handle();
    arm(&handle, delay);
    handle.cancel_all();
    (kit, handle)
}

/// The task captures one word, so it has an allocation of its own.
fn arm(handle: &Handle<u32>, delay: impl Fn(u32) -> Duration) -> Vec<TimerId> {
    let arm = |key| {
        let task = move |_: &tourbillon::Firing<'_, u32>| _ = black_box(key);
        handle.schedule(key, delay(key), task).expect("it is open")
    };
    KEYS.map(|key| arm(key).id).collect()
}

fn empty() -> Kit {
    kit_of(Scheduler::builder())
}

fn pending() -> WithIds {
    let (kit, handle) = empty();
    let ids = arm(&handle, delay);
    (kit, handle, ids)
}

fn due_on(builder: SchedulerBuilder<u32>) -> Kit {
    let (kit, handle) = kit_of(builder);
    arm(&handle, |_| Duration::from_secs(1));
    (kit, handle)
}

fn due_on_the_pool() -> Kit {
    due_on(Scheduler::builder())
}

fn due_inline() -> Kit {
    due_on(Scheduler::builder().inline())
}

/// The first round of each has run.
fn repeating() -> Kit {
    let (kit, handle) = empty();
    for key in KEYS {
        let task = move |_: &tourbillon::Round<'_, u32>| {
            black_box(key);
            Next::Again
        };
        let period = Period::fixed_rate(Duration::from_secs(1));
        handle.repeat(key, period, task).expect("it is open");
    }
    let first = kit.advance(Duration::from_secs(1)).len();
    assert_eq!(first, KEYS.len());
    (kit, handle)
}

/// Everything is due at one moment, so that what the kit itself does is little.
fn a_second_passes((kit, handle): Kit) -> Kit {
    let ran = kit.jump_to(kit.now() + Duration::from_secs(1));
    assert_eq!(ran.len(), KEYS.len());
    (kit, handle)
}

#[library_benchmark(setup = empty)]
#[bench::per_call()]
fn schedule(kit: Kit) -> Kit {
    for key in KEYS {
        let task = move |_: &tourbillon::Firing<'_, u32>| _ = black_box(key);
        black_box(kit.1.schedule(key, delay(key), task)).expect("it is open");
    }
    kit
}

#[library_benchmark(setup = empty)]
#[bench::per_call()]
fn schedule_and_cancel(kit: Kit) -> Kit {
    for key in KEYS {
        let task = move |_: &tourbillon::Firing<'_, u32>| _ = black_box(key);
        black_box(kit.1.schedule(key, delay(key), task)).expect("it is open");
        black_box(kit.1.cancel(&key));
    }
    kit
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn reschedule(kit: WithIds) -> WithIds {
    for key in KEYS {
        let _ = black_box(kit.1.reschedule(&key, FAR));
    }
    kit
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn reschedule_by_id(kit: WithIds) -> WithIds {
    for id in &kit.2 {
        let _ = black_box(kit.1.by_id(*id).reschedule(FAR));
    }
    kit
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn pull_in(kit: WithIds) -> WithIds {
    for key in KEYS {
        let _ = black_box(kit.1.pull_in(&key, delay(key) / 2));
    }
    kit
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn cancel_of_a_missing_key(kit: WithIds) -> WithIds {
    for key in MISSING {
        black_box(kit.1.cancel(&key));
    }
    kit
}

#[library_benchmark(setup = pending)]
#[bench::per_call()]
fn cancel_by_id(kit: WithIds) -> WithIds {
    for id in &kit.2 {
        black_box(kit.1.by_id(*id).cancel());
    }
    kit
}

#[library_benchmark]
#[bench::on_the_pool(setup = due_on_the_pool)]
#[bench::inline(setup = due_inline)]
fn collect_and_run(kit: Kit) -> Kit {
    a_second_passes(kit)
}

#[library_benchmark(setup = repeating)]
#[bench::per_call()]
fn round_of_a_repetition(kit: Kit) -> Kit {
    a_second_passes(kit)
}

library_benchmark_group!(
    name = handle,
    benchmarks = [
        schedule,
        schedule_and_cancel,
        reschedule,
        reschedule_by_id,
        pull_in,
        cancel_of_a_missing_key,
        cancel_by_id,
        collect_and_run,
        round_of_a_repetition,
    ]
);
