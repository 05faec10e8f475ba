//! Forks, and watches the copy.

use std::fmt::Debug;
use std::io::{PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A copy that takes longer hangs.
const HANGS: Duration = Duration::from_secs(30);

/// A thread that has not started by then does not start.
const STARTS: Duration = Duration::from_secs(5);

/// The step of a copy in which no thread starts.
const NO_THREADS: &str = "no thread starts here";

/// The number of copies in which no thread starts.
static WITHOUT_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Returns how many copies could not be checked where that takes threads.
pub(crate) fn without_threads() -> usize {
    WITHOUT_THREADS.load(Ordering::SeqCst)
}

/// What a copy tells its original.
pub(crate) struct Report(PipeWriter);

impl Report {
    /// Names the next step, so that the original knows where a copy hangs.
    pub(crate) fn step(&mut self, what: &str) {
        let _ = self.0.write_all(format!("{what}\n").as_bytes());
    }

    /// Returns whether threads start in this copy.
    ///
    /// None does if a thread of the original was just starting or ending at the fork: the standard
    /// library has a list of all threads (`std::sys::pal::unix::stack_overflow`), whose lock stays
    /// locked in the copy. The guide says so.
    pub(crate) fn threads_start(&mut self) -> bool {
        let (tell, told) = channel();
        let started = thread::Builder::new().spawn(move || tell.send(()));
        let starts = started.is_ok() && told.recv_timeout(STARTS) == Ok(());
        if !starts {
            self.step(NO_THREADS);
        }
        starts
    }

    /// Names a step that has been done, and what was seen if that is wrong.
    pub(crate) fn check(&mut self, what: &str, holds: bool, seen: &dyn Debug) {
        if holds {
            self.step(what);
        } else {
            self.step(&format!("WRONG {what}: {seen:?}"));
        }
    }
}

/// Runs `check` in a forked copy. Returns what was wrong: a check, the end of the copy, or that it did not end.
pub(crate) fn in_copy(check: impl FnOnce(&mut Report)) -> Option<String> {
    let (mut tells, told) = pipe().expect("a pipe");
    // Nothing is between the fork and this thread's next statement but the handlers of the fork.
    #[allow(
        unsafe_code,
        reason = "no safe function forks, and this is about forks"
    )]
    // SAFETY: the copy goes on with this thread alone, and calls only what has to work there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(tells);
        let mut report = Report(told);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut report)));
        report.step(if ended.is_ok() {
            "well"
        } else {
            "WRONG: a panic"
        });
        std::process::exit(0);
    }
    drop(told);
    if child < 0 {
        return Some("no fork".to_owned());
    }
    let (done, wait) = channel::<()>();
    let killer = thread::spawn(move || {
        let hangs = wait.recv_timeout(HANGS) == Err(RecvTimeoutError::Timeout);
        if hangs {
            #[allow(unsafe_code, reason = "no safe function of std kills by number")]
            // SAFETY: a plain system call. The child was not waited for, so the number is still its own.
            unsafe {
                libc::kill(child, libc::SIGKILL);
            }
        }
        hangs
    });
    let mut said = String::new();
    let read = tells.read_to_string(&mut said);
    drop(done);
    if said.contains(NO_THREADS) {
        WITHOUT_THREADS.fetch_add(1, Ordering::SeqCst);
    }
    let hung = killer.join().expect("it does not panic");
    let mut status = 0;
    #[allow(unsafe_code, reason = "no safe function of std waits by number")]
    // SAFETY: the status lives as long as the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    let well = said.ends_with("well\n") && !said.contains("WRONG");
    if well && !hung && read.is_ok() && waited == child && status == 0 {
        return None;
    }
    let last: Vec<_> = said.lines().rev().take(3).collect();
    let wrong: Vec<_> = said
        .lines()
        .filter(|line| line.starts_with("WRONG"))
        .collect();
    Some(format!(
        "hung {hung}, status {status}, {read:?}, {wrong:?}, the last steps backwards: {last:?}"
    ))
}
