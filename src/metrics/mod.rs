//! Statistics as one list of named metrics, and as text for Prometheus and OpenMetrics.
//!
//! [`Handle::metrics`](crate::Handle::metrics), [`ExpiryMap::metrics`](crate::ExpiryMap::metrics)
//! and [`Timer::metrics`](crate::Timer::metrics) return [`Metrics`]. So do the crates
//! `tourbillon-leases` and `tourbillon-durable`. The lists of several instances can be joined, and
//! written as one text:
//!
//! ```
//! use std::time::Duration;
//! use tourbillon::{ExpiryMap, Scheduler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
//! let sessions = ExpiryMap::<u64, String>::builder()
//!     .name("sessions")
//!     .time_to_idle(Duration::from_secs(1_800))
//!     .build(|_, _| ())?;
//! sessions.insert(7, "Ada".to_owned())?;
//!
//! // In the handler of `GET /metrics`:
//! let mut metrics = scheduler.handle().metrics();
//! metrics.extend(sessions.metrics());
//! let mut page = String::new();
//! metrics.openmetrics(&mut page);
//! assert!(page.contains("tourbillon_pending{type=\"scheduler\",name=\"requests\"} 0\n"));
//! assert!(page.contains("tourbillon_pending{type=\"map\",name=\"sessions\"} 1\n"));
//! assert!(page.ends_with("# EOF\n"));
//! # Ok(())
//! # }
//! ```
//!
//! The values are read from the counts that exist already, so a call that schedules or touches does
//! no additional work. The guide has a table of [all metrics](crate::guide::metrics).

#[cfg(feature = "metrics")]
mod publish;
mod text;

use std::fmt;
use std::time::Duration;

use crate::stats::HistogramSum;
use crate::sync::{Arc, unique_number};

/// A list of [metrics](Metric), of one instance or of several.
///
/// Metrics of the same name and labels are added up when the list is written or published: two maps
/// with the name `sessions` appear as one.
///
/// # Examples
///
/// ```
/// use tourbillon::Timer;
/// use tourbillon::metrics::{MetricValue, Metrics};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timer = Timer::builder().name("timeouts").workers(2).build()?;
/// let mut metrics = Metrics::default();
/// metrics.extend(timer.metrics());
/// let workers = metrics.iter().find(|metric| metric.name == "tourbillon_workers");
/// assert_eq!(workers.map(|metric| metric.value.clone()), Some(MetricValue::Gauge(2.0)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    list: Vec<Metric>,
}

/// One number, or one histogram, with its name and labels.
///
/// # Examples
///
/// ```
/// use tourbillon::Timer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let timer = Timer::builder().name("timeouts").build()?;
/// for metric in timer.metrics().iter() {
///     let labels: Vec<_> = metric.labels().collect();
///     assert_eq!(labels, [("type", "timer"), ("name", "timeouts")]);
///     println!("{}: {} {:?}", metric.name, metric.help, metric.value);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name, by the conventions of Prometheus: that of a counter ends with `_total`, and one
    /// with a unit has it before that.
    pub name: &'static str,
    /// What the metric says, in one sentence.
    pub help: &'static str,
    /// The unit, which is `seconds`, or `None` if things are counted.
    pub unit: Option<&'static str>,
    /// The value.
    pub value: MetricValue,
    labels: Labels,
}

/// The labels of one instance, which all of its metrics share.
type Labels = Arc<[(&'static str, String)]>;

/// The value of a [`Metric`], by its kind.
///
/// # Examples
///
/// ```
/// use tourbillon::Timer;
/// use tourbillon::metrics::MetricValue;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let timer = Timer::new()?;
/// for metric in timer.metrics().iter() {
///     match &metric.value {
///         MetricValue::Counter(count) => println!("{} {count}", metric.name),
///         MetricValue::Gauge(value) => println!("{} {value}", metric.name),
///         MetricValue::Histogram(values) => println!("{} {}", metric.name, values.count()),
///         _ => {} // a kind of a later version
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum MetricValue {
    /// A count since the instance was built. It only grows.
    Counter(u64),
    /// A present value.
    Gauge(f64),
    /// Values since the instance was built, by size.
    Histogram(Distribution),
}

/// A histogram of durations: how many of them were at most that long.
///
/// Its buckets are some of those by which the durations are counted, so their counts are exact. Up
/// to 17 s there is one for each power of two, in nanoseconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tourbillon::Scheduler;
/// use tourbillon::metrics::MetricValue;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::<&str>::builder().build_stepped(1)?;
/// let timers = scheduler.handle();
/// timers.schedule("a", Duration::from_secs(1), |_| ())?;
/// scheduler.advance(Duration::from_secs(1));
/// let metrics = timers.metrics();
/// let lateness = metrics.iter().find(|metric| metric.name == "tourbillon_lateness_seconds");
/// let Some(MetricValue::Histogram(lateness)) = lateness.map(|metric| &metric.value) else {
///     panic!("it is a histogram");
/// };
/// // Virtual time is never late.
/// assert_eq!((lateness.count(), lateness.sum()), (1, Duration::ZERO));
/// assert!(lateness.buckets().all(|(_, count)| count == 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Distribution {
    /// How many values lie below each of [`POWERS`].
    below: Box<[u64; POWERS.len()]>,
    count: u64,
    sum: Duration,
}

/// The powers of two, in nanoseconds, below which a [`Distribution`] counts: from 4 us to 18 min,
/// close together between 65 us and 17 s.
const POWERS: [u32; 24] = [
    12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 36, 38, 40,
];

impl Metrics {
    /// The content type of the text that [`openmetrics`](Self::openmetrics) writes, for the header
    /// of an answer.
    pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// The content type of the text that [`prometheus`](Self::prometheus) writes.
    pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Iterates over the metrics, instance by instance.
    pub fn iter(&self) -> std::slice::Iter<'_, Metric> {
        self.list.iter()
    }

    /// The first histogram of this name, for the crates of this repository. An empty one if there
    /// is none.
    #[doc(hidden)]
    #[must_use]
    pub fn histogram(&self, name: &str) -> Distribution {
        let named = self.iter().filter(|metric| metric.name == name);
        let mut histograms = named.filter_map(|metric| match &metric.value {
            MetricValue::Histogram(values) => Some(values.clone()),
            _ => None,
        });
        histograms.next().unwrap_or_default()
    }

    /// The metrics, with those of the same name and labels added up. They come in groups of the
    /// same name, in the order in which the names came first.
    fn families(&self) -> Vec<Vec<Metric>> {
        let mut families: Vec<Vec<Metric>> = Vec::new();
        for metric in &self.list {
            let family = families
                .iter_mut()
                .find(|family| family[0].name == metric.name);
            let Some(family) = family else {
                families.push(vec![metric.clone()]);
                continue;
            };
            let same = family.iter_mut().find(|same| same.labels == metric.labels);
            match same {
                Some(same) => same.value.add(&metric.value),
                None => family.push(metric.clone()),
            }
        }
        families
    }

    /// Writes all metrics in the text format of OpenMetrics 1.0 behind the text that `out` has
    /// already. The last line is `# EOF`, so one answer takes one call: join the lists of several
    /// instances before it, by `extend`.
    ///
    /// The answer needs the content type [`OPENMETRICS`](Self::OPENMETRICS).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::{Scheduler, Timer};
    /// # let scheduler = Scheduler::<u64>::new()?;
    /// # let timer = Timer::new()?;
    /// let mut metrics = scheduler.handle().metrics();
    /// metrics.extend(timer.metrics());
    /// let mut page = String::new();
    /// metrics.openmetrics(&mut page);
    /// assert_eq!(page.matches("# TYPE tourbillon_pending gauge\n").count(), 1);
    /// assert_eq!(page.matches("# EOF\n").count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("exposition", "scrape", "exporter"))]
    pub fn openmetrics(&self, out: &mut String) {
        text::openmetrics(&self.families(), out);
    }

    /// Writes all metrics in the older text format of Prometheus, for a program that does not know
    /// OpenMetrics. It has no last line of its own.
    ///
    /// The answer needs the content type [`PROMETHEUS`](Self::PROMETHEUS).
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Timer;
    /// # let timer = Timer::builder().name("timeouts").build()?;
    /// let mut page = String::new();
    /// timer.metrics().prometheus(&mut page);
    /// assert!(page.contains("# TYPE tourbillon_scheduled_total counter\n"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prometheus(&self, out: &mut String) {
        text::prometheus(&self.families(), out);
    }

    /// Publishes all counters and gauges through the crate [`metrics`](https://docs.rs/metrics), to
    /// the recorder that the program has installed. Without a recorder it does nothing.
    ///
    /// Call it again and again, every 10 s for example, or before each answer of an exporter.
    /// Histograms are left out: this crate counts values by size, and a recorder takes each of
    /// them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tourbillon::{Period, Scheduler};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let scheduler = Scheduler::<&str>::builder().name("background").build()?;
    /// let timers = scheduler.handle();
    /// timers.repeat("metrics", Period::fixed_rate(Duration::from_secs(10)), |round| {
    ///     round.handle().metrics().publish();
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn publish(&self) {
        publish::publish(&self.families());
    }
}

/// Writes the text of [`openmetrics`](Metrics::openmetrics).
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.openmetrics(&mut text);
        f.write_str(&text)
    }
}

impl Extend<Metric> for Metrics {
    fn extend<I: IntoIterator<Item = Metric>>(&mut self, more: I) {
        self.list.extend(more);
    }
}

impl FromIterator<Metric> for Metrics {
    fn from_iter<I: IntoIterator<Item = Metric>>(metrics: I) -> Self {
        let list = metrics.into_iter().collect();
        Metrics { list }
    }
}

impl IntoIterator for Metrics {
    type Item = Metric;
    type IntoIter = std::vec::IntoIter<Metric>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Metrics {
    type Item = &'a Metric;
    type IntoIter = std::slice::Iter<'a, Metric>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Metric {
    /// Iterates over the labels, each with its value, which is not escaped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon::Scheduler;
    /// let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
    /// let metrics = scheduler.handle().metrics();
    /// let name = |labels: Vec<(_, _)>| labels[1].1 == "requests";
    /// assert!(metrics.iter().all(|metric| name(metric.labels().collect())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn labels(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let labels = self.labels.iter();
        labels.map(|(label, value)| (*label, value.as_str()))
    }
}

impl MetricValue {
    /// Adds the value of another instance.
    fn add(&mut self, other: &MetricValue) {
        match (self, other) {
            (MetricValue::Counter(sum), MetricValue::Counter(count)) => *sum += count,
            (MetricValue::Gauge(sum), MetricValue::Gauge(value)) => *sum += value,
            (MetricValue::Histogram(sum), MetricValue::Histogram(more)) => sum.add(more),
            // A name has one kind: only these crates make metrics.
            _ => debug_assert!(false, "a name has two kinds"),
        }
    }

    /// The word for the kind, as both text formats have it.
    fn kind(&self) -> &'static str {
        match self {
            MetricValue::Counter(_) => "counter",
            MetricValue::Gauge(_) => "gauge",
            MetricValue::Histogram(_) => "histogram",
        }
    }
}

impl Distribution {
    pub(crate) fn of(histogram: &HistogramSum) -> Self {
        Distribution {
            below: Box::new(POWERS.map(|power| histogram.below_power_of_two(power))),
            count: histogram.count(),
            sum: histogram.approximate_sum(),
        }
    }

    /// Iterates over the buckets: their greatest duration, and how many values were at most that
    /// long. The values of a bucket are also in all that follow.
    ///
    /// In each stripe, and for each of its own finer buckets, a scheduler counts up to 4.2 billion
    /// values. Those beyond are in [`count`](Self::count) alone.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = (Duration, u64)> {
        let ends = POWERS.map(|power| Duration::from_nanos((1 << power) - 1));
        ends.into_iter().zip(*self.below)
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the approximate sum of the values. The exact one is not counted, since that would
    /// make each start of a task slower.
    ///
    /// A value from 1 us to an hour counts as the middle of a quarter of an octave, and so with an
    /// error of an eighth at most. The errors of many values mostly cancel each other out. A value
    /// below 1 us counts as zero, and one above an hour as an hour. The greatest value is exact.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    fn add(&mut self, other: &Distribution) {
        for (mine, theirs) in self.below.iter_mut().zip(*other.below) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// What makes metrics, for the crates of this repository.
#[doc(hidden)]
#[derive(Debug)]
pub struct Collector {
    list: Vec<Metric>,
    labels: Labels,
}

impl Collector {
    /// Collects the metrics of the instance with these labels.
    #[must_use]
    pub fn new<const N: usize>(labels: [(&'static str, String); N]) -> Self {
        Collector {
            list: Vec::new(),
            labels: Arc::new(labels),
        }
    }

    /// The labels from now on.
    pub fn labels<const N: usize>(&mut self, labels: [(&'static str, String); N]) {
        self.labels = Arc::new(labels);
    }

    pub fn counter(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.push(name, help, None, MetricValue::Counter(count));
    }

    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        // Exact up to 2^53.
        self.push(name, help, None, MetricValue::Gauge(value as f64));
    }

    pub fn seconds(&mut self, name: &'static str, help: &'static str, value: Duration) {
        let value = MetricValue::Gauge(value.as_secs_f64());
        self.push(name, help, Some("seconds"), value);
    }

    pub fn histogram(&mut self, name: &'static str, help: &'static str, values: Distribution) {
        let values = MetricValue::Histogram(values);
        self.push(name, help, Some("seconds"), values);
    }

    #[must_use]
    pub fn done(self) -> Metrics {
        Metrics { list: self.list }
    }

    fn push(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<&'static str>,
        value: MetricValue,
    ) {
        self.list.push(Metric {
            name,
            help,
            unit,
            value,
            labels: Arc::clone(&self.labels),
        });
    }
}

/// The label of an instance that was given no name.
#[doc(hidden)]
#[must_use]
pub fn nameless() -> String {
    unique_number().to_string()
}
