//! The rounds: one process after the other, in two lanes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use kit::pause::Paused;

use crate::child::{AFTERMATH, LATEST, LONGER, SURVIVED, pause};
use crate::database::{self, Database, Fault};
use crate::host::Host;
use crate::point::{Cause, Point};
use crate::random::Random;
use crate::verdict;

/// The number of processes at one time.
const LANES: u32 = 2;

/// A process that has not ended by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The arguments of the program.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) seed: u64,
    pub(crate) place: Place,
    /// Whether effects are committed together with the end of their runs.
    pub(crate) is_fenced: bool,
}

/// Where the timers are.
#[derive(Debug)]
pub(crate) enum Place {
    File,
    OwnServer,
    Url(String),
}

/// What all lanes share.
struct Stage<'a> {
    options: &'a Options,
    folder: PathBuf,
    host: Host,
    /// What a child opens.
    place: String,
    points: Vec<Point>,
    next: AtomicU32,
    /// How many processes have met each point.
    met: Mutex<BTreeMap<&'static str, u32>>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode, Fault> {
    let folder = env::temp_dir().join(format!("tourbillon-crash-points-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let (host, place, database) = prepare(&options.place, &folder).inspect_err(|_| {
        // Nothing is in it that anybody wants to read.
        let _ = fs::remove_dir_all(&folder);
    })?;
    let begun = Instant::now();
    complain!(
        "{} rounds, seed {}, journals in {}",
        options.rounds,
        options.seed,
        folder.display()
    );
    let stage = Stage {
        points: Point::ALL
            .into_iter()
            .filter(|point| host.has(*point))
            .collect(),
        options,
        folder,
        host,
        place,
        next: AtomicU32::new(0),
        met: Mutex::default(),
    };
    let mut watch = Paused(stage.start("watch", Point::Watch, 0, 0)?);
    let failed = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(|| stage.lane())).collect();
        let ends = lanes.into_iter().map(|lane| lane.join());
        ends.filter_map(|end| end.expect("a lane does not panic").err())
            .next()
    });
    let folder = stage.folder.display();
    if let Some(failed) = failed {
        return Err(format!("{failed}; the journals are in {folder}").into());
    }
    if let Some(status) = watch.0.try_wait()? {
        return Err(format!("the watching process: {status}; the journals are in {folder}").into());
    }
    drop(watch);
    let mut last = Paused(stage.start("last", Point::None, 0, 0)?);
    let status = wait(&mut last.0)?;
    if !status.success() {
        return Err(format!("the last process: {status}; the journals are in {folder}").into());
    }

    let verdict = verdict::of(&stage.folder, &*database)?;
    let met = stage.met.lock().expect("no lane panics");
    for point in &stage.points {
        let met = met.get(point.text()).copied().unwrap_or_default();
        say!("{met:5} {}", point.text());
    }
    say!("{verdict:#}");
    say!(
        "rounds {} in {:.0} s",
        options.rounds,
        begun.elapsed().as_secs_f64()
    );
    say!("{verdict}");
    if !verdict.is_good() {
        complain!("seed {}, the journals are in {folder}", options.seed);
        return Ok(ExitCode::FAILURE);
    }
    fs::remove_dir_all(&stage.folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a server if there has to be one, and makes the tables.
fn prepare(place: &Place, folder: &Path) -> Result<(Host, String, Arc<dyn Database>), Fault> {
    let (host, place) = match place {
        Place::File => (Host::File, folder.join("timers.db").display().to_string()),
        Place::OwnServer => Host::start()?,
        Place::Url(url) => (Host::at(url)?, url.clone()),
    };
    let database = database::open(&place, Point::None)?;
    database.prepare()?;
    Ok((host, place, database))
}

impl Stage<'_> {
    /// Plays one round after the other.
    fn lane(&self) -> Result<(), String> {
        loop {
            // Relaxed: only the number matters.
            let round = self.next.fetch_add(1, Ordering::Relaxed);
            if round >= self.options.rounds {
                return Ok(());
            }
            let point = self.points[round as usize % self.points.len()];
            let met = self.round(round, point);
            if met.map_err(|error| format!("round {round}, {point:?}: {error}"))? {
                let mut all = self.met.lock().expect("no lane panics");
                *all.entry(point.text()).or_default() += 1;
            }
            if (round + 1).is_multiple_of(50) {
                complain!("round {}", round + 1);
            }
        }
    }

    /// Plays a round. Returns whether its process has met the point.
    fn round(&self, round: u32, point: Point) -> Result<bool, Fault> {
        let mut random = Random::new(self.options.seed ^ u64::from(round));
        let count = random.below(point.greatest_count()) + 1;
        let mut child = Paused(self.start(&round.to_string(), point, count, random.next())?);
        if matches!(point.cause(), Cause::Signal | Cause::Server) {
            let latest = u64::try_from(LATEST.as_millis())?;
            pause(Duration::from_millis(20 + random.below(latest)));
            if child.0.try_wait()?.is_none() {
                match point {
                    Point::Kill => {}
                    Point::Stop => child.pause(LONGER),
                    _ => self.host.bring_about(point)?,
                }
                if point != Point::Kill {
                    pause(AFTERMATH);
                }
            }
            child.0.kill()?;
        }
        let status = wait(&mut child.0)?;
        match status.code() {
            // A signal has ended the process, as an abort and a kill do.
            None => Ok(true),
            Some(SURVIVED) => Ok(true),
            Some(0) => Ok(false),
            Some(_) => Err(status.to_string().into()),
        }
    }

    fn start(&self, name: &str, point: Point, count: u64, seed: u64) -> Result<Child, Fault> {
        let fence = if self.options.is_fenced {
            "fenced"
        } else {
            "open"
        };
        let child = Command::new(env::current_exe()?)
            .args([
                "child",
                name,
                &point.name(),
                &count.to_string(),
                &seed.to_string(),
            ])
            .arg(&self.place)
            .arg(&self.folder)
            .arg(fence)
            // The process that watches ends with it.
            .stdin(Stdio::piped())
            .spawn()?;
        Ok(child)
    }
}

/// Waits for the end of a process, for at most a minute.
fn wait(child: &mut Child) -> Result<ExitStatus, Fault> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if begun.elapsed() > PATIENCE {
            return Err("the process hangs".into());
        }
        thread::park_timeout(Duration::from_millis(1));
    }
}
