//! The store in a file of SQLite.

mod files;
mod folder;
mod locks;
mod outages;
mod prefixes;
mod processes;
#[path = "../kit/random.rs"]
mod random;
mod refused;
#[cfg(unix)]
mod replaced;
mod same;
mod schedules;
mod support;
#[path = "../kit/told.rs"]
mod told;
mod within;
