//! Locks that are held.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::{View, frame, live, trouble};
use crate::guard::Visitor;
use crate::json::mode;
use crate::orders::{Pairs, value};
use crate::page::Shared;
use crate::times::short;

/// The most locks of one answer.
pub(crate) const LOCKS: usize = 200;

pub(super) async fn page(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Query(pairs): Query<Pairs>,
) -> Response {
    let content = html! {
        form.search method="get" action=(visit.link("/locks", &[])) {
            label { "Names that begin with " input type="search" name="names" value=(value(&pairs, "names")); }
            button { "Search" }
        }
        (live(&visit, View::Locks, &pairs, &part(&shared, &pairs).await))
    };
    frame(&shared, &visit, "Locks", &content).into_response()
}

pub(super) async fn part(shared: &Shared, pairs: &Pairs) -> Markup {
    let mut sections = Vec::new();
    for locks in &shared.locks {
        let held = locks.held(value(pairs, "names"), LOCKS).await;
        sections.push(html! {
            section {
                @if shared.locks.len() > 1 { h2 { (locks.name) } }
                (trouble(&held))
                @match held.get() {
                    None => {}
                    Some((held, false)) if held.is_empty() => p.empty { "No lock is held." },
                    Some((held, more)) => {
                        table {
                            thead { tr {
                                th { "Name" } th { "Owner" } th.n { "Token" } th { "Time left" } th { "Mode" } th.wide { "Data" }
                            } }
                            tbody {
                                @for lock in held {
                                    tr {
                                        td.key { (lock.name) }
                                        td { (lock.holder.owner) }
                                        td.n { (lock.holder.token) }
                                        td { (short(lock.holder.remaining)) }
                                        td { (mode(&lock.holder)) }
                                        td.text.wide { (lock.holder.data) }
                                    }
                                }
                            }
                        }
                        @if *more { p { "There may be more: search by the beginning of the name." } }
                    }
                }
            }
        });
    }
    html! {
        @if sections.is_empty() { p.empty { "No server of locks is shown here." } }
        @for section in sections { (section) }
    }
}
