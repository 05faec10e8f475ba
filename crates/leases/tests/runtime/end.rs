//! The end of leases on a runtime, and of the runtime.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use kit::gate::Gate;
use kit::wait::{next, until};
use tourbillon_leases::{Fault, Leases, MemoryStore, StoreCall, What};

use super::{LONG, TICK, leases_on, run_on, scheduler_on, small};

/// The drop waits on the only worker for what another one has to do.
#[test]
fn leases_that_are_dropped_in_a_task_of_their_runtime_give_their_locks_back() {
    let runtime = small("drops").build().unwrap();
    let store = MemoryStore::new();
    let leases = leases_on(&runtime, &store).end_limit(LONG).build().unwrap();
    let guards: Vec<_> = (0..3)
        .map(|n| leases.lock(&n.to_string()).wait().unwrap())
        .collect();
    let (tell, told) = channel();
    let scheduler = scheduler_on(&runtime);
    let at = store.clone();
    run_on(&scheduler, 1, move || {
        drop(guards);
        drop(leases);
        let left = (0..3).filter(|n| at.holder(&n.to_string()).is_some());
        tell.send(left.count()).unwrap();
    });
    assert_eq!(next(&told), 0);
    until("only the task's scheduler is left", || {
        runtime.stats().instances == 1
    });
}

#[test]
fn leases_may_be_dropped_by_their_own_callback() {
    for own in [false, true] {
        let runtime = small("itself").build().unwrap();
        let last = Arc::new(Mutex::new(None));
        let (tell, told) = channel();
        let builder = leases_on(&runtime, &MemoryStore::new());
        let builder = if own { builder.own_threads() } else { builder };
        let dropped = Arc::clone(&last);
        let leases = builder
            .end_limit(LONG)
            .on_event(move |event| {
                if let What::Renewed { .. } = event.what {
                    let last = dropped.lock().unwrap().take();
                    drop(last);
                    let _ = tell.send(());
                }
            })
            .build()
            .unwrap();
        let guard = leases.lock("a").wait().unwrap();
        // The lease is renewed about a second from now.
        *last.lock().unwrap() = Some((leases, guard));
        next(&told);
        until("nobody is on it", || runtime.stats().instances == 0);
    }
}

#[test]
fn a_close_while_calls_hang_ends_the_runtime_as_soon_as_they_return() {
    let runtime = small("hangs").max_workers(8).build().unwrap();
    let (store, gate) = (MemoryStore::new(), Gate::default());
    let leases = leases_on(&runtime, &store).end_limit(TICK).build().unwrap();
    let guard = leases.lock("a").wait().unwrap();
    let at_gate = gate.clone();
    store.inject(move |call| {
        if let StoreCall::Renew { .. } = call {
            at_gate.pass();
        }
        Fault::None
    });
    gate.crowd(1);
    assert!(leases.close(TICK) <= 1);
    assert!(!guard.is_held());
    drop((leases, guard));
    // The call still has its scheduler.
    assert_eq!(runtime.shut_down(TICK).unwrap_err().instances, 1);
    gate.open();
    runtime.shut_down(LONG).unwrap();
}

#[test]
fn a_runtime_ends_after_the_leases_on_it() {
    let runtime = small("after").build().unwrap();
    let store = MemoryStore::new();
    let leases = leases_on(&runtime, &store).build().unwrap();
    let guard = leases.lock("a").wait().unwrap();
    assert_eq!(runtime.shut_down(TICK).unwrap_err().instances, 1);
    // They go on.
    until("it is renewed", || guard.renewals() >= 1);
    leases.lock("b").wait().unwrap().release().wait().unwrap();
    drop((guard, leases));
    runtime.shut_down(LONG).unwrap();
    assert!(store.holder("a").is_none());
}

#[cfg(target_os = "linux")]
#[test]
fn leases_keep_the_threads_of_a_runtime_that_nobody_else_has() {
    let runtime = small("kept").build().unwrap();
    let named = || super::threads_named("kept-").len();
    let leases = leases_on(&runtime, &MemoryStore::new()).build().unwrap();
    drop(runtime);
    let guard = leases.lock("a").wait().unwrap();
    until("it is renewed", || guard.renewals() >= 1);
    drop((leases, guard));
    until("no thread is left", || named() == 0);
}

#[test]
fn storms_of_leases_leave_nobody_behind() {
    let runtime = small("storms").workers(2).max_workers(8).build().unwrap();
    let store = MemoryStore::new();
    std::thread::scope(|scope| {
        for of in 0..3 {
            let (runtime, store) = (&runtime, &store);
            scope.spawn(move || {
                for round in 0..100 {
                    let leases: Leases = leases_on(runtime, store).build().unwrap();
                    let guard = leases.lock(&format!("{of}")).wait().unwrap();
                    if round % 2 == 0 {
                        guard.release().wait().unwrap();
                    }
                }
            });
        }
    });
    assert!((0..3).all(|of| store.holder(&of.to_string()).is_none()));
    until("nobody is on it", || runtime.stats().instances == 0);
}
