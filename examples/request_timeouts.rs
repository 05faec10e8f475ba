//! A client whose requests have a time limit: the answer cancels the timeout, and whichever comes
//! first decides. Nearly all timeouts are cancelled.
//!
//! ```sh
//! cargo run --release --example request_timeouts
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use tourbillon::{Handle, Scheduler, Shutdown};

const REQUESTS: u64 = 10_000;
/// The server forgets every hundredth request.
const FORGETS: u64 = 100;
const LIMIT: Duration = Duration::from_secs(2);

/// What has become of the requests.
#[derive(Default)]
struct Ends {
    answered: AtomicU32,
    timed_out: AtomicU32,
    late_answers: AtomicU32,
}

/// Sends a request. The timeout comes first: the answer may be here before `send` returns.
fn send(
    timers: &Handle<u64>,
    server: &Sender<u64>,
    ends: &Arc<Ends>,
    id: u64,
) -> Result<(), Box<dyn Error>> {
    let for_timeout = Arc::clone(ends);
    timers.schedule(id, LIMIT, move |_| {
        for_timeout.timed_out.fetch_add(1, Relaxed);
    })?;
    server.send(id)?;
    Ok(())
}

/// Takes the answers that one read of the socket has returned.
fn answered(timers: &Handle<u64>, ends: &Ends, ids: &[u64]) {
    for cancel in timers.cancel_many(ids) {
        // Either the answer cancels the timeout, or the timeout has begun. Never both.
        if cancel.is_cancelled() {
            ends.answered.fetch_add(1, Relaxed);
        } else {
            ends.late_answers.fetch_add(1, Relaxed);
        }
    }
}

/// Stands for a server at the other end of a socket.
fn serve(requests: &Receiver<u64>, answers: &Sender<u64>) {
    for id in requests {
        if id % FORGETS != 0 && answers.send(id).is_err() {
            return;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = Scheduler::<u64>::builder().build()?;
    let timers = scheduler.handle();
    let ends = Arc::new(Ends::default());
    let (server, requests) = mpsc::channel();
    let (reply, answers) = mpsc::channel();

    thread::scope(|scope| {
        scope.spawn(move || serve(&requests, &reply));
        let reader = scheduler.handle();
        let ends = &ends;
        scope.spawn(move || {
            while let Ok(first) = answers.recv() {
                let arrived: Vec<u64> = iter::once(first).chain(answers.try_iter()).collect();
                answered(&reader, ends, &arrived);
            }
        });
        for id in 0..REQUESTS {
            send(&timers, &server, ends, id)?;
        }
        drop(server); // ends the server, and then the reader
        Ok::<(), Box<dyn Error>>(())
    })?;

    // All timeouts that are left belong to forgotten requests, and run at their time.
    let report = scheduler.shutdown(Shutdown::Drain { limit: 10 * LIMIT });
    assert!(report.wait()?.handed_back.is_empty());
    writeln!(
        io::stdout(),
        "requests {REQUESTS} answered {} timed_out {} late_answers {}",
        ends.answered.load(Relaxed),
        ends.timed_out.load(Relaxed),
        ends.late_answers.load(Relaxed),
    )?;
    Ok(())
}
