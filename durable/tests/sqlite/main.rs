//! The store in a file of SQLite.

mod folder;
mod same;
