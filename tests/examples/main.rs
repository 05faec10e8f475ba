//! The examples: what each of their programs prints, and the parts of `sessions` and `request_timeouts`.
//!
//! The parts of the two examples are modules here, under the names that they have there.

mod arguments;
mod request_timeouts;
mod sessions;

#[path = "../../examples/common/about.rs"]
mod about;
#[path = "../../sessions/app.rs"]
mod app;
#[path = "../../sessions/balance.rs"]
mod balance;
#[path = "../../sessions/cli.rs"]
mod cli;
#[path = "../../examples/request_timeouts/client.rs"]
mod client;
#[path = "../../examples/make_log/generate.rs"]
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
#[path = "../../examples/common/rng.rs"]
mod rng;
#[path = "../../sessions/terminal.rs"]
mod terminal;
#[path = "../../sessions/zipf.rs"]
mod zipf;
