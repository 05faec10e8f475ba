//! Statistics as a list, and as text for Prometheus.

use kit::metrics::{Family, assert_documented, assert_promtool_takes, families};
use tourbillon::metrics::Metrics;
use tourbillon_leases::{KeepAlive, LeaseStats, Outcome};

use crate::worlds::{LEASE, world, world_of};

/// The value of a sample with this name and these labels.
fn value(families: &[Family], name: &str, labels: [&str; 2]) -> f64 {
    let mut samples = families.iter().flat_map(|family| &family.samples);
    let found = samples.find(|sample| {
        let own = [&sample.labels["type"], &sample.labels["name"]];
        sample.name == name && own == labels
    });
    found.unwrap_or_else(|| panic!("{name} is missing")).value
}

/// The metrics of some leases with a lock, and of a `KeepAlive`.
fn of_both(name: &str) -> Metrics {
    let world = world_of(1, 1, |builder| builder.name(name));
    let _guard = world.leases.lock("a").at_once().wait().unwrap();
    let builder = KeepAlive::<u64>::builder().name(name);
    let built = builder.build_stepped(1, async |batch| Ok(vec![Outcome::Renewed; batch.len()]));
    let (keep_alive, _steps) = built.unwrap();
    let mut metrics = world.leases.metrics();
    metrics.extend(keep_alive.metrics());
    metrics
}

#[test]
fn the_guide_lists_exactly_what_is_exported() {
    let guide = include_str!("../../src/guide/metrics.md");
    assert_documented(&of_both("a"), guide);
}

#[test]
fn every_number_of_the_statistics_is_a_metric() {
    let world = world_of(1, 1, |builder| builder.name("invoices"));
    let guard = world.leases.lock("a").at_once().wait().unwrap();
    assert!(world.leases.lock("a").at_once().wait().is_err());
    world.steps.advance(LEASE);
    guard.release().wait().unwrap();
    let _kept = world.leases.lock("b").at_once().wait().unwrap();
    let families = families(&world.leases.metrics());
    // A debug text names all fields, also those that are added later.
    let stats: LeaseStats = world.leases.stats();
    let text = format!("{stats:?}");
    let fields = text
        .trim_start_matches("LeaseStats { ")
        .trim_end_matches(" }");
    let mut number = 0;
    for field in fields.split(", ") {
        let (field, expected) = field.split_once(": ").unwrap();
        let family = format!("tourbillon_leases_{field}");
        let found = families.iter().find(|found| found.name == family);
        let found = found.unwrap_or_else(|| panic!("{family} is missing"));
        assert_eq!(
            found.samples[0].value,
            expected.parse::<f64>().unwrap(),
            "{field}"
        );
        number += 1;
    }
    assert_eq!(families.len(), number + 1, "a histogram, and nothing else");
    assert!(stats.renewed > 0 && stats.refused == 1 && stats.kept == 1);
    let labels = ["leases", "invoices"];
    let late = "tourbillon_leases_timer_lateness_seconds_count";
    assert!(value(&families, late, labels) > 0.0);
}

#[test]
fn several_instances_make_one_text() {
    let mut metrics = of_both("x");
    metrics.extend(of_both("y"));
    let families = families(&metrics);
    for name in ["x", "y"] {
        let kept = "tourbillon_leases_kept";
        assert_eq!(value(&families, kept, ["leases", name]), 1.0);
        assert_eq!(value(&families, kept, ["keep_alive", name]), 0.0);
    }
}

#[test]
fn leases_without_a_name_have_a_number_of_their_own() {
    let mut names: Vec<_> = (0..3)
        .map(|_| {
            let metrics = world(1).leases.metrics();
            let metric = metrics.iter().next().unwrap();
            let name = metric.labels().find(|(label, _)| *label == "name");
            name.unwrap().1.parse::<u32>().expect("a number")
        })
        .collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 3);
}

#[test]
#[cfg_attr(not(has_promtool), ignore = "needs: apt-get install prometheus")]
fn promtool_finds_nothing_to_complain_about() {
    assert_promtool_takes(&of_both("x"));
}
