//! A system that starts no further thread.
//!
//! The tests run as a user for whom the limit on threads may not hold. So the address space is limited
//! instead: there is no room for the stack of a thread. That holds for the whole process, so a test
//! that needs it is in a test binary of its own, and holds [`Alone`] from its first line.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Builder, JoinHandle};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Room for what the tests allocate. The stack of a thread takes 2 MB.
const ROOM: u64 = 1 << 20;

static ALONE: Mutex<()> = Mutex::new(());

/// Keeps the other tests of the process waiting.
#[derive(Debug)]
pub struct Alone {
    _others: MutexGuard<'static, ()>,
}

/// While it lives, threads are refused.
#[derive(Debug)]
pub struct Refusal {
    before: Rlimit,
    ends: Arc<AtomicBool>,
    /// They have the stacks of threads that had ended, which the C library keeps.
    idle: Vec<JoinHandle<()>>,
}

/// Waits until no other test holds it.
pub fn alone() -> Alone {
    Alone {
        _others: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

impl Alone {
    /// Makes the system refuse threads from now on.
    pub fn refuse(&self) -> Refusal {
        let mut refusal = Refusal {
            before: getrlimit(Resource::As),
            ends: Arc::default(),
            idle: Vec::new(),
        };
        loop {
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
        }
    }
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
