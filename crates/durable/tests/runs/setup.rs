//! Nodes with short poll intervals, and what tests wait for.

use std::time::Duration;

use kit::wait;
use tourbillon_durable::store::Store;
use tourbillon_durable::{Durable, DurableBuilder, Memory, RetryPolicy};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const NOW: Duration = Duration::ZERO;
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Makes a fresh store.
pub(crate) type Fresh<'a> = &'a dyn Fn() -> Box<dyn Store>;

/// Makes a test of each case on each store of this machine.
macro_rules! on_each_store {
    ($($(#[$also:meta])* $case:ident,)+) => {
        mod memory {
            $($(#[$also])* #[test] fn $case() {
                super::$case(&|| Box::new(tourbillon_durable::Memory::new()));
            })+
        }
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $($(#[$also])* #[test] fn $case() {
                crate::setup::on_sqlite(super::$case);
            })+
        }
    };
}
pub(crate) use on_each_store;

/// Runs a case on files of SQLite, in a folder that ends with it.
#[cfg(feature = "sqlite")]
pub(crate) fn on_sqlite(case: fn(Fresh<'_>)) {
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Folder(PathBuf);
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number matters.
    let next = || NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("runs-{}-{}", std::process::id(), next());
    let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
    // What a process with the same id has left behind.
    let _ = std::fs::remove_dir_all(&folder.0);
    std::fs::create_dir_all(&folder.0).unwrap();
    case(&|| {
        let file = folder.0.join(format!("{}.db", next()));
        Box::new(tourbillon_durable::Sqlite::open(file).unwrap())
    });
}

/// A node that polls often. Its lease is so long that a busy machine does not end it.
pub(crate) fn node(store: &Memory) -> DurableBuilder {
    node_on(Box::new(store.clone()))
}

/// The same on any store.
pub(crate) fn node_on(store: Box<dyn Store>) -> DurableBuilder {
    Durable::builder(store)
        .poll_interval(ms(20))
        .node_lease(SECOND * 60)
}

/// A node whose lease is as short as tests have it.
pub(crate) fn short_node(store: &Memory) -> DurableBuilder {
    Durable::builder(store.clone())
        .poll_interval(ms(50))
        .node_lease(ms(300))
}

/// Tries again at once.
pub(crate) fn soon(attempts: u32) -> RetryPolicy {
    RetryPolicy::fixed(ms(1)).attempts(attempts)
}

/// Waits until a timer is not there any more: its run was settled.
#[track_caller]
pub(crate) fn settled(timers: &Durable, queue: &str, key: &str) {
    wait::until("the timer is settled", || {
        timers.get(queue, key).wait().unwrap().is_none()
    });
}
