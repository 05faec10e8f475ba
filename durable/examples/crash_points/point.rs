//! The points at which a process dies.

use std::sync::atomic::{AtomicU64, Ordering};

/// A point at which a process dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// None: the last process, which runs what is left.
    None,
    /// At a random moment, by a signal.
    Kill,
    BeforeWrite,
    AfterWrite,
    AfterLook,
    BeforeClaim,
    AfterClaim,
    InRun,
    BeforeCommit,
    AfterCommit,
    BeforeSettle,
    AfterSettle,
}

impl Point {
    /// All points at which a process dies.
    pub(crate) const ALL: [Point; 11] = [
        Point::Kill,
        Point::BeforeWrite,
        Point::AfterWrite,
        Point::AfterLook,
        Point::BeforeClaim,
        Point::AfterClaim,
        Point::InRun,
        Point::BeforeCommit,
        Point::AfterCommit,
        Point::BeforeSettle,
        Point::AfterSettle,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Point::None => "none",
            Point::Kill => "kill",
            Point::BeforeWrite => "before-write",
            Point::AfterWrite => "after-write",
            Point::AfterLook => "after-look",
            Point::BeforeClaim => "before-claim",
            Point::AfterClaim => "after-claim",
            Point::InRun => "in-run",
            Point::BeforeCommit => "before-commit",
            Point::AfterCommit => "after-commit",
            Point::BeforeSettle => "before-settle",
            Point::AfterSettle => "after-settle",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Point> {
        let mut points = Point::ALL.into_iter().chain([Point::None]);
        points.find(|point| point.name() == name)
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Point::None => "never",
            Point::Kill => "at a random moment",
            Point::BeforeWrite => "before the commit of users' calls (crash point 1)",
            Point::AfterWrite => "after the commit, before the answer (crash point 2)",
            Point::AfterLook => "with timers that it has looked at (crash point 3)",
            Point::BeforeClaim => "before the commit of a claim",
            Point::AfterClaim => "after the claim, before the run (crash point 4)",
            Point::InRun => "during the run (crash point 4)",
            Point::BeforeCommit => "after the effect and the end of the run, before their commit",
            Point::AfterCommit => "after the effect and the end of the run were committed",
            Point::BeforeSettle => "after the effect, before settling (crash point 5)",
            Point::AfterSettle => "after the commit of a settlement, before its answer",
        }
    }

    /// A process reaches its point about this often.
    pub(crate) fn greatest_count(self) -> u64 {
        match self {
            Point::None | Point::Kill => 1,
            Point::BeforeWrite | Point::AfterWrite => 30,
            Point::InRun | Point::BeforeCommit | Point::AfterCommit => 20,
            _ => 8,
        }
    }
}

/// What ends the process.
#[derive(Debug)]
pub(crate) struct Fuse {
    point: Point,
    /// How many times the point is still to be passed.
    left: AtomicU64,
}

impl Fuse {
    /// One that burns down when the point is reached for the `count`th time.
    pub(crate) fn new(point: Point, count: u64) -> Self {
        let left = AtomicU64::new(count);
        Fuse { point, left }
    }

    /// Ends the process if this is its point, after `last` was done.
    pub(crate) fn at(&self, point: Point, last: impl FnOnce()) {
        // Relaxed: the number alone decides, and the last one to count it down ends everything.
        if point == self.point && self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            last();
            std::process::abort();
        }
    }
}
