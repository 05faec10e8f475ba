//! Instructions per call, by the name of the path.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::CALLS;

/// The mean number of instructions per call of each path.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Counts(pub BTreeMap<String, f64>);

/// A report or a baseline that can't be read, with the line that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "can't read counts in this line: {}", self.0)
    }
}

impl std::error::Error for Unreadable {}

impl Counts {
    /// Reads what the harness prints with `--output-format=json`: one object per line and path.
    ///
    /// # Errors
    ///
    /// If a line has another form, if no line has a count, or if two have the same name.
    pub fn from_report(report: &str) -> Result<Self, Unreadable> {
        let mut counts = BTreeMap::new();
        for line in report.lines().filter(|line| !line.trim().is_empty()) {
            let unreadable = || Unreadable(line.chars().take(200).collect());
            let summary: Value = serde_json::from_str(line).map_err(|_| unreadable())?;
            let (name, total) = path(&summary).ok_or_else(unreadable)?;
            if counts.insert(name, total / f64::from(CALLS)).is_some() {
                return Err(unreadable());
            }
        }
        if counts.is_empty() {
            return Err(Unreadable("(there is no line)".to_owned()));
        }
        Ok(Counts(counts))
    }

    /// Reads lines of the form `name count`. A line that begins with `#` is a comment.
    ///
    /// # Errors
    ///
    /// If a line has another form.
    pub fn from_text(text: &str) -> Result<Self, Unreadable> {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let count = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            let count = count.trim().parse::<f64>().ok()?;
            (count.is_finite() && count > 0.0).then(|| (name.to_owned(), count))
        };
        let counts = lines.map(|line| count(line).ok_or_else(|| Unreadable(line.to_owned())));
        Ok(Counts(counts.collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.0 {
            writeln!(f, "{name} {count:.3}")?;
        }
        Ok(())
    }
}

/// `group::function`, or `group::function::id` if the function has several benches, and its count.
fn path(summary: &Value) -> Option<(String, f64)> {
    let group = summary["group"].as_str()?;
    let function = summary["function_name"].as_str()?;
    let name = match summary["id"].as_str() {
        None | Some("per_call") => format!("{group}::{function}"),
        Some(id) => format!("{group}::{function}::{id}"),
    };
    let mut profiles = summary["profiles"].as_array()?.iter();
    let callgrind = profiles.find(|profile| profile["tool"] == "Callgrind")?;
    let count = &callgrind["data"]["total"]["metrics"]["Ir"]["values"]["new"];
    Some((name, count.as_f64()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(group: &str, function: &str, id: &str, count: u64) -> String {
        let metrics = format!(r#"{{"Ir":{{"values":{{"new":{count},"old":7}}}}}}"#);
        format!(
            r#"{{"group":"{group}","function_name":"{function}","id":"{id}","profiles":[
               {{"tool":"Callgrind","data":{{"total":{{"metrics":{metrics}}}}}}}]}}"#
        )
        .replace('\n', "")
    }

    #[test]
    fn a_report_gives_the_count_per_call_of_each_path() {
        let report = [
            line("handle", "schedule", "per_call", 751_744),
            String::new(),
            line("handle", "collect", "inline", 2_000_000),
        ];
        let counts = Counts::from_report(&report.join("\n")).unwrap();
        let counts: Vec<_> = counts.0.into_iter().collect();
        let inline = ("handle::collect::inline".to_owned(), 2_000.0);
        assert_eq!(counts, [inline, ("handle::schedule".to_owned(), 751.744)]);
    }

    #[test]
    fn a_report_of_another_form_is_an_error() {
        let good = line("handle", "schedule", "per_call", 751_744);
        let twice = format!("{good}\n{good}");
        let renamed = good.replace("Ir", "Instructions");
        for report in ["", "\n", "no JSON", "{}", &twice, &renamed] {
            assert!(Counts::from_report(report).is_err(), "{report}");
        }
    }

    #[test]
    fn counts_are_read_as_they_were_written() {
        let text = "# about\n\nhandle::schedule 751.744\nwheel::advance 0.5\n";
        let counts = Counts::from_text(text).unwrap();
        assert_eq!(counts.0.len(), 2);
        assert_eq!(Counts::from_text(&counts.to_string()), Ok(counts));
    }

    #[test]
    fn a_baseline_of_another_form_is_an_error() {
        for text in ["handle::schedule", "a b", "a -1", "a NaN", "a 1 2"] {
            assert_eq!(Counts::from_text(text), Err(Unreadable(text.to_owned())));
        }
    }
}
