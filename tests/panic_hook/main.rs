//! A panic hook that calls the crate when user code has panicked under a lock. A panic inside of
//! the hook would end the process, so every call answers or does nothing.
//!
//! One test: the hook is the whole process's.

use std::future::ready;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::until;
use kit::wakes::{Wakes, poll};
use tourbillon::{
    Cancel, CancelGuard, Closing, EntryError, ExpiryMap, GroupedBy, GroupedExpiryMap, Handle,
    InsertRefusal, PullIn, Removed, RenameRefusal, Reschedule, ScheduleError, Scheduler, Shutdown,
    Sleep, SleepError, Timer, Touch, Toucher, WaitError,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// A key of which the code that runs under a lock panics on demand.
#[derive(Debug)]
struct Key(u32);

static KEYS_PANIC: AtomicBool = AtomicBool::new(false);

fn maybe_panic() {
    assert!(!KEYS_PANIC.load(Ordering::SeqCst), "on purpose");
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        maybe_panic();
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Clone for Key {
    fn clone(&self) -> Self {
        maybe_panic();
        Key(self.0)
    }
}

type Map = GroupedExpiryMap<Key, Key, Key>;
type Doomed = Closing<tourbillon::Report<Key>>;

/// What the hook works with. It has nothing that it could not call.
struct Rig {
    map: Map,
    toucher: Mutex<Toucher<Key, Key, GroupedBy<Key>>>,
    timers: Handle<Key>,
    timer: Timer,
    timeout: tourbillon::TimerHandle,
    id: tourbillon::TimerId,
    wakes: Arc<Wakes>,
    /// Armed before the panic.
    asleep: Mutex<Sleep>,
    guards: Mutex<Vec<CancelGuard<Key>>>,
    doomed: Mutex<Option<Scheduler<Key>>>,
    /// Holds back a task of `doomed`, so that its shutdown does not end before the hook.
    gate: Mutex<Gate>,
    closings: Mutex<Vec<Doomed>>,
    calls: AtomicUsize,
}

impl Rig {
    fn new(scheduler: &Scheduler<Key>) -> Self {
        let map = ExpiryMap::<Key, Key>::builder()
            .groups::<Key>()
            .time_to_live(HOUR)
            .build(|_, _| ())
            .unwrap();
        map.entry(Key(1)).group(&Key(5)).insert(Key(10)).unwrap();
        let timers = scheduler.handle();
        let id = timers.schedule(Key(1), HOUR, |_| ()).unwrap().id;
        let timer = Timer::new().unwrap();
        let wakes = Wakes::new();
        let mut asleep = timer.sleep(HOUR);
        assert!(poll(&mut asleep, &wakes).is_pending());
        Rig {
            toucher: Mutex::new(map.toucher()),
            map,
            timeout: timer.after(HOUR, || ()).unwrap(),
            timers,
            timer,
            id,
            wakes,
            asleep: Mutex::new(asleep),
            guards: Mutex::default(),
            doomed: Mutex::default(),
            gate: Mutex::default(),
            closings: Mutex::default(),
            calls: AtomicUsize::new(0),
        }
    }

    /// Before each panic: something to be dropped, and something to be shut down.
    fn prepare(&self) {
        let armed = self.timers.schedule(Key(2), HOUR, |_| ()).unwrap();
        self.guards
            .lock()
            .unwrap()
            .push(self.timers.cancel_on_drop(armed.id));
        let doomed = Scheduler::builder().build().unwrap();
        doomed.handle().schedule(Key(3), HOUR, |_| ()).unwrap();
        let gate = Gate::default();
        let task = gate.clone();
        let now = Duration::ZERO;
        doomed
            .handle()
            .schedule(Key(4), now, move |_| task.pass())
            .unwrap();
        gate.crowd(1);
        *self.gate.lock().unwrap() = gate;
        *self.doomed.lock().unwrap() = Some(doomed);
    }

    /// Every call, from the hook. A failed assertion ends the process, and so the test.
    fn call_everything(&self) {
        self.call_the_map();
        self.call_the_handle();
        self.call_the_timer();
        // What is dropped or shut down is dealt with later.
        self.guards.lock().unwrap().clear();
        let doomed = self.doomed.lock().unwrap().take().expect("prepared");
        let Err(inside) = doomed.shutdown(Shutdown::HandBack).wait() else {
            panic!("a thread that may have a lock must not wait");
        };
        self.closings.lock().unwrap().push(inside.into_closing());
        drop(doomed);
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    fn call_the_map(&self) {
        let map = &self.map;
        let refused = map.insert(Key(1), Key(11)).unwrap_err();
        assert_eq!(refused.refusal, InsertRefusal::UnderLock);
        assert_eq!((refused.key.0, refused.value.0), (1, 11));
        assert!(refused.to_string().contains("panics"));
        let refused = map
            .entry(Key(1))
            .group(&Key(5))
            .insert(Key(11))
            .unwrap_err();
        assert_eq!(refused.refusal, InsertRefusal::UnderLock);
        let refused = map
            .entry(Key(1))
            .no_group()
            .or_insert_with(|| Key(11))
            .unwrap_err();
        assert_eq!(refused.refusal, InsertRefusal::UnderLock);
        let refused = map
            .entry(Key(1))
            .no_group()
            .or_compute(|| Ok::<_, ()>(Key(11)))
            .wait();
        let Err(EntryError::Insert(refused)) = refused else {
            panic!("it was not refused");
        };
        assert_eq!(refused.refusal, InsertRefusal::UnderLock);
        let compute = ready(Ok::<_, ()>(Key(11)));
        let mut call = Box::pin(map.entry(Key(1)).no_group().or_compute(|| compute));
        let Poll::Ready(Err(EntryError::Insert(refused))) = poll(&mut call, &self.wakes) else {
            panic!("it was not refused");
        };
        assert_eq!(refused.refusal, InsertRefusal::UnderLock);
        let refused = map
            .entry(Key(1))
            .group(&Key(5))
            .touch_with(|_| ())
            .or_insert_with(|| Key(11));
        assert_eq!(refused.unwrap_err().refusal, InsertRefusal::UnderLock);
        assert_eq!(map.touch_with(&Key(1), |_| ()), (Touch::NotFound, None));
        assert_eq!((map.len(), map.is_empty()), (0, true));
        assert_eq!(map.stats().pending, 0);
        assert!(!map.contains(&Key(1)) && map.get(&Key(1)).is_none());
        assert!(map.with(&Key(1), |_| ()).is_none());
        assert!(map.update(&Key(1), |_| ()).is_none());
        assert_eq!(map.touch(&Key(1)), Touch::NotFound);
        assert_eq!(map.touch_many(&[Key(1), Key(2)]), [Touch::NotFound; 2]);
        let mut toucher = self.toucher.lock().unwrap();
        toucher.touch(Key(1));
        assert_eq!(toucher.flush(), 0, "the touch stays in the buffer");
        assert!(matches!(map.remove(&Key(1)), Removed::NotFound));
        assert_eq!((map.retain(|_, _| false), map.clear()), (0, 0));
        assert_eq!(map.iter().count(), 0);
        assert_eq!((map.group_len(&Key(5)), map.touch_group(&Key(5))), (0, 0));
        assert!(map.group_of(&Key(1)).is_none());
        assert!(map.group_entries(&Key(5)).is_empty());
        assert!(map.remove_group(&Key(5)).is_empty());
        let refusal = map.rename(&Key(1), Key(9)).unwrap_err().refusal;
        assert_eq!(refusal, RenameRefusal::Insert(InsertRefusal::UnderLock));
        let _ = format!("{map:?}");
    }

    fn call_the_handle(&self) {
        let timers = &self.timers;
        let refused = timers.schedule(Key(1), HOUR, |_| ()).unwrap_err();
        assert!(matches!(refused, ScheduleError::UnderLock(_)));
        assert!(refused.is_transient() && refused.to_string().contains("panics"));
        assert!(timers.schedule_if_absent(Key(1), HOUR, |_| ()).is_err());
        assert_eq!(timers.reschedule(&Key(1), HOUR), Reschedule::NotFound);
        assert_eq!(timers.pull_in(&Key(1), HOUR), PullIn::NotFound);
        assert_eq!(timers.cancel(&Key(1)), Cancel::NotFound);
        assert_eq!(timers.cancel_many(&[Key(1)]), [Cancel::NotFound]);
        let moved = timers.reschedule_many(&[Key(1)], HOUR);
        assert_eq!(moved, [Reschedule::NotFound]);
        assert!(timers.get(&Key(1)).is_none() && !timers.contains(&Key(1)));
        assert_eq!((timers.len(), timers.pending().count()), (0, 0));
        assert_eq!(timers.stats().pending, 0);
        let by_id = timers.by_id(self.id);
        assert!(by_id.get().is_none());
        assert_eq!(by_id.cancel(), Cancel::NotFound);
        assert_eq!(by_id.reschedule(HOUR), Reschedule::NotFound);
        let by_ids = timers.by_ids([self.id; 2]);
        assert_eq!(by_ids.cancel(), [Cancel::NotFound; 2]);
        assert_eq!(by_ids.reschedule(HOUR), [Reschedule::NotFound; 2]);
        let deadlock = Err(WaitError::WouldDeadlock);
        assert_eq!(timers.cancel_and_wait(&Key(1)).wait(), deadlock);
        let mut waiting = timers.cancel_and_wait(&Key(1));
        assert_eq!(poll(&mut waiting, &self.wakes), Poll::Ready(deadlock));
        if let Some(guard) = self.guards.lock().unwrap().pop() {
            assert_eq!(guard.cancel(), Cancel::NotFound, "it does it later");
        }
    }

    fn call_the_timer(&self) {
        let refused = self.timer.after(HOUR, || ());
        assert!(matches!(refused, Err(ScheduleError::UnderLock(_))));
        assert_eq!(self.timeout.cancel(), Cancel::NotFound);
        assert_eq!(self.timeout.reschedule(HOUR), Reschedule::NotFound);
        assert!(!self.timeout.is_expired() && !self.timeout.is_cancelled());
        assert_eq!(self.timeout.remaining(), None);
        let under_lock = Poll::Ready(Err(SleepError::UnderLock));
        let mut asleep = self.asleep.lock().unwrap();
        assert_eq!(poll(&mut *asleep, &self.wakes), under_lock);
        assert_eq!(poll(&mut self.timer.sleep(HOUR), &self.wakes), under_lock);
        assert!(SleepError::UnderLock.to_string().contains("panics"));
        assert_eq!(self.timer.stats().pending, 0);
    }

    /// After each panic: nothing has changed but what was dropped and shut down.
    fn check(&self, panics: usize) {
        assert_eq!(self.calls.load(Ordering::SeqCst), panics);
        self.gate.lock().unwrap().open();
        let closings: Vec<_> = self.closings.lock().unwrap().drain(..).collect();
        for closing in closings {
            let report = closing.wait().unwrap();
            assert!(!report.already_closed);
            assert_eq!(report.handed_back.len(), 1);
        }
        assert_eq!(self.map.len(), 1);
        assert_eq!(self.toucher.lock().unwrap().flush(), 1);
        assert_eq!(self.map.group_len(&Key(5)), 1);
        assert_eq!(self.timers.len(), 1, "the guard's timer is cancelled");
        assert!(self.timers.contains(&Key(1)));
        assert_eq!(self.timer.stats().pending, 2);
        assert!(self.timeout.remaining().is_some());
        let mut asleep = self.asleep.lock().unwrap();
        assert!(poll(&mut *asleep, &self.wakes).is_pending());
    }
}

fn ignore<T>(_: T) {}

/// Panics under a lock, each in another way.
fn ways(rig: &Rig) -> Vec<Box<dyn Fn() + '_>> {
    let map = &rig.map;
    let with_keys = |call: &dyn Fn()| {
        KEYS_PANIC.store(true, Ordering::SeqCst);
        let ended = catch_unwind(AssertUnwindSafe(call));
        KEYS_PANIC.store(false, Ordering::SeqCst);
        assert!(ended.is_err());
        panic!("as expected, without a lock");
    };
    vec![
        Box::new(|| ignore(map.update(&Key(1), |_| panic!("on purpose")))),
        Box::new(|| ignore(map.with(&Key(1), |_| panic!("on purpose")))),
        Box::new(|| ignore(map.retain(|_, _| panic!("on purpose")))),
        Box::new(move || with_keys(&|| ignore(map.get(&Key(1))))),
        Box::new(move || with_keys(&|| ignore(map.iter().count()))),
        Box::new(move || with_keys(&|| ignore(map.touch_many(&[Key(1)])))),
        Box::new(move || with_keys(&|| ignore(map.group_len(&Key(5))))),
        Box::new(move || with_keys(&|| ignore(map.entry(Key(1)).group(&Key(5)).insert(Key(2))))),
        Box::new(move || with_keys(&|| ignore(rig.timers.cancel(&Key(1))))),
    ]
}

#[test]
fn a_panic_hook_may_call_everything() {
    let scheduler = Scheduler::builder().build().unwrap();
    let rig = Arc::new(Rig::new(&scheduler));
    let in_hook = Arc::clone(&rig);
    set_hook(Box::new(move |info| {
        let purpose = info.payload().downcast_ref::<&str>() == Some(&"on purpose");
        if purpose {
            // Its own keys must not panic.
            let keys_panic = KEYS_PANIC.swap(false, Ordering::SeqCst);
            in_hook.call_everything();
            KEYS_PANIC.store(keys_panic, Ordering::SeqCst);
        } else {
            eprintln!("{info}");
        }
    }));
    let mut panics = 0;
    for way in ways(&rig) {
        rig.prepare();
        assert!(catch_unwind(AssertUnwindSafe(way)).is_err());
        panics += 1;
        rig.check(panics);
    }
    // On a worker: the key's clone for the run.
    rig.prepare();
    KEYS_PANIC.store(true, Ordering::SeqCst);
    let other = Scheduler::builder().build().unwrap();
    let timers = other.handle();
    timers.schedule(Key(9), Duration::ZERO, |_| ()).unwrap();
    until("its run panicked", || timers.stats().panicked == 1);
    // The worker counts that under the lock, and goes on without it.
    until("its guard has cancelled", || rig.timers.len() == 1);
    KEYS_PANIC.store(false, Ordering::SeqCst);
    rig.check(panics + 1);
    drop(take_hook());
}
