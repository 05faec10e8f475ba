//! Durable timers in memory and in a SQLite file, and on a PostgreSQL server if the argument is its
//! URL.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, SystemTime};

use tourbillon::{BuildError, Runtime};
use tourbillon_durable::{
    CallError, Due, Durable, Memory, MemoryFault, Paging, ScheduleAnswer, Sent, Sqlite, StartError,
    StopReport,
};

use tourbillon_durable::store::{Store, StoreError};
use tourbillon_leases::SqliteStore;

use crate::child::{Report, in_copy};

const HOUR: Duration = Duration::from_secs(3600);

/// Forks beside threads that use timers in `store`, which may be opened again by `open` in a copy,
/// or not.
pub(crate) fn run<S: Store + Clone>(
    forks: u64,
    store: &S,
    open: impl Fn() -> Result<S, StoreError>,
    opens_in_a_copy: bool,
) -> Option<String> {
    let ran = Arc::new(AtomicU64::new(0));
    let runtime = Runtime::builder().tickers(1).workers(1).build();
    let runtime = runtime.expect("the options are good");
    let timers = {
        let ran = Arc::clone(&ran);
        let handler = move |due: &Due<u64>| {
            ran.fetch_add(*due.payload(), Ordering::SeqCst);
        };
        let builder = Durable::builder(store.clone()).runtime(&runtime);
        let builder = builder.handle("queue", handler);
        builder.start().expect("the store is open")
    };
    let ended = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let (timers, ended, rounds) = (timers.clone(), ended.clone(), rounds.clone());
            thread::spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    use_them(&timers, rounds.fetch_add(1, Ordering::SeqCst));
                }
            })
        })
        .collect();
    let mut wrong = None;
    for number in 0..forks {
        let before = rounds.load(Ordering::SeqCst);
        while rounds.load(Ordering::SeqCst) < before + 2 {
            thread::yield_now();
        }
        wrong = one_copy(number, &timers, &runtime, store, &open, opens_in_a_copy);
        if wrong.is_some() {
            break;
        }
    }
    ended.store(true, Ordering::SeqCst);
    for thread in busy {
        if thread.join().is_err() {
            wrong = wrong.or(Some("a thread of the original failed".to_owned()));
        }
    }
    // The original goes on as before.
    let before = ran.load(Ordering::SeqCst);
    let scheduled = timers
        .schedule("queue", "last", Duration::ZERO, &1_000_000)
        .wait();
    while scheduled.is_ok() && ran.load(Ordering::SeqCst) < before + 1_000_000 {
        thread::park_timeout(Duration::from_millis(1));
    }
    let report = timers.stop(HOUR).wait().unwrap();
    if scheduled.is_err() || !report.has_left {
        return wrong.or(Some(format!("the original: {scheduled:?}, {report:?}")));
    }
    wrong
}

/// Calls as others make them while one forks.
fn use_them(timers: &Durable, round: u64) {
    let key = (round % 8).to_string();
    let _ = timers.schedule("queue", &key, HOUR, &1).wait();
    let _ = timers.schedule("queue", "now", Duration::ZERO, &1).wait();
    let _ = timers.get("queue", &key).wait();
    let _ = timers.cancel("queue", &key).wait();
}

/// Polls an answer, again if it only gives its runtime a turn.
fn poll<T: Unpin>(pending: &mut Sent<T>) -> Poll<Result<T, CallError>> {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(&mut *pending).poll(&mut context) {
        Poll::Pending => Pin::new(pending).poll(&mut context),
        ready => ready,
    }
}

/// Calls that are on their way at the fork.
struct OnTheirWay {
    waited_for: Sent<ScheduleAnswer>,
    polled: Sent<ScheduleAnswer>,
    limited: Sent<ScheduleAnswer>,
    dropped: Sent<ScheduleAnswer>,
    stopping: Durable,
    stop: Sent<StopReport>,
    owned: Durable,
}

fn one_copy<S: Store + Clone>(
    number: u64,
    timers: &Durable,
    runtime: &Runtime,
    store: &S,
    open: &impl Fn() -> Result<S, StoreError>,
    opens_in_a_copy: bool,
) -> Option<String> {
    let call = |name: &str| {
        let key = format!("{name}-{number}");
        timers.schedule("queue", &key, HOUR, &7)
    };
    // A stop that waits for a handler.
    let (release, held) = sync_channel::<()>(1);
    let (tell, began) = sync_channel::<()>(1);
    let held = std::sync::Mutex::new(held);
    let stopping = Durable::builder(Memory::new())
        .handle("slow", move |_: &Due<u64>| {
            let _ = tell.send(());
            let _ = held.lock().expect("no panic").recv();
        })
        .start()
        .expect("the store is new");
    let scheduled = stopping.schedule("slow", "1", Duration::ZERO, &1).wait();
    scheduled.expect("the store is new");
    began.recv().expect("it runs");
    let stop = stopping.stop(HOUR);
    let mut polled = call("polled");
    let _ = poll(&mut polled);
    // An outage that outlasts the test: so the limit is armed.
    let hangs = Memory::new();
    let hung = Durable::builder(hangs.clone()).start().expect("it is new");
    hangs.inject(|_| MemoryFault::Hang);
    let mut limited = hung.schedule("queue", "1", HOUR, &7).within(HOUR);
    let is_armed = poll(&mut limited).is_pending();
    // In the first copy the limit is all that is left of these timers.
    let _hung = (number > 0).then_some(hung);
    let on_their_way = OnTheirWay {
        waited_for: call("waited-for"),
        polled,
        limited,
        dropped: call("dropped"),
        stopping,
        stop,
        owned: Durable::builder(Memory::new()).start().expect("it is new"),
    };
    let mut on_their_way = Some(on_their_way);
    let wrong = in_copy(|report| {
        let inherited = on_their_way.take().expect("it is there");
        complaints(report, timers, store, inherited);
        if report.threads_start() {
            of_its_own(report, open, opens_in_a_copy);
            on_runtimes(report, runtime);
        }
    });
    if let Some(wrong) = wrong {
        return Some(format!("copy {number}: {wrong}"));
    }
    // Nothing of it has changed here.
    let OnTheirWay {
        waited_for,
        limited,
        dropped,
        stop,
        owned,
        ..
    } = on_their_way.expect("only the copy takes it");
    hangs.heal();
    let limited = limited.wait();
    drop(release);
    let answers = (waited_for.wait().is_ok(), dropped.wait().is_ok());
    let stopped = stop.wait();
    let clean = stopped.as_ref().is_ok_and(|report| report.unfinished == 0);
    let own = owned.schedule("queue", "1", HOUR, &1).wait().is_ok();
    if answers != (true, true) || !is_armed || limited.is_err() || !clean || !own {
        return Some(format!(
            "the original after copy {number}: {answers:?} {is_armed} {limited:?} {stopped:?} {own}"
        ));
    }
    None
}

fn complaints<S: Store + Clone>(
    report: &mut Report,
    timers: &Durable,
    store: &S,
    inherited: OnTheirWay,
) {
    fn forked<T: Debug>(report: &mut Report, what: &str, answer: &Result<T, CallError>) {
        let refused = matches!(answer, Err(CallError::Forked));
        report.check(what, refused, answer);
    }
    let now = SystemTime::now();
    forked(
        report,
        "schedule",
        &timers.schedule("queue", "1", HOUR, &1).wait(),
    );
    forked(
        report,
        "schedule at a time",
        &timers.schedule("queue", "1", now, &1).wait(),
    );
    let answer = timers.schedule_if_absent("queue", "1", HOUR, &1).wait();
    forked(report, "schedule_if_absent", &answer);
    forked(
        report,
        "reschedule",
        &timers.reschedule("queue", "1", HOUR).wait(),
    );
    forked(
        report,
        "reschedule to a time",
        &timers.reschedule("queue", "1", now).wait(),
    );
    forked(report, "cancel", &timers.cancel("queue", "1").wait());
    forked(
        report,
        "schedule_many",
        &timers.schedule_many("queue", [("1", HOUR, 1)]).wait(),
    );
    forked(
        report,
        "cancel_many",
        &timers.cancel_many("queue", ["1"]).wait(),
    );
    forked(report, "get", &timers.get("queue", "1").wait());
    forked(
        report,
        "list",
        &timers.list("queue", &Paging::first(10)).wait(),
    );
    forked(report, "counts", &timers.counts().wait());
    forked(report, "pause", &timers.pause("queue").wait());
    forked(report, "resume", &timers.resume("queue").wait());
    forked(report, "dead", &timers.dead("queue", 0, 10).wait());
    forked(report, "revive", &timers.revive(1).wait());
    let mut awaited = timers.schedule("queue", "1", HOUR, &1);
    let answer = poll(&mut awaited);
    let refused = matches!(answer, Poll::Ready(Err(CallError::Forked)));
    report.check("schedule, awaited", refused, &answer);
    report.step("stats");
    let _ = (timers.stats(), format!("{timers:?}"));
    let health = timers.health();
    report.check("health", crate::core::is_forked(&health), &health);
    report.step("stop");
    let stopped = timers.stop(HOUR).wait();
    report.check("the report", stopped == Ok(StopReport::default()), &stopped);

    let OnTheirWay {
        waited_for,
        mut polled,
        mut limited,
        dropped,
        stopping,
        stop,
        owned,
    } = inherited;
    forked(report, "a call of before", &waited_for.wait());
    let answer = poll(&mut polled);
    let refused = matches!(answer, Poll::Ready(Err(CallError::Forked)));
    report.check("a polled call of before", refused, &answer);
    let answer = poll(&mut limited);
    let refused = matches!(answer, Poll::Ready(Err(CallError::Forked)));
    report.check("a call of before with a limit", refused, &answer);
    let again = limited.within(Duration::ZERO);
    forked(report, "a call of before with two limits", &again.wait());
    forked(report, "a stop of before", &stop.wait());
    report.step("drops");
    drop((polled, dropped, stopping, owned));

    let answer = Durable::builder(store.clone()).start();
    let refused = matches!(answer, Err(StartError::Store(StoreError::Forked)));
    report.check("a start on a store of before", refused, &answer.map(drop));
}

/// What is opened after the fork works, where it can be opened.
fn of_its_own<S: Store + Clone>(
    report: &mut Report,
    open: &impl Fn() -> Result<S, StoreError>,
    opens_in_a_copy: bool,
) {
    report.step("one of its own");
    let opened = open();
    let is_forked = matches!(opened, Err(StoreError::Forked));
    report.check(
        "open",
        is_forked != opens_in_a_copy,
        &opened.as_ref().map(drop),
    );
    let Ok(store) = opened else {
        return;
    };
    let (tell, told) = sync_channel(1);
    let own = Durable::builder(store)
        .handle("own", move |due: &Due<u64>| {
            let _ = tell.try_send(*due.payload());
        })
        .start();
    let own = match own {
        Ok(own) => own,
        Err(error) => return report.check("its own start", false, &error),
    };
    let answer = own.schedule("own", "1", Duration::ZERO, &8).wait();
    report.check("its own schedule", answer.is_ok(), &answer);
    report.check("its own run", told.recv() == Ok(8), &());
    let stopped = own.stop(HOUR).wait().unwrap();
    report.check("its own stop", stopped.has_left, &stopped);
}

/// Handlers run on a runtime of the copy, and not on one of before.
fn on_runtimes(report: &mut Report, before: &Runtime) {
    let start = |runtime: Option<&Runtime>| {
        let (tell, told) = sync_channel(1);
        let builder = Durable::builder(Memory::new());
        let builder = match runtime {
            Some(runtime) => builder.runtime(runtime),
            None => builder.own_threads(),
        };
        let handler = move |due: &Due<u64>| {
            let _ = tell.try_send(*due.payload());
        };
        builder
            .handle("own", handler)
            .start()
            .map(|own| (own, told))
    };
    let answer = start(Some(before));
    let refused = matches!(answer, Err(StartError::Runtime(BuildError::Forked)));
    report.check("a start on a runtime of before", refused, &answer.map(drop));
    let runtime = Runtime::builder().tickers(1).workers(1).build();
    let runtime = runtime.expect("the options are good");
    for runtime in [None, Some(&runtime)] {
        let (own, told) = match start(runtime) {
            Ok(own) => own,
            Err(error) => return report.check("a start on its own runtime", false, &error),
        };
        let answer = own.schedule("own", "1", Duration::ZERO, &8).wait();
        report.check("a schedule on its own runtime", answer.is_ok(), &answer);
        report.check("a run on its own runtime", told.recv() == Ok(8), &());
        let stopped = own.stop(HOUR).wait().unwrap();
        report.check("a stop on its own runtime", stopped.has_left, &stopped);
    }
}

/// Runs all stores that need no server.
pub(crate) fn without_a_server(forks: u64) -> Option<String> {
    let memory = run(forks, &Memory::new(), || Ok(Memory::new()), true);
    memory.or_else(|| {
        let folder = std::env::temp_dir().join(format!("fork-tests-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("timers.db");
        let store = Sqlite::open(&file).expect("the folder is new");
        let wrong = run(forks, &store, || Sqlite::open(&file), false).or_else(|| {
            // Leases count on the same locks, though this process has opened none.
            in_copy(|report| {
                let leases = SqliteStore::open(folder.join("leases.db"));
                let is_forked = matches!(leases, Err(tourbillon_leases::StoreError::Forked));
                report.check("leases beside timers", is_forked, &leases);
            })
        });
        let _ = std::fs::remove_dir_all(&folder);
        wrong
    })
}
