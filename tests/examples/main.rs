//! The examples: what each of them prints, and the parts of the program `sessions`, which are
//! modules here, under the names that they have there.

mod arguments;
mod outputs;
mod sessions;

#[path = "../../dev/sessions/about.rs"]
mod about;
#[path = "../../dev/sessions/app.rs"]
mod app;
#[path = "../../dev/sessions/balance.rs"]
mod balance;
#[path = "../../dev/sessions/cli.rs"]
mod cli;
#[path = "../../dev/sessions/make_log/generate.rs"]
mod generate;
#[path = "../../dev/sessions/lateness.rs"]
mod lateness;
#[path = "../../dev/sessions/live.rs"]
mod live;
#[path = "../../dev/sessions/log.rs"]
mod log;
#[path = "../../dev/sessions/progress.rs"]
mod progress;
#[path = "../../dev/sessions/replay.rs"]
mod replay;
#[path = "../../dev/sessions/rng.rs"]
mod rng;
#[path = "../../dev/sessions/terminal.rs"]
mod terminal;
#[path = "../../dev/sessions/zipf.rs"]
mod zipf;
