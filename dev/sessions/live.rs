//! Session expiry in real time. Producers create and touch sessions, and the engine expires them.
//! At the end the engine and this program each account for every session.
//!
//! A session is an entry of a map that expires when it is idle. Each producer first logs in its
//! share of all sessions. Then it touches sessions, popular ones more often; starts sessions anew
//! that have expired; and now and then logs one out. The run has three parts: the producers work;
//! the remaining sessions expire; the shutdown hands back the sessions that are still pending.
//!
//! Producers rest between their operations, as users do. If they took all cores, the lateness that
//! the program shows would be the time for which the engine waits for a core.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tourbillon::{Expiry, ExpiryMap, Lateness, Removed, Shutdown};

use crate::app::Console;
use crate::balance::{Balance, Row, WIDE, grouped};
use crate::cli::LiveOptions;
use crate::lateness::{Counts, Histogram};
use crate::rng::Rng;
use crate::zipf::Zipf;

/// How long a slow handler sleeps.
const NAP: Duration = Duration::from_millis(500);
/// One of this number of touches is a log-out instead.
const LOG_OUT: u64 = 1_000;
/// The number of operations between two checks for the stop, and between two rests. On a machine
/// with few cores these operations delay a worker: 64 take some 50 us.
const ROUND: u32 = 64;
/// The approximate number of operations of all producers in a second. A million sessions have
/// logged in after five seconds.
const OPERATIONS: u32 = 200_000;

/// The counters of one producer. Only its own thread writes, so a load and a store are enough.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Did {
    created: AtomicU64,
    touched: AtomicU64,
    replaced: AtomicU64,
    logged_out: AtomicU64,
    refused: AtomicU64,
}

/// The counters of handlers, on cache lines of their own, since workers write them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Handled {
    ran: AtomicU64,
    slept: AtomicU64,
    late: Histogram,
}

/// All counters of one producer. Every session holds a reference. So when only the program's own
/// reference is left, every session was handled or dropped.
#[derive(Debug, Default)]
struct Tally {
    did: Did,
    handled: Handled,
}

/// A session.
#[derive(Debug)]
struct Session {
    tally: Arc<Tally>,
    /// Whether its handler is one of the slow ones.
    nap: bool,
}

impl Session {
    /// Handles the expiry of this session.
    fn handle(self, lateness: Duration) {
        self.tally.handled.late.record(lateness);
        if self.nap {
            thread::sleep(NAP);
            self.tally.handled.slept.fetch_add(1, Relaxed);
        }
        self.tally.handled.ran.fetch_add(1, Relaxed);
    }
}

type Sessions = ExpiryMap<u64, Session>;

fn add(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

/// The sums of all producers.
#[derive(Clone, Debug, Default)]
struct Totals {
    created: u64,
    touched: u64,
    replaced: u64,
    logged_out: u64,
    refused: u64,
    ran: u64,
    slept: u64,
    late: Counts,
}

impl Totals {
    fn of(tallies: &[Arc<Tally>]) -> Totals {
        let mut totals = Totals::default();
        for Tally { did, handled } in tallies.iter().map(|tally| &**tally) {
            totals.created += did.created.load(Relaxed);
            totals.touched += did.touched.load(Relaxed);
            totals.replaced += did.replaced.load(Relaxed);
            totals.logged_out += did.logged_out.load(Relaxed);
            totals.refused += did.refused.load(Relaxed);
            totals.ran += handled.ran.load(Relaxed);
            totals.slept += handled.slept.load(Relaxed);
            handled.late.add_to(&mut totals.late);
        }
        totals
    }
}

/// The parts of a run, as times since its start.
#[derive(Clone, Copy, Debug)]
struct Plan {
    producers_stop: Duration,
    shutdown: Duration,
}

impl Plan {
    /// Divides a run. The shutdown gets a tenth of the run, at most one second. The remaining
    /// sessions get their idle time to expire, at most a quarter of the run.
    fn new(seconds: u64, idle: Duration) -> Plan {
        let whole = Duration::from_secs(seconds);
        let shutdown = whole - (whole / 10).min(Duration::from_secs(1));
        let expiry = idle
            .saturating_add(Duration::from_millis(50))
            .min(whole / 4);
        Plan {
            producers_stop: shutdown - expiry,
            shutdown,
        }
    }
}

/// How a producer rests between two rounds.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The least time of a round, including its rest. `None` if producers do not rest.
    round: Option<Duration>,
}

impl Pace {
    /// Returns the pace of each of this number of producers.
    fn new(producers: u64, flat_out: bool) -> Pace {
        let share = Duration::from_secs(1) * ROUND / OPERATIONS;
        Pace {
            round: (!flat_out).then(|| share.mul_f64(producers as f64)),
        }
    }

    /// Returns the rest after this time of work. The rest is at least as long as the work. So
    /// producers take at most half of the cores, even on a slow machine. A late wake-up is not made
    /// up for, so there are no bursts.
    fn rest_after(self, worked: Duration) -> Duration {
        self.round.map_or(Duration::ZERO, |round| {
            round.saturating_sub(worked).max(worked)
        })
    }

    fn rest(self, worked: Duration) {
        let rest = self.rest_after(worked);
        if !rest.is_zero() {
            thread::sleep(rest);
        }
    }
}

struct Producer {
    sessions: Sessions,
    tally: Arc<Tally>,
}

impl Producer {
    /// Logs in the sessions of `share`, then works on all of them, until `stop`. Returns how many
    /// of the share were not logged in by then.
    fn work(
        &self,
        mut share: Range<u64>,
        zipf: &Zipf,
        mut rng: Rng,
        pace: Pace,
        stop: &AtomicBool,
    ) -> u64 {
        while !stop.load(Relaxed) {
            let began = Instant::now();
            for _ in 0..ROUND {
                if let Some(id) = share.next() {
                    self.touch(id);
                    continue;
                }
                let id = zipf.draw(&mut rng);
                if rng.below(LOG_OUT) == 0 {
                    self.log_out(id);
                } else {
                    self.touch(id);
                }
            }
            pace.rest(began.elapsed());
        }
        share.end - share.start
    }

    fn touch(&self, id: u64) {
        if self.sessions.touch(&id).is_alive() {
            add(&self.tally.did.touched);
        } else {
            // If its handler is running, the session has ended, and the next one begins.
            self.start(id, self.sessions.expiry(), false);
        }
    }

    fn start(&self, id: u64, expiry: Expiry, nap: bool) {
        let session = Session {
            tally: Arc::clone(&self.tally),
            nap,
        };
        match self.sessions.entry(id).expiry(expiry).insert(session) {
            Ok(inserted) => {
                add(&self.tally.did.created);
                // Another producer was faster, between the two calls.
                if inserted.replaced.is_some() {
                    add(&self.tally.did.replaced);
                }
            }
            Err(_) => add(&self.tally.did.refused),
        }
    }

    fn log_out(&self, id: u64) {
        if let Removed::Removed { .. } = self.sessions.remove(&id) {
            add(&self.tally.did.logged_out);
        }
    }
}

/// The status line. On a terminal it is updated in place; otherwise each second has a new line.
struct Screen<'a> {
    out: &'a mut dyn Write,
    in_place: bool,
    columns: fn() -> usize,
    /// Whether a line is shown that the next one will replace.
    shown: bool,
    sessions: &'a Sessions,
    tallies: &'a [Arc<Tally>],
    start: Instant,
    last: Instant,
    last_totals: Totals,
}

impl Screen<'_> {
    /// Shows the line every second until `done` returns true, which is called more often.
    fn watch(&mut self, done: impl Fn() -> bool) -> io::Result<()> {
        while !done() {
            let since_last = self.last.elapsed();
            if since_last >= Duration::from_secs(1) {
                self.line(since_last)?;
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn line(&mut self, since_last: Duration) -> io::Result<()> {
        let totals = Totals::of(self.tallies);
        let late = totals.late.since(&self.last_totals.late);
        let late = match (late.percentile(50), late.percentile(99)) {
            (Some(p50), Some(p99)) => format!("{}/{} ms", in_millis(p50), in_millis(p99)),
            _ => "-".to_owned(),
        };
        let rate = |now: u64, before: u64| (now - before) as f64 / since_last.as_secs_f64();
        let live = short(self.sessions.len() as f64);
        let touches = short(rate(totals.touched, self.last_totals.touched));
        let expired = short(rate(totals.ran, self.last_totals.ran));
        // Each field has a rank. If there is no room for all fields, those with the highest rank
        // are left out first.
        let fields = [
            (0, format!("{:>2} s", self.start.elapsed().as_secs())),
            (3, format!("live {live:>7}")),
            (4, format!("touches/s {touches:>7}")),
            (2, format!("expired/s {expired:>7}")),
            (1, format!("p50/p99 {late}")),
        ];
        if self.in_place {
            // The last column stays free: a line that wraps cannot be updated in place.
            let line = fitting(&fields, (self.columns)().saturating_sub(1));
            write!(self.out, "\r{line}\x1b[K")?;
            self.shown = true;
        } else {
            writeln!(self.out, "{}", fitting(&fields, usize::MAX))?;
        }
        self.out.flush()?;
        self.last += since_last;
        self.last_totals = totals;
        Ok(())
    }

    /// Writes a line below the current one, which stays.
    fn note(&mut self, text: &str) -> io::Result<()> {
        self.close()?;
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Keeps the current line.
    fn close(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.shown) {
            writeln!(self.out)?;
        }
        Ok(())
    }
}

/// Formats a rate with three or four digits: `831`, `42.0 k`, `3.14 M`.
fn short(rate: f64) -> String {
    match rate {
        0.0..1e3 => format!("{rate:.0}"),
        1e3..1e6 => format!("{:.1} k", rate / 1e3),
        _ => format!("{:.2} M", rate / 1e6),
    }
}

/// Joins as many fields as fit into `width`, in their order. Fields of the highest rank are left
/// out first.
fn fitting(fields: &[(u8, String)], width: usize) -> String {
    let mut most = fields.iter().map(|(rank, _)| *rank).max().unwrap_or(0);
    loop {
        let kept = fields.iter().filter(|(rank, _)| *rank <= most);
        let kept: Vec<&str> = kept.map(|(_, text)| &**text).collect();
        let line = kept.join("  ");
        if line.len() <= width {
            return line;
        }
        if most == 0 {
            return line[..width].to_owned();
        }
        most -= 1;
    }
}

/// Formats the median, the 99th percentile and the maximum. Without samples there are none.
fn millis(lateness: Lateness) -> [String; 3] {
    [lateness.p50, lateness.p99, lateness.max].map(|lateness_of| match lateness.count {
        0 => "-".to_owned(),
        _ => format!("{} ms", in_millis(lateness_of)),
    })
}

fn in_millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

/// Runs in real time. Returns whether every timer is accounted for. Errors are those of
/// writing to the console, and end the run early.
pub(crate) fn run(options: &LiveOptions, console: &mut Console<'_>) -> io::Result<bool> {
    let &LiveOptions {
        idle,
        seconds,
        sessions,
        producers,
        slow,
        flat_out,
    } = options;
    let interrupted = (console.interrupts)()?;
    let is_interrupted = || interrupted.load(Relaxed);
    let plan = Plan::new(seconds, idle);
    let start = Instant::now();
    let slow_handlers = match slow {
        0 => String::new(),
        _ => format!(", {slow} slow handlers"),
    };
    writeln!(
        console.out,
        "{} sessions, idle time {idle:?}, {producers} producers{}{slow_handlers}, {seconds} s",
        grouped(sessions),
        if flat_out { " flat out" } else { "" },
    )?;
    // Each slow handler that sleeps occupies a worker, and the other handlers need workers, too. A
    // scheduler has at most 1,024 threads.
    let naps_at_once = NAP.as_secs_f64() * slow as f64 / plan.producers_stop.as_secs_f64();
    let map = Sessions::builder()
        .time_to_idle(idle)
        .max_running((16 + 2 * naps_at_once.ceil() as usize).clamp(64, 1_024))
        .build(|_, expired| expired.value.handle(expired.lateness))
        .map_err(io::Error::other)?;

    // One more than the number of producers: the last one starts the slow handlers, under keys of
    // their own.
    let tallies: Vec<Arc<Tally>> = (0..=producers).map(|_| Arc::default()).collect();
    let mut crew: Vec<Producer> = tallies
        .iter()
        .map(|tally| Producer {
            sessions: map.clone(),
            tally: Arc::clone(tally),
        })
        .collect();
    let starter = crew.pop().expect("one more than the producers");
    for nap in 0..slow {
        let delay = plan
            .producers_stop
            .mul_f64((nap + 1) as f64 / (slow + 1) as f64);
        starter.start(sessions + nap, Expiry::NEVER.time_to_idle(delay), true);
    }
    drop(starter);

    let mut screen = Screen {
        out: &mut *console.out,
        in_place: console.out_is_terminal,
        columns: console.columns,
        shown: false,
        sessions: &map,
        tallies: &tallies,
        start,
        last: start,
        last_totals: Totals::default(),
    };
    // First part: the producers work. Their threads end within the scope, also if the screen fails.
    let stop = AtomicBool::new(false);
    let zipf = Zipf::new(sessions);
    let pace = Pace::new(producers, flat_out);
    let missing = thread::scope(|scope| {
        let (stop, zipf) = (&stop, &zipf);
        let mut working = Vec::new();
        for (number, producer) in (0..).zip(crew) {
            let share = sessions * number / producers..sessions * (number + 1) / producers;
            working.push(
                scope.spawn(move || producer.work(share, zipf, Rng::new(number), pace, stop)),
            );
        }
        let watched = screen.watch(|| start.elapsed() >= plan.producers_stop || is_interrupted());
        stop.store(true, Relaxed);
        watched?;
        let missing = working.into_iter().map(|producer| producer.join());
        let missing = missing.map(|left| left.expect("a producer does not panic"));
        Ok::<u64, io::Error>(missing.sum())
    })?;
    if missing > 0 {
        screen.note(&format!(
            "the time was too short for all: {} of {} sessions have logged in",
            grouped(sessions - missing),
            grouped(sessions)
        ))?;
    }
    // Second part: the remaining sessions expire. The lateness so far is kept, since the counters
    // go on.
    let under_load = map.stats().lateness();
    if !is_interrupted() {
        screen.note("the producers have stopped; what they left expires")?;
    }
    screen.watch(|| start.elapsed() >= plan.shutdown || map.is_empty() || is_interrupted())?;
    if is_interrupted() {
        screen.note("interrupted: what is left is handed back")?;
    }
    screen.close()?;

    // Third part: the shutdown hands back the rest.
    let balance = settle(&map, &tallies, options)?;
    // The lateness of this part is shown separately. Sessions that are no longer touched expire as
    // fast as all of them were touched before, so they wait for the engine's throughput.
    let whole = map.stats().lateness();
    let row = |name: &str, [p50, p99, max]: [String; 3]| {
        format!("{name:24} {p50:>11} {p99:>11} {max:>11}")
    };
    let head = row("lateness", ["p50", "p99", "max"].map(str::to_owned));
    let worked = row("while producers worked", millis(under_load));
    let to_the_end = row("to the end", millis(whole));
    writeln!(console.out, "{head}\n{worked}\n{to_the_end}\n")?;
    if console.out_is_terminal && (console.columns)() < WIDE {
        write!(console.out, "{balance:#}")?;
    } else {
        write!(console.out, "{balance}")?;
    }
    Ok(balance.faults().is_empty())
}

/// Shuts the map down and draws up the account.
fn settle(map: &Sessions, tallies: &[Arc<Tally>], options: &LiveOptions) -> io::Result<Balance> {
    let report = map.shutdown(Shutdown::HandBack).wait();
    let report = report.map_err(io::Error::other)?;
    let handed_back = report.handed_back.len() as u64;
    // On a busy machine a slow handler may not have started yet.
    let is_slow = |key: u64| key >= options.sessions;
    let never_slept = report
        .handed_back
        .iter()
        .filter(|session| is_slow(session.key))
        .count() as u64;
    let still_running = report.still_running as u64;
    drop(report);
    let totals = Totals::of(tallies);
    let kept: usize = tallies
        .iter()
        .map(|tally| Arc::strong_count(tally) - 1)
        .sum();
    let stats = map.stats();
    let row = |name, engine, program, source| Row {
        name,
        engine,
        program,
        source,
    };
    Ok(Balance {
        inserted: row(
            "inserted",
            stats.inserted,
            totals.created,
            "created by the producers",
        ),
        ends: vec![
            row(
                "expired",
                stats.expired,
                totals.ran,
                "counted by the handlers",
            ),
            row("removed", stats.removed, totals.logged_out, "log-outs"),
            row(
                "replaced",
                stats.replaced,
                totals.replaced,
                "created over one just created",
            ),
            row(
                "handed back",
                stats.handed_back,
                handed_back,
                "in the shutdown's report",
            ),
            row("pending", stats.pending, 0, "after the shutdown"),
        ],
        zeros: vec![
            (totals.refused, "calls were refused"),
            (stats.panicked, "handlers panicked"),
            (still_running, "handlers did not end"),
            (
                options.slow.abs_diff(totals.slept + never_slept),
                "slow handlers more or fewer than asked for",
            ),
            (kept as u64, "sessions were neither handled nor dropped"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_high_rank_go_first_where_there_is_no_room() {
        let fields = [(0, "1 s"), (2, "live 10"), (1, "p99 1 ms")]
            .map(|(rank, text)| (rank, text.to_owned()));
        for (width, line) in [
            (usize::MAX, "1 s  live 10  p99 1 ms"),
            (22, "1 s  live 10  p99 1 ms"),
            (21, "1 s  p99 1 ms"),
            (13, "1 s  p99 1 ms"),
            (12, "1 s"),
            (2, "1 "),
            (0, ""),
        ] {
            assert_eq!(fitting(&fields, width), line, "{width}");
        }
    }

    #[test]
    fn producers_rest_for_at_least_half_of_the_time_and_never_catch_up() {
        let micros = Duration::from_micros;
        let pace = Pace::new(2, false);
        assert_eq!(pace.round, Some(micros(640)));
        for (worked, rest) in [(0, 640), (40, 600), (320, 320), (500, 500), (9_000, 9_000)] {
            assert_eq!(pace.rest_after(micros(worked)), micros(rest), "{worked}");
        }
        let flat_out = Pace::new(2, true);
        assert_eq!(flat_out.rest_after(micros(40)), Duration::ZERO);
    }

    /// This bound holds on any machine, since no rest is shorter than requested.
    #[test]
    fn a_producer_rests_between_its_rounds() {
        let round = Duration::from_millis(50);
        let producer = Producer {
            sessions: Sessions::builder().build(|_, _| ()).expect("threads"),
            tally: Arc::default(),
        };
        let (zipf, stop) = (Zipf::new(1), AtomicBool::new(false));
        let pace = Pace { round: Some(round) };
        let start = Instant::now();
        thread::scope(|scope| {
            let work = || producer.work(0..u64::MAX, &zipf, Rng::new(1), pace, &stop);
            scope.spawn(work);
            while producer.tally.did.created.load(Relaxed) < 3 * u64::from(ROUND) {
                thread::yield_now();
            }
            stop.store(true, Relaxed);
        });
        assert!(start.elapsed() >= 3 * round);
    }

    #[test]
    fn without_samples_there_is_no_lateness() {
        assert_eq!(millis(Lateness::default()), ["-", "-", "-"]);
    }

    #[test]
    fn a_plan_ends_in_time() {
        for (seconds, idle_ms, producers_stop_ms, shutdown_ms) in [
            (30, 5_000, 23_950, 29_000),
            (30, 3_600_000, 21_500, 29_000),
            (10, 500, 8_450, 9_000),
            (1, 5_000, 650, 900),
            (1, 1, 849, 900),
        ] {
            let plan = Plan::new(seconds, Duration::from_millis(idle_ms));
            assert_eq!(
                plan.producers_stop,
                Duration::from_millis(producers_stop_ms)
            );
            assert_eq!(plan.shutdown, Duration::from_millis(shutdown_ms));
        }
    }
}
