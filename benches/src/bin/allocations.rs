//! Counts what sleeps allocate: when they are made, when they are first polled, in the polls that
//! follow, and when they are dropped before their time.
//!
//! A program of its own, since its allocator counts, which takes time from everything that
//! allocates. Only the calling thread's allocations are counted: those that a task pays for.
//!
//! ```text
//! cargo run --release -p benches --bin allocations
//! ```

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use allocation_counter::measure;
use tourbillon::Timer;

/// So many sleep at the same time.
const SLEEPS: usize = 1_000;
/// Of each, after the first one.
const POLLS: u64 = 10;
/// None ends meanwhile.
const HOUR: Duration = Duration::from_secs(3_600);

fn main() {
    let one = measure(|| drop(black_box(Box::new(1_u8))));
    assert_eq!(one.count_total, 1, "the allocator that counts is there");
    let which = format!("mean of {SLEEPS} that sleep at the same time");
    say!("allocations of a sleep, {which}, the second time they do");
    say!("                  made  first poll  later poll  dropped");
    // On a runtime, which tokio's own need.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build();
    let runtime = runtime.expect("a runtime without I/O needs nothing");
    let _inside = runtime.enter();
    let timer = Timer::new().expect("the defaults are fine");
    let polls = say("tourbillon-sleep", || timer.sleep(HOUR));
    say("tokio-sleep", || tokio::time::sleep(HOUR));
    assert!(polls == 0.0, "a poll of ours allocates nothing");
}

/// Returns what the polls after the first one allocate.
fn say<F: Future>(name: &str, sleep: impl Fn() -> F) -> f64 {
    // What only the first ones need, and later ones find there.
    let _ = count(&sleep);
    let [made, first_poll, later_poll, dropped] = count(&sleep);
    say!("{name:<16}{made:>6.3}{first_poll:>12.3}{later_poll:>12.3}{dropped:>9.3}");
    later_poll
}

/// Allocations of one sleep, on average: when it is made, in the first poll and in a later one, and
/// when it is dropped.
fn count<F: Future>(sleep: &impl Fn() -> F) -> [f64; 4] {
    let mut made = 0;
    let mut sleeps: Vec<Pin<Box<F>>> = Vec::with_capacity(SLEEPS);
    for _ in 0..SLEEPS {
        let mut new = None;
        made += measure(|| new = Some(sleep())).count_total;
        sleeps.extend(new.map(Box::pin));
    }
    let mut poll_all = || {
        let mut context = Context::from_waker(Waker::noop());
        let counted = measure(|| {
            for sleep in &mut sleeps {
                assert!(sleep.as_mut().poll(&mut context).is_pending(), "an hour");
            }
        });
        counted.count_total
    };
    let first_poll = poll_all();
    let later_polls: u64 = (0..POLLS).map(|_| poll_all()).sum();
    let dropped = measure(|| sleeps.clear()).count_total;
    let each = |count: u64| count as f64 / SLEEPS as f64;
    let later_poll = each(later_polls) / POLLS as f64;
    [each(made), each(first_poll), later_poll, each(dropped)]
}
