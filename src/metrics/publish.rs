//! Counters and gauges on their way to the recorder of the crate `metrics`.

use metrics::{Key, Label, Level, Metadata, Unit};

use super::{Metric, MetricValue};

/// Tells the recorder the values, and what they mean.
pub(super) fn publish(families: &[Vec<Metric>]) {
    let metadata = Metadata::new("tourbillon", Level::INFO, Some("tourbillon"));
    metrics::with_recorder(|recorder| {
        for family in families {
            let first = &family[0];
            let (name, help) = (first.name.into(), first.help.into());
            let unit = match first.unit {
                Some(_) => Unit::Seconds,
                None => Unit::Count,
            };
            match first.value {
                MetricValue::Counter(_) => recorder.describe_counter(name, Some(unit), help),
                MetricValue::Gauge(_) => recorder.describe_gauge(name, Some(unit), help),
                MetricValue::Histogram(_) => continue,
            }
            for metric in family {
                let labels = metric.labels.iter();
                let labels: Vec<_> = labels
                    .map(|(label, value)| Label::new(*label, value.clone()))
                    .collect();
                let key = Key::from_parts(metric.name, labels);
                match metric.value {
                    MetricValue::Counter(count) => {
                        recorder.register_counter(&key, &metadata).absolute(count);
                    }
                    MetricValue::Gauge(value) => {
                        recorder.register_gauge(&key, &metadata).set(value);
                    }
                    MetricValue::Histogram(_) => {}
                }
            }
        }
    });
}
