//! W6: nothing happens. 1 M timers are pending, an hour out; what does the process do meanwhile?
//! The CPU time of all threads but the one that waits for the end of the round, and how often they
//! went to sleep, which is how often something woke them.
//!
//! Before the first round everything that filling has stirred up gets time to come to rest: threads
//! of a pool that leave when they have not been needed for a while. All systems are measured at
//! the same time, since they leave the machine alone, or should.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use super::kit::{fill, minutes};
use crate::child::{Child, Measured};
use crate::machine::Used;
use crate::recorder::{fired_so_far, wait_until_fired};
use crate::system::{Keyed, Tasks};
use crate::workload::{Case, Children, Metric, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "W6",
    about: "timers an hour away: what 10 s of nothing cost (1 s in the quick form)",
    metrics: &[Metric::less("CPU", "ms"), Metric::less("switches", "times")],
    cases: &[Case::of("an hour away", 1)],
    keys: [&[1_000_000], &[1_000_000], &[1_000]],
    // Milliseconds.
    amount: [10_000, 1_000, 50],
    children: Children::Together,
    ..Workload::DEFAULT
};

/// Before the first round; ours keeps a thread of its pool for 10 s after its last task.
const REST: Duration = Duration::from_secs(12);
/// So many run before that.
const TASKS: u64 = 1_000;
/// Rounds shorter than this measure nothing, so they need no rest.
const SHORTEST: Duration = Duration::from_secs(1);

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    child.filled(|| fill(&system, 0..keys, |_| minutes(60)))?;
    let mut rested = false;
    child.rounds(|request| {
        let time = Duration::from_millis(request.amount);
        if !rested {
            // What tasks ran on is there, and has to come to rest too.
            let before = fired_so_far();
            system.on_thread(|| {
                for task in 0..TASKS {
                    system.start(keys + task, Duration::from_millis(1));
                }
            });
            wait_until_fired(before + TASKS, Duration::from_secs(60));
            if time >= SHORTEST {
                thread::sleep(REST);
            }
        }
        rested = true;
        let began = Instant::now();
        let used = Used::now();
        thread::sleep(time);
        let cpu = used.cpu_since().map(|cpu| cpu.as_secs_f64() * 1e3);
        let switches = used.switches_since().map(|switches| switches as f64);
        Measured::since(began, vec![cpu, switches])
    })
}
