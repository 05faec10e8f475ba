//! All queues and processes of each store.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use tourbillon_durable::{QueueCounts, StoredNode};

use super::{View, ago, frame, live, number, trouble};
use crate::guard::{Visit, Visitor};
use crate::page::Shared;
use crate::sources::Store;
use crate::times::short;
use crate::why::SILENT;

pub(super) async fn page(State(shared): State<Arc<Shared>>, Extension(visit): Visitor) -> Response {
    let part = part(&shared, &visit).await;
    let page: Html<String> = frame(
        &shared,
        &visit,
        "Overview",
        &live(&visit, View::Overview, &Vec::new(), &part),
    );
    page.into_response()
}

pub(super) async fn part(shared: &Shared, visit: &Visit) -> Markup {
    let mut sections = Vec::new();
    for store in &shared.stores {
        let (counts, nodes) = futures_util::future::join(store.counts(), store.nodes()).await;
        sections.push(html! {
            section {
                @if shared.stores.len() > 1 { h2 { (store.name) } }
                (trouble(&counts))
                @if counts.error.is_none() { (trouble(&nodes)) }
                @if let Some(counts) = counts.get() {
                    (queues(visit, store, counts, nodes.get().map(Vec::as_slice)))
                }
                (runs(store))
                @if let Some(nodes) = nodes.get() { (processes(nodes)) }
            }
        });
    }
    html! {
        @if sections.is_empty() { p { "No timers are shown here." } }
        @for section in sections { (section) }
    }
}

/// The table of queues. `nodes` are `None` if the store has not said who they are.
fn queues(
    visit: &Visit,
    store: &Store,
    counts: &[QueueCounts],
    nodes: Option<&[StoredNode]>,
) -> Markup {
    let now = SystemTime::now();
    let link = |queue: &str| visit.link("/queue", &[("store", &store.name), ("queue", queue)]);
    let dead = |queue: &str| visit.link("/dead", &[("store", &store.name), ("queue", queue)]);
    let behind = |counts: &QueueCounts| {
        let late = counts
            .oldest
            .and_then(|oldest| now.duration_since(oldest).ok());
        late.filter(|_| counts.overdue > 0).map(short)
    };
    html! {
        @if counts.is_empty() {
            p.empty { "There are no timers, and no process has a handler." }
        } @else {
            table.queues {
                thead { tr {
                    th { "Queue" }
                    th.n { "Overdue" }
                    th.n { "Running" }
                    th.n.wide title="due within a minute" { "< 1 min" }
                    th.n.wide title="due within ten minutes" { "< 10 min" }
                    th.n title="all timers that are not due yet" { "Waiting" }
                    th.n { "Dead" }
                    th { }
                } }
                tbody {
                    @for counts in counts {
                        tr {
                            th scope="row" { a href=(link(&counts.queue)) { (counts.queue) } }
                            td.n.late[counts.overdue > 0] {
                                (number(counts.overdue))
                                @if let Some(behind) = behind(counts) { small { " " (behind) } }
                            }
                            td.n { (number(counts.running)) }
                            td.n.wide { (number(counts.within_minute)) }
                            td.n.wide { (number(counts.within_ten_minutes)) }
                            td.n { (number(counts.waiting)) }
                            td.n {
                                @if counts.dead > 0 { a.late href=(dead(&counts.queue)) { (number(counts.dead)) } }
                                @else { "0" }
                            }
                            td {
                                @if counts.paused { span.state.paused { "paused" } }
                                @else if let Some(word) = nodes.and_then(|nodes| no_runs(counts, nodes)) { span.state.overdue { (word) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Why no process runs the timers of a queue, in two words.
fn no_runs(counts: &QueueCounts, nodes: &[StoredNode]) -> Option<&'static str> {
    let handlers = nodes
        .iter()
        .filter(|node| node.queues.contains(&counts.queue));
    match handlers.map(|node| node.silent_for).min() {
        None => Some("no handler"),
        Some(least) if least >= SILENT => Some("handlers silent"),
        Some(_) => None,
    }
}

/// The runs of this process.
fn runs(store: &Store) -> Markup {
    let minute = store.samples.last_minute();
    if minute.total == 0 {
        return html! {};
    }
    html! {
        h2 { "Runs of this process in the last minute" }
        div.charts {
            figure {
                (bars(&minute.runs))
                figcaption { (minute.total) " in all, at most " (format!("{:.0}", peak(&minute.runs))) " a second" }
            }
            figure {
                (bars(&minute.lateness))
                figcaption {
                    "Started late: "
                    @if let Some((half, most)) = minute.quantiles {
                        "half of them below " (format!("{half:.1?}")) ", 99 % below " (format!("{most:.1?}"))
                    }
                }
            }
        }
    }
}

fn peak(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// A bar for each second of a minute, the newest on the right.
fn bars(values: &[f64]) -> Markup {
    let most = peak(values).max(f64::MIN_POSITIVE);
    let first = 60_usize.saturating_sub(values.len());
    html! {
        svg viewBox="0 0 240 48" role="img" preserveAspectRatio="none" {
            @for (index, value) in values.iter().enumerate() {
                @let height = 46.0 * value / most;
                rect x=(4 * (first + index)) y=(format!("{:.1}", 48.0 - height)) width="3" height=(format!("{height:.1}")) {}
            }
        }
    }
}

fn processes(nodes: &[StoredNode]) -> Markup {
    html! {
        h2 { "Processes" }
        @if nodes.is_empty() {
            p.empty { "No process with handlers is alive." }
        } @else {
            table {
                thead { tr { th { "Process" } th { "Seen" } th.wide { "Joined" } th { "Queues" } } }
                tbody {
                    @for node in nodes {
                        tr {
                            th scope="row" { (node.name) }
                            td.late[node.silent_for >= SILENT] { (short(node.silent_for)) " ago" }
                            td.wide { (ago(node.joined)) }
                            td { (node.queues.join(" ")) }
                        }
                    }
                }
            }
        }
    }
}
