//! The workers: processes that run timers until they are told to leave, or asked by a signal.

use std::io;
use std::process;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use chaos::crew::{self, Heard, Member, Process};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use tourbillon_durable::StartError;
use tourbillon_durable::StoreError;

use crate::database::{Fault, Place};
use crate::terminal;

/// How long the runs under way may take when a worker stops.
const GRACE: Duration = Duration::from_secs(2);

/// How long a worker may take to stop.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

/// For how long a worker tries to start while the database is busy or down.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    number: usize,
    place: Place,
    sabotage: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Word {
    /// Its timers run.
    Ready,
    /// For the user.
    Note(String),
}

/// Says a line for the user.
pub(crate) fn note(line: String) {
    crew::say(&Word::Note(line));
}

/// Whether another attempt may succeed.
fn may_pass(fault: &Fault) -> bool {
    let store = match fault.downcast_ref() {
        Some(StartError::Store(error)) => Some(error),
        _ => fault.downcast_ref::<StoreError>(),
    };
    store.is_some_and(StoreError::may_pass)
}

/// Runs the process of a worker.
#[allow(clippy::needless_pass_by_value, reason = "it is passed as a function")]
pub(crate) fn run(order: Order, calls: &Receiver<()>, say: &dyn Fn(Word)) -> io::Result<()> {
    let asked = terminal::asked(&[SIGINT, SIGTERM])?;
    let database = order.place.open(order.sabotage);
    let began = Instant::now();
    let timers = loop {
        match database.work(&format!("worker-{}", order.number)) {
            Ok(timers) => break timers,
            // Many processes may be writing just now.
            Err(error) if may_pass(&error) && began.elapsed() < STARTS_WITHIN => {
                if asked.load(Relaxed) {
                    return Ok(());
                }
                note(error.to_string());
            }
            Err(error) => return Err(io::Error::other(error)),
        }
    };
    say(Word::Ready);
    while !asked.load(Relaxed) && calls.try_recv() != Err(TryRecvError::Disconnected) {
        thread::sleep(Duration::from_millis(20));
    }
    // Nobody may be left to end a worker that hangs.
    thread::spawn(|| {
        thread::sleep(STOPS_WITHIN);
        process::exit(1);
    });
    timers.stop(GRACE).wait().map_err(io::Error::other)?;
    Ok(())
}

/// The workers, as the run sees them. Dropped, it leaves no process behind.
pub(crate) struct Crew {
    order: Order,
    workers: Vec<Worker>,
    tell: Sender<(usize, Heard<Word>)>,
    heard: Receiver<(usize, Heard<Word>)>,
    pub(crate) kills: u32,
}

struct Worker {
    number: usize,
    member: Member<()>,
    ready: bool,
}

impl Crew {
    /// Starts this number of workers.
    pub(crate) fn start(place: &Place, sabotage: bool, workers: usize) -> io::Result<Crew> {
        let (tell, heard) = channel();
        let mut crew = Crew {
            order: Order {
                number: 0,
                place: place.clone(),
                sabotage,
            },
            workers: Vec::new(),
            tell,
            heard,
            kills: 0,
        };
        for _ in 0..workers {
            crew.start_one()?;
        }
        Ok(crew)
    }

    fn start_one(&mut self) -> io::Result<()> {
        self.order.number += 1;
        let number = self.order.number;
        let member = Member::process(number, &self.order, self.tell.clone())?;
        self.workers.push(Worker {
            number,
            member,
            ready: false,
        });
        Ok(())
    }

    /// The number of workers whose timers run.
    pub(crate) fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ready).count()
    }

    /// Takes what the workers have said, as lines for the user. A worker that has ended well,
    /// because somebody has asked it to, is replaced.
    ///
    /// # Errors
    ///
    /// A worker has failed.
    pub(crate) fn listen(&mut self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Ok((number, heard)) = self.heard.try_recv() {
            let mut workers = self.workers.iter();
            // A worker that was killed is no longer there.
            let Some(at) = workers.position(|worker| worker.number == number) else {
                continue;
            };
            match heard {
                Heard::Word(Word::Ready) => self.workers[at].ready = true,
                Heard::Word(Word::Note(line)) => lines.push(format!("worker {number}: {line}")),
                Heard::Gone(why) => {
                    let mut worker = self.workers.remove(at);
                    if let Some(why) = why.or_else(|| worker.member.bury()) {
                        let said = lines.join("; ");
                        return Err(format!("worker {number} has failed: {why} {said}"));
                    }
                    lines.push(format!("worker {number} has stopped, another one starts"));
                    self.start_one().map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(lines)
    }

    /// Kills the worker that has run for the longest time, by SIGKILL, and starts another one.
    /// While one is still starting, nobody is killed. Returns the number of the one that was.
    pub(crate) fn kill_one(&mut self) -> io::Result<Option<usize>> {
        if self.workers.is_empty() || self.ready() < self.workers.len() {
            return Ok(None);
        }
        let mut worker = self.workers.remove(0);
        worker.member.as_process().map_or(Ok(()), Process::kill)?;
        self.kills += 1;
        self.start_one()?;
        Ok(Some(worker.number))
    }

    /// Stops all workers, each with its grace.
    ///
    /// # Errors
    ///
    /// A worker did not end in time, or not well.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        for worker in &mut self.workers {
            worker.member.leave();
        }
        for worker in &mut self.workers {
            let number = worker.number;
            let Some(process) = worker.member.as_process() else {
                continue;
            };
            match process.wait(2 * STOPS_WITHIN) {
                Ok(status) if status.success() => {}
                Ok(status) => {
                    return Err(format!("worker {number} has not stopped well: {status}"));
                }
                Err(_) => return Err(format!("worker {number} does not stop")),
            }
        }
        Ok(())
    }
}
