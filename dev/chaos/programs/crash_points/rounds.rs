//! The rounds: one process after the other, in two lanes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use chaos::command_line::Stop;
use chaos::crew::{Heard, Process};
use chaos::random::Random;

use crate::child::{AFTERMATH, LATEST, LONGER, Order, SURVIVED, pause};
use crate::database::{self, Database, Fault};
use crate::host::Host;
use crate::point::{Cause, Point};
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

pub(crate) fn run(options: &Options) -> Result<(), Stop> {
    let failed = |error: Fault| Stop::Failed(error.to_string());
    if play(options).map_err(failed)? {
        Ok(())
    } else {
        Err(Stop::Found)
    }
}

/// Plays all rounds. Returns whether nothing was found.
fn play(options: &Options) -> Result<bool, Fault> {
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
    let mut watch = stage.start("watch", Point::Watch, 0, 0)?;
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
    if let Some(status) = watch.try_wait()? {
        return Err(format!("the watching process: {status}; the journals are in {folder}").into());
    }
    drop(watch);
    let mut last = stage.start("last", Point::None, 0, 0)?;
    let status = last.wait(PATIENCE)?;
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
        return Ok(false);
    }
    fs::remove_dir_all(&stage.folder)?;
    Ok(true)
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
        let mut child = self.start(&round.to_string(), point, count, random.number())?;
        if matches!(point.cause(), Cause::Signal | Cause::Server) {
            let latest = u64::try_from(LATEST.as_millis())?;
            pause(Duration::from_millis(20 + random.below(latest)));
            if child.try_wait()?.is_none() {
                match point {
                    Point::Kill => {}
                    Point::Stop => child.pause(LONGER),
                    _ => self.host.bring_about(point)?,
                }
                if point != Point::Kill {
                    pause(AFTERMATH);
                }
            }
            child.kill()?;
        }
        let status = child.wait(PATIENCE)?;
        match status.code() {
            // A signal has ended the process, as an abort and a kill do.
            None => Ok(true),
            Some(SURVIVED) => Ok(true),
            Some(0) => Ok(false),
            Some(_) => Err(status.to_string().into()),
        }
    }

    fn start(&self, name: &str, point: Point, count: u64, seed: u64) -> Result<Process, Fault> {
        let mut process = Process::start(&Order {
            name: name.to_owned(),
            point,
            count,
            seed,
            place: self.place.clone(),
            folder: self.folder.clone(),
            is_fenced: self.options.is_fenced,
        })?;
        let name = name.to_owned();
        process.listen(move |heard: Heard<()>| {
            if let Heard::Gone(Some(why)) = heard {
                complain!("process {name}: {why}");
            }
        });
        Ok(process)
    }
}
