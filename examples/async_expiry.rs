//! A chat server without its network, on tokio. Clients send messages now and then, and fall
//! silent. Sessions expire as a stream, requests have timeouts, and the clean-up is one task per
//! key. The time driver of tokio is not used: all waiting is done by the wheels of this crate.
//!
//! ```sh
//! cargo run --release --example async_expiry --features stream,tokio
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tourbillon::{ExpiryMap, Scheduler, Shutdown, TimeoutError, Timer, Touch};

const CLIENTS: u32 = 200;
const MESSAGES: u32 = 10;
/// The time without a message after which a session is over.
const IDLE: Duration = Duration::from_millis(500);
/// How long the files of a client are kept after the end of its session.
const KEPT: Duration = Duration::from_millis(100);

type Sessions = ExpiryMap<u32, u32>;

/// Sends the messages of a client at its own pace, and falls silent. Returns how often the client
/// had to log in.
async fn client(number: u32, sessions: Sessions, timer: Arc<Timer>) -> u32 {
    let pause = Duration::from_millis(u64::from(5 + number % 20));
    let mut logins = 0;
    for _ in 0..MESSAGES {
        if sessions.touch(&number) == Touch::NotFound {
            sessions.insert(number, 0).expect("there is room");
            logins += 1;
        }
        sessions.update(&number, |messages| *messages += 1);
        timer.sleep(pause).await.expect("the timer lives on");
    }
    logins
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let timer = Arc::new(Timer::new()?);
    let (sessions, mut expired) = Sessions::builder().time_to_idle(IDLE).build_stream(64)?;
    let scheduler = Scheduler::<u32>::builder().workers(1).build()?;
    let clean_up = scheduler.handle().on_tokio(runtime::Handle::current());

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(number, sessions.clone(), Arc::clone(&timer))))
        .collect();

    // A request that is never answered.
    let answer = timer.timeout(Duration::from_millis(50), std::future::pending::<()>());
    assert_eq!(answer.await, Err(TimeoutError::Elapsed));
    writeln!(out, "no answer within 50 ms")?;

    let mut logins = 0;
    for client in clients {
        logins += client.await?;
    }
    writeln!(out, "{CLIENTS} clients have fallen silent")?;

    let (cleaned, mut done) = mpsc::unbounded_channel();
    let (mut over, mut messages) = (0, 0);
    while over < logins {
        let session = expired.next().await.ok_or("the map closed early")?;
        over += 1;
        messages += session.value;
        let cleaned = cleaned.clone();
        clean_up.schedule(session.key, KEPT, async move |firing| {
            // A real server would await its database here.
            let _ = cleaned.send(*firing.key());
        })?;
    }
    writeln!(out, "{over} sessions are over")?;

    let mut clean = 0;
    while clean < CLIENTS {
        done.recv().await.ok_or("a clean-up is missing")?;
        clean += 1;
    }
    let report = sessions.shutdown(Shutdown::HandBack).await;
    assert!(report.handed_back.is_empty());
    writeln!(
        out,
        "messages {messages} clients {CLIENTS} cleaned {clean} sessions left {}",
        sessions.len()
    )?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // The runtime has no `enable_time`, so tokio's own sleeps would panic.
    runtime::Builder::new_current_thread()
        .build()?
        .block_on(serve())
}
