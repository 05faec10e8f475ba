//! Forked copies of a process. The models compile this file, too.

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
