//! Answers for programs.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::json;
use tourbillon_leases::{Leases, MemoryStore};
use tourbillon_web::Page;
use tower::ServiceExt;

use crate::support::{HOUR, full, get, idle, send, with_dead};

#[tokio::test]
async fn the_pages_as_json() {
    let timers = with_dead(&["a"], "no");
    timers.schedule("mail", "b", HOUR, "x").wait().unwrap();
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let _lock = leases.lock("orders/7").wait().unwrap();
    let router = Page::new()
        .timers("shop", &timers)
        .locks("memory", &leases)
        .router();
    let ask = async |path: &str| {
        get(&router, &format!("/api/v1/{path}")).await.json()["stores"][0].clone()
    };
    let queues = ask("queues").await;
    assert_eq!(
        (&queues["store"], &queues["error"]),
        (&json!("shop"), &json!(null))
    );
    assert!(queues["as_of"].as_str().unwrap().ends_with('Z'));
    let mail = &queues["queues"][0];
    assert_eq!(
        (&mail["queue"], &mail["waiting"], &mail["dead"]),
        (&json!("mail"), &json!(1), &json!(1))
    );
    assert_eq!(ask("nodes").await["nodes"][0]["name"], "node-1");
    assert_eq!(ask("timers?queue=mail").await["timers"][0]["key"], "b");
    assert_eq!(ask("timers?queue=mail&keys=x").await["timers"], json!([]));
    let timer = ask("timer?queue=mail&key=b").await["timer"].clone();
    assert_eq!(
        (&timer["state"], &timer["payload"]),
        (&json!("waiting"), &json!(null))
    );
    assert_eq!(timer["why"][0], "It is due in 59m 59s.");
    let dead = ask("dead").await["dead"][0].clone();
    assert_eq!((&dead["key"], &dead["error"]), (&json!("a"), &json!("no")));
    let locks = ask("locks").await;
    assert_eq!(
        (&locks["locks"][0]["name"], &locks["more"]),
        (&json!("orders/7"), &json!(false))
    );
}

#[tokio::test]
async fn a_list_of_locks_says_that_there_are_more() {
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let names: Vec<String> = (0..201).map(|number| format!("n{number:03}")).collect();
    let guards = leases.lock_all(&names).each().wait();
    assert!(guards.iter().all(Result::is_ok));
    let router = Page::new().locks("memory", &leases).router();
    for (path, count, more) in [
        ("/api/v1/locks", 200, true),
        ("/api/v1/locks?names=n0", 100, false),
    ] {
        let store = get(&router, path).await.json()["stores"][0].clone();
        assert_eq!(store["locks"].as_array().unwrap().len(), count);
        assert_eq!(store["more"], json!(more), "{path}");
    }
    let says = async |path| {
        get(&router, path)
            .await
            .page()
            .contains("There may be more")
    };
    assert!(says("/locks").await && !says("/locks?names=n0").await);
}

#[tokio::test]
async fn a_list_goes_on_where_it_ended() {
    let timers = crate::support::idle();
    let keys: Vec<String> = (0..25)
        .map(|number| format!("a&b=c d:{number:02}"))
        .collect();
    timers
        .schedule_many("q&x=1", keys.iter().map(|key| (key, HOUR, "x")))
        .wait()
        .unwrap();
    let router = full(&timers);
    let (mut after, mut seen) = (String::new(), Vec::new());
    loop {
        let path = format!("/api/v1/timers?queue=q%26x%3D1&limit=10&{after}");
        let store = get(&router, &path).await.json()["stores"][0].clone();
        let Some(next) = store["next"].as_str() else {
            break;
        };
        after = next.to_owned();
        let page = store["timers"].as_array().unwrap();
        seen.extend(
            page.iter()
                .map(|timer| timer["key"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(seen, keys);
}

#[tokio::test]
async fn metrics_come_in_the_format_that_is_asked_for() {
    let timers = with_dead(&["a"], "no");
    let router = full(&timers);
    let with = async |accept: &str| {
        let request = Request::get("/metrics").header(header::ACCEPT, accept);
        send(&router, request.body(Body::empty()).unwrap()).await
    };
    let open = with("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await;
    assert!(
        open.header("content-type")
            .starts_with("application/openmetrics-text")
    );
    assert!(open.text.ends_with("# EOF\n"));
    let plain = with("*/*").await;
    assert!(
        plain
            .header("content-type")
            .starts_with("text/plain; version=0.0.4")
    );
    for text in [open.text, plain.text] {
        assert!(
            text.contains(
                "tourbillon_durable_queue_dead_letters{name=\"node-1\",queue=\"mail\"} 1"
            ),
            "{text}"
        );
        assert!(text.contains("tourbillon_durable_dead_total{name=\"node-1\",queue=\"mail\"} 1"));
    }
}

#[tokio::test]
async fn probes_say_what_is_wrong() {
    let timers = idle();
    let router = full(&timers);
    for path in ["/healthz", "/readyz"] {
        let answer = get(&router, path).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (StatusCode::OK, "alive, ready\n")
        );
    }
    timers.stop(HOUR).wait().unwrap();
    assert_eq!(get(&router, "/healthz").await.status, StatusCode::OK);
    let ready = get(&router, "/readyz").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(ready.text.contains("shop: shut down"), "{}", ready.text);
}

#[tokio::test]
async fn live_pages_are_streams_and_there_are_not_too_many() {
    let timers = idle();
    timers.schedule("mail", "a\nb", HOUR, "x").wait().unwrap();
    let router = full(&timers);
    let open = async || {
        let request = Request::get("/live/queue?queue=mail")
            .body(Body::empty())
            .unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut answer = open().await;
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
        let first = answer
            .body_mut()
            .frame()
            .await
            .unwrap()
            .unwrap()
            .into_data()
            .unwrap();
        let first = std::str::from_utf8(&first).unwrap();
        // No line of a text ends the event.
        assert!(
            first.starts_with("data: ") && first.ends_with("\n\n"),
            "{first}"
        );
        assert!(
            first
                .lines()
                .all(|line| line.is_empty() || line.starts_with("data: ")),
            "{first}"
        );
        streams.push(answer);
    }
    assert_eq!(open().await.status(), StatusCode::TOO_MANY_REQUESTS);
    streams.pop();
    assert_eq!(open().await.status(), StatusCode::OK);
}
