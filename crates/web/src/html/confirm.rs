//! The confirmation of an action, and what came of it.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::{bad, frame, store_of};
use crate::access::Action;
use crate::api::{carry_out, status};
use crate::guard::{Visit, Visitor, is_token};
use crate::orders::{Order, Outcome, Pairs, Target, value};
use crate::page::Shared;

/// What the action means, in a question.
fn question(order: &Order) -> &'static str {
    match order.action {
        Action::Pause if matches!(order.target, Target::Timer { .. }) => {
            "Pause this schedule? It has no occurrence until it is resumed. A run that has begun goes on."
        }
        Action::Resume if matches!(order.target, Target::Timer { .. }) => {
            "Resume this schedule? Its policy decides about the occurrences that it has missed."
        }
        Action::Pause => {
            "Pause this queue? Its timers wait until it is resumed. Runs that have begun go on."
        }
        Action::Resume => "Resume this queue? Its overdue timers start at once.",
        Action::RunNow => "Make this timer due now?",
        Action::Move => "Move this timer?",
        Action::Cancel => "Cancel this timer? That can't be undone.",
        Action::Revive => "Make these dead letters timers again, due now?",
        Action::Discard => "Delete these dead letters? That can't be undone.",
    }
}

pub(super) async fn ask(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let order = Order::of(&pairs).map_err(|error| bad(&shared, &visit, &error))?;
    if !visit.access.may(order.action) {
        return Err(refused(
            &shared,
            &visit,
            &format!("You may not {} here.", order.action),
        ));
    }
    store_of(&shared, &visit, &pairs)?;
    let content = html! {
        p { (question(&order)) }
        p.target { (order.target_in_words()) }
        form method="post" action=(visit.link("/do", &[])) {
            @for (name, value) in order.pairs() { input type="hidden" name=(name) value=(value); }
            input type="hidden" name="token" value=(visit.token);
            p.actions {
                button.danger[matches!(order.action, Action::Cancel | Action::Discard)] { "Yes, " (order.action) }
                a href=(back(&visit, &order)) { "No" }
            }
        }
    };
    Ok(frame(&shared, &visit, "Are you sure?", &content).into_response())
}

pub(super) async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    headers: HeaderMap,
    form: Result<Form<Pairs>, FormRejection>,
) -> Result<Response, Response> {
    let Form(pairs) = form.map_err(|error| bad(&shared, &visit, &error.body_text()))?;
    if !is_token(&visit, &headers, value(&pairs, "token")) {
        let why = "The form is too old, or comes from another site. Go back, load the page again, and try once more.";
        return Err(refused(&shared, &visit, why));
    }
    let order = Order::of(&pairs).map_err(|error| bad(&shared, &visit, &error))?;
    store_of(&shared, &visit, &pairs)?;
    let outcome = carry_out(&shared, &visit, &order).await;
    let outcome = outcome.map_err(|(_, error)| refused(&shared, &visit, &error))?;
    let title = match &outcome {
        Outcome::Done(_) => "Done",
        _ => "Not done",
    };
    let content = html! {
        p.target { (order.target_in_words()) }
        @match outcome.result() {
            Ok(done) => p.done role="status" { (done) "." },
            Err(error) => p.error role="alert" { (error) "." },
        }
        p { a href=(back(&visit, &order)) { "Back" } }
    };
    Ok((status(&outcome), frame(&shared, &visit, title, &content)).into_response())
}

fn refused(shared: &Shared, visit: &Visit, why: &str) -> Response {
    let content: Markup = html! { p.error { (why) } };
    (
        StatusCode::FORBIDDEN,
        frame(shared, visit, "Refused", &content),
    )
        .into_response()
}

/// The page that the action was asked for on.
fn back(visit: &Visit, order: &Order) -> String {
    let store = ("store", order.store.as_str());
    match &order.target {
        Target::Queue(queue) => visit.link("/queue", &[store, ("queue", queue)]),
        Target::Timer { queue, key } | Target::Moved { queue, key, .. } => {
            visit.link("/timer", &[store, ("queue", queue), ("key", key)])
        }
        Target::Letters(_) => visit.link("/dead", &[store]),
        Target::AllLetters(query) => {
            let queue = query.queue.as_deref().unwrap_or_default();
            visit.link("/dead", &[store, ("queue", queue), ("keys", &query.keys)])
        }
    }
}
