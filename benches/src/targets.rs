//! What the engine is held to, P1 to P12, and what maps of sessions and sleeps are held to, S-P1 to
//! S-P4; and what a report says of each.

use crate::report::{Figure, Report};
use crate::view::View;
use crate::workloads::{Form, NONE_IS_LONG};

/// A target and where it stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) number: &'static str,
    pub(crate) to_reach: &'static str,
    pub(crate) today: String,
    pub(crate) verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// The machine was never in the mode that counts.
    NotJudged,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verdict::Reached => "reached",
            Verdict::Missed => "**missed**",
            Verdict::NotJudged => "**not judged**",
        }
    }
}

/// Why there is nothing to say of a target.
#[derive(Debug, PartialEq, Eq)]
enum Missing {
    NotRun,
    /// It was run, but never in the near mode. Which point that is.
    NeverNear(String),
}

/// What is said of a target, and whether it is reached.
type Found = Result<(String, bool), Missing>;

/// Which have to be in a point to be compared with.
const PEERS: usize = 4;

const BOXED: &str = "tourbillon";
const INLINE: &str = "tourbillon-map";
const KEYLESS: &str = "tourbillon-timer";
const TOKIO_SLEEP: &str = "tokio-sleep";
/// What is told to take for very many of them.
const SLEEP: &str = "tourbillon-sleep-inline";

/// Those of which the report has the figures: what the peers are must have been run, and in the full
/// form, since the others do less.
pub(crate) fn standings(report: &Report) -> Vec<Standing> {
    if report.form != Form::Full.name() {
        return Vec::new();
    }
    let look = Look(report);
    let of = |number, to_reach, found: Found| {
        let (today, verdict) = match found {
            Ok((today, true)) => (today, Verdict::Reached),
            Ok((today, false)) => (today, Verdict::Missed),
            Err(Missing::NeverNear(point)) => {
                let today = format!("{point}: the machine was never in the near mode");
                (today, Verdict::NotJudged)
            }
            Err(Missing::NotRun) => return None,
        };
        Some(Standing {
            number,
            to_reach,
            today,
            verdict,
        })
    };
    [
        of(
            "P1",
            "W2, 2 threads: 4x the best peer at 10 M keys, 4x DelayQueue at 100 k",
            look.touch(),
        ),
        of(
            "P2",
            "W1k: ahead of all at every N, 2.5x when the new timer may be the earliest",
            look.start_stop_keyed(),
        ),
        of(
            "P3",
            "W1: ahead of all, and 10 M at most twice N = 0",
            look.start_stop_keyless(),
        ),
        of(
            "P4",
            "W3, 2 threads: boxed 1.5x, inline 2x the best peer, memory flat (below 16 MB)",
            look.timeouts(),
        ),
        of(
            "P5",
            "W7 at 10 M: 80 bytes inline (boxed: stated)",
            look.memory(),
        ),
        of(
            "P6",
            "W4i: the last of 1 M ran within 80 ms inline, 150 ms boxed",
            look.instant(),
        ),
        of(
            "P7",
            "W4: p99 within 2 ms (CPU stated)",
            look.each("W4", "p99", 2.0, Some("CPU")),
        ),
        of(
            "P8",
            "W5: p99 within 2.5 ms, none beyond 10 ms",
            look.long_tasks(),
        ),
        of(
            "P9",
            "W6: no CPU time (below 0.5 ms), at most 5 switches in 10 s",
            look.idle(),
        ),
        of(
            "P10",
            "W8: longest call below 5 ms while 10 M keys go in",
            look.each("W8", "longest call", 5.0, None),
        ),
        of(
            "P11",
            "W9: p99.9 within 5 ms",
            look.each("W9", "p99.9", 5.0, None),
        ),
        of(
            "P12",
            "churn: after 50 touches as after one (within 2 %)",
            look.churn(),
        ),
        of(
            "S-P1",
            "S1, 2 threads, 10 M: 3x the best peer",
            look.session_touch(),
        ),
        of(
            "S-P2",
            "S2 at 10 M, 256 in a call: 1.5x one by one",
            look.session_touch_many(),
        ),
        of(
            "S-P3",
            "S3: 80 bytes, at 1 M and at 10 M",
            look.session_memory(),
        ),
        of(
            "S-P4",
            "S4: inline at most the CPU time of tokio's own sleep, on both runtimes (by workers: stated)",
            look.sleeps(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

struct Look<'a>(&'a Report);

/// A figure that is missing was not run.
fn run<T>(found: Option<T>) -> Result<T, Missing> {
    found.ok_or(Missing::NotRun)
}

/// The rounds of a figure that count, if there are any.
fn judged(figure: &Figure) -> Result<View<'_>, Missing> {
    let never = || {
        let Figure {
            workload,
            case,
            system,
            ..
        } = figure;
        Missing::NeverNear(format!("{workload}, {case}, {}, {system}", figure.size()))
    };
    figure.judged().ok_or_else(never)
}

/// The first metric.
fn typical(view: View<'_>) -> Result<f64, Missing> {
    Ok(run(view.spread(0))?.typical)
}

impl Look<'_> {
    /// The rounds that count of ours, in all cases of a workload.
    fn ours(&self, workload: &str) -> Result<Vec<View<'_>>, Missing> {
        let figures = self.0.figures.iter();
        let figures = figures.filter(|figure| figure.workload == workload && figure.is_ours());
        figures.map(judged).collect()
    }

    /// The rounds that count of each system at a point: those in the near mode with several threads.
    fn views(
        &self,
        workload: &str,
        case: &str,
        keys: Option<u64>,
    ) -> Result<Vec<View<'_>>, Missing> {
        let figures = self.0.figures.iter().filter(|figure| {
            figure.workload == workload
                && figure.case == case
                && keys.is_none_or(|keys| figure.keys == keys)
        });
        figures.map(judged).collect()
    }

    fn one(
        &self,
        workload: &str,
        case: &str,
        keys: u64,
        system: &str,
    ) -> Result<View<'_>, Missing> {
        let views = self.views(workload, case, Some(keys))?;
        let mut views = views.into_iter();
        views
            .find(|view| view.system == system)
            .ok_or(Missing::NotRun)
    }

    /// How many times better than the best of the others `ours` is, and who that is.
    fn over_best(&self, ours: View<'_>, metric: usize) -> Result<(f64, &str), Missing> {
        let mut peers = self.views(&ours.workload, &ours.case, Some(ours.keys))?;
        peers.retain(|peer| peer.is_peer());
        if peers.len() < PEERS {
            return Err(Missing::NotRun);
        }
        peers
            .into_iter()
            .filter_map(|peer| Some((ours.over(peer, metric)?, peer.system())))
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
            .ok_or(Missing::NotRun)
    }

    fn touch(&self) -> Found {
        let case = "2 threads";
        let large = self.one("W2", case, 10_000_000, BOXED)?;
        let small = self.one("W2", case, 100_000, BOXED)?;
        let (over, peer) = self.over_best(large, 0)?;
        let queue = self.one("W2", case, 100_000, "DelayQueue")?;
        let over_queue = run(small.over(queue, 0))?;
        let at_large = large.over(self.one("W2", case, 10_000_000, "DelayQueue")?, 0);
        let at_large = run(at_large)?;
        Ok((
            format!(
                "{over:.2}x {peer} and {at_large:.2}x DelayQueue at 10 M; {over_queue:.2}x DelayQueue at 100 k"
            ),
            over >= 4.0 && over_queue >= 4.0,
        ))
    }

    /// The least lead over all sizes, as (times, where).
    fn least_lead(
        &self,
        workload: &str,
        case: &str,
        system: &str,
    ) -> Result<(f64, String), Missing> {
        let mut least: Option<(f64, String)> = None;
        for ours in self.views(workload, case, None)? {
            if ours.system() != system {
                continue;
            }
            let (over, peer) = self.over_best(ours, 0)?;
            if least.as_ref().is_none_or(|(least, _)| over < *least) {
                least = Some((over, format!("{over:.2}x {peer} at {}", ours.size())));
            }
        }
        run(least)
    }

    fn start_stop_keyed(&self) -> Found {
        let mut words = Vec::new();
        let mut reached = true;
        for (system, name) in [(BOXED, "boxed"), (INLINE, "inline")] {
            let (earliest, at) = self.least_lead("W1k", "1 ms - 60 s", system)?;
            let (never, at_never) = self.least_lead("W1k", "never the earliest", system)?;
            words.push(format!(
                "{name}: at least {at}; never the earliest {at_never}"
            ));
            reached &= earliest >= 2.5 && never >= 1.0;
        }
        Ok((words.join(". "), reached))
    }

    fn start_stop_keyless(&self) -> Found {
        let mut words = Vec::new();
        let mut reached = true;
        for case in ["1 ms - 60 s", "never the earliest"] {
            let (lead, at) = self.least_lead("W1", case, KEYLESS)?;
            let none = typical(self.one("W1", case, 0, KEYLESS)?)?;
            let many = typical(self.one("W1", case, 10_000_000, KEYLESS)?)?;
            words.push(format!(
                "{case}: at least {at}, 10 M {:.2} times N = 0",
                many / none
            ));
            reached &= lead >= 1.0 && many <= 2.0 * none;
        }
        Ok((words.join(". "), reached))
    }

    fn timeouts(&self) -> Found {
        let mut words = Vec::new();
        let mut reached = true;
        for (system, name, least) in [(BOXED, "boxed", 1.5), (INLINE, "inline", 2.0)] {
            let ours = self.one("W3", "2 threads", 0, system)?;
            let (over, peer) = self.over_best(ours, 0)?;
            let memory = run(ours.spread(1))?;
            words.push(format!(
                "{name} {over:.2}x {peer}, {:.1} MB after the run",
                memory.typical
            ));
            // Two thousand timers are pending at a time.
            reached &= over >= least && memory.max < 16.0;
        }
        Ok((words.join("; "), reached))
    }

    fn memory(&self) -> Found {
        let case = "60 - 120 min out";
        let of = |system| typical(self.one("W7", case, 10_000_000, system)?);
        let (inline, boxed) = (of(INLINE)?, of(BOXED)?);
        Ok((
            format!("{inline:.1} bytes inline, {boxed:.1} boxed"),
            inline <= 80.0,
        ))
    }

    fn instant(&self) -> Found {
        let of = |system| typical(self.one("W4i", "one instant", 0, system)?);
        let (inline, boxed) = (of(INLINE)?, of(BOXED)?);
        Ok((
            format!("{inline:.0} ms inline, {boxed:.0} ms boxed"),
            inline <= 80.0 && boxed <= 150.0,
        ))
    }

    /// One metric of every point of a workload, for both faces, against a bound.
    fn each(&self, workload: &str, metric: &str, bound: f64, beside: Option<&str>) -> Found {
        let mut words = Vec::new();
        let mut reached = true;
        for figure in self.ours(workload)? {
            // What its figures are compared with is no target.
            if figure.case == NONE_IS_LONG {
                continue;
            }
            let found = run(figure.named(metric))?;
            let mut text = format!(
                "{}, {}: {:.2} {}",
                figure.system, figure.case, found.0.typical, found.1
            );
            if let Some((spread, unit)) = beside.and_then(|beside| figure.named(beside)) {
                text += &format!(", {:.2} {unit}", spread.typical);
            }
            words.push(text);
            reached &= found.0.typical <= bound;
        }
        run((!words.is_empty()).then(|| (words.join("; "), reached)))
    }

    fn long_tasks(&self) -> Found {
        let (p99, within) = self.each("W5", "p99", 2.5, None)?;
        let (max, none_beyond) = self.each("W5", "max", 10.0, None)?;
        Ok((format!("p99 {p99}. Max {max}"), within && none_beyond))
    }

    fn idle(&self) -> Found {
        let (cpu, none) = self.each("W6", "CPU", 0.5, None)?;
        let (switches, few) = self.each("W6", "switches", 5.0, None)?;
        Ok((format!("{cpu}. {switches}"), none && few))
    }

    fn churn(&self) -> Found {
        let mut words = Vec::new();
        let mut reached = true;
        for figure in self.ours("churn")? {
            let one = run(figure.named("after 1 touch"))?.0.typical;
            let all = run(figure.named("after all"))?.0.typical;
            words.push(format!("{}: {one:.0} and {all:.0} bytes", figure.system));
            // A page or two may come and go.
            reached &= all <= one * 1.02;
        }
        run((!words.is_empty()).then(|| (words.join("; "), reached)))
    }

    fn session_touch(&self) -> Found {
        let ours = self.one("S1", "2 threads", 10_000_000, INLINE)?;
        let (over, peer) = self.over_best(ours, 0)?;
        let moka = run(ours.over(self.one("S1", "2 threads", 10_000_000, "moka")?, 0))?;
        let today = format!("{over:.2}x {peer}, {moka:.2}x moka");
        Ok((today, over >= 3.0))
    }

    fn session_touch_many(&self) -> Found {
        let ours = self.one("S2", "1 thread", 10_000_000, INLINE)?;
        let single = run(ours.named("one by one"))?.0.typical;
        let over = |metric| Ok(run(ours.named(metric))?.0.typical / single);
        let least = over("256 in a call")?;
        let today = format!(
            "{least:.2}x; 1,024 in a call {:.2}x, 4,096 {:.2}x",
            over("1,024 in a call")?,
            over("4,096 in a call")?
        );
        Ok((today, least >= 1.5))
    }

    fn session_memory(&self) -> Found {
        let of = |keys| {
            let ours = self.one("S3", "30 min to idle", keys, INLINE)?;
            typical(ours)
        };
        let (million, ten) = (of(1_000_000)?, of(10_000_000)?);
        Ok((
            format!("{million:.1} bytes at 1 M, {ten:.1} at 10 M"),
            million <= 80.0 && ten <= 80.0,
        ))
    }

    fn sleeps(&self) -> Found {
        let mut words = Vec::new();
        let mut reached = self.0.figures.iter().any(|figure| figure.system == SLEEP);
        for ours in self.ours("S4")? {
            let tokio = self.one("S4", &ours.case, ours.keys, TOKIO_SLEEP)?;
            let (cpu, of_tokio) = (typical(ours)?, typical(tokio)?);
            words.push(format!(
                "{}, {}: {cpu:.0} ms, tokio {of_tokio:.0} ms",
                ours.system, ours.case
            ));
            reached &= ours.system != SLEEP || cpu <= of_tokio;
        }
        run((!words.is_empty()).then(|| (words.join("; "), reached)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::Mode;
    use crate::report::tests::{figure, in_modes, report};

    fn standing(figures: Vec<Figure>, number: &str) -> Option<Standing> {
        standings(&report(figures))
            .into_iter()
            .find(|standing| standing.number == number)
    }

    fn touches(system: &str, keys: u64, value: f64) -> Figure {
        let mut figure = figure("W2", system, value);
        figure.case = "2 threads".to_owned();
        figure.keys = keys;
        figure
    }

    #[test]
    fn a_target_is_reached_against_the_best_of_the_peers_only() {
        let at = |heap| {
            let mut figures = Vec::new();
            for keys in [100_000, 10_000_000] {
                figures.push(touches(BOXED, keys, 8.0));
                figures.push(touches("DelayQueue", keys, 1.0));
            }
            figures.push(touches("heap", 10_000_000, heap));
            figures.push(touches("one", 10_000_000, 0.5));
            figures.push(touches("other", 10_000_000, 0.5));
            standing(figures, "P1").expect("all of its figures are there")
        };
        assert_eq!(at(2.0).verdict, Verdict::Reached);
        let behind = at(4.0);
        assert_eq!(behind.verdict, Verdict::Missed);
        assert!(behind.today.contains("2.00x heap"), "{}", behind.today);
        assert!(standing(vec![touches(BOXED, 100_000, 8.0)], "P1").is_none());
        let mut quick = report(vec![touches("heap", 10_000_000, 1.0)]);
        quick.form = "quick".to_owned();
        assert!(standings(&quick).is_empty(), "less was done");
    }

    #[test]
    fn a_point_with_two_threads_is_judged_in_the_near_mode() {
        let (near, far) = (Mode::Near, Mode::Far);
        let with = |ours: &[(Mode, f64)]| {
            let mut figures = Vec::new();
            for keys in [100_000, 10_000_000] {
                for (system, rounds) in [
                    (BOXED, ours),
                    ("DelayQueue", &[(near, 2.0), (far, 1.0), (far, 1.0)][..]),
                    ("heap", &[(far, 9.0), (near, 1.0)]),
                    ("one", &[(near, 1.0)]),
                    ("other", &[(near, 1.0)]),
                ] {
                    let mut figure = in_modes("W2", system, rounds);
                    figure.keys = keys;
                    figures.push(figure);
                }
            }
            standing(figures, "P1").expect("all of its figures are there")
        };
        // Far, ours is slow and the heap is fast; neither counts.
        assert_eq!(with(&[(near, 8.0), (far, 1.0)]).verdict, Verdict::Reached);
        assert_eq!(with(&[(near, 7.9), (far, 90.0)]).verdict, Verdict::Missed);
        let never = with(&[(far, 90.0)]);
        assert_eq!(never.verdict, Verdict::NotJudged);
        assert!(
            never.today.contains("W2, 2 threads, 10 M, tourbillon:"),
            "{}",
            never.today
        );
    }

    #[test]
    fn a_floor_is_no_peer() {
        let with = |system| {
            let mut figures = Vec::new();
            for keys in [100_000, 10_000_000] {
                figures.push(touches(BOXED, keys, 8.0));
                figures.push(touches("DelayQueue", keys, 1.0));
            }
            for (peer, value) in [("heap", 2.0), ("tokio-sleep", 1.0), (system, 100.0)] {
                figures.push(touches(peer, 10_000_000, value));
            }
            figures
        };
        let mut figures = with("bare");
        assert!(
            standing(with("bare-instant"), "P1").is_none(),
            "three peers are too few"
        );
        figures.push(touches("moka", 10_000_000, 0.5));
        let standing = standing(figures, "P1").expect("four peers");
        assert!(
            standing.verdict == Verdict::Reached && standing.today.contains("4.00x heap"),
            "{}",
            standing.today
        );
    }

    #[test]
    fn many_in_a_call_are_compared_with_one_by_one() {
        let at = |many| {
            let mut figure = figure("S2", INLINE, 2.0);
            figure.keys = 10_000_000;
            figure.rounds[0].figures = [2.0, many, 5.0, 6.0].map(Some).to_vec();
            standing(vec![figure], "S-P2").expect("it is measured")
        };
        assert_eq!(at(3.0).verdict, Verdict::Reached);
        assert_eq!(at(2.9).verdict, Verdict::Missed);
        assert_eq!(at(3.0).today, "1.50x; 1,024 in a call 2.50x, 4,096 3.00x");
    }

    #[test]
    fn sleeps_are_held_to_those_of_tokio_on_each_runtime() {
        let both = |system, one, two| {
            let mut figures = [figure("S4", system, one), figure("S4", system, two)];
            figures[1].case = "runtime of 2 workers".to_owned();
            figures
        };
        let with = |one, two| {
            let figures = [
                both(SLEEP, one, two),
                both("tourbillon-sleep", 5.0, 5.0),
                both(TOKIO_SLEEP, 2.0, 4.0),
            ];
            let standing = standing(figures.into_iter().flatten().collect(), "S-P4");
            standing.expect("both are there").verdict == Verdict::Reached
        };
        assert!(with(2.0, 4.0) && !with(2.1, 3.0) && !with(1.0, 4.1));
    }

    #[test]
    fn a_bound_holds_for_both_faces() {
        let of = |system: &str, value| {
            let mut figure = figure("W9", system, value);
            figure.keys = 10_000_000;
            figure
        };
        let both = |boxed, inline| {
            let figures = vec![of(BOXED, boxed), of(INLINE, inline), of("heap", 90.0)];
            let standing = standing(figures, "P11").expect("it is measured");
            standing.verdict == Verdict::Reached
        };
        assert!(both(4.0, 5.0));
        assert!(!both(4.0, 6.0) && !both(6.0, 4.0));
    }
}
