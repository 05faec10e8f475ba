//! The clock of a tokio runtime, which stands still while a test says so.

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::tick::Time;

/// The clock of a runtime, in this crate's times.
#[derive(Debug)]
pub(crate) struct TokioClock {
    runtime: Handle,
    /// The moment at which it shows `start`.
    began: Instant,
    start: Time,
}

impl TokioClock {
    /// Returns the clock that shows `start` now.
    pub(super) fn starting_at(start: Time, runtime: Handle) -> Self {
        TokioClock {
            began: now_in(&runtime),
            runtime,
            start,
        }
    }

    pub(super) fn now(&self) -> Time {
        self.start + (now_in(&self.runtime) - self.began)
    }

    /// Returns the moment at which this clock will show `time`, or `None` if that is too far ahead.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        let to_come = (time != Time::MAX).then(|| time.since(self.start))?;
        self.began.checked_add(to_come)
    }
}

/// Returns the present of this runtime. It must be entered: on other threads tokio reads the
/// system's clock.
fn now_in(runtime: &Handle) -> Instant {
    let _entered = runtime.enter();
    Instant::now()
}
