//! The closure with its cadence, as the payload of an entry: one box, like that of a task that runs
//! once.

use std::hash::BuildHasher;
use std::marker::PhantomData;

use super::super::firing::Firing;
use super::super::task::{Rounds, RunTask};
use super::cadence::Cadence;
use super::next::IntoNext;
use super::round::Round;
use crate::clock::ClaimReading;
use crate::job::prefetch;
use crate::shard::Start;
use crate::tick::Time;

pub(crate) struct Repeat<F, R> {
    task: F,
    cadence: Cadence,
    answers: PhantomData<fn() -> R>,
}

impl<F, R> Repeat<F, R> {
    pub(super) fn new(task: F, cadence: Cadence) -> Self {
        Repeat {
            task,
            cadence,
            answers: PhantomData,
        }
    }

    pub(super) fn into_task(self) -> F {
        self.task
    }
}

impl<K, S, F, R> RunTask<K, S> for Repeat<F, R>
where
    K: Clone + Send + 'static,
    S: BuildHasher + Send + Sync + 'static,
    F: FnMut(&Round<'_, K, S>) -> R + Send + 'static,
    R: IntoNext + 'static,
{
    fn start(&mut self, deadline: Time, present: &mut ClaimReading<'_>) -> Start {
        self.cadence.start(deadline, present.exact())
    }

    fn run_now(&mut self, kept: Time, at: Time) {
        self.cadence.run_now(kept, at);
    }

    fn prefetch(&mut self) {
        prefetch(&mut self.task);
    }

    fn run(mut self: Box<Self>, firing: &Firing<'_, K, S>, _: Option<&mut bool>) {
        self.round(firing);
    }

    fn round(&mut self, firing: &Firing<'_, K, S>) {
        // This also clears the last answer: after a panic there must be none.
        let progress = self.cadence.begin_round();
        let round = Round { firing, progress };
        let answer = (self.task)(&round).into_next();
        self.cadence.end_round(answer);
    }

    fn cadence(&mut self) -> Option<&mut Cadence> {
        Some(&mut self.cadence)
    }

    fn rounds(&self) -> Rounds {
        match self.cadence.has_calendar() {
            true => Rounds::ByCalendar,
            false => Rounds::Here,
        }
    }

    fn calendar(&mut self) -> Option<&mut Cadence> {
        Some(&mut self.cadence).filter(|cadence| cadence.has_calendar())
    }
}
