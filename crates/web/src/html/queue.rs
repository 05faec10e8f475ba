//! One queue: its numbers, what runs, and the next timers.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tourbillon_durable::{StoredNode, StoredState, StoredTimer};

use super::{ROWS, View, ago, bad, button, frame, limit, live, number, state, store_of, trouble};
use crate::access::Action;
use crate::guard::{Visit, Visitor};
use crate::orders::{Pairs, value};
use crate::page::Shared;
use crate::schedules;
use crate::sources::{ListQuery, Store};
use crate::times::micros;

/// The running timers that stand above the others.
const RUNNING: u32 = 20;

const STATES: [StoredState; 4] = [
    StoredState::Waiting,
    StoredState::Overdue,
    StoredState::Running,
    StoredState::Paused,
];

/// Reads which timers are asked for.
pub(crate) fn list_query(pairs: &Pairs) -> Result<ListQuery, String> {
    let state = match value(pairs, "state") {
        "" => None,
        text => Some(STATES.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            format!("there is no state {text:?}: the states are waiting, overdue, running and paused")
        })?),
    };
    let limit = limit(pairs)?;
    let after = match value(pairs, "after") {
        "" => None,
        due => {
            let due = due
                .parse()
                .map_err(|_| "after must be microseconds since 1970".to_owned())?;
            let (queue, key) = (value(pairs, "after_queue"), value(pairs, "after_key"));
            Some((due, queue.to_owned(), key.to_owned()))
        }
    };
    Ok(ListQuery {
        queue: Some(value(pairs, "queue").to_owned()).filter(|queue| !queue.is_empty()),
        keys: value(pairs, "keys").to_owned(),
        state,
        schedules: value(pairs, "schedules") == "1",
        after,
        limit,
    })
}

pub(super) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let store = store_of(&shared, &visit, &pairs)?;
    let query = list_query(&pairs).map_err(|error| bad(&shared, &visit, &error))?;
    let queue = value(&pairs, "queue");
    let names = [("store", store.name.as_str()), ("queue", queue)];
    let content = html! {
        form.search method="get" action=(visit.link("/queue", &[])) {
            input type="hidden" name="store" value=(store.name);
            input type="hidden" name="queue" value=(queue);
            label { "Keys that begin with " input type="search" name="keys" value=(query.keys); }
            label {
                "State "
                select name="state" {
                    option value="" { "any" }
                    @for state in STATES {
                        option value=(state.as_str()) selected[query.state == Some(state)] { (state.as_str()) }
                    }
                }
            }
            label {
                "Timers "
                select name="schedules" {
                    option value="" { "all" }
                    option value="1" selected[query.schedules] { "schedules" }
                }
            }
            button { "Search" }
        }
        @if !queue.is_empty() {
            p.actions {
                (button(&visit, Action::Pause, "Pause the queue", &names))
                (button(&visit, Action::Resume, "Resume the queue", &names))
            }
        }
        (live(&visit, View::Queue, &pairs, &part(&shared, &visit, &pairs).await))
    };
    let title = if queue.is_empty() {
        "All queues".to_owned()
    } else {
        format!("Queue {queue}")
    };
    Ok(frame(&shared, &visit, &title, &content).into_response())
}

pub(super) async fn part(shared: &Shared, visit: &Visit, pairs: &Pairs) -> Markup {
    let (Some(store), Ok(query)) = (shared.store(value(pairs, "store")), list_query(pairs)) else {
        return html! { p.error { "There are no such timers." } };
    };
    let running = ListQuery {
        state: Some(StoredState::Running),
        after: None,
        limit: RUNNING,
        ..query.clone()
    };
    let wants_running = query.after.is_none() && query.state.is_none() && !query.schedules;
    let counts = store.counts().await;
    let running = match wants_running {
        true => Some(store.list(running).await),
        false => None,
    };
    let found = store.list(query.clone()).await;
    // Only a flag of a schedule needs the processes.
    let lists_schedules = found.get().is_some_and(|timers| {
        let mut timers = timers.iter();
        timers.any(|timer| timer.is_unnamed(&[]))
    });
    let nodes = match lists_schedules {
        true => Some(store.nodes().await),
        false => None,
    };
    let nodes = nodes.as_ref().and_then(|nodes| nodes.get());
    let numbers = counts.get().and_then(|all| {
        all.iter()
            .find(|one| Some(&one.queue) == query.queue.as_ref())
    });
    html! {
        (trouble(&found))
        @if let Some(numbers) = numbers {
            p.numbers {
                @if numbers.paused { span.state.paused { "paused" } " " }
                b { (number(numbers.overdue)) } " overdue, "
                b { (number(numbers.running)) } " running, "
                b { (number(numbers.within_minute)) } " due within 1 min, "
                b { (number(numbers.waiting)) } " waiting, "
                b { (number(numbers.dead)) } " dead"
            }
        }
        @if let Some(running) = running.as_ref().and_then(|seen| seen.get()).filter(|running| !running.is_empty()) {
            h2 { "Running" }
            table {
                thead { tr { th { "Since" } th { "Key" } th { "Process" } th.n { "Attempt" } } }
                tbody {
                    @for timer in running {
                        tr {
                            td { @if let Some(since) = timer.running { (ago(since)) } }
                            td.key { (link(visit, store, timer)) }
                            td { (timer.node.as_deref().unwrap_or("")) }
                            td.n { (timer.attempt) }
                        }
                    }
                }
            }
        }
        h2 { "Next timers" }
        @match found.get() {
            None => {}
            Some(timers) if timers.is_empty() => p.empty { "There are none." },
            Some(timers) => (table(visit, store, &query, timers, nodes.map(Vec::as_slice))),
        }
    }
}

fn link(visit: &Visit, store: &Store, timer: &StoredTimer) -> Markup {
    let names = [
        ("store", store.name.as_str()),
        ("queue", &timer.queue),
        ("key", &timer.key),
    ];
    html! { a href=(visit.link("/timer", &names)) { (timer.key) } }
}

fn table(
    visit: &Visit,
    store: &Store,
    query: &ListQuery,
    timers: &[StoredTimer],
    nodes: Option<&[StoredNode]>,
) -> Markup {
    let next = timers.last().filter(|_| timers.len() as u32 >= query.limit);
    let next = next.map(|last| {
        let (due, limit) = (micros(last.due).to_string(), query.limit.to_string());
        visit.link(
            "/queue",
            &[
                ("store", &store.name),
                ("queue", query.queue.as_deref().unwrap_or_default()),
                ("keys", &query.keys),
                ("state", query.state.map_or("", StoredState::as_str)),
                ("schedules", if query.schedules { "1" } else { "" }),
                ("after", &due),
                ("after_queue", &last.queue),
                ("after_key", &last.key),
                ("limit", if query.limit == ROWS { "" } else { &limit }),
            ],
        )
    });
    html! {
        table {
            thead { tr {
                th { "Due" }
                @if query.queue.is_none() { th { "Queue" } }
                th { "Key" } th { "State" } th.n.wide { "Attempts" }
            } }
            tbody {
                @for timer in timers {
                    tr {
                        td { (ago(timer.due)) }
                        @if query.queue.is_none() { td { (timer.queue) } }
                        td.key {
                            (link(visit, store, timer))
                            @let schedule = schedules::expression(timer);
                            @if !schedule.is_empty() { small { " " (schedule) } }
                            // Without an answer nobody knows.
                            @if nodes.is_some_and(|nodes| timer.is_unnamed(nodes)) {
                                small.late title="No process that runs names this schedule." { " unnamed" }
                            }
                        }
                        td {
                            (state(timer.state))
                            @if timer.fails > 0 { small.late { " " (timer.fails) @if timer.fails == 1 { " error" } @else { " errors" } } }
                            @if let Some(node) = &timer.node { small { " " (node) } }
                        }
                        td.n.wide { (timer.attempt) }
                    }
                }
            }
        }
        @if let Some(next) = next { p { a href=(next) { "Later timers" } } }
    }
}
