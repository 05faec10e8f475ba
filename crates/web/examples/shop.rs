//! A shop whose page shows what it waits for: orders that count down, mails that fail, a queue that
//! nobody handles, a lock, and sessions.
//!
//! ```sh
//! cargo run --release -p tourbillon-web --example shop
//! ```
//!
//! Then open <http://127.0.0.1:7878/timers>. Any user may act here: it is only on this machine.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tourbillon::ExpiryMap;
use tourbillon_durable::{Due, Durable, Memory, RetryPolicy};
use tourbillon_leases::{Leases, MemoryStore};
use tourbillon_web::{Access, Page};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let timers = Durable::builder(Memory::new())
        .name("shop-1")
        .handle("pay-by", |_: &Due<u64>| ())
        .handle("mail", |due: &Due<u64>| match due.payload() % 5 {
            0 => Err("550 no such address"),
            _ => Ok(()),
        })
        .retry(RetryPolicy::never())
        .start()?;
    let leases = Leases::new(MemoryStore::new())?;
    let sessions = ExpiryMap::<u64, &str>::builder()
        .name("sessions")
        .time_to_idle(1_800 * SECOND)
        .build(|_, _| ())?;
    sessions.insert(7, "Ada")?;
    let _invoices = leases.lock("invoices/2026-11").wait()?;

    // Every second an order, which is to be paid within ten minutes, and a mail about it.
    let shop = timers.clone();
    tokio::spawn(async move {
        for order in 1_u64.. {
            let key = format!("order:{order}");
            let pay_by = shop.schedule("pay-by", &key, (order % 600) as u32 * SECOND, &order);
            let mail = shop.schedule("mail", &key, 2 * SECOND, &order);
            let report = shop.schedule("report", &key, 90 * SECOND, &order);
            if let Err(error) = (async { pay_by.await.and(mail.await).and(report.await) }).await {
                eprintln!("order {order}: {error}");
            }
            tokio::time::sleep(SECOND).await;
        }
    });

    let page = Page::new()
        .timers("shop", &timers)
        .locks("memory", &leases)
        .instance(sessions)
        .access(|_| Access::full("you"))
        .hosts(["localhost", "127.0.0.1"])
        .on_action(|event| println!("{event}"));
    let app = Router::new().nest("/timers", page.router());
    let listener = TcpListener::bind("127.0.0.1:7878").await?;
    println!("http://{}/timers", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
