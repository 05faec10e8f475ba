//! What people who look at the page do to the timers of the same process.
//!
//! ```text
//! cargo run --release -p benches --bin visits            # five rounds with visits, and five without
//! cargo run --release -p benches --bin visits -- 9       # nine
//! ```
//!
//! A process has 20,000 timers each second on a scheduler, 100 durable timers each second in a SQLite
//! file with 20,000 others, and the page of both. In every second round a client of this process asks for
//! the page 100 times a second, the overview and a queue in turns. The figures are medians of the
//! rounds.

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use tourbillon::Scheduler;
use tourbillon_durable::{Due, Durable, Sqlite};
use tourbillon_web::Page;

const ROUND: Duration = Duration::from_secs(5);
const TIMERS: u32 = 20_000;
const DURABLE: u32 = 100;
const OTHERS: u64 = 20_000;
const VISITS: u32 = 100;
const HOUR: Duration = Duration::from_secs(3_600);

type Lateness = Arc<Mutex<Vec<Duration>>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let word = std::env::args().nth(1);
    let rounds = word.map_or(5, |word| word.parse().expect("a number"));
    let folder = std::env::temp_dir().join(format!("visits-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let late = Lateness::default();
    let sink = Arc::clone(&late);
    let timers = Durable::builder(Sqlite::open(folder.join("timers.db"))?)
        .handle("mail", move |due: &Due<u64>| {
            sink.lock().expect("no panic").push(due.lateness());
        })
        .start()?;
    for first in (0..OTHERS).step_by(1_000) {
        let keys = (first..first + 1_000).map(|key| format!("order:{key}"));
        let all = keys.map(|key| (key, 9 * HOUR, 0));
        timers.schedule_many("pay-by", all).wait()?;
    }
    let scheduler = Scheduler::<u64>::builder().name("requests").build()?;
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(2).enable_all().build()?;
    let listener = threads.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let page = Page::new().timers("shop", &timers);
    let page = page.instance(scheduler.handle().clone());
    let router = page.requests_per_second(2 * VISITS).router();
    threads.spawn(async move { axum::serve(listener, router).await });

    // Without and with visits: the scheduler's p99, the durable timers' p50 and p99.
    let mut figures: [[Vec<f64>; 3]; 2] = Default::default();
    let mut key = 0;
    let mut answered = 0;
    for round in 0..2 * rounds {
        let looks = round % 2 == 1;
        let ended = AtomicBool::new(false);
        let short = Lateness::default();
        late.lock().expect("no panic").clear();
        scope(|threads| {
            let visitor = threads.spawn(|| if looks { visit(address, &ended) } else { 0 });
            let begun = Instant::now();
            while begun.elapsed() < ROUND {
                // A hundredth of what a second has.
                for _ in 0..TIMERS / 100 {
                    key += 1;
                    let delay = Duration::from_micros(5_000 + key * 7_919 % 200_000);
                    let (due, sink) = (Instant::now() + delay, Arc::clone(&short));
                    let run = move |_: &tourbillon::Firing<'_, u64>| {
                        sink.lock().expect("no panic").push(due.elapsed());
                    };
                    scheduler.handle().schedule(key, due, run).expect("it runs");
                }
                for _ in 0..DURABLE / 100 {
                    key += 1;
                    let (name, delay) = (format!("mail:{key}"), Duration::from_millis(300));
                    drop(timers.schedule("mail", &name, delay, &key));
                }
                sleep(Duration::from_millis(10));
            }
            sleep(Duration::from_millis(500));
            ended.store(true, Relaxed);
            answered += visitor.join().expect("no panic");
        });
        let of = &mut figures[usize::from(looks)];
        of[0].push(quantile(&short, 0.99));
        of[1].push(quantile(&late, 0.5));
        of[2].push(quantile(&late, 0.99));
    }
    let names = ["scheduler p99", "durable p50", "durable p99"];
    let [without, with] = figures.map(|all| all.map(median));
    for (name, (without, with)) in names.iter().zip(without.iter().zip(&with)) {
        let ratio = with / without;
        let figures = format!("{without:.3} ms without visits, {with:.3} ms with {VISITS}/s");
        say!("{name}: {figures}, ratio {ratio:.3}");
    }
    say!("{answered} visits were answered in {rounds} rounds of {ROUND:?}");
    timers.stop(ROUND).wait()?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Looks at the page until the round ends. Returns how many pages came.
fn visit(address: SocketAddr, ended: &AtomicBool) -> u32 {
    let (begun, mut visits, mut answered) = (Instant::now(), 0, 0);
    while !ended.load(Relaxed) {
        let path = ["/", "/queue?queue=pay-by"][visits as usize % 2];
        let mut server = TcpStream::connect(address).expect("the page listens");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        server.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        server.read_to_string(&mut answer).expect("it answers");
        answered += u32::from(answer.starts_with("HTTP/1.1 200"));
        visits += 1;
        sleep((Duration::from_secs(1) * visits / VISITS).saturating_sub(begun.elapsed()));
    }
    answered
}

/// In milliseconds.
fn quantile(values: &Lateness, share: f64) -> f64 {
    let mut values = values.lock().expect("no panic");
    values.sort_unstable();
    let at = ((values.len() as f64 * share) as usize).min(values.len() - 1);
    values[at].as_secs_f64() * 1e3
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
