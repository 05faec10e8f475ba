//! What parents and children do to each other.

use std::process::Child;

/// Stops a child, or lets it go on. Where that can't be done it runs on.
#[cfg(target_os = "linux")]
pub(crate) fn pause(child: &Child, stop: bool) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    // Not waited for yet, so the number is its own, even if it has ended.
    let _ = kill_process(Pid::from_child(child), signal);
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pause(_: &Child, _: bool) {}

/// The parent's end, however it comes, is the child's end too, also if it is stopped.
#[cfg(target_os = "linux")]
pub(crate) fn end_with_the_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    // Where it can't be set the end of the input has to do.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn end_with_the_parent() {}
