//! The page of a run: its timers, and a button that kills a worker.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{DOCTYPE, html};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tourbillon_web::{Access, Page};

use crate::database::{Database, Fault};

/// The lines of the page.
const LINES: usize = 20;

/// A page, until it is dropped.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    clicks: Receiver<()>,
    told: Arc<Told>,
    _threads: Runtime,
}

struct Told {
    began: Instant,
    lines: Mutex<VecDeque<String>>,
    clicks: SyncSender<()>,
}

impl Web {
    pub(crate) fn start(database: &dyn Database) -> Result<Web, Fault> {
        // The first click counts, and others that come before it is heard do not.
        let (sender, clicks) = sync_channel(1);
        let told = Arc::new(Told {
            began: Instant::now(),
            lines: Mutex::default(),
            clicks: sender,
        });
        let timers = Page::new()
            .timers("orders", &database.timers()?)
            .hosts(["127.0.0.1", "localhost"])
            .access(|_| Access::full("you"))
            .show_payloads(true);
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let listener = threads.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let state = Arc::clone(&told);
        threads.spawn(async move {
            let app = Router::new()
                .route("/", get(page))
                .route("/kill", post(kill))
                .with_state(state)
                .nest("/timers", timers.router());
            // It ends with its threads.
            let _ = axum::serve(listener, app).await;
        });
        Ok(Web {
            address,
            clicks,
            told,
            _threads: threads,
        })
    }

    /// Whether somebody has clicked since the last call.
    pub(crate) fn asks_for_a_kill(&self) -> bool {
        self.clicks.try_recv().is_ok()
    }

    pub(crate) fn tell(&self, line: &str) {
        let mut lines = self
            .told
            .lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        lines.push_front(format!(
            "{:6.1} s  {line}",
            self.told.began.elapsed().as_secs_f64()
        ));
        lines.truncate(LINES);
    }
}

async fn page(State(told): State<Arc<Told>>) -> Html<String> {
    let lines = told
        .lines
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="refresh" content="1";
                title { "Orders" }
                link rel="stylesheet" href="/timers/assets/style.css";
            }
            body { main {
                h1 { "Orders that are paid in time, or cancelled" }
                form method="post" action="/kill" { button.danger { "Kill a worker" } }
                p {
                    "What the others do then: "
                    a href="/timers" target="_blank" { "queues and processes" } ", "
                    a href="/timers/queue?queue=pay-by" target="_blank" { "orders that count down" } "."
                }
                pre { @for line in &lines { (line) "\n" } }
            } }
        }
    };
    Html(page.into_string())
}

async fn kill(State(told): State<Arc<Told>>, headers: HeaderMap) -> Response {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    if !matches!(site, None | Some(b"same-origin" | b"none")) {
        return (
            StatusCode::FORBIDDEN,
            "the request comes from another site\n",
        )
            .into_response();
    }
    let _ = told.clicks.try_send(());
    Redirect::to("/").into_response()
}
