//! A child as its parent sees it: a process with one system that is filled, and the rounds that it
//! is asked for.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::other_build::OtherBuild;
use super::plan::point;
use crate::systems::{Entry, SetUp};
use crate::wire::{CHILD, Filled, Pipes, Reply, Request};
use crate::workload::{Form, Workload};
use crate::{foreign, machine, pingpong};

/// A system, set up for this run.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) entry: &'static Entry,
    pub(super) set_up: SetUp,
    /// The other build of this program that it runs in; `None` is this one.
    pub(super) build: Option<OtherBuild>,
}

impl Candidate {
    pub(super) fn name(&self) -> String {
        let build = self.build.map(OtherBuild::suffix).unwrap_or_default();
        format!("{}{build}{}", self.entry.name, self.set_up.in_words())
    }
}

/// A round or a batch of it, and the round trips between two cores around it.
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) pings_ns: Option<[f64; 2]>,
}

/// A child that is filled.
pub(super) struct Filling {
    system: String,
    process: Child,
    pipes: Option<Pipes>,
}

impl Filling {
    pub(super) fn start(
        candidate: &Candidate,
        workload: &Workload,
        keys: u64,
        form: Form,
    ) -> io::Result<Self> {
        let Candidate {
            entry,
            set_up,
            build,
        } = candidate;
        let system = candidate.name();
        begin!("         {}: {system} .. ", point(workload, keys));
        let counts = [set_up.shards, set_up.stripes].map(|count| count.unwrap_or(0).to_string());
        // The very file that runs, even if it was built anew meanwhile.
        let program = if let Some(other) = build.and_then(OtherBuild::program) {
            other.to_owned()
        } else if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe()?
        };
        let mut process = machine::lead_a_group(&mut Command::new(program))
            .args([CHILD, entry.name, workload.name])
            .arg(keys.to_string())
            .args(counts)
            .env(foreign::WARM_UP, foreign::warm_up_ms(form))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut pipes = Pipes::to(&mut process);
        let filled = pipes.hear::<Filled>();
        let filled = filled.map_err(|error| of_child(&system, &error, &mut process))?;
        complain!("filled in {:.1} s", filled.seconds);
        Ok(Filling {
            system,
            process,
            pipes: Some(pipes),
        })
    }

    /// Stands still while others have their turn: some systems are busy for a minute with what was
    /// stopped long ago.
    pub(super) fn pause(&self) {
        machine::pause(&self.process, true);
    }

    pub(super) fn go_on(&self) {
        machine::pause(&self.process, false);
    }

    pub(super) fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        self.send(request)?;
        self.hear()
    }

    /// Measures one round, split into `batches`. A ping-pong runs before and after each batch. All
    /// other children are stopped meanwhile.
    pub(super) fn measure(&mut self, request: &Request, batches: u64) -> io::Result<Vec<Answer>> {
        let mut answers = Vec::new();
        for batch in 0..batches {
            let before_ns = pingpong::round_trip_ns();
            let reply = self.ask(&Request {
                amount: request.amount / batches,
                seed: request.seed ^ (batch << 48),
                ..*request
            })?;
            let after_ns = pingpong::round_trip_ns();
            let pings_ns = before_ns.zip(after_ns).map(<[f64; 2]>::from);
            answers.push(Answer { reply, pings_ns });
        }
        // What a batch leaves, such as memory, is known when all of them are done.
        let left = answers.last().map(|answer| answer.reply.figures.clone());
        for answer in &mut answers {
            let left = left.iter().flatten();
            for (figure, left) in answer.reply.figures.iter_mut().zip(left).skip(1) {
                *figure = *left;
            }
        }
        Ok(answers)
    }

    pub(super) fn send(&mut self, request: &Request) -> io::Result<()> {
        self.with_pipes(|pipes| pipes.send(request))
    }

    pub(super) fn hear(&mut self) -> io::Result<Reply> {
        self.with_pipes(Pipes::hear)
    }

    fn with_pipes<T>(&mut self, work: impl FnOnce(&mut Pipes) -> io::Result<T>) -> io::Result<T> {
        let pipes = self.pipes.as_mut().expect("open until the end");
        work(pipes).map_err(|error| of_child(&self.system, &error, &mut self.process))
    }
}

/// Says whose fault it is, and how the child ended, if it did.
fn of_child(system: &str, error: &io::Error, process: &mut Child) -> io::Error {
    // Its output ends a moment before it does.
    for _ in 0..100 {
        if let Ok(Some(status)) = process.try_wait() {
            return io::Error::other(format!("{system}: {error} ({status})"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    io::Error::other(format!("{system}: {error}"))
}

impl Drop for Filling {
    /// The end of its input is the end of the child.
    fn drop(&mut self) {
        self.pipes = None;
        self.go_on();
        let _ = self.process.wait();
    }
}
