//! The rounds of a figure that may be taken together: all of them with one thread, those of one mode of the
//! machine with more. Medians and ratios exist for these only, so none is over rounds of different modes.

use std::ops::Deref;

use crate::mode::Mode;
use crate::report::{Figure, Report, Round};

/// Some rounds of one system at one point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    figure: &'a Figure,
    /// `None` where rounds are not split, or where nothing is known of their mode.
    mode: Option<Mode>,
}

/// What stands for the rounds, with their least and greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) typical: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

fn spread(figures: impl IntoIterator<Item = f64>, least: bool) -> Option<Spread> {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let typical = if least {
        min
    } else if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    Some(Spread { typical, min, max })
}

impl Report {
    /// All views of all figures of a workload.
    pub(crate) fn views(&self, workload: &str) -> impl Iterator<Item = View<'_>> {
        let figures = self.figures.iter();
        figures
            .filter(move |figure| figure.workload == workload)
            .flat_map(Figure::views)
    }
}

impl Figure {
    /// One view for each mode that was seen, the one that targets are judged in first.
    pub(crate) fn views(&self) -> Vec<View<'_>> {
        let view = |mode| View { figure: self, mode };
        let seen = |mode: &Option<Mode>| self.rounds.iter().any(|round| round.mode == *mode);
        let modes = Mode::ALL.map(Some).into_iter().chain([None]);
        let views: Vec<View<'_>> = modes.filter(seen).map(view).collect();
        if views.is_empty() {
            return vec![view(None)];
        }
        views
    }

    /// The rounds that targets are judged by. `None` if the machine was never in the mode that counts.
    pub(crate) fn judged(&self) -> Option<View<'_>> {
        let counts = self.by_mode.then_some(Mode::Near);
        let mut views = self.views().into_iter();
        views.find(|view| view.mode == counts)
    }

    /// How many rounds were done in this mode.
    pub(crate) fn rounds_in(&self, mode: Mode) -> usize {
        let rounds = self.rounds.iter();
        rounds.filter(|round| round.mode == Some(mode)).count()
    }
}

impl Deref for View<'_> {
    type Target = Figure;

    fn deref(&self) -> &Figure {
        self.figure
    }
}

impl<'a> View<'a> {
    fn rounds(self) -> impl Iterator<Item = &'a Round> {
        let rounds = self.figure.rounds.iter();
        rounds.filter(move |round| round.mode == self.mode)
    }

    /// What the rounds say of the metric with this number.
    pub(crate) fn spread(self, metric: usize) -> Option<Spread> {
        let figures = self
            .rounds()
            .filter_map(|round| *round.figures.get(metric)?);
        spread(figures, self.metrics.get(metric)?.least)
    }

    /// What the rounds say of the metric with this name, and its unit.
    pub(crate) fn named(self, metric: &str) -> Option<(Spread, &'a str)> {
        let number = self.metrics.iter().position(|m| m.name == metric)?;
        Some((self.spread(number)?, &self.figure.metrics[number].unit))
    }

    /// Its name.
    pub(crate) fn system(self) -> &'a str {
        &self.figure.system
    }

    /// Whether both are of one point and one mode.
    pub(crate) fn is_beside(self, other: View<'_>) -> bool {
        let point = |view: View<'a>| {
            let figure = view.figure;
            (&figure.workload, &figure.case, figure.keys, view.mode)
        };
        let figure = other.figure;
        point(self) == (&figure.workload, &figure.case, figure.keys, other.mode)
    }

    /// How many times better than `other`.
    pub(crate) fn over(self, other: View<'_>, metric: usize) -> Option<f64> {
        let ratio = self.spread(metric)?.typical / other.spread(metric)?.typical;
        let ratio = if self.metrics[metric].less_is_better {
            1.0 / ratio
        } else {
            ratio
        };
        Some(ratio).filter(|ratio| ratio.is_finite())
    }

    /// Whether it belongs into a plot of the mode that targets are judged in, or of the other ones. An unknown
    /// mode is in neither: those are single rounds of a few systems.
    pub(crate) fn is_drawn(self, other_modes: bool) -> bool {
        match self.mode {
            Some(mode) if self.by_mode => (mode != Mode::Near) == other_modes,
            _ => !self.by_mode && !other_modes,
        }
    }

    /// The mode, where rounds are split.
    pub(crate) fn mode_in_words(self) -> Option<String> {
        match self.mode {
            Some(mode) => Some(mode.name().to_owned()),
            None => self.by_mode.then(|| "unknown mode".to_owned()),
        }
    }

    /// The case, with the mode where rounds are split.
    pub(crate) fn case_in_words(self) -> String {
        match self.mode_in_words() {
            Some(mode) => format!("{}, {mode}", self.case),
            None => self.case.clone(),
        }
    }

    pub(crate) fn was_early(self) -> bool {
        self.rounds().any(|round| round.early > 0)
    }

    /// The rounds that count, and what had to be repeated.
    pub(crate) fn rounds_in_words(self) -> String {
        let mut words = self.rounds().count().to_string();
        let mut add = |count: u32, what: &str| {
            if count > 0 {
                words += &format!(", {count} {what}");
            }
        };
        // What was repeated is in no mode. It stands beside the first one.
        if self.mode == self.figure.views()[0].mode {
            add(self.repeated_mixed, "mixed repeated");
            add(self.repeated_slow, "slow repeated");
            add(self.repeated_disturbed, "disturbed repeated");
        }
        if self.by_mode {
            let disturbed = self.rounds().filter(|round| round.disturbed).count();
            add(disturbed as u32, "disturbed kept");
        } else {
            add(self.kept_disturbed, "disturbed kept");
        }
        let early: u64 = self.rounds().map(|round| round.early).sum();
        if early > 0 {
            words += &format!(", {early} timers early");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::figure;

    #[test]
    fn the_median_is_between_the_others_and_the_least_is_the_least() {
        let of = |figures: &[f64], least| spread(figures.iter().copied(), least);
        assert_eq!(of(&[], false), None);
        let odd = of(&[3.0, 1.0, 2.0], false).expect("figures");
        assert_eq!((odd.typical, odd.min, odd.max), (2.0, 1.0, 3.0));
        let even = of(&[4.0, 1.0, 2.0, 3.0], false).expect("figures");
        assert_eq!(even.typical, 2.5);
        let least = of(&[3.0, 1.0, 2.0], true).expect("figures");
        assert_eq!((least.typical, least.max), (1.0, 3.0));
    }

    /// Rounds of the touch workload, with the mode of each.
    fn touched(rounds: &[(f64, Option<Mode>)]) -> Figure {
        let mut all = figure("W2", "a", 0.0);
        all.threads = 2;
        all.by_mode = true;
        all.rounds.clear();
        for (value, mode) in rounds {
            let mut one = figure("W2", "a", *value).rounds.remove(0);
            one.mode = *mode;
            all.rounds.push(one);
        }
        all
    }

    #[test]
    fn a_median_is_over_rounds_of_one_mode() {
        let (near, far) = (Some(Mode::Near), Some(Mode::Far));
        let figure = touched(&[
            (9.0, near),
            (1.0, far),
            (7.0, near),
            (2.0, far),
            (8.0, near),
        ]);
        let medians: Vec<(Option<Mode>, f64)> = figure
            .views()
            .into_iter()
            .map(|view| (view.mode, view.spread(0).expect("rounds").typical))
            .collect();
        assert_eq!(medians, [(near, 8.0), (far, 1.5)]);
        let judged = figure.judged().expect("it was near");
        assert_eq!(
            judged.spread(0).map(|s| (s.typical, s.min)),
            Some((8.0, 7.0))
        );
        assert_eq!(figure.views()[1].case_in_words(), "1 thread, far");
        assert_eq!(figure.views()[1].rounds_in_words(), "2");
        assert_eq!(figure.rounds_in(Mode::Near), 3);
    }

    #[test]
    fn a_figure_that_was_never_near_is_not_judged() {
        let far = touched(&[(1.0, Some(Mode::Far)), (30.0, Some(Mode::SharedCore))]);
        assert!(far.judged().is_none());
        let unknown = touched(&[(1.0, Some(Mode::Near)), (2.0, None)]);
        assert_eq!(unknown.views()[1].case_in_words(), "1 thread, unknown mode");
    }

    #[test]
    fn rounds_of_earlier_programs_are_not_split() {
        let mut old = touched(&[(1.0, None), (3.0, None)]);
        assert!(
            old.judged().is_none(),
            "of this program, in an unknown mode"
        );
        old.by_mode = false;
        let views = old.views();
        assert_eq!((views.len(), views[0].mode), (1, None));
        assert_eq!(views[0].case_in_words(), "1 thread");
        let judged = old.judged().and_then(|view| view.spread(0));
        assert_eq!(judged.map(|spread| spread.typical), Some(2.0));
    }

    #[test]
    fn systems_are_compared_in_one_mode_only() {
        let near = touched(&[(6.0, Some(Mode::Near))]);
        let both = touched(&[(2.0, Some(Mode::Near)), (1.0, Some(Mode::Far))]);
        let (one, others) = (near.views()[0], both.views());
        assert!(one.is_beside(others[0]) && !one.is_beside(others[1]));
    }
}
