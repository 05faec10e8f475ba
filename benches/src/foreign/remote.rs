//! A driver as a system of this process, call by call, for the checks that every system must pass.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Foreign;
use super::wire::{Call, Driven, Told};
use crate::recorder::observed;
use crate::system::{Handles, Keyed, System, Tasks};
use crate::wire::{Filled, Pipes, Request};

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct Remote<F> {
    process: Child,
    calls: Mutex<ChildStdin>,
    waiting: Arc<Mutex<Waiting>>,
    of: PhantomData<fn() -> F>,
}

/// The calls that are not answered yet, by lane.
type Waiting = HashMap<u64, Sender<u64>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every thread has a lane of its own.
fn lane() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static LANE: Cell<u64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    LANE.get()
}

fn start<F: Foreign>(workload: &str, keys: u64) -> Child {
    let words = F::DRIVER.command().expect("it is compiled");
    Command::new(&words[0])
        .args(&words[1..])
        .args([workload, &keys.to_string(), "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the driver starts")
}

/// A round in which a driver looks at each of its timers by its own clock. It is exact: a call that
/// comes through a pipe takes longer than some timers might be early.
pub(crate) fn no_timer_of_a_round_is_early<F: Foreign>() {
    let keys = 100;
    let millis = 50;
    let mut process = start::<F>("W9", keys);
    let mut pipes = Pipes::to(&mut process);
    let filled = pipes.hear::<Filled>().expect("the driver fills");
    assert!(filled.seconds < LIMIT.as_secs_f64());
    let request = Request {
        threads: 1,
        amount: millis,
        ..Request::default()
    };
    // It ends where one is early, or where one is missing.
    pipes.send(&request).expect("the driver runs");
    let driven: Driven = pipes.hear().expect("the driver ends its round");
    assert_eq!(driven.fired, 10 * millis, "ten in a millisecond");
    assert!(driven.figures.len() == 4 && driven.figures.iter().all(Option::is_some));
    drop(pipes);
    let ended = process.wait().expect("the driver ends with its input");
    assert!(ended.success());
}

impl<F: Foreign> Remote<F> {
    fn new(subject: &str) -> Self {
        let mut process = start::<F>(subject, 0);
        let calls = process.stdin.take().expect("it is piped");
        let told = process.stdout.take().expect("it is piped");
        let waiting = Arc::new(Mutex::new(Waiting::new()));
        let listening = Arc::clone(&waiting);
        thread::spawn(move || listen(told, &listening));
        Remote {
            process,
            calls: Mutex::new(calls),
            waiting,
            of: PhantomData,
        }
    }

    fn call(&self, what: &'static str, key: u64, delay: Duration) -> u64 {
        let lane = lane();
        let (answer, answered) = mpsc::channel();
        lock(&self.waiting).insert(lane, answer);
        let call = Call {
            lane,
            what,
            key,
            delay_ns: delay.as_nanos() as u64,
        };
        let line = serde_json::to_string(&call).expect("it is plain") + "\n";
        let sent = lock(&self.calls).write_all(line.as_bytes());
        sent.expect("the driver runs");
        answered.recv_timeout(LIMIT).expect("the driver answers")
    }
}

/// Hands answers to those who wait for them, and notes what fired. Ends with the driver.
fn listen(told: ChildStdout, waiting: &Mutex<Waiting>) {
    let clock = Clock::new();
    for line in BufReader::new(told).lines() {
        let line = line.expect("the driver speaks UTF-8");
        match serde_json::from_str(&line).expect("the driver keeps to the wire") {
            Told::Answer { lane, answer } => {
                let asked = lock(waiting).remove(&lane).expect("somebody asked");
                // Whoever asked may have given up.
                let _ = asked.send(answer);
            }
            Told::Fired { fired, at_ns } => observed::note_at(fired, clock.instant(at_ns)),
        }
    }
    // Nobody has to wait for an answer any more.
    lock(waiting).clear();
}

/// The system's monotonic clock, which drivers read too, beside `Instant`: at most a microsecond
/// late.
struct Clock {
    now: Instant,
    monotonic: Option<Duration>,
}

impl Clock {
    fn new() -> Self {
        loop {
            let before = Instant::now();
            let monotonic = monotonic();
            let now = Instant::now();
            if now - before < Duration::from_micros(1) || monotonic.is_none() {
                return Clock { now, monotonic };
            }
        }
    }

    /// The moment of a reading; where the clock is not known, now, which is a little later.
    fn instant(&self, nanos: u64) -> Instant {
        let Some(monotonic) = self.monotonic else {
            return Instant::now();
        };
        let read = Duration::from_nanos(nanos);
        match read.checked_sub(monotonic) {
            Some(later) => self.now + later,
            None => self.now - (monotonic - read),
        }
    }
}

#[cfg(target_os = "linux")]
fn monotonic() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::Monotonic)).ok()
}

#[cfg(not(target_os = "linux"))]
fn monotonic() -> Option<Duration> {
    None
}

impl<F: Foreign> System for Remote<F> {
    const NAME: &'static str = F::DRIVER.name;
    const ABOUT: &'static str = F::DRIVER.about;

    fn pending(&self) -> usize {
        self.call("pending", 0, Duration::ZERO) as usize
    }

    fn settle(&self) {
        self.call("settle", 0, Duration::ZERO);
    }
}

impl<F: Foreign> Keyed for Remote<F> {
    fn new(_: Tasks) -> Self {
        Remote::new("check-keys")
    }

    fn start(&self, key: u64, delay: Duration) {
        self.call("start", key, delay);
    }

    fn stop(&self, key: u64) -> bool {
        self.call("stop", key, Duration::ZERO) == 1
    }

    fn touch(&self, key: u64, delay: Duration) -> bool {
        self.call("touch", key, delay) == 1
    }
}

impl<F: Foreign> Handles for Remote<F> {
    type Timeout = u64;

    fn new(_: Tasks) -> Self {
        Remote::new("check-handles")
    }

    fn start(&self, value: u64, delay: Duration) -> u64 {
        self.call("start", value, delay)
    }

    fn stop(&self, timeout: u64) -> bool {
        self.call("stop", timeout, Duration::ZERO) == 1
    }
}

impl<F> Drop for Remote<F> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
