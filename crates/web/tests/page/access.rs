//! Who may do what, and what comes from other sites.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use serde_json::json;
use tourbillon_web::{Access, Action, Page, basic_user};

use crate::support::{HOUR, TOKEN, form, full, get, idle, order, send, with_dead};

const CANCEL: [(&str, &str); 4] = [
    ("action", "cancel"),
    ("store", "shop"),
    ("queue", "mail"),
    ("key", "7"),
];

#[tokio::test]
async fn by_default_nobody_can_change_anything() {
    let timers = with_dead(&["a"], "no");
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let router = Page::new().timers("shop", &timers).router();
    for path in ["/", "/queue?queue=mail", "/timer?queue=mail&key=7", "/dead"] {
        let page = get(&router, path).await;
        assert!(!page.page().contains("/confirm"), "{path}: {}", page.text);
        assert!(!page.text.contains("checkbox") && page.text.contains("read only"));
    }
    for action in Action::ALL {
        let words = action.as_str();
        let all = [
            ("action", words),
            ("queue", "mail"),
            ("key", "7"),
            ("when", "1h"),
            ("id", "1"),
        ];
        let asked = get(&router, &crate::support::link("/confirm", &all)).await;
        assert_eq!(asked.status, StatusCode::FORBIDDEN, "{action}");
        assert_eq!(
            send(&router, form(&all)).await.status,
            StatusCode::FORBIDDEN,
            "{action}"
        );
        let object = match action {
            Action::Pause | Action::Resume => json!({"action": words, "queue": "mail"}),
            Action::Move => json!({"action": words, "queue": "mail", "key": "7", "when": "1h"}),
            Action::Revive | Action::Discard => json!({"action": words, "ids": [1]}),
            _ => json!({"action": words, "queue": "mail", "key": "7"}),
        };
        assert_eq!(
            send(&router, order(&object)).await.status,
            StatusCode::FORBIDDEN,
            "{action}"
        );
    }
    assert!(timers.get("mail", "7").wait().unwrap().is_some());
    assert_eq!(timers.dead("mail", 0, 10).wait().unwrap().len(), 1);
    assert!(!timers.counts().wait().unwrap()[0].paused);
}

#[tokio::test]
async fn some_may_do_some_things() {
    let timers = idle();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let page = Page::new().timers("shop", &timers);
    let router = page
        .access(|_| Access::only("anna", [Action::Pause]))
        .router();
    assert_eq!(
        send(&router, form(&CANCEL)).await.status,
        StatusCode::FORBIDDEN
    );
    let pause = [("action", "pause"), ("queue", "mail")];
    assert_eq!(send(&router, form(&pause)).await.status, StatusCode::OK);
    let page = get(&router, "/queue?queue=mail").await;
    assert!(page.page().contains("Pause the queue") && !page.text.contains("Resume the queue"));
}

#[tokio::test]
async fn a_request_of_another_site_changes_nothing() {
    let timers = idle();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let router = full(&timers);
    let changed = |change: fn(&mut Request<Body>)| {
        let mut request = form(&CANCEL);
        change(&mut request);
        request
    };
    let refused = [
        changed(|request| drop(request.headers_mut().remove(header::COOKIE))),
        changed(|request| {
            let other = format!("tourbillon_csrf={}", TOKEN.replace('0', "1"));
            request
                .headers_mut()
                .insert(header::COOKIE, other.parse().unwrap());
        }),
        changed(|request| {
            request
                .headers_mut()
                .insert(header::COOKIE, "tourbillon_csrf=".parse().unwrap());
        }),
        changed(|request| {
            request
                .headers_mut()
                .insert("sec-fetch-site", "cross-site".parse().unwrap());
        }),
        changed(|request| {
            request
                .headers_mut()
                .insert("sec-fetch-site", "same-site".parse().unwrap());
        }),
        changed(|request| {
            request.headers_mut().remove("sec-fetch-site");
            request
                .headers_mut()
                .insert(header::ORIGIN, "https://evil.test".parse().unwrap());
        }),
        changed(|request| {
            request.headers_mut().remove("sec-fetch-site");
            request
                .headers_mut()
                .insert(header::ORIGIN, "null".parse().unwrap());
        }),
        changed(|request| *request.body_mut() = Body::from("action=cancel&queue=mail&key=7")),
    ];
    for request in refused {
        let words = format!("{:?}", request.headers());
        assert_eq!(
            send(&router, request).await.status,
            StatusCode::FORBIDDEN,
            "{words}"
        );
    }
    // A form can send this type without being asked first, so the address for programs takes no other one.
    let mut plain = order(&json!({"action": "cancel", "queue": "mail", "key": "7"}));
    plain
        .headers_mut()
        .insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(
        send(&router, plain).await.status,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let mut other = order(&json!({"action": "cancel", "queue": "mail", "key": "7"}));
    other
        .headers_mut()
        .insert(header::ORIGIN, "https://evil.test".parse().unwrap());
    assert_eq!(send(&router, other).await.status, StatusCode::FORBIDDEN);
    assert!(timers.get("mail", "7").wait().unwrap().is_some());
    let same = changed(|request| {
        request.headers_mut().remove("sec-fetch-site");
        request
            .headers_mut()
            .insert(header::ORIGIN, "https://page.test".parse().unwrap());
    });
    assert_eq!(send(&router, same).await.status, StatusCode::OK);
    assert!(timers.get("mail", "7").wait().unwrap().is_none());
}

#[tokio::test]
async fn those_who_may_not_read_see_nothing() {
    let timers = with_dead(&["secret-key"], "no");
    let page = |access: fn() -> Access| {
        Page::new()
            .timers("shop", &timers)
            .access(move |_| access())
            .router()
    };
    let denied = page(Access::denied);
    let asked = page(Access::sign_in);
    let panics = page(|| panic!("on purpose"));
    let paths = [
        "/",
        "/dead",
        "/timer?queue=mail&key=secret-key",
        "/part/overview",
        "/live/overview",
        "/metrics",
        "/api/v1/dead",
        "/nowhere",
    ];
    for path in paths {
        for (router, status) in [
            (&denied, StatusCode::FORBIDDEN),
            (&asked, StatusCode::UNAUTHORIZED),
            (&panics, StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            let answer = get(router, path).await;
            assert_eq!(answer.status, status, "{path}");
            assert!(!answer.text.contains("secret"), "{path}");
            assert_eq!(answer.header("x-frame-options"), "DENY");
            assert_eq!(answer.header("set-cookie"), "");
        }
    }
    assert!(
        get(&asked, "/")
            .await
            .header("www-authenticate")
            .starts_with("Basic realm=")
    );
    // Scripts and styles are for everybody; what is none of them is no page with names.
    for path in ["/assets/", "/assets/nothing", "/assets/page.js/x"] {
        for router in [&denied, &asked] {
            let answer = get(router, path).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
            assert_eq!(answer.text, "there is no such page\n", "{path}");
        }
    }
    // Probes have no password. They hear one word.
    assert_eq!(get(&denied, "/healthz").await.text, "alive\n");
    assert_eq!(get(&asked, "/readyz").await.text, "ready\n");
}

#[tokio::test]
async fn a_password_is_checked_and_names_the_user() {
    let router: Router = Page::new()
        .access(|request| match basic_user(request, "correct horse") {
            Some(user) => Access::full(user),
            None => Access::sign_in(),
        })
        .router();
    let with = async |header: &str| {
        let request = Request::get("/").header(header::AUTHORIZATION, header);
        send(&router, request.body(Body::empty()).unwrap()).await
    };
    // anna:correct horse
    let right = with("Basic YW5uYTpjb3JyZWN0IGhvcnNl").await;
    assert!(right.page().contains("anna"));
    assert_eq!(
        with("basic YW5uYTpjb3JyZWN0IGhvcnNl").await.status,
        StatusCode::OK
    );
    for wrong in [
        "",
        "Basic",
        "Basic ",
        "Basic %%%",
        "Bearer YW5uYTpjb3JyZWN0IGhvcnNl",
        "Basic YW5uYTo=",
        "Basic YW5uYQ==",
        "Basic YW5uYTpjb3JyZWN0IGhvcnM=",
        "Basic //79/Pv6",
    ] {
        assert_eq!(
            with(wrong).await.status,
            StatusCode::UNAUTHORIZED,
            "{wrong}"
        );
    }
    // No password is none, not the empty one.
    let request = Request::get("/")
        .header(header::AUTHORIZATION, "Basic YW5uYTo=")
        .body(())
        .unwrap();
    assert_eq!(basic_user(&request.into_parts().0, ""), None);
}

#[tokio::test]
async fn only_its_own_host_names_are_answered() {
    let router = Page::new()
        .hosts(["localhost", "127.0.0.1", "[::1]"])
        .router();
    let with = async |host: &str| {
        let request = Request::get("/").header(header::HOST, host);
        send(&router, request.body(Body::empty()).unwrap())
            .await
            .status
    };
    for host in [
        "localhost",
        "LOCALHOST:7878",
        "127.0.0.1:7878",
        "[::1]:7878",
        "[::1]",
    ] {
        assert_eq!(with(host).await, StatusCode::OK, "{host}");
    }
    for host in [
        "evil.test",
        "localhost.evil.test",
        "evil.test:7878",
        "",
        "127.0.0.1.evil.test:1",
    ] {
        assert_eq!(with(host).await, StatusCode::FORBIDDEN, "{host}");
    }
    let none = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(send(&router, none).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn too_many_requests_are_told_to_come_later() {
    let router = Page::new()
        .requests_per_second(1)
        .access(|_| Access::full("anna"))
        .router();
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(get(&router, "/").await.status);
    }
    assert_eq!(statuses[..2], [StatusCode::OK; 2]);
    assert!(
        statuses
            .iter()
            .filter(|status| **status == StatusCode::TOO_MANY_REQUESTS)
            .count()
            >= 10
    );
    let late = get(&router, "/metrics").await;
    assert!(late.status != StatusCode::TOO_MANY_REQUESTS || late.header("retry-after") == "1");
    // Probes and styles are answered.
    assert_eq!(get(&router, "/healthz").await.status, StatusCode::OK);
    assert_eq!(
        get(&router, "/assets/style.css").await.status,
        StatusCode::OK
    );
    let head = Request::builder()
        .method(Method::HEAD)
        .uri("/assets/page.js")
        .body(Body::empty())
        .unwrap();
    assert_eq!(send(&router, head).await.status, StatusCode::OK);
}

#[tokio::test]
async fn strangers_do_not_take_the_turns_of_those_who_may_read() {
    let router = Page::new()
        .requests_per_second(1)
        .access(|request| match request.headers.contains_key("x-user") {
            true => Access::read_only(),
            false => Access::denied(),
        })
        .router();
    for _ in 0..20 {
        assert_eq!(get(&router, "/").await.status, StatusCode::FORBIDDEN);
    }
    let request = Request::get("/").header("x-user", "anna");
    let answer = send(&router, request.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn a_huge_form_is_refused() {
    let router = full(&idle());
    let huge = "x".repeat(100_000);
    let answer = send(&router, form(&[("action", "pause"), ("queue", &huge)])).await;
    assert!(answer.status.is_client_error(), "{}", answer.status);
    let answer = send(&router, order(&json!({"action": "pause", "queue": huge}))).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
}
