//! The report as a document: Markdown for the repository, made by the program so that no figure is
//! copied by hand.

use crate::report::{LEGEND, Report, Row};
use crate::{tables, targets, workloads};

/// All of it.
pub(crate) fn of(report: &Report) -> String {
    let mut text = String::from(
        "# Figures\n\n\
         Made by the command below, in the tree of the commit below; the figures of every round are in the \
         JSON beside.\n\n",
    );
    text += LEGEND;
    text.push('\n');
    for (name, value) in report.circumstances() {
        text += &format!("- {name}: {value}\n");
    }
    for failure in &report.failures {
        text += &format!("- **failed**: {failure}\n");
    }
    let standings = targets::standings(report);
    if !standings.is_empty() {
        text += "\n## Targets\n\n";
        text += &tables::all(report, &standings);
    }
    for workload in workloads::ALL {
        let rows = report.rows(workload.name);
        if rows.is_empty() {
            continue;
        }
        text += &format!("\n## {}: {}\n\n", workload.name, workload.about);
        text += &line(Row::HEAD);
        text += "|---|---|--:|--:|--:|---|\n";
        for row in &rows {
            text += &line(row.cells());
        }
    }
    text
}

fn line(cells: [&str; 6]) -> String {
    format!("| {} |\n", cells.join(" | "))
}
