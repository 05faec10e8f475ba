//! Kills processes at the points where a crash hurts, over and over, and compares what they were
//! answered with what happened.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example crash_points -- 1000
//! ```
//!
//! The arguments are the number of rounds (50 by default) and a seed. Each round is a process that
//! schedules, moves and cancels timers in a SQLite file, runs timers, and dies at one [point]. Two
//! processes work on the file at any time, so that each takes over what the other one leaves behind.
//! All write what they were answered, and each run, into [journals](journal).
//!
//! After the rounds one more process runs what is left. Then the last line of the output is
//! `lost 0 early 0 doubled effects 0`. Anything else is exit code 1:
//!
//! - *lost*: a timer was accepted and neither cancelled, and it never ran.
//! - *early*: a run started before the time that the store had accepted.
//! - *doubled effects*: an effect that was committed together with the end of its run is there twice.
//! - *wrong answers*, in the line before: a cancelled timer started afterwards, or one whose commit
//!   never began exists.

mod child;
mod failing;
mod journal;
mod point;
mod random;
mod verdict;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::point::Point;
use crate::random::Random;

/// The number of processes at one time.
const LANES: u32 = 2;

/// A process that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Some((first, rest)) = arguments.split_first()
        && first == "child"
    {
        child::run(rest)?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |index: usize, default: u64| {
        let given = arguments.get(index);
        given.map_or(Ok(default), |given| given.parse::<u64>())
    };
    let rounds = u32::try_from(number(0, 50)?)?;
    let seed = number(1, 7)?;
    rounds_in_a_new_folder(rounds, seed)
}

fn rounds_in_a_new_folder(
    rounds: u32,
    seed: u64,
) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let folder = env::temp_dir().join(format!("tourbillon-crash-points-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let begun = Instant::now();
    eprintln!("{rounds} rounds, seed {seed}, in {}", folder.display());
    let deaths = Mutex::new([0_u32; Point::ALL.len()]);
    let next = AtomicU32::new(0);
    let failed = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|_| scope.spawn(|| lane(&folder, rounds, seed, &next, &deaths)))
            .collect();
        let ends = lanes.into_iter().map(|lane| lane.join());
        ends.filter_map(|end| end.expect("a lane does not panic").err())
            .next()
    });
    if let Some(failed) = failed {
        return Err(format!("{failed}; the files are in {}", folder.display()).into());
    }
    let last = wait(&mut start(&folder, "last", Point::None, 0, 0)?)?;
    if !last.success() {
        return Err(format!("the last process: {last}; {}", folder.display()).into());
    }

    let verdict = verdict::of(&folder)?;
    let deaths = deaths
        .into_inner()
        .unwrap_or_else(|broken| broken.into_inner());
    for (point, deaths) in Point::ALL.into_iter().zip(deaths) {
        println!("{deaths:5} died {}", point.text());
    }
    println!("{verdict:#}");
    println!("rounds {rounds} in {:.0} s", begun.elapsed().as_secs_f64());
    println!("{verdict}");
    if !verdict.is_good() {
        eprintln!("the files are in {}", folder.display());
        return Ok(ExitCode::FAILURE);
    }
    fs::remove_dir_all(&folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts one process after the other.
fn lane(
    folder: &Path,
    rounds: u32,
    seed: u64,
    next: &AtomicU32,
    deaths: &Mutex<[u32; Point::ALL.len()]>,
) -> Result<(), String> {
    loop {
        // Relaxed: only the number matters.
        let round = next.fetch_add(1, Ordering::Relaxed);
        if round >= rounds {
            return Ok(());
        }
        let mut random = Random::new(seed ^ u64::from(round));
        let index = round as usize % Point::ALL.len();
        let point = Point::ALL[index];
        let count = random.below(point.greatest_count()) + 1;
        let problem = |error: &dyn std::fmt::Display| format!("round {round}, {point:?}: {error}");
        let mut child = start(folder, &round.to_string(), point, count, random.next())
            .map_err(|error| problem(&error))?;
        if point == Point::Kill {
            // A random moment is what this round is about.
            let moment = Duration::from_millis(20 + random.below(500));
            let begun = Instant::now();
            while begun.elapsed() < moment {
                thread::park_timeout(moment - begun.elapsed().min(moment));
            }
            child.kill().map_err(|error| problem(&error))?;
        }
        let status = wait(&mut child).map_err(|error| problem(&error))?;
        if has_died(status) {
            deaths.lock().expect("no lane panics")[index] += 1;
        } else if !status.success() {
            return Err(problem(&status));
        }
        if (round + 1).is_multiple_of(50) {
            eprintln!("round {}", round + 1);
        }
    }
}

/// Whether a signal has ended the process, as an abort and a kill do.
fn has_died(status: ExitStatus) -> bool {
    status.code().is_none()
}

fn start(
    folder: &Path,
    name: &str,
    point: Point,
    count: u64,
    seed: u64,
) -> Result<Child, std::io::Error> {
    let program: PathBuf = env::current_exe()?;
    Command::new(program)
        .args(["child", name, point.name()])
        .args([count.to_string(), seed.to_string()])
        .arg(folder)
        .spawn()
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if begun.elapsed() < PATIENCE => {
                thread::park_timeout(Duration::from_millis(1));
            }
            Ok(None) => {
                let _ = child.kill();
                return Err("the process hangs".to_owned());
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}
