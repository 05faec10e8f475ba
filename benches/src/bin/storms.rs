//! What engines that share threads do to each other, and what they cost when they are idle.
//!
//! ```text
//! cargo run --release -p benches --bin storms            # five rounds of each storm
//! cargo run --release -p benches --bin storms -- 9       # nine
//! cargo run --release -p benches --bin storms -- idle 16 # 1,000 idle maps with 16 stripes each
//! ```
//!
//! A storm is a scheduler whose tasks are all due at one moment. The figures say how late five
//! timers of another scheduler are that are due 20 ms after it: the latest of the five, as the median
//! and the worst of all rounds. Rounds on one runtime and with own threads take turns.

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

use std::fs;
use std::hint::black_box;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tourbillon::{ExpiryMap, Runtime, Scheduler};

/// Name, number of tasks, and what each does.
type Storm = (&'static str, u32, fn());

const STORMS: [Storm; 4] = [
    ("20,000 tasks of 100 us", 20_000, || compute(100)),
    ("20,000 tasks that sleep 1 ms", 20_000, || {
        sleep(Duration::from_millis(1));
    }),
    ("2,000 tasks that sleep 20 ms", 2_000, || {
        sleep(Duration::from_millis(20));
    }),
    ("60,000 tasks of 1 us", 60_000, || compute(1)),
];

const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(20);
const TIMERS: u32 = 5;
const MAPS: usize = 1_000;

fn main() {
    let mut words = std::env::args().skip(1);
    let number =
        |word: Option<String>, usual| word.map_or(usual, |word| word.parse().expect("a number"));
    match words.next() {
        Some(word) if word == "idle" => idle(number(words.next(), 128)),
        word => storms(number(word, 5)),
    }
}

fn compute(micros: u64) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_micros(micros) {
        black_box(());
    }
}

fn storms(rounds: usize) {
    say!("latest of {TIMERS} timers, ms, in {rounds} rounds: median and worst");
    say!("{:<32}{:>16}{:>16}", "", "one runtime", "own threads");
    for storm in STORMS {
        let mut late = [vec![], vec![]];
        for round in 0..2 * rounds {
            late[round % 2].push(lateness(storm, round % 2 == 0));
        }
        let figures = late.map(|mut late| {
            late.sort_unstable();
            let ms = |late: Duration| late.as_secs_f64() * 1e3;
            format!("{:.2} {:.2}", ms(late[rounds / 2]), ms(late[rounds - 1]))
        });
        say!("{:<32}{:>16}{:>16}", storm.0, figures[0], figures[1]);
    }
}

/// How late the latest timer is.
fn lateness((_, tasks, task): Storm, shared: bool) -> Duration {
    let runtime = Runtime::builder().build().expect("threads start");
    let build = || {
        let builder = Scheduler::<u32>::builder();
        let builder = match shared {
            true => builder.runtime(&runtime),
            false => builder.own_threads(),
        };
        builder.build().expect("the options are fine")
    };
    let (storm, other) = (build(), build());
    let begins = Instant::now() + BEFORE;
    for key in 0..tasks {
        let armed = storm.handle().schedule(key, begins, move |_| task());
        armed.expect("it is open");
    }
    assert!(Instant::now() < begins, "armed before it begins");
    let (tell, told) = channel();
    for key in 0..TIMERS {
        let tell = tell.clone();
        let armed = other.handle().schedule(key, begins + AFTER, move |firing| {
            let _ = tell.send(firing.lateness());
        });
        armed.expect("it is open");
    }
    let late = (0..TIMERS).map(|_| told.recv().expect("it runs"));
    late.max().expect("there are some")
}

fn idle(stripes: usize) {
    let build = || {
        let builder = ExpiryMap::<u64, u64>::builder().stripes(stripes);
        let builder = builder.time_to_live(Duration::from_secs(3_600));
        builder.build(|_, _| ()).expect("the options are fine")
    };
    let mut maps = Vec::with_capacity(MAPS + 1);
    // With the threads of the process's runtime.
    maps.push(build());
    let (before, begun) = (status("VmRSS:"), Instant::now());
    maps.extend((0..MAPS).map(|_| build()));
    let took = begun.elapsed().as_secs_f64() * 1e6 / MAPS as f64;
    let resident = (status("VmRSS:") - before) as f64 / MAPS as f64;
    sleep(Duration::from_secs(1));
    let before = switches();
    sleep(Duration::from_secs(10));
    let (threads, switches) = (status("Threads:"), switches() - before);
    let each = format!("{took:.1} us to build and {resident:.1} KiB each");
    let all = format!("{threads} threads, {switches} switches in 10 s");
    say!("{MAPS} idle maps with {stripes} stripes: {each}, {all}");
}

/// A number from Linux about this process.
fn status(field: &str) -> u64 {
    number("/proc/self/status", field)
}

fn number(path: &str, field: &str) -> u64 {
    let text = fs::read_to_string(path).expect("Linux has it");
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect(field)
}

/// How often threads went to sleep or were preempted, except this one.
fn switches() -> u64 {
    let own = std::process::id().to_string();
    let tasks = fs::read_dir("/proc/self/task")
        .expect("Linux has it")
        .flatten();
    tasks
        .filter(|task| task.file_name().to_str() != Some(&own))
        .map(|task| {
            let path = task.path().join("status");
            let path = path.to_str().expect("digits");
            number(path, "voluntary_ctxt_switches:") + number(path, "nonvoluntary_ctxt_switches:")
        })
        .sum()
}
