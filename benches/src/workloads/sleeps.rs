//! S4: tasks that sleep. Each of N tasks on a tokio runtime sleeps once, for a random time within
//! the span, all at once; the round ends when all of them have.
//!
//! The CPU time is that of the whole process but for the thread that waits for the round's end:
//! tasks, their runtime, and whatever threads the timers have. The runtime is there before, and so
//! are the threads of timers that are not the runtime's.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use crate::child::{Child, Measured};
use crate::machine::Used;
use crate::recorder::{Stamp, expect_stamps, fired, take_lateness};
use crate::system::Sleeps;
use crate::workload::{By, Case, Children, Metric, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "S4",
    about: "tasks that sleep for up to 2 s, all at once (0.5 s in the quick form)",
    metrics: &[
        Metric::less("CPU", "ms"),
        Metric::less("p99", "ms late"),
        Metric::longest("max", "ms late"),
    ],
    cases: &[
        Case::of("runtime of 1 thread", 1),
        Case::of("runtime of 2 workers", 2),
    ],
    keys: [&[100_000], &[100_000], &[1_000]],
    // Milliseconds.
    amount: [2_000, 500, 20],
    children: Children::Kept,
    warm_up: true,
    by: By::Sleep,
};

fn runtime<S: Sleeps>(threads: usize) -> Runtime {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if S::RUNTIME_WITH_TIME {
        builder.enable_time();
    }
    let built = builder.worker_threads(threads).build();
    built.expect("a runtime without I/O needs nothing")
}

/// A task that sleeps, and says so with its number.
async fn sleep<S: Sleeps>(system: &'static S, delay: Duration, number: u32) {
    let stamp = Stamp {
        due: Instant::now() + delay,
        long: false,
        number,
    };
    system.sleep(delay).await;
    fired(stamp.encode());
}

/// Starts a task for each, on the runtime that this runs on, and waits for all of them.
async fn sleep_all<S: Sleeps>(system: &'static S, delays: Vec<Duration>) {
    let spawn = |(number, delay)| tokio::spawn(sleep(system, delay, number));
    let tasks: Vec<_> = (0..).zip(delays).map(spawn).collect();
    for task in tasks {
        task.await.expect("no task fails");
    }
}

pub(super) fn serve<S: Sleeps>(child: &mut Child) -> io::Result<()> {
    expect_stamps();
    let count = child.keys;
    let mut system = None;
    child.filled(|| system = Some(S::new()))?;
    // For the tasks, until the process ends.
    let system: &'static S = Box::leak(Box::new(system.expect("it is filled")));
    child.rounds(|request| {
        let span = Duration::from_millis(request.amount).as_nanos() as u64;
        let mut rng = Random::new(request.seed);
        let delays = (0..count).map(|_| Duration::from_nanos(rng.below(span)));
        let delays: Vec<Duration> = delays.collect();
        let runtime = runtime::<S>(request.threads);
        let used = Used::now();
        let began = Instant::now();
        thread::scope(|scope| {
            // From a task, so that a runtime with workers starts them all on those.
            let all = async || tokio::spawn(sleep_all(system, delays)).await;
            let ran = scope.spawn(|| runtime.block_on(all())).join();
            assert!(matches!(ran, Ok(Ok(()))), "no task fails");
        });
        let took = began.elapsed();
        let cpu = used.cpu_since().map(|cpu| cpu.as_secs_f64() * 1e3);
        let lateness = take_lateness();
        assert_eq!(lateness.count(), count, "each sleeps once");
        let early = lateness.early();
        assert!(early.is_zero(), "{} woke {early:?} too early", S::NAME);
        Measured::of(
            vec![cpu, Some(lateness.per_mille(990)), Some(lateness.max())],
            took,
        )
    })
}
