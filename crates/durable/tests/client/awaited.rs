//! Calls as futures, and blocking calls within a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use kit::{quiet, runtimes, wait, wakes};
use tourbillon_durable::{CallError, Durable, Memory, MemoryCall, MemoryFault, Paging};

const SECOND: Duration = Duration::from_secs(1);

fn client() -> (Memory, Durable) {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    (store, timers)
}

#[test]
fn every_call_can_be_awaited_on_every_runtime() {
    runtimes::on_all(|| async {
        let (_, timers) = client();
        let day = SECOND * 86_400;
        let tomorrow = SystemTime::now() + day;
        timers.schedule("q", "a", day, &1).await.unwrap();
        timers.schedule("q", "b", tomorrow, &2).await.unwrap();
        let absent = timers.schedule_if_absent("q", "a", day, &3);
        assert!(!absent.await.unwrap().is_scheduled());
        assert!(timers.reschedule("q", "a", day).await.unwrap().is_moved());
        assert!(
            timers
                .reschedule("q", "a", tomorrow)
                .await
                .unwrap()
                .is_moved()
        );
        let many = timers.schedule_many("q", [("c", day, 4), ("d", day, 5)]);
        assert_eq!(many.await.unwrap().len(), 2);
        let cancelled = timers.cancel_many("q", ["c", "d"]).await.unwrap();
        assert!(
            cancelled
                .iter()
                .all(|one| one.as_ref().unwrap().is_cancelled())
        );
        assert!(timers.get("q", "a").await.unwrap().is_some());
        let page = timers.list("q", &Paging::first(10)).await.unwrap();
        assert_eq!(page.len(), 2);
        assert_eq!(timers.counts().await.unwrap()[0].waiting, 2);
        timers.pause("q").await.unwrap();
        timers.resume("q").await.unwrap();
        assert_eq!(timers.dead("q", 0, 10).await.unwrap(), []);
        timers.revive(1).await.unwrap();
        assert!(timers.cancel("q", "a").await.unwrap().is_cancelled());
        let error = timers.cancel("q", "").await.unwrap_err();
        assert!(matches!(error, CallError::Invalid(_)));
        timers.stop(SECOND).await.unwrap();
        assert_eq!(timers.cancel("q", "b").await, Err(CallError::Stopped));
    });
}

#[test]
fn a_store_that_hangs_does_not_block_the_thread_of_the_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (store, timers) = client();
        store.inject(|call| match call {
            MemoryCall::Connect => MemoryFault::None,
            _ => MemoryFault::Hang,
        });
        let write = tokio::spawn(timers.schedule("q", "k", SECOND, &()));
        let read = tokio::spawn(timers.counts());
        // This task goes on while both hang.
        tokio::task::yield_now().await;
        assert!(!write.is_finished() && !read.is_finished());
        store.heal();
        write.await.unwrap().unwrap();
        read.await.unwrap().unwrap();
    });
}

#[test]
fn blocking_calls_within_a_runtime_do_not_panic() {
    runtimes::on_all(|| async {
        let (_, timers) = client();
        timers.schedule("q", "k", SECOND, &()).wait().unwrap();
        assert!(timers.get("q", "k").wait().unwrap().is_some());
        assert!(timers.cancel("q", "k").wait().unwrap().is_cancelled());
        timers.stop(SECOND).wait().unwrap();
    });
}

#[test]
fn a_dropped_future_does_not_undo_its_call() {
    let (_, timers) = client();
    drop(timers.schedule("q", "k", SECOND, &()));
    wait::until("the timer is there", || {
        timers.get("q", "k").wait().unwrap().is_some()
    });
}

#[derive(Default)]
struct Rung(AtomicBool);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_thread_can_wait_for_what_a_task_has_polled() {
    let (store, timers) = client();
    store.inject(|call| match call {
        MemoryCall::Connect => MemoryFault::None,
        _ => MemoryFault::Hang,
    });
    let rung = Arc::new(Rung::default());
    let waker = Waker::from(Arc::clone(&rung));
    let mut pending = timers.schedule("q", "k", SECOND, &());
    let polled = pin!(&mut pending).poll(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Pending));
    let heal = std::thread::spawn(move || store.heal());
    pending.wait().unwrap();
    heal.join().unwrap();
}

#[test]
fn a_waker_is_woken_when_the_answer_is_there() {
    let (store, timers) = client();
    store.inject(|_| MemoryFault::Hang);
    let rung = Arc::new(Rung::default());
    let waker = Waker::from(Arc::clone(&rung));
    let mut pending = pin!(timers.schedule("q", "k", SECOND, &()));
    let mut context = Context::from_waker(&waker);
    assert!(pending.as_mut().poll(&mut context).is_pending());
    store.heal();
    wait::until("the waker is woken", || rung.0.load(Ordering::SeqCst));
    assert!(matches!(pending.poll(&mut context), Poll::Ready(Ok(_))));
}

#[test]
fn a_waker_that_panics_ends_no_thread() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("{}: in a waker", quiet::WANTED);
        }
    }
    quiet::hush();
    let (store, timers) = client();
    store.inject(|_| MemoryFault::Hang);
    let waker = Waker::from(Arc::new(Panics));
    let mut context = Context::from_waker(&waker);
    let mut write = pin!(timers.schedule("q", "k", SECOND, &()));
    let mut read = pin!(timers.counts());
    assert!(write.as_mut().poll(&mut context).is_pending());
    assert!(read.as_mut().poll(&mut context).is_pending());
    store.heal();
    timers.schedule("q", "other", SECOND, &()).wait().unwrap();
    assert!(timers.get("q", "other").wait().unwrap().is_some());
}

#[test]
fn calls_that_are_refused_give_the_runtime_its_turns() {
    let (_, timers) = client();
    wakes::yields("invalid", async || {
        let refused = timers.schedule("", "a", SECOND, &1).await;
        assert!(matches!(refused, Err(CallError::Invalid(_))));
    });
    timers.stop(SECOND).wait().unwrap();
    wakes::yields("stopped", async || {
        assert!(timers.schedule("q", "a", SECOND, &1).await.is_err());
    });
}
