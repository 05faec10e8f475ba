//! What a candidate reports: its changes, and how its terms end.

use std::fmt;

use crate::keep_alive::Loss;
use crate::store::StoreError;

/// How a term ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TermEnd {
    /// It was ended, or its work has returned.
    Completed,
    /// The candidate has [resigned](crate::Election::resign).
    Resigned,
    /// The lease was lost, so another candidate may lead since then.
    Lost(Loss),
}

impl fmt::Display for TermEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TermEnd::Completed => f.write_str("ended with its work"),
            TermEnd::Resigned => f.write_str("ended by a resignation"),
            TermEnd::Lost(loss) => write!(f, "lost its lease: {loss}"),
        }
    }
}

/// A change that a candidate reports to its [callback](crate::Election::on_change).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The candidate leads.
    #[non_exhaustive]
    Elected {
        /// The token of the term, which is greater than that of every earlier term of the election.
        token: u64,
    },
    /// The candidate does not lead any more, and its work has ended.
    #[non_exhaustive]
    Ended {
        /// The token of the term.
        token: u64,
        /// How it ended.
        end: TermEnd,
    },
    /// The store has refused a candidate that [serves](crate::Election::serve). It will try again. An
    /// error that repeats is reported once.
    #[non_exhaustive]
    Failed {
        /// How the store has failed.
        error: StoreError,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Elected { token } => write!(f, "elected with token {token}"),
            Change::Ended { token, end } => write!(f, "the term with token {token} has {end}"),
            Change::Failed { error } => write!(f, "not elected, and tries again: {error}"),
        }
    }
}
