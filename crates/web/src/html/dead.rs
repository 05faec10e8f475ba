//! Timers that were given up.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use tourbillon_durable::DeadTimer;

use super::{ago, bad, button, frame, limit, store_of, trouble};
use crate::access::Action;
use crate::guard::{Visit, Visitor};
use crate::orders::{Pairs, letters_of, value};
use crate::page::Shared;
use crate::sources::{DeadQuery, Store};

/// Reads which dead letters are asked for.
pub(crate) fn dead_query(pairs: &Pairs) -> Result<DeadQuery, String> {
    letters_of(pairs, limit(pairs)?)
}

/// The page is not live: whoever chooses letters must not see them move.
pub(super) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let store = store_of(&shared, &visit, &pairs)?;
    let query = dead_query(&pairs).map_err(|error| bad(&shared, &visit, &error))?;
    let found = store.dead(query.clone(), shared.shows_payloads).await;
    let queue = query.queue.as_deref().unwrap_or_default();
    let older_than = value(&pairs, "older_than");
    let filter = [
        ("all", "1"),
        ("store", store.name.as_str()),
        ("queue", queue),
        ("keys", &query.keys),
        ("older_than", older_than),
    ];
    let content = html! {
        form.search method="get" action=(visit.link("/dead", &[])) {
            input type="hidden" name="store" value=(store.name);
            label { "Queue " input name="queue" value=(queue); }
            label { "Keys that begin with " input type="search" name="keys" value=(query.keys); }
            label { "Older than " input name="older_than" value=(older_than) placeholder="30d" size="6"; }
            button { "Search" }
        }
        (trouble(&found))
        @match found.get() {
            None => {}
            Some(letters) if letters.is_empty() => p.empty { "There are none." },
            Some(letters) => {
                (letters_table(&shared, &visit, store, letters))
                p.actions {
                    (button(&visit, Action::Revive, "Revive all that match", &filter))
                    (button(&visit, Action::Discard, "Discard all that match", &filter))
                    @if let Some(next) = next(&visit, store, &query, older_than, letters) {
                        a href=(next) { "More" }
                    }
                }
            }
        }
    };
    Ok(frame(&shared, &visit, "Dead letters", &content).into_response())
}

fn next(
    visit: &Visit,
    store: &Store,
    query: &DeadQuery,
    older_than: &str,
    letters: &[DeadTimer],
) -> Option<String> {
    let last = letters
        .last()
        .filter(|_| letters.len() as u32 >= query.limit)?;
    let after = last.id.to_string();
    let queue = query.queue.as_deref().unwrap_or_default();
    let names = [
        ("store", store.name.as_str()),
        ("queue", queue),
        ("keys", &query.keys),
        ("older_than", older_than),
        ("after", &after),
    ];
    Some(visit.link("/dead", &names))
}

fn letters_table(shared: &Shared, visit: &Visit, store: &Store, letters: &[DeadTimer]) -> Markup {
    let chooses = visit.access.may(Action::Revive) || visit.access.may(Action::Discard);
    let rows = html! {
        table {
            thead { tr {
                @if chooses { th { } }
                th { "Given up" } th { "Queue" } th { "Key" } th { "Error" } th.n.wide { "Attempts" }
                @if shared.shows_payloads { th.wide { "Payload" } }
            } }
            tbody {
                @for letter in letters {
                    tr {
                        @if chooses {
                            td { input type="checkbox" name="id" value=(letter.id) aria-label={ "choose " (letter.key) }; }
                        }
                        td { (ago(letter.at)) }
                        td { (letter.queue) }
                        td.key {
                            (letter.key)
                            @if letter.has_timer { small { " scheduled again" } }
                        }
                        td.text { (letter.error) }
                        td.n.wide { (letter.attempt) }
                        @if shared.shows_payloads { td.text.wide { (letter.payload) } }
                    }
                }
            }
        }
    };
    if !chooses {
        return rows;
    }
    let actions = [
        (Action::Revive, "Revive the chosen"),
        (Action::Discard, "Discard the chosen"),
    ];
    html! {
        form method="get" action=(visit.link("/confirm", &[])) {
            input type="hidden" name="store" value=(store.name);
            (rows)
            p.actions {
                @for (action, words) in actions {
                    @if visit.access.may(action) {
                        button name="action" value=(action.as_str()) { (words) }
                    }
                }
            }
        }
    }
}
