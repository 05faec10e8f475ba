//! Handlers on a runtime that they share, or on threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use kit::gate::Gate;
use kit::wait;
use tourbillon::{BuildError, Firing, Runtime, RuntimeBuilder, Scheduler};
use tourbillon_durable::{CallError, Due, Durable, Memory, MemoryFault, StartError};

use super::setup::{HOUR, NOW, SECOND, ms, node, settled, short_node};

/// A runtime with one ticker and one worker, beside which no other worker starts for a pool that
/// has one.
fn small(name: &str) -> RuntimeBuilder {
    let builder = Runtime::builder().name(name);
    builder.tickers(1).workers(1).max_workers(1)
}

#[test]
fn handlers_run_on_the_runtime_that_is_named() {
    let runtime = small("named").build().unwrap();
    let (tell, told) = mpsc::channel();
    let store = Memory::new();
    let timers = node(&store)
        .runtime(&runtime)
        .handle("q", move |_: &Due<()>| {
            let name = thread::current().name().map(str::to_owned);
            tell.send(name).unwrap();
        })
        .start()
        .unwrap();
    assert_eq!(runtime.stats().instances, 1);
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    assert_eq!(wait::next(&told).unwrap(), "named-work-0");
    timers.stop(HOUR).wait().unwrap();
    wait::until("nobody is on it", || runtime.stats().instances == 0);
    // Nothing holds it up.
    runtime.shut_down(HOUR).unwrap();
}

#[test]
fn the_last_word_about_threads_counts_and_may_follow_a_queue() {
    let runtime = small("last").build().unwrap();
    let store = Memory::new();
    let own = node(&store)
        .runtime(&runtime)
        .handle("q", |_: &Due<()>| ())
        .own_threads()
        .start()
        .unwrap();
    assert_eq!(runtime.stats().instances, 0);
    own.schedule("q", "k", NOW, &()).wait().unwrap();
    settled(&own, "q", "k");
    let shared = node(&store)
        .own_threads()
        .handle("q", |_: &Due<()>| ())
        .runtime(&runtime)
        .start()
        .unwrap();
    assert_eq!(runtime.stats().instances, 1);
    drop((own, shared));
}

#[test]
fn a_start_on_a_runtime_that_was_shut_down_says_what_to_do() {
    let runtime = small("ended").build().unwrap();
    runtime.shut_down(HOUR).unwrap();
    let store = Memory::new();
    let builder = node(&store).runtime(&runtime).handle("q", |_: &Due<()>| ());
    let error = builder.start().unwrap_err();
    let is_ended = matches!(error, StartError::Runtime(BuildError::RuntimeEnded));
    assert!(is_ended, "{error:?}");
    assert!(error.to_string().contains("build another one"), "{error}");
    // A client needs it for limits alone.
    let client = node(&store).runtime(&runtime).start().unwrap();
    client.schedule("q", "k", HOUR, &()).wait().unwrap();
    store.inject(|_| MemoryFault::Hang);
    let limited = client.schedule("q", "k", HOUR, &()).within(HOUR);
    let tokio = tokio::runtime::Builder::new_current_thread().build();
    let refused = tokio.unwrap().block_on(limited);
    assert!(
        matches!(&refused, Err(CallError::Unknown(why)) if why.contains("build another one")),
        "{refused:?}"
    );
    store.heal();
}

#[test]
fn tasks_that_wait_for_a_limit_are_woken_on_the_runtime_also_while_handlers_block() {
    let runtime = small("limits").build().unwrap();
    let (gate, store) = (Gate::default(), Memory::new());
    let pass = gate.clone();
    let timers = node(&store)
        .runtime(&runtime)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let hangs = Memory::new();
    let client = Durable::builder(hangs.clone()).runtime(&runtime);
    let client = client.start().unwrap();
    hangs.inject(|_| MemoryFault::Hang);
    assert_eq!(runtime.stats().instances, 1);
    let tokio = tokio::runtime::Builder::new_current_thread().build();
    let tokio = tokio.unwrap();
    for limit in [ms(5), ms(20)] {
        let limited = client.schedule("q", "k", HOUR, &()).within(limit);
        assert_eq!(tokio.block_on(limited), Err(CallError::TimedOut(limit)));
        assert_eq!(runtime.stats().instances, 2);
    }
    hangs.heal();
    drop(client);
    wait::until("the limits are left", || runtime.stats().instances == 1);
    gate.open();
}

/// The only worker of the runtime is in a handler, and the lease is short.
#[test]
fn a_node_keeps_its_lease_while_handlers_block_all_workers() {
    let runtime = small("lease").build().unwrap();
    let (gate, store) = (Gate::default(), Memory::new());
    let pass = gate.clone();
    let timers = short_node(&store)
        .runtime(&runtime)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    let start = std::time::Instant::now();
    wait::until("several leases have passed", || start.elapsed() > ms(900));
    // Nobody else took it over, and it is told to the store that the node leaves.
    assert_eq!((gate.waiting(), timers.stats().running), (1, 1));
    let report = timers.stop(NOW).wait().unwrap();
    assert_eq!((report.unfinished, report.has_left), (1, true));
    gate.open();
}

#[test]
fn handlers_run_beside_tasks_of_others_that_block_or_compute() {
    for computes in [false, true] {
        let runtime = small("beside").build().unwrap();
        let (gate, ends) = (Gate::default(), Arc::new(AtomicBool::new(false)));
        let others = Scheduler::<u32>::builder().runtime(&runtime);
        let others = others.build().unwrap();
        for key in 0..10 {
            let (gate, ends) = (gate.clone(), Arc::clone(&ends));
            let task = move |_: &Firing<'_, u32>| match computes {
                true => {
                    while !ends.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                }
                false => gate.pass(),
            };
            others.handle().schedule(key, NOW, task).unwrap();
        }
        wait::until("it is busy", || others.handle().stats().running > 0);
        let store = Memory::new();
        let timers = node(&store)
            .runtime(&runtime)
            .handle("q", |_: &Due<()>| ())
            .start()
            .unwrap();
        for round in 0..20 {
            let key = round.to_string();
            timers.schedule("q", &key, NOW, &()).wait().unwrap();
            settled(&timers, "q", &key);
        }
        gate.open();
        ends.store(true, Ordering::SeqCst);
    }
}

#[test]
fn timers_that_are_dropped_in_a_task_of_their_runtime_end() {
    let runtime = small("drops").build().unwrap();
    let store = Memory::new();
    let timers = node(&store)
        .runtime(&runtime)
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    let scheduler = Scheduler::<u32>::builder().runtime(&runtime);
    let scheduler = scheduler.build().unwrap();
    let (tell, told) = mpsc::channel();
    let task = move |_: &Firing<'_, u32>| {
        drop(timers);
        tell.send(()).unwrap();
    };
    scheduler.handle().schedule(1, NOW, task).unwrap();
    wait::next(&told);
    wait::until("only the task's scheduler is left", || {
        runtime.stats().instances == 1
    });
}

#[test]
fn a_stop_while_a_handler_blocks_ends_the_runtime_when_it_returns() {
    let runtime = small("stuck").build().unwrap();
    let (gate, store) = (Gate::default(), Memory::new());
    let pass = gate.clone();
    let timers = node(&store)
        .runtime(&runtime)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    gate.crowd(1);
    assert_eq!(timers.stop(NOW).wait().unwrap().unfinished, 1);
    drop(timers);
    wait::until("nobody is on it", || runtime.stats().instances == 0);
    let refused = runtime.shut_down(ms(1)).unwrap_err();
    assert!(refused.to_string().contains("a task"), "{refused}");
    gate.open();
    runtime.shut_down(SECOND * 60).unwrap();
}
