//! Many queues on one node: what they cost while nothing is due, how late their timers are, and
//! what the index for them costs those who write.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tourbillon_durable::Durable;

use super::here::{BATCH, Here, Lateness, Sizes, cpu_time, schedule_all, wait_for};
use super::place::{Place, client};
use super::{Failure, Sheet, joined, quantiles};
use crate::machine::Process;

/// Timers that another client schedules ahead, one in a queue.
const AHEAD: u64 = 100;
const SPAN: Duration = Duration::from_secs(3);
const DAY: Duration = Duration::from_secs(86_400);

/// Each queue has one timer, which is due in a day.
pub(super) fn many_queues(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    for queues in sizes.queues {
        for place in here.both() {
            let figures = of_queues(&place, *queues, sizes.idle)?;
            sheet.add("one timer in each", *queues, place.name(), [figures]);
        }
    }
    Ok(())
}

fn of_queues(place: &Place, queues: u64, time: Duration) -> Result<[f64; 6], Failure> {
    let name = |number: u64| format!("queue-{number}");
    let elsewhere = Durable::builder(place.store()?).start()?;
    for number in 0..queues {
        schedule_all(&elsewhere, &name(number), [("tomorrow".to_owned(), DAY, 0)])?;
    }
    let store = place.store()?;
    let calls = Arc::clone(&store.calls);
    let late = Lateness::default();
    let mut builder = Durable::builder(store).handle(name(0), late.handler());
    for number in 1..queues {
        builder = builder.handle(name(number), late.handler());
    }
    let timers = builder.start()?;
    std::thread::sleep(time / 3);

    let server = Server::of(place)?;
    calls.take_polls();
    let before = [cpu_time()?, server.cpu_time()?];
    std::thread::sleep(time);
    let used = [cpu_time()? - before[0], server.cpu_time()? - before[1]];
    let [program, server] = used.map(|used| used * 100.0 / time.as_secs_f64());
    let [poll, _, _, longest] = quantiles(calls.take_polls());

    // One call each 37 ms, so that they fall at any time between two polls.
    for number in 0..AHEAD {
        let (queue, due) = (name(number * 7 % queues), SystemTime::now() + SPAN);
        let key = format!("ahead:{number}");
        elsewhere.schedule(&queue, &key, due, &number).wait()?;
        std::thread::sleep(Duration::from_millis(37));
    }
    wait_for(&timers, AHEAD)?;
    let [typical, _, _, latest] = late.quantiles();
    Ok([program, server, poll, longest, typical, latest])
}

/// What the index costs by which a node surveys its queues: schedules with it and without it, in
/// turn.
pub(super) fn index(here: &Here, sheet: &mut Sheet, sizes: &Sizes) -> Result<(), Failure> {
    for writers in [1, 8] {
        let places = [here.postgres(), here.postgres()];
        drop((places[0].store()?, places[1].store()?));
        client(&places[1].argument())?.batch_execute("drop index tourbillon.timer_survey")?;
        let mut rounds: [Vec<[f64; 4]>; 2] = Default::default();
        for round in 0..sheet.rounds() {
            // The one that begins has the better or the worse moment of the disk.
            for which in [round % 2, 1 - round % 2] {
                rounds[which].push(writes(&places[which], writers, round, sizes.timers)?);
            }
        }
        for (system, rounds) in ["with the index", "without it"].iter().zip(rounds) {
            let case = format!("{writers} writers in batches of {BATCH}");
            sheet.add(case, 0, *system, rounds);
        }
    }
    Ok(())
}

/// The size of the index that surveys queues, for each timer.
const SIZE: &str = "select coalesce(pg_relation_size(to_regclass('tourbillon.timer_survey')), 0)::float8 \
     / count(*) from tourbillon.timer";

/// The waits of the sessions of this database for a page that another one writes.
const WAITS: &str = "select count(*) from pg_stat_activity where datname = current_database() \
     and wait_event in ('BufferContent', 'BufferPin')";

/// Timers of one queue, all due in a day, from clients that each have a connection of their own.
/// Returns the rate, the processor time of a timer, the share of waits, and the size of the index.
fn writes(place: &Place, writers: u64, round: usize, timers: u64) -> Result<[f64; 4], Failure> {
    let client_of = |_| Ok(Durable::builder(place.store()?).start()?);
    let clients = (0..writers).map(client_of);
    let clients = clients.collect::<Result<Vec<Durable>, Failure>>()?;
    let batches = (timers / 4 / writers / BATCH).max(1);
    let (mut session, server) = (client(&place.argument())?, Server::of(place)?);
    let (mut samples, mut waits) = (0, 0);
    let (start, before) = (Instant::now(), server.cpu_time()?);
    std::thread::scope(|scope| -> Result<(), Failure> {
        let write = |number: usize, client: &Durable| -> Result<(), Failure> {
            for batch in 0..batches {
                let key = |row| format!("{round}:{number}:{}", batch * BATCH + row);
                let rows = (0..BATCH).map(|row| (key(row), DAY, row));
                schedule_all(client, "tomorrow", rows)?;
            }
            Ok(())
        };
        let clients = clients.iter().enumerate();
        let start = |(number, client)| scope.spawn(move || write(number, client));
        let all: Vec<_> = clients.map(start).collect();
        while !all.iter().all(|one| one.is_finished()) {
            waits += session.query_one(WAITS, &[])?.get::<_, i64>(0);
            samples += writers;
            std::thread::sleep(Duration::from_millis(10));
        }
        all.into_iter().try_for_each(joined)
    })?;
    let count = (batches * writers * BATCH) as f64;
    let cpu = server.cpu_time()? - before;
    let rate = count / start.elapsed().as_secs_f64();
    let waiting = waits as f64 * 100.0 / samples as f64;
    let size: f64 = session.query_one(SIZE, &[])?.get(0);
    Ok([rate, cpu * 1e6 / count, waiting, size])
}

/// The number of a server's first process, or none.
struct Server(Option<u64>);

impl Server {
    fn of(place: &Place) -> Result<Self, Failure> {
        let Place::Postgres(url) = place else {
            return Ok(Server(None));
        };
        // It lives until its process was looked at.
        let mut session = client(url)?;
        let backend: i32 = session.query_one("select pg_backend_pid()", &[])?.get(0);
        let backend = Process::look(&backend.to_string()).ok_or("its session has ended")?;
        Ok(Server(Some(backend.parent)))
    }

    /// The CPU time of the server's processes, in seconds.
    fn cpu_time(&self) -> Result<f64, Failure> {
        let Some(postmaster) = self.0 else {
            return Ok(0.0);
        };
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let name = name.to_str().unwrap_or_default();
            // Not all files are processes, and it may have ended since.
            let Some(process) = Process::look(name) else {
                continue;
            };
            if name.parse() == Ok(postmaster) {
                ticks += process.ticks + process.ticks_of_ended_children;
            } else if process.parent == postmaster {
                ticks += process.ticks;
            }
        }
        // Linux counts in hundredths of a second.
        Ok(ticks as f64 / 100.0)
    }
}
