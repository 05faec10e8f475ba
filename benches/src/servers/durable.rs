//! Durable timers on SQLite and PostgreSQL: how late they are, how many there can be a second, and
//! what others notice of them.
//!
//! SQLite lies in files in the build folder. PostgreSQL is a server with its data in the temporary
//! folder and with fsync.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tourbillon_durable::{Due, Durable, DurableBuilder, Paging};

use super::here::{BATCH, FULL, Here, Lateness, QUICK, SMOKE, Sizes};
use super::here::{cpu_time, schedule_all, wait_for};
use super::place::{self, Place};
use super::{Failure, Order, Other, Sheet, at_once, forever, joined, quantiles, queues};

/// Connections and threads where users' calls come from many.
const THREADS: u64 = 16;
const DAY: Duration = Duration::from_secs(86_400);
const SQLITE: &str = "SQLite";
const POSTGRES: &str = "PostgreSQL";
const PLAIN: &str = "plain SQL";

pub(super) fn measure(name: &str, here: &Here, sheet: &mut Sheet) -> Result<(), Failure> {
    let sizes = [&FULL, &QUICK, &SMOKE][sheet.form as usize];
    match name {
        "D1" => lateness(here, sheet, sizes),
        "D2" => schedules(here, sheet, sizes),
        "D3" => runs(here, sheet, sizes),
        "D4" => sqlite(here, sheet, sizes),
        "D5" => takeover(here, sheet, sizes.node_lease),
        "D6" => idle(here, sheet, sizes.idle),
        "D7" => mass(here, sheet, sizes),
        "D8" => filled(here, sheet, sizes),
        "D9" => held_open(here, sheet, sizes.held_open),
        "D10" => queues::many_queues(here, sheet, sizes),
        "D11" => queues::index(here, sheet, sizes),
        _ => moved(here, sheet, sizes.held_open / 4),
    }
}

/// Timers at 2,000 a second, from several threads, each due between 0.5 and 1.5 s after its call.
fn lateness(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    for place in here.both() {
        let late = Lateness::default();
        let timers = Durable::builder(place.store()?).handle("late", late.handler());
        let timers = timers.running(256).start()?;
        schedule_at_rate(&timers, "late", 2_000, sizes.lateness)?;
        let stats = wait_for(&timers, timers.stats().scheduled)?;
        if stats.failed + stats.fenced + stats.store_errors > 0 {
            return Err(format!("something has failed: {stats:?}").into());
        }
        sheet.add("2,000/s", stats.succeeded, place.name(), [late.quantiles()]);
    }
    Ok(())
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
    let (mut number, mut steps) = (0, 0);
    let mut pending = Vec::new();
    while start.elapsed() < span {
        for _ in 0..rate / 200 {
            number += 1;
            let delay = Duration::from_micros(500_000 + number * 7_919 % 1_000_000);
            let key = format!("at-rate:{number}");
            pending.push(timers.schedule(queue, &key, delay, &number));
        }
        if pending.len() > 1_000 {
            let mut answers = pending.drain(..);
            answers.try_for_each(|answer| answer.wait().map(drop))?;
        }
        steps += 1;
        std::thread::sleep((step * steps).saturating_sub(start.elapsed()));
    }
    let mut answers = pending.into_iter();
    Ok(answers.try_for_each(|answer| answer.wait().map(drop))?)
}

fn schedules(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    let (batches, singles) = (sizes.timers / BATCH, sizes.calls / THREADS);
    let mut rounds: [Vec<[f64; 1]>; 4] = Default::default();
    for _ in 0..sheet.rounds() {
        let place = here.postgres();
        let timers = Durable::builder(place.store()?).start()?;
        rounds[1].push([place.plain(1, batches, BATCH)?]);
        let start = Instant::now();
        for batch in 0..batches {
            let numbers = batch * BATCH..(batch + 1) * BATCH;
            let all = numbers.map(|n| (format!("order:{n}"), Duration::from_secs(3_600), 7));
            schedule_all(&timers, "batches", all)?;
        }
        rounds[0].push([(batches * BATCH) as f64 / start.elapsed().as_secs_f64()]);
        rounds[3].push([place.plain(THREADS, singles, 1)?]);
        rounds[2].push([single_calls(&timers, "many", singles)?]);
    }
    let (batches, singles) = ("batches of 100", "16 threads, single calls");
    let of = |case| [(case, POSTGRES), (case, PLAIN)];
    add_all(sheet, [of(batches), of(singles)].concat(), rounds);
    Ok(())
}

/// Adds a row for each case and system, if it has been measured.
fn add_all(
    sheet: &mut Sheet,
    rows: impl IntoIterator<Item = (&'static str, &'static str)>,
    rounds: [Vec<[f64; 1]>; 4],
) {
    for ((case, system), rounds) in rows.into_iter().zip(rounds) {
        if !rounds.is_empty() {
            sheet.add(case, 0, system, rounds);
        }
    }
}

/// Each thread waits for its own commit before its next call.
fn single_calls(timers: &Durable, queue: &str, each: u64) -> Result<f64, Failure> {
    let took = at_once(THREADS, |thread| {
        for call in thread * each..(thread + 1) * each {
            let (key, hour) = (format!("order:{call}"), Duration::from_secs(3_600));
            timers.schedule(queue, &key, hour, &7).wait()?;
        }
        Ok(())
    })?;
    Ok((THREADS * each) as f64 / took.as_secs_f64())
}

/// The runs per second of due timers, from the start of a node to the last settlement.
fn drain(place: &Place, count: u64) -> Result<f64, Failure> {
    let client = Durable::builder(place.store()?).start()?;
    for first in (0..count).step_by(1_000) {
        let numbers = first..count.min(first + 1_000);
        let now = numbers.map(|n| (format!("due:{n}"), Duration::ZERO, n));
        schedule_all(&client, "due", now)?;
    }
    let start = Instant::now();
    let timers = Durable::builder(place.store()?).handle("due", |_: &Due<u64>| {});
    let timers = timers.running(4_000).start()?;
    wait_for(&timers, count)?;
    // The last settlements are under way. To count timers would read those of other queues too.
    while !client.list("due", &Paging::first(1)).wait()?.is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    timers.stop(Duration::from_secs(5)).wait()?;
    Ok(rate)
}

fn runs(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    // It needs minutes for what the others do within seconds.
    let (jobs, few) = (sizes.peer_jobs, sizes.peer_jobs / 20);
    let names = ["graphile_worker", "apalis-postgres", "underway"];
    let peers = names.into_iter().zip([jobs, jobs, few]);
    let mut rounds: [Vec<[f64; 1]>; 4] = Default::default();
    for _ in 0..sheet.rounds() {
        rounds[0].push([drain(&here.postgres(), sizes.timers)?]);
        for ((peer, jobs), rounds) in peers.clone().zip(&mut rounds[1..]) {
            let rate = here.peer_rate(peer, &here.postgres(), jobs)?;
            rounds.extend(rate.map(|rate| [rate]));
        }
    }
    let systems = [POSTGRES].into_iter().chain(names);
    add_all(
        sheet,
        systems.map(|system| ("claim and settle", system)),
        rounds,
    );
    Ok(())
}

fn sqlite(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    let mut rounds: [Vec<[f64; 1]>; 4] = Default::default();
    for _ in 0..sheet.rounds() {
        let place = here.sqlite();
        let timers = Durable::builder(place.store()?).start()?;
        rounds[0].push([single_calls(&timers, "many", sizes.calls / THREADS)?]);
        rounds[1].push([place.plain(1, sizes.timers / BATCH, BATCH)?]);
        drop(timers);
        rounds[2].push([drain(&here.sqlite(), sizes.timers)?]);
        // Its rate falls with the number of jobs: with 20,000 it is a tenth of that with 2,000.
        let peer = here.peer_rate("apalis-sqlite", &here.sqlite(), sizes.peer_jobs / 10)?;
        rounds[3].extend(peer.map(|rate| [rate]));
    }
    let rows = [
        ("schedule from 16 threads", SQLITE),
        ("rows in batches of 100", PLAIN),
        ("claim and settle", SQLITE),
        ("claim and settle", "apalis-sqlite"),
    ];
    add_all(sheet, rows, rounds);
    Ok(())
}

/// A node with a lease.
fn node(place: &Place, lease: Duration) -> Result<DurableBuilder, Failure> {
    let node = Durable::builder(place.store()?).node_lease(lease);
    Ok(node.poll_interval(lease / 15))
}

/// A process that claims all timers of `held` and never ends a run, until it is killed.
pub(super) fn hold(
    place: &str,
    node_lease: Duration,
    say: &dyn Fn(Vec<u64>),
) -> Result<(), Failure> {
    let timers = node(&Place::of_argument(place), node_lease)?;
    let timers = timers
        .handle("held", |_: &Due<u64>| -> () { forever() })
        .running(8)
        .start()?;
    while timers.stats().runs < 8 {
        std::thread::sleep(Duration::from_millis(5));
    }
    say(Vec::new());
    forever()
}

fn takeover(here: &Here, sheet: &mut Sheet, node_lease: Duration) -> Result<(), Failure> {
    for place in here.both() {
        let client = Durable::builder(place.store()?).start()?;
        for number in 0..8 {
            let key = format!("held:{number}");
            let answer = client.schedule("held", &key, Duration::ZERO, &number);
            answer.wait()?;
        }
        let order = Order::Run(place.argument(), node_lease.as_millis() as u64);
        let mut holder = Other::start(&order)?;
        holder.word()?;
        // The other node has to know the first one before that dies.
        let late = Lateness::default();
        let last = Arc::new(Mutex::new(None));
        let (seen, handler) = (Arc::clone(&last), late.handler());
        let taken_over = move |due: &Due<u64>| match due.payload() {
            0..8 => *seen.lock().expect("no panic under the lock") = Some(Instant::now()),
            _ => handler(due),
        };
        let timers = node(&place, node_lease)?;
        let timers = timers.handle("held", taken_over).running(64).start()?;
        std::thread::sleep(node_lease * 2);
        // Due within the seconds after the death, in the shards of both nodes.
        for number in 8..208 {
            let delay = node_lease / 15 + node_lease * number / 400;
            let (key, number) = (format!("next:{number}"), u64::from(number));
            client.schedule("held", &key, delay, &number).wait()?;
        }
        holder.process.kill()?;
        let death = Instant::now();
        wait_for(&timers, 208)?;
        let last = *last.lock().expect("no panic under the lock");
        let last = last.ok_or("nothing was taken over")?;
        let [p50, p99, p999, max] = late.quantiles();
        let after = last.duration_since(death).as_secs_f64();
        let case = format!("lease {node_lease:?}");
        sheet.add(case, 0, place.name(), [[after, p50, p99, p999, max]]);
    }
    Ok(())
}

fn idle(here: &Here, sheet: &mut Sheet, time: Duration) -> Result<(), Failure> {
    for place in here.both() {
        let store = place.store()?;
        let calls = Arc::clone(&store.calls);
        let timers = Durable::builder(store).handle("idle", |_: &Due<u64>| {});
        let timers = timers.start()?;
        let first = timers.schedule("idle", "first", Duration::ZERO, &0);
        first.wait()?;
        wait_for(&timers, 1)?;
        calls.take_polls();
        let (beats, used) = (calls.beats.load(Ordering::Relaxed), cpu_time()?);
        std::thread::sleep(time);
        let seconds = time.as_secs_f64();
        let cpu = (cpu_time()? - used) * 100.0 / seconds;
        let polls = calls.take_polls();
        let reads = polls.len() as f64 / seconds;
        let writes = (calls.beats.load(Ordering::Relaxed) - beats) as f64 / seconds;
        let [p50, p99, ..] = quantiles(polls);
        let figures = [reads, writes, cpu, p50, p99];
        sheet.add(format!("for {time:?}"), 0, place.name(), [figures]);
    }
    Ok(())
}

fn mass(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    for place in here.both() {
        let client = Durable::builder(place.store()?).start()?;
        // Due when all of them are stored.
        let due = SystemTime::now() + Duration::from_secs(2 + sizes.at_once / 10_000);
        for first in (0..sizes.at_once).step_by(1_000) {
            let delay = due.duration_since(SystemTime::now())?;
            let numbers = first..first + 1_000;
            let all = numbers.map(|n| (format!("mass:{n}"), delay, n));
            schedule_all(&client, "mass", all)?;
        }
        let late = Lateness::default();
        let timers = Durable::builder(place.store()?).handle("mass", |_: &Due<u64>| {});
        let timers = timers.pace(500);
        let timers = timers.handle("other", late.handler()).running(64).start()?;
        let rest = due.duration_since(SystemTime::now()).unwrap_or_default();
        std::thread::sleep(rest.saturating_sub(Duration::from_secs(1)));
        schedule_at_rate(&timers, "other", 200, sizes.lateness)?;
        std::thread::sleep(Duration::from_secs(2));
        let late = [late.quantiles()];
        sheet.add("another queue", sizes.at_once, place.name(), late);
    }
    Ok(())
}

fn filled(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    let cases = ["schedule", "cancel in batches of 100", "claim and settle"];
    for (full, empty) in here.both().into_iter().zip(here.both()) {
        full.fill("filled", sizes.filled)?;
        let mut rates: [Vec<[f64; 3]>; 2] = Default::default();
        for round in 0..sheet.rounds() {
            for (place, rates) in [&full, &empty].iter().zip(&mut rates) {
                let timers = Durable::builder(place.store()?).start()?;
                let queue = format!("many-{round}");
                let each = sizes.calls / THREADS / 2;
                let schedules = single_calls(&timers, &queue, each)?;
                let start = Instant::now();
                let keys: Vec<String> = (0..each * THREADS).map(|n| format!("order:{n}")).collect();
                for keys in keys.chunks(BATCH as usize) {
                    let mut answers = timers.cancel_many(&queue, keys).wait()?.into_iter();
                    answers.try_for_each(|answer| answer.map(drop))?;
                }
                let cancels = keys.len() as f64 / start.elapsed().as_secs_f64();
                rates.push([schedules, cancels, drain(place, sizes.timers / 4)?]);
            }
        }
        let empty = format!("{}, empty", full.name());
        for (at, case) in cases.iter().enumerate() {
            for (name, rates) in [full.name(), &empty].iter().zip(&rates) {
                let case = format!("{case}, {}", full.name());
                let rates = rates.iter().map(|rates| [rates[at]]);
                sheet.add(case, sizes.filled, *name, rates);
            }
        }
    }
    Ok(())
}

/// Polls and runs under load, first without and then with a transaction that has written and waits.
fn held_open(here: &Here, sheet: &mut Sheet, time: Duration) -> Result<(), Failure> {
    let place = here.postgres();
    let store = place.store()?;
    let calls = Arc::clone(&store.calls);
    let timers = Durable::builder(store).handle("load", |_: &Due<u64>| {});
    let timers = timers.running(4_000).start()?;
    for open in [None, Some("one is open")] {
        let mut client = place::client(&place.argument())?;
        if open.is_some() {
            client.batch_execute(
                "begin; create table if not exists other (id int); insert into other values (1)",
            )?;
        }
        let stop = AtomicBool::new(false);
        calls.take_polls();
        let before = timers.stats().succeeded;
        let start = Instant::now();
        std::thread::scope(|scope| -> Result<(), Failure> {
            let load = scope.spawn(|| load(&timers, &stop));
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            joined(load)
        })?;
        let rate = (timers.stats().succeeded - before) as f64 / start.elapsed().as_secs_f64();
        // The last quarter has the most that is dead and can't be removed.
        let polls = calls.take_polls();
        let [p50, p99, _, max] = quantiles(polls[polls.len() * 3 / 4..].to_vec());
        let system = open.unwrap_or("none is open");
        sheet.add(format!("for {time:?}"), 0, system, [[rate, p50, p99, max]]);
        if open.is_some() {
            client.batch_execute("rollback")?;
        }
    }
    Ok(())
}

/// Schedules what is due soon in batches, with no more pending than a second of it.
fn load(timers: &Durable, stop: &AtomicBool) -> Result<(), Failure> {
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let numbers = number..number + BATCH;
        let soon = |n: u64| (format!("load:{n}"), Duration::from_millis(20 + n % 500), n);
        schedule_all(timers, "load", numbers.map(soon))?;
        number += BATCH;
        while timers.stats().succeeded + 20_000 < timers.stats().scheduled {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Keys that are moved again and again, without and beside somebody's open snapshot.
fn moved(here: &Here, sheet: &mut Sheet, quarter: Duration) -> Result<(), Failure> {
    const KEYS: u64 = 5;
    let place = here.postgres();
    let timers = Durable::builder(place.store()?).start()?;
    for key in 0..KEYS {
        let name = format!("key:{key}");
        timers.schedule("moved", &name, DAY, &key).wait()?;
    }
    let mut snapshot = place::client(&place.argument())?;
    for system in ["none is open", "a snapshot is open"] {
        if system != "none is open" {
            // The first query takes the snapshot.
            snapshot.batch_execute("begin isolation level repeatable read; select 1")?;
        }
        for number in 1..=4 {
            let start = Instant::now();
            let mut moves = 0_u64;
            while start.elapsed() < quarter {
                // Each move changes the time.
                let due = DAY + Duration::from_millis(moves % 1_000);
                let key = format!("key:{}", moves % KEYS);
                timers.reschedule("moved", &key, due).wait()?;
                moves += 1;
            }
            let rate = moves as f64 / start.elapsed().as_secs_f64();
            let case = format!("quarter {number}, {quarter:?}");
            sheet.add(case, KEYS, system, [[rate]]);
        }
    }
    Ok(snapshot.batch_execute("rollback")?)
}
