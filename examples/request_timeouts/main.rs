//! A client sends ten thousand requests to a server that answers nearly all of them in time. Every
//! request has a timeout, and nearly every timeout is cancelled. A request that gets no answer is
//! sent again, and given up after three attempts. If an answer and a timeout come at the same
//! moment, the timer decides between them. So each request ends exactly once.
//!
//! ```sh
//! cargo run --release --example request_timeouts
//! ```
//!
//! `client.rs` shows how such a client may look; `server.rs` stands for the rest of the world.

#[macro_use]
#[path = "../common/say.rs"]
mod say;

#[path = "../common/about.rs"]
mod about;
mod client;
mod server;

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;
use std::sync::{Arc, atomic::Ordering};
use std::thread;

use tourbillon::{Scheduler, Shutdown};

use client::Client;

const HELP: &str = "\
A client sends ten thousand requests with timeouts, nearly all of which are cancelled.

Usage:
  request_timeouts

It takes two seconds. The last line on stdout is
  requests 10000 answered 9900 timed_out 100 retries 400 late_answers 100

Options:
  -h, --help      this text
  -V, --version   the version of the crate
";

const REQUESTS: u64 = 10_000;

/// Sends all requests and waits for the last answer. Returns the conditions that do not hold.
fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let scheduler = Scheduler::<u64>::builder().build()?;
    let client = Arc::new(Client::new(scheduler.handle(), REQUESTS));
    let (network, requests) = mpsc::channel();
    let (answers, arrived) = mpsc::channel();
    let server = thread::spawn(move || server::serve(&requests, &answers));
    let reader = thread::spawn({
        let client = Arc::clone(&client);
        move || {
            for id in arrived {
                client.answered(id);
            }
        }
    });

    for id in 0..REQUESTS {
        client.send(&network, id);
    }
    // Each pending timeout has a clone of the sender, to send its request again. The drop of the
    // last one ends the server, and the server's last answer ends the reader.
    drop(network);
    let served = server.join().map_err(|_| "the server panicked")??;
    reader.join().map_err(|_| "the reader panicked")?;

    let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
    let stats = client.timers.stats();
    let summary = client.summary();
    say!("{summary}");

    // Relaxed: the threads that count have ended.
    let late = client.late_answers.load(Ordering::Relaxed);
    let mut wrong = summary.complaints();
    let mut hold = |what: &str, holds: bool| {
        if !holds {
            wrong.push(what.to_owned());
        }
    };
    hold("no timeout is left", report.handed_back.is_empty());
    hold("nothing runs", report.still_running == 0);
    hold("the counters balance", stats.balances());
    // Each attempt has one timeout, which is cancelled by an answer or runs.
    let attempts = REQUESTS + summary.retries;
    hold("each attempt has a timeout", stats.scheduled == attempts);
    hold(
        "each answer in time cancels one",
        stats.cancelled == summary.answered,
    );
    hold("no task panicked", stats.panicked == 0);
    hold("each attempt reaches the server", served.asked == attempts);
    hold(
        "each answer is counted",
        served.answered == summary.answered + late,
    );
    Ok(wrong)
}

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1);
    if let Some(answered) = about::answer("request_timeouts", HELP, args) {
        return answered;
    }
    match run() {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            for what in wrong {
                complain!("request_timeouts: it does not hold that {what}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            complain!("request_timeouts: {error}");
            ExitCode::FAILURE
        }
    }
}
