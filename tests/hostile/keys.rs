//! Keys whose `Eq`, `Hash`, `Clone` and `Drop` panic or call the scheduler: whatever they do, the
//! scheduler is whole afterwards, and its counters balance.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::quiet::{WANTED, hush, panics};
use kit::wait;
use tourbillon::test_util::Stepped;
use tourbillon::{AfterPanic, Cancel, Firing, Handle, Next, Period, Scheduler, TimerState};

const T: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Eq,
    Hash,
    Clone,
    Drop,
}

#[derive(Clone, Copy)]
enum Deed {
    Panic,
    /// Calls the scheduler.
    Call,
}

/// What the keys of this thread are going to do.
struct Mood {
    plan: Option<(What, usize, Deed)>,
    timers: Option<Handle<Key>>,
}

thread_local! {
    static MOOD: RefCell<Mood> = const { RefCell::new(Mood { plan: None, timers: None }) };
}

/// The keys of this thread do `deed` once, after they were asked for `what` so many times.
fn plan(what: What, skip: usize, deed: Deed) {
    MOOD.with_borrow_mut(|mood| mood.plan = Some((what, skip, deed)));
}

/// Whether the deed was done.
fn done() -> bool {
    MOOD.with_borrow_mut(|mood| mood.plan.take().is_none())
}

fn on(what: What) {
    let deed = MOOD.with_borrow_mut(|mood| match &mut mood.plan {
        Some((planned, skip, deed)) if *planned == what => {
            if *skip > 0 {
                *skip -= 1;
                return None;
            }
            let deed = *deed;
            mood.plan = None;
            Some((deed, mood.timers.clone()))
        }
        _ => None,
    });
    match deed {
        None => {}
        Some((Deed::Panic, _)) => panic!("{WANTED}: a key's deed"),
        Some((Deed::Call, timers)) => {
            let timers = timers.expect("a test that plans a call sets the handle");
            // Any stripe, also others than the one in use.
            let _ = timers.stats();
        }
    }
}

struct Key(u64);

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        on(What::Eq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        on(What::Hash);
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Key {
        on(What::Clone);
        Key(self.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        on(What::Drop);
    }
}

/// Three timers in one stripe, due at ticks 1, 2 and 3.
fn three(seed: u64) -> Stepped<Key> {
    hush();
    let builder = Scheduler::<Key>::builder().shards(1).stripes(1);
    let scheduler = builder.build_stepped(seed).unwrap();
    let timers = scheduler.handle();
    for key in 1..=3 {
        timers.schedule(Key(key), T * key as u32, |_| ()).unwrap();
    }
    MOOD.with_borrow_mut(|mood| mood.timers = Some(timers));
    scheduler
}

/// Everything that can be seen of a scheduler.
fn sight(timers: &Handle<Key>) -> String {
    let mut all: Vec<_> = timers
        .pending()
        .map(|(key, info)| format!("{} {info:?}", key.0))
        .collect();
    all.sort();
    let stats = timers.stats();
    assert!(stats.balances());
    format!("{all:?} {stats:?}")
}

/// All calls that look a key up, each with the keys 2 and, where it takes several, 1 and 3.
type Call = (&'static str, fn(&Handle<Key>));

const CALLS: &[Call] = &[
    ("schedule", |timers| {
        timers.schedule(Key(2), T, |_| ()).unwrap();
    }),
    ("schedule at a time", |timers| {
        timers.schedule(Key(2), timers.now(), |_| ()).unwrap();
    }),
    ("schedule_if_absent", |timers| {
        timers.schedule_if_absent(Key(2), T, |_| ()).unwrap_err();
    }),
    ("reschedule", |timers| {
        let _ = timers.reschedule(&Key(2), 5 * T);
    }),
    ("pull_in", |timers| {
        let _ = timers.pull_in(&Key(2), T);
    }),
    ("cancel", |timers| {
        timers.cancel(&Key(2));
    }),
    ("cancel_and_wait", |timers| {
        let _ = timers.cancel_and_wait(&Key(2)).wait();
    }),
    ("get", |timers| {
        let _ = timers.get(&Key(2));
    }),
    ("contains", |timers| {
        let _ = timers.contains(&Key(2));
    }),
    ("schedule_many", |timers| {
        let keys = [Key(1), Key(2), Key(3)];
        let _ = timers.schedule_many(keys.map(|key| (key, T, |_: &Firing<'_, Key>| ())));
    }),
    ("reschedule_many", |timers| {
        timers.reschedule_many(&[Key(1), Key(2), Key(3)], T / 2);
    }),
    ("reschedule_many, later", |timers| {
        timers.reschedule_many(&[Key(1), Key(2), Key(3)], 9 * T);
    }),
    ("cancel_many", |timers| {
        timers.cancel_many(&[Key(1), Key(2), Key(3)]);
    }),
];

/// Two of three are found before the deed is done, where a call takes several keys.
fn skip(name: &str) -> usize {
    if name.contains("many") { 2 } else { 0 }
}

/// The three timers run as if nothing had happened.
fn all_run(scheduler: &Stepped<Key>) {
    let fired = scheduler.advance(100 * T);
    let keys: Vec<_> = fired.iter().map(|fired| fired.key.0).collect();
    assert_eq!(keys, [1, 2, 3]);
    assert!(fired.iter().all(|fired| fired.at == fired.deadline));
    let stats = scheduler.handle().stats();
    assert_eq!((stats.ran, stats.panicked, stats.pending), (3, 0, 0));
    assert!(stats.balances());
}

#[test]
fn a_key_that_fails_while_it_is_looked_up_changes_nothing() {
    let instead_of_hanging = "called the scheduler";
    for (case, what, deed, message) in [
        ("an eq panics", What::Eq, Deed::Panic, WANTED),
        ("an eq calls", What::Eq, Deed::Call, instead_of_hanging),
        ("a hash panics", What::Hash, Deed::Panic, WANTED),
    ] {
        for (name, call) in CALLS {
            let scheduler = three(0);
            let timers = scheduler.handle();
            let before = sight(&timers);
            plan(what, skip(name), deed);
            let said = panics(|| call(&timers));
            // What was said would hush the failure.
            assert!(said.contains(message), "{case}, {name}");
            assert_eq!(sight(&timers), before, "{case}, {name}");
            all_run(&scheduler);
        }
    }
}

#[test]
fn a_hash_may_call_the_scheduler() {
    for (name, call) in CALLS {
        let scheduler = three(0);
        let timers = scheduler.handle();
        plan(What::Hash, skip(name), Deed::Call);
        call(&timers);
        assert!(done(), "{name}");
        scheduler.advance(100 * T);
        let stats = timers.stats();
        assert_eq!((stats.pending, stats.panicked), (0, 0));
        assert!(stats.balances());
    }
}

#[test]
fn a_clone_that_fails_at_a_claim_costs_that_run_alone() {
    for deed in [Deed::Panic, Deed::Call] {
        for failing in 1..=3_u32 {
            hush();
            let told = Arc::new(std::sync::Mutex::new(Vec::new()));
            let tell = Arc::clone(&told);
            let builder = Scheduler::<Key>::builder().on_panic(move |panic| {
                let message = panic.message.to_owned();
                tell.lock()
                    .unwrap()
                    .push((panic.key.0, panic.deadline, message));
            });
            let scheduler = builder.build_stepped(0).unwrap();
            let timers = scheduler.handle();
            MOOD.with_borrow_mut(|mood| mood.timers = Some(timers.clone()));
            let payload = Arc::new(());
            let mut due = Vec::new();
            for key in 1..=3 {
                let payload = Arc::clone(&payload);
                let delay = T * key as u32;
                let armed = timers.schedule(Key(key), delay, move |_| drop(payload));
                due.push(armed.unwrap());
            }
            scheduler.advance((failing - 1) * T);
            plan(What::Clone, 0, deed);
            let ran = scheduler.jump_to(scheduler.now() + T + T / 2);
            assert!(done());
            assert!(ran.is_empty(), "its task was not called");
            // It has ended all the same: the key is free, its payload is gone.
            let key = u64::from(failing);
            assert!(!timers.contains(&Key(key)));
            assert_eq!(Arc::strong_count(&payload), 4 - failing as usize);
            let stats = timers.stats();
            assert_eq!((stats.ran, stats.panicked), (key, 1));
            assert!(stats.balances());
            let (told_key, deadline, message) = told.lock().unwrap().pop().unwrap();
            let armed = due[failing as usize - 1];
            assert_eq!((told_key, deadline), (key, armed.deadline));
            assert!(message.contains(match deed {
                Deed::Panic => WANTED,
                Deed::Call => "called the scheduler",
            }));
            assert_eq!(timers.by_id(armed.id).cancel(), Cancel::NotFound);
            timers.schedule(Key(key), T, |_| ()).unwrap();
            assert_eq!(scheduler.advance(100 * T).len(), 4 - failing as usize);
            assert_eq!(timers.stats().panicked, 1);
            assert!(timers.is_empty() && timers.stats().balances());
        }
    }
}

/// A stepped scheduler records each round with a clone of the key.
#[test]
fn a_clone_that_panics_while_a_round_is_recorded_is_a_panic_of_that_round() {
    for (after, goes_on) in [(AfterPanic::Continue, true), (AfterPanic::Stop, false)] {
        hush();
        let scheduler = Scheduler::<Key>::builder()
            .shards(1)
            .stripes(1)
            .build_stepped(0)
            .unwrap();
        let timers = scheduler.handle();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let period = Period::fixed_delay(T).on_panic(after);
        let repeated = timers.repeat(Key(1), period, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            Next::Again
        });
        repeated.unwrap();
        scheduler.advance(T);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // The claim makes the first clone, the record the second one.
        plan(What::Clone, 1, Deed::Panic);
        assert!(scheduler.advance(T).is_empty(), "nothing was recorded");
        assert!(done());
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the task was not called");
        assert_eq!(timers.stats().panicked, 1);
        assert_eq!(timers.contains(&Key(1)), goes_on);
        scheduler.advance(T);
        assert_eq!(calls.load(Ordering::Relaxed), 1 + usize::from(goes_on));
        assert!(timers.stats().balances());
    }
}

#[test]
fn a_clone_that_panics_in_an_iteration_changes_nothing() {
    let scheduler = three(0);
    let timers = scheduler.handle();
    for skip in 0..3 {
        plan(What::Clone, skip, Deed::Panic);
        assert!(panics(|| timers.pending().count()).contains(WANTED));
        assert_eq!(timers.pending().count(), 3);
    }
    all_run(&scheduler);
}

/// The key that arming needs no more, since the old one stays.
#[test]
fn a_drop_that_panics_leaves_the_call_done() {
    for seed in 0..4 {
        let scheduler = three(seed);
        let timers = scheduler.handle();
        plan(What::Drop, 0, Deed::Panic);
        panics(|| timers.schedule(Key(2), 5 * T, |_| ()));
        assert!(done());
        let info = timers.get(&Key(2)).unwrap();
        assert_eq!(info.remaining(scheduler.now()), 5 * T);
        assert_eq!(info.state, TimerState::Pending);
        // The first drop is that of the key in the table, the second that of the argument.
        plan(What::Drop, 0, Deed::Panic);
        panics(|| timers.cancel(&Key(2)));
        assert!(done());
        assert!(!timers.contains(&Key(2)));
        let stats = timers.stats();
        assert_eq!((stats.replaced, stats.cancelled), (1, 1));
        assert!(stats.balances());
        let keys = [Key(1), Key(2), Key(3)];
        plan(What::Drop, 0, Deed::Panic);
        panics(|| timers.cancel_many(&keys));
        assert!(done());
        assert!(timers.is_empty(), "all of them");
        assert!(timers.stats().balances());
    }
}

#[test]
fn a_drop_may_call_the_scheduler() {
    for skip in 0..12 {
        let scheduler = three(0);
        let timers = scheduler.handle();
        plan(What::Drop, skip, Deed::Call);
        timers.schedule(Key(1), 5 * T, |_| ()).unwrap();
        timers.cancel(&Key(2));
        timers.reschedule_many(&[Key(1), Key(3)], Duration::ZERO);
        timers.schedule(Key(2), T, |_| ()).unwrap();
        timers.cancel_many(&[Key(2)]);
        let keys: Vec<_> = scheduler.settle().iter().map(|f| f.key.0).collect();
        assert_eq!(keys.len(), 2);
        drop(scheduler);
        assert!(done(), "{skip}");
        let stats = timers.stats();
        assert_eq!((stats.panicked, stats.ran), (0, 2));
        assert!(stats.balances());
    }
}

/// A worker drops a key's clone after the run, and the key itself after settling it.
#[test]
fn a_drop_that_panics_on_a_worker_is_contained() {
    for skip in 0..2 {
        let scheduler = three(0);
        let timers = scheduler.handle();
        plan(What::Drop, skip, Deed::Panic);
        let fired = scheduler.advance(T);
        assert!(done());
        assert_eq!(fired.len(), 1);
        assert!(!timers.contains(&Key(1)));
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.running, stats.pending), (1, 0, 2));
        assert_eq!(scheduler.advance(100 * T).len(), 2);
        assert!(timers.stats().balances());
    }
}

#[test]
fn drops_that_panic_with_the_scheduler_do_not_end_the_process() {
    let scheduler = three(0);
    let timers = scheduler.handle();
    plan(What::Drop, 1, Deed::Panic);
    panics(|| drop(scheduler));
    assert!(done());
    let stats = timers.stats();
    assert_eq!((stats.cancelled, stats.pending), (3, 0));
    assert!(stats.balances());
}

/// On real threads: each worker's keys fail now and then, in every way at once.
#[derive(PartialEq, Eq, Hash)]
struct Moody(u64, Arc<Bool>);

/// An `AtomicBool` that does not count for equality.
struct Bool(AtomicBool);

impl PartialEq for Bool {
    fn eq(&self, _: &Bool) -> bool {
        true
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Clone for Moody {
    fn clone(&self) -> Moody {
        assert!(!self.0.is_multiple_of(3), "{WANTED}: a clone");
        Moody(self.0, Arc::clone(&self.1))
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        let armed = self.1.0.load(Ordering::SeqCst);
        assert!(!armed || !self.0.is_multiple_of(5), "{WANTED}: a drop");
    }
}

#[test]
fn workers_and_tickers_outlive_hostile_keys() {
    hush();
    const KEYS: u64 = 3_000;
    let scheduler = Scheduler::<Moody>::builder().workers(2).build().unwrap();
    let timers = scheduler.handle();
    let armed = Arc::new(Bool(AtomicBool::new(true)));
    let (send, ran) = mpsc::channel();
    for key in 0..KEYS {
        let send = send.clone();
        let delay = Duration::from_micros(key % 7 * 500);
        timers
            .schedule(Moody(key, Arc::clone(&armed)), delay, move |firing| {
                send.send(firing.key().0).unwrap();
            })
            .unwrap();
    }
    drop(send);
    // The channel ends when the last task is gone, whichever way.
    let mut ran = wait::all(&ran);
    ran.sort_unstable();
    let expected: Vec<u64> = (0..KEYS).filter(|key| key % 3 != 0).collect();
    assert_eq!(ran, expected);
    armed.0.store(false, Ordering::SeqCst);
    wait::until("the end of the last run", || timers.stats().running == 0);
    let stats = timers.stats();
    assert_eq!((stats.ran, stats.panicked), (KEYS, KEYS / 3));
    assert_eq!((stats.pending, stats.ticker_panics), (0, 0));
    assert!(stats.balances());
}
