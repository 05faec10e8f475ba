//! A scheduler that always has something to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tourbillon::{Firing, Runtime, Scheduler, Shutdown};

use super::scheduler_on;

/// Keeps the workers busy with short tasks of another scheduler until it is dropped.
pub(super) struct Load {
    ends: Arc<AtomicBool>,
    scheduler: Option<Scheduler<u32>>,
}

impl Load {
    pub(super) fn on(runtime: &Runtime) -> Self {
        fn again(firing: &Firing<'_, u32>, ends: Arc<AtomicBool>) {
            if !ends.load(Ordering::SeqCst) {
                let next = move |firing: &Firing<'_, u32>| again(firing, ends);
                let _ = firing
                    .handle()
                    .schedule(*firing.key(), Duration::ZERO, next);
            }
        }
        let scheduler = scheduler_on(runtime);
        let ends = Arc::new(AtomicBool::new(false));
        for key in 0..20 {
            let ends = Arc::clone(&ends);
            let task = move |firing: &Firing<'_, u32>| again(firing, ends);
            scheduler
                .handle()
                .schedule(key, Duration::ZERO, task)
                .unwrap();
        }
        Load {
            ends,
            scheduler: Some(scheduler),
        }
    }

    pub(super) fn ran(&self) -> u64 {
        self.scheduler.as_ref().unwrap().handle().stats().ran
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let scheduler = self.scheduler.take().unwrap();
        let report = scheduler.shutdown(Shutdown::RunNow).wait().unwrap();
        assert!(thread::panicking() || report.still_running == 0);
    }
}
