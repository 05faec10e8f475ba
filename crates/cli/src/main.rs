//! The command `tourbillon`: looks after durable timers, and shows locks.
//!
//! | file | content |
//! |---|---|
//! | `args.rs` | the command line |
//! | `commands.rs` | what each command does |
//! | `watch.rs` | the table that is drawn again and again |
//! | `stores.rs` | how a store is opened |
//! | `failure.rs` | how a command ends: texts and exit codes |
//! | `times.rs` | times and spans, as people type and read them |
//! | `show.rs` | answers of the store as tables and as JSON |
//! | `table.rs` | rows in columns, and text that can't move a cursor |

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod show;
mod stores;
mod table;
mod times;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;
use crate::failure::Failure;

fn main() -> ExitCode {
    match commands::run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has read enough.
        Err(Failure::Pipe) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tourbillon: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
