//! One process: it schedules, moves and cancels timers, and runs them, until it dies.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use chaos::journal::Journal;
use chaos::proxy::Trouble;
use chaos::random::Random;
use serde::{Deserialize, Serialize};
use tourbillon_durable::{
    CallError, CancelAnswer, Due, Durable, DurableEvent, RescheduleAnswer, RetryPolicy,
};

use crate::database::{self, Database, Fault};
use crate::entry::{self, Entry};
use crate::failing::Failing;
use crate::point::{Cause, Fuse, Point};

/// Timers whose effect is a line of the journal: it happens at least once.
pub(crate) const PLAIN: &str = "crash-points-plain";

/// Timers whose effect is a row of a table, committed with the end of the run: exactly once.
pub(crate) const EXACT: &str = "crash-points-exact";

/// The threads that call, and the timers of each.
const CALLERS: u64 = 3;
const TIMERS: u64 = 30;

/// The longest delay of a timer that was not moved, in milliseconds.
const LONGEST: u64 = 400;

const NODE_LEASE: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_millis(50);
/// The lease of the last process. It declares the others gone after a few beats of its own in time,
/// which never come if the machine is busy and the lease short.
const LAST_TERM: Duration = Duration::from_secs(2);

/// The length of a fault that has to be longer than the lease: so long that others declare the node
/// gone in most cases.
pub(crate) const LONGER: Duration = Duration::from_millis(700);

/// The faults at a random moment come after this time at the latest.
pub(crate) const LATEST: Duration = Duration::from_millis(500);

/// The time that a process runs on after a fault that it has survived.
pub(crate) const AFTERMATH: Duration = Duration::from_millis(400);

/// A process that goes on for longer has missed its point.
const LIFE: Duration = Duration::from_secs(2);

/// The time within which the server has to be reachable again.
const PATIENCE: Duration = Duration::from_secs(50);

/// The exit code of a process that has survived its fault. Without a fault it is 0.
pub(crate) const SURVIVED: i32 = 9;

/// What a process is to do.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Order {
    /// The name of its journal.
    pub(crate) name: String,
    pub(crate) point: Point,
    /// How often it reaches the point before that hurts.
    pub(crate) count: u64,
    pub(crate) seed: u64,
    /// Where the timers are: the URL of a server, or the path of a file.
    pub(crate) place: String,
    pub(crate) folder: PathBuf,
    pub(crate) is_fenced: bool,
}

/// Runs the process.
pub(crate) fn run(order: &Order, calls: &Receiver<()>) -> Result<(), Fault> {
    let (name, point, seed) = (&order.name, order.point, order.seed);
    let fuse = Arc::new(Fuse::new(point, order.count));
    let journal = Arc::new(Journal::create(&order.folder, name)?);
    let database = database::open(&order.place, point)?;
    let timers = started(&database, &fuse, &journal, order.is_fenced)?;
    if point == Point::None {
        run_what_is_left(&timers)?;
        timers.stop(Duration::from_secs(10)).wait()?;
        return Ok(());
    }
    if point == Point::Watch {
        // Until the parent tells it to leave, or has ended.
        while calls.recv().is_ok() {}
        std::process::exit(0);
    }
    let begun = Instant::now();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let caller = Caller {
                timers: &timers,
                journal: &journal,
                name: format!("{name}:{caller}"),
                random: Random::new(seed ^ (caller << 32)),
                has_breaks: !matches!(point.cause(), Cause::Failpoint | Cause::Answer),
            };
            scope.spawn(|| caller.call());
        }
        if point.cause() == Cause::Path {
            scope.spawn(|| trouble(&*database, &fuse, Random::new(seed)));
        }
    });
    live_on(&fuse, begun);
    // Without a stop: this is a crash as well.
    std::process::exit(if fuse.has_happened() { SURVIVED } else { 0 });
}

/// Runs timers until the process dies, or its fault is over, or its point does not come.
fn live_on(fuse: &Fuse, begun: Instant) {
    let life = match fuse.point.cause() {
        // The parent ends the process.
        Cause::Signal | Cause::Server => PATIENCE,
        Cause::Failpoint | Cause::Answer | Cause::Path => LIFE,
    };
    let mut end = None;
    while begun.elapsed() < life && end.is_none_or(|end| Instant::now() < end) {
        thread::park_timeout(Duration::from_millis(10));
        if fuse.has_happened() && end.is_none() {
            end = Some(Instant::now() + AFTERMATH);
        }
    }
}

/// Begins a trouble on all paths at a random moment, and ends it.
fn trouble(database: &dyn Database, fuse: &Fuse, mut random: Random) {
    let millis = |number: u64| Duration::from_millis(number);
    let latest = u64::try_from(LATEST.as_millis()).unwrap_or(u64::MAX);
    pause(millis(random.below(latest)));
    let (trouble, span) = match fuse.point {
        Point::Hold => (Trouble::Hold, LONGER),
        _ => (Trouble::Cut, millis(random.below(300))),
    };
    database.trouble(Some(trouble));
    pause(span);
    database.trouble(None);
    fuse.happens();
}

/// Lets time go by: how much is what the round is about.
pub(crate) fn pause(span: Duration) {
    let begun = Instant::now();
    while let Some(left) = span
        .checked_sub(begun.elapsed())
        .filter(|left| !left.is_zero())
    {
        thread::park_timeout(left);
    }
}

/// Starts the timers. A server that is down comes back.
fn started(
    database: &Arc<dyn Database>,
    fuse: &Arc<Fuse>,
    journal: &Arc<Journal>,
    is_fenced: bool,
) -> Result<Durable, Fault> {
    let begun = Instant::now();
    loop {
        match start(database, fuse, journal, is_fenced) {
            Ok(timers) => return Ok(timers),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::park_timeout(Duration::from_millis(50)),
        }
    }
}

fn start(
    database: &Arc<dyn Database>,
    fuse: &Arc<Fuse>,
    journal: &Arc<Journal>,
    is_fenced: bool,
) -> Result<Durable, Fault> {
    let store = Failing {
        database: Arc::clone(database),
        fuse: Arc::clone(fuse),
        journal: Arc::clone(journal),
    };
    let retry = RetryPolicy::fixed(Duration::from_millis(20)).attempts(u32::MAX);
    let of_plain = (Arc::clone(fuse), Arc::clone(journal));
    let of_exact = (Arc::clone(fuse), Arc::clone(journal));
    let (of_events, database) = (Arc::clone(journal), Arc::clone(database));
    let node_lease = match fuse.point {
        Point::None => LAST_TERM,
        _ => NODE_LEASE,
    };
    let timers = Durable::builder(store)
        .node_lease(node_lease)
        .poll_interval(POLL)
        .on_event(move |event| {
            if matches!(event, DurableEvent::NodeGone) {
                of_events.write(&Entry::Gone);
            }
        })
        .handle(PLAIN, move |due: &Due<u64>| -> Result<(), Fault> {
            let (fuse, journal) = &of_plain;
            begin(due, journal)?;
            fuse.at(Point::InRun, || ());
            Ok(())
        })
        .running(8)
        .retry(retry.clone())
        .crash_limit(u32::MAX)
        .handle(EXACT, move |due: &Due<u64>| -> Result<(), Fault> {
            let (fuse, journal) = &of_exact;
            begin(due, journal)?;
            database.effect(due, fuse, is_fenced)
        })
        .running(8)
        .retry(retry)
        .crash_limit(u32::MAX)
        .start()?;
    Ok(timers)
}

/// Notes the begin of a run. The process may have been stopped since the timer was claimed: then
/// `is_held` says no, and the run must not do anything.
fn begin(due: &Due<u64>, journal: &Journal) -> Result<(), Fault> {
    let (key, at) = (due.key().to_owned(), entry::now());
    // After the time was read, so that the claim was live at that time.
    if !due.is_held() {
        journal.write(&Entry::Unheld { key });
        return Err("the lease has ended".into());
    }
    journal.write(&Entry::Ran {
        key,
        at,
        attempt: due.attempt(),
        token: due.token().to_string(),
    });
    Ok(())
}

/// A thread that schedules timers, moves some of them, and cancels others.
struct Caller<'a> {
    timers: &'a Durable,
    journal: &'a Journal,
    name: String,
    random: Random,
    /// Whether it takes its time, so that a fault at a random moment meets a call.
    has_breaks: bool,
}

impl Caller<'_> {
    fn call(mut self) {
        for number in 0..TIMERS {
            if self.has_breaks {
                pause(Duration::from_millis(self.random.below(12)));
            }
            let queue = if self.random.below(2) == 0 {
                PLAIN
            } else {
                EXACT
            };
            let key = format!("{queue}:{}:{number}", self.name);
            match self.random.below(6) {
                0 => self.schedule_and_move(queue, key, number),
                1 => self.schedule_and_cancel(queue, key, number),
                _ => {
                    let delay = Duration::from_millis(self.random.below(LONGEST));
                    self.schedule(queue, &key, delay, number);
                }
            }
        }
    }

    /// Returns when the timer is due, if it was certainly accepted.
    fn schedule(&self, queue: &str, key: &str, delay: Duration, number: u64) -> Option<SystemTime> {
        let due = match self.timers.schedule(queue, key, delay, &number).wait() {
            Ok(scheduled) => scheduled.due,
            // A timer that is there was accepted. One that is not there may have run already.
            Err(CallError::Unknown(_)) => answer(self.timers.get(queue, key).wait())??.planned,
            Err(error) => return answer(Err(error)),
        };
        self.journal.write(&Entry::Accepted {
            key: key.to_owned(),
            due: entry::micros(due),
        });
        Some(due)
    }

    fn schedule_and_move(&mut self, queue: &str, key: String, number: u64) {
        let delay = Duration::from_millis(self.random.below(LONGEST));
        if self.schedule(queue, &key, delay, number).is_none() {
            return;
        }
        // Later than before: also if the answer is lost, no run may start before the first time.
        let delay = Duration::from_millis(LONGEST + self.random.below(200));
        let moved = answer(self.timers.reschedule(queue, &key, delay).wait());
        if let Some(RescheduleAnswer::Moved { to, .. }) = moved {
            let (at, due) = (entry::now(), entry::micros(to));
            self.journal.write(&Entry::Moved { key, at, due });
        }
    }

    /// Every second time at the moment at which the timer is due: then the cancel and the claim
    /// meet.
    fn schedule_and_cancel(&mut self, queue: &str, key: String, number: u64) {
        let meets = self.random.below(2) == 0;
        let longest = if meets { 30 } else { LONGEST };
        let delay = Duration::from_millis(self.random.below(longest));
        let Some(due) = self.schedule(queue, &key, delay, number) else {
            return;
        };
        if meets {
            pause(due.duration_since(SystemTime::now()).unwrap_or_default());
        }
        self.journal.write(&Entry::Cancelling { key: key.clone() });
        match answer(self.timers.cancel(queue, &key).wait()) {
            Some(CancelAnswer::Cancelled { .. }) => {
                let at = entry::now();
                self.journal.write(&Entry::Cancelled { key, at });
            }
            Some(CancelAnswer::Running { attempt, .. }) => {
                self.journal.write(&Entry::Ending { key, attempt });
            }
            _ => {}
        }
    }
}

/// The answer. A store that can't be reached is no error of this program, and other errors are.
fn answer<T>(answered: Result<T, CallError>) -> Option<T> {
    match answered {
        Ok(answer) => Some(answer),
        Err(error) if error.may_pass() => {
            // While the server is down, the calls are spread over the time.
            pause(Duration::from_millis(10));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn run_what_is_left(timers: &Durable) -> Result<(), Fault> {
    let begun = Instant::now();
    loop {
        let counts = timers.counts().wait()?;
        let is_left =
            |of: &tourbillon_durable::QueueCounts| of.waiting + of.overdue + of.running > 0;
        let ours = counts
            .iter()
            .filter(|of| [PLAIN, EXACT].contains(&&*of.queue));
        if !ours.into_iter().any(is_left) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("timers are left: {counts:?}").into());
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}
