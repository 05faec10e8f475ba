//! Many schedules that were made at run time, each a row with its zone: what they cost.
//!
//! ```sh
//! cargo test --release -p tourbillon-durable --features cron,postgres --test cron -- --ignored --nocapture many
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tourbillon_durable::store::Store;
use tourbillon_durable::{Cron, CronSchedule, Due, Durable, Missed, Schedule};

const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Pacific/Apia",
];

/// The timers of each kind whose runs are counted, and for how long.
const DUE: u64 = 50_000;
const SPAN: Duration = Duration::from_secs(10);

fn number() -> u64 {
    let number = std::env::var("SCHEDULES").ok();
    number.map_or(1_000_000, |number| number.parse().expect("a number"))
}

/// Makes timers in batches, and returns how many a second.
fn make(timers: &Durable, queue: &str, count: u64, when: impl Fn(u64) -> Schedule) -> f64 {
    let begun = Instant::now();
    for first in (0..count).step_by(10_000) {
        let batch = (first..count.min(first + 10_000))
            .map(|number| (format!("customer:{number}"), when(number), number));
        let made = timers.schedule_many(queue, batch).wait().unwrap();
        assert!(made.iter().all(Result::is_ok));
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

/// The runs a second of a queue whose timers are all due.
fn rate(open: &dyn Fn() -> Box<dyn Store>, queue: &str) -> f64 {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let node = Durable::builder(open())
        .handle(queue, move |_: &Due<u64>| {
            // Relaxed: only the number matters.
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .running(1_000)
        .start()
        .unwrap();
    kit::wait::until("the first runs", || runs.load(Ordering::Relaxed) > 0);
    let (begun, first) = (Instant::now(), runs.load(Ordering::Relaxed));
    while begun.elapsed() < SPAN && runs.load(Ordering::Relaxed) < DUE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = (runs.load(Ordering::Relaxed) - first) as f64 / begun.elapsed().as_secs_f64();
    drop(node);
    rate
}

fn measure(name: &str, open: &dyn Fn() -> Box<dyn Store>, bytes: &mut dyn FnMut() -> u64) {
    let count = number();
    let timers = Durable::builder(open()).start().unwrap();
    let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    let zoned = |number: u64| ZONES[number as usize % ZONES.len()];
    let empty = bytes();
    let plain = make(&timers, "plain", count, |_| tomorrow.into());
    let half = bytes();
    let nine = ZONES.map(|zone| CronSchedule::new("0 9 * * MON-FRI", zone).unwrap());
    let made = make(&timers, "remind", count, |number| {
        nine[number as usize % ZONES.len()].clone().into()
    });
    let full = bytes();
    println!(
        "{name}: {count} of each; made {plain:.0} plain timers a second, {made:.0} schedules; \
         {} and {} bytes a row",
        (half - empty) / count,
        (full - half) / count
    );
    make(&timers, "plain due", DUE, |_| Duration::ZERO.into());
    // Each is due again at once, and none of its occurrences is left out.
    make(&timers, "each second", DUE, |number| {
        let each = CronSchedule::new("* * * * * *", zoned(number)).unwrap();
        each.missed(Missed::All).into()
    });
    // Those that come too late are left out, and no process can run all of them.
    make(&timers, "left out", DUE, |number| {
        let each = CronSchedule::new("* * * * * *", zoned(number)).unwrap();
        each.into()
    });
    std::thread::sleep(Duration::from_secs(2));
    let plain = rate(open, "plain due");
    let stepped = rate(open, "each second");
    let overloaded = rate(open, "left out");
    println!(
        "{name}: {plain:.0} plain timers run a second, {stepped:.0} occurrences, {overloaded:.0} if most are left out"
    );
}

#[test]
#[ignore = "writes two million rows, which take minutes: by hand, optimised"]
fn many_schedules_cost_little_more_than_timers() {
    for expression in ["* * * * * *", "0 9 * * MON-FRI", "0 6 1 * *"] {
        let begun = Instant::now();
        for number in 0..10_000 {
            let cron = Cron::new(expression, ZONES[number % ZONES.len()]).unwrap();
            assert!(cron.times_after(SystemTime::now()).next().is_some());
        }
        let each = begun.elapsed() / 10_000;
        println!("{expression}: {each:?} to read it and to find the next time");
    }
    #[cfg(feature = "sqlite")]
    {
        let folder = crate::folder::Folder::new("million");
        let file = folder.path().join("timers.db");
        let open =
            || -> Box<dyn Store> { Box::new(tourbillon_durable::Sqlite::open(&file).unwrap()) };
        let size = |file: &Path| std::fs::metadata(file).map_or(0, |data| data.len());
        measure("SQLite", &open, &mut || {
            size(&file) + size(&file.with_extension("db-wal"))
        });
    }
    #[cfg(feature = "postgres")]
    {
        let database = crate::cluster::lent();
        let open = || -> Box<dyn Store> {
            Box::new(tourbillon_durable::Postgres::connect(&database.url()).unwrap())
        };
        drop(open().connect().unwrap());
        let mut client = database.client();
        measure("PostgreSQL", &open, &mut || {
            let size = "select pg_total_relation_size('tourbillon.timer')";
            let size: i64 = client.query_one(size, &[]).unwrap().get(0);
            size as u64
        });
    }
}
