//! What is made of rows: tables, verdicts on targets, a model, plots. All of it reads
//! [`row`] and knows nothing of how they were measured.

mod model;
mod plots;
pub(crate) mod row;
mod store;
mod table;
mod targets;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::figures::row::Run;

/// What is to be made of a run, other than what is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// A file for the rows.
    pub(crate) json: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
    /// A folder for the plots.
    pub(crate) plots: Option<PathBuf>,
    /// Documents that get tables of targets, or the model.
    pub(crate) into: Vec<PathBuf>,
}

impl Made {
    /// Looks whether all of it can be written: a run of half an hour should not end with a file
    /// that can't be.
    pub(crate) fn check(&self) -> io::Result<()> {
        for path in &self.into {
            let check = |text: &str| store::check(text).map(|()| text.to_owned());
            changed(path, check)?;
        }
        for path in [&self.json, &self.markdown].into_iter().flatten() {
            let mut file = fs::OpenOptions::new();
            let opened = file.append(true).create(true).open(path);
            opened.map_err(|error| named(&error, path))?;
        }
        if let Some(folder) = &self.plots {
            fs::create_dir_all(folder).map_err(|error| named(&error, folder))?;
        }
        Ok(())
    }

    /// Writes the files, also in the middle of a run.
    pub(crate) fn keep(&self, run: &Run) -> io::Result<()> {
        if let Some(path) = &self.json {
            replace(path, &run.text()?)?;
        }
        if let Some(path) = &self.markdown {
            replace(path, &table::document(run))?;
        }
        Ok(())
    }

    /// Draws, and writes tables into documents.
    pub(crate) fn publish(&self, run: &Run) -> io::Result<()> {
        if let Some(folder) = &self.plots {
            fs::create_dir_all(folder).map_err(|error| named(&error, folder))?;
            for plot in plots::of(run) {
                let path = folder.join(format!("{}.svg", plot.name));
                replace(&path, &plot.svg)?;
                complain!("drew {}", path.display());
            }
        }
        self.rewrite(|text| store::filled(text, run))
    }

    /// Replaces the text of the documents.
    fn rewrite(&self, with: impl Fn(&str) -> Result<String, String>) -> io::Result<()> {
        for path in &self.into {
            replace(path, &changed(path, &with)?)?;
            complain!("wrote {}", path.display());
        }
        Ok(())
    }
}

/// Prints the table of a run.
pub(crate) fn print(run: &Run) -> io::Result<()> {
    say(&table::text(run))
}

/// Prints the document of an earlier run, and makes the rest of it.
pub(crate) fn show(rows: &Path, made: &Made) -> io::Result<()> {
    let run = read(rows)?;
    say(&table::document(&run))?;
    made.publish(&run)
}

/// Prints the model of an earlier run, and writes it into documents.
pub(crate) fn model(rows: &Path, made: &Made) -> io::Result<()> {
    let model = model::of(&read(rows)?).map_err(io::Error::other)?;
    made.rewrite(|text| store::with_model(text, &model))?;
    say(&model)
}

fn read(rows: &Path) -> io::Result<Run> {
    let text = fs::read_to_string(rows).map_err(|error| named(&error, rows))?;
    Run::parse(&text).map_err(|error| named(&io::Error::other(error), rows))
}

/// The changed text of a document.
fn changed(path: &Path, with: impl Fn(&str) -> Result<String, String>) -> io::Result<String> {
    let text = fs::read_to_string(path).map_err(|error| named(&error, path))?;
    with(&text).map_err(|error| named(&io::Error::other(error), path))
}

/// All of it or nothing, whenever the program is interrupted.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    fs::write(&beside, text)
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|error| named(&error, path))
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
