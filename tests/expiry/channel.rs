//! An `ExpiryMap` whose expired entries go into a channel: nothing is lost, nobody is held up, and
//! both sides see the other's end. A map outlives its receivers.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use kit::quiet;
use kit::wait;
use kit::wait::until;
use tourbillon::channel::{Receiver, RecvTimeoutError, never, select};
use tourbillon::{
    Clock, Executor, Expired, Expiry, ExpiryMap, ExpiryMapBuilder, InsertRefusal, Job, Lifecycle,
    ManualClock, Reason, ReceiverLost, Removed, Shutdown, Touch,
};

const IDLE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(60);

type Map = ExpiryMap<u32, String>;
type Gone = Receiver<Expired<u32, String>>;

fn with_capacity(capacity: usize) -> (ManualClock, Map, Gone) {
    let clock = ManualClock::new();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .build_channel(capacity)
        .unwrap();
    (clock, map, gone)
}

fn fill(map: &Map, keys: impl IntoIterator<Item = u32>) {
    for key in keys {
        map.insert(key, key.to_string()).unwrap();
    }
}

fn next(gone: &Gone) -> Expired<u32, String> {
    gone.recv_timeout(PATIENCE).expect("an entry has expired")
}

#[test]
fn expired_entries_come_through_the_channel_each_once() {
    for capacity in [0, 1, 7, 5_000] {
        let (clock, map, gone) = with_capacity(capacity);
        fill(&map, 0..1_000);
        clock.advance(IDLE);
        let mut keys: Vec<_> = (0..1_000)
            .map(|_| {
                let expired = next(&gone);
                assert_eq!(expired.value, expired.key.to_string());
                assert_eq!(expired.reason, Reason::Idle);
                expired.key
            })
            .collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..1_000));
        assert!(map.is_empty() && gone.is_empty());
    }
}

#[test]
fn what_a_full_channel_keeps_waiting_is_counted_and_can_be_saved_or_removed() {
    let (clock, map, gone) = with_capacity(1);
    fill(&map, 0..10);
    clock.advance(IDLE);
    // One lies in the channel, one is in the hand of the thread that sends.
    until("two are taken", || map.stats().expired == 2);
    assert_eq!(map.len(), 8);
    let waiting: Vec<u32> = map.iter().map(|(key, _)| key).collect();
    assert_eq!(waiting.len(), 8);
    assert!(matches!(map.remove(&waiting[0]), Removed::Removed { .. }));
    for key in &waiting[1..5] {
        assert!(matches!(map.touch(key), Touch::Touched { .. }));
    }
    let mut keys: Vec<u32> = (0..5).map(|_| next(&gone).key).collect();
    until("nothing is under way", || map.stats().running == 0);
    assert!(gone.is_empty());
    assert!(waiting[1..5].iter().all(|key| !keys.contains(key)));
    // And no ticker stood still meanwhile: what was saved expires in its time.
    clock.advance(IDLE);
    keys.extend((0..4).map(|_| next(&gone).key));
    keys.push(waiting[0]);
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..10));
    assert!(map.stats().balances());
}

#[test]
fn the_receiver_works_in_select() {
    let (clock, map, gone) = with_capacity(4);
    fill(&map, [7]);
    clock.advance(IDLE);
    let idle: Receiver<()> = never();
    let key = select! {
        recv(gone) -> expired => expired.unwrap().key,
        recv(idle) -> _ => unreachable!("it never has anything"),
        default(PATIENCE) => panic!("nothing came"),
    };
    assert_eq!(key, 7);
}

#[test]
fn the_channel_ends_after_the_map_and_after_all_that_was_sent() {
    let (clock, map, gone) = with_capacity(100);
    fill(&map, 0..10);
    clock.advance(IDLE);
    until("all are sent", || gone.len() == 10);
    map.entry(10)
        .expiry(Expiry::NEVER)
        .insert("left".to_owned())
        .unwrap();
    let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
    assert_eq!(report.handed_back.len(), 1);
    assert_eq!(gone.iter().count(), 10, "the map itself is still there");
    assert_eq!(map.state(), Lifecycle::Closed);

    let (clock, map, gone) = with_capacity(100);
    fill(&map, 0..10);
    clock.advance(IDLE);
    until("all are sent", || gone.len() == 10);
    drop(map);
    for _ in 0..10 {
        next(&gone);
    }
    let end = gone.recv_timeout(PATIENCE);
    assert_eq!(end.unwrap_err(), RecvTimeoutError::Disconnected);
}

#[test]
fn a_shutdown_that_delivers_at_once_needs_somebody_who_receives() {
    let (_clock, map, gone) = with_capacity(0);
    fill(&map, 0..100);
    let receiver = std::thread::spawn(move || gone.iter().map(|expired| expired.reason).collect());
    let report = map.shutdown(Shutdown::RunNow).wait().unwrap();
    assert!(report.handed_back.is_empty() && report.still_running == 0);
    let reasons: Vec<Reason> = receiver.join().unwrap();
    assert_eq!(reasons, [Reason::Shutdown; 100]);
}

// === nobody receives any more ===

/// A map whose losses are reported to a channel of the test.
fn reporting(
    capacity: usize,
    policy: ReceiverLost,
) -> (ManualClock, Map, Gone, mpsc::Receiver<(u32, String)>) {
    let clock = ManualClock::new();
    let (report, reports) = mpsc::channel();
    let (map, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .when_receiver_lost(policy)
        .on_receiver_lost(move |first| {
            let _ = report.send((first.key, first.value.clone()));
        })
        .build_channel(capacity)
        .unwrap();
    (clock, map, gone, reports)
}

#[test]
fn a_map_whose_receiver_is_gone_lives_on_and_counts_what_it_drops() {
    for capacity in [0, 1, 3] {
        let (clock, map, gone, reports) = reporting(capacity, ReceiverLost::default());
        fill(&map, 0..10);
        map.entry(99)
            .expiry(Expiry::NEVER.time_to_idle(10 * IDLE))
            .insert("session".to_owned())
            .unwrap();
        clock.advance(IDLE);
        until("the channel is full, and one waits for room", || {
            map.stats().expired == capacity as u64 + 1
        });
        let in_channel = gone.len();
        assert_eq!((in_channel, map.stats().unreceived), (capacity, 0));
        drop(gone);
        until("the rest is dropped", || {
            let stats = map.stats();
            stats.expired == 10 && stats.running == 0
        });
        assert_eq!(map.stats().unreceived, 10 - in_channel as u64);
        // Entries come in no order, so any but those in the channel may be the first.
        let (key, value) = wait::next(&reports);
        assert!(key < 10 && value == key.to_string());

        // The session with time left is there, and everything else works as before.
        assert_eq!(map.state(), Lifecycle::Running);
        assert!(matches!(map.touch(&99), Touch::Touched { .. }));
        fill(&map, 10..15);
        assert!(matches!(map.remove(&10), Removed::Removed { .. }));
        clock.advance(IDLE);
        until("these are dropped, too", || {
            let stats = map.stats();
            stats.expired == 14 && stats.running == 0
        });
        let stats = map.stats();
        assert_eq!(stats.unreceived, 14 - in_channel as u64);
        assert_eq!((stats.removed, stats.panicked, map.len()), (1, 0, 1));
        assert!(stats.balances());
        let report = map.shutdown(Shutdown::HandBack).wait().unwrap();
        assert_eq!(report.handed_back[0].key, 99);
        assert!(map.stats().balances() && map.is_empty());
        drop(map);
        // The callback goes with the map. It was called once.
        assert!(wait::all(&reports).is_empty());
    }
}

#[test]
fn a_map_can_be_told_to_close_when_its_receiver_is_gone() {
    for capacity in [0, 1] {
        let (clock, map, gone, reports) = reporting(capacity, ReceiverLost::Close);
        fill(&map, 0..10);
        // It may wait in the middle of a send.
        clock.advance(IDLE);
        until("one is about to be sent", || {
            map.stats().expired == capacity as u64 + 1
        });
        drop(gone);
        let (key, _) = wait::next(&reports);
        // The callback comes after the end.
        assert!(key < 10 && map.state() == Lifecycle::Closed && map.is_empty());
        let error = map.insert(11, String::new()).unwrap_err();
        assert_eq!(error.refusal, InsertRefusal::Closed);
        let stats = map.stats();
        assert_eq!(stats.unreceived, 1);
        assert_eq!(
            (stats.expired, stats.removed),
            (1 + capacity as u64, 9 - capacity as u64)
        );
        assert!(stats.balances());
    }
}

#[test]
fn a_shutdown_of_a_map_without_a_receiver_waits_for_nobody() {
    for (mode, delivered) in [
        (Shutdown::HandBack, 0),
        (Shutdown::RunNow, 5),
        (Shutdown::Drain { limit: 2 * IDLE }, 5),
    ] {
        let (clock, map, gone) = with_capacity(1);
        fill(&map, 0..5);
        drop(gone);
        let closing = map.shutdown(mode);
        if let Shutdown::Drain { .. } = mode {
            clock.advance(IDLE);
        }
        let report = closing.wait().unwrap();
        assert_eq!(report.handed_back.len() as u64, 5 - delivered, "{mode:?}");
        assert_eq!(report.still_running, 0);
        let stats = map.stats();
        assert_eq!((stats.expired, stats.unreceived), (delivered, delivered));
        assert!(stats.balances());
    }
}

#[test]
fn a_report_of_a_loss_may_call_the_map_and_panic() {
    quiet::hush();
    let clock = ManualClock::new();
    let map: Arc<Mutex<Option<Map>>> = Arc::default();
    let (seen, told) = mpsc::channel();
    let in_report = Arc::clone(&map);
    let (built, gone) = Map::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        // All keys in one stripe: a lock that is held would be noticed.
        .shards(1)
        .stripes(1)
        .on_receiver_lost(move |first| {
            let map = in_report.lock().unwrap().take().unwrap();
            let inserted = map.insert(first.key, "again".to_owned()).is_ok();
            let _ = seen.send((inserted, map.stats().unreceived, map.stats().running));
            panic!("{}: a report", quiet::WANTED);
        })
        .build_channel(1)
        .unwrap();
    *map.lock().unwrap() = Some(built.clone());
    fill(&built, 0..3);
    drop(gone);
    clock.advance(IDLE);
    assert_eq!(wait::next(&told), (true, 1, 1));
    until("all are dropped", || {
        let stats = built.stats();
        stats.expired == 3 && stats.running == 0
    });
    let stats = built.stats();
    assert_eq!((stats.unreceived, stats.panicked, built.len()), (3, 0, 1));
    clock.advance(IDLE);
    until("the new entry is dropped without a report", || {
        built.stats().unreceived == 4
    });
    assert!(told.try_recv().is_err());
}

/// A key and a value whose drops panic once they are armed. Two panics at once would end the
/// process.
struct Bomb(u32, Arc<AtomicBool>);

impl Clone for Bomb {
    fn clone(&self) -> Self {
        Bomb(self.0, Arc::clone(&self.1))
    }
}

impl PartialEq for Bomb {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Bomb {}

impl Hash for Bomb {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let armed = self.1.load(Ordering::SeqCst);
        assert!(!armed, "{}: in drop", quiet::WANTED);
    }
}

#[test]
fn entries_that_nobody_receives_may_panic_in_their_drops() {
    quiet::hush();
    let clock = ManualClock::new();
    let (map, gone) = ExpiryMap::<Bomb, Bomb>::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .build_channel(1)
        .unwrap();
    let armed = Arc::new(AtomicBool::new(false));
    for key in 0..3 {
        let bomb = Bomb(key, Arc::clone(&armed));
        assert!(map.insert(bomb.clone(), bomb).is_ok());
    }
    drop(gone);
    armed.store(true, Ordering::SeqCst);
    clock.advance(IDLE);
    until("all are dropped", || {
        let stats = map.stats();
        stats.expired == 3 && stats.running == 0
    });
    armed.store(false, Ordering::SeqCst);
    let stats = map.stats();
    assert_eq!((stats.unreceived, stats.panicked), (3, 3));
    assert!(stats.balances() && map.state() == Lifecycle::Running);
}

/// However many are due and however long nobody receives, the queue is bounded; the rest waits in
/// the wheel, and all of it can be touched.
#[test]
fn c150_a_storm_that_nobody_receives_is_bounded_and_can_be_saved() {
    const BOUND: u64 = 65_536;
    const SESSIONS: u32 = 70_000;
    let clock = ManualClock::new();
    let (map, gone) = ExpiryMap::<u32, u32>::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .shards(1)
        // One lock: the number of queued ones is read at one moment.
        .stripes(1)
        .build_channel(0)
        .unwrap();
    for key in 0..SESSIONS {
        map.insert(key, key).unwrap();
    }
    clock.advance(IDLE);
    // What is taken leaves the queue; its place may be taken after it.
    let is_full = || {
        let queued = map.stats().queued;
        assert!(queued <= BOUND);
        queued >= BOUND - 1
    };
    until("the queue is full", || {
        map.stats().expired == 1 && is_full()
    });
    for _ in 0..20 {
        clock.advance(Duration::from_millis(1));
        thread::yield_now();
        assert!(is_full());
    }
    let saved = (0..SESSIONS)
        .filter(|key| map.touch(key).is_alive())
        .count();
    assert_eq!((saved, map.len()), (SESSIONS as usize - 1, saved));
    let first = gone.recv_timeout(PATIENCE).unwrap();
    assert!(gone.try_recv().is_err(), "all others live on");
    clock.advance(IDLE);
    let mut seen = vec![false; SESSIONS as usize];
    seen[first.key as usize] = true;
    for _ in 1..SESSIONS {
        let key = gone.recv_timeout(PATIENCE).unwrap().key;
        assert!(
            !std::mem::replace(&mut seen[key as usize], true),
            "{key} twice"
        );
    }
    until("all are settled", || map.stats().running == 0);
    assert!(map.is_empty() && map.stats().balances());
}

// === options that mean nothing here ===

struct Counting(Arc<AtomicUsize>);

impl Executor for Counting {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.fetch_add(1, Ordering::SeqCst);
        job.run();
        Ok(())
    }
}

#[test]
fn one_thread_sends_whatever_the_builder_was_told_of_workers() {
    let called = Arc::new(AtomicUsize::new(0));
    type Options =
        fn(ExpiryMapBuilder<u32, String>, &Arc<AtomicUsize>) -> ExpiryMapBuilder<u32, String>;
    let options: [(&str, Options); 6] = [
        ("nothing", |builder, _| builder),
        ("workers", |builder, _| builder.workers(3).max_running(7)),
        ("what no pool could have", |builder, _| {
            builder.workers(9).max_running(2)
        }),
        ("no workers", |builder, _| builder.workers(0)),
        ("inline", |builder, _| builder.inline()),
        ("an executor", |builder, called| {
            builder.executor(Counting(Arc::clone(called)))
        }),
    ];
    for (name, option) in options {
        let clock = ManualClock::new();
        let builder = Map::builder()
            .time_to_idle(IDLE)
            .clock(Clock::manual(&clock));
        let (map, gone) = option(builder, &called).build_channel(0).unwrap();
        fill(&map, 0..10);
        clock.advance(IDLE);
        until("one is about to be sent", || map.stats().running == 1);
        // Time enough for a pool to grow, if it could; a ticker says that it can't.
        until("the ticker has looked at the pool", || {
            clock.advance(Duration::from_millis(1));
            map.stats().saturated > 0
        });
        let stats = map.stats();
        assert_eq!(
            (stats.workers, stats.expired, stats.running),
            (1, 1, 1),
            "{name}"
        );
        // No ticker is held up by the one that is not received.
        map.entry(10)
            .expiry(Expiry::NEVER.time_to_idle(IDLE / 2))
            .insert("10".to_owned())
            .unwrap();
        clock.advance(IDLE / 2);
        until("it is queued, too", || map.stats().queued == 10);
        let mut keys: Vec<_> = (0..11).map(|_| next(&gone).key).collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..11), "{name}");
    }
    assert_eq!(called.load(Ordering::SeqCst), 0);
}

// === shutting down from a drop ===

type Closing = ExpiryMap<Tag, Closer>;

/// What a value or a key does when it is dropped: it shuts the map down, and says what it was told.
#[derive(Clone)]
struct Shut {
    map: Arc<Mutex<Option<Closing>>>,
    told: mpsc::Sender<Told>,
}

#[derive(PartialEq, Eq, Debug)]
enum Told {
    /// So many were handed back, and so many runs had not ended.
    Report(usize, usize),
    AlreadyClosed,
    /// The report comes later.
    Later,
}

impl Shut {
    fn shut(&self) {
        // Not under the lock: what the report drops comes back here.
        let map = self.map.lock().unwrap().clone();
        let Some(map) = map else {
            return;
        };
        let told = match map.shutdown(Shutdown::HandBack).wait() {
            Ok(report) if report.already_closed => Told::AlreadyClosed,
            Ok(report) => Told::Report(report.handed_back.len(), report.still_running),
            Err(_) => Told::Later,
        };
        let _ = self.told.send(told);
    }
}

struct Closer(Shut);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.shut();
    }
}

/// A key that may shut the map down when a clone of it is dropped.
struct Tag(u32, Option<Shut>);

impl Clone for Tag {
    fn clone(&self) -> Self {
        Tag(self.0, self.1.clone())
    }
}

impl PartialEq for Tag {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Tag {}

impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        if let Some(shut) = &self.1 {
            shut.shut();
        }
    }
}

struct Setting {
    clock: ManualClock,
    map: Closing,
    gone: Receiver<Expired<Tag, Closer>>,
    shut: Shut,
    told: mpsc::Receiver<Told>,
}

/// A map of four values that shut it down; they can from the moment on at which they are `armed`.
fn of_closers(capacity: usize) -> Setting {
    of_closers_and(capacity, ReceiverLost::Drop)
}

fn of_closers_and(capacity: usize, policy: ReceiverLost) -> Setting {
    let clock = ManualClock::new();
    let (map, gone) = Closing::builder()
        .time_to_idle(IDLE)
        .clock(Clock::manual(&clock))
        .when_receiver_lost(policy)
        .build_channel(capacity)
        .unwrap();
    let (tell, told) = mpsc::channel();
    let shut = Shut {
        map: Arc::default(),
        told: tell,
    };
    for key in 0..4 {
        let inserted = map.insert(Tag(key, None), Closer(shut.clone()));
        assert!(inserted.is_ok());
    }
    Setting {
        clock,
        map,
        gone,
        shut,
        told,
    }
}

impl Setting {
    fn arm(&self) {
        *self.shut.map.lock().unwrap() = Some(self.map.clone());
    }

    /// The end, as everybody sees it.
    fn has_ended(self) {
        let Setting {
            map, gone, shut, ..
        } = self;
        until("the map is closed", || map.state() == Lifecycle::Closed);
        // Values that come now are dropped in peace.
        let kept = shut.map.lock().unwrap().take();
        // The map is still there, and all the same the channel has its end.
        while gone.recv_timeout(PATIENCE).is_ok() {}
        let end = gone.recv_timeout(PATIENCE).err();
        assert_eq!(end, Some(RecvTimeoutError::Disconnected));
        until("nothing runs", || map.stats().running == 0);
        assert!(map.is_empty() && map.stats().balances());
        drop((map, kept));
    }
}

/// A deadlock is a failed test and no test that hangs.
fn within_patience(scenario: fn()) {
    let (send, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _send = send;
        scenario();
    });
    assert!(wait::all(&ended).is_empty());
    thread.join().unwrap();
}

#[test]
fn a_value_that_is_taken_out_and_dropped_may_shut_the_map_down() {
    for take_out in [
        |map| drop(map.remove(&Tag(1, None)).value()),
        |map| assert_eq!(map.retain(|key, _| key.0 != 1), 1),
        |map| {
            let peace = Arc::default();
            let (told, _) = mpsc::channel();
            drop(map.insert(Tag(1, None), Closer(Shut { map: peace, told })));
        },
    ] as [fn(&Closing); 3]
    {
        let setting = of_closers(1);
        setting.arm();
        take_out(&setting.map);
        // The other three, or four with the one that replaced it, came back, and were dropped with
        // the report: by then the map had been closed.
        let mut told: Vec<_> = setting.told.try_iter().collect();
        let Some(Told::Report(back, 0)) = told.pop() else {
            panic!("{told:?}");
        };
        assert!((3..=4).contains(&back));
        assert_eq!(told, [const { Told::AlreadyClosed }; 3]);
        setting.has_ended();
    }
}

#[test]
fn a_value_that_was_received_and_is_dropped_may_shut_the_map_down_with_room_in_the_channel() {
    within_patience(|| {
        let setting = of_closers(3);
        setting.clock.advance(IDLE);
        until("three are sent, and one is about to be", || {
            setting.map.stats().expired == 4
        });
        let first = setting.gone.recv().unwrap();
        until("all are sent", || setting.map.stats().running == 0);
        setting.arm();
        drop(first);
        assert_eq!(wait::next(&setting.told), Told::Report(0, 0));
        setting.has_ended();
    });
}

#[test]
fn with_a_full_channel_a_shutdown_waits_for_another_receiver() {
    within_patience(|| {
        let setting = of_closers(0);
        setting.clock.advance(IDLE);
        let first = setting.gone.recv().unwrap();
        until("one is about to be sent", || {
            setting.map.stats().running == 1
        });
        setting.arm();
        thread::scope(|scope| {
            // Its drop waits for what is about to be sent, which takes somebody else.
            let dropping = scope.spawn(move || drop(first));
            until("it is closing", || {
                setting.map.state() != Lifecycle::Running
            });
            // One or more: what was claimed before the gates were closed is sent, too.
            assert!(setting.gone.iter().count() >= 1);
            dropping.join().unwrap();
        });
        let told: Vec<_> = setting.told.try_iter().collect();
        let reports = told.iter().filter(|told| **told != Told::AlreadyClosed);
        let reports: Vec<_> = reports.collect();
        assert_eq!((told.len(), reports.len()), (4, 1), "{told:?}");
        assert!(matches!(reports[0], Told::Report(0..=2, 0)), "{told:?}");
        setting.has_ended();
    });
}

#[test]
fn with_a_full_channel_the_only_receiver_waits_until_the_limit() {
    within_patience(|| {
        let setting = of_closers(0);
        setting.clock.advance(IDLE);
        let first = setting.gone.recv().unwrap();
        until("one is about to be sent", || {
            setting.map.stats().running == 1
        });
        setting.arm();
        thread::scope(|scope| {
            let clock = &setting.clock;
            let told = &setting.told;
            let dropping = scope.spawn(|| drop(first));
            until("it is closing", || {
                setting.map.state() != Lifecycle::Running
            });
            until("the limit has passed", || {
                clock.advance(Duration::from_secs(1));
                dropping.is_finished()
            });
            let told = told.try_iter().last();
            assert!(matches!(told, Some(Told::Report(_, 1))), "{told:?}");
        });
        setting.has_ended();
    });
}

#[test]
fn values_that_go_with_the_receiver_may_shut_the_map_down() {
    for scenario in [
        || receiver_goes(0, ReceiverLost::Close),
        || receiver_goes(1, ReceiverLost::Close),
        || receiver_goes(3, ReceiverLost::Close),
        || receiver_goes(0, ReceiverLost::Drop),
        || receiver_goes(1, ReceiverLost::Drop),
        || receiver_goes(3, ReceiverLost::Drop),
    ] as [fn(); 6]
    {
        within_patience(scenario);
    }
}

fn receiver_goes(capacity: usize, policy: ReceiverLost) {
    let setting = of_closers_and(capacity, policy);
    setting.clock.advance(IDLE);
    until("the channel is full, and one is about to be sent", || {
        setting.map.stats().expired == capacity as u64 + 1
    });
    setting.arm();
    // What lies in the channel is dropped here, the one about to be sent and the rest over there.
    drop(setting.gone);
    until("the map is closed", || {
        setting.map.state() == Lifecycle::Closed
    });
    until("all is dropped", || {
        setting.map.is_empty() && setting.map.stats().running == 0
    });
    let mut told = Vec::new();
    until("each has been told", || {
        told.extend(setting.told.try_iter());
        told.len() == 4
    });
    // A map that lives on is shut down by the first drop. With room for none that is one on the
    // thread that sends, where the report comes later.
    let later = told.contains(&Told::Later);
    match policy {
        ReceiverLost::Close => assert!(!later, "{told:?}"),
        _ if capacity == 0 => assert!(later, "{told:?}"),
        _ => {}
    }
    assert!(setting.map.stats().balances());
}

/// On the thread that sends nothing can be waited for; the report comes later, and the receiver
/// sees the end all the same.
#[test]
fn a_key_that_is_dropped_after_its_delivery_may_shut_the_map_down() {
    within_patience(|| {
        let setting = of_closers(10);
        let key = Tag(9, Some(setting.shut.clone()));
        let expiry = Expiry::NEVER.time_to_idle(IDLE / 2);
        let inserted = setting
            .map
            .entry(key)
            .expiry(expiry)
            .insert(Closer(setting.shut.clone()));
        assert!(inserted.is_ok());
        setting.arm();
        setting.clock.advance(IDLE / 2);
        assert_eq!(wait::next(&setting.told), Told::Later);
        setting.has_ended();
    });
}
