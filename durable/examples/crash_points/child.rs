//! One process: it schedules, moves and cancels timers, and runs them, until it dies.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon_durable::rusqlite::{self, TransactionBehavior};
use tourbillon_durable::{CallError, Cancelled, Due, Durable, Moved, Retry, Sqlite};

use crate::failing::Failing;
use crate::journal::{self, Entry, Journal};
use crate::point::{Fuse, Point};
use crate::random::Random;

/// Timers whose effect is a line of the journal: it happens at least once.
const PLAIN: &str = "plain";

/// Timers whose effect is a row of a table, committed with the end of the run: exactly once.
pub(crate) const EXACT: &str = "exact";

/// The table of effects, in the file of the timers.
pub(crate) const EFFECTS: &str = "create table if not exists effect(key text, token text)";

/// The threads that call, and the timers of each.
const CALLERS: u64 = 3;
const TIMERS: u64 = 30;

/// The longest delay of a timer that was not moved, in milliseconds.
const LONGEST: u64 = 400;

const TERM: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(50);

/// A process that dies later than this has missed its point.
const LIFE: Duration = Duration::from_secs(2);

pub(crate) fn file(folder: &Path) -> PathBuf {
    folder.join("timers.db")
}

/// Runs the process with the arguments that `main` has given to it.
pub(crate) fn run(arguments: &[String]) -> Result<(), Box<dyn Error + Send + Sync>> {
    let [name, point, count, seed, folder] = arguments else {
        return Err("a child needs five arguments".into());
    };
    let folder = Path::new(folder);
    let point = Point::named(point).ok_or("there is no such point")?;
    let fuse = Arc::new(Fuse::new(point, count.parse()?));
    let journal = Arc::new(Journal::create(folder, name)?);
    let timers = start(folder, &fuse, &journal)?;
    if point == Point::None {
        run_what_is_left(&timers)?;
        timers.stop(Duration::from_secs(10));
        return Ok(());
    }
    let seed: u64 = seed.parse()?;
    let begun = Instant::now();
    thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (timers, journal) = (&timers, &journal);
            scope.spawn(move || {
                let random = Random::new(seed ^ (caller << 32));
                call(timers, journal, &format!("{name}:{caller}"), random);
            });
        }
    });
    // It runs timers until it dies, or its point does not come.
    while begun.elapsed() < LIFE {
        thread::park_timeout(Duration::from_millis(10));
    }
    // Without a stop: this is a crash as well.
    std::process::exit(0);
}

fn start(
    folder: &Path,
    fuse: &Arc<Fuse>,
    journal: &Arc<Journal>,
) -> Result<Durable, Box<dyn Error + Send + Sync>> {
    let store = Failing {
        store: Sqlite::open(file(folder))?,
        fuse: Arc::clone(fuse),
        journal: Arc::clone(journal),
    };
    let connections = Connections::new(file(folder));
    connections.with(|connection| Ok(connection.execute_batch(EFFECTS)?))?;
    let retry = Retry::fixed(Duration::from_millis(20)).attempts(u32::MAX);
    let of_plain = (Arc::clone(fuse), Arc::clone(journal));
    let of_exact = (Arc::clone(fuse), Arc::clone(journal));
    let timers = Durable::builder(store)
        .term(TERM)
        .look(LOOK)
        .handle(PLAIN, move |due: &Due<u64>| {
            let (fuse, journal) = &of_plain;
            journal.write(&ran(due));
            fuse.at(Point::InRun, || ());
        })
        .retry(retry.clone())
        .crash_limit(u32::MAX)
        .handle(EXACT, move |due: &Due<u64>| {
            let (fuse, journal) = &of_exact;
            journal.write(&ran(due));
            connections.with(|connection| effect(connection, due, fuse))
        })
        .retry(retry)
        .crash_limit(u32::MAX)
        .start()?;
    Ok(timers)
}

fn ran(due: &Due<u64>) -> Entry {
    Entry::Ran {
        key: due.key().to_owned(),
        at: journal::now(),
        token: due.token().to_string(),
    }
}

/// The effect and the end of the run, in one commit.
fn effect(connection: &mut rusqlite::Connection, due: &Due<u64>, fuse: &Fuse) -> Outcome {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let row = (due.key(), due.token().to_string());
    transaction.execute("insert into effect(key, token) values (?1, ?2)", row)?;
    due.complete_in(&transaction)?;
    fuse.at(Point::BeforeCommit, || ());
    transaction.commit()?;
    fuse.at(Point::AfterCommit, || ());
    Ok(())
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// The connections of the handlers.
struct Connections {
    path: PathBuf,
    idle: Mutex<Vec<rusqlite::Connection>>,
}

impl Connections {
    fn new(path: PathBuf) -> Self {
        let idle = Mutex::default();
        Connections { path, idle }
    }

    fn with(&self, act: impl FnOnce(&mut rusqlite::Connection) -> Outcome) -> Outcome {
        let idle = self.idle.lock().expect("nothing panics under it").pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let connection = rusqlite::Connection::open(&self.path)?;
                connection.busy_timeout(Duration::from_secs(5))?;
                connection
            }
        };
        act(&mut connection)?;
        self.idle
            .lock()
            .expect("nothing panics under it")
            .push(connection);
        Ok(())
    }
}

/// Schedules timers; moves some of them, and cancels others.
fn call(timers: &Durable, journal: &Journal, name: &str, mut random: Random) {
    for number in 0..TIMERS {
        let queue = if random.below(2) == 0 { PLAIN } else { EXACT };
        let key = format!("{queue}:{name}:{number}");
        let delay = Duration::from_millis(random.below(LONGEST));
        let Some(scheduled) = answer(timers.schedule(queue, &key, delay, &number)) else {
            continue;
        };
        journal.write(&Entry::Accepted {
            key: key.clone(),
            due: journal::micros(scheduled.due),
        });
        match random.below(6) {
            0 => {
                // Later than before: also if the answer is lost, no run may start before the first
                // time.
                let delay = Duration::from_millis(LONGEST + random.below(200));
                if let Some(Moved::Moved { to, .. }) = answer(timers.reschedule(queue, &key, delay))
                {
                    let (at, due) = (journal::now(), journal::micros(to));
                    journal.write(&Entry::Moved { key, at, due });
                }
            }
            1 => {
                journal.write(&Entry::Cancelling { key: key.clone() });
                if let Some(Cancelled::Cancelled { .. }) = answer(timers.cancel(queue, &key)) {
                    let at = journal::now();
                    journal.write(&Entry::Cancelled { key, at });
                }
            }
            _ => {}
        }
    }
}

/// The answer. A store that was busy for too long is no error of this test.
fn answer<T>(answered: Result<T, CallError>) -> Option<T> {
    match answered {
        Ok(answer) => Some(answer),
        Err(error) if error.may_pass() => None,
        Err(error) => panic!("{error}"),
    }
}

fn run_what_is_left(timers: &Durable) -> Result<(), Box<dyn Error + Send + Sync>> {
    let begun = Instant::now();
    loop {
        let counts = timers.counts()?;
        let is_left =
            |of: &tourbillon_durable::store::QueueCounts| of.waiting + of.overdue + of.running > 0;
        if !counts.iter().any(is_left) {
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(50) {
            return Err(format!("timers are left: {counts:?}").into());
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}
