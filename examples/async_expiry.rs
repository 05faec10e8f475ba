//! A chat server without its network, on tokio: clients that say something now and then and fall
//! silent, sessions that expire as a stream, requests with timeouts, and clean-up as a task per
//! key. No runtime's time driver is used: all of it waits on the wheels of this crate.
//!
//! ```sh
//! cargo run --release --example async_expiry --features stream,tokio
//! ```

#[path = "common/about.rs"]
mod about;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tourbillon::{ExpiryMap, Scheduler, Shutdown, TimeoutError, Timer, Touch};

const HELP: &str = "\
A chat server without its network, on tokio: sleeps, timeouts, a stream of sessions that are over,
and clean-up as a task per key.

Usage:
  async_expiry

It takes a second. The last line on stdout is
  messages 2000 clients 200 cleaned 200 sessions left 0

Options:
  -h, --help      this text
  -V, --version   the version of the crate
";

const CLIENTS: u32 = 200;
const MESSAGES: u32 = 10;
/// A session without a message for so long is over.
const IDLE: Duration = Duration::from_millis(500);
/// After the end of its session a client's files are kept for so long.
const KEPT: Duration = Duration::from_millis(100);

type Sessions = ExpiryMap<u32, u32>;

/// Says its messages, at its own pace, and falls silent. How often it had to log in.
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

async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let timer = Arc::new(Timer::new()?);
    let (sessions, mut expired) = Sessions::builder().time_to_idle(IDLE).build_stream(64)?;
    let scheduler = Scheduler::<u32>::builder().workers(1).build()?;
    let clean_up = scheduler.handle().on_tokio(runtime::Handle::current());

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| tokio::spawn(client(number, sessions.clone(), Arc::clone(&timer))))
        .collect();

    // A request to somebody who never answers.
    let answer = timer.timeout(Duration::from_millis(50), std::future::pending::<()>());
    assert_eq!(answer.await, Err(TimeoutError::Elapsed));
    println!("no answer within 50 ms");

    let mut logins = 0;
    for client in clients {
        logins += client.await?;
    }
    println!("{CLIENTS} clients have fallen silent");

    let (cleaned, mut done) = mpsc::unbounded_channel();
    let (mut over, mut messages) = (0, 0);
    while over < logins {
        let session = expired.next().await.ok_or("the map closed early")?;
        over += 1;
        messages += session.value;
        let cleaned = cleaned.clone();
        clean_up.schedule(session.key, KEPT, async move |firing| {
            // Here it would await its database.
            let _ = cleaned.send(*firing.key());
        })?;
    }
    println!("{over} sessions are over");

    let mut clean = 0;
    while clean < CLIENTS {
        done.recv().await.ok_or("a clean-up is missing")?;
        clean += 1;
    }
    let report = sessions.begin_shutdown(Shutdown::HandBack).await;
    assert!(report.handed_back.is_empty());
    println!(
        "messages {messages} clients {CLIENTS} cleaned {clean} sessions left {}",
        sessions.len()
    );
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Some(answered) = about::answer("async_expiry", HELP, std::env::args_os().skip(1)) {
        return Ok(answered);
    }
    // Without `enable_time`: tokio's own sleeps would panic here.
    runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?
        .block_on(serve())
        .map(|()| ExitCode::SUCCESS)
}
