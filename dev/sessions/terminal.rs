//! The width and the interrupt key of a real terminal.

use std::env;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;
use terminal_size::{Width, terminal_size};

/// The width if it is unknown.
const USUAL: usize = 80;

/// Returns the width of the terminal from `COLUMNS`, or else from the terminal itself.
pub(crate) fn columns() -> usize {
    let told = env::var("COLUMNS").ok();
    told.and_then(|columns| columns.parse().ok())
        .filter(|&columns| columns > 0)
        .or_else(|| terminal_size().map(|(Width(columns), _)| columns.into()))
        .unwrap_or(USUAL)
}

/// Makes an interrupt set the flag from now on. If the flag is set already, it ends the program.
pub(crate) fn interrupts() -> io::Result<Arc<AtomicBool>> {
    asked(&[SIGINT])
}

/// The same for these signals.
pub(crate) fn asked(signals: &[i32]) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // The order matters: the first handler reads the flag before the second handler sets it.
        // The exit code is the one that shells report for a program that was ended by the signal.
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    Ok(asked)
}
