//! The rounds of one system at one point while they are measured, from which rows are made.

use crate::figures::Row;
use crate::mode::Mode;
use crate::wire::Reply;
use crate::workload::{Cased, Workload};

#[derive(Debug)]
pub(super) struct Series {
    pub(super) workload: &'static Workload,
    pub(super) case: Cased,
    pub(super) keys: u64,
    pub(super) system: String,
    pub(super) amount: u64,
    pub(super) rounds: Vec<Round>,
    /// How many rounds were done again.
    pub(super) discarded: usize,
    /// See [`Row`] for these.
    pub(super) mixed: u64,
    pub(super) slow: u64,
    pub(super) disturbed: u64,
}

/// A round that counts.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) reply: Reply,
    /// In which mode the machine was all the time. `None` where rounds are not kept apart by mode.
    pub(super) mode: Option<Mode>,
    /// It should have been repeated once more.
    pub(super) kept_disturbed: bool,
}

impl Series {
    pub(super) fn rounds_in(&self, mode: Mode) -> usize {
        let rounds = self.rounds.iter();
        rounds.filter(|round| round.mode == Some(mode)).count()
    }

    /// A row for each mode that was seen, the one that targets are judged in first.
    pub(super) fn rows(&self) -> Vec<Row> {
        let modes = [Some(Mode::Near), Some(Mode::Far), Some(Mode::SharedCore)];
        let all = modes.into_iter().chain([Some(Mode::Unknown), None]);
        let seen = |mode: &Option<Mode>| self.rounds.iter().any(|round| round.mode == *mode);
        let mut rows: Vec<Row> = all.filter(seen).map(|mode| self.row(mode)).collect();
        if rows.is_empty() {
            // Every round was mixed.
            rows.push(self.row((self.case.threads > 1).then_some(Mode::Unknown)));
        }
        (rows[0].mixed, rows[0].slow, rows[0].disturbed) = (self.mixed, self.slow, self.disturbed);
        rows
    }

    fn row(&self, mode: Option<Mode>) -> Row {
        let rounds = || self.rounds.iter().filter(move |round| round.mode == mode);
        let figures = self.workload.metrics.iter().enumerate();
        let figures = figures.map(|(number, metric)| {
            let figure = |round: &Round| round.reply.figures.get(number).copied().flatten();
            (metric.name.to_owned(), rounds().map(figure).collect())
        });
        let case = (self.case.name.clone(), self.case.threads);
        Row {
            amount: self.amount,
            mode,
            figures: figures.collect(),
            kept_disturbed: rounds().filter(|round| round.kept_disturbed).count() as u64,
            early: rounds().map(|round| round.reply.early).sum(),
            ..Row::new(self.workload, case, self.keys, self.system.clone())
        }
    }
}
