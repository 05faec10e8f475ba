//! What the measurements of durable timers share: where they run, how much they do, and how late
//! timers are.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use chaos::servers::postgres::Cluster;
use tourbillon_durable::{Due, Durable, DurableStats};

use super::place::{self, Place};
use super::{Failure, millis, quantiles};

/// Calls in one batch.
pub(super) const BATCH: u64 = 100;

pub(super) struct Sizes {
    /// Timers of the measurements of rates.
    pub(super) timers: u64,
    /// Single calls of all threads together.
    pub(super) calls: u64,
    pub(super) lateness: Duration,
    pub(super) at_once: u64,
    pub(super) filled: u64,
    pub(super) idle: Duration,
    pub(super) held_open: Duration,
    pub(super) node_lease: Duration,
    pub(super) peer_jobs: u64,
    /// Numbers of queues.
    pub(super) queues: &'static [u64],
}

pub(super) const FULL: Sizes = Sizes {
    timers: 100_000,
    calls: 60_000,
    lateness: Duration::from_secs(20),
    at_once: 1_000_000,
    filled: 10_000_000,
    idle: Duration::from_secs(30),
    held_open: Duration::from_secs(300),
    node_lease: Duration::from_secs(15),
    peer_jobs: 20_000,
    queues: &[10, 1_000, 10_000],
};

pub(super) const QUICK: Sizes = Sizes {
    held_open: Duration::from_secs(40),
    ..FULL
};

pub(super) const SMOKE: Sizes = Sizes {
    timers: 2_000,
    calls: 1_600,
    lateness: Duration::from_secs(1),
    at_once: 5_000,
    filled: 20_000,
    idle: Duration::from_secs(2),
    held_open: Duration::from_secs(2),
    node_lease: Duration::from_secs(1),
    peer_jobs: 200,
    queues: &[10, 100],
};

/// The built program of `benches/durable-peers`, whose jobs are run beside.
pub(crate) type Peers = Option<PathBuf>;

/// The folder of the SQLite files, and the server. Both end with the program.
pub(super) struct Here {
    folder: PathBuf,
    server: Cluster,
    databases: AtomicU64,
    peers: Peers,
}

impl Here {
    pub(super) fn new(peers: Peers) -> std::io::Result<Self> {
        let mut folder = std::env::current_exe()?;
        folder.set_file_name(format!("durable-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let databases = AtomicU64::new(0);
        let server = Cluster::durable();
        for (name, folder) in [("SQLite", &*folder), ("PostgreSQL", &std::env::temp_dir())] {
            let took = millis(place::fsync(folder)?);
            complain!("a write of 4 KiB with fsync in the folder of {name}: {took:.2} ms");
        }
        Ok(Here {
            folder,
            server,
            databases,
            peers,
        })
    }

    pub(super) fn sqlite(&self) -> Place {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        Place::Sqlite(self.folder.join(format!("timers-{number}.db")))
    }

    pub(super) fn postgres(&self) -> Place {
        Place::Postgres(self.server.database().url())
    }

    pub(super) fn both(&self) -> [Place; 2] {
        [self.sqlite(), self.postgres()]
    }

    /// The jobs a second of a peer, if the program of the peers is there.
    pub(super) fn peer_rate(
        &self,
        peer: &str,
        place: &Place,
        jobs: u64,
    ) -> Result<Option<f64>, Failure> {
        let Some(program) = &self.peers else {
            return Ok(None);
        };
        let mut command = Command::new(program);
        command.args([peer, &place.argument(), &jobs.to_string(), "64"]);
        let line = String::from_utf8(command.stderr(Stdio::inherit()).output()?.stdout)?;
        let seconds = line.split_whitespace().nth(2);
        let seconds = seconds.ok_or("the peer printed no time")?;
        Ok(Some(jobs as f64 / seconds.parse::<f64>()?))
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        // Nothing else can be done if the files can't be removed.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// How late timers were.
#[derive(Clone, Default)]
pub(super) struct Lateness(Arc<Mutex<Vec<Duration>>>);

impl Lateness {
    /// The store's clock is that of this machine.
    pub(super) fn handler(&self) -> impl Fn(&Due<u64>) + Send + Sync + 'static {
        let all = Arc::clone(&self.0);
        move |due| {
            let late = SystemTime::now().duration_since(due.due());
            let mut all = all.lock().expect("no panic under the lock");
            all.push(late.unwrap_or_default());
        }
    }

    pub(super) fn quantiles(&self) -> [f64; 4] {
        quantiles(self.0.lock().expect("no panic under the lock").clone())
    }
}

pub(super) fn wait_for(timers: &Durable, runs: u64) -> Result<DurableStats, Failure> {
    let start = Instant::now();
    loop {
        let stats = timers.stats();
        if stats.succeeded >= runs {
            return Ok(stats);
        }
        if start.elapsed() > Duration::from_secs(300) {
            return Err(format!("not all has run after 300 s: {stats:?}").into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Schedules these in one call.
pub(super) fn schedule_all(
    timers: &Durable,
    queue: &str,
    all: impl IntoIterator<Item = (String, Duration, u64)>,
) -> Result<(), Failure> {
    let mut answers = timers.schedule_many(queue, all).wait()?.into_iter();
    Ok(answers.try_for_each(|answer| answer.map(drop))?)
}

/// The CPU time of this process, in seconds.
pub(super) fn cpu_time() -> Result<f64, Failure> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::try_from(time)?.as_secs_f64())
}
