//! Whose threads run what needs no connection.

use tourbillon::{Runtime, TimerBuilder};

/// What a builder was told about it.
#[derive(Clone, Debug, Default)]
pub(crate) enum RunsOn {
    /// Nothing: the runtime of the process.
    #[default]
    Usual,
    Runtime(Runtime),
    Own,
}

impl RunsOn {
    /// Tells the builder of a timer.
    pub(crate) fn tell(&self, builder: TimerBuilder) -> TimerBuilder {
        match self {
            RunsOn::Usual => builder,
            RunsOn::Runtime(runtime) => builder.runtime(runtime),
            RunsOn::Own => builder.own_threads(),
        }
    }
}
