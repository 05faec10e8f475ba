//! Many queues on one node: what they cost while nothing is due, how late their timers are, and
//! what the index for them costs those who write.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use tourbillon_durable::Durable;

use crate::place::{Place, client};
use crate::{BATCH, Failure, Here, Lateness, Wish, cpu_time, median, quantiles};

/// Timers that another client schedules ahead, one in a queue.
const AHEAD: u64 = 100;
const SPAN: Duration = Duration::from_secs(3);

/// Each queue has one timer, which is due in a day.
pub(crate) fn many_queues(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for queues in wish.sizes.queues {
        for place in here.both() {
            measure(&place, *queues, wish)?;
        }
    }
    Ok(())
}

fn measure(place: &Place, queues: u64, wish: &Wish) -> Result<(), Failure> {
    let name = |number: u64| format!("queue-{number}");
    let elsewhere = Durable::builder(place.store()?).start()?;
    for number in 0..queues {
        let timer = ("tomorrow", Duration::from_secs(86_400), 0);
        for answer in elsewhere.schedule_many(&name(number), [timer]).wait()? {
            answer?;
        }
    }
    let store = place.store()?;
    let calls = std::sync::Arc::clone(&store.calls);
    let late = Lateness::default();
    let mut builder = Durable::builder(store).handle(name(0), late.handler());
    for number in 1..queues {
        builder = builder.handle(name(number), late.handler());
    }
    let timers = builder.start()?;
    std::thread::sleep(wish.sizes.idle / 3);

    let server = Server::of(place)?;
    calls.take_looks();
    let (program, before) = (cpu_time()?, server.cpu_time()?);
    std::thread::sleep(wish.sizes.idle);
    let share = |used: Duration| used.as_secs_f64() / wish.sizes.idle.as_secs_f64() * 100.0;
    let program = share(cpu_time()?.saturating_sub(program));
    let server = share(server.cpu_time()?.saturating_sub(before));
    let looks = calls.take_looks();

    // One call each 37 ms, so that they fall at any time between two looks.
    for number in 0..AHEAD {
        let queue = name(number * 7 % queues);
        let due = SystemTime::now() + SPAN;
        elsewhere
            .schedule(&queue, &format!("ahead:{number}"), due, &number)
            .wait()?;
        std::thread::sleep(Duration::from_millis(37));
    }
    crate::wait_for(&timers, AHEAD)?;
    say!(
        "D10 {}, {queues} queues: {program:.2} % of a core in the program, {server:.2} % in the server; \
         a look: {}; lateness of timers 3 s ahead: {}",
        place.name(),
        quantiles(looks),
        late.line()
    );
    Ok(())
}

/// What the index costs by which a node surveys its queues: schedules with it and without it, in
/// turn.
pub(crate) fn index(here: &Here, wish: &Wish) -> Result<(), Failure> {
    for writers in [1, 8] {
        let places = [here.postgres(), here.postgres()];
        drop((places[0].store()?, places[1].store()?));
        client(&places[1].argument())?.batch_execute("drop index tourbillon.timer_survey")?;
        let mut rounds: Vec<[Writes; 2]> = Vec::new();
        for round in 0..wish.sizes.rounds as u64 {
            let mut of_round = [Writes::default(); 2];
            // The one that begins has the better or the worse moment of the disk.
            for which in [round % 2, 1 - round % 2] {
                let which = usize::try_from(which)?;
                of_round[which] = schedule_rate(&places[which], writers, round, wish)?;
            }
            rounds.push(of_round);
        }
        let median_of = |of: fn(&Writes) -> f64| {
            [0, 1].map(|which: usize| median(rounds.iter().map(|round| of(&round[which]))))
        };
        let [with, without] = median_of(|writes| writes.rate);
        let [cpu, cpu_without] = median_of(|writes| writes.cpu_micros);
        let [waits, waits_without] = median_of(|writes| writes.waiting * 100.0);
        let row = client(&places[0].argument())?.query_one(
            "select pg_relation_size('tourbillon.timer_survey')::float8 / count(*) from tourbillon.timer",
            &[],
        )?;
        let bytes: f64 = row.get(0);
        say!(
            "D11 PostgreSQL, {writers} writers in batches of {BATCH}: {with:.0}/s, {cpu:.1} us of the server's CPU \
             each, writers wait for a page in {waits:.1} % of all samples; without the index of surveys \
             {without:.0}/s, {cpu_without:.1} us, {waits_without:.1} %; {bytes:.0} bytes of it per timer"
        );
    }
    Ok(())
}

/// What a round of schedules has shown.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    rate: f64,
    /// The CPU time of the server for each timer.
    cpu_micros: f64,
    /// The share of the samples of all writers in which one waits for a page that another one
    /// writes.
    waiting: f64,
}

/// The waits of the sessions of this database for a page that another one writes.
const WAITS: &str = "select count(*) from pg_stat_activity where datname = current_database() \
     and wait_event in ('BufferContent', 'BufferPin')";

/// Timers of one queue, all due in a day, from clients that each have a connection of their own.
fn schedule_rate(place: &Place, writers: u64, round: u64, wish: &Wish) -> Result<Writes, Failure> {
    let clients: Result<Vec<Durable>, Failure> = (0..writers)
        .map(|_| Ok(Durable::builder(place.store()?).start()?))
        .collect();
    let clients = clients?;
    let batches = (wish.sizes.timers / 4 / writers / BATCH).max(1);
    let (mut session, server) = (client(&place.argument())?, Server::of(place)?);
    let (mut samples, mut waits) = (0, 0);
    let (start, before) = (Instant::now(), server.cpu_time()?);
    std::thread::scope(|scope| -> Result<(), Failure> {
        let write = |number: usize, client: &Durable| -> Result<(), Failure> {
            for batch in 0..batches {
                let key = |row| format!("{round}:{number}:{}", batch * BATCH + row);
                let all = (0..BATCH).map(|row| (key(row), Duration::from_secs(86_400), row));
                for answer in client.schedule_many("tomorrow", all).wait()? {
                    answer?;
                }
            }
            Ok(())
        };
        let clients = clients.iter().enumerate();
        let all: Vec<_> = clients
            .map(|(number, client)| scope.spawn(move || write(number, client)))
            .collect();
        while !all.iter().all(|one| one.is_finished()) {
            waits += session.query_one(WAITS, &[])?.get::<_, i64>(0);
            samples += writers;
            std::thread::sleep(Duration::from_millis(10));
        }
        all.into_iter()
            .try_for_each(|one| one.join().map_err(|_| "a thread has panicked")?)
    })?;
    let count = (batches * writers * BATCH) as f64;
    let used = server.cpu_time()?.saturating_sub(before);
    Ok(Writes {
        rate: count / start.elapsed().as_secs_f64(),
        cpu_micros: used.as_secs_f64() * 1e6 / count,
        waiting: waits as f64 / samples as f64,
    })
}

/// The processes of a server, or none.
struct Server(Option<u32>);

impl Server {
    fn of(place: &Place) -> Result<Self, Failure> {
        let Place::Postgres(url) = place else {
            return Ok(Server(None));
        };
        let mut session = client(url)?;
        let row = session.query_one("select pg_backend_pid()", &[])?;
        let backend: i32 = row.get(0);
        let (server, ..) = parent_and_time(u32::try_from(backend)?)?;
        Ok(Server(Some(server)))
    }

    /// The CPU time of the server's processes.
    fn cpu_time(&self) -> Result<Duration, Failure> {
        let Some(postmaster) = self.0 else {
            return Ok(Duration::ZERO);
        };
        let mut ticks = 0;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // It may have ended since.
            let Ok((parent, own, of_ended_children)) = parent_and_time(process) else {
                continue;
            };
            if process == postmaster {
                ticks += own + of_ended_children;
            } else if parent == postmaster {
                ticks += own;
            }
        }
        // Linux counts in hundredths of a second.
        Ok(Duration::from_millis(ticks * 10))
    }
}

/// The parent of a process, and its CPU time and that of its children that have ended, in ticks.
fn parent_and_time(process: u32) -> Result<(u32, u64, u64), Failure> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |index: usize| -> Result<u64, Failure> {
        Ok(fields.get(index).ok_or("too few fields")?.parse()?)
    };
    let own = number(11)? + number(12)?;
    let of_ended_children = number(13)? + number(14)?;
    Ok((u32::try_from(number(1)?)?, own, of_ended_children))
}
