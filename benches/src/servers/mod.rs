//! What runs against servers: leases on Redis, and durable timers on SQLite and PostgreSQL. Each
//! measurement is one function, which makes rows as everything else does. The servers are this
//! program's own, on the loopback device, and end with it.

mod durable;
mod here;
mod leases;
mod place;
mod queues;
mod timed;

use std::io;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use chaos::crew::{self, Heard, Process};
use serde::{Deserialize, Serialize};

use crate::figures::{self, Made, Row, Run};
use crate::machine;
use crate::workload::{Form, Workload};
use crate::workloads::ON_SERVERS;

pub(super) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What another process of this program does.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Claims timers of this place, with a lease in milliseconds, and never ends a run.
    Run(String, u64),
    /// Holds a lock on this server, with a lease in milliseconds.
    Lock(String, u64),
    /// Competes for a lock on this server. The first number is how long, the second how long it
    /// holds the lock each time, both in milliseconds.
    Contend(String, [u64; 2]),
}

/// Another process of this program, and the numbers that it says. It is killed when dropped.
pub(super) struct Other {
    pub(super) process: Process,
    words: Receiver<Heard<Vec<u64>>>,
}

impl Other {
    pub(super) fn start(order: &Order) -> io::Result<Self> {
        let mut process = Process::start(order)?;
        let (say, words) = channel();
        process.listen(move |word| drop(say.send(word)));
        Ok(Other { process, words })
    }

    pub(super) fn word(&self) -> Result<Vec<u64>, Failure> {
        match self.words.recv()? {
            Heard::Word(numbers) => Ok(numbers),
            Heard::Gone(why) => Err(why.unwrap_or_else(|| "a process has ended".into()).into()),
        }
    }
}

/// Does the work of such a process, if this is one.
pub(crate) fn other() -> Option<ExitCode> {
    crew::serve(|order, begin: &Receiver<()>, say: &dyn Fn(Vec<u64>)| {
        let done = match order {
            Order::Run(place, node_lease) => {
                durable::hold(&place, Duration::from_millis(node_lease), say)
            }
            Order::Lock(url, lease) => leases::hold(&url, Duration::from_millis(lease), say),
            Order::Contend(url, times) => leases::contend(&url, times, begin, say),
        };
        done.map_err(io::Error::other)
    })
}

/// The results so far, and what to measure.
pub(super) struct Sheet {
    run: Run,
    pub(super) form: Form,
    workload: &'static Workload,
}

impl Sheet {
    /// Adds what each round has found out, by the workload's metrics.
    pub(super) fn add<const N: usize>(
        &mut self,
        case: impl Into<String>,
        keys: u64,
        system: impl Into<String>,
        rounds: impl IntoIterator<Item = [f64; N]>,
    ) {
        let rounds: Vec<[f64; N]> = rounds.into_iter().collect();
        let metrics = self.workload.metrics.iter().enumerate();
        let of = |at: usize| rounds.iter().map(|round| Some(round[at])).collect();
        let figures = metrics.map(|(at, metric)| (metric.name.to_owned(), of(at)));
        let mut row = Row::new(self.workload, (case.into(), 1), keys, system.into());
        row.figures = figures.collect();
        self.run.rows.push(row);
    }

    /// For each of the rounds.
    pub(super) fn rounds(&self) -> usize {
        [5, 5, 1][self.form as usize]
    }
}

/// Measures what is asked for, and prints its tables.
pub(crate) fn run(form: Form, only: &[String], peers: here::Peers, made: &Made) -> io::Result<()> {
    made.check()?;
    let began = Instant::now();
    let run = Run::begin(form, machine::versions());
    let mut sheet = Sheet {
        run,
        form,
        workload: &ON_SERVERS[0],
    };
    let durable = only.iter().any(|name| name.starts_with('D'));
    let here = durable.then(|| here::Here::new(peers)).transpose()?;
    let chosen = |workload: &&Workload| only.iter().any(|name| name == workload.name);
    for workload in ON_SERVERS.iter().filter(chosen) {
        complain!("{} ..", workload.name);
        sheet.workload = workload;
        let done = match &here {
            Some(here) if workload.name.starts_with('D') => {
                durable::measure(workload.name, here, &mut sheet)
            }
            _ => leases::measure(workload.name, &mut sheet),
        };
        if let Err(failure) = done {
            let failure = format!("{}: {failure}", workload.name);
            complain!("benches: {failure}");
            sheet.run.failures.push(failure);
        }
        sheet.run.seconds = began.elapsed().as_secs_f64();
        made.keep(&sheet.run)?;
    }
    figures::print(&sheet.run);
    made.publish(&sheet.run)?;
    sheet.run.outcome()
}

/// The median, two percentiles and the maximum, in milliseconds.
pub(super) fn quantiles(mut all: Vec<Duration>) -> [f64; 4] {
    all.sort_unstable();
    let at = |part: f64| all.get((all.len().saturating_sub(1) as f64 * part) as usize);
    [0.5, 0.99, 0.999, 1.0].map(|part| at(part).map_or(f64::NAN, |time| millis(*time)))
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Until the process is killed.
pub(super) fn forever() -> ! {
    loop {
        std::thread::park();
    }
}

/// The answer of a thread.
pub(super) fn joined(thread: ScopedJoinHandle<'_, Result<(), Failure>>) -> Result<(), Failure> {
    thread.join().map_err(|_| "a thread has panicked")?
}

/// Threads that each do their part, at the same time. Returns how long the slowest one took.
pub(super) fn at_once(
    threads: u64,
    part: impl Fn(u64) -> Result<(), Failure> + Sync,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let part = &part;
        let start = |thread| scope.spawn(move || part(thread));
        let all: Vec<_> = (0..threads).map(start).collect();
        all.into_iter().try_for_each(joined)
    })?;
    Ok(start.elapsed())
}
