//! The targets P1 to P13, one a line in `targets.jsonl`, and what a run says of each.
//!
//! A target is a figure of ours at one point, compared with the best peer of the same run, with one
//! named system, or with a bound. A floor is no peer. Where a target names several cases or several
//! of our systems, all of them have to reach it, and the worst one stands first. Points with two
//! threads are judged in the near mode only.

use std::sync::LazyLock;

use serde::Deserialize;

use super::row::{Row, Run, digits};
use crate::workload::{By, Form, Metric};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    pub(super) number: String,
    /// For people.
    pub(super) what: String,
    workload: String,
    /// All of the workload's if empty.
    #[serde(default)]
    cases: Vec<String>,
    #[serde(default)]
    keys: u64,
    /// Ours. Each of them has to reach it.
    systems: Vec<String>,
    /// The first one of the workload if empty.
    #[serde(default)]
    metric: String,
    pub(super) reach: Reach,
    /// Whether the README quotes it.
    #[serde(default)]
    pub(super) quoted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reach {
    /// So many times better than the best peer of any language.
    TimesBest(f64),
    /// So many times better than the system of that name.
    Times(f64, String),
    /// At most this. Compared with as many digits behind the point as it has itself, which come
    /// second. Then the unit.
    AtMost(f64, usize, String),
}

impl Reach {
    /// Whether this lead is enough. Where less is better, it is the figure below zero.
    fn is_met(&self, lead: f64) -> bool {
        match self {
            Reach::TimesBest(times) | Reach::Times(times, _) => lead >= *times,
            Reach::AtMost(value, digits, _) => {
                let factor = 10_f64.powi(*digits as i32);
                (-lead * factor).round() / factor <= *value
            }
        }
    }

    pub(super) fn in_words(&self) -> String {
        match self {
            Reach::TimesBest(times) => format!("{times}x the best peer"),
            Reach::Times(times, other) => format!("{times}x `{other}`"),
            Reach::AtMost(value, digits, unit) => format!("at most {value:.digits$} {unit}"),
        }
    }
}

/// In the order of the table.
static ALL: LazyLock<Vec<Target>> = LazyLock::new(|| {
    let lines = include_str!("targets.jsonl").lines();
    let parsed = |line| serde_json::from_str(line).expect("each line is a target");
    lines.map(parsed).collect()
});

/// A target and where it stands.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) target: &'static Target,
    pub(super) verdict: Verdict,
    /// Where it was measured, the worst first. Empty otherwise.
    pub(super) found: Vec<Found>,
    /// Why it was not judged.
    why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Missed,
    NotMeasured,
    /// The machine was never in the mode that counts.
    NotJudged,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
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
pub(super) struct Found {
    system: String,
    case: String,
    pub(super) value: String,
    /// How many times better, who the other is, and its figure. Nothing where a bound is the
    /// target.
    pub(super) against: Option<(f64, String, String)>,
    /// The greater, the better, in comparison with others of the same target.
    lead: f64,
}

/// Where all targets stand. Empty if the run has no figure of any, or is of a form that does less.
pub(super) fn standings(run: &Run) -> Vec<Standing> {
    if run.form != Form::Full {
        return Vec::new();
    }
    let mut all: Vec<Standing> = ALL.iter().map(|target| target.standing(run)).collect();
    let mut verdicts = all.iter().map(|standing| standing.verdict);
    if verdicts.all(|verdict| verdict == Verdict::NotMeasured) {
        all.clear();
    }
    all
}

impl Standing {
    /// The figure, and what it is compared with.
    pub(super) fn today(&self) -> String {
        let of = |found: &Found| {
            let one_case = self.found.iter().all(|other| other.case == found.case);
            // With one thing to look at, the target says what it is.
            let name = match self.found.len() {
                1 => String::new(),
                _ if one_case => format!("{}: ", found.system),
                _ => format!("{}, {}: ", found.system, found.case),
            };
            match &found.against {
                Some((times, other, value)) => {
                    format!("{name}{times:.2}x: {}, {other} {value}", found.value)
                }
                None => name + &found.value,
            }
        };
        let words: Vec<String> = self.found.iter().map(of).chain(self.why.clone()).collect();
        words.join("; ")
    }
}

/// Why nothing can be said of a target, as a verdict and in words.
type Trouble = (Verdict, String);

fn missing(what: String) -> Trouble {
    (Verdict::NotMeasured, what)
}

/// The rows of `rows` that count. A system that has none of them is trouble.
fn judged<'a>(run: &Run, rows: impl Iterator<Item = &'a Row>) -> Result<Vec<&'a Row>, Trouble> {
    let rows: Vec<&Row> = rows.collect();
    if let Some(row) = rows.iter().find(|row| !run.judges(row)) {
        return Err((Verdict::NotJudged, format!("{} was never near", row.system)));
    }
    Ok(rows.into_iter().filter(|row| row.is_judged()).collect())
}

/// Peers that were the best one in that workload. Without one of them a lead over the best peer is
/// not known.
fn rivals(workload: &str) -> &'static [&'static str] {
    match workload {
        "W1" => &["heap", "tokio-sleep", "netty"],
        "W4i" | "W4h" => &["hash-wheel", "netty"],
        _ => &["heap", "sharded", "sweep", "netty"],
    }
}

impl Target {
    fn standing(&'static self, run: &Run) -> Standing {
        let (verdict, found, why) = match self.found(run) {
            Ok(mut found) => {
                found.sort_by(|one, other| one.lead.total_cmp(&other.lead));
                let worst = found.first().map_or(f64::NAN, |worst| worst.lead);
                let verdict = match self.reach.is_met(worst) {
                    true => Verdict::Met,
                    false => Verdict::Missed,
                };
                (verdict, found, None)
            }
            Err((verdict, why)) => (verdict, Vec::new(), Some(why)),
        };
        Standing {
            target: self,
            verdict,
            found,
            why,
        }
    }

    /// One for each case and each of ours.
    fn found(&self, run: &Run) -> Result<Vec<Found>, Trouble> {
        let rows = || run.of(&self.workload).filter(|row| row.keys == self.keys);
        let mut cases: Vec<&str> = self.cases.iter().map(String::as_str).collect();
        for row in rows().filter(|_| self.cases.is_empty()) {
            if !cases.contains(&&*row.case) {
                cases.push(&row.case);
            }
        }
        let mut all = Vec::new();
        for case in &cases {
            for system in &self.systems {
                let ours = rows().filter(|row| row.case == *case && row.system == *system);
                let ours = judged(run, ours)?;
                let ours = ours.first();
                let ours = ours.ok_or_else(|| missing(format!("without {system}, {case}")))?;
                all.push(self.compared(run, ours)?);
            }
        }
        if all.is_empty() {
            return Err(missing(format!("{} was not run", self.workload)));
        }
        Ok(all)
    }

    fn compared(&self, run: &Run, ours: &Row) -> Result<Found, Trouble> {
        let none = || missing(format!("{} has no such figure", ours.system));
        let metric = match &*self.metric {
            "" => ours.metrics().next(),
            name => ours.metric(name),
        };
        let metric = metric.ok_or_else(none)?;
        let shown = |row: &Row| {
            let value = digits(row.spread(metric)?.typical);
            Some(format!("{value} {}", metric.unit))
        };
        let named = |peer: &Row| match peer.workload.by {
            by if by == ours.workload.by => peer.system.clone(),
            By::Handle => format!("{} (by handle)", peer.system),
            _ => format!("{} (by key)", peer.system),
        };
        let value = ours.spread(metric).ok_or_else(none)?.typical;
        let against = match &self.reach {
            Reach::AtMost(..) => None,
            Reach::Times(_, other) => {
                let is_other = |peer: &Row| peer.system == *other;
                Some(self.over(run, ours, metric, is_other)?)
            }
            Reach::TimesBest(_) => {
                let best = self.over(run, ours, metric, Row::is_peer)?;
                for rival in rivals(&self.workload) {
                    if !self.others(run, ours).any(|peer| peer.system == *rival) {
                        return Err(missing(format!("without {rival}")));
                    }
                }
                Some(best)
            }
        };
        Ok(Found {
            system: ours.system.clone(),
            case: ours.case.clone(),
            value: shown(ours).ok_or_else(none)?,
            lead: against.map_or(-value, |(times, _)| times),
            against: against.and_then(|(times, peer)| Some((times, named(peer), shown(peer)?))),
        })
    }

    /// Rows of the same work. Timers of one instant are compared by key and by handle alike: what
    /// runs them is the same.
    fn others<'a>(&self, run: &'a Run, ours: &'a Row) -> impl Iterator<Item = &'a Row> + use<'a> {
        let instant = |row: &Row| ["W4i", "W4h"].contains(&row.workload.name);
        run.rows.iter().filter(move |row| {
            let same = row.workload.name == ours.workload.name;
            let same = same || instant(row) && instant(ours);
            same && row.case == ours.case && row.keys == ours.keys
        })
    }

    /// How many times better than the best of the chosen others, and which that is.
    fn over<'a>(
        &self,
        run: &'a Run,
        ours: &'a Row,
        metric: &Metric,
        chosen: impl Fn(&Row) -> bool,
    ) -> Result<(f64, &'a Row), Trouble> {
        let others = self.others(run, ours).filter(|row| chosen(row));
        let leads = judged(run, others)?.into_iter();
        let leads = leads.filter_map(|peer| Some((ours.over(peer, metric)?, peer)));
        let least = leads.min_by(|(one, _), (other, _)| one.total_cmp(other));
        least.ok_or_else(|| missing("without the other".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::tests::{in_modes, row, run, with_keys};
    use crate::mode::Mode;
    use crate::workloads;

    const MILLION: u64 = 1_000_000;
    const TIMEOUTS: &str = "W3: request timeouts, boxed, 1 thread";
    const PEERS: [(&str, f64); 5] = [
        ("tourbillon", 11.0),
        ("heap", 10.0),
        ("netty", 2.0),
        ("sharded", 4.0),
        ("sweep", 3.0),
    ];

    fn standing(rows: Vec<Row>, what: &str) -> (Verdict, String) {
        let target = ALL.iter().find(|target| target.what == what);
        let target = target.unwrap_or_else(|| panic!("no target {what}"));
        let standing = target.standing(&run(rows));
        (standing.verdict, standing.today())
    }

    fn rows(workload: &str, keys: u64, systems: &[(&str, f64)]) -> Vec<Row> {
        let of = |(system, value): &(&str, f64)| with_keys(keys, row(workload, system, *value));
        systems.iter().map(of).collect()
    }

    /// Keys and systems with their figures, what the target is, the verdict, and some words.
    const JUDGED: &str = "
W3 0 tourbillon 11 heap 10 netty 2 sharded 1 sweep 1 | request timeouts, boxed, 1 thread | Met | 1.10x: 11.0 Mops/s, heap 10.0 Mops/s
W3 0 tourbillon 11 heap 10 netty 2 sharded 1 sweep 1 go 22 | request timeouts, boxed, 1 thread | Missed | 0.50x: 11.0 Mops/s, go 22.0
W2 1 tourbillon 8 heap 5 sharded 1 sharded-published 90 sweep 1 netty 2 bare 100 | touches of 1 M keys, 1 thread, boxed | Met | 1.60x: 8.00
W9 10 tourbillon 1 tourbillon-map 1.44 | p99.9 beside cascades of 10 M | Met | 1.44 ms
W9 10 tourbillon 1.46 tourbillon-map 1 | p99.9 beside cascades of 10 M | Missed | 1.46 ms
W9 10 tourbillon 1 tourbillon-map 2 | p99.9 beside cascades of 10 M | Missed | tourbillon-map: 2.00 ms; tourbillon: 1.00 ms
W9 10 tourbillon 1 | p99.9 beside cascades of 10 M | NotMeasured | without
W4h 0 tourbillon-timer 100 heap 90 | keyless | NotMeasured | without hash-wheel
W6 1 tourbillon 0 tourbillon-map 0 | wake-ups in 10 s of nothing | Met | 0.00 times";

    #[test]
    fn a_target_is_met_against_the_best_of_the_peers() {
        for line in JUDGED.trim().lines() {
            let parts: Vec<&str> = line.split(" | ").collect();
            let words: Vec<&str> = parts[0].split(' ').collect();
            let systems = words[2..].chunks(2);
            let systems = systems.map(|two| (two[0], two[1].parse().expect("a figure")));
            let keys = MILLION * words[1].parse::<u64>().expect("millions");
            let rows = rows(words[0], keys, &systems.collect::<Vec<_>>());
            let (verdict, today) = standing(rows, &format!("{}: {}", words[0], parts[1]));
            assert_eq!(format!("{verdict:?}"), parts[2], "{line}: {today}");
            assert!(today.contains(parts[3]), "{line}: {today}");
        }
    }

    #[test]
    fn without_a_rival_nothing_is_measured() {
        for (missing, _) in PEERS {
            let mut rows = rows("W3", 0, &PEERS);
            rows.retain(|row| row.system != missing);
            let (verdict, today) = standing(rows, TIMEOUTS);
            assert_eq!(verdict, Verdict::NotMeasured, "{missing}");
            assert!(today.contains(missing), "{today}");
        }
    }

    #[test]
    fn two_threads_are_judged_in_the_near_mode_only() {
        let (near, far) = (Mode::Near, Mode::Far);
        let with = |ours: &[(Mode, &[f64])]| {
            let mut rows = in_modes("W3", "tourbillon", ours);
            rows.extend(in_modes("W3", "heap", &[(far, &[90.0]), (near, &[10.0])]));
            for peer in ["netty", "sharded", "sweep"] {
                rows.extend(in_modes("W3", peer, &[(near, &[1.0])]));
            }
            let rows = rows.into_iter().map(|row| with_keys(0, row)).collect();
            standing(rows, "W3: request timeouts, boxed, 2 threads")
        };
        // Far, the heap is fast and ours is slow; neither counts.
        assert_eq!(with(&[(near, &[18.0]), (far, &[1.0])]).0, Verdict::Met);
        assert_eq!(with(&[(near, &[17.9]), (far, &[900.0])]).0, Verdict::Missed);
        let (verdict, why) = with(&[(far, &[900.0])]);
        assert_eq!(verdict, Verdict::NotJudged);
        assert_eq!(why, "tourbillon was never near");
    }

    #[test]
    fn timers_of_one_instant_are_compared_by_key_and_by_handle() {
        let mut all = rows("W4h", 0, &[("tourbillon-timer", 100.0), ("netty", 40.0)]);
        let by_key = [("hash-wheel", 80.0), ("tourbillon-map", 80.0)];
        all.extend(rows("W4i", 0, &by_key));
        let handles = "0.40x: 100 ms after it, netty 40.0 ms after it";
        let keys = "0.50x: 80.0 ms after it, netty (by handle) 40.0 ms after it";
        let what = "W4i: 1 M timers at one instant, map";
        for (what, expected) in [("W4h: keyless", handles), (what, keys)] {
            let (verdict, today) = standing(all.clone(), what);
            assert_eq!((verdict, &*today), (Verdict::Met, expected));
        }
    }

    #[test]
    fn every_target_is_of_a_workload_with_that_case_and_metric() {
        for target in ALL.iter() {
            let workload = workloads::find(&target.workload).expect(&target.what);
            let mut metrics = workload.metrics.iter();
            let has_metric = target.metric.is_empty() || metrics.any(|m| m.name == target.metric);
            assert!(has_metric, "{}", target.what);
            for case in &target.cases {
                let mut cases = workload.cases.iter();
                assert!(cases.any(|other| other.name == case), "{}", target.what);
            }
            let sizes = workload.keys_in(Form::Full);
            assert!(sizes.contains(&target.keys), "{}", target.what);
        }
        let mut numbers: Vec<&str> = ALL.iter().map(|target| &*target.number).collect();
        numbers.dedup();
        let all: Vec<String> = (1..=13).map(|number| format!("P{number}")).collect();
        assert_eq!(numbers, all, "in order");
    }

    #[test]
    fn a_run_of_less_has_no_table() {
        let mut quick = run(rows("W3", 0, &PEERS));
        assert_eq!(standings(&quick).len(), ALL.len());
        quick.form = Form::Quick;
        assert!(standings(&quick).is_empty());
        assert!(standings(&run(vec![row("churn", "tourbillon", 1.0)])).is_empty());
    }
}
