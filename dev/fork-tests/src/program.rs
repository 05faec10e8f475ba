//! What the program does for its argument.

use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tourbillon_leases::{BlockingStore, MemoryStore, PostgresStore, RedisStore, SqliteStore};

use crate::{child, core, durable, leases, postgres, redis};

const FORKS: usize = 60;

pub(crate) fn main() -> ExitCode {
    thread::spawn(child::watch);
    let argument = std::env::args().nth(1).unwrap_or_default();
    let wrong = match &*argument {
        // More than a process has runtimes for.
        "core" => of_the_core().or_else(|| core::nested(20)),
        "durable" => durable::without_a_server(FORKS as u64),
        "memory" => in_memory(),
        "no-threads" => without_threads(),
        "sqlite" => in_a_file(),
        "postgres" => postgres::run(FORKS, &std::env::args().nth(2).unwrap_or_default()),
        #[cfg(feature = "etcd")]
        url if url.starts_with("etcd:") => crate::etcd::run(FORKS, url),
        url if url.starts_with("postgres:") => {
            let open = || PostgresStore::open(url).expect("the argument is a URL");
            leases::run(FORKS, &open(), || Ok(open()))
        }
        url => {
            let open = || {
                let store = RedisStore::builder(url).durable().build();
                store.expect("the argument is a URL")
            };
            leases::run(FORKS, &open(), || Ok(open()))
                .or_else(|| redis::amid_calls(FORKS, &open()))
                .or_else(|| redis::amid_driving(FORKS, &open()))
        }
    };
    // That happens once in some hundred copies.
    let without_threads = child::without_threads();
    let few = without_threads <= FORKS / 10;
    let wrong = wrong.or_else(|| {
        (!few).then(|| format!("no thread started in {without_threads} of {FORKS} copies"))
    });
    match wrong {
        None => {
            println!("{FORKS} copies, all as they should be");
            ExitCode::SUCCESS
        }
        Some(wrong) => {
            println!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn of_the_core() -> Option<String> {
    // Nobody else uses them at first, and later four threads do.
    core::run(1, 0).or_else(|| core::run(FORKS as u64 - 1, 4))
}

fn in_memory() -> Option<String> {
    let blocking = || BlockingStore::new(MemoryStore::new());
    leases::run(FORKS, &MemoryStore::new(), || Ok(MemoryStore::new()))
        .or_else(|| leases::run(FORKS, &blocking(), || Ok(blocking())))
        .or_else(|| leases::amid_calls(FORKS))
        .or_else(|| leases::amid_polls(FORKS))
}

fn in_a_file() -> Option<String> {
    let folder = std::env::temp_dir().join(format!("fork-tests-leases-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let open = || SqliteStore::open(folder.join("locks.db"));
    let wrong = leases::run(FORKS, &open().expect("the folder is new"), open);
    let _ = std::fs::remove_dir_all(&folder);
    wrong
}

/// Runs all that needs no server in copies in which no thread starts.
fn without_threads() -> Option<String> {
    child::beside_an_end();
    let starts = child::in_copy(|report| {
        let (tell, told) = channel();
        let started = thread::Builder::new().spawn(move || tell.send(()));
        let told = told.recv_timeout(Duration::from_secs(1));
        let is_stuck = started.is_ok() && told == Err(RecvTimeoutError::Timeout);
        report.check("a thread that does not start", is_stuck, &told);
    });
    starts
        .or_else(of_the_core)
        .or_else(|| durable::without_a_server(FORKS as u64))
        .or_else(in_memory)
        .or_else(in_a_file)
}
