//! Stores that fail, hang and come back, and how often they are asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde_json::json;
use tourbillon_durable::{DeadFilter, Durable, Memory, MemoryCall, MemoryFault, StoreError};

use crate::support::{HOUR, full, get, order, send, until, with_dead_in};

fn fails(_: &MemoryCall<'_>) -> MemoryFault {
    MemoryFault::Fail(StoreError::Unavailable("an <outage>".into()))
}

#[tokio::test]
async fn a_store_that_fails_is_told_beside_its_last_answer() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let router = full(&timers);
    assert!(get(&router, "/").await.page().contains("mail"));
    store.inject(fails);
    until(async || {
        let page = get(&router, "/").await;
        assert!(page.page().contains("mail"), "the last answer stays");
        page.text.contains("The store does not answer") && page.text.contains("an &lt;outage&gt;")
    })
    .await;
    // A page that was never answered has the error alone.
    let never = get(&router, "/timer?queue=mail&key=7").await;
    assert!(never.page().contains("does not answer") && !never.text.contains("no such timer"));
    let api = get(&router, "/api/v1/timers").await.json();
    assert!(
        api["stores"][0]["error"]
            .as_str()
            .unwrap()
            .contains("outage")
    );
    assert_eq!(api["stores"][0]["timers"], json!(null));
    let cancel = send(&router, order(&json!({"action": "pause", "queue": "mail"}))).await;
    assert_eq!(
        cancel.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        cancel.text
    );
    store.heal();
    until(async || !get(&router, "/").await.page().contains("does not answer")).await;
}

#[tokio::test]
async fn a_store_that_hangs_is_told_within_a_second() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|call| match call {
        MemoryCall::Counts | MemoryCall::Nodes => MemoryFault::Hang,
        _ => MemoryFault::None,
    });
    let router = full(&timers);
    let asked = Instant::now();
    let page = get(&router, "/").await;
    let took = asked.elapsed();
    assert!(page.page().contains("no answer yet"), "{}", page.text);
    // The page itself waits below a second; the rest is for a busy machine.
    assert!(took < Duration::from_secs(20), "{took:?}");
    // Other requests are answered meanwhile.
    assert_eq!(get(&router, "/healthz").await.status, StatusCode::OK);
    store.heal();
    until(async || !get(&router, "/").await.page().contains("does not answer")).await;
}

#[tokio::test]
async fn many_readers_ask_a_store_seldom() {
    let store = Memory::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let timers = Durable::builder(store.clone()).start().unwrap();
    let count = Arc::clone(&asked);
    store.inject(move |call| {
        if let MemoryCall::Counts | MemoryCall::Nodes | MemoryCall::List(_) = call {
            // Relaxed: only the number matters.
            count.fetch_add(1, Ordering::Relaxed);
        }
        MemoryFault::None
    });
    let router = tourbillon_web::Page::new()
        .timers("shop", &timers)
        .requests_per_second(1_000_000)
        .router();
    let begun = Instant::now();
    for _ in 0..500 {
        get(&router, "/").await.page();
        get(&router, "/queue?queue=mail").await.page();
    }
    // Four kinds of questions, each at once and once in 1.5 s from then on.
    let most = 4 * (2 + (begun.elapsed().as_millis() / 1_500) as usize);
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked >= 3 && asked <= most, "{asked} of {most}");
}

#[tokio::test]
async fn what_was_done_before_an_outage_is_told() {
    let store = Memory::new();
    let timers = with_dead_in(&store, &["1", "2", "3"], "no");
    let letters = timers.dead(DeadFilter::all(), 0, 10).wait().unwrap();
    let ids: Vec<i64> = letters.iter().map(|letter| letter.id).collect();
    let router = full(&timers);
    let discard = json!({"action": "discard", "ids": ids});
    let refuse_from = |store: &Memory, first: i64| {
        store.inject(move |call| match call {
            MemoryCall::Discard(ids) if ids.iter().any(|id| *id >= first) => {
                MemoryFault::Fail(StoreError::Refused("an <outage>".into()))
            }
            _ => MemoryFault::None,
        });
    };
    refuse_from(&store, ids[1]);
    let answer = send(&router, order(&discard)).await;
    assert_eq!(
        answer.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "{}",
        answer.text
    );
    let error = answer.json()["error"].to_string();
    assert!(
        error.contains("1 dead letters were deleted, and then: ") && error.contains("outage"),
        "{error}"
    );
    // Nothing is done before the first one fails, so the error stands alone.
    store.heal();
    refuse_from(&store, ids[0]);
    let rest = json!({"action": "discard", "ids": ids[1..]});
    let error = send(&router, order(&rest)).await.json()["error"].to_string();
    assert!(
        error.contains("outage") && !error.contains("and then"),
        "{error}"
    );
    store.heal();
    let left = timers.dead(DeadFilter::all(), 0, 10).wait().unwrap();
    assert_eq!(left.len(), 2);
}

#[tokio::test]
async fn processes_that_are_not_known_are_not_said_to_be_dead() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    store.inject(|call| match call {
        MemoryCall::Nodes => MemoryFault::Fail(StoreError::Refused("not for you".into())),
        _ => MemoryFault::None,
    });
    let router = full(&timers);
    let timer = get(&router, "/timer?queue=mail&key=7").await;
    assert!(timer.page().contains("not for you"), "{}", timer.text);
    assert!(!timer.text.contains("No process"), "{}", timer.text);
    let overview = get(&router, "/").await;
    assert!(overview.page().contains("mail"), "{}", overview.text);
    assert!(!overview.text.contains("no handler"), "{}", overview.text);
    let api = get(&router, "/api/v1/timer?queue=mail&key=7").await.json();
    assert_eq!(api["stores"][0]["timer"]["why"], json!(null));
    store.heal();
}
