//! W5: some tasks are long. 10,000 timers a second are started, due 10 to 60 ms later; a few of
//! them sleep for half a second, 41 in the 5 s of the full form. How late are the others? And how
//! late are they if none of them sleeps?
//!
//! Each system is set up as a service would that knows of such tasks. Where tasks run on the
//! timer's own thread there is no such set-up, and the others wait. Each round is a process of its
//! own: a pool that grows while tasks are long has not done so before.

use std::io;
use std::time::Duration;

use super::kit::lateness_of;
use super::paced::{LATENESS, Paced};
use crate::child::{Child, Measured};
use crate::recorder::{LONG, expect_stamps};
use crate::system::{Keyed, Tasks};
use crate::workload::{Case, Workload};

pub(super) const ABOUT: Workload = Workload {
    name: "W5",
    about: "10,000 timers/s, some tasks take 500 ms: lateness of the others",
    metrics: LATENESS,
    cases: &[Case::of("10,000 timers/s", 1), Case::of(NONE_IS_LONG, 1)],
    // Milliseconds.
    amount: [5_000, 500, 50],
    ..Workload::DEFAULT
};

/// What the other case is compared with.
pub(crate) const NONE_IS_LONG: &str = "none takes long";

/// In the full form's time; at least one.
const LONG_TASKS: u64 = 41;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn serve<S: Keyed>(child: &mut Child) -> io::Result<()> {
    expect_stamps();
    let system = S::new(Tasks::MayBlock);
    child.filled(|| ())?;
    child.rounds(|request| {
        let long = match request.case {
            0 => (LONG_TASKS * request.amount / ABOUT.amount[0]).max(1) as u32,
            _ => 0,
        };
        let paced = Paced {
            long,
            ..Paced::TYPICAL
        };
        let (began, count) = paced.run(&system, request, LIMIT + LONG * long);
        let lateness = lateness_of::<S>(count - u64::from(long));
        Measured::since(began, lateness.figures(&[500, 990, 999]))
    })
}
