#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(
    clippy::result_large_err,
    reason = "the error is the answer to the request, and is sent at once"
)]
//! A page for what a program does with `tourbillon`: queues of durable timers, their processes and
//! dead letters, locks, schedulers and maps. It is a router for `axum`, so it stands beside the pages
//! of your program, behind the same login.
//!
//! ```
//! use axum::Router;
//! use tourbillon_durable::{Durable, Memory};
//! use tourbillon_web::Page;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let timers = Durable::builder(Memory::new()).start()?;
//! let page = Page::new().timers("shop", &timers);
//! let app: Router = Router::new().nest("/timers", page.router());
//! # Ok(())
//! # }
//! ```
//!
//! Without a program of your own, `tourbillon serve` of the package `tourbillon-cli` shows the page of
//! a SQLite file or of a PostgreSQL database.
//!
//! # What it shows
//!
//! | page | content |
//! |---|---|
//! | overview | each queue: due within 1 min, 10 min and later, overdue, running, dead, paused; the runs of this process in the last minute; processes and when they were seen |
//! | queue | the next timers, counting down; the running timers, with process and start; a search by the beginning of the key |
//! | timer | its times, attempts, data, and **why it has not run** |
//! | dead letters | errors; revive or discard chosen ones, or all that match a filter |
//! | locks | name, holder, token, time left of the lease |
//! | process | health and numbers of the schedulers, timers, maps and leases of this process |
//!
//! The server makes the pages. In a browser with JavaScript the numbers are live. Without JavaScript
//! all pages can be read, and all actions can be done.
//!
//! # Who may do what
//!
//! Without [`Page::access`], **everybody who reaches the page may read it, and nobody may change
//! anything**. The closure of `Page::access` decides for each request:
//!
//! ```
//! use tourbillon_web::{Access, Action, Page};
//!
//! let page = Page::new().access(|request| {
//!     match request.headers.get("x-user").and_then(|user| user.to_str().ok()) {
//!         Some("anna") => Access::full("anna"),
//!         Some(user) => Access::only(user, [Action::Pause, Action::Resume]),
//!         None => Access::denied(),
//!     }
//! });
//! ```
//!
//! The page asks for a confirmation before each action. After the action it calls the listener of
//! [`Page::on_action`] with the action and the user's name. A request that another site sends is
//! refused: the page checks the origin that the browser names, and a token in each form. Payloads and
//! meta data are hidden unless [`Page::show_payloads`] is called.
//!
//! # Addresses for programs
//!
//! | address | answer |
//! |---|---|
//! | `/healthz` | 200 if all parts are alive, 503 if not, with the findings for those who may read |
//! | `/readyz` | 200 if all parts are ready, 503 if not |
//! | `/metrics` | all metrics, for Prometheus; the numbers of the queues are at most 30 s old |
//! | `/api/v1/queues`, `nodes`, `timers`, `timer`, `dead`, `locks`, `process` | the pages as JSON: `{"stores": [{"store", "as_of", "error", ..}]}` |
//! | `POST /api/v1/do` | an action, as JSON: `{"action": "cancel", "store": "shop", "queue": "mail", "key": "7"}` |
//!
//! `timers` takes the parameters `store`, `queue`, `keys` (how the keys begin), `state`, `schedules` (1: only
//! timers with a schedule), and `limit` up to 500. Its answer has the parameters of the next page as `next`, which is null behind the last one. `dead` takes `older_than` instead of `state`. `locks` takes `names` (how the names begin).
//! A user who may not read still gets an answer of `/healthz` and `/readyz`, of one or two words.
//!
//! `pause` and `resume` are for a queue, and with a `key` for one schedule. `do` takes `store`, `queue`, `key`, `when`, `ids`, and for all dead letters of a filter `all`,
//! `queue`, `keys` and `older_than`. An action that gets a parameter which it does not take is refused,
//! so that a mistyped filter deletes nothing.
//!
//! # What it costs
//!
//! The page asks a store each question at most once in 1.5 s, however many people look. If an
//! answer took longer than 30 ms, the pause is fifty times as long as that, up to half a minute. At most two questions to a store are under way at one
//! time. Between two questions the page shows the last answer.
//!
//! A store that does not answer within a second does not hold up the page. The page then shows the
//! last answer, its age, and an error. Above [`Page::requests_per_second`] the answer is 429.

mod access;
mod api;
mod guard;
mod html;
#[doc(hidden)]
pub mod json;
mod live;
mod orders;
mod page;
mod samples;
#[doc(hidden)]
pub mod schedules;
mod snapshots;
mod sources;
#[doc(hidden)]
pub mod times;
mod why;

pub use access::{Access, Action, ActionEvent};
pub use guard::basic_user;
pub use page::Page;
pub use sources::Instance;
#[doc(hidden)]
pub use why::why;
