//! Leases on a Redis server of this program's own: what it takes to keep a hundred thousand of
//! them, what remains of lock and unlock, how long others wait when a holder dies, and how
//! processes share one lock.
//!
//! ```text
//! cargo run --release -p benches --bin measure_leases                # about five minutes
//! cargo run --release -p benches --bin measure_leases -- --contest   # only the processes that compete
//! cargo run --release -p benches --bin measure_leases -- --smoke     # seconds: does it work?
//! ```
//!
//! A program of its own, since it needs a `redis-server`, on the loopback device, which ends with
//! it.

#[macro_use]
#[path = "../../../dev/xtask/src/say.rs"]
mod say;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use tourbillon::Clock;
use tourbillon_leases::{LeaseGuard, Leases, RedisStore};

#[path = "../machine.rs"]
#[allow(dead_code, reason = "this program needs a part of it")]
mod machine;

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::redis::Server;
use machine::{Machine, Used, commit, end_with_the_parent, resident_bytes};

/// Threads that acquire and release.
const THREADS: usize = 4;
/// What a network adds to each answer.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Tasks that acquire and drop.
const TASKS: usize = 32;
/// Locks that are held when the leases are closed.
const CLOSED: usize = 1_000;

struct Sizes {
    leases: usize,
    lease: Duration,
    watched: Duration,
    cycles: usize,
    crashes: usize,
    crash_leases: &'static [u64],
    contest: Duration,
    dropping: Duration,
    burst: usize,
}

const FULL: Sizes = Sizes {
    leases: 100_000,
    lease: Duration::from_secs(30),
    watched: Duration::from_secs(120),
    cycles: 10_000,
    crashes: 9,
    crash_leases: &[500, 3_000],
    contest: Duration::from_secs(30),
    dropping: Duration::from_secs(10),
    burst: 20_000,
};

const SMOKE: Sizes = Sizes {
    leases: 2_000,
    lease: Duration::from_secs(1),
    watched: Duration::from_secs(3),
    cycles: 500,
    crashes: 2,
    crash_leases: &[300],
    contest: Duration::from_secs(2),
    dropping: Duration::from_secs(1),
    burst: 2_000,
};

/// What the command line asks for.
enum Wish {
    All(Sizes),
    /// Only the processes that compete.
    Contest,
    /// Hidden: this process holds a lock on that server, with a lease of so many milliseconds.
    Hold(String, u64),
    /// Hidden: this process competes on that server for so many milliseconds, and holds the lock
    /// for so many.
    Contend(String, [u64; 2]),
}

fn wish() -> Result<Wish, lexopt::Error> {
    let mut wish = Wish::All(FULL);
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        wish = match arg {
            Long("smoke") => Wish::All(SMOKE),
            Long("contest") => Wish::Contest,
            Long("hold") => Wish::Hold(args.value()?.string()?, args.value()?.parse()?),
            Long("contend") => Wish::Contend(
                args.value()?.string()?,
                [args.value()?.parse()?, args.value()?.parse()?],
            ),
            other => return Err(other.unexpected()),
        }
    }
    Ok(wish)
}

fn main() -> ExitCode {
    let sizes = match wish() {
        Ok(Wish::All(sizes)) => sizes,
        Ok(Wish::Contest) => return verdict(contests(FULL.contest, true)),
        Ok(Wish::Hold(url, millis)) => return hold(&url, millis),
        Ok(Wish::Contend(url, [millis, hold])) => return contend(&url, millis, hold),
        Err(error) => {
            complain!("measure_leases: {error}; it takes --smoke or --contest");
            return ExitCode::from(2);
        }
    };
    say!("machine: {}", Machine::here().line());
    say!(
        "commit: {}",
        commit().unwrap_or_else(|| "unknown".to_owned())
    );
    let version = Command::new("redis-server").arg("--version").output();
    match version {
        Ok(output) => say!(
            "server: {}",
            String::from_utf8_lossy(&output.stdout).trim_end()
        ),
        Err(error) => {
            complain!("no redis-server, which Debian's package of that name has: {error}");
            return ExitCode::from(2);
        }
    }
    let held = many(&sizes) && cycles(&sizes) && releases(&sizes);
    for &lease in sizes.crash_leases {
        crashes(Duration::from_millis(lease), sizes.crashes);
    }
    // Two seconds on a busy machine say nothing about shares.
    let fair = contests(sizes.contest, sizes.contest == FULL.contest);
    verdict(held && fair)
}

fn verdict(good: bool) -> ExitCode {
    ExitCode::from(u8::from(!good))
}

fn store(url: &str, longest: Duration) -> RedisStore {
    // What is measured begins right after the server has started, and forgets nothing meanwhile.
    RedisStore::builder(url)
        .longest_lease(longest)
        .durable()
        .build()
        .expect("the URL of a server")
}

/// CPU time that the server has used, and commands that it has executed.
fn server_used(server: &Server) -> (Duration, u64) {
    let mut connection = server.connect();
    let mut field = |section: &str, name: &str| {
        let info: String = redis::cmd("INFO")
            .arg(section)
            .query(&mut connection)
            .expect("it answers");
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.expect("the field").trim().to_owned()
    };
    let seconds: f64 = ["used_cpu_sys", "used_cpu_user"]
        .iter()
        .map(|name| field("cpu", name).parse::<f64>().expect("a number"))
        .sum();
    let reads = field("stats", "total_reads_processed")
        .parse()
        .expect("a number");
    (Duration::from_secs_f64(seconds), reads)
}

/// P1 and P2: many leases for some time.
fn many(sizes: &Sizes) -> bool {
    let server = Server::start();
    let leases = Leases::builder(store(&server.url(), sizes.lease))
        .lease(sizes.lease)
        .build()
        .expect("leases");
    say!("\n{} leases of {:?}", sizes.leases, sizes.lease);
    let empty = resident_bytes();
    let start = Instant::now();
    let each = sizes.leases / THREADS;
    let guards: Vec<LeaseGuard> = std::thread::scope(|scope| {
        let acquire = |thread: usize| {
            let leases = &leases;
            scope.spawn(move || {
                let name = |n: usize| format!("lock-{}", thread * each + n);
                (0..each)
                    .map(|n| leases.try_lock(&name(n)).expect("it is free"))
                    .collect::<Vec<_>>()
            })
        };
        let threads: Vec<_> = (0..THREADS).map(acquire).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let acquired = start.elapsed();
    say!(
        "acquired by {THREADS} threads      {:>10.0} a second",
        guards.len() as f64 / acquired.as_secs_f64()
    );
    if let (Some(before), Some(after)) = (empty, resident_bytes()) {
        let bytes = after.saturating_sub(before) / guards.len() as u64;
        say!("memory of a lease            {bytes:>10} bytes");
    }

    let before = leases.stats();
    let (server_before, reads_before) = server_used(&server);
    let used = Used::now();
    let start = Instant::now();
    let mut least = Duration::MAX;
    while start.elapsed() < sizes.watched {
        std::thread::sleep(sizes.watched / 24);
        // By the holders' own clock.
        let remaining = guards.iter().map(LeaseGuard::remaining).min();
        least = least.min(remaining.unwrap_or_default());
        begin!(
            "\r{:>4} s of {:?}: {} renewed, least that was left {least:.1?}   ",
            start.elapsed().as_secs(),
            sizes.watched,
            leases.stats().renewed - before.renewed
        );
    }
    complain!();
    let passed = start.elapsed().as_secs_f64();
    let cpu = used.cpu_since().unwrap_or_default();
    let (server_after, reads_after) = server_used(&server);
    let after = leases.stats();
    let renewed = after.renewed - before.renewed;
    let batches = after.batches - before.batches;
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    let micros = |time: Duration, of: f64| time.as_secs_f64() * 1e6 / of;
    say!("lost                         {:>10}", after.lost);
    say!("held at the end              {held:>10}");
    say!(
        "renewals                     {:>10.0} a second",
        renewed as f64 / passed
    );
    say!(
        "failed attempts              {:>10}",
        after.failed - before.failed
    );
    say!(
        "late                         {:>10}",
        after.late - before.late
    );
    say!("least that was left          {least:>10.1?}");
    say!(
        "round trips                  {:>10.1} renewals in each; the server read {} times",
        renewed as f64 / batches as f64,
        reads_after - reads_before
    );
    say!(
        "CPU time of this process     {:>10.1} us a renewal, {:.1} us a second for a lease, {:.0} % of a core",
        micros(cpu, renewed as f64),
        micros(cpu, guards.len() as f64 * passed),
        cpu.as_secs_f64() / passed * 100.0
    );
    say!(
        "CPU time of the server       {:>10.1} us a renewal",
        micros(server_after.saturating_sub(server_before), renewed as f64)
    );
    let start = Instant::now();
    let count = guards.len();
    std::thread::scope(|scope| {
        let mut guards = guards.into_iter();
        for _ in 0..THREADS {
            let portion: Vec<_> = guards.by_ref().take(count.div_ceil(THREADS)).collect();
            scope.spawn(move || {
                for guard in portion {
                    guard.release().expect("it was held to the end");
                }
            });
        }
    });
    say!(
        "released by {THREADS} threads      {:>10.0} a second",
        count as f64 / start.elapsed().as_secs_f64()
    );
    after.lost == 0 && held == count && leases.stats().kept == 0
}

/// P3: lock and unlock of one name.
fn cycles(sizes: &Sizes) -> bool {
    let server = Server::start();
    let leases = Leases::builder(store(&server.url(), sizes.lease))
        .lease(sizes.lease)
        .build()
        .expect("leases");
    let start = Instant::now();
    for _ in 0..sizes.cycles {
        let guard = leases.try_lock("one").expect("it is free");
        guard.release().expect("it was held");
    }
    let each = start.elapsed() / u32::try_from(sizes.cycles).unwrap_or(u32::MAX);
    let none = leases.stats().armed;
    let guard = leases.try_lock("one").expect("it is free");
    let one = leases.stats().armed;
    say!("\n{} times lock and unlock of one name", sizes.cycles);
    say!(
        "both together                {:>10.1} us",
        each.as_secs_f64() * 1e6
    );
    say!("series that are armed        {none:>10}, and {one} while it is held");
    drop(guard);
    (none, one) == (0, 1)
}

/// P5: guards that are dropped, and leases that are closed, with a round trip of 10 ms.
fn releases(sizes: &Sizes) -> bool {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    // Nothing is renewed meanwhile.
    let lease = Duration::from_secs(600);
    let leases = Leases::builder(store(&proxy.url(), lease)).lease(lease);
    let leases = leases.build().expect("leases");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    say!("\nguards that are dropped, with a round trip of {ROUND_TRIP:?}");
    let names = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let next = move || {
        names
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            .to_string()
    };

    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let before = leases.stats().released;
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (leases, next) = (leases.clone(), next.clone());
            let until = start + sizes.dropping;
            runtime.spawn(async move {
                let mut taken = 0_u64;
                while Instant::now() < until {
                    drop(leases.try_lock_async(&next()).await.expect("it is free"));
                    taken += 1;
                }
                taken
            })
        })
        .collect();
    let taken: u64 = tasks
        .into_iter()
        .map(|task| runtime.block_on(task).expect("no panic"))
        .sum();
    let queued = leases.stats().releases_queued;
    let passed = start.elapsed().as_secs_f64();
    say!("taken and dropped            {taken:>10}");
    say!("of these still locked        {queued:>10}");
    say!(
        "released                     {:>10.0} a second",
        (leases.stats().released - before) as f64 / passed
    );
    emptied(&leases);

    proxy.end();
    let lock = |_| runtime.block_on(leases.try_lock_async(&next()));
    let guards: Vec<_> = (0..sizes.burst).map(lock).collect();
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let start = Instant::now();
    drop(guards);
    emptied(&leases);
    say!(
        "released, {} at once      {:>10.0} a second",
        sizes.burst,
        sizes.burst as f64 / start.elapsed().as_secs_f64()
    );

    proxy.end();
    let guards: Vec<_> = (0..CLOSED).map(lock).collect();
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let start = Instant::now();
    let closed = leases.close(Duration::from_secs(60));
    say!("to close {closed} locks         {:>10.0?}", start.elapsed());
    drop(guards);
    closed == CLOSED && server.cli(&["--scan", "--pattern", "*:lock"]).is_empty()
}

/// Waits until nothing is to be given back any more.
fn emptied(leases: &Leases) {
    let start = Instant::now();
    while leases.stats().releases_queued > 0 {
        assert!(start.elapsed() < Duration::from_secs(120), "locks stay");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that holds a lock until it is killed.
fn hold(url: &str, millis: u64) -> ExitCode {
    end_with_the_parent();
    let lease = Duration::from_millis(millis);
    let leases = Leases::builder(store(url, lease))
        .lease(lease)
        .build()
        .expect("leases");
    let guard = leases.lock("crash").expect("it becomes free");
    say!("{}", guard.fencing_token());
    std::io::stdout().flush().expect("somebody reads");
    loop {
        std::thread::park();
    }
}

/// P4: a holder is killed; when does the one who waits have it?
fn crashes(lease: Duration, times: usize) {
    let server = Server::start();
    let clock = Clock::boottime();
    let leases = Leases::builder(store(&server.url(), lease))
        .lease(lease)
        .build()
        .expect("leases");
    let mut rest_of_all = Vec::new();
    let mut after_rest = Vec::new();
    let own = std::env::current_exe().expect("this program");
    for round in 0..times {
        let mut holder = Command::new(&own)
            .args(["--hold", &server.url(), &lease.as_millis().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts once more");
        let mut line = String::new();
        let output = holder.stdout.take().expect("a pipe");
        BufReader::new(output)
            .read_line(&mut line)
            .expect("it says when it holds");
        let token: u64 = line.trim().parse().expect("a token");
        let waiter = {
            let (leases, clock) = (leases.clone(), clock.clone());
            std::thread::spawn(move || {
                let guard = leases.lock("crash").expect("it becomes free");
                (clock.now(), guard)
            })
        };
        // Somewhere between two renewals.
        std::thread::sleep(lease / 2 + lease / 3 * u32::try_from(round).unwrap_or(0) / 9);
        holder.kill().expect("it is killed");
        let killed = clock.now();
        let rest = server.cli(&["PTTL", "tourbillon:{crash}:lock"]);
        let rest: u64 = rest
            .trim_start_matches("(integer) ")
            .parse()
            .expect("milliseconds");
        let rest = Duration::from_millis(rest);
        holder.wait().expect("it has ended");
        let (acquired, guard) = waiter.join().expect("no panic");
        assert!(guard.fencing_token() > token, "tokens grow");
        rest_of_all.push(rest);
        after_rest.push(acquired.since(killed).saturating_sub(rest));
        guard.release().expect("it was held");
    }
    rest_of_all.sort();
    after_rest.sort();
    say!("\na holder is killed, {times} times, leases of {lease:?}");
    say!(
        "rest of its lease            {:>10.0?} median, {:.0?} to {:.0?}",
        rest_of_all[times / 2],
        rest_of_all[0],
        rest_of_all[times - 1]
    );
    say!(
        "the next one has it          {:>10.1?} after that (median), {:.1?} to {:.1?}",
        after_rest[times / 2],
        after_rest[0],
        after_rest[times - 1]
    );
}

/// Processes that compete for one lock.
const RIVALS: usize = 4;
/// The largest share may be this many times the smallest one.
const FAIR: f64 = 1.5;

/// How long each of them holds it. Whoever asks again at once is ahead of those who have to be
/// woken above all when the lock is held for longer than it is free.
const HOLDS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(3)];

/// A process that locks one name again and again for some time. It prints a line when it is ready,
/// begins when it reads one, and prints how often it held the lock and its longest wait in
/// microseconds.
fn contend(url: &str, millis: u64, hold: u64) -> ExitCode {
    end_with_the_parent();
    let leases = Leases::builder(store(url, Duration::from_secs(30)))
        .build()
        .expect("leases");
    say!("ready");
    std::io::stdout().flush().expect("somebody reads");
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("the word to begin");
    let end = Instant::now() + Duration::from_millis(millis);
    let (mut held, mut longest) = (0_u64, Duration::ZERO);
    loop {
        let asked = Instant::now();
        if asked >= end {
            break;
        }
        let Ok(guard) = leases.try_lock_for("contested", end - asked) else {
            longest = longest.max(asked.elapsed());
            break;
        };
        longest = longest.max(asked.elapsed());
        held += 1;
        if hold > 0 {
            std::thread::sleep(Duration::from_millis(hold));
        }
        guard.release().expect("it was held");
    }
    say!("{held} {}", longest.as_micros());
    ExitCode::SUCCESS
}

/// P5: processes compete for one lock. Whether they shared it fairly, if that is `judged`.
fn contests(time: Duration, judged: bool) -> bool {
    let fair = HOLDS.map(|hold| contest(time, hold) <= FAIR);
    !judged || fair.into_iter().all(|fair| fair)
}

/// The largest share by the smallest one.
fn contest(time: Duration, hold: Duration) -> f64 {
    let server = Server::start();
    let own = std::env::current_exe().expect("this program");
    let mut rivals: Vec<_> = (0..RIVALS)
        .map(|_| {
            let mut rival = Command::new(&own)
                .args(["--contend", &server.url()])
                .args([time, hold].map(|part| part.as_millis().to_string()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts once more");
            let mut output = BufReader::new(rival.stdout.take().expect("a pipe"));
            let mut line = String::new();
            output.read_line(&mut line).expect("it says it is ready");
            (rival, output)
        })
        .collect();
    for (rival, _) in &mut rivals {
        let mut input = rival.stdin.take().expect("a pipe");
        input.write_all(b"go\n").expect("it reads");
    }
    let mut shares: Vec<u64> = Vec::new();
    let mut longest = Duration::ZERO;
    for (mut rival, mut output) in rivals {
        let mut line = String::new();
        output.read_line(&mut line).expect("it says how it went");
        rival.wait().expect("it has ended");
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().expect("two numbers").expect("a number");
        shares.push(next());
        longest = longest.max(Duration::from_micros(next()));
    }
    shares.sort_unstable();
    let total: u64 = shares.iter().sum();
    let factor = shares[RIVALS - 1] as f64 / shares[0].max(1) as f64;
    say!("\n{RIVALS} processes compete for one lock for {time:?}, and hold it for {hold:?}");
    say!("times held, by each          {shares:>10?}");
    say!("largest by smallest share    {factor:>10.2}");
    say!(
        "held by all                  {:>10.0} times a second",
        total as f64 / time.as_secs_f64()
    );
    say!("longest wait                 {longest:>10.1?}");
    factor
}
