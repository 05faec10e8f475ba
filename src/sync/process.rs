//! What belongs to the present process. The models compile this file, too.

/// The process in which something was made.
///
/// A fork copies the memory of a process and only the thread that forks. A lock that another thread
/// held at that moment stays locked in the copy, and sockets are shared with the original. What must
/// not be used in a copy keeps its origin and looks at it before it takes a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    /// The process that calls.
    pub(crate) fn here() -> Self {
        Origin(std::process::id())
    }

    /// Whether the process that calls is a forked copy. One system call. A copy of a copy may get the
    /// number of an original that has ended; nothing safe can tell those two apart.
    pub(crate) fn is_elsewhere(self) -> bool {
        std::process::id() != self.0
    }
}

/// A number that no other call of this process gets, within 4 billion of them.
pub(crate) fn unique_number() -> u32 {
    // std's atomic even under the checker, which has no statics: nothing is ordered by it.
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    // Relaxed: only the numbers must differ.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
