//! Handlers that are futures.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use kit::{quiet, runtimes, wait};
use tourbillon_durable::{Due, Durable, Ending, Memory, RetryPolicy};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, soon};

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_time().build().unwrap()
}

#[test]
fn futures_run_to_their_end() {
    let runtime = runtime();
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle_tokio("q", runtime.handle().clone(), move |due: Due<String>| {
            let sender = sender.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(due.is_held());
                sender.send(due.payload().clone()).unwrap();
                match due.payload().as_str() {
                    "again" => Ok(Ending::Again(ms(1))),
                    "fails" => Err("no"),
                    _ => Ok(Ending::Done),
                }
            }
        })
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, "once").wait().unwrap();
    assert_eq!(wait::next(&receiver), "once");
    settled(&timers, "q", "k");
    timers.schedule("q", "k", NOW, "fails").wait().unwrap();
    assert_eq!(
        (wait::next(&receiver), wait::next(&receiver)),
        ("fails".into(), "fails".into())
    );
    wait::until("it is dead", || timers.stats().dead == 1);
    timers.schedule("q", "k", NOW, "again").wait().unwrap();
    assert_eq!(
        (wait::next(&receiver), wait::next(&receiver)),
        ("again".into(), "again".into())
    );
    assert_eq!(timers.stop(SECOND).wait().unwrap().unfinished, 0);
}

#[test]
fn many_futures_wait_at_one_time_on_one_thread() {
    let runtime = runtime();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(200));
    let store = Memory::new();
    let timers = node(&store)
        .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
            let barrier = std::sync::Arc::clone(&barrier);
            async move {
                barrier.wait().await;
            }
        })
        .running(200)
        .start()
        .unwrap();
    let many = (0..200).map(|n| (n.to_string(), NOW, ()));
    timers.schedule_many("q", many).wait().unwrap();
    wait::until("all have run", || timers.stats().succeeded == 200);
}

#[test]
fn panics_of_futures_are_caught_wherever_they_are() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("{}: in the drop", quiet::WANTED);
            }
        }
    }
    quiet::hush();
    let runtime = runtime();
    let store = Memory::new();
    let timers = node(&store)
        .handle_tokio("q", runtime.handle().clone(), |due: Due<String>| {
            if due.payload() == "made" {
                panic!("{}: when it is made", quiet::WANTED);
            }
            async move {
                tokio::task::yield_now().await;
                if due.payload() == "dropped" {
                    let _bomb = Bomb;
                    return;
                }
                panic!("{}: when it is polled", quiet::WANTED);
            }
        })
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    for (n, (payload, expected)) in (1..).zip([
        ("made", "when it is made"),
        ("polled", "when it is polled"),
        ("dropped", "in the drop"),
    ]) {
        timers.schedule("q", payload, NOW, payload).wait().unwrap();
        wait::until("it is dead", || timers.stats().dead == n);
        let letters = timers.dead("q", 0, 10).wait().unwrap();
        let letter = letters.iter().find(|letter| letter.key == payload).unwrap();
        assert!(letter.error.contains(expected), "{}", letter.error);
    }
    assert_eq!((timers.stats().panicked, timers.stats().running), (3, 0));
}

#[test]
fn a_runtime_that_ends_during_a_run_fails_the_run() {
    let runtime = runtime();
    let (sender, receiver) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
            let sender = sender.clone();
            async move {
                sender.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        })
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    timers.schedule("q", "runs", NOW, &()).wait().unwrap();
    wait::next(&receiver);
    runtime.shutdown_background();
    wait::until("it is dead", || timers.stats().dead == 1);
    let letters = timers.dead("q", 0, 1).wait().unwrap();
    assert!(
        letters[0].error.contains("dropped before its end"),
        "{}",
        letters[0].error
    );
    // Nothing can run there any more, so the timers are left alone for a while.
    timers.schedule("q", "waits", NOW, &()).wait().unwrap();
    wait::until("it was given back", || timers.stats().given_back > 0);
    assert_eq!(timers.get("q", "waits").wait().unwrap().unwrap().fails, 0);
}

#[test]
fn handlers_may_call_the_timers() {
    runtimes::on_all_in_turn(|runtime| {
        let shared: std::sync::Arc<std::sync::OnceLock<tourbillon_durable::Durable>> =
            std::sync::Arc::default();
        let (sender, receiver) = mpsc::channel();
        let own = std::sync::Arc::clone(&shared);
        let store = Memory::new();
        let timers = node(&store)
            .handle_tokio("first", runtime.handle().clone(), move |_: Due<()>| {
                let own = std::sync::Arc::clone(&own);
                let sender = sender.clone();
                async move {
                    let timers = own.get().expect("it is there before the first timer");
                    timers.schedule("second", "k", SECOND * 60, &()).await?;
                    sender.send(()).unwrap();
                    Ok::<(), tourbillon_durable::CallError>(())
                }
            })
            .start()
            .unwrap();
        shared.set(timers.clone()).unwrap();
        timers.schedule("first", "k", NOW, &()).wait().unwrap();
        // A runtime on the calling thread runs tasks only while the thread is in it.
        runtime.block_on(runtimes::eventually("the handler has run", || {
            receiver.try_recv().is_ok()
        }));
        assert!(timers.get("second", "k").wait().unwrap().is_some());
        timers.stop(NOW).wait().unwrap();
    });
}

#[test]
fn a_handler_that_awaits_the_stop_does_not_wait_for_itself() {
    let runtime = runtime();
    let (sender, receiver) = mpsc::channel();
    let shared: Arc<OnceLock<Durable>> = Arc::default();
    let own = Arc::clone(&shared);
    let timers = node(&Memory::new())
        .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
            let (own, sender) = (own.wait().clone(), sender.clone());
            async move {
                let unfinished = own.stop(HOUR).await.unwrap().unfinished;
                sender.send(unfinished).unwrap();
            }
        })
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&receiver), 1);
    let report = timers.stop(HOUR).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (0, true));
}
