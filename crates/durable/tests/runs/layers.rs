//! Layers around handlers.

use std::cell::RefCell;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use kit::{quiet, wait};
use tourbillon_durable::{Due, Durable, NextLayer, Ran, RetryPolicy, RunInfo};

use super::setup::{Fresh, NOW, SECOND, node_on, on_each_store, settled, soon};

on_each_store! {
    layers_are_around_each_other_and_the_handler,
    a_layer_sees_errors_and_panics_of_the_handler,
    a_layer_that_panics_is_a_panic_of_the_run,
    panics_in_the_drops_of_layers_change_nothing,
    an_outer_layer_may_catch_the_panic_of_an_inner_one_no_more_than_it_may_skip_it,
    a_layer_may_stop_the_timers_like_a_handler,
}

thread_local! {
    /// A context that layers set and handlers read.
    static CONTEXT: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What was seen, in its order.
type Seen = Arc<Mutex<Vec<String>>>;

fn see(seen: &Seen, what: impl Into<String>) {
    seen.lock().unwrap().push(what.into());
}

fn taken(seen: &Seen) -> Vec<String> {
    std::mem::take(&mut *seen.lock().unwrap())
}

/// What a layer does for one run.
type Steps = Box<dyn FnMut(NextLayer<'_>) -> Ran<'_> + Send>;

/// Notes its begin, its steps and its end.
struct Notes(Seen, &'static str);

impl Drop for Notes {
    fn drop(&mut self) {
        see(&self.0, format!("{} ends", self.1));
    }
}

/// A node whose handler fails as its payload says, with this layer.
fn with_layer(
    fresh: Fresh<'_>,
    layer: impl Fn(&RunInfo) -> Steps + Send + Sync + 'static,
) -> (Durable, Receiver<u32>) {
    quiet::hush();
    let (sender, runs) = mpsc::channel();
    let timers = node_on(fresh())
        .handle("q", move |due: &Due<u32>| sender.send(*due.payload()))
        .retry(RetryPolicy::never())
        .around(layer)
        .start()
        .unwrap();
    (timers, runs)
}

fn layers_are_around_each_other_and_the_handler(fresh: Fresh<'_>) {
    let seen = Seen::default();
    let layer = |name: &'static str| {
        let seen = Arc::clone(&seen);
        move |run: &RunInfo| -> Steps {
            see(&seen, format!("{name} begins {}", run.key()));
            let notes = Notes(Arc::clone(&seen), name);
            Box::new(move |next| {
                let Notes(seen, name) = &notes;
                see(seen, format!("{name} in"));
                let ran = next.run();
                see(seen, format!("{name} out, ended: {}", ran.is_ended()));
                ran
            })
        }
    };
    let inside = Arc::clone(&seen);
    let timers = node_on(fresh())
        .around(layer("outer"))
        .handle("q", move |_: &Due<()>| see(&inside, "handler"))
        .around(layer("inner"))
        .start()
        .unwrap();
    for key in ["first", "second"] {
        timers.schedule("q", key, NOW, &()).wait().unwrap();
        settled(&timers, "q", key);
        assert_eq!(
            taken(&seen),
            [
                &format!("outer begins {key}"),
                &format!("inner begins {key}"),
                "outer in",
                "inner in",
                "handler",
                "inner out, ended: true",
                "outer out, ended: true",
                "inner ends",
                "outer ends",
            ]
        );
    }
}

fn a_layer_sees_errors_and_panics_of_the_handler(fresh: Fresh<'_>) {
    quiet::hush();
    let (sender, errors) = mpsc::channel();
    let timers = node_on(fresh())
        .around(move |_| {
            let sender = sender.clone();
            // The compiler finds the type of `next`.
            move |next| {
                let ran = next.run();
                drop(sender.send(ran.error().map(str::to_owned)));
                ran
            }
        })
        .handle("q", |due: &Due<()>| match due.attempt() {
            1 => Err("an error"),
            2 => panic!("{}: a panic", quiet::WANTED),
            _ => Ok(()),
        })
        .retry(soon(3))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&errors).as_deref(), Some("an error"));
    assert_eq!(wait::next(&errors).as_deref(), Some("wanted: a panic"));
    assert_eq!(wait::next(&errors), None);
    settled(&timers, "q", "k");
    let stats = timers.stats();
    assert_eq!((stats.failed, stats.panicked, stats.succeeded), (1, 1, 1));
}

fn a_layer_that_panics_is_a_panic_of_the_run(fresh: Fresh<'_>) {
    // Where it panics, and whether the handler has run before.
    let cases: [(&str, bool); 3] = [("begin", false), ("before", false), ("after", true)];
    for (case, runs_handler) in cases {
        let (timers, runs) = with_layer(fresh, move |_| {
            let panics = move |at: &str| assert!(at != case, "{}: {case}", quiet::WANTED);
            panics("begin");
            Box::new(move |next| {
                panics("before");
                let ran = next.run();
                panics("after");
                ran
            })
        });
        timers.schedule("q", "k", NOW, &7).wait().unwrap();
        wait::until("it is dead", || timers.stats().dead == 1);
        let letters = timers.dead("q", 0, 1).wait().unwrap();
        assert_eq!(
            letters[0].error,
            format!("the handler panicked: wanted: {case}")
        );
        assert_eq!(runs.try_recv().ok(), runs_handler.then_some(7), "{case}");
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.running), (1, 0), "{case}");
    }
}

fn panics_in_the_drops_of_layers_change_nothing(fresh: Fresh<'_>) {
    quiet::hush();
    let layer = |fails: u32| {
        move |run: &RunInfo| -> Steps {
            assert!(run.attempt() != fails, "{}: begin", quiet::WANTED);
            let bomb = quiet::Bomb;
            Box::new(move |next| {
                let _kept = &bomb;
                next.run()
            })
        }
    };
    let (sender, runs) = mpsc::channel();
    let timers = node_on(fresh())
        .around(layer(0))
        // At its panic those of the first one are there already.
        .around(layer(1))
        .handle("q", move |due: &Due<()>| sender.send(due.attempt()))
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&runs), 2);
    settled(&timers, "q", "k");
    assert_eq!((timers.stats().succeeded, timers.stats().panicked), (1, 1));
}

fn an_outer_layer_may_catch_the_panic_of_an_inner_one_no_more_than_it_may_skip_it(
    fresh: Fresh<'_>,
) {
    quiet::hush();
    let timers = node_on(fresh())
        .around(|_| {
            |next: NextLayer<'_>| {
                let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| next.run()));
                // There is nothing to return in its place.
                ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
        })
        .around(|_| |_: NextLayer<'_>| panic!("{}: inner", quiet::WANTED))
        .handle("q", |_: &Due<()>| ())
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    wait::until("it is dead", || timers.stats().dead == 1);
    assert_eq!(timers.stats().panicked, 1);
}

fn a_layer_may_stop_the_timers_like_a_handler(fresh: Fresh<'_>) {
    let shared: Arc<std::sync::OnceLock<Durable>> = Arc::default();
    let own = Arc::clone(&shared);
    let (sender, stopped) = mpsc::channel();
    let timers = node_on(fresh())
        .around(move |_| {
            let (own, sender) = (Arc::clone(&own), sender.clone());
            move |next: NextLayer<'_>| {
                // It does not wait for its own run.
                sender
                    .send(own.wait().stop(SECOND * 60).wait().unwrap())
                    .unwrap();
                next.run()
            }
        })
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&stopped).unfinished, 1);
}

#[cfg(feature = "tokio")]
mod futures {
    use super::*;

    on_each_store! {
        a_layer_is_around_each_poll_and_around_nothing_else,
        a_layer_that_panics_between_two_polls_ends_the_run_and_drops_the_future,
        a_layer_is_dropped_when_the_runtime_ends_during_a_run,
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().unwrap()
    }

    fn a_layer_is_around_each_poll_and_around_nothing_else(fresh: Fresh<'_>) {
        let runtime = runtime();
        let steps = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&steps);
        let (sender, contexts) = mpsc::channel();
        let timers = node_on(fresh())
            .around(move |run| {
                let (seen, key) = (Arc::clone(&seen), run.key().to_owned());
                move |next: NextLayer<'_>| {
                    CONTEXT.with_borrow_mut(|context| context.push(key.clone()));
                    let ran = next.run();
                    let own = CONTEXT.with_borrow_mut(Vec::pop);
                    assert_eq!(own.as_ref(), Some(&key), "another run is between");
                    seen.lock().unwrap().push(ran.is_ended());
                    ran
                }
            })
            .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
                // The closure that makes the future is within the layers, too.
                let made = CONTEXT.with_borrow(Clone::clone);
                let sender = sender.clone();
                async move {
                    let first = CONTEXT.with_borrow(Clone::clone);
                    tokio::task::yield_now().await;
                    let second = CONTEXT.with_borrow(Clone::clone);
                    sender.send((made, first, second)).unwrap();
                }
            })
            .start()
            .unwrap();
        for key in ["a", "b"] {
            timers.schedule("q", key, NOW, &()).wait().unwrap();
            let alone = || vec![key.to_owned()];
            assert_eq!(wait::next(&contexts), (alone(), alone(), alone()));
            settled(&timers, "q", key);
            assert_eq!(std::mem::take(&mut *steps.lock().unwrap()), [false, true]);
        }
    }

    fn a_layer_that_panics_between_two_polls_ends_the_run_and_drops_the_future(fresh: Fresh<'_>) {
        quiet::hush();
        let runtime = runtime();
        let (sender, dropped) = mpsc::channel();
        struct Told(mpsc::Sender<()>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let timers = node_on(fresh())
            .around(|_| {
                let mut steps = 0;
                move |next: NextLayer<'_>| {
                    steps += 1;
                    assert!(steps < 2, "{}: at the second step", quiet::WANTED);
                    next.run()
                }
            })
            .handle_tokio("q", runtime.handle().clone(), move |_: Due<()>| {
                let told = Told(sender.clone());
                async move {
                    let _told = told;
                    tokio::task::yield_now().await;
                    tokio::task::yield_now().await;
                }
            })
            .retry(RetryPolicy::never())
            .start()
            .unwrap();
        timers.schedule("q", "k", NOW, &()).wait().unwrap();
        wait::next(&dropped);
        wait::until("it is dead", || timers.stats().dead == 1);
        assert_eq!((timers.stats().panicked, timers.stats().running), (1, 0));
    }

    fn a_layer_is_dropped_when_the_runtime_ends_during_a_run(fresh: Fresh<'_>) {
        let runtime = runtime();
        let seen = Seen::default();
        let (sender, started) = mpsc::channel();
        let noted = Arc::clone(&seen);
        let timers = node_on(fresh())
            .around(move |_| {
                let notes = Notes(Arc::clone(&noted), "layer");
                move |next: NextLayer<'_>| {
                    let ran = next.run();
                    see(&notes.0, format!("ended: {}", ran.is_ended()));
                    ran
                }
            })
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
        timers.schedule("q", "k", NOW, &()).wait().unwrap();
        wait::next(&started);
        runtime.shutdown_background();
        wait::until("it is dead", || timers.stats().dead == 1);
        assert_eq!(taken(&seen), ["ended: false", "layer ends"]);
    }
}
