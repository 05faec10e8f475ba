//! A process with ten thousand timers in a SQLite file is killed half-way and started again.
//!
//! The test runs itself as the process that is killed. Each run of a timer appends a line to a
//! journal, which a kill can't take back.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kit::wait::until;
use tourbillon_durable::QueueCounts;
use tourbillon_durable::{Due, Durable, Paging, Sqlite};

const TIMERS: usize = 10_000;
const QUEUE: &str = "restart";

/// The greatest number of runs at one time.
const RUNNING: usize = 64;

/// The time between two due times. All timers are due within three seconds.
const APART: Duration = Duration::from_micros(300);

/// Names the folder of the file and the journal to the process that is killed.
const FOLDER: &str = "TOURBILLON_TEST_RESTART_FOLDER";

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = env::temp_dir().join(format!("tourbillon-restart-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn client(folder: &Path) -> Durable {
    let store = Sqlite::open(folder.join("timers.db")).expect("the file opens");
    Durable::builder(store).start().expect("a client")
}

fn micros(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros()
}

/// One run of a timer.
#[derive(Clone, Copy, Debug)]
struct Run {
    timer: usize,
    attempt: u32,
    /// By the clock of the system, when the handler began.
    began: u128,
}

/// The process that is killed: it runs timers until its stdin is closed.
fn run_timers(folder: &Path) -> ! {
    let mut options = OpenOptions::new();
    let journal = options
        .append(true)
        .create(true)
        .open(folder.join("journal"))
        .expect("the journal opens");
    let note = move |due: &Due<usize>| -> io::Result<()> {
        let (timer, attempt) = (*due.payload(), due.attempt());
        let began = micros(SystemTime::now());
        // One write appends the line as a whole.
        (&journal).write_all(format!("{timer} {attempt} {began}\n").as_bytes())?;
        // So that some are running whenever the process is killed.
        thread::sleep(Duration::from_millis(2));
        Ok(())
    };
    let store = Sqlite::open(folder.join("timers.db")).expect("the file opens");
    let timers = Durable::builder(store)
        // On a busy machine beats come late. Nobody else may take the timers over meanwhile.
        .node_lease(Duration::from_secs(2))
        .poll_interval(Duration::from_millis(50))
        .handle(QUEUE, note)
        .running(RUNNING)
        .start()
        .expect("a node");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    timers.stop(Duration::from_secs(10)).wait().unwrap();
    std::process::exit(7);
}

/// The process, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(folder: &Path) -> Process {
        let mut command = Command::new(env::current_exe().expect("a test has a path"));
        command
            .args(["--exact", THIS_TEST, "--nocapture"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        Process(command.spawn().expect("a test can run itself"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }

    /// Closes the stdin of the process, which stops its timers.
    fn stop(&mut self) -> Option<i32> {
        drop(self.0.stdin.take());
        self.0.wait().expect("ended").code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a number that is costly to read has come to `goal`. It may take any time, as long
/// as the number changes.
fn patiently(what: &str, goal: impl Fn(u64) -> bool, mut poll: impl FnMut() -> u64) {
    let mut last = poll();
    while !goal(last) {
        let mut now = last;
        until(what, || {
            thread::sleep(Duration::from_millis(10));
            now = poll();
            now != last
        });
        last = now;
    }
}

/// All runs so far.
fn journal(folder: &Path) -> Vec<Run> {
    let mut text = String::new();
    if let Ok(mut file) = File::open(folder.join("journal")) {
        file.read_to_string(&mut text).expect("text");
    }
    // A line that is just being written has no end yet.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(|line| {
        let numbers: Vec<u128> = line
            .split(' ')
            .map(|word| word.parse().expect("a number"))
            .collect();
        let [timer, attempt, began] = numbers[..] else {
            panic!("a line of the journal: {line:?}");
        };
        Run {
            timer: timer.try_into().expect("a timer"),
            attempt: attempt.try_into().expect("an attempt"),
            began,
        }
    });
    lines.collect()
}

/// The timers that are left, and whether a node holds them.
fn left(timers: &Durable) -> BTreeMap<usize, bool> {
    let mut found = BTreeMap::new();
    let mut paging = Paging::first(1_000);
    loop {
        let page = timers
            .list(QUEUE, &paging)
            .wait()
            .expect("the store answers");
        let Some(last) = page.last() else {
            return found;
        };
        paging = Paging::after(last, 1_000);
        found.extend(page.iter().map(|timer| {
            let number = timer.payload_as().expect("a number");
            (number, timer.running.is_some())
        }));
    }
}

/// The numbers of timers and of dead letters that are left.
fn counts(timers: &Durable) -> (u64, u64) {
    let counts = timers.counts().wait().expect("the store answers");
    let sum = |number: fn(&QueueCounts) -> u64| counts.iter().map(number).sum();
    (
        sum(|queue| queue.waiting + queue.overdue + queue.running),
        sum(|queue| queue.dead),
    )
}

const THIS_TEST: &str = "ten_thousand_timers_survive_a_kill_and_run_at_least_once";

#[test]
fn ten_thousand_timers_survive_a_kill_and_run_at_least_once() {
    if let Some(folder) = env::var_os(FOLDER) {
        run_timers(Path::new(&folder));
    }
    let folder = Folder::new();
    let timers = client(&folder.0);
    let base = SystemTime::now() + Duration::from_millis(500);
    let due = |timer: usize| base + APART * u32::try_from(timer).expect("a small number");
    // They travel together: the calls wait for their commits when all have been sent.
    let calls: Vec<_> = (0..TIMERS)
        .map(|timer| timers.schedule(QUEUE, &timer.to_string(), due(timer), &timer))
        .collect();
    for call in calls {
        call.wait().expect("accepted");
    }
    assert_eq!(counts(&timers), (TIMERS as u64, 0));

    let mut process = Process::start(&folder.0);
    let half = TIMERS as u64 / 2;
    patiently(
        "half of the timers have run",
        |ran| ran >= half,
        || journal(&folder.0).len() as u64,
    );
    process.kill();
    let before = journal(&folder.0);
    let left_behind = left(&timers);
    let held: BTreeSet<usize> = left_behind
        .iter()
        .filter(|(_, held)| **held)
        .map(|(timer, _)| *timer)
        .collect();
    assert!(left_behind.len() > TIMERS / 4, "it was killed too late");
    let ran: BTreeSet<usize> = before.iter().map(|run| run.timer).collect();
    for timer in 0..TIMERS {
        assert!(
            left_behind.contains_key(&timer) || ran.contains(&timer),
            "timer {timer} is gone and has not run"
        );
    }

    let mut process = Process::start(&folder.0);
    patiently("no timer is left", |left| left == 0, || counts(&timers).0);
    assert_eq!(process.stop(), Some(7), "it stops in order");

    let runs = journal(&folder.0);
    let mut times: BTreeMap<usize, u32> = BTreeMap::new();
    for Run {
        timer,
        attempt,
        began,
    } in &runs
    {
        assert!(*began >= micros(due(*timer)), "timer {timer} ran early");
        let times = times.entry(*timer).or_default();
        *times += 1;
        assert!(*times <= *attempt, "timer {timer} ran twice in one attempt");
        // A claim that was given back before the run has begun counts as an attempt, too.
        assert!(
            *times == 1 || held.contains(timer),
            "timer {timer} was not held at the kill, and ran again"
        );
    }
    assert_eq!(times.len(), TIMERS, "each timer ran");
    let doubled = runs.len() - TIMERS;
    assert!(
        doubled <= held.len(),
        "{doubled} doubled, {} held",
        held.len()
    );
    println!("killed with {} held, {doubled} ran twice", held.len());
    assert_eq!(counts(&timers), (0, 0), "no timer was given up");
}
