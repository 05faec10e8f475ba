//! Orders have to be paid in time, or they are cancelled. Shops create orders and take payments;
//! each order has a durable timer that cancels it. Worker processes run these timers. They are
//! killed on the way and started again. At the end the program counts in the tables of the database
//! whether each order was paid or cancelled, and never both.
//!
//! ```sh
//! cargo run --release -p chaos --bin orders
//! cargo run --release -p chaos --bin orders -- --postgres postgres://postgres@localhost/test
//! ```
//!
//! | file | what |
//! |---|---|
//! | `sqlite.rs` | what a user of durable timers writes: an order with its timer, a payment, the handler |
//! | `postgres.rs` | the same on a PostgreSQL server |
//! | `database.rs` | what the program asks of a database |
//! | `shop.rs` | threads that create orders and pay most of them in time |
//! | `worker.rs` | the processes of the workers, which are killed and started |
//! | `web.rs` | the page of a run, with a button that kills a worker |
//! | `run.rs`, `screen.rs` | the run from its first order to the count at its end; the live line |

#[macro_use]
#[path = "../../../xtask/src/say.rs"]
mod say;

mod database;
mod postgres;
mod run;
mod screen;
mod shop;
mod sqlite;
#[path = "../../../sessions/terminal.rs"]
#[allow(dead_code, reason = "this program needs a part of it")]
mod terminal;
mod web;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io, process};

use chaos::command_line::{self, Stop, Values};
use chaos::crew;

use crate::database::Place;

const HELP: &str = "\
Orders are paid in time, or their durable timers cancel them, while worker processes are killed.

Usage:
  orders [OPTIONS]

Options:
  --seconds N            how long the shops take orders, 1 to 600 (default: 10, with --web 600);
                         the run ends a few seconds later, when the last order is paid or cancelled
  --orders-per-second N  how many orders all shops create, 1 to 2000 (default: 200)
  --workers N            the number of worker processes, 1 to 16 (default: 3); one of them is killed
                         every second or two, and started again
  --file PATH            the SQLite file (default: one in a temporary folder, which is removed);
                         orders that an earlier run left in it are ended, too
  --postgres URL         a PostgreSQL server instead; its schema order_timeout is dropped and
                         created anew
  --web                  a page on 127.0.0.1, whose address is told: the timers, and a button that
                         kills a worker. Nobody else kills any then
  --sabotage             payments leave the timers alone and handlers do not poll payments, to
                         show that this is noticed
  -h, --help             this text
  -V, --version          the version

The last line on stdout is
  orders N paid N cancelled N both N neither N
counted in the tables of the database. Both: orders that were paid and cancelled. Neither: orders
that were neither.

SIGTERM and SIGINT end the shops; the last orders are still paid or cancelled. The second signal
ends the program at once, and its workers with it.

Exit code: 0 if each order was either paid or cancelled, and once; 1 if not, or if the run failed;
2 if the command line is at fault.
";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    pub(crate) seconds: Option<u64>,
    pub(crate) orders_per_second: u32,
    pub(crate) workers: usize,
    pub(crate) place: Option<Place>,
    pub(crate) sabotage: bool,
    pub(crate) web: bool,
}

impl Options {
    pub(crate) fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.web { 600 } else { 10 })
    }
}

fn main() -> ExitCode {
    let worked = crew::serve(worker::run);
    worked.unwrap_or_else(|| {
        let options = Options {
            seconds: None,
            orders_per_second: 200,
            workers: 3,
            place: None,
            sabotage: false,
            web: false,
        };
        command_line::run("orders", HELP, options, option, |options| run(&options))
    })
}

fn option(options: &mut Options, name: &str, values: &mut Values) -> Result<bool, String> {
    let place = match name {
        "--seconds" => {
            options.seconds = Some(values.number(1..=600)?);
            None
        }
        "--orders-per-second" => {
            options.orders_per_second = values.number(1..=2_000)? as u32;
            None
        }
        "--workers" => {
            options.workers = values.number(1..=16)? as usize;
            None
        }
        "--web" => {
            options.web = true;
            None
        }
        "--sabotage" => {
            options.sabotage = true;
            None
        }
        "--file" => match values.text()? {
            path if path.is_empty() => {
                return Err("--file takes the path of a file, not \"\"".to_owned());
            }
            path => Some(Place::File(PathBuf::from(path))),
        },
        "--postgres" => Some(Place::Server(values.text()?)),
        _ => return Ok(false),
    };
    if place.is_some() && options.place.is_some() {
        return Err("--file and --postgres exclude each other".to_owned());
    }
    options.place = place.or(options.place.take());
    Ok(true)
}

/// Runs it on the database that the options name, or on a file in a temporary folder.
fn run(options: &Options) -> Result<(), Stop> {
    let failed = |error: io::Error| Stop::Failed(format!("no temporary folder: {error}"));
    let folder = match options.place {
        Some(_) => None,
        None => Some(Folder::create().map_err(failed)?),
    };
    let place = match (&options.place, &folder) {
        (Some(place), _) => place.clone(),
        (None, Some(folder)) => Place::File(folder.0.join("orders.db")),
        (None, None) => unreachable!("a folder was made"),
    };
    let seconds = options.seconds();
    let Options {
        orders_per_second,
        workers,
        ..
    } = options;
    let database = place.open(options.sabotage);
    say!(
        "{orders_per_second} orders a second for {seconds} s, {workers} worker processes, {}",
        database.describe()
    );
    let audit = run::run(&place, database.as_ref(), options).map_err(Stop::Failed)?;
    if audit.doubled > 0 {
        complain!(
            "orders: {} payments or cancellations came twice",
            audit.doubled
        );
    }
    say!("{audit}");
    if audit.is_fine() {
        Ok(())
    } else {
        Err(Stop::Found)
    }
}

/// A folder that is removed with all that is in it.
struct Folder(PathBuf);

impl Folder {
    fn create() -> io::Result<Folder> {
        let path = env::temp_dir().join(format!("orders-{}", process::id()));
        // One of an earlier process with the same number, which was killed.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
