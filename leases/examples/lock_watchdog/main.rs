//! Two holders fight for one lock. Its lease is renewed for as long as the one that has it lives; when
//! that one is killed, the other takes over with a higher token, after the rest of the lease. At the end
//! it is checked that never two of them believed to hold it at one time.
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
//! | `holder.rs` | what a user of locks writes: acquire, work while it is held, give back |
//! | `cable.rs` | the way to the store, which can be cut |
//! | `contest.rs` | the rounds |
//! | `ledger.rs` | who believed what, and when: overlaps |
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
