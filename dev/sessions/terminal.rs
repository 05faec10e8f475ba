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

/// The exit code that shells report for a program that was ended by an interrupt.
const INTERRUPTED: i32 = 128 + SIGINT;

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
    let interrupted = Arc::new(AtomicBool::new(false));
    // The order matters: the first handler reads the flag before the second handler sets it.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupted))?;
    flag::register(SIGINT, Arc::clone(&interrupted))?;
    Ok(interrupted)
}
