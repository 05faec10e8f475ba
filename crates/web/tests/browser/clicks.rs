//! What people click.

use std::time::Duration;

use tourbillon_durable::{Due, Durable, Memory, RetryPolicy};
use tourbillon_web::{Access, Page};

use crate::browser::{Browser, HOUR, Server};

/// A page where everybody may do everything, of timers with a handler that fails.
async fn shop() -> (Durable, Server) {
    let timers = Durable::builder(Memory::new())
        .name("shop-1")
        .handle("mail", |_: &Due<u8>| Err::<(), _>("<b>no</b>"))
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    let page = Page::new()
        .timers("shop", &timers)
        .access(|_| Access::full("anna"));
    let server = Server::start(page.router()).await;
    (timers, server)
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn each_action() {
    let (timers, server) = shop().await;
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    let browser = Browser::open().await;
    browser.go(&server.address).await;
    browser.click_link("pay-by").await;
    browser.click_link("Pause the queue").await;
    browser.click("main form button").await;
    browser.shows("the queue is paused").await;
    assert!(timers.counts().await.unwrap()[0].paused);
    browser.click_link("Back").await;
    browser.shows("paused").await;
    browser.click_link("Resume the queue").await;
    browser.click("main form button").await;
    browser.shows("the queue goes on").await;
    browser.click_link("Back").await;
    browser.click_link("order:7").await;
    browser.shows("It is due in 59m").await;
    browser.fill("input[name=when]", "2h").await;
    browser.click("main form.search button").await;
    browser.click("main form button").await;
    browser.shows("the timer is due at").await;
    browser.click_link("Back").await;
    browser.click_link("Run now").await;
    browser.click("main form button").await;
    browser.click_link("Back").await;
    browser
        .shows("No process that is alive has a handler")
        .await;
    browser.click_link("Cancel").await;
    browser.click("main form button").await;
    browser.shows("the timer is cancelled").await;
    assert!(timers.get("pay-by", "order:7").await.unwrap().is_none());
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn dead_letters() {
    let (timers, server) = shop().await;
    for key in ["a", "b", "c"] {
        timers
            .schedule("mail", key, Duration::ZERO, &7_u8)
            .await
            .unwrap();
    }
    let browser = Browser::open().await;
    browser.go(&format!("{}/dead", server.address)).await;
    browser
        .until("three dead letters", async |browser| {
            browser.go(&format!("{}/dead", server.address)).await;
            browser
                .value("document.querySelectorAll('tbody tr').length")
                .await
                == 3
        })
        .await;
    // The error is text.
    browser.shows("<b>no</b>").await;
    browser
        .click("tbody tr:nth-child(2) input[type=checkbox]")
        .await;
    browser.click("button[value=discard]").await;
    browser.shows("That can't be undone").await;
    browser.click("main form button").await;
    browser.shows("1 dead letters were deleted").await;
    timers.pause("mail").await.unwrap();
    browser.click_link("Back").await;
    browser.click_link("Revive all that match").await;
    browser.click("main form button").await;
    browser.shows("2 timers are due now").await;
    assert!(timers.dead("mail", 0, 10).await.unwrap().is_empty());
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(
    not(has_chromedriver),
    ignore = "needs: apt-get install chromium-driver"
)]
async fn without_scripts_pages_are_read_and_actions_done() {
    let (timers, server) = shop().await;
    timers
        .schedule("pay-by", "order:7", HOUR, &7_u8)
        .await
        .unwrap();
    let browser = Browser::open().await;
    let off = serde_json::json!({"value": true});
    browser
        .devtools("Emulation.setScriptExecutionDisabled", off)
        .await;
    browser
        .go(&format!("{}/queue?queue=pay-by", server.address))
        .await;
    let source = browser.client.source().await.unwrap();
    assert!(source.contains("in 59m") && source.contains("order:7"));
    browser.click_link("order:7").await;
    browser.click_link("Cancel").await;
    browser.click("main form button").await;
    assert!(
        browser
            .client
            .source()
            .await
            .unwrap()
            .contains("is cancelled")
    );
    assert!(timers.get("pay-by", "order:7").await.unwrap().is_none());
}
