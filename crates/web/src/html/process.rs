//! The parts of this process: health and metrics.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tourbillon::metrics::{Distribution, Metric, MetricValue};

use super::{View, frame, live};
use crate::api::instances;
use crate::guard::Visitor;
use crate::page::Shared;
use crate::samples::quantile;

pub(super) async fn page(State(shared): State<Arc<Shared>>, Extension(visit): Visitor) -> Response {
    let content = live(&visit, View::Process, &Vec::new(), &part(&shared));
    frame(&shared, &visit, "Process", &content).into_response()
}

pub(super) fn part(shared: &Shared) -> Markup {
    let instances = instances(shared);
    html! {
        @if instances.is_empty() { p.empty { "No part of this process is shown here." } }
        @for (name, health, metrics) in &instances {
            section {
                h2 {
                    (name) " "
                    @match (health.is_alive(), health.is_ready()) {
                        (true, true) => span.state.waiting { "ready" },
                        (true, false) => span.state.overdue { "not ready" },
                        (false, _) => span.state.overdue { "not alive" },
                    }
                }
                @if !health.findings().is_empty() {
                    ul.why { @for finding in health.findings() { li { (finding.to_string()) } } }
                }
                details open[shared.instances.len() < 4] {
                    summary { "Numbers since the start" }
                    @let (zero, others): (Vec<_>, Vec<_>) = metrics.iter().partition(|metric| is_zero(metric));
                    dl.metrics { @for metric in others { (row(metric)) } }
                    @if !zero.is_empty() { p.empty { (zero.len()) " others are 0." } }
                }
            }
        }
    }
}

fn is_zero(metric: &Metric) -> bool {
    match &metric.value {
        MetricValue::Counter(count) => *count == 0,
        MetricValue::Gauge(value) => *value == 0.0,
        MetricValue::Histogram(values) => values.count() == 0,
        _ => false,
    }
}

fn row(metric: &Metric) -> Markup {
    let name = metric.name.trim_start_matches("tourbillon_");
    let labels: Vec<&str> = metric
        .labels()
        .filter(|(name, _)| !matches!(*name, "type" | "name"))
        .map(|(_, value)| value)
        .collect();
    html! {
        dt title=(metric.help) {
            (name.trim_end_matches("_total").replace('_', " "))
            @if !labels.is_empty() { small { " " (labels.join(" ")) } }
        }
        dd {
            @match &metric.value {
                MetricValue::Counter(count) => (count),
                MetricValue::Gauge(value) => (value),
                MetricValue::Histogram(values) => (histogram(values)),
                _ => {}
            }
        }
    }
}

fn histogram(values: &Distribution) -> Markup {
    let at = |share| quantile(&Distribution::default(), values, share);
    html! {
        (values.count())
        @if let (Some(half), Some(most)) = (at(0.5), at(0.99)) {
            small { ": half below " (format!("{half:.1?}")) ", 99 % below " (format!("{most:.1?}")) }
        }
    }
}
