//! What this process ran in the last minute.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tourbillon::metrics::{Distribution, MetricValue, Metrics};

/// The samples that are kept: those of a minute, and the one before it.
const KEPT: usize = 61;

/// The time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Samples {
    kept: Mutex<VecDeque<Sample>>,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    runs: u64,
    lateness: Distribution,
}

/// The runs of the last minute.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct LastMinute {
    /// Runs per second, the oldest first.
    pub(crate) runs: Vec<f64>,
    /// Mean lateness in each second, in seconds; 0 where nothing ran.
    pub(crate) lateness: Vec<f64>,
    /// All runs of the minute.
    pub(crate) total: u64,
    /// The bound below which half of the runs, and 99 % of them, started late.
    pub(crate) quantiles: Option<(Duration, Duration)>,
}

impl Samples {
    /// Takes a sample, and drops those that are older than a minute.
    pub(crate) fn add(&self, at: Instant, metrics: &Metrics) {
        let of_runs = metrics
            .iter()
            .filter(|metric| metric.name == "tourbillon_durable_runs_total");
        let runs = of_runs.map(|metric| match metric.value {
            MetricValue::Counter(count) => count,
            _ => 0,
        });
        let sample = Sample {
            at,
            runs: runs.sum(),
            lateness: metrics.histogram("tourbillon_durable_start_delay_seconds"),
        };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(sample);
        while kept.len() > KEPT {
            kept.pop_front();
        }
    }

    pub(crate) fn last_minute(&self) -> LastMinute {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut minute = LastMinute::default();
        for (before, after) in kept.iter().zip(kept.iter().skip(1)) {
            let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
            let runs = after.runs.saturating_sub(before.runs);
            minute.runs.push(runs as f64 / seconds);
            let late = after.lateness.sum().saturating_sub(before.lateness.sum());
            let count = after
                .lateness
                .count()
                .saturating_sub(before.lateness.count());
            minute
                .lateness
                .push(late.as_secs_f64() / count.max(1) as f64);
        }
        if let (Some(first), Some(last)) = (kept.front(), kept.back()) {
            minute.total = last.runs.saturating_sub(first.runs);
            let at = |share| quantile(&first.lateness, &last.lateness, share);
            minute.quantiles = at(0.5).zip(at(0.99));
        }
        minute
    }
}

/// The bound below which this share of the values lies that came between two histograms. `None` if
/// there are none.
pub(crate) fn quantile(first: &Distribution, last: &Distribution, share: f64) -> Option<Duration> {
    let count = last.count().saturating_sub(first.count());
    if count == 0 {
        return None;
    }
    let wanted = (count as f64 * share).ceil() as u64;
    let mut buckets = first.buckets().zip(last.buckets());
    let found = buckets.find(|((_, before), (_, after))| after.saturating_sub(*before) >= wanted);
    // Behind the last bucket there is no bound.
    Some(found.map_or(Duration::from_secs(1 << 10), |(_, (bound, _))| bound))
}
