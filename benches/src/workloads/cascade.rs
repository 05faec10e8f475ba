//! W9: a storm of cascading. N timers are pending within 262 s, which is as wide as a slot of the
//! fourth level is with 64 slots a level and a tick of 1 ms; the first is due in a minute. Beside
//! them 10,000 timers a second are started, due 1 to 60 ms later, while such slots are taken apart:
//! how late are those?
//!
//! When that happens is up to the system. In ours each stripe's wheel has an origin of its own, so
//! its slot is taken apart at its own moment, anywhere within the 262 s: a window of 12 s meets
//! about 12 of 262 stripes, that is 6 of 128 and half a million entries of 10 M, in every round.
//! (The quick form's window meets one or none.) The peers with wheels count from their start and
//! take a slot of that kind apart after 65 s or 262 s, which no window reaches, and a heap has
//! none: their rows say how late they are beside timers that lie still.

use std::io;
use std::time::{Duration, Instant};

use super::kit::{between, filled, lateness_of};
use super::paced::{LATENESS, Paced};
use crate::child::{Child, Measured};
use crate::recorder::expect_stamps;
use crate::system::{Keyed, Tasks};
use crate::workload::{Case, Workload};
use chaos::random::Random;

pub(super) const ABOUT: Workload = Workload {
    name: "W9",
    about: "10,000 timers/s beside slots that cascade (in ours; the peers' lie still): lateness of those",
    metrics: LATENESS,
    cases: &[Case::of("10,000 timers/s beside", 1)],
    keys: [&[10_000_000], &[1_000_000], &[1_000]],
    // Milliseconds.
    amount: [12_000, 1_000, 50],
    ..Workload::DEFAULT
};

/// Until the first of those that lie in the slot is due. Fill and round end before.
const AHEAD: Duration = Duration::from_secs(60);
const SLOT: Duration = Duration::from_millis(64 * 64 * 64);
const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    expect_stamps();
    let system = S::new(Tasks::Short);
    let keys = child.keys;
    let first = Instant::now() + AHEAD;
    child.filled(|| {
        let mut rng = Random::new(0xf111);
        system.on_thread(|| {
            // A number alone is a key apart from all stamps, which are greater.
            for key in 0..keys {
                let due = first + between(&mut rng, Duration::ZERO, SLOT);
                system.start(key, due.saturating_duration_since(Instant::now()));
            }
        });
        filled(&system, keys);
    })?;
    child.rounds(|request| {
        let paced = Paced {
            from: Duration::from_millis(1),
            ..Paced::TYPICAL
        };
        let (began, count) = paced.run(&system, request, LIMIT);
        let is_over = Instant::now() < first;
        assert!(is_over, "the round has to end before the others come due");
        let lateness = lateness_of::<S>(count);
        Measured::since(began, lateness.figures(&[500, 990, 999]))
    })
}
