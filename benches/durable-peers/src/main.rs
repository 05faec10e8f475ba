//! Runs the jobs of one peer, and prints how long that took.
//!
//! `durable-peers PEER DATABASE JOBS CONCURRENCY`: the database is a URL of PostgreSQL, or the path
//! of a file for a peer on SQLite. Puts that many due jobs into the database, starts one worker,
//! and prints `PEER JOBS SECONDS`: the seconds from the start of the worker to the end of the last
//! job, with its row deleted or marked as done. Each peer has the options that made it fastest
//! here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Executor, PgPool, Row};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The jobs that have run.
static RAN: AtomicUsize = AtomicUsize::new(0);

struct Wish {
    database: String,
    jobs: usize,
    concurrency: usize,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words = words()?;
    let [peer, database, jobs, concurrency] = words.as_slice() else {
        return Err(
            "usage: durable-peers graphile_worker|underway|apalis-postgres|apalis-sqlite DATABASE \
             JOBS CONCURRENCY"
                .into(),
        );
    };
    let wish = Wish {
        database: database.clone(),
        jobs: jobs.parse()?,
        concurrency: concurrency.parse()?,
    };
    let took = match peer.as_str() {
        "graphile_worker" => graphile(&wish).await?,
        "underway" => underway(&wish).await?,
        "apalis-postgres" => apalis(&wish).await?,
        "apalis-sqlite" => apalis_sqlite(&wish).await?,
        other => return Err(format!("there is no peer {other}").into()),
    };
    println!("{peer} {} {:.3}", wish.jobs, took.as_secs_f64());
    Ok(())
}

/// The arguments, none of which is an option.
fn words() -> Result<Vec<String>, lexopt::Error> {
    use lexopt::prelude::*;
    let mut words = Vec::new();
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Value(word) => words.push(word.string()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(words)
}

async fn pool(wish: &Wish) -> Result<PgPool, Failure> {
    Ok(PgPoolOptions::new()
        .max_connections(16)
        .connect(&wish.database)
        .await?)
}

/// Waits until all jobs have run, and the statement `left` counts no row that is not done.
async fn finished(wish: &Wish, pool: &PgPool, left: &str) -> Result<Duration, Failure> {
    finished_on(wish, async || Ok(pool.fetch_one(left).await?.try_get(0)?)).await
}

/// Waits until all jobs have run, and `left` counts no row that is not done.
async fn finished_on(
    wish: &Wish,
    left: impl AsyncFn() -> Result<i64, Failure>,
) -> Result<Duration, Failure> {
    let start = Instant::now();
    while RAN.load(Ordering::Relaxed) < wish.jobs {
        if start.elapsed() > Duration::from_secs(300) {
            let ran = RAN.load(Ordering::Relaxed);
            return Err(format!("{ran} of {} jobs ran in 300 s", wish.jobs).into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    loop {
        if left().await? == 0 {
            return Ok(start.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    order: usize,
}

// === graphile_worker ===

impl graphile_worker::TaskHandler for Order {
    const IDENTIFIER: &'static str = "order";

    async fn run(
        self,
        _context: graphile_worker::WorkerContext,
    ) -> impl graphile_worker::IntoTaskHandlerResult {
        RAN.fetch_add(1, Ordering::Relaxed);
        Ok::<(), String>(())
    }
}

async fn graphile(wish: &Wish) -> Result<Duration, Failure> {
    use graphile_worker::{JobSpec, LocalQueueConfig, WorkerOptions};
    let pool = pool(wish).await?;
    let worker = WorkerOptions::default()
        .database_url(&wish.database)
        .max_pg_conn(16)
        .concurrency(wish.concurrency)
        .schema("graphile_worker")
        .local_queue(LocalQueueConfig::default().with_size(wish.concurrency.max(500)))
        .complete_job_batch_delay(Duration::from_millis(1))
        .define_job::<Order>()
        .init()
        .await?;
    let spec = JobSpec::default();
    for first in (0..wish.jobs).step_by(1_000) {
        let jobs: Vec<(Order, &JobSpec)> = (first..wish.jobs.min(first + 1_000))
            .map(|order| (Order { order }, &spec))
            .collect();
        worker.create_utils().add_jobs(&jobs).await?;
    }
    let running = async { worker.run().await.map_err(Failure::from) };
    let done = finished(
        wish,
        &pool,
        "select count(*) from graphile_worker._private_jobs",
    );
    tokio::select! {
        end = running => Err(format!("the worker has ended: {end:?}").into()),
        took = done => took,
    }
}

// === underway ===

async fn underway(wish: &Wish) -> Result<Duration, Failure> {
    use ::underway::{Job, To};
    let pool = pool(wish).await?;
    ::underway::run_migrations(&pool).await?;
    let job = Job::builder()
        .step(|_context, _order: Order| async move {
            RAN.fetch_add(1, Ordering::Relaxed);
            To::done()
        })
        .name("order")
        .pool(pool.clone())
        .build()
        .await?;
    for first in (0..wish.jobs).step_by(1_000) {
        let mut transaction = pool.begin().await?;
        for order in first..wish.jobs.min(first + 1_000) {
            job.enqueue_using(&mut *transaction, &Order { order })
                .await?;
        }
        transaction.commit().await?;
    }
    let mut worker = job.worker();
    worker.set_concurrency_limit(wish.concurrency);
    let done = finished(
        wish,
        &pool,
        "select count(*) from underway.task where state <> 'succeeded'",
    );
    tokio::select! {
        end = worker.run() => Err(format!("the worker has ended: {end:?}").into()),
        took = done => took,
    }
}

// === apalis ===

async fn handle(_order: usize) -> Result<(), ::apalis::prelude::BoxDynError> {
    RAN.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn apalis(wish: &Wish) -> Result<Duration, Failure> {
    use ::apalis::prelude::*;
    use apalis_postgres::{Config, PostgresStorage};
    let pool = apalis_postgres::PgPool::connect(&wish.database).await?;
    PostgresStorage::setup(&pool).await?;
    let config = Config::default()
        .queue("order")
        .batch_size(wish.concurrency.max(100));
    let mut backend = PostgresStorage::new(&pool).with_config(config);
    let jobs = wish.jobs;
    for first in (0..jobs).step_by(1_000) {
        let mut items = futures::stream::iter(
            (first..jobs.min(first + 1_000)).map(|order| TaskBuilder::new(order).build()),
        );
        backend.push_all(&mut items).await?;
    }
    let worker = WorkerBuilder::new("orders")
        .backend(backend)
        .concurrency(wish.concurrency)
        .build(handle);
    let own = self::pool(wish).await?;
    let done = finished(
        wish,
        &own,
        "select count(*) from apalis.jobs where status <> 'Done'",
    );
    tokio::select! {
        end = worker.run() => Err(format!("the worker has ended: {end:?}").into()),
        took = done => took,
    }
}

/// Its `setup` turns off the waits for the disk, on the connection that it uses. The connections of
/// the jobs wait for it, as those of the other systems do.
async fn apalis_sqlite(wish: &Wish) -> Result<Duration, Failure> {
    use ::apalis::prelude::*;
    use ::apalis_sqlite::{Config, SqliteConnectOptions, SqlitePoolOptions, SqliteStorage};
    let options = || {
        SqliteConnectOptions::new()
            .filename(&wish.database)
            .create_if_missing(true)
            .pragma("journal_mode", "WAL")
            .pragma("synchronous", "FULL")
            .busy_timeout(Duration::from_secs(60))
    };
    let setup = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options())
        .await?;
    SqliteStorage::setup(&setup).await?;
    setup.close().await;
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .connect_with(options())
        .await?;
    let config = Config::default()
        .queue("order")
        .batch_size(wish.concurrency.max(100));
    let mut backend = SqliteStorage::new(&pool).with_config(config);
    for first in (0..wish.jobs).step_by(1_000) {
        let last = wish.jobs.min(first + 1_000);
        let mut items =
            futures::stream::iter((first..last).map(|order| TaskBuilder::new(order).build()));
        backend.push_all(&mut items).await?;
    }
    let worker = WorkerBuilder::new("orders")
        .backend(backend)
        .concurrency(wish.concurrency)
        .build(handle);
    let own = SqlitePoolOptions::new().connect_with(options()).await?;
    let done = finished_on(wish, async || {
        let left = "select count(*) from jobs where status <> 'Done'";
        let row = sqlx_of_apalis::query(left).fetch_one(&own).await?;
        Ok(sqlx_of_apalis::Row::try_get(&row, 0)?)
    });
    tokio::select! {
        end = worker.run() => Err(format!("the worker has ended: {end:?}").into()),
        took = done => took,
    }
}
