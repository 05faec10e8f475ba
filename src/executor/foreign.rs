//! Executors of the user, which run expired tasks instead of the scheduler's own workers.

use core::fmt;

use crate::job::{AtLock, Claim, Ticket};
use crate::sync::Arc;

/// Runs expired tasks on threads of the user instead of the scheduler's own workers: on a thread
/// pool, an async runtime's blocking pool, or an event loop.
///
/// A worker takes expired timers in batches of up to 33 and passes each batch to
/// [`execute`](Executor::execute) as one [`Job`]. The executor calls [`Job::run`] on any thread,
/// now or later. It need not consider deadlines: all tasks of a job are due. They run one after
/// another, so a task must not wait for another one that may be in the same job.
///
/// No task is lost on the way. A job that is refused, or dropped without having run, gives its
/// tasks back to the scheduler, which offers them again. Until [`Job::run`] reaches a task, that
/// task can still be cancelled, moved and replaced.
///
/// Sleeps of a [`Timer`](crate::Timer), and the spawns of futures, do not come to an executor: the
/// worker wakes and spawns itself, so they do not wait for tasks that hang. Only while
/// 65,536 tasks of a shard wait for the executor, they wait like all timers of the shard.
///
/// # Blocking
///
/// `execute` is called on a worker, like a task. A call that blocks delays no tick: workers are
/// added for others that wait, and there are up to
/// [`max_running`](crate::SchedulerBuilder::max_running) calls at a time. But its own batch waits.
/// Don't wait for room in a queue; return the job instead. A panic in `execute` is caught.
///
/// # Examples
///
/// A thread for every batch. If the thread can't be started, the closure is dropped, and the job in
/// it gives its tasks back.
///
/// ```
/// use tourbillon::{Executor, Job};
///
/// struct ThreadPerBatch;
///
/// impl Executor for ThreadPerBatch {
///     fn execute(&self, job: Job) -> Result<(), Job> {
///         let _ = std::thread::Builder::new().spawn(move || job.run());
///         Ok(())
///     }
/// }
/// ```
///
/// A bounded queue that another thread serves. The executor returns the job if the queue is full or
/// its receiver is gone.
///
/// ```
/// use std::sync::mpsc::{SyncSender, sync_channel};
/// use tourbillon::{Executor, Job};
///
/// struct Queue(SyncSender<Job>);
///
/// impl Executor for Queue {
///     fn execute(&self, job: Job) -> Result<(), Job> {
///         use std::sync::mpsc::TrySendError::{Disconnected, Full};
///         self.0.try_send(job).map_err(|refused| match refused {
///             Full(job) | Disconnected(job) => job,
///         })
///     }
/// }
///
/// let (sender, receiver) = sync_channel::<Job>(64);
/// let queue = Queue(sender);
/// let server = std::thread::spawn(move || receiver.into_iter().for_each(Job::run));
/// # drop(queue);
/// # server.join().unwrap();
/// ```
pub trait Executor: Send + Sync + 'static {
    /// Takes a batch of expired tasks and arranges that [`Job::run`] is called soon. Should not
    /// block. May be called by several threads at a time.
    ///
    /// # Errors
    ///
    /// Returns the job if it can't be taken now. The scheduler offers its tasks again later.
    fn execute(&self, job: Job) -> Result<(), Job>;
}

impl<E: Executor + ?Sized> Executor for Arc<E> {
    fn execute(&self, job: Job) -> Result<(), Job> {
        (**self).execute(job)
    }
}

/// A batch of expired tasks on its way to a thread of an [`Executor`].
///
/// [`run`](Job::run) runs the tasks. A job that is dropped instead gives its tasks back to the
/// scheduler.
///
/// # Examples
///
/// ```
/// use tourbillon::{Executor, Job, Scheduler};
///
/// struct Threads;
/// impl Executor for Threads {
///     fn execute(&self, job: Job) -> Result<(), Job> {
///         std::thread::spawn(move || job.run());
///         Ok(())
///     }
/// }
/// let scheduler = Scheduler::<u64>::builder().executor(Threads).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a job that is dropped without having run goes back to the scheduler"]
pub struct Job {
    claim: Arc<dyn Claim>,
    /// The remaining tickets, in the order in which they expired.
    waiting: std::vec::IntoIter<Ticket>,
}

impl Job {
    pub(crate) fn new(claim: Arc<dyn Claim>, tickets: Vec<Ticket>) -> Self {
        Job {
            claim,
            waiting: tickets.into_iter(),
        }
    }

    /// Runs the tasks one after another on the calling thread. Tasks that were cancelled, moved or
    /// replaced meanwhile are skipped.
    ///
    /// A panic of a task is caught and counted by the scheduler. The other tasks run nevertheless.
    ///
    /// # Blocking
    ///
    /// Blocks until all tasks have run.
    pub fn run(mut self) {
        while let Some(first) = self.waiting.next() {
            // Taken one by one, so that after a panic the drop gives the remaining tickets back.
            // No ticker checks this thread, so the mark is read by nobody.
            self.claim
                .serve(first, &AtLock::default(), &mut || self.waiting.next());
        }
    }

    /// Returns the number of tasks, including cancelled ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether there are no tasks. A scheduler never makes such a job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let left = self.waiting.as_slice();
        if !left.is_empty() {
            self.claim.give_back(left);
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[derive(Default)]
    struct Ledger {
        served: Mutex<Vec<u32>>,
        returned: Mutex<Vec<u32>>,
        panics_at: Option<u32>,
        one_by_one: bool,
    }

    impl Claim for Ledger {
        fn serve(&self, first: Ticket, _: &AtLock, more: &mut dyn FnMut() -> Option<Ticket>) {
            let mut next = Some(first);
            while let Some(ticket) = next {
                assert_ne!(Some(ticket.slot), self.panics_at, "on purpose");
                self.served.lock().push(ticket.slot);
                next = if self.one_by_one { None } else { more() };
            }
        }

        fn give_back(&self, tickets: &[Ticket]) {
            self.returned.lock().extend(tickets.iter().map(|t| t.slot));
        }
    }

    fn tickets(slots: std::ops::Range<u32>) -> Vec<Ticket> {
        slots.map(|slot| Ticket { stripe: 7, slot }).collect()
    }

    #[test]
    fn a_job_runs_in_order_and_gives_nothing_back() {
        for one_by_one in [false, true] {
            let ledger = Arc::new(Ledger {
                one_by_one,
                ..Ledger::default()
            });
            let job = Job::new(ledger.clone(), tickets(0..4));
            assert_eq!((job.len(), job.is_empty()), (4, false));
            assert_eq!(format!("{job:?}"), "Job { len: 4, .. }");
            job.run();
            assert_eq!(*ledger.served.lock(), [0, 1, 2, 3]);
            assert!(ledger.returned.lock().is_empty());
        }
    }

    #[test]
    fn c108_a_job_dropped_without_having_run_gives_its_tickets_back() {
        let ledger = Arc::new(Ledger::default());
        drop(Job::new(ledger.clone(), tickets(0..3)));
        assert_eq!(*ledger.returned.lock(), [0, 1, 2]);
        assert!(ledger.served.lock().is_empty());
    }

    #[test]
    fn c108_a_refused_job_comes_back_whole() {
        struct Refuses;
        impl Executor for Refuses {
            fn execute(&self, job: Job) -> Result<(), Job> {
                Err(job)
            }
        }
        let ledger = Arc::new(Ledger::default());
        let executor: Arc<dyn Executor> = Arc::new(Refuses);
        let refused = executor.execute(Job::new(ledger.clone(), tickets(0..3)));
        assert_eq!(refused.unwrap_err().len(), 3);
        assert_eq!(
            *ledger.returned.lock(),
            [0, 1, 2],
            "its drop gives them back"
        );
    }

    #[test]
    fn c112_what_follows_a_panic_is_given_back() {
        let ledger = Arc::new(Ledger {
            panics_at: Some(2),
            ..Ledger::default()
        });
        let job = Job::new(ledger.clone(), tickets(0..5));
        assert!(catch_unwind(AssertUnwindSafe(|| job.run())).is_err());
        assert_eq!(*ledger.served.lock(), [0, 1]);
        assert_eq!(*ledger.returned.lock(), [3, 4]);
    }

    #[test]
    fn jobs_travel_between_threads() {
        fn send_and_sync<T: Send + Sync>() {}
        send_and_sync::<Job>();
    }
}
