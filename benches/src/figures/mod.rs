//! Makes tables, verdicts on targets, a model and plots out of rows.
//!
//! ```text
//! row      the one format: a run and its rows
//! targets  rows -> where each target stands        model  rows -> a table
//! table    rows -> text and Markdown               plots  rows -> SVG
//! store    files of rows, and the documents and plots of the repository
//! ```
//!
//! Nothing here knows how rows were measured.

mod model;
mod plots;
pub(crate) mod row;
mod store;
mod table;
mod targets;

use std::io;
use std::path::Path;

pub(crate) use row::{Row, Run, short};
pub(crate) use store::{Made, remake};

/// Prints the table of a run.
pub(crate) fn print(run: &Run) {
    say!("{}", table::text(run).trim_end());
}

/// Prints the document of an earlier run, and draws its plots.
pub(crate) fn show(rows: &Path, made: &Made) -> io::Result<()> {
    let run = store::read(rows)?;
    say!("{}", table::document(&run).trim_end());
    made.publish(&run)
}
