//! Two holders compete for one lock. The lease is renewed while its holder lives. When the holder
//! is killed, the other one takes over with a higher token, after the rest of the lease. At the end
//! the program checks that two holders never relied on the lock at the same time.
//!
//! ```sh
//! cargo run --release -p tourbillon-leases --example lock_watchdog
//! cargo run --release -p tourbillon-leases --example lock_watchdog --features redis -- \
//!     --redis redis://127.0.0.1/
//! ```
//!
//! `--help` lists the options.
//!
//! | file | what |
//! |---|---|
//! | `holder.rs` | what a user of locks writes: acquire, work while the lock is held, release |
//! | `cable.rs` | the connection to the store, which can be cut |
//! | `contest.rs` | the rounds |
//! | `ledger.rs` | which holder relied on the lock, and when: overlaps |
//! | `threads.rs`, `processes.rs`, `wire.rs` | holders as threads, and as processes |
//! | `app.rs`, `cli.rs` | from arguments to exit code |

mod app;
mod cable;
mod cli;
mod contest;
mod holder;
mod ledger;
#[cfg(feature = "redis")]
mod processes;
mod threads;
#[cfg(feature = "redis")]
mod wire;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let console = app::Console {
        out: &mut io::stdout(),
        err: &mut io::stderr(),
    };
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let program = std::env::current_exe().map_or(name, Into::into);
    ExitCode::from(app::run(&program, args, console))
}
