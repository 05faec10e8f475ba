//! A child: one system filled for one workload, which serves rounds until its input ends.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use crate::machine::{Busy, Others, grown_since, resident_bytes};
use crate::recorder::{early_so_far, fired_so_far};
use crate::wire::{Filled, Reply, Request};
use crate::workload::{Children, Workload};

/// The child's end of the conversation with its parent.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) workload: &'static Workload,
    pub(crate) keys: u64,
    /// The program in another language that does the work.
    pub(crate) driver: Option<std::process::Child>,
}

/// What a round found out.
#[derive(Debug)]
pub(crate) struct Measured {
    /// One for each of the workload's metrics.
    pub(crate) figures: Vec<Option<f64>>,
    pub(crate) took: Duration,
}

impl Measured {
    pub(crate) fn of(figures: Vec<Option<f64>>, took: Duration) -> Self {
        Measured { figures, took }
    }

    /// Of a workload with one metric.
    pub(crate) fn one(figure: f64, took: Duration) -> Self {
        Measured::of(vec![Some(figure)], took)
    }

    /// The figures of a round that has just ended.
    pub(crate) fn since(began: Instant, figures: Vec<Option<f64>>) -> Self {
        Measured::of(figures, began.elapsed())
    }
}

fn say(message: &impl serde::Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    writeln!(out)?;
    out.flush()
}

impl Child {
    /// Fills the system, and tells the parent what that took.
    pub(crate) fn filled(&mut self, fill: impl FnOnce()) -> io::Result<Filled> {
        let before = resident_bytes();
        let began = Instant::now();
        fill();
        let seconds = began.elapsed().as_secs_f64();
        let bytes = grown_since(before);
        let filled = Filled { seconds, bytes };
        say(&filled)?;
        Ok(filled)
    }

    /// Tells the parent what filling took in another process.
    pub(crate) fn filled_elsewhere(&mut self, filled: &Filled) -> io::Result<()> {
        say(filled)
    }

    /// Serves rounds until the parent ends.
    ///
    /// Children that measure at the same time leave the machine alone, and don't ask what others
    /// do: that would be each other.
    pub(crate) fn rounds(&mut self, mut round: impl FnMut(&Request) -> Measured) -> io::Result<()> {
        let alone = self.workload.children != Children::Together;
        for line in io::stdin().lock().lines() {
            let request: Request = serde_json::from_str(&line?)?;
            let fired_before = fired_so_far();
            let early_before = early_so_far();
            let busy = alone.then(Busy::now).flatten();
            let measured = round(&request);
            let others = Busy::others_since(busy);
            let fired = fired_so_far() - fired_before;
            let early = early_so_far() - early_before;
            say(&Reply {
                figures: measured.figures,
                seconds: measured.took.as_secs_f64(),
                others: others.map(Others::cores),
                disturbed: others.is_some_and(Others::disturb),
                fired,
                early,
            })?;
        }
        if let Some(driver) = &mut self.driver {
            driver.kill()?;
            driver.wait()?;
        }
        // Taking millions of timers apart would only hold up the next child.
        std::process::exit(0);
    }
}
