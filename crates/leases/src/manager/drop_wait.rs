//! How long the drops of guards wait on one thread.
//!
//! A vector of guards is dropped one after the other. If each drop waited for its own round trip,
//! 500 guards would take 500 of them. So drops that follow each other share one limit. The releases
//! of those that do not wait any more are queued, and travel together.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::store::is_waited_for;

thread_local! {
    /// The last drop of this thread that followed no acquire.
    static LAST: Cell<Option<LastDrop>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct LastDrop {
    end: Instant,
    /// How long it and the drops before it have waited.
    waited: Duration,
}

/// Waits for a release that a drop has queued, for at most what the drops before it have left of
/// `limit`.
pub(super) fn wait_at_most(limit: Duration, wait: impl FnOnce(Duration)) {
    let begin = Instant::now();
    let last = LAST.get().filter(|last| begin - last.end < limit);
    let before = last.map_or(Duration::ZERO, |last| last.waited);
    let left = limit.saturating_sub(before);
    if !left.is_zero() {
        wait(left);
    }
    let end = Instant::now();
    let waited = before + (end - begin);
    LAST.set(Some(LastDrop { end, waited }));
}

/// Returns whether a thread waits for this acquire. Such a thread may also wait in the drop of the
/// guard. Its next drop gets a limit of its own, since the thread may want the very lock that it
/// has dropped.
pub(super) async fn acquires() -> bool {
    let waits = is_waited_for().await;
    if waits {
        LAST.set(None);
    }
    waits
}
