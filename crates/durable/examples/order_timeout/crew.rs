//! The processes of the workers: started, killed and stopped. Dropped, it leaves no process behind.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use crate::worker::{READY, STOPS_WITHIN};

/// A line of a worker, or the end of its pipe.
struct Said {
    number: u32,
    line: Option<String>,
}

pub(crate) struct Crew {
    program: OsString,
    arguments: Vec<OsString>,
    workers: Vec<Worker>,
    /// The number of the next worker.
    next: u32,
    sender: Sender<Said>,
    said: Receiver<Said>,
    pub(crate) kills: u32,
}

struct Worker {
    number: u32,
    child: Child,
    /// The worker stops when this is dropped.
    pipe: Option<ChildStdin>,
    ready: bool,
}

impl Crew {
    /// Starts this number of workers, which run `program` with the arguments.
    pub(crate) fn start(
        program: &OsStr,
        arguments: Vec<OsString>,
        workers: u32,
    ) -> io::Result<Crew> {
        let (sender, said) = channel();
        let mut crew = Crew {
            program: program.to_owned(),
            arguments,
            workers: Vec::new(),
            next: 1,
            sender,
            said,
            kills: 0,
        };
        for _ in 0..workers {
            crew.start_one()?;
        }
        Ok(crew)
    }

    fn start_one(&mut self) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .args(["--work", &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // The interrupt key of a terminal is for the parent, which stops its workers in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let (pipe, out) = (child.stdin.take(), child.stdout.take());
        self.workers.push(Worker {
            number,
            child,
            pipe,
            ready: false,
        });
        let out = out.ok_or_else(|| io::Error::other("a process without its stdout"))?;
        let sender = self.sender.clone();
        thread::Builder::new().spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let line = Some(line);
                let _ = sender.send(Said { number, line });
            }
            let _ = sender.send(Said { number, line: None });
        })?;
        Ok(())
    }

    /// The number of workers whose timers run.
    pub(crate) fn ready(&self) -> usize {
        self.workers.iter().filter(|worker| worker.ready).count()
    }

    /// Takes what the workers have said, as lines for the user. A worker that has ended well, because
    /// somebody has asked it to, is replaced.
    ///
    /// # Errors
    ///
    /// A worker has failed.
    pub(crate) fn listen(&mut self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        while let Ok(Said { number, line }) = self.said.try_recv() {
            // A worker that was killed is no longer there.
            let Some(at) = self
                .workers
                .iter()
                .position(|worker| worker.number == number)
            else {
                continue;
            };
            match line {
                Some(line) if line == READY => self.workers[at].ready = true,
                Some(line) => lines.push(format!("worker {number}: {line}")),
                None => {
                    let mut worker = self.workers.remove(at);
                    let status = worker.child.wait().map_err(|error| error.to_string())?;
                    if !status.success() {
                        let said = lines.join("; ");
                        return Err(format!("worker {number} ended with {status}: {said}"));
                    }
                    lines.push(format!("worker {number} has stopped, another one starts"));
                    self.start_one().map_err(|error| error.to_string())?;
                }
            }
        }
        Ok(lines)
    }

    /// Kills the worker that has run for the longest time, by SIGKILL, and starts another one. While
    /// one is still starting, nobody is killed.
    pub(crate) fn kill_one(&mut self) -> io::Result<()> {
        if self.workers.is_empty() || self.ready() < self.workers.len() {
            return Ok(());
        }
        let mut worker = self.workers.remove(0);
        worker.child.kill()?;
        worker.child.wait()?;
        self.kills += 1;
        self.start_one()
    }

    /// Stops all workers, each with its grace.
    ///
    /// # Errors
    ///
    /// A worker did not end in time, or not well.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let mut workers = std::mem::take(&mut self.workers);
        for worker in &mut workers {
            worker.pipe = None;
        }
        let began = Instant::now();
        for worker in &mut workers {
            let number = worker.number;
            let ended = loop {
                match worker.child.try_wait().map_err(|error| error.to_string())? {
                    Some(status) => break Some(status),
                    None if began.elapsed() > 2 * STOPS_WITHIN => break None,
                    None => thread::sleep(std::time::Duration::from_millis(5)),
                }
            };
            match ended.as_ref().map(ExitStatus::success) {
                Some(true) => {}
                Some(false) => return Err(format!("worker {number} has not stopped well")),
                None => return Err(format!("worker {number} does not stop")),
            }
        }
        Ok(())
    }
}

/// Leaves no process behind.
impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
