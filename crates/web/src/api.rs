//! Answers for programs: JSON, probes, and metrics.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Map, Value, json};
use tourbillon::metrics::{Metric, MetricValue, Metrics};
use tourbillon::{Finding, Health};
use tourbillon_durable::{DeadTimer, StoredTimer};

use crate::access::ActionEvent;
use crate::guard::{Visit, Visitor, plain};
use crate::html::{dead_query, list_query};
use crate::json;
use crate::orders::{Order, Outcome, Pairs, value};
use crate::page::Shared;
use crate::snapshots::Seen;
use crate::sources::Store;
use crate::times::{micros, time};

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/api/v1/queues", get(queues))
        .route("/api/v1/nodes", get(nodes))
        .route("/api/v1/timers", get(timers))
        .route("/api/v1/timer", get(timer))
        .route("/api/v1/dead", get(dead))
        .route("/api/v1/locks", get(locks))
        .route("/api/v1/process", get(process))
        .route("/api/v1/do", post(act))
}

/// The findings of all parts, with the name of the part.
pub(crate) fn health(shared: &Shared) -> Health {
    let named = |name: &str, health: Health| {
        let findings: Vec<Finding> = health.into_iter().collect();
        findings
            .into_iter()
            .map(|mut finding| {
                let inner = finding.source.take();
                finding.source =
                    Some(inner.map_or(name.to_owned(), |inner| format!("{name}: {inner}")));
                finding
            })
            .collect::<Vec<_>>()
    };
    let stores = shared
        .stores
        .iter()
        .flat_map(|store| named(&store.name, store.timers.health()));
    let locks = shared
        .locks
        .iter()
        .flat_map(|locks| named(&locks.name, locks.leases.health()));
    let instances = shared
        .instances
        .iter()
        .flat_map(|instance| named(&name_of(&instance.metrics()), instance.health()));
    stores.chain(locks).chain(instances).collect()
}

/// The name of an instance, by the labels of its metrics.
pub(crate) fn name_of(metrics: &Metrics) -> String {
    let labels: Vec<String> = metrics.iter().next().map_or_else(Vec::new, |first| {
        let labels = first
            .labels()
            .filter(|(name, _)| matches!(*name, "type" | "name"));
        labels.map(|(_, value)| value.to_owned()).collect()
    });
    labels.join(" ")
}

/// All metrics of this process that need no store, an instance after the other.
pub(crate) fn instances(shared: &Shared) -> Vec<(String, Health, Metrics)> {
    let stores = shared.stores.iter().map(|store| {
        (
            format!("timers {}", store.name),
            store.timers.health(),
            store.timers.metrics(),
        )
    });
    let locks = shared.locks.iter().map(|locks| {
        (
            format!("leases {}", locks.name),
            locks.leases.health(),
            locks.leases.metrics(),
        )
    });
    let others = shared.instances.iter().map(|instance| {
        let metrics = instance.metrics();
        (name_of(&metrics), instance.health(), metrics)
    });
    stores.chain(locks).chain(others).collect()
}

async fn healthz(State(shared): State<Arc<Shared>>, Extension(visit): Visitor) -> Response {
    probe(&visit, &health(&shared), Health::is_alive, "alive")
}

async fn readyz(State(shared): State<Arc<Shared>>, Extension(visit): Visitor) -> Response {
    probe(&visit, &health(&shared), Health::is_ready, "ready")
}

fn probe(visit: &Visit, health: &Health, holds: fn(&Health) -> bool, word: &str) -> Response {
    let (status, not) = match holds(health) {
        true => (StatusCode::OK, ""),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not "),
    };
    // Names and errors are for those who may see the page.
    match visit.access.may_read() {
        true => plain(status, health.to_string()),
        false => plain(status, format!("{not}{word}\n")),
    }
}

async fn metrics(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    let mut all = Metrics::default();
    for (_, _, metrics) in instances(&shared) {
        all.extend(metrics);
    }
    for store in &shared.stores {
        if let Some(of_queues) = store.metrics().await.get() {
            all.extend(of_queues.clone());
        }
    }
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let mut text = String::new();
    let kind = match accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        true => {
            all.openmetrics(&mut text);
            Metrics::OPENMETRICS
        }
        false => {
            all.prometheus(&mut text);
            Metrics::PROMETHEUS
        }
    };
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// The answer of one store.
fn of_store<V>(name: &str, seen: &Seen<V>, field: &str, show: impl FnOnce(&V) -> Value) -> Value {
    let mut object = Map::new();
    object.insert("store".to_owned(), json!(name));
    object.insert(
        "as_of".to_owned(),
        json!(seen.value.as_ref().map(|(_, at)| time(*at))),
    );
    object.insert("error".to_owned(), json!(seen.error));
    object.insert(field.to_owned(), seen.get().map_or(Value::Null, show));
    Value::Object(object)
}

fn all<T>(show: impl Fn(&T) -> Value) -> impl FnOnce(&Vec<T>) -> Value {
    move |list| Value::Array(list.iter().map(show).collect())
}

/// The stores that a request is about: one of a name, or all.
fn asked<'s>(shared: &'s Shared, pairs: &Pairs) -> Result<Vec<&'s Store>, Response> {
    match value(pairs, "store") {
        "" => Ok(shared.stores.iter().collect()),
        name => shared
            .store(name)
            .map(|store| vec![store])
            .ok_or_else(|| no_store(name)),
    }
}

fn no_store(name: &str) -> Response {
    wrong(
        StatusCode::NOT_FOUND,
        &format!("there is no store {name:?}"),
    )
}

fn wrong(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

fn answer(stores: &[Value]) -> Response {
    Json(json!({"stores": stores})).into_response()
}

async fn queues(
    State(shared): State<Arc<Shared>>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let mut stores = Vec::new();
    for store in asked(&shared, &pairs)? {
        stores.push(of_store(
            &store.name,
            &store.counts().await,
            "queues",
            all(json::queue),
        ));
    }
    Ok(answer(&stores))
}

async fn nodes(
    State(shared): State<Arc<Shared>>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let mut stores = Vec::new();
    for store in asked(&shared, &pairs)? {
        stores.push(of_store(
            &store.name,
            &store.nodes().await,
            "nodes",
            all(json::node),
        ));
    }
    Ok(answer(&stores))
}

async fn timers(
    State(shared): State<Arc<Shared>>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let query = list_query(&pairs).map_err(|error| wrong(StatusCode::BAD_REQUEST, &error))?;
    let mut stores = Vec::new();
    for store in asked(&shared, &pairs)? {
        let seen = store.list(query.clone()).await;
        let mut object = of_store(&store.name, &seen, "timers", all(json::timer));
        // Also behind a page that is not full: the store ends one also by its bytes.
        object["next"] = json!(seen.get().and_then(|timers| timers.last()).map(next));
        stores.push(object);
    }
    Ok(answer(&stores))
}

/// The parameters by which a program asks for the timers behind this one.
fn next(last: &StoredTimer) -> String {
    let mut next = form_urlencoded::Serializer::new(String::new());
    next.append_pair("after", &micros(last.due).to_string());
    next.append_pair("after_queue", &last.queue);
    next.append_pair("after_key", &last.key);
    next.finish()
}

async fn timer(
    State(shared): State<Arc<Shared>>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let name = value(&pairs, "store");
    let store = shared.store(name).ok_or_else(|| no_store(name))?;
    let seen = store
        .timer(value(&pairs, "queue"), value(&pairs, "key"))
        .await;
    if matches!(seen.get(), Some(None)) {
        return Err(wrong(StatusCode::NOT_FOUND, "there is no such timer"));
    }
    let (counts, nodes) = (store.counts().await, store.nodes().await);
    let show = |timer: &Option<StoredTimer>| {
        let Some(timer) = timer else {
            return Value::Null;
        };
        let mut object = json::timer(timer);
        let known = nodes.get().map(Vec::as_slice);
        object["schedule"] = crate::schedules::json(timer, known, Some(SystemTime::now()));
        let counts = counts
            .get()
            .and_then(|all| all.iter().find(|counts| counts.queue == timer.queue));
        // Without an answer nobody knows whether a process is alive.
        object["why"] = nodes.get().map_or(Value::Null, |nodes| {
            json!(crate::why(timer, counts, nodes, SystemTime::now()))
        });
        if shared.shows_payloads {
            object["payload"] = json::parsed(&timer.payload);
            object["meta"] = timer
                .meta
                .as_ref()
                .map_or(Value::Null, |meta| json::parsed(meta.as_str()));
        }
        object
    };
    Ok(answer(&[of_store(&store.name, &seen, "timer", show)]))
}

async fn dead(
    State(shared): State<Arc<Shared>>,
    Query(pairs): Query<Pairs>,
) -> Result<Response, Response> {
    let query = dead_query(&pairs).map_err(|error| wrong(StatusCode::BAD_REQUEST, &error))?;
    let show = |letter: &DeadTimer| {
        let mut object = json::letter(letter);
        if shared.shows_payloads {
            object["payload"] = json::parsed(&letter.payload);
        }
        object
    };
    let mut stores = Vec::new();
    for store in asked(&shared, &pairs)? {
        stores.push(of_store(
            &store.name,
            &store.dead(query.clone(), shared.shows_payloads).await,
            "dead",
            all(show),
        ));
    }
    Ok(answer(&stores))
}

async fn locks(State(shared): State<Arc<Shared>>, Query(pairs): Query<Pairs>) -> Response {
    let mut stores = Vec::new();
    for locks in &shared.locks {
        let seen = locks.held(value(&pairs, "names"), crate::html::LOCKS).await;
        let show = all(json::lock);
        let mut store = of_store(&locks.name, &seen, "locks", |(held, _)| show(held));
        store["more"] = json!(seen.get().is_some_and(|(_, more)| *more));
        stores.push(store);
    }
    answer(&stores)
}

async fn process(State(shared): State<Arc<Shared>>) -> Response {
    let seconds = |span: Duration| span.as_secs_f64();
    let metric = |metric: &Metric| {
        let labels: Map<String, Value> = metric
            .labels()
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        let value = match &metric.value {
            MetricValue::Counter(count) => json!(count),
            MetricValue::Gauge(value) => json!(value),
            MetricValue::Histogram(values) => {
                json!({"count": values.count(), "sum": seconds(values.sum())})
            }
            _ => Value::Null,
        };
        json!({"name": metric.name, "labels": labels, "value": value})
    };
    let instances = instances(&shared);
    let instances = instances.iter().map(|(name, health, metrics)| {
        let findings: Vec<String> = health.findings().iter().map(Finding::to_string).collect();
        json!({"name": name, "alive": health.is_alive(), "ready": health.is_ready(), "findings": findings,
            "metrics": metrics.iter().map(metric).collect::<Vec<_>>()})
    });
    Json(json!({"instances": instances.collect::<Vec<_>>()})).into_response()
}

async fn act(
    State(shared): State<Arc<Shared>>,
    Extension(visit): Visitor,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    // A form of another site can't send this type without being asked first.
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let is_json =
        kind.is_some_and(|kind| kind.split(';').next().unwrap_or("").trim() == "application/json");
    if !is_json {
        return wrong(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send JSON, with the type application/json",
        );
    }
    let object: Result<Value, _> = serde_json::from_slice(&body);
    let order = object
        .map_err(|error| error.to_string())
        .and_then(|object| Order::of_json(&object));
    let order = match order {
        Ok(order) => order,
        Err(error) => return wrong(StatusCode::BAD_REQUEST, &error),
    };
    match carry_out(&shared, &visit, &order).await {
        Ok(outcome) => (status(&outcome), Json(outcome.json())).into_response(),
        Err((status, error)) => wrong(status, &error),
    }
}

pub(crate) fn status(outcome: &Outcome) -> StatusCode {
    match outcome {
        Outcome::Done(_) => StatusCode::OK,
        Outcome::Not(_) => StatusCode::CONFLICT,
        Outcome::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Does an action, if the visitor may, and tells the listener.
pub(crate) async fn carry_out(
    shared: &Arc<Shared>,
    visit: &Visit,
    order: &Order,
) -> Result<Outcome, (StatusCode, String)> {
    if !visit.access.may(order.action) {
        return Err((
            StatusCode::FORBIDDEN,
            format!("you may not {} here", order.action),
        ));
    }
    let Some(store) = shared.store(&order.store) else {
        let error = format!("there is no store {:?}", order.store);
        return Err((StatusCode::NOT_FOUND, error));
    };
    let mut event = ActionEvent {
        user: visit.access.user().map(str::to_owned),
        action: order.action,
        store: store.name.clone(),
        target: order.target_in_words(),
        outcome: Ok(String::new()),
    };
    // The action is done and reported even if the browser disconnects.
    let (shared, order) = (Arc::clone(shared), order.clone());
    let done = tokio::spawn(async move {
        let store = shared.store(&order.store);
        let outcome = match store {
            Some(store) => {
                let outcome = order.carry_out(store).await;
                store.renew();
                outcome
            }
            None => Outcome::Not("there is no such store".to_owned()),
        };
        event.outcome = outcome.result();
        shared.tell(&event);
        outcome
    });
    Ok(done
        .await
        .unwrap_or_else(|error| Outcome::Failed(error.to_string())))
}
