//! The pages.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | routes, the frame of all pages, addresses, and what several pages show |
//! | `overview.rs`, `queue.rs`, `timer.rs`, `dead.rs`, `locks.rs`, `process.rs` | one page each |
//! | `confirm.rs` | the confirmation of an action, and what came of it |
//!
//! What may be anybody's text goes through the templates, which escape it.

mod confirm;
mod dead;
mod locks;
mod overview;
mod process;
mod queue;
mod timer;

use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};
use tourbillon_durable::{QueueCounts, StoredState};

pub(crate) use self::dead::dead_query;
pub(crate) use self::locks::LOCKS;
pub(crate) use self::queue::list_query;
use crate::access::Action;
use crate::guard::{Visit, Visitor, plain};
use crate::orders::{Pairs, value};
use crate::page::Shared;
use crate::snapshots::Seen;
use crate::sources::Store;
use crate::times::{distance, time};

/// The rows of a page.
const ROWS: u32 = 50;

/// The most rows of one answer for programs.
const MOST: u32 = 500;

/// Reads how many rows are asked for.
fn limit(pairs: &Pairs) -> Result<u32, String> {
    match value(pairs, "limit") {
        "" => Ok(ROWS),
        text => text
            .parse()
            .map(|limit: u32| limit.clamp(1, MOST))
            .map_err(|_| "limit must be a number".to_owned()),
    }
}

/// A part of a page that is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
    Overview,
    Queue,
    Timer,
    Locks,
    Process,
}

impl View {
    const fn name(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Queue => "queue",
            View::Timer => "timer",
            View::Locks => "locks",
            View::Process => "process",
        }
    }

    /// The part as it is now.
    pub(crate) async fn render(self, shared: &Shared, visit: &Visit, pairs: &Pairs) -> Markup {
        match self {
            View::Overview => overview::part(shared, visit).await,
            View::Queue => queue::part(shared, visit, pairs).await,
            View::Timer => timer::part(shared, visit, pairs).await,
            View::Locks => locks::part(shared, pairs).await,
            View::Process => process::part(shared),
        }
    }
}

impl FromStr for View {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [
            View::Overview,
            View::Queue,
            View::Timer,
            View::Locks,
            View::Process,
        ];
        all.into_iter().find(|view| view.name() == text).ok_or(())
    }
}

pub(crate) fn routes() -> Router<Arc<Shared>> {
    let asset = |kind: &'static str, text: &'static str| {
        get(async move || {
            let headers = [
                (header::CONTENT_TYPE, kind),
                (header::CACHE_CONTROL, "public, max-age=3600"),
            ];
            (headers, text)
        })
    };
    let script = "text/javascript; charset=utf-8";
    Router::new()
        .route("/", get(overview::page))
        .route("/queue", get(queue::page))
        .route("/timer", get(timer::page))
        .route("/dead", get(dead::page))
        .route("/locks", get(locks::page))
        .route("/process", get(process::page))
        .route("/confirm", get(confirm::ask))
        .route("/do", axum::routing::post(confirm::act))
        .route(
            "/assets/page.js",
            asset(script, include_str!("../../assets/page.js")),
        )
        .route(
            "/assets/htmx.min.js",
            asset(script, include_str!("../../assets/htmx.min.js")),
        )
        .route(
            "/assets/sse.min.js",
            asset(script, include_str!("../../assets/sse.min.js")),
        )
        .route(
            "/assets/style.css",
            asset(
                "text/css; charset=utf-8",
                include_str!("../../assets/style.css"),
            ),
        )
        .fallback(unknown)
}

async fn unknown(State(shared): State<Arc<Shared>>, Extension(visit): Visitor) -> Response {
    // An address below `/assets/` comes here too, also for those who may not read. The frame names stores.
    if !visit.access.may_read() {
        return plain(StatusCode::NOT_FOUND, "there is no such page\n".to_owned());
    }
    let page = frame(
        &shared,
        &visit,
        "Not found",
        &html! {
            p { "There is no such page. " a href=(visit.link("/", &[])) { "Overview" } }
        },
    );
    (StatusCode::NOT_FOUND, page).into_response()
}

impl Visit {
    /// The address of a page, with these parameters. Empty ones are left out.
    pub(crate) fn link(&self, path: &str, parameters: &[(&str, &str)]) -> String {
        // A router may be nested where only its own address is, without a slash.
        let mut link = match (self.base.as_str(), path) {
            ("", path) => path.to_owned(),
            (base, "/") => base.to_owned(),
            (base, path) => format!("{base}{path}"),
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        let given = parameters.iter().filter(|(_, value)| !value.is_empty());
        query.extend_pairs(given);
        let query = query.finish();
        if !query.is_empty() {
            link.push('?');
            link.push_str(&query);
        }
        link
    }
}

/// The whole page.
pub(crate) fn frame(shared: &Shared, visit: &Visit, title: &str, content: &Markup) -> Html<String> {
    let asset = |name: &str| visit.link(&format!("/assets/{name}"), &[]);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="htmx-config" content=r#"{"includeIndicatorStyles":false,"allowEval":false,"selfRequestsOnly":true,"historyCacheSize":0}"#;
                title { (title) " · tourbillon" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(asset("style.css"));
                script src=(asset("htmx.min.js")) defer {}
                script src=(asset("sse.min.js")) defer {}
                script src=(asset("page.js")) defer {}
            }
            body data-now=(Timestamp::now()) {
                header {
                    nav {
                        a.brand href=(visit.link("/", &[])) { "tourbillon" }
                        a href=(visit.link("/", &[])) { "Overview" }
                        @for store in &shared.stores {
                            a href=(visit.link("/dead", &[("store", &store.name)])) {
                                "Dead letters" @if shared.stores.len() > 1 { " of " (store.name) }
                            }
                        }
                        @if !shared.locks.is_empty() {
                            a href=(visit.link("/locks", &[])) { "Locks" }
                        }
                        a href=(visit.link("/process", &[])) { "Process" }
                    }
                    p.who {
                        @if let Some(user) = visit.access.user() { (user) ", " }
                        @if Action::ALL.iter().any(|action| visit.access.may(*action)) { "may act" } @else { "read only" }
                    }
                }
                main {
                    h1 { (title) }
                    (content)
                }
            }
        }
    };
    Html(page.into_string())
}

/// A part that is live, around what it shows first.
fn live(visit: &Visit, view: View, pairs: &Pairs, content: &Markup) -> Markup {
    let pairs: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let link = |kind: &str| visit.link(&format!("/{kind}/{}", view.name()), &pairs);
    html! {
        div hx-ext="sse" sse-connect=(link("live")) {
            div #live sse-swap="message" hx-get=(link("part")) hx-trigger="ask" { (content) }
        }
    }
}

/// The store of a request, or the page that says that there is none.
fn store_of<'s>(shared: &'s Shared, visit: &Visit, pairs: &Pairs) -> Result<&'s Store, Response> {
    let name = value(pairs, "store");
    shared.store(name).ok_or_else(|| {
        let page = frame(shared, visit, "Not found", &html! {
            p { "There is no store of the name " b { (name) } ". " a href=(visit.link("/", &[])) { "Overview" } }
        });
        (StatusCode::NOT_FOUND, page).into_response()
    })
}

/// The page that says what is wrong with a request.
fn bad(shared: &Shared, visit: &Visit, error: &str) -> Response {
    let page = frame(shared, visit, "Bad request", &html! { p.error { (error) } });
    (StatusCode::BAD_REQUEST, page).into_response()
}

/// Says why there is no newer answer, and how old this one is.
fn trouble<V>(seen: &Seen<V>) -> Markup {
    html! {
        @if let Some(error) = &seen.error {
            p.error role="alert" {
                b { (error) "." } " "
                @if let Some((_, at)) = &seen.value {
                    "The data below is from " (ago(*at)) "."
                }
            }
        }
    }
}

/// A time, as its distance from now. A script counts on.
fn ago(at: SystemTime) -> Markup {
    let text = distance(at, SystemTime::now());
    html! { time datetime=(time(at)) title=(time(at)) { (text) } }
}

/// A number of [`QueueCounts`], which end somewhere.
fn number(number: u64) -> String {
    match number < QueueCounts::MOST {
        true => number.to_string(),
        false => format!("{number}+"),
    }
}

fn state(state: StoredState) -> Markup {
    html! { span class={ "state " (state.as_str()) } { (state.as_str()) } }
}

/// A link to the confirmation of an action, if the visitor may do it.
fn button(visit: &Visit, action: Action, words: &str, parameters: &[(&str, &str)]) -> Markup {
    let mut all = vec![("action", action.as_str())];
    all.extend_from_slice(parameters);
    html! {
        @if visit.access.may(action) {
            a.button href=(visit.link("/confirm", &all)) { (words) }
        }
    }
}
