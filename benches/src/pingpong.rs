//! How long a cache line takes to another core and back: the state of the machine, as two threads
//! feel it. Virtual machines have modes in which every contended figure is off by a factor, at full
//! CPU; they show here, and [`mode`](crate::mode) tells them apart.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CHUNKS: usize = 15;
const TRIPS: u64 = 1_000;
/// On a busy machine a trip can take a time slice.
const LIMIT: Duration = Duration::from_millis(150);
const STOP: u64 = u64::MAX;

/// Alone on its cache lines.
#[repr(align(128))]
struct Line(AtomicU64);

/// A trip that takes longer is no trip between cores: both threads are on the same one, and the
/// scheduler has to swap them.
const ON_ONE_CORE_NS: f64 = 5_000.0;
const TRIES: usize = 3;

/// The median round trip in nanoseconds; `None` with a single core, or if the two threads were
/// never on two cores at the same time.
pub(crate) fn round_trip_ns() -> Option<f64> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return None;
    }
    (0..TRIES)
        .map(|_| one_try_ns())
        .find(|ns| *ns < ON_ONE_CORE_NS)
}

fn one_try_ns() -> f64 {
    let line = Line(AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| answer(&line.0));
        let began = Instant::now();
        let mut chunks = Vec::with_capacity(CHUNKS);
        let mut turn = 0;
        // One more, for the thread's start.
        while chunks.len() <= CHUNKS && (chunks.len() < 2 || began.elapsed() < LIMIT) {
            let chunk = Instant::now();
            let mut trips = 0;
            while trips < TRIPS && began.elapsed() < LIMIT || trips == 0 {
                // On a busy machine each of these can take a time slice.
                for _ in 0..10 {
                    line.0.store(turn + 1, Ordering::Release);
                    while line.0.load(Ordering::Acquire) != turn + 2 {
                        spin_loop();
                    }
                    turn += 2;
                }
                trips += 10;
            }
            chunks.push(chunk.elapsed().as_nanos() as f64 / trips as f64);
        }
        line.0.store(STOP, Ordering::Release);
        chunks.remove(0);
        chunks.sort_by(f64::total_cmp);
        chunks[chunks.len() / 2]
    })
}

fn answer(line: &AtomicU64) {
    loop {
        match line.load(Ordering::Acquire) {
            STOP => return,
            turn if turn % 2 == 1 => line.store(turn + 1, Ordering::Release),
            _ => spin_loop(),
        }
    }
}
