//! Two holders compete for one lock. The lease is renewed while its holder lives. When the holder
//! is killed, the other one takes over with a higher token, after the rest of the lease. At the end
//! the program checks that two holders never relied on the lock at the same time.
//!
//! ```sh
//! cargo run --release -p chaos --bin locks
//! cargo run --release -p chaos --bin locks -- --redis redis://127.0.0.1/
//! cargo run --release -p chaos --bin locks -- --postgres postgres://postgres@localhost/test
//! ```
//!
//! | file | what |
//! |---|---|
//! | `holder.rs` | what a user of locks writes: acquire, work while the lock is held, release |
//! | `cable.rs` | the connection to the store, which can be cut |
//! | `contest.rs` | the rounds |
//! | `server.rs` | the store of holders that are processes |

#[macro_use]
#[path = "../../../xtask/src/say.rs"]
mod say;

mod cable;
mod contest;
mod holder;
mod server;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use chaos::command_line::{self, Stop, Values};
use chaos::crew;
use tourbillon::Clock;
use tourbillon_leases::{LeaseStore, MemoryStore, StoreError};

use contest::Contest;
use holder::{Millis, Order};
use server::Server;

const HELP: &str = "\
Two holders fight for one lock; who holds it is killed, and the other takes over.

Usage:
  locks [OPTIONS]

Options:
  --rounds N      how many times the lock changes hands, 1 to 1000 (default: 14); every fourth time
                  it is given back, in the others its holder is killed
  --lease MS      how long a lease is, 100 to 10000 (default: 500)
  --redis URL     on this Redis server, with holders that are processes; without it on the embedded
                  store, with holders that are threads
  --postgres URL  the same in this PostgreSQL database, in the schema tourbillon_example
  --sabotage      holders go on when they have lost the lock, to show that this is noticed
  -h, --help      this text
  -V, --version   the version

The last line on stdout is
  rounds N takeovers N overlaps N
An overlap: a holder's is_held() said yes when the next holder had the lock already.

Exit code: 0 if all went well, 1 if there was an overlap or a takeover failed, 2 if the command line
is at fault or there is no server.
";

/// A running server answers within this time.
const LIMIT: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Eq, Debug)]
struct Options {
    rounds: u64,
    lease: Duration,
    server: Option<Server>,
    sabotage: bool,
}

fn main() -> ExitCode {
    let held = crew::serve(|order: Order, orders, say| {
        let server = order.server.as_ref();
        let server = server.ok_or_else(|| std::io::Error::other("an order without a server"))?;
        let store = server.open(order.lease).map_err(std::io::Error::other)?;
        holder::run(&order, store, orders, say)
    });
    held.unwrap_or_else(|| {
        let options = Options {
            rounds: 14,
            lease: Duration::from_millis(500),
            server: None,
            sabotage: false,
        };
        command_line::run("locks", HELP, options, option, |options| run(&options))
    })
}

fn option(options: &mut Options, name: &str, values: &mut Values) -> Result<bool, String> {
    match name {
        "--rounds" => options.rounds = values.number(1..=1_000)?,
        "--lease" => options.lease = Duration::from_millis(values.number(100..=10_000)?),
        "--redis" => options.server = Some(Server::Redis(values.text()?)),
        "--postgres" => options.server = Some(Server::Postgres(values.text()?)),
        "--sabotage" => options.sabotage = true,
        _ => return Ok(false),
    }
    Ok(true)
}

fn run(options: &Options) -> Result<(), Stop> {
    let threads = match &options.server {
        Some(server) => {
            wait_for_server(server, options.lease)?;
            None
        }
        None => {
            let store = MemoryStore::with_clock(Clock::boottime());
            Some(Arc::new(store) as Arc<dyn LeaseStore>)
        }
    };
    let what = match options.server {
        Some(Server::Redis(_)) => "two processes fight for one lock on a Redis server",
        Some(Server::Postgres(_)) => "two processes fight for one lock in a PostgreSQL database",
        None => "two threads fight for one lock on the embedded store",
    };
    say!(
        "{what}: leases of {}, {} rounds",
        Millis(options.lease),
        options.rounds
    );
    let order = Order {
        name: String::new(),
        // Two runs at the same time use different locks.
        lock: format!("lock-{}", std::process::id()),
        lease: options.lease,
        server: options.server.clone(),
        careless: options.sabotage,
    };
    let verdict = Contest::new(order, threads).run(options.rounds)?;
    verdict.tell();
    if verdict.is_well() {
        Ok(())
    } else {
        Err(Stop::Found)
    }
}

/// Checks the server, and waits while it grants nothing yet.
fn wait_for_server(server: &Server, lease: Duration) -> Result<(), Stop> {
    // The judge compares times of different processes, so they need a common clock.
    if !Clock::boottime().counts_suspend() {
        let fault = "there is no clock here that processes share, so overlaps can't be seen";
        return Err(Stop::Unusable(fault.to_owned()));
    }
    loop {
        match server.check(lease, LIMIT).map_err(Stop::Unusable)? {
            Ok(()) => return Ok(()),
            Err(StoreError::Restarted { wait } | StoreError::Emptied { wait, .. }) => {
                say!(
                    "the server has just started, or is new to this, and grants nothing for another {}, \
                     since holders may still rely on earlier leases",
                    Millis(wait)
                );
                thread::sleep(wait);
            }
            Err(error) => return Err(Stop::Unusable(format!("no server to use: {error}"))),
        }
    }
}
