//! How a command ends.

use std::fmt;
use std::io;

use tourbillon_durable::{CallError, StartError, StoreError};

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no such timer, or it can't be done to it now.
    Not(String),
    /// The command line asks for something that can't be.
    Usage(String),
    /// The store can't be reached, or refuses.
    Store(String),
    /// Nobody reads the output any more.
    Pipe,
}

impl Failure {
    /// The exit code. 2 is also that of the parser of the command line.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Not(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Store(_) => 3,
            Failure::Pipe => 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Not(why) | Failure::Usage(why) | Failure::Store(why) => {
                f.write_str(&crate::table::plain(why))
            }
            Failure::Pipe => f.write_str("nobody reads the output"),
        }
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Invalid(invalid) => Failure::Usage(invalid.to_string()),
            error => Failure::Store(error.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::Store(error.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Failure::Store(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Pipe,
            _ => Failure::Store(format!("the output can't be written: {error}")),
        }
    }
}
