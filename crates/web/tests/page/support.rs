//! A page to ask, and what its answers are.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, header};
use http_body_util::BodyExt;
use tourbillon_durable::{Due, Durable, DurableEvent, Memory, RetryPolicy};
use tourbillon_web::{Access, Page};
use tower::ServiceExt;

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// Texts that would change a page, a terminal or a header if they were not escaped.
pub(crate) const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "\" onmouseover=\"alert(1)",
    "a&b=c%3Cd#e?f/../g h+i",
    "\u{1b}[2J\r\nSet-Cookie: a=b\n\ndata: x",
    "\u{202e}日本\u{1f980}",
];

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("it is text"))
    }

    /// The page of a request that succeeded, which holds no element that a text has made.
    #[track_caller]
    pub(crate) fn page(&self) -> &str {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.is_clean();
        &self.text
    }

    #[track_caller]
    pub(crate) fn is_clean(&self) {
        for mark in ["<script>alert", "<img", "\" onmouseover"] {
            assert!(!self.text.contains(mark), "{mark}: {}", self.text);
        }
        assert_eq!(self.header("x-frame-options"), "DENY");
        assert_eq!(self.header("x-content-type-options"), "nosniff");
        assert!(
            self.header("content-security-policy")
                .contains("frame-ancestors 'none'")
        );
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text).expect("it is JSON")
    }
}

pub(crate) async fn send(router: &Router, request: Request<Body>) -> Answer {
    let answer = router.clone().oneshot(request).await.expect("it answers");
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.expect("the body ends").to_bytes();
    Answer {
        status: parts.status,
        headers: parts.headers,
        text: String::from_utf8(body.to_vec()).expect("it is text"),
    }
}

pub(crate) async fn get(router: &Router, path: &str) -> Answer {
    let request = Request::get(path).header(header::HOST, "page.test");
    send(router, request.body(Body::empty()).expect("a request")).await
}

/// The address of a page with these parameters.
pub(crate) fn link(path: &str, pairs: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(pairs);
    format!("{path}?{}", query.finish())
}

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A form as a browser sends it that has asked for its page before.
pub(crate) fn form(pairs: &[(&str, &str)]) -> Request<Body> {
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.extend_pairs(pairs);
    body.append_pair("token", TOKEN);
    Request::post("/do")
        .header(header::HOST, "page.test")
        .header(header::COOKIE, format!("other=1; tourbillon_csrf={TOKEN}"))
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("sec-fetch-site", "same-origin")
        .body(Body::from(body.finish()))
        .expect("a request")
}

/// An order as a program sends it.
pub(crate) fn order(object: &serde_json::Value) -> Request<Body> {
    Request::post("/api/v1/do")
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(object.to_string()))
        .expect("a request")
}

pub(crate) fn idle() -> Durable {
    Durable::builder(Memory::new()).start().expect("it starts")
}

/// A page where everybody may do everything.
pub(crate) fn full(timers: &Durable) -> Router {
    Page::new()
        .timers("shop", timers)
        .access(|_| Access::full("anna"))
        .router()
}

/// Timers with a handler that fails, and these dead letters in the queue `mail`.
pub(crate) fn with_dead(keys: &[&str], error: &'static str) -> Durable {
    with_dead_in(&Memory::new(), keys, error)
}

pub(crate) fn with_dead_in(store: &Memory, keys: &[&str], error: &'static str) -> Durable {
    let (sender, dead) = mpsc::channel();
    let timers = Durable::builder(store.clone())
        .name("node-1")
        .on_event(move |event| {
            if let DurableEvent::Dead { .. } = event {
                let _ = sender.send(());
            }
        })
        .handle("mail", move |_: &Due<String>| Err::<(), _>(error))
        .retry(RetryPolicy::never())
        .start()
        .expect("it starts");
    for key in keys {
        timers
            .schedule("mail", key, Duration::ZERO, "secret")
            .wait()
            .expect("it is accepted");
        kit::wait::next(&dead);
    }
    timers
}

/// Asks again and again until it holds, for a minute at most.
pub(crate) async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never held");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
