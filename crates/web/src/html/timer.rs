//! One timer: why it has not run, its times, and what can be done to it.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tourbillon_durable::{StoredNode, StoredTimer};

use super::{View, ago, button, frame, live, state, store_of, trouble};
use crate::access::Action;
use crate::guard::{Visit, Visitor};
use crate::orders::{Pairs, value};
use crate::page::Shared;
use crate::times::time;
use crate::{schedules, why};

pub(super) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let store = store_of(&shared, &visit, &pairs)?;
    let (queue, key) = (value(&pairs, "queue"), value(&pairs, "key"));
    let names = [
        ("store", store.name.as_str()),
        ("queue", queue),
        ("key", key),
    ];
    let seen = store.timer(queue, key).await;
    let timer = seen.get().and_then(Option::as_ref);
    let has_schedule = timer.is_some_and(|timer| timer.schedule().is_some());
    let content = html! {
        p { "Queue " a href=(visit.link("/queue", &names[..2])) { (queue) } }
        (live(&visit, View::Timer, &pairs, &part(&shared, &visit, &pairs).await))
        p.actions {
            (button(&visit, Action::RunNow, "Run now", &names))
            (button(&visit, Action::Cancel, "Cancel", &names))
            @if has_schedule {
                (button(&visit, Action::Pause, "Pause the schedule", &names))
                (button(&visit, Action::Resume, "Resume the schedule", &names))
            }
        }
        @if visit.access.may(Action::Move) {
            form.search method="get" action=(visit.link("/confirm", &[])) {
                input type="hidden" name="action" value=(Action::Move.as_str());
                @for (name, value) in names { input type="hidden" name=(name) value=(value); }
                label { "Move to " input name="when" required placeholder="15m or 2031-12-24T18:00:00Z"; }
                button { "Move" }
            }
        }
    };
    Ok(frame(&shared, &visit, &format!("Timer {key}"), &content).into_response())
}

pub(super) async fn part(shared: &Shared, visit: &Visit, pairs: &Pairs) -> Markup {
    let (queue, key) = (value(pairs, "queue"), value(pairs, "key"));
    let Some(store) = shared.store(value(pairs, "store")) else {
        return html! { p.error { "There is no such store." } };
    };
    let seen = store.timer(queue, key).await;
    let (counts, nodes) = futures_util::future::join(store.counts(), store.nodes()).await;
    let counts = counts
        .get()
        .and_then(|all| all.iter().find(|counts| counts.queue == queue));
    let dead = [
        ("store", store.name.as_str()),
        ("queue", queue),
        ("keys", key),
    ];
    html! {
        (trouble(&seen))
        @match seen.get() {
            None => {}
            Some(None) => p.empty {
                "There is no such timer now. It has run, was cancelled, or is among the "
                a href=(visit.link("/dead", &dead)) { "dead letters" } "."
            },
            Some(Some(timer)) => {
                // Without an answer nobody knows whether a process is alive.
                @match nodes.get() {
                    Some(alive) => ul.why {
                        @for reason in why(timer, counts, alive, SystemTime::now()) { li { (reason) } }
                    },
                    None => (trouble(&nodes)),
                }
                (facts(shared, timer, nodes.get().map(Vec::as_slice)))
            }
        }
    }
}

fn facts(shared: &Shared, timer: &StoredTimer, nodes: Option<&[StoredNode]>) -> Markup {
    html! {
        dl {
            dt { "State" } dd { (state(timer.state)) }
            dt { "Due" } dd { (ago(timer.due)) small { " " (time(timer.due)) } }
            @for (name, text) in schedules::facts(timer, nodes, SystemTime::now()) {
                dt { (name) } dd { (text) }
            }
            @if timer.planned != timer.due {
                dt { "Planned" } dd { (ago(timer.planned)) small { " " (time(timer.planned)) } }
            }
            @if let (Some(node), Some(since)) = (&timer.node, timer.running) {
                dt { "Runs" } dd { "on " (node) ", since " (ago(since)) }
            }
            dt { "Attempts" } dd { (timer.attempt) }
            dt { "Errors" } dd { (timer.fails) }
            dt { "Crashes" } dd { (timer.crashes) }
            @if timer.cancelled { dt { "Cancelled" } dd { "no other run follows" } }
            @if timer.follows { dt { "Follows" } dd { "A run is under way. Due time and payload are those of the timer that follows it." } }
            dt { "Payload" } dd { (hidden(shared, Some(&timer.payload))) }
            dt { "Meta" } dd { (hidden(shared, timer.meta.as_ref().map(|meta| meta.as_str()))) }
        }
    }
}

/// What a program put into a timer, if it may be shown.
pub(super) fn hidden(shared: &Shared, text: Option<&str>) -> Markup {
    html! {
        @match text {
            None => small { "none" },
            Some(_) if !shared.shows_payloads => small { "hidden" },
            Some(text) => pre { (text) },
        }
    }
}
