//! Several drivers on one clock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::quiet::hush;
use tourbillon::test_util::Together;
use tourbillon::{Clock, ExpiryMap, Firing, ManualClock, Scheduler, Time, Timer};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_scheduler_a_map_and_a_timer_interleave_by_their_deadlines() {
    for seed in 0..50 {
        let hand = ManualClock::new();
        let clock = || Clock::manual(&hand);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let (seen, hand) = (Arc::clone(&seen), hand.clone());
            move || {
                seen.lock()
                    .unwrap()
                    .push((hand.now().since(Time::ZERO), what));
            }
        };
        let expired = note("expired");
        let map = ExpiryMap::<u64, ()>::builder()
            .clock(clock())
            .time_to_live(2 * SECOND)
            .build_stepped(seed, move |_, _| expired())
            .unwrap();
        let timer = Timer::builder().clock(clock()).build_stepped(seed).unwrap();
        let scheduler = Scheduler::<&str>::builder()
            .clock(clock())
            .build_stepped(seed)
            .unwrap();
        let (ran, entries) = (note("ran"), map.map());
        // The task makes work for the map, which expires it two seconds later.
        let task = move |_: &Firing<'_, &str>| {
            ran();
            entries.insert(1, ()).unwrap();
        };
        scheduler.handle().schedule("a", SECOND, task).unwrap();
        let slept = note("slept");
        let together = Together::new(&[&map, &timer, &scheduler]);
        together.run_until(async {
            timer.timer().sleep(2 * SECOND).await.unwrap();
            slept();
            timer.timer().sleep(2 * SECOND).await.unwrap();
            slept();
        });
        let expected = [(1, "ran"), (2, "slept"), (3, "expired"), (4, "slept")];
        assert_eq!(
            *seen.lock().unwrap(),
            expected.map(|(at, what)| (at * SECOND, what))
        );
        assert_eq!(scheduler.settle().len(), 1);
        map.map().insert(2, ()).unwrap();
        together.advance(2 * SECOND);
        assert_eq!(seen.lock().unwrap().last(), Some(&(6 * SECOND, "expired")));
        assert_eq!(together.now(), Time::ZERO + 6 * SECOND);
    }
}

#[test]
fn drivers_of_different_clocks_and_no_drivers_are_refused() {
    hush();
    let (one, other) = (
        Timer::builder().build_stepped(1),
        Timer::builder().build_stepped(1),
    );
    let (one, other) = (one.unwrap(), other.unwrap());
    let join = AssertUnwindSafe(|| drop(Together::new(&[&one, &other])));
    let message = *catch_unwind(join).unwrap_err().downcast::<&str>().unwrap();
    assert!(message.contains("only on one clock"), "{message}");
    assert!(catch_unwind(|| drop(Together::new(&[]))).is_err());
}

#[test]
fn what_one_driver_makes_due_at_once_another_runs_before_the_call_returns() {
    let hand = ManualClock::new();
    let clock = || Clock::manual(&hand);
    let timer = Timer::builder().clock(clock()).build_stepped(1).unwrap();
    let scheduler = Scheduler::<&str>::builder()
        .clock(clock())
        .build_stepped(1)
        .unwrap();
    let ran = Arc::new(Mutex::new(false));
    let (flag, handle, timers) = (Arc::clone(&ran), scheduler.handle(), timer.timer());
    // From the scheduler to the timer and back, twice, at one moment.
    let task = move |_: &Firing<'_, &str>| {
        let (flag, handle, again) = (flag.clone(), handle.clone(), timers.clone());
        let _ = timers.after(Duration::ZERO, move || {
            let last = move |_: &Firing<'_, &str>| {
                let flag = flag.clone();
                let _ = again.after(Duration::ZERO, move || *flag.lock().unwrap() = true);
            };
            handle.schedule("b", Duration::ZERO, last).unwrap();
        });
    };
    scheduler.handle().schedule("a", SECOND, task).unwrap();
    // The timer takes its steps first, when the task has not run.
    Together::new(&[&timer, &scheduler]).advance(SECOND);
    assert!(*ran.lock().unwrap());
}
