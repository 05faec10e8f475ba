//! A future that workers poll. Each wake-up is followed by a poll, one thread polls at a time, and
//! wake-ups that come together cost one poll. `crates/leases/src/keep_alive/task.rs` has the rules,
//! TASK-1 and TASK-2.
//!
//! A wake-up that is forgotten leaves the future pending at the end.
//!
//! Teeth:
//! - `teeth/task-forgets-a-wake-up-amid-a-poll.patch`
//! - `teeth/task-looks-in-a-second-hold.patch`: a wake-up in between is forgotten.
//! - `teeth/task-is-polled-for-each-wake-up.patch`
//! - `teeth/task-is-polled-under-the-lock.patch`, `teeth/task-drops-its-future-under-the-lock.patch`: a
//!   wake-up in the poll, or in the drop, waits for itself.

use std::sync::atomic::{AtomicBool as Note, AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Poll, Waker};

use loom::thread;

use super::check;
use crate::leases::keep_alive::task::{TaskWorkers, WorkerTask};
use crate::sync::{Arc, Mutex};

/// The workers, whose jobs the model runs. The checker does not see the list, so it orders nothing.
#[derive(Default)]
struct Rig {
    jobs: std::sync::Mutex<Vec<Arc<WorkerTask<Workers>>>>,
    polls: Count,
    polling: Note,
    ended: Note,
    /// What the future waits for, with its waker.
    work: Mutex<(usize, Option<Waker>)>,
}

#[derive(Clone)]
struct Workers(Arc<Rig>);

impl TaskWorkers for Workers {
    fn poll_soon(&self, task: Arc<WorkerTask<Self>>) {
        let mut jobs = self.0.jobs.lock().unwrap();
        jobs.push(task);
        assert_eq!(jobs.len(), 1, "one worker is enough");
    }
}

impl Rig {
    /// A task that ends when there was work so many times.
    fn spawn(rounds: usize) -> Arc<Self> {
        let rig = Arc::new(Rig::default());
        let own = Arc::clone(&rig);
        let mut left = rounds;
        let task = WorkerTask::new(
            Workers(Arc::clone(&rig)),
            std::future::poll_fn(move |context| {
                assert!(!own.polling.swap(true, Relaxed), "two threads poll");
                own.polls.fetch_add(1, Relaxed);
                let mut work = own.work.lock();
                left -= std::mem::take(&mut work.0);
                work.1 = Some(context.waker().clone());
                drop(work);
                own.polling.store(false, Relaxed);
                if left > 0 {
                    return Poll::Pending;
                }
                own.ended.store(true, Relaxed);
                Poll::Ready(())
            }),
        );
        rig.jobs.lock().unwrap().push(task);
        rig
    }

    /// Brings work, and wakes the task.
    fn brings(&self) {
        let waker = {
            let mut work = self.work.lock();
            work.0 += 1;
            work.1.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Runs a job on this thread. Returns whether there was one.
    fn runs_one(&self) -> bool {
        let job = self.jobs.lock().unwrap().pop();
        job.is_some_and(|task| {
            task.poll();
            true
        })
    }

    fn run_out(&self) {
        while self.runs_one() {}
        assert!(self.ended.load(Relaxed), "a wake-up was forgotten");
        // It does not keep itself.
        self.work.lock().1 = None;
    }
}

/// Work comes before, amid and after a poll.
#[test]
fn no_wake_up_is_forgotten() {
    check(3, || {
        let rig = Rig::spawn(2);
        let others = [(); 2].map(|()| {
            let rig = Arc::clone(&rig);
            thread::spawn(move || rig.brings())
        });
        while rig.runs_one() {}
        for other in others {
            other.join().unwrap();
        }
        rig.run_out();
    });
}

/// Whoever wakes it may run the job at once, while another worker still polls.
#[test]
fn one_worker_polls_at_a_time() {
    check(3, || {
        let rig = Rig::spawn(2);
        rig.runs_one();
        let other = {
            let rig = Arc::clone(&rig);
            thread::spawn(move || {
                rig.brings();
                while rig.runs_one() {}
            })
        };
        rig.brings();
        while rig.runs_one() {}
        other.join().unwrap();
        rig.run_out();
        assert!(rig.polls.load(Relaxed) <= 3);
    });
}

/// Wakes its task when it is dropped.
struct WakesInDrop(Waker);

impl Drop for WakesInDrop {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

/// A future may wake its task in its poll, and in its drop.
#[test]
fn the_future_is_neither_polled_nor_dropped_under_the_lock() {
    check(3, || {
        let rig = Arc::new(Rig::default());
        let (own, mut wakes) = (Arc::clone(&rig), None);
        let task = WorkerTask::new(
            Workers(Arc::clone(&rig)),
            std::future::poll_fn(move |context| {
                context.waker().wake_by_ref();
                if wakes.is_none() {
                    wakes = Some(WakesInDrop(context.waker().clone()));
                    return Poll::Pending;
                }
                own.ended.store(true, Relaxed);
                Poll::Ready(())
            }),
        );
        rig.jobs.lock().unwrap().push(task);
        rig.run_out();
    });
}
