//! Every system does what the workloads take for granted.

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::foreign::remote::{Remote, no_timer_of_a_round_is_early};
use crate::foreign::{self, Foreign, Trouble};
use crate::recorder::observed;
use crate::system::{Handles, Keyed, Sessions, Sleeps, System, Tasks};
use crate::workload::Workload;
use chaos::random::Random;

const LIMIT: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3_600);

/// What a system promises less than others.
#[derive(Clone, Copy)]
struct Promise {
    /// A stop says whether there was a timer.
    answers: bool,
    early: Duration,
}

const EXACT: Promise = promise(true, Duration::ZERO);
/// A tick is a millisecond: one for where in the tick the command comes, one for rounding down.
const ROUGH: Promise = promise(false, millis(2));

const fn promise(answers: bool, early: Duration) -> Promise {
    Promise { answers, early }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A key that no other test has.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(millis(1));
    }
}

/// How many timers there are, all calls done.
fn pending_in<S: System>(system: &S) -> usize {
    system.settle();
    system.pending()
}

fn wait_fired(value: u64) {
    wait("a timer fires", || !observed::times(value).is_empty());
}

/// When `value` fired, which it did once.
fn fired_at(value: u64) -> Instant {
    let times = observed::times(value);
    assert_eq!(times.len(), 1, "it fires once");
    times[0]
}

/// Does something that must be over before a timer of `delay` fires, which a machine that is busy
/// with other things can prevent: then again.
fn in_time<R>(promise: Promise, delay: Duration, work: impl Fn() -> R) -> R {
    for _ in 0..1_000 {
        let began = Instant::now();
        let result = work();
        if began.elapsed() + promise.early < delay {
            return result;
        }
    }
    panic!("never within {delay:?}");
}

/// Waits until timers of a keyed system that are due within `delay` have fired, if they do.
fn pass<S: Keyed>(system: &S, delay: Duration) {
    let witness = fresh();
    system.start(witness, delay + millis(10));
    wait_fired(witness);
    system.settle();
}

/// Starts the timer of a new key by `work`, which is over before `first`. It fires once, and `last`
/// after the moment that `work` returns at the earliest. Returns the key.
fn fires_once<S: Keyed>(
    system: &S,
    promise: Promise,
    (first, last): (Duration, Duration),
    work: impl Fn(u64) -> Instant,
) -> u64 {
    let (key, since) = in_time(promise, first, || {
        let key = fresh();
        (key, work(key))
    });
    wait_fired(key);
    pass(system, first.max(last).min(millis(30)));
    assert!(fired_at(key) + promise.early >= since + last);
    key
}

fn fires_once_and_not_early<S: Keyed>(system: &S, promise: Promise) {
    for delay in [0, 1_000, 2_700, 20_000].map(Duration::from_micros) {
        let key = fires_once(system, promise, (HOUR, delay), |key| {
            let began = Instant::now();
            system.start(key, delay);
            began
        });
        if promise.answers {
            assert!(!system.stop(key), "it has fired");
            assert!(!system.touch(key, delay), "it has fired");
        }
    }
    wait("none is left", || system.pending() == 0);
}

fn what_is_stopped_never_fires<S: Keyed>(system: &S, promise: Promise) {
    let delay = millis(20);
    let (key, first, second) = in_time(promise, delay, || {
        let key = fresh();
        system.start(key, delay);
        (key, system.stop(key), system.stop(key))
    });
    assert!(first);
    assert_eq!(second, !promise.answers);
    pass(system, delay);
    assert_eq!(observed::times(key).len(), 0);
}

fn a_touch_moves_later<S: Keyed>(system: &S, promise: Promise) {
    let (delay, moved) = (millis(15), millis(30));
    fires_once(system, promise, (delay, moved), |key| {
        system.start(key, delay);
        let mut touched = Instant::now();
        for _ in 0..20 {
            touched = Instant::now();
            system.touch(key, moved);
        }
        touched
    });
}

fn a_touch_moves_earlier<S: Keyed>(system: &S, promise: Promise) {
    fires_once(system, promise, (HOUR, millis(10)), |key| {
        system.start(key, HOUR);
        let touched = Instant::now();
        assert!(system.touch(key, millis(10)));
        touched
    });
    if promise.answers {
        assert!(!system.touch(fresh(), HOUR), "there is none");
    }
    wait("none is left", || system.pending() == 0);
}

fn a_key_that_is_replaced_fires_once<S: Keyed>(system: &S, promise: Promise) {
    let (soon, now) = (millis(15), Duration::ZERO);
    for (first, second) in [(HOUR, soon), (soon, millis(30)), (soon, soon), (soon, now)] {
        fires_once(system, promise, (first, second), |key| {
            system.start(key, first);
            let replaced = Instant::now();
            system.start(key, second);
            replaced
        });
    }
    wait("none is left", || system.pending() == 0);
}

fn a_key_that_comes_back_is_not_its_former_self<S: Keyed>(system: &S, promise: Promise) {
    let (first, second) = (millis(15), millis(30));
    fires_once(system, promise, (first, second), |key| {
        for delay in [first, second, first] {
            system.start(key, delay);
            system.stop(key);
        }
        let again = Instant::now();
        system.start(key, second);
        again
    });
}

fn pending_counts_keys<S: Keyed>(system: &S, _: Promise) {
    let keys: Vec<u64> = (0..10).map(|_| fresh()).collect();
    let pending = || pending_in(system);
    assert_eq!(pending(), 0);
    keys.iter().for_each(|key| system.start(*key, HOUR));
    assert_eq!(pending(), 10);
    system.start(keys[0], 2 * HOUR);
    system.touch(keys[1], 2 * HOUR);
    system.touch(keys[2], HOUR / 2);
    assert_eq!(pending(), 10);
    for key in &keys[..3] {
        assert!(system.stop(*key));
    }
    assert_eq!(pending(), 7);
    system.touch(keys[3], millis(1));
    wait("one fires", || pending() == 6);
    wait_fired(keys[3]);
}

/// Two threads, short delays: each key fires once, or not where it was stopped in time.
fn each_of_many_fires_or_was_stopped<S: Keyed>(system: &S, promise: Promise) {
    let produce = |seed: u64| {
        let mut rng = Random::new(seed);
        let mut stopped = HashSet::new();
        let keys: Vec<u64> = (0..500).map(|_| fresh()).collect();
        system.on_thread(|| {
            for (number, key) in keys.iter().enumerate() {
                system.start(*key, Duration::from_micros(rng.below(20_000)));
                if number % 3 == 1 {
                    system.touch(keys[number / 2], Duration::from_micros(rng.below(20_000)));
                }
                if number % 3 == 2 && system.stop(keys[number]) {
                    stopped.insert(keys[number]);
                }
            }
        });
        (keys, stopped)
    };
    let produced = thread::scope(|scope| {
        let threads = [1, 2].map(|seed| scope.spawn(move || produce(seed)));
        threads.map(|thread| thread.join().expect("no call fails"))
    });
    wait("none is left", || system.pending() == 0);
    for (keys, stopped) in produced {
        for (number, key) in keys.iter().enumerate() {
            let times = || observed::times(*key).len();
            if !promise.answers {
                // A touch starts what is not there; nothing more is known of the others.
                if number % 3 == 0 && number > 250 {
                    wait("a timer fires", || times() == 1);
                }
            } else if stopped.contains(key) {
                assert_eq!(times(), 0);
            } else {
                wait("a timer fires", || times() > 0);
                assert_eq!(times(), 1);
            }
        }
    }
}

fn a_handle_is_of_its_timer<S: Handles>(system: &S, promise: Promise) {
    let delay = millis(20);
    let (value, began, stopped, gone) = in_time(promise, delay, || {
        let (value, gone) = (fresh(), fresh());
        let began = Instant::now();
        let _fires = system.start(value, delay);
        let stopped = system.start(gone, delay);
        let twin = system.start(value, delay);
        let stopped = system.stop(stopped) && system.stop(twin);
        (value, began, stopped, gone)
    });
    assert!(stopped);
    let witness = fresh();
    let last = system.start(witness, delay + millis(10));
    wait_fired(witness);
    if promise.answers {
        assert!(!system.stop(last), "it has fired");
    }
    assert!(fired_at(value) + promise.early >= began + delay);
    assert_eq!(observed::times(gone).len(), 0);
    wait("none is left", || system.pending() == 0);
}

fn pending_counts_handles<S: Handles>(system: &S, _: Promise) {
    let pending = || pending_in(system);
    assert_eq!(pending(), 0);
    let mut timeouts: Vec<_> = (0..10).map(|_| system.start(fresh(), HOUR)).collect();
    assert_eq!(pending(), 10);
    for timeout in timeouts.drain(..3) {
        assert!(system.stop(timeout));
    }
    assert_eq!(pending(), 7);
    let value = fresh();
    let _fires = system.start(value, millis(1));
    wait("one fires", || pending() == 7);
    wait_fired(value);
    assert_eq!(observed::times(value).len(), 1);
}

/// How long sessions may be idle.
const IDLE: Duration = millis(20);

/// Waits until sessions that are due within that time have expired, if they do: until a witness has
/// that came after them.
fn pass_idle<S: Sessions>(system: &S) {
    thread::sleep(IDLE);
    let witness = fresh();
    system.insert(witness, witness);
    wait_fired(witness);
    system.settle();
}

fn a_session_expires_once_and_not_early<S: Sessions>(system: &S) {
    let (key, value) = (fresh(), fresh());
    let began = Instant::now();
    system.insert(key, value);
    wait_fired(value);
    pass_idle(system);
    assert!(fired_at(value) >= began + IDLE);
    assert!(observed::times(key).is_empty(), "the value fires");
    assert!(!system.touch(key), "it has expired");
    assert_eq!((system.get(key), system.remove(key)), (None, None));
    wait("none is left", || system.pending() == 0);
}

fn a_touched_session_lives_on<S: Sessions>(system: &S) {
    for many in [false, true] {
        let key = fresh();
        system.insert(key, key);
        let inserted = Instant::now();
        let mut touched = inserted;
        // On a machine that is busy with other things it may expire in between.
        while touched < inserted + 3 * IDLE {
            let before = Instant::now();
            let alive = if many {
                system.touch_many(&[key, key]) == 2
            } else {
                system.touch(key)
            };
            if !alive {
                break;
            }
            touched = before;
            thread::sleep(millis(1));
        }
        wait_fired(key);
        pass_idle(system);
        assert!(fired_at(key) >= touched + IDLE);
    }
}

fn what_is_removed_or_replaced_never_expires<S: Sessions>(system: &S) {
    let ([removed, key, first, second], gone) = in_time(EXACT, IDLE, || {
        let [removed, key, first, second] = [(); 4].map(|()| fresh());
        system.insert(removed, removed);
        system.insert(key, first);
        system.insert(key, second);
        let gone = [system.remove(removed), system.remove(removed)];
        ([removed, key, first, second], gone)
    });
    assert_eq!(gone, [Some(removed), None]);
    wait_fired(second);
    pass_idle(system);
    assert!(observed::times(removed).is_empty() && observed::times(first).is_empty());
    assert_eq!(observed::times(second).len(), 1);
    assert_eq!(system.get(key), None);
}

fn a_map_has_its_values<S: Sessions>(system: &S) {
    let keys: Vec<u64> = (0..300).map(|_| fresh()).collect();
    let absent = fresh();
    keys.iter().for_each(|key| system.insert(*key, key + 1));
    system.settle();
    assert_eq!(system.pending(), keys.len());
    assert!(keys.iter().all(|key| system.get(*key) == Some(key + 1)));
    assert!(system.touch(keys[0]) && !system.touch(absent));
    let some: Vec<u64> = keys.iter().copied().chain([absent, keys[7]]).collect();
    assert_eq!(system.touch_many(&some), keys.len() + 1);
    system.insert(keys[1], 7);
    assert_eq!((system.get(keys[1]), system.get(absent)), (Some(7), None));
    assert_eq!(system.remove(keys[1]), Some(7));
    assert_eq!(system.pending(), keys.len() - 1);
}

/// It fires nothing or early, but it has what it was given.
fn a_floor_answers<S: Keyed>(system: &S, _: Promise) {
    let keys: Vec<u64> = (0..300).map(|_| fresh()).collect();
    let absent = fresh();
    keys.iter().for_each(|key| system.start(*key, HOUR));
    assert!(keys.iter().all(|key| system.touch(*key, HOUR)));
    assert!(!system.touch(absent, HOUR) && !system.stop(absent));
    assert_eq!(system.pending(), keys.len());
    assert!(system.stop(keys[0]) && !system.touch(keys[0], HOUR));
    assert_eq!(system.pending(), keys.len() - 1);
}

/// The same of sleeps, on a runtime of one thread, and on one with a worker.
pub(super) fn sleeps<S: Sleeps>() {
    use tokio::runtime::Builder;
    let system: &'static S = Box::leak(Box::new(S::new()));
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        if S::RUNTIME_WITH_TIME {
            builder.enable_time();
        }
        let runtime = builder.worker_threads(1).build().expect("a runtime");
        runtime.block_on(async {
            for delay in [millis(0), Duration::from_micros(2_700), millis(20)] {
                let slept = tokio::spawn(async move {
                    let began = Instant::now();
                    system.sleep(delay).await;
                    began.elapsed()
                });
                assert!(slept.await.expect("it ends") >= delay);
            }
        });
    }
}

pub(super) type Check = fn();

/// Runs a check of timers by key or by handle.
fn run<S: System>(system: &S, check: fn(&S, Promise)) {
    let promise = if S::MAY_BE_EARLY { ROUGH } else { EXACT };
    system.on_thread(|| check(system, promise));
}

/// What an entry of the table checks of a system with keys.
pub(super) fn keyed<S: Keyed>() {
    if !S::FLOOR_OF.is_empty() {
        return run(&S::new(Tasks::Short), a_floor_answers::<S>);
    }
    for check in [
        fires_once_and_not_early::<S>,
        what_is_stopped_never_fires::<S>,
        a_touch_moves_later::<S>,
        a_touch_moves_earlier::<S>,
        a_key_that_is_replaced_fires_once::<S>,
        a_key_that_comes_back_is_not_its_former_self::<S>,
        each_of_many_fires_or_was_stopped::<S>,
    ] {
        run(&S::new(Tasks::Short), check);
    }
    run(&S::new(Tasks::MayBlock), pending_counts_keys::<S>);
}

/// The same of one with handles.
pub(super) fn handles<S: Handles>() {
    run(&S::new(Tasks::Short), a_handle_is_of_its_timer::<S>);
    run(&S::new(Tasks::MayBlock), pending_counts_handles::<S>);
}

/// The same of a map of sessions.
pub(super) fn sessions<S: Sessions>() {
    let run = |idle, check: fn(&S)| {
        let system = S::new(idle);
        system.on_thread(|| check(&system));
    };
    run(HOUR, a_map_has_its_values::<S>);
    if S::FLOOR_OF.is_empty() {
        run(IDLE, a_session_expires_once_and_not_early::<S>);
        run(IDLE, a_touched_session_lives_on::<S>);
        run(IDLE, what_is_removed_or_replaced_never_expires::<S>);
    }
}

/// The same of a driver with keys and with handles, where what it needs is installed.
pub(super) fn foreign<F: Foreign>() {
    match foreign::prepare(&F::DRIVER) {
        Ok(_) => {
            keyed::<Remote<F>>();
            handles::<Remote<F>>();
            no_timer_of_a_round_is_early::<F>();
        }
        Err(missing @ Trouble::Missing(_)) => say(&missing.line(&F::DRIVER)),
        Err(Trouble::Failed(how)) => panic!("{}: {how}", F::DRIVER.name),
    }
}

/// Prints a line that is seen also where tests succeed.
fn say(line: &str) {
    // Not by a macro, whose output is shown with failures only.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[test]
fn every_system_of_the_table_does_what_the_workloads_take_for_granted() {
    let _alone = observed::alone();
    for system in super::ALL {
        for check in system.checks {
            say!("{}", system.name);
            check();
        }
    }
}

#[test]
fn a_floor_serves_touches_only() {
    for (name, why, workloads) in [
        ("bare", "no timers", &["W2", "S1", "S2", "S5"][..]),
        ("sharded-published", "may be early", &["W2", "S1"]),
    ] {
        assert_eq!(super::floor(name), Some(why));
        let served = |workload: &Workload| {
            let mut systems = super::named(name);
            systems.any(|system| system.serves(workload).is_some())
        };
        let served = crate::workloads::ALL.iter().filter(|w| served(w));
        let served: Vec<&str> = served.map(|workload| workload.name).collect();
        assert_eq!(served, workloads);
    }
    assert_eq!([super::floor("heap"), super::floor("sharded")], [None; 2]);
}

#[test]
fn a_name_has_one_entry_for_a_workload() {
    for workload in crate::workloads::ALL {
        let mut names = HashSet::new();
        for system in super::ALL.iter().filter(|s| s.serves(workload).is_some()) {
            assert!(
                names.insert(system.name),
                "{} {}",
                workload.name,
                system.name
            );
        }
        assert!(!names.is_empty(), "{}", workload.name);
    }
}
