//! Where the connections of a store are driven: a thread of its own, or a runtime of the user.

use std::future::Future;

use tokio::runtime::Handle;

use super::driven::{Driven, KeeperThread};
use super::job::{Job, Task};
use crate::store::{Driver, StoreError};
use crate::sync::{Arc, Mutex, Weak};

/// The place where the I/O of a store runs. Never use it in a forked copy.
pub(crate) struct Io(Runs);

enum Runs {
    /// A thread of the store with this name, from the first call on.
    Own(&'static str, Mutex<Option<KeeperThread>>),
    /// A runtime of the user.
    Given(Handle),
}

/// How soon a task has to run.
#[derive(Clone, Copy)]
enum Haste {
    /// A thread or a task waits for it. The first poll that is pending makes a thread drive.
    Awaited,
    AtOnce,
    /// It may be late by some milliseconds.
    #[cfg(feature = "postgres")]
    Later,
}

impl Io {
    /// Uses the runtime of the user, or a thread of the store with this name.
    pub(crate) fn new(thread: &'static str, given: Option<Handle>) -> Self {
        Io(match given {
            Some(runtime) => Runs::Given(runtime),
            None => Runs::Own(thread, Mutex::new(None)),
        })
    }

    /// Starts a task where the connections are. It ends when the result is dropped.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if the system gives no thread.
    pub(crate) fn start(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Task, StoreError> {
        self.spawn(task, Haste::AtOnce).map(|(task, _)| task)
    }

    /// Starts a task that may be late by twice `LINGER`. Threads that wait for calls can drive
    /// while it runs. Otherwise as [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    #[cfg(feature = "postgres")]
    pub(crate) fn start_at_leisure(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Task, StoreError> {
        self.spawn(task, Haste::Later).map(|(task, _)| task)
    }

    /// Makes a call where the connections are.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<Job<T>, StoreError> {
        let (task, driven) = self.spawn(call, Haste::Awaited)?;
        Ok(Job::new(task, driven))
    }

    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
        haste: Haste,
    ) -> Result<(Task<T>, Weak<Driven>), StoreError> {
        let (name, own) = match &self.0 {
            Runs::Given(runtime) => {
                let started = runtime.spawn(task);
                // If this thread is a worker of the runtime, the runtime keeps the newest task for this
                // worker. The caller may now block the worker until the task has an answer. So start
                // another task, which does nothing. It takes that place, and another worker can run the
                // first one.
                drop(runtime.spawn(async {}));
                return Ok((Task::new(started), Weak::new()));
            }
            Runs::Own(name, own) => (name, own),
        };
        let mut own = own.lock();
        let keeper = match &*own {
            Some(keeper) => keeper,
            None => {
                let started = KeeperThread::start(name);
                own.insert(started.map_err(|error| {
                    StoreError::Unavailable(format!(
                        "the thread for its connections does not start: {error}; raise the limits of \
                         this process"
                    ))
                })?)
            }
        };
        let driven = Arc::clone(keeper.driven());
        drop(own);
        let started = match haste {
            Haste::Awaited => driven.spawn(task),
            Haste::AtOnce => {
                let started = driven.spawn(task);
                driven.wants();
                started
            }
            #[cfg(feature = "postgres")]
            Haste::Later => driven.spawn_uncounted(task),
        };
        Ok((Task::new(started), Arc::downgrade(&driven)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::ThreadId;
    use std::time::Duration;

    use tourbillon::Clock;

    use super::*;
    use crate::store::block_on;

    fn wait<T: Send + 'static>(job: Job<T>) -> Option<T> {
        block_on(&Clock::boottime(), 0, job).expect("this is no forked copy")
    }

    #[test]
    fn calls_share_the_thread_of_the_store_and_one_that_panics_has_no_answer() {
        let io = Io::new("tb-test", None);
        let call = || async {
            let thread = std::thread::current();
            (thread.id(), thread.name().map(str::to_owned))
        };
        let first = wait(io.call(call()).unwrap()).unwrap();
        assert_eq!(first.1, Some("tb-test".to_owned()));
        let panics = async { panic!("on purpose") };
        assert_eq!(wait(io.call::<()>(panics).unwrap()), None);
        assert_eq!(wait(io.call(call()).unwrap()), Some(first));
    }

    /// Makes a call that is pending for a while, and returns the thread that runs it in the end.
    fn waits_and_says_where(io: &Io) -> Option<ThreadId> {
        let call = async {
            tokio::time::sleep(Duration::from_micros(1)).await;
            std::thread::current().id()
        };
        wait(io.call(call).unwrap())
    }

    #[test]
    fn a_thread_that_makes_one_call_after_the_other_drives_them_until_another_one_comes() {
        let io = Io::new("tb-test", None);
        let call = || waits_and_says_where(&io);
        let here = Some(std::thread::current().id());
        let keeper = call();
        assert_ne!(keeper, here);
        let first = (0..1_000).position(|_| call() == here);
        assert!(first.is_some_and(|calls| calls > 3), "{first:?}");
        let panics = async { panic!("on purpose") };
        assert_eq!(wait(io.call::<()>(panics).unwrap()), None);
        assert!((0..1_000).any(|_| call() == here));

        // A task that goes on belongs to the keeper, and so do calls meanwhile.
        let (tell, told) = std::sync::mpsc::channel();
        let task = io.start(async move {
            tell.send(std::thread::current().id()).unwrap();
            std::future::pending::<()>().await;
        });
        assert_eq!(told.recv().ok(), keeper);
        assert_eq!(call(), keeper);
        drop(task);

        // Within another runtime a thread may not drive.
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let entered = runtime.enter();
        assert!((0..100).all(|_| call() == keeper));
        drop(entered);
        assert!((0..1_000).any(|_| call() == here));
    }

    #[test]
    fn a_thread_that_drives_stops_at_its_limit_and_the_keeper_goes_on() {
        let io = Io::new("tb-test", None);
        let here = Some(std::thread::current().id());
        let call = || waits_and_says_where(&io);
        let keeper = call();
        while call() != here {}
        let (tell, told) = std::sync::mpsc::channel();
        let hangs = async move {
            let _told_on_drop: std::sync::mpsc::Sender<()> = tell;
            std::future::pending::<()>().await;
        };
        let hangs = io.call(hangs).unwrap();
        let limit = Duration::from_millis(20);
        let call = Box::pin(async { hangs.await.map(Option::unwrap_or_default) });
        let late = crate::store::complete(&Clock::boottime(), limit, call);
        assert_eq!(late, Err(StoreError::unanswered(limit)));
        // The keeper drops the task.
        assert!(told.recv().is_err());
        let (tell, told) = std::sync::mpsc::channel();
        let _task = io.start(async move { tell.send(std::thread::current().id()).unwrap() });
        assert_eq!(told.recv().ok(), keeper);
    }

    #[test]
    fn the_destructor_of_a_thread_local_may_wait_for_calls() {
        struct Calls(Arc<Io>, std::sync::mpsc::Sender<Option<ThreadId>>);
        impl Drop for Calls {
            fn drop(&mut self) {
                for _ in 0..100 {
                    self.1.send(waits_and_says_where(&self.0)).unwrap();
                }
            }
        }
        std::thread_local! {
            static LAST: std::cell::RefCell<Option<Calls>> = const { std::cell::RefCell::new(None) };
        }
        let io = Arc::new(Io::new("tb-test", None));
        let (tell, told) = std::sync::mpsc::channel();
        let calls = Calls(Arc::clone(&io), tell);
        // The thread-locals of a wait are destroyed first, since they are newer.
        let ends = std::thread::spawn(move || {
            LAST.with(|last| *last.borrow_mut() = Some(calls));
            let here = Some(std::thread::current().id());
            while waits_and_says_where(&io) != here {}
        });
        ends.join().unwrap();
        let answers: Vec<_> = told.iter().collect();
        assert!(answers.len() == 100 && answers.iter().all(Option::is_some));
    }

    #[test]
    fn calls_of_many_threads_and_tasks_all_end() {
        let io = Arc::new(Io::new("tb-test", None));
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).build().unwrap();
        let rounds = 2_000;
        std::thread::scope(|scope| {
            for pause in [0, 1, 7] {
                let io = &io;
                scope.spawn(move || {
                    for round in 0..rounds {
                        let call = async move {
                            tokio::task::yield_now().await;
                            round
                        };
                        assert_eq!(wait(io.call(call).unwrap()), Some(round));
                        // So that a thread is alone now and then.
                        if pause > 0 && round % 300 == 0 {
                            std::thread::sleep(Duration::from_millis(pause));
                        }
                    }
                });
            }
            let (tasks, io) = (Arc::clone(&io), &io);
            let awaits = runtime.spawn(async move {
                for round in 0..rounds {
                    let answer = tasks.call(async move { round }).unwrap().await;
                    assert_eq!(answer, Ok(Some(round)));
                    if round % 100 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            });
            runtime.block_on(awaits).unwrap();
            assert_eq!(wait(io.call(async { 7 }).unwrap()), Some(7));
        });
    }

    #[test]
    fn a_call_ends_with_the_store_and_with_the_future_that_waits_for_it() {
        struct TellsDrop(std::sync::mpsc::Sender<()>);
        impl Drop for TellsDrop {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let endless = || {
            let (tell, told) = std::sync::mpsc::channel();
            let told_on_drop = TellsDrop(tell);
            let call = async move {
                let _told = told_on_drop;
                std::future::pending::<()>().await;
            };
            (call, told)
        };
        let io = Io::new("tb-test", None);
        let (call, told) = endless();
        drop(io.call(call).unwrap());
        assert_eq!(told.recv(), Ok(()));
        let (call, told) = endless();
        let waits = io.call(call).unwrap();
        drop(io);
        assert_eq!(told.recv(), Ok(()));
        assert_eq!(wait(waits), None);
    }
}
