//! The benchmark program: keyed timers of this crate and of its peers, on the same work, in one
//! run.
//!
//! ```text
//! parent                                        child: one system, one fill, a process of its own
//!   starts a child per system and size  ----->    fills, says how long it took and what it weighs
//!   waits until the machine is calm
//!   ping-pong
//!   asks one child after the other      ----->    the work
//!   ping-pong                           <-----    figure, what others did on the machine
//!   repeats what was disturbed
//! ```
//!
//! Modules point one way. `run` lets `systems` do `workloads` and makes rows of what it finds
//! out. `figures` reads rows, and makes tables, plots and verdicts of them.
//!
//! A system is a file in `systems` and a line in its table; a workload is a file in `workloads`, a
//! line in its table and an arm where it is served.

#[macro_use]
#[path = "../../dev/xtask/src/say.rs"]
mod say;

mod child;
mod cli;
mod figures;
mod foreign;
mod machine;
mod mode;
mod pingpong;
mod recorder;
mod run;
mod servers;
mod system;
mod systems;
mod wire;
mod workload;
mod workloads;

use std::process::ExitCode;

/// For runs that ask what another allocator changes.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use cli::Command;

/// Lets somebody listen to spans, here and in the processes that this one starts.
#[cfg(feature = "tracing")]
fn listen() -> Result<(), String> {
    use tracing_subscriber::util::SubscriberInitExt;
    match std::env::var("BENCHES_SPANS").as_deref() {
        Err(_) => Ok(()),
        Ok("nobody") => Nobody.try_init(),
        Ok("registry") => tracing_subscriber::registry().try_init(),
        Ok("fmt") => tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
            .with_writer(std::io::sink)
            .finish()
            .try_init(),
        Ok(other) => {
            let all = "`nobody`, `registry` or `fmt`";
            return Err(format!("BENCHES_SPANS is {all}, not `{other}`"));
        }
    }
    .map_err(|error| error.to_string())
}

/// Is told of all spans, and does nothing with them: what is left is what the crate does.
#[cfg(feature = "tracing")]
struct Nobody;

#[cfg(feature = "tracing")]
impl tracing::Subscriber for Nobody {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

fn main() -> ExitCode {
    #[cfg(feature = "tracing")]
    if let Err(fault) = listen() {
        complain!("benches: {fault}");
        return ExitCode::from(2);
    }
    if let Some(code) = servers::other() {
        return code;
    }
    let outcome = match cli::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => {
            say!("{}", cli::help().trim_end());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Run(options)) => run::run(&options),
        Ok(Command::Serve(options)) => {
            servers::run(options.form, &options.only, options.peers, &options.made)
        }
        Ok(Command::Show(rows, made)) => figures::show(&rows, &made),
        Ok(Command::Keep) => figures::remake(),
        Ok(Command::Modes(time, borders)) => run::modes(time, borders),
        Ok(Command::Child(order)) => systems::serve(&order),
        Ok(Command::Drive(words)) => foreign::drive(&words),
        Err(fault) => {
            complain!("benches: {fault}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("benches: {error}");
            ExitCode::FAILURE
        }
    }
}
