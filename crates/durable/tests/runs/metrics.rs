//! Statistics as a list, and as text for Prometheus.

use std::collections::BTreeSet;

use kit::metrics::{Family, assert_documented, assert_promtool_takes, families};
use kit::wait;
use tourbillon::metrics::Metrics;
use tourbillon_durable::{Due, Durable, Memory};

use super::setup::{HOUR, NOW, node, settled, soon};

/// A process with two queues: the runs of one succeed, and those of the other end as dead letters.
fn shop(name: &str) -> Durable {
    let timers = node(&Memory::new())
        .name(name)
        .handle("mail", |_: &Due<()>| ())
        .handle("webhook", |_: &Due<()>| -> Result<(), String> {
            Err("down".to_owned())
        })
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("mail", "a", NOW, &()).wait().unwrap();
    timers.schedule("mail", "b", HOUR, &()).wait().unwrap();
    timers.schedule("webhook", "a", NOW, &()).wait().unwrap();
    settled(&timers, "mail", "a");
    wait::until("the dead letter is counted", || timers.stats().dead == 1);
    timers
}

fn all_of(timers: &Durable) -> Metrics {
    let mut metrics = timers.metrics();
    metrics.extend(timers.store_metrics().wait().unwrap());
    metrics
}

/// The values of a metric by queue. What belongs to no queue is that of the queue without a name.
fn by_queue(families: &[Family], name: &str) -> Vec<(String, f64)> {
    let samples = families.iter().flat_map(|family| &family.samples);
    let named = samples.filter(|sample| sample.name == name);
    named
        .map(|sample| {
            let queue = sample.labels.get("queue").cloned();
            (queue.unwrap_or_default(), sample.value)
        })
        .collect()
}

#[test]
fn the_page_on_operation_lists_exactly_what_is_exported() {
    let page = include_str!("../../docs/operation.md");
    assert_documented(&all_of(&shop("a")), page);
}

#[test]
fn runs_are_counted_for_each_queue() {
    let timers = shop("shop");
    let families = families(&all_of(&timers));
    let expect = |name: &str, mail: f64, webhook: f64| {
        let expected = [("mail".to_owned(), mail), ("webhook".to_owned(), webhook)];
        assert_eq!(by_queue(&families, name), expected, "{name}");
    };
    expect("tourbillon_durable_runs_total", 1.0, 2.0);
    expect("tourbillon_durable_succeeded_total", 1.0, 0.0);
    expect("tourbillon_durable_failed_total", 0.0, 2.0);
    expect("tourbillon_durable_retried_total", 0.0, 1.0);
    expect("tourbillon_durable_dead_total", 0.0, 1.0);
    expect("tourbillon_durable_queue_waiting", 1.0, 0.0);
    expect("tourbillon_durable_queue_dead_letters", 0.0, 1.0);
    let scheduled = by_queue(&families, "tourbillon_durable_scheduled_total");
    assert_eq!(scheduled, [(String::new(), 3.0)]);
    let starts = by_queue(&families, "tourbillon_durable_start_delay_seconds_count");
    assert_eq!(starts, [(String::new(), 3.0)]);
    assert!(
        families
            .iter()
            .flat_map(|family| &family.samples)
            .all(|sample| { sample.labels["name"] == "shop" })
    );
}

#[test]
fn every_number_of_the_statistics_is_a_metric_or_a_sum_of_some() {
    let timers = shop("shop");
    let (mut stats, mut metrics) = (timers.stats(), timers.metrics());
    // The node may be about to set a gauge.
    wait::until("the numbers are read at rest", || {
        (stats, metrics) = (timers.stats(), timers.metrics());
        stats == timers.stats()
    });
    let families = families(&metrics);
    // A debug text names all fields, also those that are added later.
    let text = format!("{stats:?}");
    let fields = text
        .trim_start_matches("DurableStats { ")
        .trim_end_matches(" }");
    let mut names = BTreeSet::new();
    for field in fields.split(", ") {
        let (field, expected) = field.split_once(": ").unwrap();
        let family = families
            .iter()
            .find(|family| family.name == format!("tourbillon_durable_{field}"));
        let family = family.unwrap_or_else(|| panic!("{field} is missing"));
        let sum: f64 = family.samples.iter().map(|sample| sample.value).sum();
        assert_eq!(sum, expected.parse::<f64>().unwrap(), "{field}");
        names.insert(&family.name);
    }
    let others: Vec<_> = families
        .iter()
        .filter(|family| !names.contains(&family.name))
        .map(|family| family.name.as_str())
        .collect();
    assert_eq!(
        others,
        [
            "tourbillon_durable_dead_by_crashes",
            "tourbillon_durable_start_delay_seconds"
        ]
    );
}

#[test]
fn a_client_has_the_metrics_of_its_calls() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    timers.schedule("mail", "a", HOUR, &()).wait().unwrap();
    let families = families(&timers.metrics());
    let scheduled = by_queue(&families, "tourbillon_durable_scheduled_total");
    assert_eq!(scheduled, [(String::new(), 1.0)]);
    assert!(by_queue(&families, "tourbillon_durable_runs_total").is_empty());
    // Without a name the label is a number.
    let names = families.iter().flat_map(|family| &family.samples);
    let names: BTreeSet<_> = names.map(|sample| &sample.labels["name"]).collect();
    assert_eq!(names.len(), 1);
    assert!(names.iter().all(|name| name.parse::<u32>().is_ok()));
}

#[test]
fn after_a_stop_the_counters_can_still_be_read() {
    let timers = shop("shop");
    timers.stop(HOUR).wait().unwrap();
    let families = families(&timers.metrics());
    assert_eq!(
        by_queue(&families, "tourbillon_durable_runs_total").len(),
        2
    );
    assert!(timers.store_metrics().wait().is_err());
}

#[test]
#[cfg_attr(not(has_promtool), ignore = "needs: apt-get install prometheus")]
fn promtool_finds_nothing_to_complain_about() {
    let mut metrics = all_of(&shop("x"));
    metrics.extend(all_of(&shop("a\\b\"c\n")));
    assert_promtool_takes(&metrics);
}
