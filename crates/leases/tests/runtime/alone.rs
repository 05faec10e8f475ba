//! Renewals while others use the workers of the same runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kit::gate::Gate;
use kit::wait::until;
use tourbillon::Runtime;
use tourbillon_leases::{
    Destination, KeepAlive, LeaseGuard, Leases, MemoryStore, Outcome, blocking,
};

use super::{LEASE, leases_on, run_on, scheduler_on, small};

/// Waits until the lease has been renewed twice from now on.
#[track_caller]
fn is_renewed(leases: &Leases, guard: &LeaseGuard) {
    let before = guard.renewals();
    until("it is renewed", || guard.renewals() >= before + 2);
    assert!(guard.is_held());
    assert_eq!(leases.stats().lost, 0);
}

#[test]
fn blocked_tasks_of_another_scheduler_hold_up_no_renewal() {
    for busy in [1, 10] {
        let runtime = small("blocked").build().unwrap();
        let leases = leases_on(&runtime, &MemoryStore::new()).build().unwrap();
        let guard = leases.lock("a").wait().unwrap();
        let (gate, storm) = (Gate::default(), scheduler_on(&runtime));
        for key in 0..busy {
            let gate = gate.clone();
            run_on(&storm, key, move || gate.pass());
        }
        gate.crowd(1);
        is_renewed(&leases, &guard);
        assert_eq!(gate.waiting(), 1);
        // Nor what is acquired, and given back, meanwhile.
        let other = leases.lock("b").wait().unwrap();
        drop(other);
        leases.lock("b").wait().unwrap().release().wait().unwrap();
        gate.open();
    }
}

#[test]
fn computing_tasks_of_another_scheduler_hold_up_no_renewal() {
    // With a bound, and with room for more workers.
    for most in [1, 64] {
        let runtime = small("computes").max_workers(most).build().unwrap();
        let leases = leases_on(&runtime, &MemoryStore::new()).build().unwrap();
        let guard = leases.lock("a").wait().unwrap();
        let (ends, storm) = (Arc::new(AtomicBool::new(false)), scheduler_on(&runtime));
        for key in 0..10 {
            let ends = Arc::clone(&ends);
            run_on(&storm, key, move || {
                while !ends.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            });
        }
        until("it is busy", || storm.handle().stats().running > 0);
        is_renewed(&leases, &guard);
        ends.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_store_that_hangs_for_all_calls_of_some_leases_holds_up_no_others() {
    // With room for more workers than calls that hang, and for fewer.
    for most in [1_024, 4] {
        let runtime = small("hangs").max_workers(most).build().unwrap();
        one_that_hangs_beside_others(&runtime);
    }
}

fn one_that_hangs_beside_others(runtime: &Runtime) {
    let gate = Gate::default();
    let at_gate = gate.clone();
    let hanging = KeepAlive::<u32>::builder()
        .runtime(runtime)
        .destination(|key| Destination::new(u64::from(*key)))
        .build(blocking(move |batch| {
            at_gate.pass();
            Ok(vec![Outcome::Renewed; batch.len()])
        }))
        .unwrap();
    let kept: Vec<_> = (0..20)
        .map(|key| hanging.keep(key, LEASE).unwrap())
        .collect();
    gate.crowd(20);
    let leases = leases_on(runtime, &MemoryStore::new()).build().unwrap();
    let guard = leases.lock("a").wait().unwrap();
    is_renewed(&leases, &guard);
    gate.open();
    drop(kept);
}

/// A call that hangs for one destination, and tasks that compute on all workers.
#[test]
fn a_hanging_call_beside_computing_tasks_holds_up_no_other_destination() {
    let runtime = small("both").workers(2).max_workers(64).build().unwrap();
    let gate = Gate::default();
    let at_gate = gate.clone();
    let sessions = KeepAlive::<u32>::builder()
        .runtime(&runtime)
        .destination(|key| Destination::new(u64::from(*key)))
        .build(blocking(move |batch| {
            if batch.destination().get() == 0 {
                at_gate.pass();
            }
            Ok(vec![Outcome::Renewed; batch.len()])
        }))
        .unwrap();
    let (ends, storm) = (Arc::new(AtomicBool::new(false)), scheduler_on(&runtime));
    for key in 0..2 {
        let ends = Arc::clone(&ends);
        run_on(&storm, key, move || {
            while !ends.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        });
    }
    until("both compute", || storm.handle().stats().running == 2);
    let hung = sessions.keep(0, LEASE).unwrap();
    gate.crowd(1);
    let kept = sessions.keep(1, LEASE).unwrap();
    until("it is renewed", || kept.renewals() >= 2);
    assert!(kept.is_kept());
    ends.store(true, Ordering::SeqCst);
    gate.open();
    drop(hung);
}
