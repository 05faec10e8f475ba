//! What the engine is held to, P1 to P12, and what maps of sessions and sleeps are held to, S-P1 to
//! S-P4; and what a report says of each.

use crate::report::{Figure, Report};
use crate::workloads::Form;

/// A target and where it stands.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) number: &'static str,
    pub(crate) to_reach: &'static str,
    pub(crate) today: String,
    pub(crate) reached: bool,
}

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
    let of = |number, to_reach, found: Option<(String, bool)>| {
        found.map(|(today, reached)| Standing {
            number,
            to_reach,
            today,
            reached,
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

impl Look<'_> {
    fn figures(&self, workload: &str, case: &str) -> impl Iterator<Item = &Figure> {
        self.0
            .figures
            .iter()
            .filter(move |figure| figure.workload == workload && figure.case == case)
    }

    fn one(&self, workload: &str, case: &str, keys: u64, system: &str) -> Option<&Figure> {
        self.figures(workload, case)
            .find(|figure| figure.keys == keys && figure.system == system)
    }

    /// How many times better than the best of the others `ours` is, and who that is.
    fn over_best<'s>(&'s self, ours: &'s Figure, metric: usize) -> Option<(f64, &'s str)> {
        let peers: Vec<&Figure> = self
            .figures(&ours.workload, &ours.case)
            .filter(|figure| figure.keys == ours.keys && figure.is_peer())
            .collect();
        if peers.len() < PEERS {
            return None;
        }
        peers
            .into_iter()
            .filter_map(|peer| Some((ours.over(peer, metric)?, &*peer.system)))
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
    }

    fn touch(&self) -> Option<(String, bool)> {
        let case = "2 threads";
        let large = self.one("W2", case, 10_000_000, BOXED)?;
        let small = self.one("W2", case, 100_000, BOXED)?;
        let (over, peer) = self.over_best(large, 0)?;
        let queue = self.one("W2", case, 100_000, "DelayQueue")?;
        let over_queue = small.over(queue, 0)?;
        let at_large = large.over(self.one("W2", case, 10_000_000, "DelayQueue")?, 0)?;
        Some((
            format!(
                "{over:.2}x {peer} and {at_large:.2}x DelayQueue at 10 M; {over_queue:.2}x DelayQueue at 100 k"
            ),
            over >= 4.0 && over_queue >= 4.0,
        ))
    }

    /// The least lead over all sizes, as (times, where).
    fn least_lead(&self, workload: &str, case: &str, system: &str) -> Option<(f64, String)> {
        self.figures(workload, case)
            .filter(|figure| figure.system == system)
            .filter_map(|ours| {
                let (over, peer) = self.over_best(ours, 0)?;
                Some((over, format!("{over:.2}x {peer} at {}", ours.size())))
            })
            .min_by(|(one, _), (other, _)| one.total_cmp(other))
    }

    fn start_stop_keyed(&self) -> Option<(String, bool)> {
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
        Some((words.join(". "), reached))
    }

    fn start_stop_keyless(&self) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut reached = true;
        for case in ["1 ms - 60 s", "never the earliest"] {
            let (lead, at) = self.least_lead("W1", case, KEYLESS)?;
            let none = self.one("W1", case, 0, KEYLESS)?.spread(0)?.typical;
            let many = self
                .one("W1", case, 10_000_000, KEYLESS)?
                .spread(0)?
                .typical;
            words.push(format!(
                "{case}: at least {at}, 10 M {:.2} times N = 0",
                many / none
            ));
            reached &= lead >= 1.0 && many <= 2.0 * none;
        }
        Some((words.join(". "), reached))
    }

    fn timeouts(&self) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut reached = true;
        for (system, name, least) in [(BOXED, "boxed", 1.5), (INLINE, "inline", 2.0)] {
            let ours = self.one("W3", "2 threads", 0, system)?;
            let (over, peer) = self.over_best(ours, 0)?;
            let memory = ours.spread(1)?;
            words.push(format!(
                "{name} {over:.2}x {peer}, {:.1} MB after the run",
                memory.typical
            ));
            // Two thousand timers are pending at a time.
            reached &= over >= least && memory.max < 16.0;
        }
        Some((words.join("; "), reached))
    }

    fn memory(&self) -> Option<(String, bool)> {
        let case = "60 - 120 min out";
        let of = |system| Some(self.one("W7", case, 10_000_000, system)?.spread(0)?.typical);
        let (inline, boxed) = (of(INLINE)?, of(BOXED)?);
        Some((
            format!("{inline:.1} bytes inline, {boxed:.1} boxed"),
            inline <= 80.0,
        ))
    }

    fn instant(&self) -> Option<(String, bool)> {
        let of = |system| {
            Some(
                self.one("W4i", "one instant", 0, system)?
                    .spread(0)?
                    .typical,
            )
        };
        let (inline, boxed) = (of(INLINE)?, of(BOXED)?);
        Some((
            format!("{inline:.0} ms inline, {boxed:.0} ms boxed"),
            inline <= 80.0 && boxed <= 150.0,
        ))
    }

    /// One metric of every point of a workload, for both faces, against a bound.
    fn each(
        &self,
        workload: &str,
        metric: &str,
        bound: f64,
        beside: Option<&str>,
    ) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut reached = true;
        for figure in &self.0.figures {
            if figure.workload != workload || !figure.is_ours() {
                continue;
            }
            let found = figure.named(metric)?;
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
        (!words.is_empty()).then(|| (words.join("; "), reached))
    }

    fn long_tasks(&self) -> Option<(String, bool)> {
        let (p99, within) = self.each("W5", "p99", 2.5, None)?;
        let (max, none_beyond) = self.each("W5", "max", 10.0, None)?;
        Some((format!("p99 {p99}. Max {max}"), within && none_beyond))
    }

    fn idle(&self) -> Option<(String, bool)> {
        let (cpu, none) = self.each("W6", "CPU", 0.5, None)?;
        let (switches, few) = self.each("W6", "switches", 5.0, None)?;
        Some((format!("{cpu}. {switches}"), none && few))
    }

    fn churn(&self) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut reached = true;
        for figure in self
            .0
            .figures
            .iter()
            .filter(|figure| figure.workload == "churn")
        {
            if !figure.is_ours() {
                continue;
            }
            let one = figure.named("after 1 touch")?.0.typical;
            let all = figure.named("after all")?.0.typical;
            words.push(format!("{}: {one:.0} and {all:.0} bytes", figure.system));
            // A page or two may come and go.
            reached &= all <= one * 1.02;
        }
        (!words.is_empty()).then(|| (words.join("; "), reached))
    }

    fn session_touch(&self) -> Option<(String, bool)> {
        let ours = self.one("S1", "2 threads", 10_000_000, INLINE)?;
        let (over, peer) = self.over_best(ours, 0)?;
        let moka = ours.over(self.one("S1", "2 threads", 10_000_000, "moka")?, 0)?;
        let today = format!("{over:.2}x {peer}, {moka:.2}x moka");
        Some((today, over >= 3.0))
    }

    fn session_touch_many(&self) -> Option<(String, bool)> {
        let ours = self.one("S2", "1 thread", 10_000_000, INLINE)?;
        let single = ours.named("one by one")?.0.typical;
        let over = |metric| Some(ours.named(metric)?.0.typical / single);
        let least = over("256 in a call")?;
        let today = format!(
            "{least:.2}x; 1,024 in a call {:.2}x, 4,096 {:.2}x",
            over("1,024 in a call")?,
            over("4,096 in a call")?
        );
        Some((today, least >= 1.5))
    }

    fn session_memory(&self) -> Option<(String, bool)> {
        let of = |keys| {
            let ours = self.one("S3", "30 min to idle", keys, INLINE)?;
            Some(ours.spread(0)?.typical)
        };
        let (million, ten) = (of(1_000_000)?, of(10_000_000)?);
        Some((
            format!("{million:.1} bytes at 1 M, {ten:.1} at 10 M"),
            million <= 80.0 && ten <= 80.0,
        ))
    }

    fn sleeps(&self) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut reached = self.0.figures.iter().any(|figure| figure.system == SLEEP);
        for ours in &self.0.figures {
            if ours.workload != "S4" || !ours.is_ours() {
                continue;
            }
            let tokio = self.one("S4", &ours.case, ours.keys, TOKIO_SLEEP)?;
            let (cpu, of_tokio) = (ours.spread(0)?.typical, tokio.spread(0)?.typical);
            words.push(format!(
                "{}, {}: {cpu:.0} ms, tokio {of_tokio:.0} ms",
                ours.system, ours.case
            ));
            reached &= ours.system != SLEEP || cpu <= of_tokio;
        }
        (!words.is_empty()).then(|| (words.join("; "), reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::report::tests::figure;

    fn report(figures: Vec<Figure>) -> Report {
        Report {
            machine: Machine::here(),
            versions: Vec::new(),
            commit: None,
            command: String::new(),
            form: "full".to_owned(),
            failures: Vec::new(),
            started_unix: 0,
            seconds: 0.0,
            ping_ns: None,
            figures,
        }
    }

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
        assert!(at(2.0).reached);
        let behind = at(4.0);
        assert!(!behind.reached);
        assert!(behind.today.contains("2.00x heap"), "{}", behind.today);
        assert!(standing(vec![touches(BOXED, 100_000, 8.0)], "P1").is_none());
        let mut quick = report(vec![touches("heap", 10_000_000, 1.0)]);
        quick.form = "quick".to_owned();
        assert!(standings(&quick).is_empty(), "less was done");
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
            standing.reached && standing.today.contains("4.00x heap"),
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
        assert!(at(3.0).reached && !at(2.9).reached);
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
            standing.expect("both are there").reached
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
            standing(figures, "P11").expect("it is measured").reached
        };
        assert!(both(4.0, 5.0));
        assert!(!both(4.0, 6.0) && !both(6.0, 4.0));
    }
}
