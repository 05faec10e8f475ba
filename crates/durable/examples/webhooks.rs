//! Webhooks that are delivered until the receiver has taken them: a failed delivery is repeated
//! later, with the same idempotency key, and ends as a dead letter if it never succeeds.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example webhooks
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tourbillon_durable::{CallError, Due, Durable, Late, Memory, RetryPolicy};

const QUEUE: &str = "webhook";
/// Up to a day in your program.
const ATTEMPTS: u32 = 4;

#[derive(Serialize, Deserialize)]
struct Delivery {
    url: String,
    body: String,
}

/// A request as the receiver sees it.
struct Post {
    url: String,
    idempotency_key: String,
    reply: mpsc::Sender<u16>,
}

/// Stands for a HTTP client with a time limit, and the servers at its other end.
#[derive(Clone)]
struct Http(mpsc::Sender<Post>);

impl Http {
    fn post(&self, url: &str, _body: &str, idempotency_key: &str) -> Result<u16, String> {
        let (reply, status) = mpsc::channel();
        let (url, idempotency_key) = (url.to_owned(), idempotency_key.to_owned());
        let post = Post {
            url,
            idempotency_key,
            reply,
        };
        self.0.send(post).map_err(|error| error.to_string())?;
        status.recv().map_err(|error| error.to_string())
    }
}

/// The receivers: one is down, and one answers at its third request.
fn receive(posts: &mpsc::Receiver<Post>) {
    let mut seen = HashMap::<String, u32>::new();
    for post in posts {
        let requests = seen.entry(post.idempotency_key).or_default();
        *requests += 1;
        let is_up = !post.url.contains("down") && *requests >= 3;
        let _ = post.reply.send(if is_up { 200 } else { 503 });
    }
}

/// The handler. An error lets the delivery be repeated.
fn deliver(http: &Http, due: &Due<Delivery>) -> Result<(), String> {
    let Delivery { url, body } = due.payload();
    // The key is the same in all runs of this timer, so the receiver can tell a repeated request.
    match http.post(url, body, &due.token().to_string())? {
        200..=299 => Ok(()),
        410 => Ok(()), // the receiver wants no more of them
        status => Err(format!("{url} answered {status}")),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let (send, posts) = mpsc::channel();
    thread::spawn(move || receive(&posts));
    let http = Http(send);

    // `Sqlite::open(file)?` or `Postgres::connect(url)?` in your program.
    let timers = Durable::builder(Memory::new())
        .handle(QUEUE, move |due: &Due<Delivery>| deliver(&http, due))
        // From a second to an hour in your program.
        .retry(
            RetryPolicy::exponential(Duration::from_millis(10)..=Duration::from_secs(1))
                .attempts(ATTEMPTS),
        )
        .late(Late::ExpireAfter(Duration::from_secs(24 * 3600)))
        .start()?;

    for url in ["https://up.example/hook", "https://down.example/hook"] {
        let delivery = Delivery {
            url: url.to_owned(),
            body: r#"{"paid":7}"#.to_owned(),
        };
        timers
            .schedule(QUEUE, url, Duration::ZERO, &delivery)
            .wait()?;
    }
    // Both have ended: one was delivered at the third attempt, one became a dead letter.
    let is_pending = || -> Result<bool, CallError> {
        let counts = timers.counts().wait()?;
        Ok(counts
            .iter()
            .any(|queue| queue.waiting + queue.overdue + queue.running > 0))
    };
    while is_pending()? {
        thread::sleep(Duration::from_millis(10));
    }
    let letters = timers.dead(QUEUE, 0, 10).wait()?;
    for letter in &letters {
        writeln!(
            out,
            "{} failed {} times: {}",
            letter.key, letter.fails, letter.error
        )?;
    }
    assert_eq!(letters.len(), 1);
    // Once the receiver is up again: `timers.revive(letter.id)?`.
    timers.stop(Duration::from_secs(10)).wait()?;
    Ok(())
}
