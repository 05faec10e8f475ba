//! What the pages show.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use tourbillon::{ExpiryMap, Scheduler, Timer};
use tourbillon_durable::{Cron, Due, Durable, Memory, RetryPolicy};
use tourbillon_leases::{Leases, MemoryStore};
use tourbillon_web::{Access, Page};

use crate::support::{HOSTILE, HOUR, full, get, idle, link, until, with_dead};

#[tokio::test]
async fn hostile_names_are_shown_as_text() {
    let timers = idle();
    for name in HOSTILE {
        timers.schedule(name, name, HOUR, name).wait().unwrap();
    }
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let _held: Vec<_> = HOSTILE
        .iter()
        .map(|name| leases.lock(name).wait().unwrap())
        .collect();
    let map = ExpiryMap::<u8, u8>::builder()
        .name(HOSTILE[0])
        .time_to_idle(HOUR)
        .build(|_, _| ())
        .unwrap();
    let page = Page::new()
        .timers(HOSTILE[1], &timers)
        .locks(HOSTILE[0], &leases)
        .instance(map);
    let router = page
        .show_payloads(true)
        .access(|_| Access::full(HOSTILE[0]))
        .router();
    let overview = get(&router, "/").await;
    assert!(
        overview
            .page()
            .contains("&lt;script&gt;alert(1)&lt;/script&gt;")
    );
    for name in HOSTILE {
        let names = [("store", HOSTILE[1]), ("queue", name), ("key", name)];
        let timer = get(&router, &link("/timer", &names)).await;
        assert!(timer.page().contains("It is due in "), "{}", timer.text);
        for path in [
            "/queue",
            "/dead",
            "/locks",
            "/confirm",
            "/part/queue",
            "/part/timer",
            "/nowhere",
        ] {
            let all = [
                &names[..],
                &[("keys", name), ("names", name), ("action", name)],
            ]
            .concat();
            get(&router, &link(path, &all)).await.is_clean();
        }
        let confirmed = [&names[..], &[("action", "cancel")]].concat();
        assert!(
            get(&router, &link("/confirm", &confirmed))
                .await
                .page()
                .contains("Are you sure")
        );
    }
    get(&router, "/process").await.page();
    get(&router, "/locks").await.page();
}

#[tokio::test]
async fn schedules_are_shown_in_words() {
    let timers = idle();
    let daily = Cron::new("0 6 * * *", "Europe/Berlin").unwrap();
    let key = HOSTILE[0];
    timers.schedule("invoices", key, daily, &()).wait().unwrap();
    timers
        .schedule("invoices", "once", HOUR, &())
        .wait()
        .unwrap();
    let router = full(&timers);
    let names = [("queue", "invoices"), ("key", key)];
    let page = get(&router, &link("/timer", &names)).await;
    for text in [
        "0 6 * * * in Europe/Berlin",
        "<dt>Occurrence</dt>",
        "<dt>Then</dt>",
    ] {
        assert!(page.page().contains(text), "{text}: {}", page.text);
    }
    let queue = get(&router, "/queue?queue=invoices").await;
    assert!(
        queue.page().contains("0 6 * * * in Europe/Berlin"),
        "{}",
        queue.text
    );
    let timer = &get(&router, &link("/api/v1/timer", &names)).await.json()["stores"][0]["timer"];
    assert_eq!(timer["schedule"]["expression"], "0 6 * * *");
    assert_eq!(timer["schedule"]["then"].as_array().unwrap().len(), 4);
    let list = get(&router, "/api/v1/timers?queue=invoices").await.json();
    let list = list["stores"][0]["timers"].as_array().unwrap();
    let once = list.iter().find(|timer| timer["key"] == "once").unwrap();
    assert!(once["schedule"].is_null());
    let schedule = list.iter().find(|timer| timer["key"] == key).unwrap();
    assert_eq!(schedule["schedule"]["zone"], "Europe/Berlin");
    let alone = get(&router, "/api/v1/timers?queue=invoices&schedules=1")
        .await
        .json();
    let alone = alone["stores"][0]["timers"].as_array().unwrap();
    assert_eq!(alone.len(), 1);
    assert_eq!(alone[0]["key"], key);
    let page = get(&router, "/queue?queue=invoices&schedules=1").await;
    assert!(!page.page().contains(">once<"), "{}", page.text);
}

#[tokio::test]
async fn a_schedule_that_no_process_names_is_flagged_in_the_list() {
    let store = Memory::new();
    let node = || {
        let node = Durable::builder(store.clone());
        node.handle("invoices", |_: &Due<()>| ())
    };
    let daily = || Cron::new("0 6 * * *", "UTC").unwrap();
    let named = node().cron("daily", daily(), &()).start().unwrap();
    let made = named.schedule("invoices", HOSTILE[0], daily(), &());
    made.wait().unwrap();
    let flagged = async |timers: &Durable| {
        let queue = get(&full(timers), "/queue?queue=invoices").await;
        let parts = queue.page().matches(">daily<").count();
        assert_eq!(parts, 1, "{}", queue.text);
        queue.text.matches("unnamed</small>").count()
    };
    // The process writes it when it joins.
    until(async || flagged(&named).await == 0).await;
    let other = node().start().unwrap();
    assert_eq!(flagged(&other).await, 0);
    drop(named);
    // Those that were made at run time never have the flag.
    until(async || flagged(&other).await == 1).await;
    assert_eq!(flagged(&idle_on(&store)).await, 1);
}

/// A process without handlers.
fn idle_on(store: &Memory) -> Durable {
    Durable::builder(store.clone()).start().unwrap()
}

#[tokio::test]
async fn errors_of_handlers_are_shown_as_text() {
    let timers = with_dead(&[HOSTILE[0], "order:7"], HOSTILE[1]);
    let router = full(&timers);
    let dead = get(&router, "/dead").await;
    assert!(dead.page().contains("&quot;&gt;&lt;img src=x") && dead.text.contains("order:7"));
    // A filter, and one that finds nothing.
    let some = get(&router, &link("/dead", &[("keys", "order:")])).await;
    assert!(some.page().contains("order:7") && !some.text.contains("&lt;script"));
    let none = get(&router, &link("/dead", &[("older_than", "30d")])).await;
    assert!(none.page().contains("There are none."));
    let bad = get(&router, &link("/dead", &[("older_than", "1y")])).await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn payloads_are_hidden_unless_they_may_be_shown() {
    let timers = with_dead(&["a"], "no");
    timers.schedule("mail", "b", HOUR, "secret").wait().unwrap();
    let pages = [
        "/timer?queue=mail&key=b",
        "/dead",
        "/api/v1/timer?queue=mail&key=b",
        "/api/v1/dead",
    ];
    for shows in [false, true] {
        let router = Page::new()
            .timers("shop", &timers)
            .show_payloads(shows)
            .router();
        for path in pages {
            assert_eq!(
                get(&router, path).await.page().contains("secret"),
                shows,
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn a_router_may_be_nested_anywhere() {
    let timers = idle();
    timers.schedule("mail", "7", HOUR, "x").wait().unwrap();
    let page = || {
        Page::new()
            .timers("shop", &timers)
            .access(|_| Access::full("anna"))
            .router()
    };
    for (app, base) in [
        (page(), ""),
        (Router::new().nest("/timers", page()), "/timers"),
        (Router::new().nest("/a/{tenant}", page()), "/a/b%20c"),
    ] {
        let overview = get(&app, if base.is_empty() { "/" } else { base }).await;
        let path = if base.is_empty() { "/" } else { base };
        assert!(
            overview
                .page()
                .contains(&format!("href=\"{base}/queue?store=shop&amp;queue=mail\""))
        );
        assert!(
            overview
                .header("set-cookie")
                .contains(&format!("; Path={path}; HttpOnly; SameSite=Strict"))
        );
        for asset in ["style.css", "page.js", "htmx.min.js", "sse.min.js"] {
            assert!(overview.text.contains(&format!("{base}/assets/{asset}")));
            let asset = get(&app, &format!("{base}/assets/{asset}")).await;
            assert!(asset.status == StatusCode::OK && !asset.text.is_empty());
            assert_eq!(asset.header("cache-control"), "public, max-age=3600");
        }
        let timer = get(&app, &format!("{base}/timer?queue=mail&key=7")).await;
        assert!(timer.page().contains(&format!(
            "href=\"{base}/confirm?action=cancel&amp;store=shop"
        )));
        assert_eq!(
            get(&app, &format!("{base}/nowhere")).await.status,
            StatusCode::NOT_FOUND
        );
    }
}

#[tokio::test]
async fn long_lists_have_pages() {
    let timers = idle();
    let keys: Vec<String> = (0..120)
        .map(|number| format!("order:{number:03}"))
        .collect();
    let all = keys.iter().map(|key| (key, HOUR, "x"));
    timers.schedule_many("pay-by", all).wait().unwrap();
    let router = full(&timers);
    let (mut path, mut seen) = ("/queue?queue=pay-by&keys=order:".to_owned(), Vec::new());
    for _ in 0..3 {
        let page = get(&router, &path).await;
        let found = page
            .page()
            .split("&amp;key=order%3A")
            .skip(1)
            .map(|rest| rest[..3].to_owned());
        seen.extend(found.filter(|key| key.bytes().all(|digit| digit.is_ascii_digit())));
        let mut links = page
            .text
            .split("href=\"")
            .map(|rest| rest.split('"').next().unwrap());
        let next = links.find(|link| link.contains("after="));
        path = next.map_or(String::new(), |link| link.replace("&amp;", "&"));
    }
    assert_eq!(path, "");
    seen.dedup();
    let expected: Vec<String> = (0..120).map(|number| format!("{number:03}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn what_can_not_be_asked_is_refused() {
    let router = full(&idle());
    for (path, status) in [
        ("/queue?state=dead", StatusCode::BAD_REQUEST),
        ("/queue?after=soon", StatusCode::BAD_REQUEST),
        ("/queue?limit=-1", StatusCode::BAD_REQUEST),
        ("/queue?limit=0", StatusCode::OK),
        ("/queue?limit=4294967295", StatusCode::OK),
        (
            "/queue?after=9223372036854775807&after_queue=a&after_key=b",
            StatusCode::OK,
        ),
        ("/queue?after=-9223372036854775808", StatusCode::OK),
        ("/queue?store=other", StatusCode::NOT_FOUND),
        ("/timer?store=other&queue=a&key=b", StatusCode::NOT_FOUND),
        ("/dead?after=x", StatusCode::BAD_REQUEST),
        ("/confirm", StatusCode::BAD_REQUEST),
        ("/confirm?action=explode", StatusCode::BAD_REQUEST),
        ("/part/nothing", StatusCode::NOT_FOUND),
        ("/live/nothing", StatusCode::NOT_FOUND),
        ("/api/v1/timers?state=dead", StatusCode::BAD_REQUEST),
        ("/api/v1/timer?queue=a&key=b", StatusCode::NOT_FOUND),
        ("/api/v1/queues?store=other", StatusCode::NOT_FOUND),
        ("/do", StatusCode::METHOD_NOT_ALLOWED),
        ("/queue?keys=%ff%fe", StatusCode::OK),
    ] {
        let answer = get(&router, path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.text);
        answer.is_clean();
    }
    // A name that no store takes is told in the page.
    let long = "x".repeat(5_000);
    let answer = get(&router, &link("/queue", &[("queue", &long)])).await;
    assert!(
        answer.page().contains("The question can't be asked: "),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn parts_of_the_process_are_shown() {
    let scheduler = Scheduler::<u64>::builder()
        .name("requests")
        .build()
        .unwrap();
    let timer = Timer::builder().name("timeouts").build().unwrap();
    let timers = idle();
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let page = Page::new().timers("shop", &timers).locks("memory", &leases);
    let router = page
        .instance(scheduler.handle().clone())
        .instance(timer)
        .router();
    let process = get(&router, "/process").await;
    for name in [
        "scheduler requests",
        "timer timeouts",
        "timers shop",
        "leases memory",
        "ready",
    ] {
        assert!(process.page().contains(name), "{name}");
    }
    let api = get(&router, "/api/v1/process").await.json();
    let names: Vec<&str> = api["instances"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "timers shop",
            "leases memory",
            "scheduler requests",
            "timer timeouts"
        ]
    );
    assert_eq!(api["instances"][2]["alive"], true);
}

#[test]
fn an_empty_page() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let router = Page::new().router();
        for path in ["/", "/process", "/locks"] {
            get(&router, path).await.page();
        }
    });
}

#[test]
#[should_panic(expected = "there are timers of the name \"a\" already")]
fn timers_of_a_name_that_is_there_already() {
    let timers = idle();
    let _ = Page::new().timers("a", &timers).timers("a", &timers);
}

#[tokio::test]
async fn a_timer_that_failed_says_when_it_is_tried_again() {
    let timers = Durable::builder(Memory::new())
        .handle("mail", |_: &Due<u64>| Err::<(), _>("no such address"))
        .retry(RetryPolicy::fixed(HOUR))
        .start()
        .unwrap();
    let now = Duration::ZERO;
    timers.schedule("mail", "7", now, &7_u64).wait().unwrap();
    let router = full(&timers);
    until(async || {
        let page = get(&router, "/timer?queue=mail&key=7").await;
        page.page().contains("Its handler has failed once. ")
            && page.text.contains("It is due in 59m")
    })
    .await;
}
