//! Durable timers on SQLite and PostgreSQL: how late they are, how many there can be a second, and
//! what others notice of them.
//!
//! ```text
//! cargo run --release -p benches --bin measure_durable                  # about fifteen minutes
//! cargo run --release -p benches --bin measure_durable -- --only D1,D4  # some figures
//! cargo run --release -p benches --bin measure_durable -- --smoke       # does it work?
//! ```
//!
//! SQLite lies in a file in the build folder. PostgreSQL is a server of this program's own, on the
//! loopback device, with its data in the temporary folder and with fsync; it ends with the program.
//! `--peers PROGRAM` names the built program of `benches/durable-peers`, whose jobs are then run
//! beside.

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use lexopt::prelude::*;
use tourbillon_durable::{Due, Durable, Paging, Stats};

#[path = "../machine.rs"]
#[allow(dead_code, reason = "this program needs a part of it")]
mod machine;
#[path = "../durable/moved.rs"]
mod moved;
#[path = "../durable/place.rs"]
mod place;
#[path = "../durable/queues.rs"]
mod queues;
#[path = "../durable/timed.rs"]
mod timed;

use chaos::servers::postgres::Cluster;
use machine::{Machine, commit, end_with_the_parent};
use place::Place;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Connections and threads where users' calls come from many.
const THREADS: u64 = 16;
/// Calls in one batch.
const BATCH: u64 = 100;

struct Sizes {
    rounds: usize,
    /// Timers of the measurements of rates.
    timers: u64,
    /// Single calls of all threads together.
    calls: u64,
    lateness: Duration,
    at_once: u64,
    filled: u64,
    idle: Duration,
    held_open: Duration,
    term: Duration,
    peer_jobs: u64,
    /// Numbers of queues.
    queues: &'static [u64],
}

const FULL: Sizes = Sizes {
    rounds: 5,
    timers: 100_000,
    calls: 60_000,
    lateness: Duration::from_secs(20),
    at_once: 1_000_000,
    filled: 10_000_000,
    idle: Duration::from_secs(30),
    held_open: Duration::from_secs(300),
    term: Duration::from_secs(15),
    peer_jobs: 20_000,
    queues: &[10, 1_000, 10_000],
};

const MID: Sizes = Sizes {
    held_open: Duration::from_secs(40),
    ..FULL
};

const SMOKE: Sizes = Sizes {
    rounds: 1,
    timers: 2_000,
    calls: 1_600,
    lateness: Duration::from_secs(1),
    at_once: 5_000,
    filled: 20_000,
    idle: Duration::from_secs(2),
    held_open: Duration::from_secs(2),
    term: Duration::from_secs(1),
    peer_jobs: 200,
    queues: &[10, 100],
};

fn main() -> ExitCode {
    let result = wish().and_then(|wish| match &wish.hold {
        Some((place, term)) => hold(place, *term),
        None => run(&wish),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            complain!("measure_durable: {failure}");
            ExitCode::FAILURE
        }
    }
}

struct Wish {
    sizes: &'static Sizes,
    /// Names of figures; all if empty.
    only: Vec<String>,
    peers: Option<PathBuf>,
    /// Hidden: this process holds timers of this place, with a term, until it is killed.
    hold: Option<(String, Duration)>,
}

fn wish() -> Result<Wish, Failure> {
    let mut wish = Wish {
        sizes: &FULL,
        only: Vec::new(),
        peers: None,
        hold: None,
    };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("smoke") => wish.sizes = &SMOKE,
            Long("mid") => wish.sizes = &MID,
            Long("only") => {
                for name in arguments.value()?.string()?.split(',') {
                    if !FIGURES.iter().any(|(figure, _)| *figure == name) {
                        return Err(format!("no figure is called {name:?}").into());
                    }
                    wish.only.push(name.to_owned());
                }
            }
            Long("peers") => wish.peers = Some(arguments.value()?.into()),
            Long("hold") => {
                let place = arguments.value()?.string()?;
                let term = Duration::from_millis(arguments.value()?.parse()?);
                wish.hold = Some((place, term));
            }
            other => {
                let error = other.unexpected();
                return Err(format!("{error}; see the head of the source").into());
            }
        }
    }
    Ok(wish)
}

/// The folder of the SQLite files, and the server. Both end with the program.
struct Here {
    folder: PathBuf,
    server: Cluster,
    databases: AtomicU64,
}

impl Here {
    fn sqlite(&self) -> Place {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        Place::Sqlite(self.folder.join(format!("timers-{number}.db")))
    }

    fn postgres(&self) -> Place {
        Place::Postgres(self.server.database().url())
    }

    fn both(&self) -> [Place; 2] {
        [self.sqlite(), self.postgres()]
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // Nothing else can be done if the files can't be removed.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

type Figure = fn(&Here, &Wish) -> Result<(), Failure>;

const FIGURES: [(&str, Figure); 12] = [
    ("D1", lateness),
    ("D2", schedules),
    ("D3", runs),
    ("D4", sqlite),
    ("D5", takeover),
    ("D6", idle),
    ("D7", at_once),
    ("D8", filled),
    ("D9", held_open),
    ("D10", queues::many_queues),
    ("D11", queues::index),
    ("D12", moved::moved),
];

fn run(wish: &Wish) -> Result<(), Failure> {
    let folder = std::env::current_exe()?
        .parent()
        .ok_or("the program lies in no folder")?
        .join(format!("durable-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let here = Here {
        folder,
        server: Cluster::durable(),
        databases: AtomicU64::new(0),
    };
    say!("{}", Machine::here().line());
    say!(
        "commit {}",
        commit().unwrap_or_else(|| "unknown".to_owned())
    );
    say!(
        "a write of 4 KiB with fsync: {} in the folder of SQLite, {} in that of PostgreSQL",
        micros(place::fsync(&here.folder)?),
        micros(place::fsync(&std::env::temp_dir())?)
    );
    for (name, figure) in FIGURES {
        if wish.only.is_empty() || wish.only.iter().any(|only| only == name) {
            complain!("{name} ..");
            figure(&here, wish)?;
        }
    }
    Ok(())
}

// === D1: lateness ===

/// Timers at 2,000 a second, from several threads, each due between 0.5 and 1.5 s after its call.
fn lateness(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for place in here.both() {
        let late = Lateness::default();
        let timers = Durable::builder(place.store()?)
            .handle("late", late.handler())
            .running(256)
            .start()?;
        schedule_at_rate(&timers, "late", 2_000, wish.sizes.lateness)?;
        let stats = wait_for_all(&timers)?;
        say!(
            "D1 {}: 2,000/s, {} timers: {}",
            place.name(),
            stats.succeeded,
            late.line()
        );
    }
    Ok(())
}

#[derive(Clone, Default)]
struct Lateness(Arc<Mutex<Vec<Duration>>>);

impl Lateness {
    /// The store's clock is that of this machine.
    fn handler(&self) -> impl Fn(&Due<u64>) + Send + Sync + 'static {
        let all = Arc::clone(&self.0);
        move |due| {
            let late = SystemTime::now()
                .duration_since(due.due())
                .unwrap_or_default();
            all.lock().expect("no panic under the lock").push(late);
        }
    }

    fn line(&self) -> String {
        quantiles(self.0.lock().expect("no panic under the lock").clone())
    }
}

fn quantiles(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let Some(last) = all.last() else {
        return "none".to_owned();
    };
    let at = |part: f64| all[((all.len() - 1) as f64 * part) as usize];
    format!(
        "p50 {} p99 {} p99.9 {} max {}",
        micros(at(0.5)),
        micros(at(0.99)),
        micros(at(0.999)),
        micros(*last)
    )
}

fn micros(span: Duration) -> String {
    match span.as_micros() {
        few @ 0..10_000 => format!("{few} us"),
        many => format!("{:.1} ms", many as f64 / 1_000.0),
    }
}

/// Single calls, `rate` a second, whose answers are waited for in groups.
fn schedule_at_rate(
    timers: &Durable,
    queue: &str,
    rate: u64,
    span: Duration,
) -> Result<(), Failure> {
    let start = Instant::now();
    let step = Duration::from_millis(5);
    let per_step = rate / 200;
    let mut number = 0;
    let mut steps = 0;
    let mut pending = Vec::new();
    while start.elapsed() < span {
        for _ in 0..per_step {
            number += 1;
            let delay = Duration::from_micros(500_000 + number * 7_919 % 1_000_000);
            pending.push(timers.schedule(queue, &format!("at-rate:{number}"), delay, &number));
        }
        if pending.len() > 1_000 {
            for answer in pending.drain(..) {
                answer.wait()?;
            }
        }
        steps += 1;
        std::thread::sleep((step * steps).saturating_sub(start.elapsed()));
    }
    for answer in pending {
        answer.wait()?;
    }
    Ok(())
}

/// Waits until everything that these timers scheduled has run, and nothing failed.
fn wait_for_all(timers: &Durable) -> Result<Stats, Failure> {
    let stats = wait_for(timers, timers.stats().scheduled)?;
    if stats.failed + stats.fenced + stats.store_errors > 0 {
        return Err(format!("something has failed: {stats:?}").into());
    }
    Ok(stats)
}

fn wait_for(timers: &Durable, runs: u64) -> Result<Stats, Failure> {
    let start = Instant::now();
    loop {
        let stats = timers.stats();
        if stats.succeeded >= runs {
            return Ok(stats);
        }
        if start.elapsed() > Duration::from_secs(300) {
            return Err(format!("not all has run after 300 s: {stats:?}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// === D2: schedules ===

fn schedules(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let (batches, singles) = (wish.sizes.timers / BATCH, wish.sizes.calls / THREADS);
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..wish.sizes.rounds {
        let place = here.postgres();
        let timers = Durable::builder(place.store()?).start()?;
        let plain = place.plain(1, batches, BATCH)?;
        let ours = in_batches(&timers, batches)?;
        ratios[0].push((ours, plain));
        let plain = place.plain(THREADS, singles, 1)?;
        let ours = single_calls(&timers, "many", singles)?;
        ratios[1].push((ours, plain));
        complain!("D2 round {} of {}", round + 1, wish.sizes.rounds);
    }
    for (what, rounds) in ["batches of 100", "16 threads, single calls"]
        .iter()
        .zip(ratios)
    {
        let (ours, plain) = (
            median(rounds.iter().map(|r| r.0)),
            median(rounds.iter().map(|r| r.1)),
        );
        let ratio = median(rounds.iter().map(|(ours, plain)| ours / plain));
        say!("D2 PostgreSQL, {what}: {ours:.0}/s, plain SQL {plain:.0}/s, ratio {ratio:.2}");
    }
    Ok(())
}

fn in_batches(timers: &Durable, batches: u64) -> Result<f64, Failure> {
    let start = Instant::now();
    for batch in 0..batches {
        let keys = (0..BATCH).map(|row| format!("order:{}", batch * BATCH + row));
        let all = keys.map(|key| (key, Duration::from_secs(3_600), 7));
        for answer in timers.schedule_many("batches", all).wait()? {
            answer?;
        }
    }
    Ok((batches * BATCH) as f64 / start.elapsed().as_secs_f64())
}

/// Each thread waits for its own commit before its next call.
fn single_calls(timers: &Durable, queue: &str, each: u64) -> Result<f64, Failure> {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || -> Result<(), Failure> {
                    for call in 0..each {
                        let key = format!("order:{}", thread * each + call);
                        timers
                            .schedule(queue, &key, Duration::from_secs(3_600), &7)
                            .wait()?;
                    }
                    Ok(())
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|one| one.join().map_err(|_| "a thread has panicked")?)
    })?;
    Ok((THREADS * each) as f64 / start.elapsed().as_secs_f64())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

// === D3: claims and settlements ===

/// The runs per second of due timers, from the start of a node to the last settlement.
fn drain(place: &Place, count: u64) -> Result<f64, Failure> {
    let client = Durable::builder(place.store()?).start()?;
    for first in (0..count).step_by(1_000) {
        let all =
            (first..count.min(first + 1_000)).map(|n| (format!("due:{n}"), Duration::ZERO, n));
        for answer in client.schedule_many("due", all).wait()? {
            answer?;
        }
    }
    let start = Instant::now();
    let timers = Durable::builder(place.store()?)
        .handle("due", |_: &Due<u64>| {})
        .running(4_000)
        .start()?;
    wait_for(&timers, count)?;
    // The last settlements are under way. To count timers would read those of other queues too.
    while !client.list("due", .., &Paging::first(1)).wait()?.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    timers.stop(Duration::from_secs(5)).wait()?;
    Ok(rate)
}

fn runs(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let mut ours = Vec::new();
    let mut peers: Vec<(&str, Vec<f64>)> = Vec::new();
    for round in 0..wish.sizes.rounds {
        ours.push(drain(&here.postgres(), wish.sizes.timers)?);
        for (index, peer) in ["graphile_worker", "apalis-postgres", "underway"]
            .iter()
            .enumerate()
        {
            let Some(program) = &wish.peers else { break };
            if peers.len() == index {
                peers.push((peer, Vec::new()));
            }
            // It needs minutes for what the others do within seconds.
            let jobs = match *peer {
                "underway" => wish.sizes.peer_jobs / 20,
                _ => wish.sizes.peer_jobs,
            };
            peers[index]
                .1
                .push(peer_rate(program, peer, &here.postgres(), jobs)?);
        }
        complain!("D3 round {} of {}", round + 1, wish.sizes.rounds);
    }
    let rate = median(ours.into_iter());
    say!("D3 PostgreSQL, claim + settle: {rate:.0}/s");
    for (peer, rates) in peers {
        let peers = median(rates.into_iter());
        say!("D3 {peer}: {peers:.0}/s, ratio {:.2}", rate / peers);
    }
    Ok(())
}

fn peer_rate(program: &Path, peer: &str, place: &Place, jobs: u64) -> Result<f64, Failure> {
    let mut command = Command::new(program);
    command.args([peer, &place.argument(), &jobs.to_string(), "64"]);
    let output = command.stderr(Stdio::inherit()).output()?;
    let line = String::from_utf8(output.stdout)?;
    let seconds = line
        .split_whitespace()
        .nth(2)
        .ok_or("the peer printed no time")?;
    Ok(jobs as f64 / seconds.parse::<f64>()?)
}

// === D4: SQLite ===

fn sqlite(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let (mut schedules, mut plains, mut drains) = (Vec::new(), Vec::new(), Vec::new());
    let mut peers = Vec::new();
    for _ in 0..wish.sizes.rounds {
        let place = here.sqlite();
        let timers = Durable::builder(place.store()?).start()?;
        schedules.push(single_calls(&timers, "many", wish.sizes.calls / THREADS)?);
        plains.push(place.plain(1, wish.sizes.timers / BATCH, BATCH)?);
        drop(timers);
        drains.push(drain(&here.sqlite(), wish.sizes.timers)?);
        if let Some(program) = &wish.peers {
            // Its rate falls with the number of jobs: with 20,000 it is a tenth of that with 2,000.
            let jobs = wish.sizes.peer_jobs / 10;
            peers.push(peer_rate(program, "apalis-sqlite", &here.sqlite(), jobs)?);
        }
    }
    let runs = median(drains.into_iter());
    say!(
        "D4 SQLite: schedule from 16 threads {:.0}/s, run {runs:.0}/s, plain SQL in batches of 100 {:.0}/s",
        median(schedules.into_iter()),
        median(plains.into_iter())
    );
    if !peers.is_empty() {
        let peers = median(peers.into_iter());
        say!("D4 apalis-sqlite: {peers:.0}/s, ratio {:.2}", runs / peers);
    }
    Ok(())
}

// === D5: takeover ===

/// A process that claims all timers of `held` and never ends a run, until it is killed.
fn hold(place: &str, term: Duration) -> Result<(), Failure> {
    end_with_the_parent();
    let timers = Durable::builder(Place::of_argument(place).store()?)
        .term(term)
        .look(term / 15)
        .handle("held", |_: &Due<u64>| -> () {
            loop {
                std::thread::park();
            }
        })
        .running(8)
        .start()?;
    while timers.stats().runs < 8 {
        std::thread::sleep(Duration::from_millis(5));
    }
    say!("holding");
    loop {
        std::thread::park();
    }
}

fn takeover(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let term = wish.sizes.term;
    for place in here.both() {
        let client = Durable::builder(place.store()?).start()?;
        for number in 0..8 {
            client
                .schedule("held", &format!("held:{number}"), Duration::ZERO, &number)
                .wait()?;
        }
        let mut holder = holder(&place, term)?;
        wait_until_it_holds(&mut holder)?;
        // The other node has to know the first one before that dies.
        let late = Lateness::default();
        let runs = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&runs);
        let handler = late.handler();
        let timers = Durable::builder(place.store()?)
            .term(term)
            .look(term / 15)
            .handle("held", move |due: &Due<u64>| match due.payload() {
                0..8 => seen
                    .lock()
                    .expect("no panic under the lock")
                    .push(Instant::now()),
                _ => handler(due),
            })
            .running(64)
            .start()?;
        std::thread::sleep(term * 2);
        // Due within the seconds after the death, in the shards of both nodes.
        for number in 8..208 {
            let delay = term / 15 + term * number / 400;
            let number = u64::from(number);
            client
                .schedule("held", &format!("next:{number}"), delay, &number)
                .wait()?;
        }
        holder.kill()?;
        holder.wait()?;
        let death = Instant::now();
        wait_for(&timers, 208)?;
        let all = runs.lock().expect("no panic under the lock").clone();
        let last = all.iter().max().ok_or("nothing was taken over")?;
        say!(
            "D5 {}, term {term:?}: claimed timers ran again within {:.1} s of kill -9; unclaimed: {}",
            place.name(),
            last.duration_since(death).as_secs_f64(),
            late.line()
        );
    }
    Ok(())
}

fn holder(place: &Place, term: Duration) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--hold", &place.argument(), &term.as_millis().to_string()]);
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn wait_until_it_holds(holder: &mut Child) -> Result<(), Failure> {
    use std::io::BufRead;
    let output = holder.stdout.take().ok_or("the child has no output")?;
    let mut line = String::new();
    std::io::BufReader::new(output).read_line(&mut line)?;
    match line.trim() {
        "holding" => Ok(()),
        _ => Err("the child has ended".into()),
    }
}

// === D6: idle ===

fn idle(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for place in here.both() {
        let store = place.store()?;
        let calls = Arc::clone(&store.calls);
        let timers = Durable::builder(store)
            .handle("idle", |_: &Due<u64>| {})
            .start()?;
        timers
            .schedule("idle", "first", Duration::ZERO, &0)
            .wait()?;
        wait_for(&timers, 1)?;
        calls.take_looks();
        let (beats, used) = (calls.beats.load(Ordering::Relaxed), cpu_time()?);
        std::thread::sleep(wish.sizes.idle);
        let seconds = wish.sizes.idle.as_secs_f64();
        let used = cpu_time()?.saturating_sub(used).as_secs_f64() / seconds;
        let looks = calls.take_looks();
        say!(
            "D6 {}: {:.2} reads and {:.2} writes a second, {:.2} % of a core; a look: {}",
            place.name(),
            looks.len() as f64 / seconds,
            (calls.beats.load(Ordering::Relaxed) - beats) as f64 / seconds,
            used * 100.0,
            quantiles(looks)
        );
    }
    Ok(())
}

/// The CPU time of this process.
fn cpu_time() -> Result<Duration, Failure> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(
        u64::try_from(time.tv_sec)?,
        u32::try_from(time.tv_nsec)?,
    ))
}

// === D7: a mass at one instant ===

fn at_once(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for place in here.both() {
        let client = Durable::builder(place.store()?).start()?;
        // Due when all of them are stored.
        let due = SystemTime::now() + Duration::from_secs(2 + wish.sizes.at_once / 10_000);
        for first in (0..wish.sizes.at_once).step_by(1_000) {
            let delay = due.duration_since(SystemTime::now())?;
            let all =
                (first..first + 1_000).map(|number| (format!("mass:{number}"), delay, number));
            for answer in client.schedule_many("mass", all).wait()? {
                answer?;
            }
        }
        let late = Lateness::default();
        let timers = Durable::builder(place.store()?)
            .handle("mass", |_: &Due<u64>| {})
            .pace(500)
            .handle("other", late.handler())
            .running(64)
            .start()?;
        let rest = due.duration_since(SystemTime::now()).unwrap_or_default();
        std::thread::sleep(rest.saturating_sub(Duration::from_secs(1)));
        schedule_at_rate(&timers, "other", 200, wish.sizes.lateness)?;
        std::thread::sleep(Duration::from_secs(2));
        say!(
            "D7 {}: {} timers due at one instant in a paced queue; lateness of another queue: {}",
            place.name(),
            wish.sizes.at_once,
            late.line()
        );
    }
    Ok(())
}

// === D8: many pending ===

fn filled(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for [empty, full] in [
        [here.sqlite(), here.sqlite()],
        [here.postgres(), here.postgres()],
    ] {
        full.fill("filled", wish.sizes.filled)?;
        let name = full.name();
        let mut rates: [Vec<[f64; 3]>; 2] = Default::default();
        for round in 0..wish.sizes.rounds {
            for (place, rates) in [&empty, &full].iter().zip(&mut rates) {
                let timers = Durable::builder(place.store()?).start()?;
                let queue = format!("many-{round}");
                let each = wish.sizes.calls / THREADS / 2;
                let schedules = single_calls(&timers, &queue, each)?;
                let start = Instant::now();
                let keys: Vec<String> = (0..each * THREADS).map(|n| format!("order:{n}")).collect();
                for keys in keys.chunks(BATCH as usize) {
                    for answer in timers.cancel_many(&queue, keys).wait()? {
                        answer?;
                    }
                }
                let cancels = keys.len() as f64 / start.elapsed().as_secs_f64();
                rates.push([schedules, cancels, drain(place, wish.sizes.timers / 4)?]);
            }
        }
        for (index, what) in ["schedule", "cancel in batches of 100", "run"]
            .iter()
            .enumerate()
        {
            let (empty, full) = (&rates[0], &rates[1]);
            let ratio = median(
                full.iter()
                    .zip(empty)
                    .map(|(full, empty)| full[index] / empty[index]),
            );
            say!(
                "D8 {}, {} pending, {what}: {:.0}/s, empty {:.0}/s, ratio {ratio:.2}",
                name,
                wish.sizes.filled,
                median(full.iter().map(|r| r[index])),
                median(empty.iter().map(|r| r[index])),
            );
        }
    }
    Ok(())
}

// === D9: somebody's transaction stays open ===

/// Looks and runs under load, first without and then with a transaction that has written and waits.
fn held_open(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let place = here.postgres();
    let store = place.store()?;
    let calls = Arc::clone(&store.calls);
    let timers = Durable::builder(store)
        .handle("load", |_: &Due<u64>| {})
        .running(4_000)
        .start()?;
    let mut lines = Vec::new();
    let mut rates = Vec::new();
    for open in [false, true] {
        let mut client = place::client(&place.argument())?;
        if open {
            client.batch_execute(
                "begin; create table if not exists other (id int); insert into other values (1)",
            )?;
        }
        let stop = AtomicBool::new(false);
        calls.take_looks();
        let before = timers.stats().succeeded;
        let start = Instant::now();
        std::thread::scope(|scope| -> Result<(), Failure> {
            let load = scope.spawn(|| load(&timers, &stop));
            std::thread::sleep(wish.sizes.held_open);
            stop.store(true, Ordering::Relaxed);
            load.join().map_err(|_| "a thread has panicked")?
        })?;
        let rate = (timers.stats().succeeded - before) as f64 / start.elapsed().as_secs_f64();
        rates.push(rate);
        // The last quarter has the most that is dead and can't be removed.
        let looks = calls.take_looks();
        let last = looks[looks.len() * 3 / 4..].to_vec();
        lines.push(format!("runs {rate:.0}/s, a look: {}", quantiles(last)));
        if open {
            client.batch_execute("rollback")?;
        }
    }
    say!("D9 PostgreSQL, without an open transaction: {}", lines[0]);
    say!(
        "D9 PostgreSQL, one open for {:?}: {}, ratio {:.2}",
        wish.sizes.held_open,
        lines[1],
        rates[1] / rates[0]
    );
    Ok(())
}

/// Schedules what is due soon in batches, with no more pending than a second of it.
fn load(timers: &Durable, stop: &AtomicBool) -> Result<(), Failure> {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let all: Vec<_> = (number..number + BATCH)
            .map(|n| (format!("load:{n}"), Duration::from_millis(20 + n % 500), n))
            .collect();
        number += BATCH;
        for answer in timers.schedule_many("load", all).wait()? {
            answer?;
        }
        while timers.stats().succeeded + 20_000 < timers.stats().scheduled {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}
