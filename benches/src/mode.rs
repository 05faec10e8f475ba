//! In which mode a virtual machine is: how far apart the cores are that its two threads run on.
//!
//! The host moves virtual cores between real ones, within seconds. What a cache line takes to the
//! other core and back shows where they are, and a point with two threads runs at another rate in
//! each of these modes. So its rounds are kept apart. `benches/README.md` has the histogram that
//! the borders come from.

use serde::{Deserialize, Serialize};

/// Where the two cores of a round were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// They share caches. Targets are judged in this mode.
    Near,
    /// A cache line has a long way between them.
    Far,
    /// Two hyperthreads of one core: a cache line is there at once, but neither runs at full speed.
    SharedCore,
    /// There was no ping-pong: a single core, or both threads on one.
    Unknown,
}

impl Mode {
    /// Those that a ping-pong shows.
    pub(crate) const KNOWN: [Mode; 3] = [Mode::Near, Mode::Far, Mode::SharedCore];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Near => "near",
            Mode::Far => "far",
            Mode::SharedCore => "shared core",
            Mode::Unknown => "unknown mode",
        }
    }
}

/// Round trips in nanoseconds that separate the modes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Borders {
    /// Two hyperthreads of one core are below.
    pub(crate) shared_core_ns: f64,
    /// Cores that are far apart are above.
    pub(crate) far_ns: f64,
}

impl Default for Borders {
    /// In gaps of the histogram in `benches/README.md`.
    fn default() -> Self {
        Borders::of(45.0, 160.0)
    }
}

impl Borders {
    pub(crate) fn of(shared_core_ns: f64, far_ns: f64) -> Self {
        Borders {
            shared_core_ns,
            far_ns,
        }
    }

    pub(crate) fn mode(self, ping_ns: f64) -> Mode {
        if ping_ns < self.shared_core_ns {
            Mode::SharedCore
        } else if ping_ns < self.far_ns {
            Mode::Near
        } else {
            Mode::Far
        }
    }

    /// The mode of a round, from the round trips before and after it. `None` if it changed in
    /// between: such a round belongs to no mode.
    pub(crate) fn of_round(self, pings_ns: Option<[f64; 2]>) -> Option<Mode> {
        let Some(pings_ns) = pings_ns else {
            return Some(Mode::Unknown);
        };
        let [before, after] = pings_ns.map(|ns| self.mode(ns));
        (before == after).then_some(before)
    }

    pub(crate) fn in_words(self) -> String {
        let (low, high) = (self.shared_core_ns, self.far_ns);
        format!("shared core < {low:.0} ns <= near < {high:.0} ns <= far")
    }
}

/// How often round trips of each length were seen: a line for each step of an eighth, with the mode
/// that it is in.
pub(crate) fn histogram(pings_ns: &[f64], borders: Borders) -> String {
    const STEP: f64 = 1.125;
    const WIDTH: f64 = 50.0;
    let bin = |ns: f64| (ns.max(1.0).ln() / STEP.ln()).floor() as i32;
    let mut counts = std::collections::BTreeMap::<i32, usize>::new();
    for ns in pings_ns {
        *counts.entry(bin(*ns)).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(1) as f64;
    let mut text = String::new();
    let (first, last) = match (counts.keys().next(), counts.keys().last()) {
        (Some(first), Some(last)) => (*first, *last),
        _ => return text,
    };
    for bin in first..=last {
        let (from, to) = (STEP.powi(bin), STEP.powi(bin + 1));
        let count = counts.get(&bin).copied().unwrap_or(0);
        // By their logarithm: a mode that is rare has to be seen, too.
        let length = (1.0 + count as f64).ln() / (1.0 + most).ln() * WIDTH;
        let mode = borders.mode((from * to).sqrt()).name();
        let bar = "#".repeat(length.round() as usize);
        let line = format!("{from:>6.0} - {to:<6.0} ns {count:>7}  {mode:<11} {bar}");
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_has_a_mode_only_if_it_is_the_same_before_and_after() {
        let of = |before, after| Borders::default().of_round(Some([before, after]));
        assert_eq!(of(50.0, 110.0), Some(Mode::Near));
        assert_eq!(of(290.0, 500.0), Some(Mode::Far));
        assert_eq!(of(30.0, 40.0), Some(Mode::SharedCore));
        for (before, after) in [(50.0, 500.0), (500.0, 50.0), (30.0, 50.0)] {
            assert_eq!(of(before, after), None);
        }
        assert_eq!(Borders::default().of_round(None), Some(Mode::Unknown));
    }

    #[test]
    fn borders_belong_to_the_mode_above() {
        let borders = Borders::of(10.0, 20.0);
        let modes = [9.9, 10.0, 19.9, 20.0].map(|ns| borders.mode(ns));
        use Mode::{Far, Near, SharedCore};
        assert_eq!(modes, [SharedCore, Near, Near, Far]);
    }

    #[test]
    fn the_histogram_counts_every_ping_pong_once() {
        let pings = [30.0, 31.0, 80.0, 300.0, 300.5, 301.0];
        let text = histogram(&pings, Borders::default());
        let count = |line: &str| -> usize {
            let after = line.split(" ns ").nth(1).expect("a line has counts");
            let word = after.split_whitespace().next().expect("a count");
            word.parse().expect("a number")
        };
        assert_eq!(text.lines().map(count).sum::<usize>(), pings.len());
        let far: Vec<&str> = text.lines().filter(|line| line.contains("far")).collect();
        assert_eq!(far.into_iter().map(count).sum::<usize>(), 3);
        assert!(histogram(&[], Borders::default()).is_empty());
    }
}
