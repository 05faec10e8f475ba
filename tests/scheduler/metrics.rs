//! Statistics as a list, and as text for Prometheus.

use std::collections::BTreeSet;
use std::time::Duration;

use kit::metrics::{assert_documented, assert_promtool_takes, exported, families, read};
use tourbillon::metrics::{Distribution, MetricValue, Metrics};
use tourbillon::{Clock, ExpiryMap, ManualClock, Scheduler, Timer};

const SECOND: Duration = Duration::from_secs(1);

/// The metrics of one instance of each type, none of which is zero everywhere.
fn of_all_types(name: &str) -> Metrics {
    let scheduler = Scheduler::<u64>::builder().name(name).build_stepped(1);
    let scheduler = scheduler.unwrap();
    let timers = scheduler.handle();
    timers.schedule(1, SECOND, |_| ()).unwrap();
    timers.schedule(2, 9 * SECOND, |_| ()).unwrap();
    scheduler.advance(SECOND);
    let stepped = ExpiryMap::<u64, u64>::builder()
        .name(name)
        .build_stepped(1, |_, _| ());
    let stepped = stepped.unwrap();
    stepped.map().insert(1, 1).unwrap();
    assert_eq!(stepped.map().get(&1), Some(1));
    let timer = Timer::builder().name(name).workers(1).build().unwrap();
    let mut metrics = timers.metrics();
    metrics.extend(stepped.map().metrics());
    metrics.extend(timer.metrics());
    metrics
}

/// The histogram of this name.
fn histogram(metrics: &Metrics, name: &str) -> Distribution {
    let found = metrics.iter().find(|metric| metric.name == name);
    match &found.expect("it is exported").value {
        MetricValue::Histogram(values) => values.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_guide_lists_exactly_what_is_exported() {
    let guide = include_str!("../../src/guide/metrics.md");
    assert_documented(&of_all_types("a"), guide);
}

#[test]
fn the_guide_says_which_types_have_a_metric() {
    let metrics = of_all_types("a");
    let guide = include_str!("../../src/guide/metrics.md");
    let rows = guide
        .lines()
        .filter(|line| line.starts_with("| `tourbillon_"));
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let named = metrics.iter().filter(|metric| metric.name == name);
        let types: Vec<_> = named.flat_map(|metric| metric.labels().take(1)).collect();
        let expected: &[_] = match cells[4] {
            "all" => &["scheduler", "map", "timer"],
            "schedulers, timers" => &["scheduler", "timer"],
            "maps" => &["map"],
            other => panic!("{other}"),
        };
        let types: Vec<_> = types.into_iter().map(|(_, kind)| kind).collect();
        assert_eq!(types, expected, "{name}");
    }
}

#[test]
fn every_number_of_the_statistics_is_a_metric() {
    let value = |metrics: &Metrics, field: &str| {
        let names = [
            format!("tourbillon_{field}"),
            format!("tourbillon_{field}_total"),
        ];
        let found = metrics
            .iter()
            .find(|metric| names.iter().any(|name| name == metric.name));
        match found.unwrap_or_else(|| panic!("{field} is missing")).value {
            MetricValue::Counter(count) => count,
            MetricValue::Gauge(value) => value as u64,
            ref other => panic!("{other:?}"),
        }
    };
    let scheduler = Scheduler::<u64>::builder().build_stepped(1).unwrap();
    let timers = scheduler.handle();
    for key in 0..9 {
        timers.schedule(key, SECOND, |_| ()).unwrap();
    }
    timers.schedule(1, SECOND, |_| ()).unwrap();
    timers.cancel(&2);
    scheduler.advance(SECOND);
    let metrics = timers.metrics();
    for (field, expected) in timers.stats().iter() {
        assert_eq!(value(&metrics, field), expected, "{field}");
    }
    let stepped = ExpiryMap::<u64, u64>::builder().build_stepped(1, |_, _| ());
    let stepped = stepped.unwrap();
    stepped.map().insert(1, 1).unwrap();
    assert_eq!(stepped.map().get(&7), None);
    let metrics = stepped.map().metrics();
    for (field, expected) in stepped.map().stats().iter() {
        assert_eq!(value(&metrics, field), expected, "{field}");
    }
}

#[test]
fn several_instances_make_one_text_that_keeps_the_rules_of_the_format() {
    let hostile = "a\\b\"c\nd{},= \u{1F980}\r\\";
    let mut metrics = of_all_types("plain");
    metrics.extend(of_all_types(hostile));
    metrics.extend(of_all_types(""));
    let families = families(&metrics);
    let pending = families
        .iter()
        .find(|family| family.name == "tourbillon_pending");
    let samples = pending.expect("it is exported").samples.iter();
    let labels: BTreeSet<_> = samples
        .map(|sample| {
            (
                sample.labels["type"].as_str(),
                sample.labels["name"].as_str(),
            )
        })
        .collect();
    let types = ["scheduler", "map", "timer"];
    let names = ["plain", hostile, ""];
    let expected = types
        .iter()
        .flat_map(|kind| names.map(|name| (*kind, name)));
    assert_eq!(labels, expected.collect());
}

#[test]
#[cfg_attr(not(has_promtool), ignore = "needs: apt-get install prometheus")]
fn promtool_finds_nothing_to_complain_about() {
    let mut metrics = of_all_types("plain");
    metrics.extend(of_all_types("a\\b\"c\nd{},= \u{1F980}\r\\"));
    assert_promtool_takes(&metrics);
}

#[test]
fn an_instance_without_a_name_has_a_number_of_its_own() {
    let timers = [(); 3].map(|()| Timer::builder().workers(1).build().unwrap());
    let mut names = BTreeSet::new();
    for timer in &timers {
        let metrics = timer.metrics();
        let of_one: BTreeSet<_> = metrics
            .iter()
            .flat_map(|metric| metric.labels().filter(|(label, _)| *label == "name"))
            .map(|(_, name)| name.to_owned())
            .collect();
        assert_eq!(of_one.len(), 1);
        names.extend(of_one);
    }
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names.iter().all(|name| name.parse::<u32>().is_ok()),
        "{names:?}"
    );
    // The same instance has the same name each time.
    assert_eq!(
        exported(&timers[0].metrics()),
        exported(&timers[0].metrics())
    );
}

#[test]
fn instances_of_one_type_and_name_are_added_up() {
    let mut metrics = of_all_types("a");
    metrics.extend(of_all_types("a"));
    for family in families(&metrics) {
        let is_of_scheduler = |sample: &&kit::metrics::Sample| {
            sample.labels["type"] == "scheduler" && !sample.labels.contains_key("le")
        };
        for sample in family.samples.iter().filter(is_of_scheduler) {
            let expected = match sample.name.as_str() {
                "tourbillon_scheduled_total" => 4.0,
                "tourbillon_ran_total" | "tourbillon_lateness_seconds_count" => 2.0,
                "tourbillon_pending" => 2.0,
                _ => continue,
            };
            assert_eq!(sample.value, expected, "{}", sample.name);
        }
    }
}

#[test]
fn the_buckets_of_lateness_are_cumulative_and_exact() {
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .clock(Clock::manual(&hand))
        .tick(Duration::from_millis(1))
        .build_stepped(1)
        .unwrap();
    let timers = scheduler.handle();
    // The machine stands still: every start is late by what is left of these three seconds.
    for (key, delay) in [(1, 2_999_u64), (2, 2_000), (3, 1_000), (4, 0)] {
        timers
            .schedule(key, Duration::from_millis(delay), |_| ())
            .unwrap();
    }
    hand.advance(3 * SECOND);
    scheduler.advance(Duration::ZERO);
    let lateness = histogram(&timers.metrics(), "tourbillon_lateness_seconds");
    assert_eq!(lateness.count(), timers.stats().lateness().count);
    let late = [1_u64, 1_000, 2_000, 3_000].map(Duration::from_millis);
    for (end, count) in lateness.buckets() {
        let expected = late.iter().filter(|late| **late <= end).count();
        assert_eq!(count, expected as u64, "{end:?}");
    }
    let exact: Duration = late.iter().sum();
    assert!(
        lateness.sum().abs_diff(exact) <= exact / 8,
        "{:?}",
        lateness.sum()
    );
}

#[test]
fn the_parts_of_the_lateness_are_histograms_too() {
    let metrics = of_all_types("a");
    for part in [
        "tourbillon_tick_lag_seconds",
        "tourbillon_queue_lag_seconds",
    ] {
        assert_eq!(histogram(&metrics, part).count(), 1, "{part}");
    }
}

/// A reader that takes anything would prove nothing.
#[test]
fn the_reader_of_the_tests_refuses_what_the_format_forbids() {
    let good = "# HELP a Counted.\n# TYPE a counter\na_total{x=\"1\"} 1\na_total 2\n\
                # TYPE b_seconds gauge\n# HELP b_seconds Old.\n# UNIT b_seconds seconds\nb_seconds 1.5\n\
                # HELP d Late.\n# TYPE d histogram\nd_bucket{le=\"0.5\"} 1\nd_bucket{le=\"+Inf\"} 2\n\
                d_sum 1.0\nd_count 2\n# EOF\n";
    assert_eq!(read(good).map(|families| families.len()), Ok(3));
    assert_eq!(read("# EOF\n").map(|families| families.len()), Ok(0));
    for (from, to) in [
        ("# EOF\n", ""),
        ("# EOF\n", "# EOF\n# EOF\n"),
        ("# EOF\n", "\n# EOF\n"),
        ("# TYPE a counter\n", ""),
        ("# TYPE a counter\n", "# TYPE a counter\n# TYPE a counter\n"),
        ("# HELP a Counted.\n", ""),
        ("a_total 2\n", "a 2\n"),
        ("a_total 2\n", "a_total 2\na_total 3\n"),
        ("a_total 2\n", "a_total 2\n# HELP a Counted.\n"),
        ("a_total 2\n", "a_total -2\n"),
        ("a_total 2\n", "a_total  2\n"),
        ("a_total 2\n", "a_total two\n"),
        ("a_total 2\n", "a_total 2 1700000000\n"),
        ("x=\"1\"", "x=\"1"),
        ("x=\"1\"", "x=\"\\1\""),
        ("x=\"1\"", "x=1"),
        ("x=\"1\"", "x=\"1\",x=\"2\""),
        ("x=\"1\"", "1=\"1\""),
        ("# UNIT b_seconds seconds", "# UNIT b_seconds bytes"),
        ("# HELP d Late.", "# HELP a Late."),
        ("d_bucket{le=\"0.5\"} 1\n", "d_bucket{le=\"0.5\"} 3\n"),
        ("d_bucket{le=\"0.5\"} 1\n", "d_bucket{le=\"1\"} 1\n"),
        ("d_bucket{le=\"+Inf\"} 2\n", ""),
        ("d_count 2\n", "d_count 3\n"),
        ("d_count 2\n", ""),
        ("d_sum 1.0\n", ""),
    ] {
        let bad = good.replace(from, to);
        assert_ne!(bad, good);
        assert!(read(&bad).is_err(), "{bad}");
    }
}

#[cfg(feature = "metrics")]
mod published {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
        with_local_recorder,
    };

    use super::*;

    /// A recorder that keeps what it is told, by the text of each key.
    #[derive(Default)]
    struct Memory {
        counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
        gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
        described: Mutex<BTreeSet<(String, Option<&'static str>, String)>>,
    }

    impl Memory {
        fn describe(&self, name: &KeyName, unit: Option<Unit>, help: SharedString) {
            let described = (
                name.as_str().to_owned(),
                unit.map(|unit| unit.as_str()),
                help.into_owned(),
            );
            self.described.lock().unwrap().insert(described);
        }
    }

    impl Recorder for Memory {
        fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
            self.describe(&name, unit, help);
        }

        fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
            self.describe(&name, unit, help);
        }

        fn describe_histogram(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("{name:?} is a histogram");
        }

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let mut counters = self.counters.lock().unwrap();
            Counter::from_arc(Arc::clone(counters.entry(key.to_string()).or_default()))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let mut gauges = self.gauges.lock().unwrap();
            Gauge::from_arc(Arc::clone(gauges.entry(key.to_string()).or_default()))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("{key:?} is a histogram");
        }
    }

    #[test]
    fn counters_and_gauges_reach_the_recorder() {
        let memory = Memory::default();
        let scheduler = Scheduler::<u64>::builder()
            .name("requests")
            .build_stepped(1);
        let scheduler = scheduler.unwrap();
        let timers = scheduler.handle();
        timers.schedule(1, SECOND, |_| ()).unwrap();
        timers.schedule(2, 9 * SECOND, |_| ()).unwrap();
        let publish = || with_local_recorder(&memory, || timers.metrics().publish());
        publish();
        scheduler.advance(SECOND);
        publish();
        let read = |numbers: &Mutex<BTreeMap<String, Arc<AtomicU64>>>, name: &str| {
            let key = format!("Key({name}, [type = scheduler, name = requests])");
            let numbers = numbers.lock().unwrap();
            let number = numbers.get(&key).unwrap_or_else(|| panic!("{numbers:?}"));
            number.load(Ordering::Relaxed)
        };
        assert_eq!(read(&memory.counters, "tourbillon_scheduled_total"), 2);
        assert_eq!(read(&memory.counters, "tourbillon_ran_total"), 1);
        let pending = f64::from_bits(read(&memory.gauges, "tourbillon_pending"));
        assert_eq!(pending, 1.0);
        let numbers = exported(&timers.metrics())
            .into_iter()
            .filter(|[_, _, kind, _]| kind != "histogram");
        let expected = numbers.map(|[name, _, _, help]| (name, Some(Unit::Count.as_str()), help));
        assert_eq!(*memory.described.lock().unwrap(), expected.collect());
    }

    #[test]
    fn publishing_without_a_recorder_does_nothing() {
        of_all_types("a").publish();
    }
}
