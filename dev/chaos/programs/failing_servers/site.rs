//! The servers of the rounds: what befalls them, and what they have in the end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use chaos::judge::Violation;
use chaos::servers::postgres::Cluster;
use chaos::servers::redis::Server;
use postgres::{Client, NoTls};
use serde::{Deserialize, Serialize};
use tourbillon_leases::PostgresStore;

use super::clustered::Clustered;
use super::holder::Sabotage;
use super::plan::{LONGEST, OnServer};
use super::server_judge;
use super::watch::{Monitor, Seen, Watch};
use super::watched::Watched;

/// A server that was killed is there again by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// Notes grants and renewals, in the order of the server for each lock.
const TRIGGER: &str = "
create table public.seen (n bigserial, lock text, owner text, token bigint, at bigint);
create function public.see() returns trigger language plpgsql as $$
begin
  if tg_op = 'INSERT' or new.token <> old.token then
    insert into public.seen (lock, owner, token) values (new.name, new.owner, new.token);
  elsif new.secret = old.secret and new.ends > old.ends then
    insert into public.seen (lock, owner, at)
    values (new.name, new.owner, (extract(epoch from clock_timestamp()) * 1000000)::bigint);
  end if;
  return null;
end
$$;
create trigger see after insert or update on tourbillon_leases.lease
for each row execute function public.see();
";

/// What it notes is taken once.
const TAKE: &str = "with taken as (delete from public.seen where lock = $1 returning n, owner, token, at) \
                    select owner, token, at from taken order by n";

const OTHERS: &str =
    "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()";

/// What the servers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Redis,
    Postgres,
    Sentinel,
    Cluster,
}

impl Kind {
    /// The URL of servers at these ports.
    pub(crate) fn url(self, ports: &[u16]) -> String {
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let hosts = hosts.join(",");
        match self {
            Kind::Redis => format!("redis://{hosts}/"),
            Kind::Postgres => url(ports[0]),
            Kind::Sentinel => format!("redis-sentinel://{hosts}/shop"),
            Kind::Cluster => format!("redis-cluster://{hosts}/"),
        }
    }

    /// Whether a way to the servers may be in trouble. Others tell the addresses of the rest.
    pub(crate) fn has_paths(self) -> bool {
        matches!(self, Kind::Redis | Kind::Postgres)
    }

    /// What a busy machine may add to anything. After a fault all holders connect anew at one time,
    /// and for each connection a PostgreSQL server starts a process.
    pub(crate) fn slack(self) -> Duration {
        match self {
            Kind::Redis => Duration::from_secs(2),
            // A busy machine may cause a failover.
            Kind::Sentinel | Kind::Cluster => Duration::from_secs(2) + self.guard(),
            Kind::Postgres => Duration::from_secs(10),
        }
    }

    /// How long nothing is granted after a loss of data, and until the next acquire, which may be as
    /// late as a waiter's next question.
    pub(crate) fn guard(self) -> Duration {
        let question = Duration::from_secs(1);
        let later = match self {
            Kind::Redis | Kind::Postgres => Duration::ZERO,
            // Holders may renew on the server that was replaced.
            Kind::Sentinel | Kind::Cluster => Duration::from_secs(10),
        };
        // A slot that came to a node may wait for the end of another wait first.
        let terms = if self == Kind::Cluster { 2 } else { 1 };
        (LONGEST + later) * terms + question
    }

    /// Whether a server has lost its data after that, or may have.
    pub(crate) fn empties(self, fault: OnServer) -> bool {
        let replaced = matches!(fault, OnServer::Stop(_)) && !self.has_paths();
        let moves = matches!(fault, OnServer::Flush(_)) && self == Kind::Cluster;
        fault.empties() || replaced || moves
    }

    /// Whether its programs are installed.
    pub(crate) fn is_there(self) -> Result<(), String> {
        let is_there = match self {
            Kind::Redis | Kind::Sentinel | Kind::Cluster => {
                let mut version = Command::new("redis-server");
                let version = version.arg("--version").stdin(Stdio::null());
                version.output().is_ok()
            }
            Kind::Postgres => chaos::servers::postgres::is_there(),
        };
        match (is_there, self) {
            (true, _) => Ok(()),
            (false, Kind::Redis | Kind::Sentinel | Kind::Cluster) => {
                Err("there is no redis-server: apt-get install redis-server".to_owned())
            }
            (false, Kind::Postgres) => {
                Err("there is no PostgreSQL server: apt-get install postgresql".to_owned())
            }
        }
    }
}

/// A server of this program's own.
pub(crate) enum Site {
    Redis(Server),
    Postgres(Cluster),
    Sentinel(Box<Watched>),
    Cluster(Clustered),
}

/// The database of a PostgreSQL server at this port.
pub(crate) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

/// A connection to it.
fn client(port: u16) -> Result<Client, String> {
    let start = Instant::now();
    loop {
        match Client::connect(&url(port), NoTls) {
            Ok(client) => return Ok(client),
            Err(_) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// What its trigger has noted of a lock since it was asked last.
pub(crate) fn seen(port: u16, lock: &str) -> Vec<Seen> {
    let rows = client(port).and_then(|mut client| {
        let rows = client.query(TAKE, &[&lock]);
        rows.map_err(|error| error.to_string())
    });
    let seen = |row: &postgres::Row| {
        let owner: String = row.get(0);
        let number = |at: usize| row.get::<_, Option<i64>>(at).map(i64::unsigned_abs);
        match number(1) {
            Some(token) => Seen::Grant { owner, token },
            None => Seen::Renewal {
                owner,
                at: number(2).unwrap_or_default(),
            },
        }
    };
    let rows = rows.expect("the server is there between two rounds");
    rows.iter().map(seen).collect()
}

impl Site {
    pub(crate) fn start(kind: Kind, sabotage: Option<Sabotage>) -> Result<Self, String> {
        match kind {
            Kind::Redis => return Ok(Site::Redis(Server::start())),
            Kind::Sentinel => return Ok(Site::Sentinel(Box::new(Watched::start()))),
            Kind::Cluster => {
                let is_unguarded = sabotage == Some(Sabotage::Unguarded);
                return Ok(Site::Cluster(Clustered::start(is_unguarded)));
            }
            Kind::Postgres => {}
        }
        let cluster = Cluster::durable();
        let sql = PostgresStore::tables_sql("tourbillon_leases");
        let sql = sql.map_err(|error| error.to_string())?;
        cluster.psql(&sql)?;
        cluster.psql(TRIGGER)?;
        Ok(Site::Postgres(cluster))
    }

    /// Those that holders know at first.
    pub(crate) fn ports(&self) -> Vec<u16> {
        match self {
            Site::Redis(server) => vec![server.port()],
            Site::Sentinel(watched) => vec![watched.sentinel().port()],
            Site::Cluster(clustered) => clustered.nodes().iter().map(Server::port).collect(),
            Site::Postgres(cluster) => vec![cluster.port()],
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        match self {
            Site::Redis(server) => server.folder(),
            Site::Sentinel(watched) => watched.sentinel().folder(),
            Site::Cluster(clustered) => clustered.nodes()[0].folder(),
            Site::Postgres(cluster) => cluster.folder(),
        }
    }

    pub(crate) fn watch(&self) -> Watch {
        let monitors = |servers: &[Server]| {
            let servers = servers.iter();
            Watch::Monitors(servers.map(|server| Monitor::of(server.port())).collect())
        };
        match self {
            Site::Redis(server) => Watch::Monitors(vec![Monitor::of(server.port())]),
            Site::Sentinel(watched) => monitors(watched.servers()),
            Site::Cluster(clustered) => monitors(clustered.nodes()),
            Site::Postgres(cluster) => Watch::Trigger(cluster.port()),
        }
    }

    /// Does to it what is planned, and returns when that is over. One of several masters is the one that
    /// has this lock.
    pub(crate) fn befall(&mut self, lock: &str, fault: OnServer) -> Result<(), String> {
        match self {
            Site::Redis(server) => on_redis(server, fault).map_err(|error| error.to_string()),
            Site::Sentinel(watched) => {
                let befell = watched.befall(fault, on_redis);
                befell.map_err(|error| error.to_string())
            }
            Site::Cluster(clustered) => {
                let befell = clustered.befall(lock, fault, on_redis);
                befell.map_err(|error| error.to_string())
            }
            Site::Postgres(cluster) => on_postgres(cluster, fault),
        }
    }

    /// What it has although nobody holds one of its locks.
    pub(crate) fn left_over(&self, locks: &[String]) -> Result<Vec<Violation>, String> {
        let in_redis = |server: &Server| {
            let keys = redis::cmd("KEYS").arg("*").query(&mut server.connect());
            let keys: Vec<String> = keys.map_err(|error: redis::RedisError| error.to_string())?;
            Ok(server_judge::left_over(&keys, locks))
        };
        match self {
            Site::Redis(server) => in_redis(server),
            Site::Sentinel(watched) => in_redis(watched.master()),
            Site::Cluster(clustered) => {
                let left = clustered.masters().into_iter().map(in_redis);
                Ok(left.collect::<Result<Vec<_>, String>>()?.concat())
            }
            Site::Postgres(cluster) => {
                let held = "select name from tourbillon_leases.lease where owner is not null and ends > now()";
                let held = cluster.psql(held)?;
                let left = |name: &str| Violation::Leftover(format!("the lock {name} is held"));
                Ok(held.lines().map(left).collect())
            }
        }
    }
}

fn on_redis(server: &mut Server, fault: OnServer) -> redis::RedisResult<()> {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match fault {
        OnServer::Nothing => {}
        OnServer::Empty => redis::cmd("FLUSHALL").exec(&mut server.connect())?,
        OnServer::Kill(outage) => {
            server.kill();
            thread::sleep(outage);
            server.restart();
        }
        OnServer::Pause(time, all) => {
            redis::cmd("CLIENT")
                .arg("PAUSE")
                .arg(millis(time))
                .arg(if all { "ALL" } else { "WRITE" })
                .exec(&mut server.connect())?;
            thread::sleep(time);
        }
        OnServer::Sleep(time) => {
            redis::cmd("DEBUG")
                .arg("SLEEP")
                .arg(time.as_secs_f64())
                .exec(&mut server.connect())?;
        }
        OnServer::Stop(time) => {
            server.stop();
            thread::sleep(time);
            server.resume();
        }
        OnServer::Flush(time) => {
            let mut connection = server.connect();
            let start = Instant::now();
            while start.elapsed() < time {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection)?;
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    Ok(())
}

/// A PostgreSQL server has its data after a crash. In the place of what only Redis has, tables are
/// locked, and sessions ended.
fn on_postgres(cluster: &mut Cluster, fault: OnServer) -> Result<(), String> {
    let cut = format!("select pg_terminate_backend(pid) {OTHERS}");
    match fault {
        OnServer::Nothing => {}
        OnServer::Empty => drop(cluster.psql(&cut)?),
        OnServer::Kill(outage) => {
            cluster.crash();
            thread::sleep(outage);
            cluster.restart();
        }
        OnServer::Pause(time, all) => {
            let mode = if all { "access exclusive" } else { "exclusive" };
            lock(cluster.port(), "lease", mode, time)?;
        }
        OnServer::Sleep(time) => lock(cluster.port(), "meta", "access exclusive", time)?,
        OnServer::Stop(time) => {
            let sessions = cluster.psql(&format!("select pid {OTHERS}"))?;
            let sessions: Vec<_> = sessions.lines().collect();
            // Some may have ended meanwhile.
            let signal = |signal: &str| {
                let mut kill = Command::new("kill");
                let _ = kill
                    .arg(signal)
                    .args(&sessions)
                    .stderr(Stdio::null())
                    .status();
            };
            if !sessions.is_empty() {
                signal("-STOP");
                thread::sleep(time);
                signal("-CONT");
            }
        }
        OnServer::Flush(time) => {
            let mut client = client(cluster.port())?;
            let start = Instant::now();
            while start.elapsed() < time {
                let cut = client.batch_execute(&cut);
                cut.map_err(|error| error.to_string())?;
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
    Ok(())
}

/// Locks a table for some time.
fn lock(port: u16, table: &str, mode: &str, time: Duration) -> Result<(), String> {
    let mut client = client(port)?;
    let mut transaction = client.transaction().map_err(|error| error.to_string())?;
    let lock = format!("lock table tourbillon_leases.{table} in {mode} mode");
    let locked = transaction.batch_execute(&lock);
    locked.map_err(|error| error.to_string())?;
    thread::sleep(time);
    transaction.rollback().map_err(|error| error.to_string())
}
