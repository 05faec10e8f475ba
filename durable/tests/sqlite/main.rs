//! The store in a file of SQLite.

mod files;
mod folder;
mod same;
mod within;
