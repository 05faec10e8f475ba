//! Detects forked copies of a process. The models compile this file, too.

/// The process in which a value was created.
///
/// A fork copies the memory of a process, but only the thread that forks. A lock that another
/// thread held at that moment stays locked in the copy, and sockets are shared with the original. A
/// type that must not be used in a copy keeps its origin, and checks it before it takes a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u32);

impl Origin {
    /// Returns the calling process.
    pub(crate) fn here() -> Self {
        Origin(std::process::id())
    }

    /// Returns whether the calling process is a forked copy. This costs one system call.
    ///
    /// A copy of a copy may get the process id of an original that has ended. Safe code can't tell
    /// these two apart.
    pub(crate) fn is_elsewhere(self) -> bool {
        std::process::id() != self.0
    }
}
