//! The names of timers.

/// Names a timer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum TimerKey {
    /// The repeating timer of a registration, or of a caller that waits.
    Registration(u64),
    /// The flush of a queue, by its number.
    Flush(u64),
    /// A poll of a task, a wake-up, or releases that are tried again.
    Call(u64),
    /// The callback with the events of a registration.
    Tell(u64),
}
