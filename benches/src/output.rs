//! What a run leaves: files, the table, plots; and what earlier files say.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::{Options, Shown};
use crate::machine::Machine;
use crate::mode::{self, Borders};
use crate::report::Report;
use crate::{document, model, pingpong, plots, tables};

/// Writes what there is into the files that were asked for.
pub(crate) fn keep(report: &Report, options: &Options) -> io::Result<()> {
    if let Some(path) = &options.json {
        let mut json = serde_json::to_string_pretty(report)?;
        json.push('\n');
        replace(path, &json)?;
    }
    if let Some(path) = &options.markdown {
        replace(path, &document::of(report))?;
    }
    Ok(())
}

/// All of it or nothing, whenever the program is interrupted.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|error| named(&error, path))
}

/// Prints the document of an earlier run, and draws it.
pub(crate) fn show(shown: &Shown) -> io::Result<()> {
    let report = read(&shown.json)?;
    say(&document::of(&report))?;
    if let Some(folder) = &shown.plots {
        plot(&report, folder)?;
    }
    tables(&report, &shown.into)
}

/// Prints the model of an earlier run, and writes it into documents.
pub(crate) fn model(json: &Path, documents: &[PathBuf]) -> io::Result<()> {
    let model = model::of(&read(json)?).map_err(io::Error::other)?;
    for path in documents {
        rewrite(path, |text| tables::with_model(text, model.clone()))?;
    }
    say(&model)
}

/// Replaces the text of a document.
fn rewrite(path: &Path, with: impl Fn(&str) -> Result<String, String>) -> io::Result<()> {
    let text = std::fs::read_to_string(path).map_err(|error| named(&error, path))?;
    let text = with(&text).map_err(|error| named(&io::Error::other(error), path))?;
    replace(path, &text)?;
    complain!("wrote {}", path.display());
    Ok(())
}

fn read(json: &Path) -> io::Result<Report> {
    let text = std::fs::read_to_string(json).map_err(|error| named(&error, json))?;
    Ok(serde_json::from_str(&text)?)
}

/// Whether all of these documents have places for the tables: a run of half an hour should not end with one
/// that has none.
pub(crate) fn check(documents: &[PathBuf]) -> io::Result<()> {
    for path in documents {
        let text = std::fs::read_to_string(path).map_err(|error| named(&error, path))?;
        tables::check(&text).map_err(|error| named(&io::Error::other(error), path))?;
    }
    Ok(())
}

/// Writes the tables of targets into these documents.
pub(crate) fn tables(report: &Report, documents: &[PathBuf]) -> io::Result<()> {
    for path in documents {
        rewrite(path, |text| tables::filled(text, report))?;
    }
    Ok(())
}

/// Draws what there is into the folder.
pub(crate) fn plot(report: &Report, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder).map_err(|error| named(&error, folder))?;
    for plot in plots::of(report) {
        let path = folder.join(format!("{}.svg", plot.name));
        replace(&path, &plot.svg)?;
        complain!("drew {}", path.display());
    }
    Ok(())
}

/// Prints how long round trips between cores take, again and again for `time`.
pub(crate) fn modes(time: Duration, borders: Borders) -> io::Result<()> {
    let began = Instant::now();
    let mut pings_ns = Vec::new();
    while began.elapsed() < time {
        match pingpong::round_trip_ns() {
            Some(ns) => pings_ns.push(ns),
            None if pings_ns.is_empty() => return Err(io::Error::other("there is one core only")),
            None => (),
        }
    }
    let changes = pings_ns
        .windows(2)
        .filter(|two| borders.mode(two[0]) != borders.mode(two[1]))
        .count();
    say(&format!(
        "{}\n{}\n{} ping-pongs in {:.0} s, {changes} changes of the mode\n{}",
        Machine::here().line(),
        borders.in_words(),
        pings_ns.len(),
        began.elapsed().as_secs_f64(),
        mode::histogram(&pings_ns, borders)
    ))
}

pub(crate) fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()
}

pub(crate) fn named(error: &io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
