//! Servers, their steps, and what is told meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use chaos::clock::now;
use chaos::judge::Violation;

use super::Options;
use super::arena::{Arena, Course, Report};
use super::plan::{self, Step};
use super::site::Site;
use super::tally::Tally;
use super::watch::Watch;

/// Logs of so many rounds are printed.
const LOGS: usize = 5;
/// Between two words about the progress.
const TELL: Duration = Duration::from_secs(10);

/// What all servers share.
struct Shared<'a> {
    options: &'a Options,
    seed: u64,
    start: Instant,
    tally: Mutex<Tally>,
    logs: AtomicUsize,
    /// Servers whose rounds have ended.
    done: AtomicUsize,
}

/// Runs it all: what came of it, the seed, and how long it took.
pub(crate) fn run(options: &Options) -> (Tally, u64, Duration) {
    let seed = options.seed.unwrap_or_else(|| now() % 1_000_000_007);
    complain!("failing-servers: {} rounds, seed {seed}", options.rounds);
    let shared = Shared {
        options,
        seed,
        start: Instant::now(),
        tally: Mutex::new(Tally::default()),
        logs: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
    };
    thread::scope(|scope| {
        for number in 0..options.servers {
            let shared = &shared;
            scope.spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(|| rounds(number, shared)));
                let fault = match ended {
                    Ok(Ok(())) => None,
                    Ok(Err(fault)) => Some(fault),
                    Err(_) => Some(format!("the rounds of server {number} panicked")),
                };
                if let Some(fault) = fault {
                    shared.tell(&Report {
                        log: Vec::new(),
                        violations: vec![Violation::Broken(fault)],
                    });
                }
                shared.done.fetch_add(1, Ordering::Release);
            });
        }
        let mut told = Instant::now();
        while shared.done.load(Ordering::Acquire) < options.servers {
            thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= TELL {
                told = Instant::now();
                shared.progress();
            }
        }
    });
    let took = shared.start.elapsed();
    let tally = shared.tally.into_inner();
    let tally = tally.expect("nothing panics under this lock");
    (tally, seed, took)
}

impl Shared<'_> {
    fn progress(&self) {
        let tally = self.tally.lock().expect("nothing panics under this lock");
        complain!(
            "failing-servers: {} of {} rounds, {} grants, {} overlaps, {} s",
            tally.rounds,
            self.options.rounds,
            tally.grants,
            tally.overlaps,
            self.start.elapsed().as_secs()
        );
    }

    /// What was wrong, with the log of its round.
    fn tell(&self, report: &Report) {
        let mut tally = self.tally.lock().expect("nothing panics under this lock");
        tally.violations(&report.violations);
        drop(tally);
        if report.violations.is_empty() || self.logs.fetch_add(1, Ordering::Relaxed) >= LOGS {
            return;
        }
        let mut text = format!("failing-servers: seed {}\n", self.seed);
        for line in &report.log {
            text += &format!("    {line}\n");
        }
        for violation in &report.violations {
            text += &format!("failing-servers: {violation:?}\n");
        }
        begin!("{text}");
    }

    fn is_late(&self) -> bool {
        let limit = self.options.limit;
        limit.is_some_and(|limit| self.start.elapsed() >= limit)
    }
}

/// All rounds of one server.
fn rounds(number: usize, shared: &Shared<'_>) -> Result<(), String> {
    let options = shared.options;
    // The same for every run of this seed, whichever server is the fastest.
    let mut left =
        options.rounds / options.servers + usize::from(number < options.rounds % options.servers);
    let mut site = Site::start(options.kind, options.sabotage)?;
    let watch = site.watch();
    let mut arenas = (0..options.locks)
        .map(|lock| {
            let name = lock_name(number, lock);
            let folder = site.folder().to_owned();
            Arena::new((options.kind, site.ports()), name, folder, options.sabotage)
        })
        .collect::<Result<Vec<_>, _>>()?;
    for at in 0.. {
        if left == 0 || shared.is_late() {
            break;
        }
        let mut step = plan::step(shared.seed, number, at, options.locks);
        if !options.kind.has_paths() {
            step = plan::without_paths(step);
        }
        if let Some(sabotage) = options.sabotage {
            step = plan::sharpened(step, sabotage);
        }
        step.rounds.truncate(left);
        left -= step.rounds.len();
        play(&step, &mut site, &watch, &mut arenas, shared)?;
    }
    for arena in &mut arenas {
        let violations = arena.rest_of(&watch);
        let log = Vec::new();
        shared.tell(&Report { log, violations });
    }
    let violations = left_over(&site, options.locks, number)
        .map_err(|error| format!("server {number} can't be looked at: {error}"))?;
    let log = Vec::new();
    shared.tell(&Report { log, violations });
    Ok(())
}

fn lock_name(server: usize, lock: usize) -> String {
    format!("lock-{server}-{lock}")
}

/// One step: a round of each lock, and what befalls their server.
fn play(
    step: &Step,
    site: &mut Site,
    watch: &Watch,
    arenas: &mut [Arena],
    shared: &Shared<'_>,
) -> Result<(), String> {
    let course = Course::default();
    let name = arenas[0].lock().to_owned();
    thread::scope(|scope| {
        for (arena, round) in arenas.iter_mut().zip(&step.rounds) {
            let course = &course;
            scope.spawn(move || {
                let mut tally = Tally::default();
                let report = arena.round(round, step.fault, course, watch, &mut tally);
                let mut all = shared.tally.lock().expect("nothing panics under this lock");
                all.add(tally);
                drop(all);
                shared.tell(&report);
            });
        }
        let befell = catch_unwind(AssertUnwindSafe(|| befall(site, step, &name, &course)));
        // Whatever became of it, the rounds wait for this.
        course.over.store(now(), Ordering::Release);
        befell.unwrap_or_else(|_| Err("the server is gone".to_owned()))
    })
}

fn befall(site: &mut Site, step: &Step, lock: &str, course: &Course) -> Result<(), String> {
    thread::sleep(step.fault_after);
    // During holds, if there are any.
    let start = Instant::now();
    while course.held.load(Ordering::Relaxed) * 2 < step.rounds.len()
        && start.elapsed() < Duration::from_millis(500)
    {
        thread::sleep(Duration::from_millis(1));
    }
    course.began.store(now(), Ordering::Relaxed);
    site.befall(lock, step.fault)
}

/// What a server should not have when nobody holds a lock.
fn left_over(site: &Site, locks: usize, number: usize) -> Result<Vec<Violation>, String> {
    let names: Vec<_> = (0..locks).map(|lock| lock_name(number, lock)).collect();
    let start = Instant::now();
    loop {
        let found = site.left_over(&names)?;
        // What was not given back runs out.
        if found.is_empty() || start.elapsed() > 2 * plan::LONGEST {
            return Ok(found);
        }
        thread::sleep(Duration::from_millis(10));
    }
}
