//! The two text formats. They differ in the names of counters and in the last line.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Metric, MetricValue};

/// Writes families of metrics in the format of OpenMetrics 1.0.
pub(super) fn openmetrics(families: &[Vec<Metric>], out: &mut String) {
    for family in families {
        let first = &family[0];
        // The name of the family of a counter lacks the suffix that its samples have.
        let name = match first.value {
            MetricValue::Counter(_) => first.name.strip_suffix("_total").unwrap_or(first.name),
            _ => first.name,
        };
        head(name, first, out);
        if let Some(unit) = first.unit {
            line(out, format_args!("# UNIT {name} {unit}"));
        }
        samples(family, out);
    }
    out.push_str("# EOF\n");
}

/// Writes families of metrics in version 0.0.4 of the format of Prometheus.
pub(super) fn prometheus(families: &[Vec<Metric>], out: &mut String) {
    for family in families {
        head(family[0].name, &family[0], out);
        samples(family, out);
    }
}

fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // A `String` takes any text.
    let _ = out.write_fmt(line);
    out.push('\n');
}

fn head(name: &str, first: &Metric, out: &mut String) {
    line(out, format_args!("# HELP {name} {}", first.help));
    line(out, format_args!("# TYPE {name} {}", first.value.kind()));
}

fn samples(family: &[Metric], out: &mut String) {
    for metric in family {
        let name = metric.name;
        match &metric.value {
            MetricValue::Counter(count) => sample(out, metric, [name, ""], None, count),
            MetricValue::Gauge(value) => sample(out, metric, [name, ""], None, value),
            MetricValue::Histogram(values) => {
                for (end, count) in values.buckets() {
                    sample(out, metric, [name, "_bucket"], Some(&seconds(end)), &count);
                }
                let count = values.count();
                sample(out, metric, [name, "_bucket"], Some("+Inf"), &count);
                sample(out, metric, [name, "_sum"], None, &seconds(values.sum()));
                sample(out, metric, [name, "_count"], None, &count);
            }
        }
    }
}

/// Writes one line with a value. `end` is that of a bucket.
fn sample(
    out: &mut String,
    metric: &Metric,
    name: [&str; 2],
    end: Option<&str>,
    value: &dyn std::fmt::Display,
) {
    out.extend(name);
    let mut before = '{';
    for (label, value) in metric.labels().chain(end.map(|end| ("le", end))) {
        out.push(before);
        out.push_str(label);
        out.push_str("=\"");
        escape(value, out);
        out.push('"');
        before = ',';
    }
    if before == ',' {
        out.push('}');
    }
    line(out, format_args!(" {value}"));
}

/// Writes the value of a label.
fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

/// A duration in seconds, to the nanosecond and with at least one digit behind the point: bounds of
/// buckets are compared as texts.
fn seconds(duration: Duration) -> String {
    let mut text = format!("{}.{:09}", duration.as_secs(), duration.subsec_nanos());
    while text.ends_with('0') && !text.ends_with(".0") {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Collector, Distribution, POWERS};

    /// The metrics of an instance with this name: one of each kind.
    fn of_each_kind(name: &str, value: u64) -> crate::metrics::Metrics {
        let mut collector = Collector::new([("type", "map".to_owned()), ("name", name.to_owned())]);
        collector.counter("a_total", "Counted.", value);
        collector.gauge("b", "Now.", value);
        collector.seconds("c_seconds", "Old.", Duration::from_millis(1_500));
        let values = Distribution {
            below: Box::new(POWERS.map(|power| value.min(power.into()))),
            count: value,
            sum: Duration::from_millis(2_500),
        };
        collector.histogram("d_seconds", "Late.", values);
        collector.done()
    }

    #[test]
    fn several_instances_share_the_head_of_a_family() {
        let mut metrics = of_each_kind("x", 1);
        metrics.extend(of_each_kind("y", 2));
        let mut text = String::new();
        metrics.openmetrics(&mut text);
        let expected = "\
# HELP a Counted.
# TYPE a counter
a_total{type=\"map\",name=\"x\"} 1
a_total{type=\"map\",name=\"y\"} 2
# HELP b Now.
# TYPE b gauge
b{type=\"map\",name=\"x\"} 1
b{type=\"map\",name=\"y\"} 2
# HELP c_seconds Old.
# TYPE c_seconds gauge
# UNIT c_seconds seconds
c_seconds{type=\"map\",name=\"x\"} 1.5
c_seconds{type=\"map\",name=\"y\"} 1.5
# HELP d_seconds Late.
# TYPE d_seconds histogram
# UNIT d_seconds seconds
d_seconds_bucket{type=\"map\",name=\"x\",le=\"0.000004095\"} 1
";
        assert!(text.starts_with(expected), "{text}");
        let end = "\
d_seconds_bucket{type=\"map\",name=\"y\",le=\"1099.511627775\"} 2
d_seconds_bucket{type=\"map\",name=\"y\",le=\"+Inf\"} 2
d_seconds_sum{type=\"map\",name=\"y\"} 2.5
d_seconds_count{type=\"map\",name=\"y\"} 2
# EOF
";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(metrics.to_string(), text);
    }

    #[test]
    fn the_format_of_prometheus_names_counters_with_their_suffix() {
        let mut text = String::new();
        of_each_kind("x", 1).prometheus(&mut text);
        let expected = "# HELP a_total Counted.\n# TYPE a_total counter\n\
                        a_total{type=\"map\",name=\"x\"} 1\n# HELP b Now.\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            !text.contains("# UNIT") && !text.contains("# EOF"),
            "{text}"
        );
    }

    #[test]
    fn instances_of_one_name_are_added_up() {
        let mut metrics = of_each_kind("x", 1);
        metrics.extend(of_each_kind("x", 30));
        let text = metrics.to_string();
        for line in [
            "a_total{type=\"map\",name=\"x\"} 31\n",
            "b{type=\"map\",name=\"x\"} 31\n",
            "d_seconds_bucket{type=\"map\",name=\"x\",le=\"0.000004095\"} 13\n",
            "d_seconds_bucket{type=\"map\",name=\"x\",le=\"+Inf\"} 31\n",
            "d_seconds_sum{type=\"map\",name=\"x\"} 5.0\n",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line}{text}");
        }
    }

    #[test]
    fn label_values_are_escaped() {
        let text = of_each_kind("a\\b\"c\nd{}, \u{e9}", 1).to_string();
        assert!(text.contains("\nb{type=\"map\",name=\"a\\\\b\\\"c\\nd{}, \u{e9}\"} 1\n"));
    }

    #[test]
    fn nothing_is_only_an_end() {
        assert_eq!(crate::metrics::Metrics::default().to_string(), "# EOF\n");
        let mut nameless = Collector::new([]);
        nameless.gauge("b", "Now.", 3);
        assert!(nameless.done().to_string().contains("\nb 3\n"));
    }

    #[test]
    fn seconds_have_the_digits_that_they_need() {
        for (nanos, text) in [
            (0, "0.0"),
            (1, "0.000000001"),
            (1_500_000_000, "1.5"),
            (3_000_000_000, "3.0"),
            ((1 << 40) - 1, "1099.511627775"),
        ] {
            assert_eq!(seconds(Duration::from_nanos(nanos)), text);
        }
        assert_eq!(seconds(Duration::MAX), "18446744073709551615.999999999");
    }
}
