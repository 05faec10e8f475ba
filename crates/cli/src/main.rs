//! The command `tourbillon`: looks after durable timers, and shows locks.
//!
//! | file | content |
//! |---|---|
//! | `args.rs` | the command line |
//! | `commands.rs` | what each command does |
//! | `serve.rs` | the page |
//! | `watch.rs` | the table that is drawn again and again |
//! | `stores.rs` | how a store is opened |
//! | `failure.rs` | how a command ends: texts and exit codes |
//! | `show.rs` | answers of the store as tables |
//! | `table.rs` | rows in columns, and text that can't move a cursor |

#![forbid(unsafe_code)]

mod args;
mod commands;
mod failure;
mod serve;
mod show;
mod stores;
mod table;
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
