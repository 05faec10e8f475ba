//! Stores and servers that go away and come back, while somebody looks.

use tourbillon_durable::{Durable, Memory, MemoryFault, StoreError};
use tourbillon_web::Page;

use crate::browser::{Browser, HOUR, Server};

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn a_store_goes_away_and_comes_back() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    let page = Page::new().timers("shop", &timers);
    let server = Server::start(page.router()).await;
    let browser = Browser::open().await;
    browser
        .go(&format!("{}/queue?queue=pay-by", server.address))
        .await;
    browser.shows("order:7").await;
    store.inject(|_| MemoryFault::Fail(StoreError::Unavailable("an outage".into())));
    browser.shows("The store does not answer").await;
    // What it said before stays.
    assert!(browser.text().await.contains("order:7"));
    store.heal();
    browser.shows_no("The store does not answer").await;
    store.inject(|_| MemoryFault::Hang);
    browser.shows("no answer yet after").await;
    assert!(browser.text().await.contains("order:7"));
    store.heal();
    browser.shows_no("The store does not answer").await;
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn a_server_goes_away_and_comes_back() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    let router = || Page::new().timers("shop", &timers).router();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = runtime.spawn(Server::start(router())).await.unwrap();
    let address = server.address.clone();
    let browser = Browser::open().await;
    browser.go(&format!("{address}/queue?queue=pay-by")).await;
    browser.shows("order:7").await;
    // The connections end with their threads.
    drop(server);
    runtime.shutdown_background();
    browser
        .until("the page says so", async |browser| {
            browser
                .value("document.body.classList.contains('lost')")
                .await
                == true
        })
        .await;
    assert!(browser.text().await.contains("order:7"));
    timers
        .schedule("pay-by", "order:8", HOUR, &7_u8)
        .await
        .unwrap();
    let _server = Server::start_at(address.trim_start_matches("http://"), router()).await;
    browser.shows("order:8").await;
    assert_eq!(
        browser
            .value("document.body.classList.contains('lost')")
            .await,
        false
    );
}
