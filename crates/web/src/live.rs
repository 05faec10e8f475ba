//! Live parts of pages: a stream for browsers, and one part alone for those that ask again and again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;

use crate::guard::{Visitor, plain};
use crate::html::View;
use crate::orders::Pairs;
use crate::page::Shared;

/// The time between two looks for a live page.
const EVERY: Duration = Duration::from_secs(1);

/// A stream ends after this many looks, and the browser opens another one. That request is checked
/// again, so a user who has lost the right to read sees nothing new from then on.
const LONGEST: u32 = 300;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/part/{view}", get(part))
        .route("/live/{view}", get(live))
}

async fn part(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Path(view): Path<String>,
    Query(pairs): Query<Pairs>,
) -> Response {
    let Ok(view) = view.parse::<View>() else {
        return plain(StatusCode::NOT_FOUND, "there is no such view\n".to_owned());
    };
    Html(view.render(&shared, &visit, &pairs).await.into_string()).into_response()
}

async fn live(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Path(view): Path<String>,
    Query(pairs): Query<Pairs>,
) -> Response {
    let Ok(view) = view.parse::<View>() else {
        return plain(StatusCode::NOT_FOUND, "there is no such view\n".to_owned());
    };
    let Ok(permit) = Arc::clone(&shared.live).try_acquire_owned() else {
        let later = [(header::RETRY_AFTER, "5")];
        let words = "too many live pages: this page asks every 5 s instead\n";
        return (StatusCode::TOO_MANY_REQUESTS, later, words).into_response();
    };
    let state = Live {
        shared: Arc::downgrade(&shared),
        _permit: permit,
        last: String::new(),
        looks: 0,
    };
    let events = stream::unfold(
        (state, visit, pairs),
        move |(mut live, visit, pairs)| async move {
            while live.looks < LONGEST {
                live.looks += 1;
                if live.looks > 1 {
                    tokio::time::sleep(EVERY).await;
                }
                // A stream does not keep the router.
                let shared = live.shared.upgrade()?;
                let html = view.render(&shared, &visit, &pairs).await.into_string();
                if html != live.last {
                    live.last.clone_from(&html);
                    let event = Event::default().data(html);
                    return Some((Ok::<_, Infallible>(event), (live, visit, pairs)));
                }
            }
            None
        },
    );
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}

struct Live {
    shared: std::sync::Weak<Shared>,
    _permit: OwnedSemaphorePermit,
    last: String,
    looks: u32,
}
