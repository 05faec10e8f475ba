//! The targets P1 to P13, and what a report says of each.
//!
//! A target is a figure of ours at one point, compared with the best peer of the same run, with one named
//! system, or with a bound. A floor is no peer. Where a target names several cases or several of our systems,
//! all of them have to reach it, and the worst one stands first. Points with two threads are judged in the
//! near mode only.

use crate::report::{Figure, Report, digits};
use crate::view::View;
use crate::workloads::Form;

/// A target and where it stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) target: &'static Target,
    pub(crate) verdict: Verdict,
    /// Where it was measured, the worst first. Empty otherwise.
    pub(crate) found: Vec<Found>,
    /// Why it was not judged.
    pub(crate) why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    NotMeasured,
    /// The machine was never in the mode that counts.
    NotJudged,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Missed => "**missed**",
            Verdict::NotMeasured => "**not measured**",
            Verdict::NotJudged => "**not judged**",
        }
    }
}

/// A figure of ours, and what it is compared with.
#[derive(Debug)]
pub(crate) struct Found {
    system: String,
    case: String,
    pub(crate) value: String,
    /// How many times better, who the other is, and its figure. Nothing where a bound is the target.
    pub(crate) against: Option<(f64, String, String)>,
    /// The greater, the better, in comparison with others of the same target.
    lead: f64,
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) number: &'static str,
    /// For people.
    pub(crate) what: &'static str,
    workload: &'static str,
    /// All of the workload's if empty.
    cases: &'static [&'static str],
    keys: u64,
    /// Ours. Each of them has to reach it.
    systems: &'static [&'static str],
    /// The first one of the workload if empty.
    metric: &'static str,
    pub(crate) reach: Reach,
    /// Whether the README quotes it.
    pub(crate) in_readme: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// So many times better than the best peer of any language.
    TimesBest(f64),
    /// So many times better than the system of that name.
    Times(f64, &'static str),
    /// At most this. Compared with as many digits behind the point as it has itself.
    AtMost {
        value: f64,
        digits: usize,
        unit: &'static str,
    },
}

impl Reach {
    pub(crate) fn in_words(self) -> String {
        match self {
            Reach::TimesBest(times) => format!("{times}x the best peer"),
            Reach::Times(times, other) => format!("{times}x `{other}`"),
            Reach::AtMost {
                value,
                digits,
                unit,
            } => format!("at most {value:.digits$} {unit}"),
        }
    }
}

const BOXED: &str = "tourbillon";
const INLINE: &str = "tourbillon-map";
const BOTH: &[&str] = &[BOXED, INLINE];
const KEYLESS: &str = "tourbillon-timer";
const MIMALLOC: &str = "tourbillon+mimalloc";
/// The way that is advised for very many sleeps.
const SLEEP: &str = "tourbillon-sleep-inline";
const TOKIO_SLEEP: &str = "tokio-sleep";

/// Peers that were the best one in that workload. Without one of them a lead over the best peer is not known.
fn rivals(workload: &str) -> &'static [&'static str] {
    match workload {
        "W4i" | "W4h" => &["hash-wheel", "netty"],
        "W3" | "W8" => &["heap", "netty"],
        _ => &["heap", TOKIO_SLEEP, "netty"],
    }
}

const ONE: &[&str] = &["1 thread"];
const TWO: &[&str] = &["2 threads"];
const MILLION: u64 = 1_000_000;

const fn target(
    number: &'static str,
    what: &'static str,
    workload: &'static str,
    systems: &'static [&'static str],
    reach: Reach,
) -> Target {
    Target {
        number,
        what,
        workload,
        cases: &[],
        keys: 0,
        systems,
        metric: "",
        reach,
        in_readme: false,
    }
}

impl Target {
    const fn with(mut self, keys: u64) -> Self {
        self.keys = keys;
        self
    }

    const fn of(mut self, cases: &'static [&'static str]) -> Self {
        self.cases = cases;
        self
    }

    const fn by(mut self, metric: &'static str) -> Self {
        self.metric = metric;
        self
    }

    const fn quoted(mut self) -> Self {
        self.in_readme = true;
        self
    }
}

use Reach::{Times, TimesBest};

const fn at_most(value: f64, digits: usize, unit: &'static str) -> Reach {
    Reach::AtMost {
        value,
        digits,
        unit,
    }
}

/// In the order of the table.
pub(crate) const ALL: &[Target] = &[
    target(
        "P1",
        "W1: start and stop by handle, no others",
        "W1",
        &[KEYLESS],
        TimesBest(1.2),
    )
    .quoted(),
    target(
        "P1",
        "W1 among 1 M others",
        "W1",
        &[KEYLESS],
        TimesBest(1.2),
    )
    .with(MILLION),
    target(
        "P1",
        "W1 among 10 M others",
        "W1",
        &[KEYLESS],
        TimesBest(1.2),
    )
    .with(10 * MILLION),
    target(
        "P2",
        "W1k: start and stop by key, no others, boxed",
        "W1k",
        &[BOXED],
        TimesBest(1.5),
    )
    .quoted(),
    target(
        "P2",
        "W1k, no others, inline",
        "W1k",
        &[INLINE],
        TimesBest(1.5),
    ),
    target(
        "P3",
        "W1k among 1 M others, boxed",
        "W1k",
        &[BOXED],
        TimesBest(2.5),
    )
    .with(MILLION),
    target(
        "P3",
        "W1k: start and stop by key among 10 M others, boxed",
        "W1k",
        &[BOXED],
        TimesBest(2.5),
    )
    .with(10 * MILLION)
    .quoted(),
    target(
        "P4",
        "W2: touches of 100 k keys, 2 threads",
        "W2",
        BOTH,
        TimesBest(3.5),
    )
    .with(100_000)
    .of(TWO)
    .quoted(),
    target(
        "P5",
        "W2: touches of 1 M keys, 2 threads",
        "W2",
        BOTH,
        TimesBest(2.0),
    )
    .with(MILLION)
    .of(TWO),
    target(
        "P5",
        "W2: touches of 10 M keys, 2 threads",
        "W2",
        BOTH,
        TimesBest(1.6),
    )
    .with(10 * MILLION)
    .of(TWO)
    .quoted(),
    target(
        "P6",
        "W2: touches of 1 M keys, 1 thread",
        "W2",
        BOTH,
        TimesBest(1.6),
    )
    .with(MILLION)
    .of(ONE),
    target(
        "P6",
        "W2: touches of 10 M keys, 1 thread",
        "W2",
        BOTH,
        TimesBest(1.4),
    )
    .with(10 * MILLION)
    .of(ONE)
    .quoted(),
    target(
        "P7",
        "W3: request timeouts, boxed, 1 thread",
        "W3",
        &[BOXED],
        TimesBest(1.1),
    )
    .of(ONE)
    .quoted(),
    target(
        "P7",
        "W3: request timeouts, boxed, 2 threads",
        "W3",
        &[BOXED],
        TimesBest(1.8),
    )
    .of(TWO)
    .quoted(),
    target(
        "P8",
        "W4i: 1 M timers at one instant, map",
        "W4i",
        &[INLINE],
        TimesBest(0.6),
    )
    .quoted(),
    target(
        "P8",
        "W4i: 1 M timers at one instant, boxed",
        "W4i",
        &[BOXED],
        TimesBest(0.33),
    )
    .quoted(),
    target(
        "P8",
        "W4i, boxed with mimalloc",
        "W4i",
        &[MIMALLOC],
        TimesBest(0.5),
    ),
    target("P8", "W4h: keyless", "W4h", &[KEYLESS], TimesBest(0.33)),
    target(
        "P9",
        "S2: `touch_many` of 1,024 among 10 M, 1 thread",
        "S2",
        &[INLINE],
        Times(0.6, "bare"),
    )
    .with(10 * MILLION)
    .by("1,024 in a call"),
    target(
        "P10",
        "W8: 10 M timers go in, 1 thread",
        "W8",
        BOTH,
        TimesBest(1.8),
    )
    .with(10 * MILLION)
    .of(ONE)
    .quoted(),
    target(
        "P11",
        "W7: bytes per timer at 10 M, map",
        "W7",
        &[INLINE],
        at_most(74.0, 0, "bytes"),
    )
    .with(10 * MILLION),
    target(
        "P11",
        "W7: bytes per timer at 10 M, boxed",
        "W7",
        &[BOXED],
        at_most(94.0, 0, "bytes"),
    )
    .with(10 * MILLION),
    target(
        "P12",
        "S4: CPU of 100,000 async sleeps, runtime of one thread",
        "S4",
        &[SLEEP],
        Times(1.1, TOKIO_SLEEP),
    )
    .with(100_000)
    .of(&["runtime of 1 thread"]),
    target(
        "P12",
        "S4, runtime of two workers",
        "S4",
        &[SLEEP],
        Times(0.85, TOKIO_SLEEP),
    )
    .with(100_000)
    .of(&["runtime of 2 workers"]),
    target(
        "P13",
        "W4: p99 of 1 M timers within 2 s",
        "W4",
        BOTH,
        at_most(1.35, 2, "ms"),
    )
    .by("p99"),
    target(
        "P13",
        "W5: p99 while some tasks take 500 ms",
        "W5",
        BOTH,
        at_most(1.1, 1, "ms"),
    )
    .of(&["10,000 timers/s"])
    .by("p99"),
    target(
        "P13",
        "W9: p99.9 beside cascades of 10 M",
        "W9",
        BOTH,
        at_most(1.4, 1, "ms"),
    )
    .with(10 * MILLION)
    .by("p99.9"),
    target(
        "P13",
        "W6: wake-ups in 10 s of nothing",
        "W6",
        BOTH,
        at_most(0.0, 0, "times"),
    )
    .with(MILLION)
    .by("switches"),
];

/// Where all targets stand. Empty if the report has no figure of any, or is of a form that does less.
pub(crate) fn standings(report: &Report) -> Vec<Standing> {
    if report.form != Form::Full.name() {
        return Vec::new();
    }
    let all: Vec<Standing> = ALL.iter().map(|target| target.standing(report)).collect();
    let is_measured = |standing: &Standing| standing.verdict != Verdict::NotMeasured;
    if all.iter().any(is_measured) {
        all
    } else {
        Vec::new()
    }
}

impl Standing {
    /// The figure, and what it is compared with.
    pub(crate) fn today(&self) -> String {
        let mut words = Vec::new();
        // With one thing to look at, the target says what it is.
        let several = self.found.len() > 1;
        for found in &self.found {
            let mut text = String::new();
            if several {
                let cases = self.found.iter().any(|other| other.case != found.case);
                let case = if cases {
                    format!(", {}", found.case)
                } else {
                    String::new()
                };
                text += &format!("{}{case}: ", found.system);
            }
            match &found.against {
                Some((times, other, value)) => {
                    text += &format!("{times:.2}x: {}, {other} {value}", found.value);
                }
                None => text += &found.value,
            }
            words.push(text);
        }
        words.extend(self.why.clone());
        words.join("; ")
    }
}

/// Why nothing can be said of a target.
enum Trouble {
    Missing(String),
    NeverNear(String),
}

/// The rounds of a figure that count.
fn judged(figure: &Figure) -> Result<View<'_>, Trouble> {
    figure
        .judged()
        .ok_or_else(|| Trouble::NeverNear(format!("{} was never near", figure.system)))
}

impl Target {
    fn standing(&'static self, report: &Report) -> Standing {
        let of = |verdict, found, why| Standing {
            target: self,
            verdict,
            found,
            why,
        };
        let mut found = match self.found(report) {
            Ok(found) => found,
            Err(Trouble::Missing(why)) => {
                return of(Verdict::NotMeasured, Vec::new(), Some(why));
            }
            Err(Trouble::NeverNear(why)) => return of(Verdict::NotJudged, Vec::new(), Some(why)),
        };
        found.sort_by(|one, other| one.lead.total_cmp(&other.lead));
        let lead = found.first().map_or(f64::NAN, |worst| worst.lead);
        let met = match self.reach {
            TimesBest(times) | Times(times, _) => lead >= times,
            Reach::AtMost { value, digits, .. } => rounded(-lead, digits) <= value,
        };
        let verdict = if met { Verdict::Met } else { Verdict::Missed };
        of(verdict, found, None)
    }

    /// One for each case and each of ours.
    fn found(&self, report: &Report) -> Result<Vec<Found>, Trouble> {
        let figures = || report.figures.iter().filter(|figure| self.is_at(figure));
        let mut cases: Vec<&str> = self.cases.to_vec();
        if cases.is_empty() {
            for figure in figures() {
                if !cases.contains(&&*figure.case) {
                    cases.push(&figure.case);
                }
            }
        }
        let mut all = Vec::new();
        for case in &cases {
            for system in self.systems {
                let ours = figures()
                    .find(|figure| figure.case == *case && figure.system == *system)
                    .ok_or_else(|| Trouble::Missing(format!("without {system}, {case}")))?;
                all.push(self.compared(report, ours)?);
            }
        }
        if all.is_empty() {
            return Err(Trouble::Missing(format!("{} was not run", self.workload)));
        }
        Ok(all)
    }

    fn is_at(&self, figure: &Figure) -> bool {
        figure.workload == self.workload && figure.keys == self.keys
    }

    fn compared(&self, report: &Report, figure: &Figure) -> Result<Found, Trouble> {
        let none = || Trouble::Missing(format!("{} has no such figure", figure.system));
        let ours = judged(figure)?;
        let metric = match self.metric {
            "" => 0,
            name => ours
                .metrics
                .iter()
                .position(|metric| metric.name == name)
                .ok_or_else(none)?,
        };
        let shown = |view: View<'_>| {
            let spread = view.spread(metric)?;
            let value = digits(spread.typical);
            Some(format!("{value} {}", view.metrics[metric].unit))
        };
        let value = ours.spread(metric).ok_or_else(none)?.typical;
        let against = match self.reach {
            Reach::AtMost { .. } => None,
            Times(_, other) => Some(self.over(report, ours, metric, |peer| peer.system == other)?),
            TimesBest(_) => {
                let best = self.over(report, ours, metric, Figure::is_peer)?;
                for rival in rivals(self.workload) {
                    let has = |peer: &&Figure| peer.system == *rival;
                    if !self.others(report, ours).any(|peer| has(&peer)) {
                        return Err(Trouble::Missing(format!("without {rival}")));
                    }
                }
                Some(best)
            }
        };
        let lead = against.map_or(-value, |(times, _)| times);
        let against =
            against.and_then(|(times, peer)| Some((times, peer.system().to_owned(), shown(peer)?)));
        Ok(Found {
            system: figure.system.clone(),
            case: figure.case.clone(),
            value: shown(ours).ok_or_else(none)?,
            against,
            lead,
        })
    }

    /// Figures of the same work. Timers of one instant are compared with those by key, too, since no driver
    /// has them by handle.
    fn others<'a>(
        &self,
        report: &'a Report,
        ours: View<'a>,
    ) -> impl Iterator<Item = &'a Figure> + use<'a> {
        let by_key = match self.workload {
            "W4h" => "W4i",
            same => same,
        };
        let workload = self.workload;
        report.figures.iter().filter(move |figure| {
            (figure.workload == workload || figure.workload == by_key)
                && figure.case == ours.case
                && figure.keys == ours.keys
        })
    }

    /// How many times better than the best of the chosen others, and which that is.
    fn over<'a>(
        &self,
        report: &'a Report,
        ours: View<'a>,
        metric: usize,
        chosen: impl Fn(&Figure) -> bool,
    ) -> Result<(f64, View<'a>), Trouble> {
        let mut best: Option<(f64, View<'_>)> = None;
        for figure in self.others(report, ours).filter(|figure| chosen(figure)) {
            let peer = judged(figure)?;
            let Some(times) = ours.over(peer, metric) else {
                continue;
            };
            if best.is_none_or(|(least, _)| times < least) {
                best = Some((times, peer));
            }
        }
        best.ok_or_else(|| Trouble::Missing("without the other".to_owned()))
    }
}

fn rounded(value: f64, digits: usize) -> f64 {
    let factor = 10_f64.powi(digits as i32);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::report::tests::{figure, in_modes, report};
    use crate::workloads;

    fn standing(figures: Vec<Figure>, what: &str) -> Standing {
        let report = report(figures);
        let target = ALL.iter().find(|target| target.what == what);
        let target = target.unwrap_or_else(|| panic!("no target {what}"));
        target.standing(&report)
    }

    const TIMEOUTS: &str = "W3: request timeouts, boxed, 1 thread";
    const TIMEOUTS_OF_TWO: &str = "W3: request timeouts, boxed, 2 threads";

    fn timeouts(peers: &[(&str, f64)]) -> Vec<Figure> {
        let mut figures: Vec<Figure> = peers
            .iter()
            .map(|(system, value)| figure("W3", system, *value))
            .collect();
        for figure in &mut figures {
            figure.keys = 0;
        }
        figures
    }

    const PEERS: [(&str, f64); 3] = [(BOXED, 11.0), ("heap", 10.0), ("netty", 2.0)];

    #[test]
    fn a_target_is_met_against_the_best_of_the_peers() {
        let met = standing(timeouts(&PEERS), TIMEOUTS);
        assert_eq!(met.verdict, Verdict::Met);
        assert_eq!(met.today(), "1.10x: 11.0 Mops/s, heap 10.0 Mops/s");
        let mut behind = timeouts(&PEERS);
        behind.extend(timeouts(&[("go", 22.0)]));
        let behind = standing(behind, TIMEOUTS);
        assert_eq!(behind.verdict, Verdict::Missed);
        assert_eq!(behind.today(), "0.50x: 11.0 Mops/s, go 22.0 Mops/s");
    }

    #[test]
    fn without_a_rival_nothing_is_measured() {
        for (missing, _) in PEERS {
            let mut figures = timeouts(&PEERS);
            figures.retain(|figure| figure.system != missing);
            let standing = standing(figures, TIMEOUTS);
            assert_eq!(standing.verdict, Verdict::NotMeasured, "{missing}");
            assert!(standing.today().contains(missing), "{}", standing.today());
        }
    }

    #[test]
    fn a_floor_is_no_peer() {
        let mut figures = Vec::new();
        for (system, value) in [
            (BOXED, 8.0),
            (INLINE, 8.0),
            ("heap", 5.0),
            (TOKIO_SLEEP, 1.0),
            ("netty", 2.0),
            ("bare", 100.0),
        ] {
            let mut touches = figure("W2", system, value);
            touches.keys = MILLION;
            figures.push(touches);
        }
        let standing = standing(figures, "W2: touches of 1 M keys, 1 thread");
        assert_eq!(standing.verdict, Verdict::Met);
        assert!(
            standing.today().contains("1.60x: 8.00 Mops/s, heap"),
            "{}",
            standing.today()
        );
    }

    #[test]
    fn all_of_ours_have_to_reach_a_target_and_the_worst_stands_first() {
        let of = |system: &str, value| {
            let mut figure = figure("W9", system, value);
            figure.keys = 10 * MILLION;
            figure
        };
        let what = "W9: p99.9 beside cascades of 10 M";
        let both = |boxed, inline| {
            let figures = vec![of(BOXED, boxed), of(INLINE, inline), of("heap", 0.1)];
            standing(figures, what)
        };
        // As many digits as the target has.
        assert_eq!(both(1.0, 1.44).verdict, Verdict::Met);
        assert_eq!(both(1.46, 1.0).verdict, Verdict::Missed);
        let missed = both(1.0, 2.0);
        assert_eq!(missed.verdict, Verdict::Missed);
        assert_eq!(
            missed.today(),
            "tourbillon-map: 2.00 ms; tourbillon: 1.00 ms"
        );
        let one = standing(vec![of(BOXED, 1.0)], what);
        assert_eq!(one.verdict, Verdict::NotMeasured);
    }

    #[test]
    fn two_threads_are_judged_in_the_near_mode_only() {
        let (near, far) = (Mode::Near, Mode::Far);
        let with = |ours: &[(Mode, f64)]| {
            let mut figures = Vec::new();
            for (system, rounds) in [
                (BOXED, ours),
                ("heap", &[(far, 90.0), (near, 10.0)][..]),
                (TOKIO_SLEEP, &[(near, 1.0)]),
                ("netty", &[(near, 1.0)]),
            ] {
                let mut figure = in_modes("W3", system, rounds);
                figure.keys = 0;
                figures.push(figure);
            }
            standing(figures, TIMEOUTS_OF_TWO)
        };
        // Far, the heap is fast and ours is slow; neither counts.
        assert_eq!(with(&[(near, 18.0), (far, 1.0)]).verdict, Verdict::Met);
        assert_eq!(with(&[(near, 17.9), (far, 900.0)]).verdict, Verdict::Missed);
        let never = with(&[(far, 900.0)]);
        assert_eq!(never.verdict, Verdict::NotJudged);
        assert_eq!(never.today(), "tourbillon was never near");
    }

    #[test]
    fn many_in_a_call_are_compared_with_one_lock_over_a_map() {
        let of = |system: &str, many| {
            let mut figure = figure("S2", system, 50.0);
            figure.keys = 10 * MILLION;
            figure.rounds[0].figures[2] = Some(many);
            figure
        };
        let what = "S2: `touch_many` of 1,024 among 10 M, 1 thread";
        let at = |many| standing(vec![of(INLINE, many), of("bare", 20.0)], what);
        assert_eq!(at(12.0).verdict, Verdict::Met);
        assert_eq!(at(11.9).verdict, Verdict::Missed);
        assert_eq!(at(10.0).today(), "0.50x: 10.0 M keys/s, bare 20.0 M keys/s");
    }

    #[test]
    fn keyless_timers_of_one_instant_are_compared_with_peers_by_key_too() {
        let mut figures = vec![figure("W4h", KEYLESS, 100.0), figure("W4h", "heap", 90.0)];
        for (system, ms) in [("hash-wheel", 80.0), ("netty", 40.0)] {
            figures.push(figure("W4i", system, ms));
        }
        for figure in &mut figures {
            figure.keys = 0;
        }
        let standing = standing(figures, "W4h: keyless");
        assert_eq!(standing.verdict, Verdict::Met);
        let today = "0.40x: 100 ms after it, netty 40.0 ms after it";
        assert_eq!(standing.today(), today);
    }

    #[test]
    fn every_target_is_of_a_workload_with_that_case_and_metric() {
        for target in ALL {
            let workload = workloads::find(target.workload).expect(target.what);
            assert!(
                target.metric.is_empty()
                    || workload
                        .metrics
                        .iter()
                        .any(|metric| metric.name == target.metric),
                "{}",
                target.what
            );
            for case in target.cases {
                assert!(
                    workload.cases.iter().any(|other| other.name == *case),
                    "{}",
                    target.what
                );
            }
            let sizes = workload.keys_in(Form::Full);
            assert!(sizes.contains(&target.keys), "{}", target.what);
        }
        let mut numbers: Vec<&str> = ALL.iter().map(|target| target.number).collect();
        numbers.dedup();
        let all: Vec<String> = (1..=13).map(|number| format!("P{number}")).collect();
        assert_eq!(numbers, all, "in order");
    }

    #[test]
    fn a_report_of_less_has_no_table() {
        let mut quick = report(timeouts(&PEERS));
        assert_eq!(standings(&quick).len(), ALL.len());
        quick.form = "quick".to_owned();
        assert!(standings(&quick).is_empty());
        let other = report(vec![figure("churn", BOXED, 1.0)]);
        assert!(standings(&other).is_empty());
    }
}
