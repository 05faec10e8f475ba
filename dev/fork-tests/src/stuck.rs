//! A fork beside a thread that is just ending.
//!
//! The standard library has a list of all threads, and removes a thread that ends under a lock.
//! There it frees the thread's name, and the allocator of this program can wait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The length of the name: nothing else of this program has that many bytes.
const LENGTH: usize = 1_013;

/// For how long a thread may take to end.
const ENDS: Duration = Duration::from_secs(60);

/// What the allocator does with such a name: it frees it ..
const FREE: u8 = 0;
/// .. or goes to `STUCK` ..
const STICK: u8 = 1;
/// .. and waits there.
const STUCK: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FREE);

struct Sticking;

#[global_allocator]
static ALLOCATOR: Sticking = Sticking;

#[allow(unsafe_code, reason = "an allocator takes unsafe code")]
// SAFETY: all calls go to the system's allocator, some of them later.
unsafe impl GlobalAlloc for Sticking {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if (layout.size(), layout.align()) == (LENGTH, 1) {
            stick();
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn stick() {
    let swap = |from, to| STATE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    if swap(STICK, STUCK).is_ok() {
        while STATE.load(Ordering::SeqCst) == STUCK {
            thread::yield_now();
        }
    }
}

/// A thread that is just ending, and goes on when this is released. In a copy that is forked
/// meanwhile it never does.
pub(crate) struct Stuck(JoinHandle<()>);

impl Stuck {
    pub(crate) fn new() -> Self {
        let name = thread::Builder::new().name("x".repeat(LENGTH));
        // From here on its name is used by the list alone.
        let ending = name.spawn(|| STATE.store(STICK, Ordering::SeqCst));
        let ending = ending.expect("the original can start threads");
        let start = Instant::now();
        while STATE.load(Ordering::SeqCst) != STUCK {
            let more = start.elapsed() < ENDS;
            assert!(more, "the standard library frees a name otherwise now");
            thread::yield_now();
        }
        Stuck(ending)
    }

    pub(crate) fn release(self) {
        STATE.store(FREE, Ordering::SeqCst);
        self.0.join().expect("it does not panic");
    }
}
