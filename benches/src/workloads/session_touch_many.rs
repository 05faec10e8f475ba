//! S2: sessions that are touched many at a time, as by a gateway that collects who was active:
//! random ones, one by one, and so many in a call.
//!
//! A round does all of that in turns of some thousand keys, so that whatever the machine does
//! meanwhile hits one by one and many at a time alike. The keys of a turn are drawn before its time
//! runs.

use std::io;
use std::time::{Duration, Instant};

use super::kit::{IDLE, fill_sessions};
use crate::child::{Child, Measured};
use crate::system::Sessions;
use crate::workload::{By, Case, Children, Metric, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "S2",
    about: "touch random sessions one by one, and many in a call",
    metrics: &[
        Metric::more("one by one", "M keys/s"),
        Metric::more("256 in a call", "M keys/s"),
        Metric::more("1,024 in a call", "M keys/s"),
        Metric::more("4,096 in a call", "M keys/s"),
    ],
    cases: &[Case::of("1 thread", 1)],
    keys: [&[10_000_000], &[1_000_000], &[10_000]],
    // Keys that are touched in each way.
    amount: [1_000_000, 250_000, 5_000],
    children: Children::Kept,
    warm_up: true,
    by: By::Session,
};

/// Of the metrics: how many are touched in a call, if that is the call for many.
const IN_A_CALL: [Option<usize>; 4] = [None, Some(256), Some(1_024), Some(4_096)];
/// Keys that a turn touches.
const TURN: usize = 4_096;

pub(super) fn serve<S: Sessions>(child: &mut Child) -> io::Result<()> {
    let system = S::new(IDLE);
    let keys = child.keys;
    child.filled(|| fill_sessions(&system, keys))?;
    child.rounds(|request| {
        let mut rng = Random::new(request.seed);
        let turns = request.amount.div_ceil(TURN as u64);
        let mut took = [Duration::ZERO; IN_A_CALL.len()];
        let mut drawn = vec![0; TURN];
        system.on_thread(|| {
            for _ in 0..turns {
                for (in_a_call, took) in IN_A_CALL.iter().zip(&mut took) {
                    drawn.fill_with(|| rng.below(keys));
                    let began = Instant::now();
                    let touched = touch(&system, &drawn, *in_a_call);
                    system.settle();
                    *took += began.elapsed();
                    assert_eq!(touched, TURN, "every key is there");
                }
            }
        });
        let touched = (turns * TURN as u64) as f64;
        let figure = |took: &Duration| Some(touched / took.as_secs_f64() / 1e6);
        Measured::of(took.iter().map(figure).collect(), took.iter().sum())
    })
}

fn touch<S: Sessions>(system: &S, keys: &[u64], in_a_call: Option<usize>) -> usize {
    match in_a_call {
        None => keys.iter().filter(|key| system.touch(**key)).count(),
        Some(count) => keys.chunks(count).map(|keys| system.touch_many(keys)).sum(),
    }
}
