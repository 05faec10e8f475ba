//! The store in a file of SQLite.

mod files;
mod folder;
mod locks;
mod processes;
mod same;
mod within;
