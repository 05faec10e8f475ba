//! Leases on a Redis server: what it takes to keep a hundred thousand of them, what remains of lock
//! and unlock, how long others wait when a holder dies, and how processes share one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use chaos::proxy::{Proxy, Trouble, Way};
use chaos::servers::redis::Server;
use tourbillon::Clock;
use tourbillon_leases::{LeaseGuard, Leases, RedisStore};

use super::{Failure, Order, Other, Sheet, at_once, forever, millis};
use crate::machine::{Used, grown_since, resident_bytes};
use crate::workload::Form;

/// Threads that acquire and release.
const THREADS: u64 = 4;
/// What a network adds to each answer.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// Tasks that acquire and drop.
const TASKS: usize = 32;
/// Locks that are held when the leases are closed.
const CLOSED: usize = 1_000;
/// Processes that compete for one lock.
const RIVALS: usize = 4;
/// The largest share may be this many times the smallest one.
const FAIR: f64 = 1.5;
/// How long each of them holds it. Whoever asks again at once is ahead of those who have to be
/// woken above all when the lock is held for longer than it is free.
const HOLDS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(3)];

pub(super) fn measure(name: &str, sheet: &mut Sheet) -> Result<(), Failure> {
    let small = sheet.form == Form::Smoke;
    let lease = Duration::from_secs(if small { 1 } else { 30 });
    let seconds = |full, smoke| Duration::from_secs(if small { smoke } else { full });
    match (name, small) {
        ("L1", false) => kept(sheet, 100_000, lease, seconds(120, 3)),
        ("L1", true) => kept(sheet, 2_000, lease, seconds(120, 3)),
        ("L2", _) => cycles(sheet, if small { 500 } else { 10_000 }, lease),
        ("L3", _) => releases(sheet, seconds(10, 1), if small { 2_000 } else { 20_000 }),
        ("L4", false) => killed(sheet, 500, 9).and_then(|()| killed(sheet, 3_000, 9)),
        ("L4", true) => killed(sheet, 300, 2),
        _ => (HOLDS.iter()).try_for_each(|hold| contest(sheet, seconds(30, 2), *hold)),
    }
}

fn leases(url: &str, lease: Duration) -> Result<Leases, Failure> {
    // Durable: the server has just started, so without it the first lease would be waited for.
    let store = RedisStore::builder(url).longest_lease(lease).durable();
    Ok(Leases::builder(store.build()?).lease(lease).build()?)
}

fn held(good: bool, what: &str) -> Result<(), Failure> {
    if good { Ok(()) } else { Err(what.into()) }
}

/// CPU time that the server has used, and commands that it has read.
fn server_used(server: &Server) -> Result<(f64, f64), Failure> {
    let mut connection = server.connect();
    let mut field = |section: &str, name: &str| -> Result<f64, Failure> {
        let info: String = redis::cmd("INFO").arg(section).query(&mut connection)?;
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.ok_or("the server says no such field")?;
        Ok(value.trim().parse()?)
    };
    let cpu = field("cpu", "used_cpu_sys")? + field("cpu", "used_cpu_user")?;
    Ok((cpu, field("stats", "total_reads_processed")?))
}

fn kept(sheet: &mut Sheet, count: u64, lease: Duration, watched: Duration) -> Result<(), Failure> {
    let server = Server::start();
    let leases = leases(&server.url(), lease)?;
    let empty = resident_bytes();
    let guards = std::sync::Mutex::new(Vec::new());
    let each = count / THREADS;
    let acquired = at_once(THREADS, |thread| {
        let names = (thread * each..(thread + 1) * each).map(|number| format!("lock-{number}"));
        let own: Result<Vec<LeaseGuard>, _> = names
            .map(|name| leases.lock(&name).at_once().wait())
            .collect();
        guards.lock().expect("no panic under the lock").extend(own?);
        Ok(())
    })?;
    let guards = guards.into_inner()?;
    let grown = grown_since(empty);

    let before = leases.stats();
    let (server_before, reads_before) = server_used(&server)?;
    let used = Used::now();
    let start = Instant::now();
    let mut least = Duration::MAX;
    while start.elapsed() < watched {
        std::thread::sleep(watched / 24);
        // By the holders' own clock.
        let remaining = guards.iter().map(LeaseGuard::remaining).min();
        least = least.min(remaining.unwrap_or_default());
    }
    let passed = start.elapsed().as_secs_f64();
    let cpu = used.cpu_since().unwrap_or_default().as_secs_f64();
    let (server_after, reads_after) = server_used(&server)?;
    let after = leases.stats();
    let renewed = (after.renewed - before.renewed) as f64;
    let still = guards.iter().filter(|guard| guard.is_held()).count() as u64;
    let guards = std::sync::Mutex::new(guards);
    let released = at_once(THREADS, |_| {
        let mut guards = guards.lock().map_err(|_| "a thread has panicked")?;
        let left = guards.len().saturating_sub(each as usize);
        let mut portion = guards.split_off(left).into_iter();
        drop(guards);
        Ok(portion.try_for_each(|guard| guard.release().wait().map(drop))?)
    })?;
    let figures = [
        count as f64 / acquired.as_secs_f64(),
        grown.map_or(f64::NAN, |bytes| bytes as f64 / count as f64),
        after.lost as f64,
        still as f64,
        renewed / passed,
        (after.failed - before.failed) as f64,
        (after.late - before.late) as f64,
        least.as_secs_f64(),
        renewed / (after.batches - before.batches) as f64,
        reads_after - reads_before,
        cpu * 1e6 / renewed,
        cpu * 100.0 / passed,
        (server_after - server_before) * 1e6 / renewed,
        count as f64 / released.as_secs_f64(),
    ];
    let case = format!("{lease:?} each, for {watched:?}");
    sheet.add(case, count, "leases", [figures]);
    let all_held = after.lost == 0 && still == count && leases.stats().kept == 0;
    held(all_held, "a lease was lost")
}

fn cycles(sheet: &mut Sheet, cycles: u64, lease: Duration) -> Result<(), Failure> {
    let server = Server::start();
    let leases = leases(&server.url(), lease)?;
    let start = Instant::now();
    for _ in 0..cycles {
        leases.lock("one").at_once().wait()?.release().wait()?;
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / cycles as f64;
    let none = leases.stats().armed;
    let guard = leases.lock("one").at_once().wait()?;
    let one = leases.stats().armed;
    let figures = [micros, none as f64, one as f64];
    sheet.add(format!("{cycles} times"), 0, "leases", [figures]);
    drop(guard);
    held((none, one) == (0, 1), "a series is armed without a lease")
}

/// Guards that are dropped, and leases that are closed.
fn releases(sheet: &mut Sheet, dropping: Duration, burst: usize) -> Result<(), Failure> {
    let server = Server::start();
    let proxy = Proxy::before_redis(server.port());
    // Nothing is renewed meanwhile.
    let leases = leases(&proxy.url(), Duration::from_secs(600))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_time().build()?;
    let names = Arc::new(AtomicUsize::new(0));
    let next = move || names.fetch_add(1, Ordering::Relaxed).to_string();

    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let start = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (leases, next) = (leases.clone(), next.clone());
            let until = start + dropping;
            runtime.spawn(async move {
                while Instant::now() < until {
                    drop(leases.lock(&next()).at_once().await.expect("it is free"));
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task)?;
    }
    let (passed, stats) = (start.elapsed().as_secs_f64(), leases.stats());
    let taken = (stats.released + stats.releases_queued as u64) as f64;
    let released = stats.released as f64 / passed;
    sheet.add("taken and dropped", 0, "leases", [[taken / passed]]);
    sheet.add("released meanwhile", 0, "leases", [[released]]);
    emptied(&leases)?;

    proxy.end();
    let lock = |_| runtime.block_on(leases.lock(&next()).at_once().into_future());
    let guards: Vec<_> = (0..burst).map(lock).collect();
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let start = Instant::now();
    drop(guards);
    emptied(&leases)?;
    let rate = burst as f64 / start.elapsed().as_secs_f64();
    sheet.add(format!("released, {burst} at once"), 0, "leases", [[rate]]);

    proxy.end();
    let guards: Vec<_> = (0..CLOSED).map(lock).collect();
    proxy.begin(Trouble::Delay(ROUND_TRIP), Way::Down);
    let start = Instant::now();
    let closed = leases.close(Duration::from_secs(60));
    let rate = CLOSED as f64 / start.elapsed().as_secs_f64();
    sheet.add(format!("{CLOSED} locks are closed"), 0, "leases", [[rate]]);
    drop(guards);
    let left = server.cli(&["--scan", "--pattern", "*:lock"]);
    held(closed == CLOSED && left.is_empty(), "locks stay")
}

/// Waits until nothing is to be given back any more.
fn emptied(leases: &Leases) -> Result<(), Failure> {
    let start = Instant::now();
    while leases.stats().releases_queued > 0 {
        held(start.elapsed() < Duration::from_secs(120), "locks stay")?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// A process that holds a lock until it is killed.
pub(super) fn hold(url: &str, lease: Duration, say: &dyn Fn(Vec<u64>)) -> Result<(), Failure> {
    let guard = leases(url, lease)?.lock("crash").wait()?;
    say(vec![guard.token()]);
    forever()
}

/// Measures how long after the kill of a holder a waiting process has the lock.
fn killed(sheet: &mut Sheet, lease_ms: u64, times: u32) -> Result<(), Failure> {
    let server = Server::start();
    let clock = Clock::boottime();
    let lease = Duration::from_millis(lease_ms);
    let leases = leases(&server.url(), lease)?;
    let mut rounds = Vec::new();
    for round in 0..times {
        let mut holder = Other::start(&Order::Lock(server.url(), lease_ms))?;
        let token = holder.word()?[0];
        let (waiting, waits_by) = (leases.clone(), clock.clone());
        let waiter = std::thread::spawn(move || {
            let guard = waiting.lock("crash").wait();
            (waits_by.now(), guard)
        });
        // Somewhere between two renewals.
        std::thread::sleep(lease / 2 + lease / 3 * round / 9);
        holder.process.kill()?;
        let killed = clock.now();
        let rest = server.cli(&["PTTL", "tourbillon:{crash}:lock"]);
        let rest = Duration::from_millis(rest.trim_start_matches("(integer) ").parse()?);
        let (acquired, guard) = waiter.join().map_err(|_| "a thread has panicked")?;
        let guard = guard?;
        held(guard.token() > token, "tokens grow")?;
        rounds.push([rest, acquired.since(killed).saturating_sub(rest)].map(millis));
        guard.release().wait()?;
    }
    sheet.add(format!("leases of {lease:?}"), 0, "leases", rounds);
    Ok(())
}

/// A process that locks one name again and again for some time. It says a word when it is ready,
/// begins when it hears one, and says how often it held the lock and its longest wait in
/// microseconds.
pub(super) fn contend(
    url: &str,
    times: [u64; 2],
    begin: &Receiver<()>,
    say: &dyn Fn(Vec<u64>),
) -> Result<(), Failure> {
    let leases = leases(url, Duration::from_secs(30))?;
    let [time, hold] = times.map(Duration::from_millis);
    say(Vec::new());
    begin.recv()?;
    let end = Instant::now() + time;
    let (mut held, mut longest) = (0_u64, Duration::ZERO);
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        let asked = Instant::now();
        let guard = leases.lock("contested").within(left).wait();
        longest = longest.max(asked.elapsed());
        let Ok(guard) = guard else { break };
        held += 1;
        std::thread::sleep(hold);
        guard.release().wait()?;
    }
    say(vec![held, longest.as_micros() as u64]);
    Ok(())
}

fn contest(sheet: &mut Sheet, time: Duration, hold: Duration) -> Result<(), Failure> {
    let server = Server::start();
    let times = [time, hold].map(|time| time.as_millis() as u64);
    let start = |_| Other::start(&Order::Contend(server.url(), times));
    let mut rivals = (0..RIVALS).map(start).collect::<Result<Vec<_>, _>>()?;
    for rival in &rivals {
        rival.word()?;
    }
    rivals.iter_mut().for_each(|rival| rival.process.tell(&()));
    let told = rivals.iter().map(Other::word);
    let told = told.collect::<Result<Vec<_>, _>>()?;
    let of = |at: usize| told.iter().map(move |numbers| numbers[at]);
    let (least, most) = (of(0).min().unwrap_or(0).max(1), of(0).max().unwrap_or(0));
    let factor = most as f64 / least as f64;
    let rate = of(0).sum::<u64>() as f64 / time.as_secs_f64();
    let longest = of(1).max().unwrap_or(0) as f64 / 1e3;
    let case = format!("for {time:?}, each holds it for {hold:?}");
    sheet.add(case, 0, "leases", [[rate, factor, longest]]);
    // Two seconds on a busy machine say nothing about shares.
    let fair = factor <= FAIR || sheet.form == Form::Smoke;
    held(fair, "the shares differ too much")
}
