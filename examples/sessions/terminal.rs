//! What only a real terminal has: a width, and a key that interrupts.

use std::env;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGINT;
use signal_hook::flag;
use terminal_size::{Width, terminal_size};

/// Where nothing says how wide the terminal is.
const USUAL: usize = 80;

/// What shells report of a program that an interrupt has ended.
const INTERRUPTED: i32 = 128 + SIGINT;

/// The width of the terminal: what `COLUMNS` says, or else the terminal itself.
pub(crate) fn columns() -> usize {
    let told = env::var("COLUMNS").ok();
    told.and_then(|columns| columns.parse().ok())
        .filter(|&columns| columns > 0)
        .or_else(|| terminal_size().map(|(Width(columns), _)| columns.into()))
        .unwrap_or(USUAL)
}

/// From now on an interrupt sets the flag. If the flag is set already, it ends the program.
pub(crate) fn interrupts() -> io::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    // The order matters: the first one looks at the flag before the second one sets it.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&interrupted))?;
    flag::register(SIGINT, Arc::clone(&interrupted))?;
    Ok(interrupted)
}
