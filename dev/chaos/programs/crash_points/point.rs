//! The points at which a process dies, and the faults that a process has to survive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What happens to a process in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Point {
    /// Nothing: the last process, which runs the remaining timers.
    None,
    /// Nothing: the process that lives through all rounds, and takes over from the others.
    Watch,
    /// Killed at a random moment.
    Kill,
    BeforeWrite,
    AfterWrite,
    AfterPoll,
    BeforeClaim,
    AfterClaim,
    InRun,
    BeforeCommit,
    AfterCommit,
    BeforeSettle,
    AfterSettle,
    /// Stopped by SIGSTOP at a random moment, and continued after more than a lease.
    Stop,
    LostWrite,
    LostClaim,
    LostSettle,
    LostCommit,
    /// All its connections stand still, from a random moment on, for longer than a lease.
    Hold,
    /// All its connections are cut at a random moment, and new ones for a while.
    Cut,
    /// The server ends all connections at a random moment.
    Terminate,
    /// The server ends at once, as in a crash, and starts again.
    Restart,
    /// The server is down for longer than a lease.
    Outage,
}

/// The process or path that makes a point happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// The process aborts itself within a call.
    Failpoint,
    /// The parent sends a signal.
    Signal,
    /// The path to the server loses an answer.
    Answer,
    /// The path to the server fails as a whole.
    Path,
    /// The parent does something to the server.
    Server,
}

impl Point {
    /// All points of rounds.
    pub(crate) const ALL: [Point; 21] = [
        Point::Kill,
        Point::BeforeWrite,
        Point::AfterWrite,
        Point::AfterPoll,
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::InRun,
        Point::BeforeCommit,
        Point::AfterCommit,
        Point::BeforeSettle,
        Point::AfterSettle,
        Point::Stop,
        Point::LostWrite,
        Point::LostClaim,
        Point::LostSettle,
        Point::LostCommit,
        Point::Hold,
        Point::Cut,
        Point::Terminate,
        Point::Restart,
        Point::Outage,
    ];

    pub(crate) fn cause(self) -> Cause {
        match self {
            Point::Kill | Point::Stop => Cause::Signal,
            Point::LostWrite | Point::LostClaim | Point::LostSettle | Point::LostCommit => {
                Cause::Answer
            }
            Point::Hold | Point::Cut => Cause::Path,
            Point::Terminate | Point::Restart | Point::Outage => Cause::Server,
            _ => Cause::Failpoint,
        }
    }

    /// What follows the number of processes in the report.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Point::None | Point::Watch => "left alone",
            Point::Kill => "killed at a random moment",
            Point::BeforeWrite => "died before the commit of users' calls (crash point 1)",
            Point::AfterWrite => "died after the commit, before the answer (crash point 2)",
            Point::AfterPoll => "died with timers that it had polled (crash point 3)",
            Point::BeforeClaim => "died before the commit of a claim",
            Point::AfterClaim => "died after the claim, before the run (crash point 4)",
            Point::InRun => "died during the run (crash point 4)",
            Point::BeforeCommit => {
                "died after the effect and the end of the run, before their commit"
            }
            Point::AfterCommit => "died after the effect and the end of the run were committed",
            Point::BeforeSettle => "died after the effect, before settling (crash point 5)",
            Point::AfterSettle => "died after the commit of a settlement, before its answer",
            Point::Stop => "stopped for longer than the lease (crash point 7)",
            Point::LostWrite => "lost the answer to users' calls (crash point 2)",
            Point::LostClaim => "lost the answer to a claim (crash point 6)",
            Point::LostSettle => "lost the answer to a settlement (crash point 6)",
            Point::LostCommit => "lost the answer to the commit of an effect (crash point 8)",
            Point::Hold => "heard nothing from the server for longer than the lease",
            Point::Cut => "had all connections cut",
            Point::Terminate => "had all connections ended by the server",
            Point::Restart => "saw the server end at once and start again",
            Point::Outage => "saw the server down for longer than the lease",
        }
    }

    /// An upper bound of how often a process usually reaches its point.
    pub(crate) fn greatest_count(self) -> u64 {
        match self {
            Point::BeforeWrite | Point::AfterWrite | Point::LostWrite => 30,
            Point::InRun | Point::BeforeCommit | Point::AfterCommit | Point::LostCommit => 20,
            _ => match self.cause() {
                Cause::Failpoint | Cause::Answer => 8,
                Cause::Signal | Cause::Path | Cause::Server => 1,
            },
        }
    }
}

/// Counts how often a process reaches its point.
#[derive(Debug)]
pub(crate) struct Fuse {
    pub(crate) point: Point,
    /// How many times the point is still to be passed.
    left: AtomicU64,
    happened: AtomicBool,
}

impl Fuse {
    /// One that burns down when the point is reached for the `count`th time.
    pub(crate) fn new(point: Point, count: u64) -> Self {
        Fuse {
            point,
            left: AtomicU64::new(count),
            happened: AtomicBool::new(false),
        }
    }

    /// Whether this is the point, reached for the last time.
    pub(crate) fn burns(&self, point: Point) -> bool {
        // Relaxed: the number alone decides, and exactly one caller counts it down to zero.
        point == self.point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Ends the process if this is its point, after `last` was done.
    pub(crate) fn at(&self, point: Point, last: impl FnOnce()) {
        if self.burns(point) {
            last();
            std::process::abort();
        }
    }

    /// Notes that the fault of this round has happened, and that the process goes on.
    pub(crate) fn happens(&self) {
        // Relaxed: nothing else is published by it.
        self.happened.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_happened(&self) -> bool {
        // Relaxed: as above.
        self.happened.load(Ordering::Relaxed)
    }
}
