//! What probes and people are told: whether a scheduler is alive and ready, what it has pending, and
//! what runs.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::quiet::{WANTED, hush};
use kit::wait::until;
use tourbillon::{
    Clock, Dump, ExpiryMap, FindingKind, Handle, Health, Impact, ManualClock, Period, Scheduler,
    Shutdown, Timer,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn kinds(health: &Health) -> Vec<FindingKind> {
    health.findings().iter().map(|found| found.kind).collect()
}

/// Moves the clock until the only finding is this one. Returns its impact, and since when.
#[track_caller]
fn until_found(
    hand: &ManualClock,
    step: Duration,
    kind: FindingKind,
    health: impl Fn() -> Health,
) -> (Impact, Duration) {
    let mut found = Health::default();
    until(&format!("{kind}"), || {
        found = health();
        let is_found = kinds(&found) == [kind];
        if !is_found {
            hand.advance(step);
        }
        is_found
    });
    let finding = &found.findings()[0];
    (finding.impact, finding.since.expect("it is known"))
}

fn at_gate(timers: &Handle<u32>, key: u32, delay: Duration, gate: &Gate) {
    let gate = gate.clone();
    timers.schedule(key, delay, move |_| gate.pass()).unwrap();
}

// === health ===

#[test]
fn a_scheduler_is_well_while_it_is_idle_for_long_and_while_it_works() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(3).unwrap();
    let timers = scheduler.handle();
    assert_eq!(timers.health(), Health::default());
    scheduler.advance(HOUR * 24 * 365);
    assert_eq!(timers.health(), Health::default());
    timers
        .repeat(0, Period::fixed_rate(SECOND), |round| {
            assert_eq!(round.handle().health(), Health::default());
        })
        .unwrap();
    for key in 1..10_000 {
        let delay = Duration::from_millis(u64::from(key));
        timers.schedule(key, delay, |_| ()).unwrap();
    }
    scheduler.advance(HOUR);
    assert_eq!(timers.health(), Health::default());
    assert_eq!(timers.stats().panicked, 0);
}

#[test]
fn a_scheduler_with_threads_is_well_after_an_idle_day() {
    let hand = ManualClock::new();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    // Tickers that have nothing to do take no step, and that is no stall.
    hand.advance(HOUR * 24);
    assert_eq!(timers.health(), Health::default());
    timers.schedule(7, SECOND, |_| ()).unwrap();
    timers.schedule(8, Duration::ZERO, |_| ()).unwrap();
    until("it has run", || timers.stats().ran == 1);
    assert!(timers.health().is_ready());
    assert!(timers.health().is_alive());
}

#[test]
fn workers_that_are_blocked_while_tasks_wait_are_found() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .name("requests")
        .workers(2)
        .max_running(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    for key in 0..2 {
        at_gate(&timers, key, Duration::ZERO, &gate);
    }
    gate.crowd(2);
    // Nothing waits, so blocked workers are no reason.
    hand.advance(HOUR);
    until("the tickers have seen the hour", || {
        timers.health() == Health::default()
    });
    for key in 2..9 {
        at_gate(&timers, key, Duration::ZERO, &gate);
    }
    let step = Duration::from_millis(100);
    let health = || timers.health();
    let (impact, since) = until_found(&hand, step, FindingKind::QueueDelay, health);
    assert_eq!(impact, Impact::Warning);
    assert!(since >= SECOND, "{since:?}");
    let (impact, since) = until_found(&hand, step, FindingKind::WorkersBlocked, health);
    assert_eq!(impact, Impact::NotReady);
    assert!(since >= SECOND * 10, "{since:?}");
    let health = timers.health();
    assert!(health.is_alive() && !health.is_ready());
    let text = health.to_string();
    assert!(text.starts_with("alive, not ready\nnot ready: requests: workers blocked for "));
    let counts = "7 tasks wait; 2 workers, 0 idle";
    assert!(text.contains(counts), "{text}");
    if cfg!(target_os = "linux") {
        assert!(
            text.contains(", 2 blocked in tasks, and there may be no more\n"),
            "{text}"
        );
    }
    gate.open();
    until("all have run", || {
        timers.stats().running == 0 && timers.is_empty()
    });
    assert_eq!(timers.health(), Health::default());
}

#[test]
fn a_ticker_that_a_task_keeps_from_its_steps_is_not_alive() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .shards(1)
        .inline()
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    at_gate(&timers, 0, Duration::ZERO, &gate);
    gate.crowd(1);
    hand.advance(HOUR);
    // The ticker has nothing else to do.
    assert_eq!(timers.health(), Health::default());
    timers.schedule(1, SECOND * 5, |_| ()).unwrap();
    hand.advance(SECOND * 15 - Duration::from_millis(1));
    assert!(timers.health().is_alive(), "{}", timers.health());
    let (impact, since) = until_found(
        &hand,
        Duration::from_millis(1),
        FindingKind::TickerStalled,
        || timers.health(),
    );
    assert_eq!((impact, since), (Impact::NotAlive, SECOND * 10));
    assert!(!timers.health().is_alive() && !timers.health().is_ready());
    assert!(
        timers
            .health()
            .to_string()
            .starts_with("not alive, not ready\nnot alive: ticker")
    );
    gate.open();
    until("it goes on", || {
        timers.is_empty() && timers.health() == Health::default()
    });
}

#[test]
fn a_scheduler_that_ends_is_alive_and_not_ready() {
    let hand = ManualClock::new();
    let builder = Scheduler::<u32>::builder().clock(Clock::manual(&hand));
    let scheduler = builder.build().unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    at_gate(&timers, 0, Duration::ZERO, &gate);
    gate.crowd(1);
    timers.schedule(1, SECOND, |_| ()).unwrap();
    let closing = scheduler.shutdown(Shutdown::HandBack);
    let found = |since: Duration| {
        // The ticker has yet to see that the other timer is gone.
        until("a shutdown alone", || {
            kinds(&timers.health()) == [FindingKind::ShutDown]
        });
        let health = timers.health();
        assert_eq!(health.findings()[0].since, Some(since));
        assert!(health.is_alive() && !health.is_ready());
    };
    found(Duration::ZERO);
    // Until the ticker has taken it out, the other timer would run when it is due.
    until("it is taken out", || timers.is_empty());
    hand.advance(SECOND * 3);
    found(SECOND * 3);
    gate.open();
    assert_eq!(closing.wait().unwrap().handed_back.len(), 1);
    hand.advance(HOUR);
    found(HOUR + SECOND * 3);
}

#[test]
fn a_map_and_a_timer_that_are_dropped_are_not_ready() {
    let map = ExpiryMap::<u32, u32>::builder()
        .name("carts")
        .build(|_, _| ())
        .unwrap();
    let clone = map.clone();
    assert!(clone.health().is_ready());
    map.shutdown(Shutdown::HandBack).wait().unwrap();
    let mut health = clone.health();
    assert_eq!(kinds(&health), [FindingKind::ShutDown]);
    // Joined with what is well.
    health.extend(Timer::new().unwrap().health());
    assert_eq!(health.findings().len(), 1);
    assert_eq!(health.findings()[0].source.as_deref(), Some("carts"));
    let timer = Timer::new().unwrap();
    timer.shutdown(Shutdown::RunNow).wait().unwrap();
    assert_eq!(kinds(&timer.health()), [FindingKind::ShutDown]);
}

#[test]
fn timers_that_a_pace_holds_back_are_overdue() {
    let scheduler = Scheduler::<u32>::builder()
        .shards(1)
        .pace(1)
        .build_stepped(3)
        .unwrap();
    let timers = scheduler.handle();
    for key in 0..5 {
        timers.schedule(key, SECOND, |_| ()).unwrap();
    }
    scheduler.advance(SECOND * 3);
    let health = timers.health();
    assert_eq!(kinds(&health), [FindingKind::Overdue], "{health}");
    assert!(health.is_ready());
    assert!(health.to_string().contains("the pace holds them back"));
    scheduler.advance(SECOND * 10);
    assert_eq!(timers.health(), Health::default());
}

#[test]
fn health_is_told_under_a_lock_and_in_a_task() {
    let map = ExpiryMap::<u32, u32>::builder().build(|_, _| ()).unwrap();
    map.insert(7, 1).unwrap();
    let own = map.clone();
    // The closure runs under the lock of a stripe, where most calls panic.
    map.update(&7, |_| assert!(own.health().is_ready()));
}

// === dumps ===

fn sums(dump: &Dump) -> [u64; 6] {
    let shards = || dump.shards.iter();
    let of = |count: fn(&tourbillon::ShardDump) -> u64| shards().map(count).sum();
    [
        of(|shard| shard.pending),
        of(|shard| shard.overdue),
        of(|shard| shard.within_second),
        of(|shard| shard.within_minute),
        of(|shard| shard.within_hour),
        of(|shard| shard.later),
    ]
}

#[test]
fn a_dump_counts_what_is_pending_by_time() {
    let scheduler = Scheduler::<u32>::builder().build_stepped(3).unwrap();
    let timers = scheduler.handle();
    assert_eq!(sums(&timers.dump()), [0; 6]);
    let nano = Duration::from_nanos(1);
    let delays = [
        nano,
        SECOND,
        SECOND + nano,
        SECOND * 60,
        SECOND * 60 + nano,
        HOUR,
        HOUR + nano,
        Duration::MAX,
    ];
    for (key, delay) in (0..).zip(delays) {
        timers.schedule(key, delay, |_| ()).unwrap();
    }
    assert_eq!(sums(&timers.dump()), [8, 0, 2, 2, 2, 2]);
    // Overdue, since nobody takes steps.
    scheduler.clock().advance(SECOND);
    assert_eq!(sums(&timers.dump()), [8, 2, 1, 2, 2, 1]);
    scheduler.settle();
    assert_eq!(sums(&timers.dump()), [6, 0, 1, 2, 2, 1]);
}

#[test]
fn a_dump_of_many_timers_is_complete_and_short() {
    let timer = Timer::new().unwrap();
    let handles: Vec<_> = (0..200_000)
        .map(|number| {
            timer
                .after(HOUR + Duration::from_micros(number), || ())
                .unwrap()
        })
        .collect();
    let dump = timer.dump();
    assert_eq!(sums(&dump)[0], 200_000);
    assert!(dump.to_string().lines().count() < 300);
    drop(handles);
}

#[test]
fn a_dump_names_what_runs_the_oldest_first() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u32>::builder()
        .clock(Clock::manual(&hand))
        .name("requests")
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    for key in 0..3 {
        at_gate(&timers, key, Duration::ZERO, &gate);
        // One worker after the other is added while time passes.
        until("it runs", || {
            hand.advance(SECOND);
            gate.waiting() as u32 == key + 1
        });
    }
    timers.cancel(&1);
    // What follows a run is pending.
    timers.schedule(2, SECOND, |_| ()).unwrap();
    let dump = timers.dump();
    let running: Vec<_> = dump
        .running
        .iter()
        .map(|run| (&*run.key, run.cancelled))
        .collect();
    assert_eq!(running, [("0", false), ("1", true), ("2", false)]);
    assert!(
        dump.running
            .is_sorted_by(|one, next| one.since >= next.since)
    );
    assert!(dump.running[0].since >= SECOND);
    assert_eq!((dump.running_total, sums(&dump)[0]), (3, 1));
    let text = dump.to_string();
    assert!(text.starts_with("scheduler requests: alive"), "{text}");
    assert!(text.contains(": 1, cancelled\n"), "{text}");
    gate.open();
    until("all have run", || timers.stats().running == 0);
}

#[test]
fn a_dump_is_bounded_however_many_tasks_run() {
    let scheduler = Scheduler::<u32>::builder()
        .own_threads()
        .max_running(300)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    let gate = Gate::default();
    for key in 0..250 {
        at_gate(&timers, key, Duration::ZERO, &gate);
    }
    gate.crowd(250);
    let dump = timers.dump();
    assert_eq!((dump.running.len(), dump.running_total), (100, 250));
    let text = dump.to_string();
    assert!(text.ends_with("and 150 more running\n"), "{text}");
    assert!(text.lines().count() < 300);
    gate.open();
}

/// A key whose `Eq` waits at a gate, under the lock of its stripe.
#[derive(Clone, Debug)]
struct SlowKey(u32, Option<Gate>);

impl PartialEq for SlowKey {
    fn eq(&self, other: &Self) -> bool {
        for gate in [&self.1, &other.1].into_iter().flatten() {
            gate.pass();
        }
        self.0 == other.0
    }
}

impl Eq for SlowKey {}

impl Hash for SlowKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[test]
fn a_dump_waits_for_no_lock() {
    let scheduler = Scheduler::<SlowKey>::builder()
        .shards(1)
        .stripes(2)
        .build()
        .unwrap();
    let timers = scheduler.handle();
    for key in 0..100 {
        timers.schedule(SlowKey(key, None), HOUR, |_| ()).unwrap();
    }
    let gate = Gate::default();
    thread::scope(|scope| {
        let (held, own) = (gate.clone(), timers.clone());
        scope.spawn(move || own.contains(&SlowKey(7, Some(held))));
        gate.crowd(1);
        let dump = timers.dump();
        assert_eq!(dump.shards[0].busy, 1);
        let counted = dump.shards[0].pending;
        assert!((1..100).contains(&counted), "{counted}");
        assert!(
            dump.to_string()
                .contains("; 1 parts are busy and not counted\n")
        );
        assert!(timers.health().is_ready());
        gate.open();
    });
    assert_eq!(timers.dump().shards[0].pending, 100);
}

/// A key with a `Debug` of its own kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum OddKey {
    Panics,
    GivesUp,
    NeverEnds,
}

impl fmt::Debug for OddKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OddKey::Panics => panic!("{WANTED}"),
            OddKey::GivesUp => Err(fmt::Error),
            OddKey::NeverEnds => loop {
                f.write_str("more\n")?;
            },
        }
    }
}

#[test]
fn a_dump_outlives_any_debug_of_a_key() {
    hush();
    let scheduler = Scheduler::<OddKey>::builder().build_stepped(3).unwrap();
    let timers = scheduler.handle();
    for (key, expected) in [
        (OddKey::Panics, "(its Debug panics)".to_owned()),
        (OddKey::GivesUp, "..".to_owned()),
        (OddKey::NeverEnds, "more ".repeat(20) + ".."),
    ] {
        timers
            .schedule(key, SECOND, move |firing| {
                assert_eq!(firing.handle().dump().running[0].key, expected);
            })
            .unwrap();
        scheduler.advance(SECOND);
    }
    assert_eq!(timers.stats().panicked, 0);
}

#[test]
fn a_dump_from_under_a_lock_panics_as_other_calls_do() {
    let map = ExpiryMap::<u32, u32>::builder().build(|_, _| ()).unwrap();
    map.insert(7, 1).unwrap();
    let own = map.clone();
    let call = || map.update(&7, |_| own.dump());
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(sums(&map.dump())[0], 1);
}
