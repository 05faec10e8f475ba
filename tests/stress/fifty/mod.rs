//! Fifty schedulers, maps and timers of all kinds on one runtime. Threads and tasks call them, shut
//! them down, drop them and build others, at random; tasks also block, compute and panic. Each
//! arming has exactly one end, none is early, and in the end the runtime leaves no thread behind.
//! Three seconds by default; `STRESS_SECS` for longer. `STRESS_SEED` repeats the choices of a run.

mod fates;
mod instance;
mod world;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kit::wait::until;
use tourbillon::Runtime;

use super::{Random, duration_or};
use world::{World, act, micros};

const THREADS: u64 = 6;

/// Only a broken runtime does not do everything until then.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a long run says how far it is.
const PROGRESS: Duration = Duration::from_secs(60);

/// Stops the threads, also when the one that watches them panics.
struct Stops<'a>(&'a World);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn seed() -> u64 {
    let seed = std::env::var("STRESS_SEED").ok();
    seed.map_or_else(
        || RandomState::new().hash_one(()),
        |text| text.parse().expect("STRESS_SEED is a number"),
    )
}

#[test]
fn each_arming_of_fifty_instances_on_a_runtime_has_one_end() {
    let (length, seed) = (duration_or(3.0), seed());
    println!("STRESS_SEED={seed}");
    let runtime = Runtime::builder().name("fifty").tickers(2).workers(2);
    let runtime = runtime.build().unwrap();
    let world = World::new(runtime.clone());
    let begun = Instant::now();
    thread::scope(|scope| {
        let _stops = Stops(&world);
        for thread in 0..THREADS {
            let world = &world;
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_add(thread << 32));
                while !world.is_over() {
                    act(world, &mut random);
                    // Otherwise the tasks have no time for theirs.
                    if random.below(16) == 0 {
                        thread::park_timeout(micros(&mut random, 500));
                    }
                }
            });
        }
        let mut next = PROGRESS;
        loop {
            world.account();
            let since = begun.elapsed();
            let missing = world.missing();
            if since >= length && missing.is_empty() {
                break;
            }
            assert!(since < length + PATIENCE, "never done: {missing:?}");
            if since >= next {
                next += PROGRESS;
                println!("{} s: {}", since.as_secs(), world.summary());
            }
            thread::park_timeout(Duration::from_millis(2));
        }
    });
    world.end_all(&mut Random(seed));
    println!(
        "{:.1} s: {}",
        begun.elapsed().as_secs_f64(),
        world.summary()
    );
    until("the tokens let go of it", || Arc::strong_count(&world) == 1);
    runtime.shut_down(PATIENCE).unwrap();
    let stats = runtime.stats();
    assert_eq!((stats.instances, stats.workers), (0, 0));
    #[cfg(target_os = "linux")]
    until("no thread is left", || {
        kit::naps::named("fifty-").is_empty()
    });
}
