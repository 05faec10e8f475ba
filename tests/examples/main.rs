//! The examples: what each of their programs prints, and the parts of `sessions` and `request_timeouts`.
//!
//! The parts of the two examples are modules here, under the names that they have there.

mod arguments;
mod request_timeouts;
mod sessions;

#[path = "../../examples/common/about.rs"]
mod about;
#[path = "../../examples/sessions/app.rs"]
mod app;
#[path = "../../examples/sessions/balance.rs"]
mod balance;
#[path = "../../examples/sessions/cli.rs"]
mod cli;
#[path = "../../examples/request_timeouts/client.rs"]
mod client;
#[path = "../../examples/make_log/generate.rs"]
mod generate;
#[path = "../../examples/sessions/lateness.rs"]
mod lateness;
#[path = "../../examples/sessions/live.rs"]
mod live;
#[path = "../../examples/sessions/log.rs"]
mod log;
#[path = "../../examples/sessions/progress.rs"]
mod progress;
#[path = "../../examples/sessions/replay.rs"]
mod replay;
#[path = "../../examples/sessions/rng.rs"]
mod rng;
#[path = "../../examples/sessions/terminal.rs"]
mod terminal;
#[path = "../../examples/sessions/zipf.rs"]
mod zipf;
