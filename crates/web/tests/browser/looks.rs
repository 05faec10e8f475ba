//! How it looks: live, bright and dark, narrow, and with many timers.

use std::time::Duration;

use serde_json::json;
use tourbillon::ExpiryMap;
use tourbillon_durable::{Durable, Memory};
use tourbillon_leases::{Leases, MemoryStore};
use tourbillon_web::{Access, Page};

use crate::browser::{Browser, HOUR, Server};

const PAGES: [&str; 7] = [
    "/",
    "/queue?queue=pay-by",
    "/timer?queue=pay-by&key=order:7",
    "/dead",
    "/locks",
    "/process",
    "/confirm?action=cancel&queue=pay-by&key=order:7",
];

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn numbers_are_live() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let page = Page::new().timers("shop", &timers);
    let server = Server::start(page.router()).await;
    let browser = Browser::open().await;
    browser
        .go(&format!("{}/queue?queue=pay-by", server.address))
        .await;
    browser.shows("There are none.").await;
    browser.value("window.same = 'page'").await;
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    browser.shows("order:7").await;
    // It counts down between two answers.
    browser.shows("in 59m 5").await;
    let first = browser
        .value("document.querySelector('time').textContent")
        .await;
    browser
        .until("it counts", async |browser| {
            browser
                .value("document.querySelector('time').textContent")
                .await
                != first
        })
        .await;
    // The keyboard stays where it is, and so does a text that is marked.
    browser
        .value("document.querySelector('td.key a').focus()")
        .await;
    timers
        .schedule("pay-by", "order:8", 2 * HOUR, &8_u8)
        .await
        .unwrap();
    browser.shows("order:8").await;
    assert_eq!(
        browser.value("document.activeElement.textContent").await,
        "order:7"
    );
    browser
        .value("getSelection().selectAllChildren(document.querySelector('td.key'))")
        .await;
    timers
        .schedule("pay-by", "order:9", 3 * HOUR, &9_u8)
        .await
        .unwrap();
    // Some answers, and a question of the page itself.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(browser.value("getSelection().toString()").await, "order:7");
    browser.value("getSelection().removeAllRanges()").await;
    browser.shows("order:9").await;
    for key in ["order:7", "order:8", "order:9"] {
        timers.cancel("pay-by", key).await.unwrap();
    }
    browser.shows("There are none.").await;
    assert_eq!(browser.value("window.same").await, "page");
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn both_schemes_and_a_narrow_screen() {
    let timers = Durable::builder(Memory::new())
        .name("shop-1")
        .start()
        .unwrap();
    let long = "order:".repeat(40);
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    timers.schedule("pay-by", &long, HOUR, &7_u8).await.unwrap();
    let leases = Leases::new(MemoryStore::new()).unwrap();
    let _lock = leases.lock(&long).wait().unwrap();
    let map = ExpiryMap::<u8, u8>::builder()
        .name("sessions")
        .time_to_idle(HOUR)
        .build(|_, _| ())
        .unwrap();
    let page = Page::new()
        .timers("shop", &timers)
        .locks("memory", &leases)
        .instance(map);
    let server = Server::start(page.access(|_| Access::full("anna")).router()).await;
    let browser = Browser::open().await;
    for scheme in ["light", "dark"] {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.devtools("Emulation.setEmulatedMedia", media).await;
        for path in PAGES {
            browser.go(&format!("{}{path}", server.address)).await;
            let colors = "[document.body, document.querySelector('h1')].map((part, at) => \
                getComputedStyle(part)[at ? 'color' : 'backgroundColor'].match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0))";
            let colors = browser.value(colors).await;
            let (paper, ink) = (colors[0].as_u64().unwrap(), colors[1].as_u64().unwrap());
            match scheme {
                "light" => assert!(paper > 700 && ink < 120, "{path}: {colors}"),
                _ => assert!(paper < 120 && ink > 600, "{path}: {colors}"),
            }
        }
    }
    let phone = json!({"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": true});
    browser
        .devtools("Emulation.setDeviceMetricsOverride", phone)
        .await;
    for path in PAGES {
        browser.go(&format!("{}{path}", server.address)).await;
        let widths = browser
            .value("[document.scrollingElement.scrollWidth, window.innerWidth]")
            .await;
        assert!(
            widths[0].as_u64() <= widths[1].as_u64(),
            "{path} is wider than a phone: {widths}"
        );
        assert_eq!(widths[1], 360, "{path}");
    }
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn a_hundred_thousand_timers() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let keys: Vec<String> = (0..100_000)
        .map(|number| format!("order:{number:06}"))
        .collect();
    for some in keys.chunks(1_000) {
        let some = some.iter().map(|key| (key, HOUR, &7_u8));
        timers.schedule_many("pay-by", some).await.unwrap();
    }
    let page = Page::new().timers("shop", &timers);
    let server = Server::start(page.router()).await;
    let browser = Browser::open().await;
    browser.go(&server.address).await;
    browser.shows("10000+").await;
    browser.click_link("pay-by").await;
    browser.shows("order:000000").await;
    assert_eq!(
        browser
            .value("document.querySelectorAll('tbody tr').length")
            .await,
        50
    );
    browser.click_link("Later timers").await;
    browser.shows("order:000099").await;
    browser.fill("input[name=keys]", "order:0999").await;
    browser.click("form.search button").await;
    browser.shows("order:099949").await;
    browser.shows_no("order:000050").await;
    assert_eq!(browser.complaints().await, [""; 0]);
}
