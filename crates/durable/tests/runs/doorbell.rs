//! A store with a doorbell: a node polls the queue that rang at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kit::gate::Gate;
use kit::{quiet, wait};
use tourbillon_durable::store::{
    Action, Call, Connection, Notification, NotificationListener, Store, StoreError, Subscription,
};
use tourbillon_durable::{
    Due, DueAt, Durable, DurableBuilder, DurableEvent, FindingKind, Memory, MemoryCall, MemoryFault,
};

use super::setup::{HOUR, ms};

/// A store in memory whose doorbell the test rings.
#[derive(Clone, Default, Debug)]
struct Belled {
    memory: Memory,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct Bell {
    listener: Mutex<Option<NotificationListener>>,
    is_over: AtomicBool,
    polls: AtomicUsize,
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell").finish_non_exhaustive()
    }
}

impl Belled {
    fn new() -> Self {
        let store = Belled::default();
        let bell = Arc::clone(&store.bell);
        store.memory.inject(move |call| {
            if matches!(call, MemoryCall::Poll(_)) {
                bell.polls.fetch_add(1, Ordering::SeqCst);
            }
            MemoryFault::None
        });
        store
    }

    /// A node that would find nothing within a minute without the doorbell.
    fn node(&self) -> DurableBuilder {
        Durable::builder(self.clone())
            .poll_interval(ms(60_000))
            .node_lease(HOUR)
    }

    /// Waits until the node has polled, and waits for the next minute.
    fn settle_down(&self) {
        let mut last = (0, Instant::now());
        wait::until("the node polls and rests", || {
            let polls = self.polls();
            if polls != last.0 {
                last = (polls, Instant::now());
            }
            polls > 0 && last.1.elapsed() > ms(100)
        });
    }

    fn polls(&self) -> usize {
        self.bell.polls.load(Ordering::SeqCst)
    }

    fn says(&self, notification: Notification<'_>) {
        let listener = self.bell.listener.lock().unwrap();
        listener.as_ref().expect("a node listens")(notification);
    }

    fn is_over(&self) -> bool {
        self.bell.is_over.load(Ordering::SeqCst)
    }

    /// Another process schedules a timer.
    fn schedule(&self, key: &str) {
        let call = Call {
            queue: "q".into(),
            key: key.into(),
            action: Action::Schedule {
                when: DueAt::After(ms(20)),
                payload: "null".into(),
            },
        };
        let answers = self.memory.connect().unwrap().write(&[call]).unwrap();
        assert!(answers[0].is_ok(), "{answers:?}");
    }
}

impl Store for Belled {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        self.memory.connect()
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        *self.bell.listener.lock().unwrap() = Some(listener);
        let bell = Arc::clone(&self.bell);
        Some(Subscription::new(move || {
            bell.is_over.store(true, Ordering::SeqCst);
        }))
    }
}

/// Less than the time until the next poll.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_timer_of_another_process_runs_at_once_when_its_queue_rings() {
    let store = Belled::new();
    let (sender, runs) = mpsc::channel();
    let timers = store
        .node()
        .handle("q", move |due: &Due<()>| {
            sender.send(due.key().to_owned()).unwrap();
        })
        .start()
        .unwrap();
    store.settle_down();
    store.schedule("rung");
    store.says(Notification::Ring("another"));
    assert_eq!(timers.stats().rings, 0, "it is not handled here");
    store.says(Notification::Ring("q"));
    assert_eq!(runs.recv_timeout(SOON).as_deref(), Ok("rung"));
    assert_eq!(timers.stats().rings, 1);
    // What was scheduled while nobody listened is found too.
    store.schedule("missed");
    store.says(Notification::Open);
    assert_eq!(runs.recv_timeout(SOON).as_deref(), Ok("missed"));
}

#[test]
fn a_storm_of_rings_costs_fifty_polls_a_second() {
    let store = Belled::new();
    let timers = store.node().handle("q", |_: &Due<()>| ()).start().unwrap();
    store.settle_down();
    let (start, before) = (Instant::now(), store.polls());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50_000 {
                    store.says(Notification::Ring("q"));
                }
            });
        }
    });
    wait::until("the last ring is answered", || store.polls() > before);
    store.settle_down();
    let most = start.elapsed().as_millis() / 20 + 2;
    let polls = store.polls() - before;
    assert!(polls as u128 <= most, "{polls} polls, not {most}");
    assert_eq!(timers.stats().rings, 200_000);
}

#[test]
fn nobody_listens_after_the_begin_of_a_stop_and_after_a_crash() {
    let store = Belled::new();
    let gate = Gate::default();
    let pass = gate.clone();
    let timers = store
        .node()
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &())
        .wait()
        .unwrap();
    gate.crowd(1);
    assert!(!store.is_over());
    let stop = timers.stop(HOUR);
    wait::until("nobody listens", || store.is_over());
    // The stop waits for the run.
    assert_eq!(gate.waiting(), 1);
    store.says(Notification::Ring("q"));
    gate.open();
    assert_eq!(stop.wait().unwrap().unfinished, 0);

    let store = Belled::new();
    let timers = store.node().handle("q", |_: &Due<()>| ()).start().unwrap();
    store.settle_down();
    timers.crash();
    wait::until("nobody listens", || store.is_over());
}

#[test]
fn a_program_without_handlers_does_not_listen() {
    let store = Belled::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    timers.schedule("q", "k", HOUR, &()).wait().unwrap();
    assert!(store.bell.listener.lock().unwrap().is_none());
}

#[test]
fn an_end_of_the_doorbell_is_reported_once_and_so_is_its_return() {
    let store = Belled::new();
    let (sender, events) = mpsc::channel();
    let timers = store
        .node()
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", |_: &Due<()>| ())
        .start()
        .unwrap();
    store.says(Notification::Open);
    let why = StoreError::Unavailable("cut".into());
    let is_down = || {
        let health = timers.health();
        assert!(health.is_ready(), "{health}");
        let mut findings = health.into_iter();
        findings.any(|found| found.kind == FindingKind::DoorbellDown)
    };
    wait::until("the node has joined", || timers.health().is_ready());
    assert!(!is_down());
    store.says(Notification::Lost(&why));
    store.says(Notification::Lost(&why));
    assert!(is_down());
    store.says(Notification::Open);
    assert!(!is_down());
    store.says(Notification::Open);
    let first = wait::next(&events);
    assert!(
        matches!(&first, DurableEvent::DoorbellDown { error, .. } if error.contains("cut")),
        "{first:?}"
    );
    assert_eq!(wait::next(&events), DurableEvent::DoorbellUp);
    timers.stop(Duration::ZERO).wait().unwrap();
    drop((timers, store));
    assert_eq!(wait::all(&events), []);
}

/// A store that can't listen at first, as if no thread could be started.
#[derive(Debug)]
struct Deaf {
    belled: Belled,
    /// How it can't, by the number of the attempt.
    fails: fn(usize) -> Option<Failing>,
    attempts: Arc<Mutex<Vec<Instant>>>,
}

enum Failing {
    Says,
    Panics,
}

impl Deaf {
    fn new(fails: fn(usize) -> Option<Failing>) -> Self {
        Deaf {
            belled: Belled::new(),
            fails,
            attempts: Arc::default(),
        }
    }
}

impl Store for Deaf {
    fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
        self.belled.connect()
    }

    fn listen(&self, listener: NotificationListener) -> Option<Subscription> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            attempts.push(Instant::now());
            attempts.len()
        };
        match (self.fails)(attempt) {
            None => {
                listener(Notification::Open);
                self.belled.listen(listener)
            }
            Some(Failing::Says) => {
                listener(Notification::Lost(&StoreError::Unavailable(
                    "no thread".into(),
                )));
                None
            }
            Some(Failing::Panics) => panic!("{}: no thread", quiet::WANTED),
        }
    }
}

#[test]
fn a_store_that_can_not_listen_is_asked_again_less_and_less_often() {
    quiet::hush();
    let ways: [fn(usize) -> Option<Failing>; 2] = [
        |attempt| (attempt < 4).then_some(Failing::Says),
        |attempt| (attempt < 4).then_some(Failing::Panics),
    ];
    for fails in ways {
        let store = Deaf::new(fails);
        let (belled, attempts) = (store.belled.clone(), Arc::clone(&store.attempts));
        let (sender, events) = mpsc::channel();
        let (ran, runs) = mpsc::channel();
        let timers = Durable::builder(store)
            .poll_interval(ms(60_000))
            .node_lease(HOUR)
            .on_event(move |event| sender.send(event.clone()).unwrap())
            .handle("q", move |due: &Due<()>| {
                ran.send(due.key().to_owned()).unwrap();
            })
            .start()
            .unwrap();
        let down = wait::next(&events);
        assert!(
            matches!(&down, DurableEvent::DoorbellDown { error, .. } if error.contains("no thread")),
            "{down:?}"
        );
        assert_eq!(wait::next(&events), DurableEvent::DoorbellUp);
        let attempts = attempts.lock().unwrap().clone();
        let pauses = attempts.windows(2).map(|pair| pair[1] - pair[0]);
        for (pause, least) in pauses.zip([ms(100), ms(200), ms(400)]) {
            assert!(pause >= least, "{pause:?}, not {least:?}");
        }
        assert_eq!(attempts.len(), 4);
        belled.settle_down();
        belled.schedule("rung");
        belled.says(Notification::Ring("q"));
        assert_eq!(runs.recv_timeout(SOON).as_deref(), Ok("rung"));
        timers.stop(Duration::ZERO).wait().unwrap();
        wait::until("nobody listens", || belled.is_over());
        drop((timers, belled));
        assert_eq!(wait::all(&events), []);
    }
}

#[test]
fn a_node_that_stops_does_not_ask_again() {
    let store = Deaf::new(|_| Some(Failing::Says));
    let attempts = Arc::clone(&store.attempts);
    let gate = Gate::default();
    let pass = gate.clone();
    let timers = Durable::builder(store)
        .handle("q", move |_: &Due<()>| pass.pass())
        .start()
        .unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &())
        .wait()
        .unwrap();
    gate.crowd(1);
    let asked = || attempts.lock().unwrap().len();
    wait::until("it is asked again", || asked() > 1);
    let stop = timers.stop(HOUR);
    let before = asked();
    // It would be asked three times. Once may come before the node hears of the stop.
    thread::sleep(ms(1_500));
    assert!(asked() <= before + 1, "{} after {before}", asked());
    gate.open();
    assert_eq!(stop.wait().unwrap().unfinished, 0);
}

#[test]
fn runs_go_on_without_a_doorbell_that_panics() {
    #[derive(Debug)]
    struct Broken(Memory);
    impl Store for Broken {
        fn connect(&self) -> Result<Box<dyn Connection>, StoreError> {
            self.0.connect()
        }
        fn listen(&self, _: NotificationListener) -> Option<Subscription> {
            panic!("{}: no doorbell", quiet::WANTED);
        }
    }
    quiet::hush();
    let (sender, runs) = mpsc::channel();
    let timers = Durable::builder(Broken(Memory::new()))
        .handle("q", move |_: &Due<()>| sender.send(()).unwrap())
        .start()
        .unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &())
        .wait()
        .unwrap();
    wait::next(&runs);
}
