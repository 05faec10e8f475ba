//! A process with a node. It is this test program, started again: it runs [`child::process`].

use std::io::{BufRead, BufReader};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kit::pause::Paused;
use kit::wait;

use crate::place::Place;

mod child {
    use std::io::{BufRead, Write};
    use std::time::{Instant, UNIX_EPOCH};

    use tourbillon_durable::store::{Offset, Poll, Store};
    use tourbillon_durable::{Due, Durable, Sqlite};

    use crate::watched::{Seen, Watched};

    /// A line that the parent reads.
    fn say(line: &str) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "SAY {line}").expect("the parent reads");
        out.flush().expect("the parent reads");
    }

    #[test]
    #[ignore = "a part of other tests, which start it"]
    fn process() {
        let Ok(task) = std::env::var("TAKEOVER_TEST_TASK") else {
            return;
        };
        match task.split_once('|').expect("a store and its place") {
            ("sqlite", file) => work(Sqlite::open(file).expect("a store")),
            #[cfg(feature = "postgres")]
            ("postgres", url) => work(tourbillon_durable::Postgres::connect(url).expect("a store")),
            (other, _) => panic!("no store {other}"),
        }
    }

    fn work<S: Store + Clone>(store: S) {
        let start = Instant::now();
        let store = Watched::new(store, move |seen| match seen {
            // A poll of everything, not of a queue that runs out of timers.
            Seen::Snapshot(poll, snapshot) if poll.complete => {
                let at = start.elapsed().as_millis();
                say(&format!("poll {} {} {at}", own(poll), snapshot.nodes.len()));
            }
            Seen::Beat => say("beat"),
            _ => {}
        });
        let timers = Durable::builder(store)
            .handle(super::super::QUEUE, |due: &Due<()>| {
                let planned = due.due().duration_since(UNIX_EPOCH).unwrap_or_default();
                let (late, planned) = (due.lateness().as_micros(), planned.as_micros());
                say(&format!(
                    "ran {} {} {planned} {late}",
                    due.key(),
                    due.attempt()
                ));
            })
            .start()
            .expect("the store answers");
        // The parent closes the pipe, or kills this process.
        std::io::stdin().lock().lines().for_each(drop);
        drop(timers);
    }

    /// The shards that a poll reads as those of its node, one bit each: it reads ahead in them.
    fn own(poll: &Poll) -> u64 {
        let ahead = |until| matches!(until, Offset::Ahead(span) if !span.is_zero());
        let ranges = poll.ranges.iter().filter(|range| ahead(range.until));
        ranges.fold(0, |own, range| own | 1 << range.shard)
    }
}

/// A poll of everything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    /// The shards that it reads as those of its node, one bit each.
    pub(crate) own: u64,
    /// How many nodes it shows.
    pub(crate) nodes: usize,
    /// The time since the start of the process.
    at: Duration,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    pub(crate) key: String,
    pub(crate) attempt: u32,
    pub(crate) due: SystemTime,
    pub(crate) late: Duration,
}

pub(crate) struct Process {
    process: Paused,
    to: Option<ChildStdin>,
    said: Receiver<String>,
    beats: u32,
    polls: Vec<Polled>,
    runs: Vec<Ran>,
}

impl Process {
    /// Starts a process, and waits until it polls.
    pub(crate) fn start(place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
        command
            .args(["--exact", "process::child::process"])
            .args(["--ignored", "--nocapture", "--test-threads", "1"])
            .env("TAKEOVER_TEST_TASK", place.task())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Paused(command.spawn().expect("a process"));
        let out = process.0.stdout.take().expect("piped");
        let to = process.0.stdin.take();
        let (say, said) = channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // The test harness writes its own words before the first one.
                if let Some((_, said)) = line.split_once("SAY ") {
                    let _ = say.send(said.to_owned());
                }
            }
        });
        let mut process = Process {
            process,
            to,
            said,
            beats: 0,
            polls: Vec::new(),
            runs: Vec::new(),
        };
        let first = wait::next(&process.said);
        process.take(&first);
        process
    }

    fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: &str| word.parse::<u64>().expect("a number");
        match words[..] {
            ["beat"] => self.beats += 1,
            ["poll", own, nodes, at] => self.polls.push(Polled {
                own: number(own),
                nodes: number(nodes) as usize,
                at: Duration::from_millis(number(at)),
            }),
            ["ran", key, attempt, due, late] => self.runs.push(Ran {
                key: key.to_owned(),
                attempt: number(attempt) as u32,
                due: UNIX_EPOCH + Duration::from_micros(number(due)),
                late: Duration::from_micros(number(late)),
            }),
            _ => panic!("it said {line}"),
        }
    }

    fn listen(&mut self) {
        while let Ok(line) = self.said.try_recv() {
            self.take(&line);
        }
    }

    /// Waits until its node beats. The next beat is far away then.
    pub(crate) fn wait_for_a_beat(&mut self) {
        self.listen();
        let before = self.beats;
        wait::until("it beats", || {
            self.listen();
            self.beats > before
        });
    }

    /// The last poll of everything so far.
    pub(crate) fn last_poll(&mut self) -> Polled {
        self.listen();
        self.polls.last().copied().unwrap_or_default()
    }

    /// How many polls of everything there were.
    pub(crate) fn polls(&mut self) -> usize {
        self.listen();
        self.polls.len()
    }

    /// How many polls of everything came after the first `before` ones, and within which time.
    pub(crate) fn polls_since(&mut self, before: usize) -> (u32, Duration) {
        self.listen();
        let polls = &self.polls[before..];
        let took = match polls {
            [first, .., last] => last.at - first.at,
            _ => Duration::ZERO,
        };
        (polls.len() as u32, took)
    }

    /// Stops the process where it is.
    pub(crate) fn stand_still(&self) {
        self.process.stop();
    }

    pub(crate) fn go_on(&self) {
        self.process.go_on();
    }

    /// Ends the process without a word. Returns the runs that it had started.
    pub(crate) fn kill(mut self) -> Vec<Ran> {
        self.process.0.kill().expect("killed");
        self.all_runs()
    }

    /// Lets the process end. Returns the runs that it had started.
    pub(crate) fn stop(mut self) -> Vec<Ran> {
        self.to = None;
        self.all_runs()
    }

    fn all_runs(mut self) -> Vec<Ran> {
        for line in wait::all(&self.said) {
            self.take(&line);
        }
        self.runs
    }
}
