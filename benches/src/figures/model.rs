//! A model of touches, fitted to the figures of a run, for machines and sizes that nobody has
//! measured.
//!
//! ```text
//! time = cpu + decade * log10(keys * bytes / cache)      the last part from a footprint of `cache` bytes on
//!      + transfer * (threads - 1) / threads              lines that another core wrote last
//!      + wait                                            for a stripe's lock
//! wait = hold * load / (2 * (1 - load))                  a queue with calls at random and a fixed hold
//! load = threads * hold / (time * stripes)               the share of its time that a lock is taken
//! ```
//!
//! It is a calculation and no measurement: what it says of more cores than the machine has is a
//! guess with stated assumptions.

use super::row::{Row, Run, digits, short};
use super::table::markdown;

/// The system of the model, whose touches it describes.
const SYSTEM: &str = "tourbillon-map";
const TOUCHES: &str = "W2";
const MEMORY: &str = "W7";
/// The crate's defaults: the least number of stripes, and their number per core.
const STRIPES: u32 = 128;
const STRIPES_PER_CORE: u32 = 8;
/// Lines that a touch reads: the stripe, its row of the index, the entry and what lies beside them.
const LINES: f64 = 4.0;
const LINE_BYTES: f64 = 64.0;

const COMMANDS: &str = "--only W2,W7 --system tourbillon-map --threads 1,2 \
                        --keys 10000,100000,1000000,10000000 --stripes 2,16,128";

/// A touch, measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    keys: u64,
    threads: u32,
    stripes: u32,
    /// Of one touch on one thread.
    ns: f64,
}

/// What the fit found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Model {
    cpu_ns: f64,
    decade_ns: f64,
    cache_bytes: f64,
    transfer_ns: f64,
    hold_ns: f64,
    bytes_per_key: f64,
}

/// The model of a run, as a document.
pub(crate) fn of(run: &Run) -> Result<String, String> {
    let points = points(run);
    let bytes = bytes_per_key(run).ok_or_else(|| missing("bytes per key (W7)"))?;
    let model = Model::fit(&points, bytes)?;
    Ok(document(run, &points, &model))
}

fn missing(what: &str) -> String {
    format!("the run has no {what}; the model needs {COMMANDS}")
}

fn points(run: &Run) -> Vec<Point> {
    // More threads than cores take turns, of which the model knows nothing.
    let fits = |row: &&Row| row.is_judged() && row.threads <= run.machine.cores;
    let rows = run.of(TOUCHES).filter(fits);
    rows.filter_map(|row| {
        let threads = row.threads as u32;
        Some(Point {
            keys: row.keys,
            threads,
            stripes: stripes_of(&row.system)?,
            ns: f64::from(threads) * 1e3 / row.first()?.typical,
        })
    })
    .collect()
}

/// The number in the system's name, or the default.
fn stripes_of(system: &str) -> Option<u32> {
    match system.strip_prefix(SYSTEM)? {
        "" => Some(STRIPES),
        set_up => {
            let count = set_up.strip_prefix(", ")?.strip_suffix(" stripes")?;
            count.parse().ok()
        }
    }
}

/// At the greatest number of keys.
fn bytes_per_key(run: &Run) -> Option<f64> {
    let rows = run.of(MEMORY);
    let of_ours = rows.filter(|row| stripes_of(&row.system) == Some(STRIPES));
    let greatest = of_ours.max_by_key(|row| row.keys)?;
    Some(greatest.first()?.typical)
}

impl Model {
    fn fit(points: &[Point], bytes_per_key: f64) -> Result<Self, String> {
        let is_alone = |point: &&Point| point.threads == 1 && point.stripes == STRIPES;
        let alone: Vec<Point> = points.iter().filter(is_alone).copied().collect();
        if alone.len() < 3 {
            return Err(missing("touches of one thread at three sizes"));
        }
        // The cache by trying sizes, the others by least squares of relative errors. The least
        // number of keys lies in the cache: otherwise nothing would say what a touch costs there.
        let smallest =
            alone.iter().map(|point| point.keys).min().unwrap_or(0) as f64 * bytes_per_key;
        let mut best: Option<(f64, Model)> = None;
        for half_power in 0..=16 {
            let cache_bytes = smallest * 2_f64.powf(f64::from(half_power) / 2.0);
            let decades = |point: &Point| decades(point.keys, bytes_per_key, cache_bytes);
            let (cpu_ns, decade_ns) = line(alone.iter().map(|p| (decades(p), p.ns)));
            let model = Model {
                cpu_ns,
                decade_ns: decade_ns.max(0.0),
                cache_bytes,
                bytes_per_key,
                ..Model::default()
            };
            let error = model.error(&alone);
            if best.is_none_or(|(least, _)| error < least) {
                best = Some((error, model));
            }
        }
        let (_, model) = best.ok_or_else(|| missing("touches"))?;

        // What other threads add, by trying: the lines that travel show at many stripes, the lock
        // at few.
        let several: Vec<Point> = points.iter().filter(|p| p.threads > 1).copied().collect();
        if !several.iter().any(|point| point.stripes == STRIPES) {
            return Err(missing("touches of two threads in the near mode"));
        }
        if !several.iter().any(|point| point.stripes < STRIPES) {
            return Err(missing("touches of two threads on few stripes"));
        }
        let with = |transfer: u32, hold: u32| Model {
            transfer_ns: f64::from(transfer),
            hold_ns: f64::from(hold),
            ..model
        };
        let holds = |transfer| (0..=300).step_by(4).map(move |hold| with(transfer, hold));
        let tried = (0..=400).step_by(5).flat_map(holds);
        let errors = tried.map(|tried| (tried.error(&several), tried));
        let best = errors.min_by(|(one, _), (other, _)| one.total_cmp(other));
        Ok(best.map_or(model, |(_, best)| best))
    }

    /// The square of the relative errors.
    fn error(&self, points: &[Point]) -> f64 {
        let of = |p: &Point| (self.ns(p.keys, p.threads, p.stripes) / p.ns - 1.0).powi(2);
        points.iter().map(of).sum()
    }

    /// Returns the time of one touch while `threads` threads touch, each on a core of its own.
    fn ns(&self, keys: u64, threads: u32, stripes: u32) -> f64 {
        let decades = decades(keys, self.bytes_per_key, self.cache_bytes);
        self.ns_with(decades, threads, stripes)
    }

    fn ns_with(&self, decades: f64, threads: u32, stripes: u32) -> f64 {
        let (threads, stripes) = (f64::from(threads), f64::from(stripes));
        let transfer = self.transfer_ns * (threads - 1.0) / threads;
        let alone = self.cpu_ns + self.decade_ns * decades + transfer;
        if threads == 1.0 {
            return alone;
        }
        // The wait depends on the time, which contains it: the time is where both sides are equal.
        // A longer time makes the load less, so there is one such place.
        let surplus = |time: f64| {
            let load = threads * self.hold_ns / (time * stripes);
            if load >= 1.0 {
                return f64::INFINITY;
            }
            alone + self.hold_ns * load / (2.0 * (1.0 - load)) - time
        };
        let (mut low, mut high) = (alone, alone + 1e6);
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if surplus(middle) > 0.0 {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }
}

/// By how many powers of ten the keys take more than the cache.
fn decades(keys: u64, bytes_per_key: f64, cache_bytes: f64) -> f64 {
    (keys as f64 * bytes_per_key / cache_bytes).log10().max(0.0)
}

/// The line `a + b * x` with the least squares of relative errors.
fn line(points: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (at, value) in points {
        let weight = 1.0 / (value * value);
        w += weight;
        x += weight * at;
        y += weight * value;
        xx += weight * at * at;
        xy += weight * at * value;
    }
    let divisor = w * xx - x * x;
    if divisor.abs() < 1e-12 * w * xx || divisor == 0.0 {
        return (y / w, 0.0);
    }
    let slope = (w * xy - x * y) / divisor;
    ((y - slope * x) / w, slope)
}

fn document(run: &Run, points: &[Point], model: &Model) -> String {
    let (command, commit, machine) = (&run.command, run.commit(), run.machine.line());
    let mut text = format!("Fitted to a run of `{command}` at commit `{commit}`.\n{machine}.\n\n");
    let beyond = "each tenfold footprint beyond the cache (`decade`)";
    let parameters = [
        (model.cpu_ns, "ns", "a touch in the cache (`cpu`)"),
        (model.decade_ns, "ns", beyond),
        (model.cache_bytes / 1e6, "MB", "where that begins (`cache`)"),
        (
            model.transfer_ns,
            "ns",
            "lines from other cores (`transfer`)",
        ),
        (model.hold_ns, "ns", "a stripe's lock is held (`hold`)"),
        (model.bytes_per_key, "bytes per key", "memory"),
    ];
    let cells = |(value, unit, what)| [str::to_owned(what), format!("{} {unit}", digits(value))];
    text += &markdown("| parameter | fitted |\n|---|--:|", parameters.map(cells));

    let mut worst: f64 = 0.0;
    let compared = points.iter().map(|point| {
        let ns = model.ns(point.keys, point.threads, point.stripes);
        let off = 100.0 * (ns / point.ns - 1.0);
        worst = worst.max(off.abs());
        let counts = [point.threads, point.stripes].map(|count| count.to_string());
        let [threads, stripes] = counts;
        let [measured, modelled] = [point.ns, ns].map(digits);
        let off = format!("{off:+.0} %");
        [short(point.keys), threads, stripes, measured, modelled, off]
    });
    let head = "| keys | threads | stripes | measured, ns | model, ns | difference |\n\
                |--:|--:|--:|--:|--:|--:|";
    text += "\n### Measured and modelled\n\n";
    text += &markdown(head, compared);
    text += &format!("\nThe worst difference is {worst:.0} %.\n");

    let largest = points.iter().map(|point| point.keys).max().unwrap_or(0);
    text += &format!(
        "\n### Modelled: not measured by anybody\n\n\
         Beyond {} keys the first figure assumes that a miss costs no more than there, and the second that each \
         tenfold footprint adds as much as the last ones did.\n\n",
        short(largest)
    );
    let head = "| keys | memory | 1 thread, M/s | 16 cores, M/s | 64 cores, M/s | 64 cores: a touch, ns \
                | 64 cores: lines read, GB/s |\n|--:|--:|--:|--:|--:|--:|--:|";
    let beyond = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000].map(|keys: u64| {
        let at = |keys| decades(keys, model.bytes_per_key, model.cache_bytes);
        // From the better one to the worse one; one figure where both are the same.
        let both = |of: &dyn Fn(f64) -> f64| {
            let (kept, grown) = (digits(of(at(keys.min(largest)))), digits(of(at(keys))));
            let or = format!("{kept} or {grown}");
            if kept == grown { kept } else { or }
        };
        let time = |threads: u32, decades: f64| {
            let stripes = STRIPES.max(STRIPES_PER_CORE * threads).next_power_of_two();
            model.ns_with(decades, threads, stripes)
        };
        let rate = |threads: u32| both(&|at| f64::from(threads) * 1e3 / time(threads, at));
        let memory = format!("{} GB", digits(model.bytes_per_key * keys as f64 / 1e9));
        let touch = both(&|at| time(64, at));
        let read = both(&|at| 64.0 / time(64, at) * LINES * LINE_BYTES);
        let [one, few, many] = [1, 16, 64].map(rate);
        [short(keys), memory, one, few, many, touch, read]
    });
    text + &markdown(head, beyond)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::tests::{in_modes, row, run, with_keys};
    use crate::mode::Mode;

    const TRUE: Model = Model {
        cpu_ns: 30.0,
        decade_ns: 60.0,
        cache_bytes: 3_040_000.0,
        transfer_ns: 25.0,
        hold_ns: 20.0,
        bytes_per_key: 76.0,
    };
    const KEYS: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];

    /// What a machine would measure that is as the model says.
    fn made() -> Run {
        let mut rows = Vec::new();
        for stripes in [1, 8, 128] {
            let system = match stripes {
                128 => SYSTEM.to_owned(),
                _ => format!("{SYSTEM}, {stripes} stripes"),
            };
            for keys in KEYS {
                let rate = |threads| f64::from(threads) * 1e3 / TRUE.ns(keys, threads, stripes);
                let two = in_modes("W2", &system, &[(Mode::Near, &[rate(2)])]);
                let both = [row("W2", &system, rate(1))].into_iter().chain(two);
                rows.extend(both.map(|row| with_keys(keys, row)));
            }
        }
        rows.push(with_keys(10_000_000, row("W7", SYSTEM, 76.0)));
        let mut run = run(rows);
        run.machine.cores = 2;
        run
    }

    #[test]
    fn the_parameters_behind_the_figures_are_found() {
        let points = points(&made());
        assert_eq!(points.len(), 24);
        let fitted = Model::fit(&points, 76.0).expect("everything is there");
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 0.05;
        let alone = |m: &Model| [m.cpu_ns, m.decade_ns, m.cache_bytes];
        let together = |m: &Model| [m.transfer_ns, m.hold_ns];
        let all = |m: &Model| alone(m).into_iter().chain(together(m));
        let mut both = all(&fitted).zip(all(&TRUE));
        assert!(both.all(|(one, other)| near(one, other)), "{fitted:?}");
        for point in points {
            let ns = fitted.ns(point.keys, point.threads, point.stripes);
            assert!(near(ns, point.ns), "{point:?}: {ns}");
        }
    }

    #[test]
    fn more_keys_and_threads_take_longer_and_more_stripes_less() {
        let ns = |keys, threads, stripes| TRUE.ns(keys, threads, stripes);
        assert!(ns(10_000_000, 1, 128) > ns(1_000_000, 1, 128));
        assert_eq!(ns(10, 1, 128), TRUE.cpu_ns);
        assert!(ns(10, 64, 128) > ns(10, 2, 128));
        assert!(ns(10, 64, 8) > ns(10, 64, 1_024));
        // One lock: no more than one touch in the time that it is held.
        let share = 64.0 / ns(10, 64, 1) * TRUE.hold_ns;
        assert!(share > 0.9 && share <= 1.0, "{share}");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (workload, what) in [("W2", "touches"), ("W7", "bytes per key")] {
            let mut run = made();
            run.rows.retain(|row| row.workload.name != workload);
            let error = of(&run).expect_err("it can't be fitted");
            assert!(error.contains(what) && error.contains("--only"), "{error}");
        }
        let mut far = made();
        for row in &mut far.rows {
            row.mode = row.mode.map(|_| Mode::Far);
        }
        assert!(of(&far).expect_err("it was never near").contains("near"));
    }
}
