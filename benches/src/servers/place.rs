//! Where the timers of a measurement lie, and the same work as plain SQL.

use std::fs::{self, File};
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tourbillon_durable::rusqlite;
use tourbillon_durable::{Postgres, Sqlite};

use super::timed::Timed;
use super::{Failure, at_once};

/// An empty database of one kind.
pub(super) enum Place {
    Sqlite(PathBuf),
    Postgres(String),
}

impl Place {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Place::Sqlite(_) => "SQLite",
            Place::Postgres(_) => "PostgreSQL",
        }
    }

    /// What another process opens it with.
    pub(super) fn argument(&self) -> String {
        match self {
            Place::Sqlite(path) => path.display().to_string(),
            Place::Postgres(url) => url.clone(),
        }
    }

    pub(super) fn of_argument(text: &str) -> Self {
        match text.starts_with("postgres://") {
            true => Place::Postgres(text.to_owned()),
            false => Place::Sqlite(PathBuf::from(text)),
        }
    }

    pub(super) fn store(&self) -> Result<Timed, Failure> {
        Ok(Timed::new(match self {
            Place::Sqlite(path) => Arc::new(Sqlite::open(path)?),
            Place::Postgres(url) => Arc::new(Postgres::connect(url)?),
        }))
    }

    /// Puts timers into the table that are due in a day, as one statement.
    pub(super) fn fill(&self, queue: &str, timers: u64) -> Result<(), Failure> {
        drop(self.store()?);
        match self {
            Place::Sqlite(path) => rusqlite::Connection::open(path)?.execute_batch(&format!(
                "pragma synchronous = off;
                 with recursive n(i) as (select 1 union all select i + 1 from n where i < {timers})
                 insert into tourbillon_timer (queue, key, shard, due, planned, generation, payload)
                 select '{queue}', 'filled:' || i, i % 64,
                     (unixepoch() + 86400 + i % 86400) * 1000000,
                     (unixepoch() + 86400 + i % 86400) * 1000000, -i, '{{\"order\":' || i || '}}'
                 from n;
                 pragma wal_checkpoint(truncate);"
            ))?,
            Place::Postgres(url) => {
                let mut client = client(url)?;
                client.batch_execute(&format!(
                    "insert into tourbillon.timer (queue, key, shard, due, planned, gen, payload)
                     select '{queue}', 'filled:' || i, i % 64,
                         clock_timestamp() + interval '1 day' + i % 86400 * interval '1 s',
                         clock_timestamp() + interval '1 day' + i % 86400 * interval '1 s', -i,
                         jsonb_build_object('order', i)
                     from generate_series(1, {timers}) i"
                ))?;
                client.batch_execute("vacuum analyze tourbillon.timer")?;
                client.batch_execute("checkpoint")?;
            }
        }
        Ok(())
    }

    /// Commits `batches` batches of `size` rows each from each of `threads` connections, as plain
    /// SQL. Returns the rows per second.
    pub(super) fn plain(&self, threads: u64, batches: u64, size: u64) -> Result<f64, Failure> {
        let took = match self {
            Place::Sqlite(path) => plain_sqlite(path, threads, batches, size),
            Place::Postgres(url) => plain_postgres(url, threads, batches, size),
        };
        Ok((threads * batches * size) as f64 / took?.as_secs_f64())
    }
}

pub(super) fn client(url: &str) -> Result<postgres::Client, Failure> {
    Ok(postgres::Client::connect(url, postgres::NoTls)?)
}

/// The columns and indexes of a timer without those that the protocol needs: what a user would
/// make.
fn plain_sqlite(path: &Path, threads: u64, batches: u64, size: u64) -> Result<Duration, Failure> {
    let open = || -> Result<rusqlite::Connection, Failure> {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(60))?;
        connection.execute_batch("pragma journal_mode = wal; pragma synchronous = full")?;
        Ok(connection)
    };
    open()?.execute_batch(
        "create table if not exists plain (queue text, key text, due integer, payload text,
             primary key (queue, key)) strict;
         create index if not exists plain_due on plain (queue, due);
         delete from plain",
    )?;
    at_once(threads, |thread| {
        let mut connection = open()?;
        for batch in 0..batches {
            let behaviour = rusqlite::TransactionBehavior::Immediate;
            let transaction = connection.transaction_with_behavior(behaviour)?;
            for row in 0..size {
                let number = (thread * batches + batch) * size + row;
                transaction
                    .prepare_cached("insert into plain values ('plain', ?1, ?2, ?3)")?
                    .execute((format!("order:{number}"), number as i64, "{\"order\":7}"))?;
            }
            transaction.commit()?;
        }
        Ok(())
    })
}

fn plain_postgres(url: &str, threads: u64, batches: u64, size: u64) -> Result<Duration, Failure> {
    client(url)?.batch_execute(
        "create table if not exists plain (queue text collate \"C\", key text collate \"C\",
             due timestamptz, payload jsonb, primary key (queue, key));
         create index if not exists plain_due on plain (queue, due);
         truncate plain",
    )?;
    at_once(threads, |thread| {
        let mut client = client(url)?;
        let statement = client.prepare(
            "insert into plain select 'plain', 'order:' || i,
                 clock_timestamp() + interval '1 h', payload::jsonb
             from unnest($1::bigint[], $2::text[]) t(i, payload)",
        )?;
        for batch in 0..batches {
            let first = (thread * batches + batch) * size;
            let numbers: Vec<i64> = (first..first + size).map(|row| row as i64).collect();
            let payloads = vec!["{\"order\":7}"; numbers.len()];
            client.execute(&statement, &[&numbers, &payloads])?;
        }
        Ok(())
    })
}

/// The median time of a small write with an fsync, in this folder.
pub(super) fn fsync(folder: &Path) -> io::Result<Duration> {
    let path = folder.join("fsync");
    let mut file = File::create(&path)?;
    let mut times = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        file.write_all(&[7; 4_096])?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
