//! Peers in other languages: Netty and the JDK's executor in a JVM, and Go's timers.
//!
//! ```text
//! parent  <- wire.rs ->  our child: ping-pong, what others do   <- foreign/wire.rs ->  driver: the work
//! ```
//!
//! A driver is a program of a few files in `drivers`, compiled on first use. It has the workloads
//! once more in its own language and reads the clock itself, so what passes between the processes
//! is in no figure. Our child stays between the driver and the parent, because it looks at the
//! machine as it does for every other system.

mod build;
#[cfg(test)]
pub(crate) mod remote;
mod serve;
mod wire;

#[cfg(test)]
pub(crate) use build::Trouble;
pub(crate) use build::prepare;
pub(crate) use serve::{drive, serve};

use crate::workload::Form;

/// A peer that a driver stands for.
pub(crate) trait Foreign: 'static {
    const DRIVER: Driver;
}

/// How to get a driver and how to start it.
#[derive(Debug)]
pub(crate) struct Driver {
    /// For command line and tables.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) language: Language,
}

#[derive(Debug)]
pub(crate) enum Language {
    Java {
        /// The class that implements `Library`. Other libraries' classes are not compiled along.
        class: &'static str,
        library: Option<JavaLibrary>,
    },
    Go,
}

/// A library of Java that a package of Debian brings.
#[derive(Debug)]
pub(crate) struct JavaLibrary {
    pub(crate) name: &'static str,
    pub(crate) jar: &'static str,
    pub(crate) package: &'static str,
}

/// Enough for ten million timers and their keys; less than half of it is in use then. Everything
/// else is left to the JVM.
const JAVA_FLAGS: [&str; 1] = ["-Xmx6g"];

/// Workloads that drivers don't have. The bytes per touched session are lost in what a collector
/// leaves. W2t is for comparing locks, and W10 for calls that they have not.
const LEAVES_OUT: [&str; 3] = ["churn", "W2t", "W10"];

/// The variable by which the parent tells how long a JVM warms up, in milliseconds.
pub(crate) const WARM_UP: &str = "BENCHES_WARM_UP_MS";

/// How long a JVM warms up before it says that it is filled. HotSpot compiles a loop with all
/// optimisations after some 0.1 s to 1 s of it, on a thread that takes a core meanwhile; a round of
/// the quick form, in a process of its own, would measure mostly that.
pub(crate) fn warm_up_ms(form: Form) -> &'static str {
    match form {
        Form::Full => "3000",
        Form::Quick => "1000",
        Form::Smoke => "0",
    }
}

impl Driver {
    pub(crate) fn does(workload: &str) -> bool {
        !LEAVES_OUT.contains(&workload)
    }
}
