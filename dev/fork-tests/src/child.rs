//! Forks, and watches the copy.

use std::fmt::Debug;
use std::io::{ErrorKind, PipeWriter, Read, Write, pipe};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::stuck::Stuck;

/// A copy whose next step takes longer hangs. Less than a lease, so that one that waits for the end
/// of a lease does.
const HANGS: Duration = Duration::from_secs(25);

/// A thread that has not started by then does not start.
const STARTS: Duration = Duration::from_secs(5);

/// The step of a copy in which no thread starts.
const NO_THREADS: &str = "no thread starts here";

/// The number of copies that have ended.
static ENDED: AtomicUsize = AtomicUsize::new(0);

/// The number of copies in which no thread starts.
static WITHOUT_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Whether no thread starts in any copy.
static BESIDE_AN_END: AtomicBool = AtomicBool::new(false);

/// Returns how many copies could not be checked where that takes threads.
pub(crate) fn without_threads() -> usize {
    WITHOUT_THREADS.load(Ordering::SeqCst)
}

/// From now on each fork is made beside a thread that is just ending, so that no thread starts in
/// the copies.
pub(crate) fn beside_an_end() {
    BESIDE_AN_END.store(true, Ordering::SeqCst);
}

/// Ends the program if no further copy ends for long, since then the original hangs.
pub(crate) fn watch() {
    let mut before = None;
    loop {
        let ended = ENDED.load(Ordering::SeqCst);
        if before == Some(ended) {
            eprintln!("the original hangs after {ended} copies");
            std::process::abort();
        }
        before = Some(ended);
        thread::sleep(5 * HANGS);
    }
}

/// What a copy tells its original.
pub(crate) struct Report {
    told: PipeWriter,
    /// Whether threads are known to start in this copy.
    starts: bool,
}

impl Report {
    /// Names the next step, so that the original knows where a copy hangs.
    pub(crate) fn step(&mut self, what: &str) {
        let _ = self.told.write_all(format!("{what}\n").as_bytes());
    }

    /// Returns whether threads start in this copy.
    ///
    /// None does if a thread of the original was just starting or ending at the fork: the standard
    /// library has a list of all threads (`std::sys::pal::unix::stack_overflow`), whose lock stays
    /// locked in the copy. The guide says so.
    pub(crate) fn threads_start(&mut self) -> bool {
        if BESIDE_AN_END.load(Ordering::SeqCst) {
            return false;
        }
        let (tell, told) = channel();
        let started = thread::Builder::new().spawn(move || tell.send(()));
        self.starts = started.is_ok() && told.recv_timeout(STARTS) == Ok(());
        if !self.starts {
            self.step(NO_THREADS);
        }
        self.starts
    }

    /// Ends the copy.
    fn exit(&self) -> ! {
        if !self.starts {
            // The exit of the standard library takes the same lock.
            #[allow(unsafe_code, reason = "no safe function ends a process at once")]
            // SAFETY: a plain system call, after which nothing runs.
            unsafe {
                libc::_exit(0)
            }
        }
        std::process::exit(0)
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

/// Runs `check` in a forked copy. Returns what was wrong: a check, the end of the copy, or that it
/// did not end.
pub(crate) fn in_copy(check: impl FnOnce(&mut Report)) -> Option<String> {
    let (mut tells, told) = pipe().expect("a pipe");
    let stuck = BESIDE_AN_END.load(Ordering::SeqCst).then(Stuck::new);
    // Nothing is between the fork and this thread's next statement but the handlers of the fork.
    #[allow(
        unsafe_code,
        reason = "no safe function forks, and this is about forks"
    )]
    // SAFETY: the copy goes on with this thread alone, and calls only what has to work there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(tells);
        let mut report = Report {
            told,
            starts: false,
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut report)));
        report.step(if ended.is_ok() {
            "well"
        } else {
            "WRONG: a panic"
        });
        report.exit();
    }
    drop(told);
    if let Some(stuck) = stuck {
        stuck.release();
    }
    if child < 0 {
        return Some("no fork".to_owned());
    }
    let (steps, heard) = channel::<()>();
    let killer = thread::spawn(move || {
        loop {
            match heard.recv_timeout(HANGS) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        #[allow(unsafe_code, reason = "no safe function of std kills by number")]
        // SAFETY: a plain system call. The child was not waited for, so the number is still its
        // own.
        unsafe {
            libc::kill(child, libc::SIGKILL);
        }
        true
    });
    let mut said = Vec::new();
    let mut some = [0; 4096];
    let read = loop {
        match tells.read(&mut some) {
            Ok(0) => break Ok(()),
            Ok(number) => {
                said.extend_from_slice(&some[..number]);
                // It has ended if it has killed the copy.
                let _ = steps.send(());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
    };
    drop(steps);
    let said = String::from_utf8_lossy(&said);
    if said.contains(NO_THREADS) {
        WITHOUT_THREADS.fetch_add(1, Ordering::SeqCst);
    }
    let hung = killer.join().expect("it does not panic");
    let mut status = 0;
    #[allow(unsafe_code, reason = "no safe function of std waits by number")]
    // SAFETY: the status lives as long as the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ENDED.fetch_add(1, Ordering::SeqCst);
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
