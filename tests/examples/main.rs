//! The examples: what each of them prints, and the parts of the program `sessions`, which are modules here, under
//! the names that they have there.

mod arguments;
mod outputs;
mod sessions;

#[path = "../../sessions/about.rs"]
mod about;
#[path = "../../sessions/app.rs"]
mod app;
#[path = "../../sessions/balance.rs"]
mod balance;
#[path = "../../sessions/cli.rs"]
mod cli;
#[path = "../../sessions/make_log/generate.rs"]
mod generate;
#[path = "../../sessions/lateness.rs"]
mod lateness;
#[path = "../../sessions/live.rs"]
mod live;
#[path = "../../sessions/log.rs"]
mod log;
#[path = "../../sessions/progress.rs"]
mod progress;
#[path = "../../sessions/replay.rs"]
mod replay;
#[path = "../../sessions/rng.rs"]
mod rng;
#[path = "../../sessions/terminal.rs"]
mod terminal;
#[path = "../../sessions/zipf.rs"]
mod zipf;
