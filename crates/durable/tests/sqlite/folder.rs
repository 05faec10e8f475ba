//! A folder of its own for each test, and calls in short form.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tourbillon_durable::store::{Action, Call};
use tourbillon_durable::{DueAt, Sqlite};

/// A folder that ends with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sqlite-{}-{number}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // What a process with the same id has left behind.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("timers.db")
    }

    pub(crate) fn store(&self) -> Sqlite {
        Sqlite::open(self.file()).expect("a store")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn schedule_in(queue: &str, key: &str, delay: Duration) -> Call {
    call(
        queue,
        key,
        Action::Schedule {
            when: DueAt::After(delay),
            payload: "{}".into(),
        },
    )
}

pub(crate) fn call(queue: &str, key: &str, action: Action) -> Call {
    Call {
        queue: queue.into(),
        key: key.into(),
        action,
    }
}
