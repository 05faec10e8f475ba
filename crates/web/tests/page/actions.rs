//! Each action, from the question to what came of it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::http::StatusCode;
use serde_json::json;
use tourbillon_durable::{Cron, Durable, Memory, StoredState};
use tourbillon_web::{Access, Page};

use crate::support::{
    Answer, HOSTILE, HOUR, TOKEN, form, full, get, idle, link, order, send, with_dead,
};

/// The names and values of the form in a page.
fn inputs(page: &str) -> Vec<(String, String)> {
    let inputs = page.split("<input type=\"hidden\" ").skip(1);
    let attribute = |input: &str, name: &str| {
        let (_, rest) = input
            .split_once(&format!("{name}=\""))
            .expect("the attribute");
        let value = &rest[..rest.find('"').expect("its end")];
        value
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&amp;", "&")
    };
    inputs
        .map(|input| (attribute(input, "name"), attribute(input, "value")))
        .collect()
}

/// Asks for an action as people do: the question, then its form.
async fn confirmed(router: &Router, pairs: &[(&str, &str)]) -> Answer {
    let question = get(router, &link("/confirm", pairs)).await;
    let inputs = inputs(question.page());
    let fields: Vec<(&str, &str)> = inputs
        .iter()
        .filter(|(name, _)| name != "token")
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    send(router, form(&fields)).await
}

fn due_in(timers: &Durable, key: &str) -> Duration {
    let timer = timers.get("mail", key).wait().unwrap().expect("the timer");
    timer
        .due
        .duration_since(SystemTime::now())
        .unwrap_or_default()
}

#[tokio::test]
async fn timers_are_moved_hurried_and_cancelled() {
    let timers = idle();
    let router = full(&timers);
    for key in ["7", HOSTILE[0], HOSTILE[3]] {
        timers.schedule("mail", key, HOUR, "x").wait().unwrap();
        let named = |action| {
            [
                ("action", action),
                ("queue", "mail"),
                ("key", key),
                ("when", "2h"),
            ]
        };
        assert!(
            confirmed(&router, &named("move"))
                .await
                .page()
                .contains("Done")
        );
        assert!(due_in(&timers, key) > HOUR);
        assert!(
            confirmed(&router, &named("run-now"))
                .await
                .page()
                .contains("Done")
        );
        assert_eq!(due_in(&timers, key), Duration::ZERO);
        let at = [
            ("action", "move"),
            ("queue", "mail"),
            ("key", key),
            ("when", "2099-01-01T00:00:00Z"),
        ];
        assert!(
            confirmed(&router, &at)
                .await
                .page()
                .contains("2099-01-01T00:00:00Z")
        );
        assert!(
            confirmed(&router, &named("cancel"))
                .await
                .page()
                .contains("is cancelled")
        );
        // Now there is none.
        for action in ["move", "run-now", "cancel"] {
            let answer = confirmed(&router, &named(action)).await;
            assert_eq!(answer.status, StatusCode::CONFLICT, "{action}");
            assert!(answer.text.contains("there is no such timer"));
            answer.is_clean();
        }
    }
    let bad = [
        ("action", "move"),
        ("queue", "mail"),
        ("key", "7"),
        ("when", "soon"),
    ];
    let answer = get(&router, &link("/confirm", &bad)).await;
    assert!(answer.status == StatusCode::BAD_REQUEST && answer.text.contains("15m"));
}

#[tokio::test]
async fn queues_are_paused_and_go_on() {
    let timers = idle();
    let router = full(&timers);
    for queue in ["mail", HOSTILE[0], HOSTILE[3]] {
        timers.schedule(queue, "7", HOUR, "x").wait().unwrap();
        let is_paused = || {
            let counts = timers.counts().wait().unwrap();
            counts
                .iter()
                .find(|counts| counts.queue == queue)
                .expect("the queue")
                .paused
        };
        confirmed(&router, &[("action", "pause"), ("queue", queue)])
            .await
            .page();
        assert!(is_paused());
        confirmed(&router, &[("action", "resume"), ("queue", queue)])
            .await
            .page();
        assert!(!is_paused());
    }
}

#[tokio::test]
async fn dead_letters_are_revived_and_discarded() {
    let timers = with_dead(&["a", "b", "c", "d", "e"], "no");
    let router = full(&timers);
    let ids = || -> Vec<String> {
        timers
            .dead("mail", 0, 100)
            .wait()
            .unwrap()
            .iter()
            .map(|letter| letter.id.to_string())
            .collect()
    };
    timers.pause("mail").wait().unwrap();
    let all = ids();
    let two = [("action", "revive"), ("id", &*all[0]), ("id", &*all[1])];
    assert!(
        confirmed(&router, &two)
            .await
            .page()
            .contains("2 timers are due now")
    );
    assert_eq!(ids().len(), 3);
    // They are gone, so it is told.
    let answer = confirmed(&router, &two).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    let mixed = [("action", "discard"), ("id", &*all[0]), ("id", &*all[2])];
    assert!(
        confirmed(&router, &mixed)
            .await
            .page()
            .contains("1 dead letters were deleted; 1 were")
    );
    let rest = [
        ("action", "discard"),
        ("all", "1"),
        ("queue", "mail"),
        ("keys", "e"),
    ];
    assert!(
        confirmed(&router, &rest)
            .await
            .page()
            .contains("1 dead letters were deleted")
    );
    assert_eq!(ids().len(), 1);
    let rest = [("action", "revive"), ("all", "1")];
    assert!(
        confirmed(&router, &rest)
            .await
            .page()
            .contains("1 timers are due now")
    );
    assert!(ids().is_empty());
}

#[tokio::test]
async fn each_action_is_told_with_the_user() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let timers = idle();
    timers
        .schedule("mail", HOSTILE[4], HOUR, "x")
        .wait()
        .unwrap();
    let listener = Arc::clone(&told);
    let router = Page::new()
        .timers("shop", &timers)
        .access(|_| Access::full("anna\n"))
        .on_action(move |event| {
            listener.lock().unwrap().push(event.to_string());
            panic!("on purpose");
        })
        .router();
    let cancel = json!({"action": "cancel", "store": "shop", "queue": "mail", "key": HOSTILE[4]});
    assert_eq!(
        send(&router, order(&cancel)).await.json(),
        json!({"done": "the timer is cancelled"})
    );
    let again = send(&router, order(&cancel)).await;
    assert_eq!(
        (again.status, again.json()["done"].clone()),
        (StatusCode::CONFLICT, json!(null))
    );
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    assert!(
        told.iter()
            .all(|line| !line.contains(['\n', '\r', '\u{1b}'])),
        "{told:?}"
    );
    assert!(
        told[0].starts_with("anna\\n: shop cancel mail ")
            && told[0].ends_with(": the timer is cancelled")
    );
    assert!(told[1].contains("failed: there is no such timer"));
}

#[tokio::test]
async fn a_form_without_a_cookie_gets_one_with_its_page() {
    let timers = idle();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let router = full(&timers);
    let question = get(&router, "/confirm?action=cancel&queue=mail&key=7").await;
    let inputs = inputs(question.page());
    let token = &inputs
        .iter()
        .find(|(name, _)| name == "token")
        .expect("a token")
        .1;
    assert!(
        question
            .header("set-cookie")
            .starts_with(&format!("tourbillon_csrf={token};"))
    );
    assert!(token.len() == 32 && token != TOKEN);
    assert_eq!(question.header("cache-control"), "no-store");
}

#[tokio::test]
async fn an_order_that_can_not_be_read_changes_nothing() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let router = full(&timers);
    for bad in [
        json!(null),
        json!(7),
        json!({"action": "pause"}),
        json!({"action": "pause", "queue": ["a", "b"], "store": "x"}),
        json!({"action": "pause", "queue": "mail", "key": ""}),
        json!({"action": "pause", "queue": "mail", "key": null}),
        json!({"action": "resume", "queue": "mail", "key": false}),
        json!({"action": {"a": 1}}),
        json!({"action": "revive", "ids": [{"a": 1}]}),
    ] {
        let answer = send(&router, order(&bad)).await;
        assert!(answer.status.is_client_error(), "{bad}: {}", answer.text);
        assert!(answer.json()["error"].is_string());
    }
    let mut broken = order(&json!({}));
    *broken.body_mut() = "{\"action\":".into();
    assert_eq!(send(&router, broken).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_form_for_a_store_that_is_not_there_changes_nothing() {
    let router = full(&idle());
    let pause = [("action", "pause"), ("queue", "mail"), ("store", "other")];
    let answer = send(&router, form(&pause)).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    assert!(answer.text.contains("There is no store"), "{}", answer.text);
    answer.is_clean();
}

#[tokio::test]
async fn a_schedule_is_paused_and_resumed() {
    let timers = idle();
    let key = HOSTILE[1];
    let daily = Cron::new("0 6 * * *", "UTC").unwrap();
    timers.schedule("invoices", key, daily, &()).wait().unwrap();
    timers
        .schedule("invoices", "once", HOUR, &())
        .wait()
        .unwrap();
    let router = full(&timers);
    let asked = |action, key| {
        [
            ("action", action),
            ("store", "shop"),
            ("queue", "invoices"),
            ("key", key),
        ]
    };
    let confirm = get(&router, &link("/confirm", &asked("pause", key))).await;
    assert!(
        confirm.page().contains("Pause this schedule?"),
        "{}",
        confirm.text
    );
    let state = || timers.get("invoices", key).wait().unwrap().unwrap().state;
    for (action, expected) in [
        ("pause", StoredState::Paused),
        ("resume", StoredState::Waiting),
    ] {
        let done = confirmed(&router, &asked(action, key)).await;
        assert!(done.page().contains("the schedule"), "{}", done.text);
        assert_eq!(state(), expected);
        assert!(!timers.counts().wait().unwrap()[0].paused);
    }
    let not = confirmed(&router, &asked("pause", "once")).await;
    assert_eq!(not.status, StatusCode::CONFLICT);
    assert!(
        not.text.contains("there is no such schedule"),
        "{}",
        not.text
    );
    timers.pause_schedule("invoices", key).wait().unwrap();
    let names = [("queue", "invoices"), ("key", key)];
    let page = get(&full(&timers), &link("/timer", &names)).await;
    for text in [
        "This schedule is paused",
        "none until the schedule is resumed",
        "Resume the schedule",
    ] {
        assert!(page.page().contains(text), "{text}: {}", page.text);
    }
}
