//! Orders have to be paid in time, or they are cancelled. Shops create orders and take payments;
//! each order has a durable timer that cancels it. Worker processes run these timers. They are
//! killed on the way and started again. At the end the program counts in the tables of the database
//! whether each order was paid or cancelled, and never both.
//!
//! ```sh
//! cargo run --release -p tourbillon-durable --example order_timeout
//! cargo run --release -p tourbillon-durable --example order_timeout --features postgres -- \
//!     --postgres postgres://postgres@localhost/test
//! ```
//!
//! `--help` lists the options.
//!
//! | file | what |
//! |---|---|
//! | `sqlite.rs` | what a user of durable timers writes: an order with its timer, a payment, the handler |
//! | `postgres.rs` | the same on a PostgreSQL server |
//! | `database.rs` | what the example asks of a database |
//! | `shop.rs` | threads that create orders and pay most of them in time |
//! | `worker.rs`, `crew.rs` | the process of a worker; the processes, which are killed and started |
//! | `run.rs`, `screen.rs` | the run from its first order to the count at its end; the live line |
//! | `app.rs`, `cli.rs` | from arguments to exit code |

mod app;
mod cli;
mod crew;
mod database;
#[cfg(feature = "postgres")]
mod postgres;
mod run;
mod screen;
mod shop;
mod sqlite;
mod worker;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

fn main() -> ExitCode {
    let console = app::Console {
        out: &mut io::stdout(),
        err: &mut io::stderr(),
        err_is_terminal: io::stderr().is_terminal(),
    };
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let program = std::env::current_exe().map_or(name, Into::into);
    ExitCode::from(app::run(&program, args, console))
}
