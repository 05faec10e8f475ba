//! What parent and child say to each other: one JSON object a line.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The hidden subcommand of a child; its arguments are system, workload, number of keys and set-up.
pub(crate) const CHILD: &str = "child";

/// The hidden subcommand whose arguments are another program and what that gets.
pub(crate) const DRIVE: &str = "drive";

/// The child, once: it is filled.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Filled {
    pub(crate) seconds: f64,
    /// How much resident memory grew; `None` where the platform does not say.
    pub(crate) bytes: Option<u64>,
}

/// The parent: do a round.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Which of the workload's cases.
    pub(crate) case: usize,
    /// How many threads do the work.
    pub(crate) threads: usize,
    /// How much to do, in the workload's own measure.
    pub(crate) amount: u64,
    pub(crate) seed: u64,
}

/// The child: it is done.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// One for each of the workload's metrics; `None` where the platform does not tell.
    pub(crate) figures: Vec<Option<f64>>,
    pub(crate) seconds: f64,
    /// Cores that others kept busy during the work.
    pub(crate) others: Option<f64>,
    /// And whether that was too much.
    pub(crate) disturbed: bool,
    /// Timers that fired during the work.
    pub(crate) fired: u64,
    /// Of those that record their lateness, the ones that ran before they were due.
    pub(crate) early: u64,
}

/// To and from a process.
pub(crate) struct Pipes {
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Pipes {
    /// The pipes of a process that was started with piped input and output.
    pub(crate) fn to(process: &mut Child) -> Self {
        Pipes {
            requests: process.stdin.take().expect("it is piped"),
            replies: BufReader::new(process.stdout.take().expect("it is piped")),
        }
    }

    pub(crate) fn send(&mut self, request: &Request) -> io::Result<()> {
        let line = serde_json::to_string(request)? + "\n";
        self.requests.write_all(line.as_bytes())?;
        self.requests.flush()
    }

    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::Error::other("a child ended early; see above"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}
