//! A system that starts no further thread.
//!
//! The tests run as a user for whom the limit on threads may not hold. So the address space is
//! limited instead: there is no room for the stack of a thread. That holds for the whole process,
//! and a thread that is just starting aborts the process if it gets no memory. So a test that needs
//! this is the only one of its test binary.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::wait::until;

/// Room for what the tests allocate. The stack of a thread takes 2 MB.
const ROOM: u64 = 1 << 20;

/// While it lives, threads are refused.
#[derive(Debug)]
pub struct Refusal {
    before: Rlimit,
    ends: Arc<AtomicBool>,
    /// They have the stacks of threads that had ended, which the C library keeps.
    idle: Vec<JoinHandle<()>>,
}

/// Makes the system refuse threads from now on. All other threads of the process have to wait for
/// something meanwhile.
pub fn refuse_threads() -> Refusal {
    let mut refusal = Refusal {
        before: getrlimit(Resource::As),
        ends: Arc::default(),
        idle: Vec::new(),
    };
    loop {
        until("all threads wait", others_wait);
        let limit = Rlimit {
            current: Some(address_space() + ROOM),
            maximum: refusal.before.maximum,
        };
        setrlimit(Resource::As, limit).expect("a limit may be lowered");
        let ends = Arc::clone(&refusal.ends);
        let idle = Builder::new().spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                thread::park();
            }
        });
        match idle {
            Ok(idle) => refusal.idle.push(idle),
            Err(_) => return refusal,
        }
        // The new thread needs memory for its start.
        setrlimit(Resource::As, refusal.before).expect("a limit may be raised again");
    }
}

/// Whether all threads but this one sleep. A thread that starts runs, or could run.
fn others_wait() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = fs::read_dir("/proc/self/task").expect("Linux has it");
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        // The state follows the name, which may have any character. A thread that has ended is
        // none.
        let state = stat.as_ref().ok().and_then(|stat| stat.rsplit_once(") "));
        thread.file_name() == *own || state.is_none_or(|(_, rest)| rest.starts_with('S'))
    })
}

/// Whether the system starts a thread.
pub fn starts_threads() -> bool {
    let thread: io::Result<JoinHandle<()>> = Builder::new().spawn(|| ());
    thread.map(|thread| thread.join()).is_ok()
}

impl Drop for Refusal {
    fn drop(&mut self) {
        setrlimit(Resource::As, self.before).expect("a limit may be raised again");
        self.ends.store(true, Ordering::SeqCst);
        for idle in self.idle.drain(..) {
            idle.thread().unpark();
            idle.join().expect("it does not panic");
        }
    }
}

/// The size of this process, as the limit counts it.
fn address_space() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes
        .expect("a line with kB")
        .trim()
        .parse()
        .expect("a number");
    kilobytes * 1_024
}
