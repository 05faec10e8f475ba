//! A strict reader of the text format of OpenMetrics, and of the tables in which the documents list
//! all metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use tourbillon::metrics::{MetricValue, Metrics};

/// Metrics of one name.
#[derive(Debug, Default)]
pub struct Family {
    /// That of a counter is without its suffix.
    pub name: String,
    /// The text of `HELP`.
    pub help: String,
    /// The word of `TYPE`.
    pub kind: String,
    /// The word of `UNIT`, or nothing.
    pub unit: String,
    /// The lines with values, in their order.
    pub samples: Vec<Sample>,
}

/// One line with a value.
#[derive(Debug)]
pub struct Sample {
    /// With a suffix.
    pub name: String,
    /// The values by their labels.
    pub labels: BTreeMap<String, String>,
    /// The number.
    pub value: f64,
}

/// Reads a text, and says what is wrong with the first line that breaks the format.
pub fn read(text: &str) -> Result<Vec<Family>, String> {
    let body = text
        .strip_suffix("# EOF\n")
        .ok_or("it does not end by EOF")?;
    let body = match body.is_empty() {
        true => "",
        false => body
            .strip_suffix('\n')
            .ok_or("EOF is on no line of its own")?,
    };
    let mut families: Vec<Family> = Vec::new();
    for line in body.split('\n').filter(|_| !body.is_empty()) {
        let wrong = |what: &str| format!("{what}: {line:?}");
        if let Some(head) = line.strip_prefix("# ") {
            let mut words = head.splitn(3, ' ');
            let (Some(word), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
            else {
                return Err(wrong("not a line of a head"));
            };
            if families.last().is_none_or(|family| family.name != name) {
                if families.iter().any(|family| family.name == name) {
                    return Err(wrong("the family has begun before"));
                }
                families.push(Family {
                    name: name.to_owned(),
                    ..Family::default()
                });
            }
            let family = families.last_mut().expect("it was added");
            if !family.samples.is_empty() {
                return Err(wrong("a head behind samples"));
            }
            let field = match word {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                "UNIT" => &mut family.unit,
                _ => return Err(wrong("an unknown word")),
            };
            if !field.is_empty() {
                return Err(wrong("twice in a head"));
            }
            rest.clone_into(field);
        } else {
            let sample = sample(line).map_err(wrong)?;
            let family = families.last_mut().ok_or(wrong("a sample before a head"))?;
            let suffix = sample.name.strip_prefix(&family.name);
            let fits = match (family.kind.as_str(), suffix) {
                ("counter", Some("_total")) | ("gauge", Some("")) => true,
                ("histogram", Some(suffix)) => {
                    let has_end = sample.labels.contains_key("le");
                    has_end == (suffix == "_bucket")
                        && ["_bucket", "_sum", "_count"].contains(&suffix)
                }
                _ => false,
            };
            if !fits {
                return Err(wrong("the sample does not belong to the family"));
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(whole)?;
    Ok(families)
}

/// Whether a text can be the name of a metric or of a label.
fn is_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_word)
        && text
            .bytes()
            .next()
            .is_some_and(|first| !first.is_ascii_digit())
}

fn sample(line: &str) -> Result<Sample, &'static str> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err("not a name");
    }
    let mut labels = BTreeMap::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (label, behind) = inner.split_once("=\"").ok_or("no label")?;
            if !is_name(label) {
                return Err("not the name of a label");
            }
            let (value, behind) = quoted(behind)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err("a label twice");
            }
            if let Some(behind) = behind.strip_prefix('}') {
                rest = behind;
                break;
            }
            inner = behind.strip_prefix(',').ok_or("no comma between labels")?;
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    // No timestamp or exemplar follows it.
    let is_number = value
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b".-".contains(&byte));
    let value = value.parse().ok().filter(|_| is_number);
    Ok(Sample {
        name: name.to_owned(),
        labels,
        value: value.ok_or("not a number")?,
    })
}

/// Reads the value of a label up to its closing quote, and returns what follows.
fn quoted(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut characters = text.chars();
    loop {
        match characters.next().ok_or("the value of a label has no end")? {
            '"' => return Ok((value, characters.as_str())),
            '\\' => value.push(match characters.next() {
                Some('n') => '\n',
                Some(same @ ('\\' | '"')) => same,
                _ => return Err("an unknown escape"),
            }),
            other => value.push(other),
        }
    }
}

/// Checks a family as a whole.
fn whole(family: &Family) -> Result<(), String> {
    let Family { name, .. } = family;
    let wrong = |what: &str| Err(format!("{name}: {what}"));
    let suffixes = ["_total", "_bucket", "_sum", "_count", "_info", "_created"];
    if !is_name(name) || suffixes.iter().any(|suffix| name.ends_with(suffix)) {
        return wrong("not the name of a family");
    }
    if family.help.is_empty() || family.samples.is_empty() {
        return wrong("no help, or no samples");
    }
    if !family.unit.is_empty() && !name.ends_with(&format!("_{}", family.unit)) {
        return wrong("the unit is not in the name");
    }
    let mut seen = BTreeSet::new();
    let mut histograms: BTreeMap<_, Histogram> = BTreeMap::new();
    for sample in &family.samples {
        if !seen.insert((&sample.name, &sample.labels)) {
            return wrong("a sample twice");
        }
        if family.kind != "gauge" && sample.value < 0.0 {
            return wrong("less than nothing");
        }
        if family.kind == "histogram" {
            let mut labels = sample.labels.clone();
            let end = labels.remove("le");
            let histogram = histograms.entry(labels).or_default();
            match end {
                Some(end) => {
                    let is_canonical = end == "+Inf" || end.contains('.');
                    match end.parse().ok().filter(|_| is_canonical) {
                        Some(end) => histogram.buckets.push((end, sample.value)),
                        None => return wrong("not the end of a bucket"),
                    }
                }
                None if sample.name.ends_with("_sum") => histogram.has_sum = true,
                None => histogram.count = Some(sample.value),
            }
        }
    }
    for histogram in histograms.values() {
        let buckets = &histogram.buckets;
        let is_sorted = buckets.is_sorted_by(|low, high| low.0 < high.0 && low.1 <= high.1);
        let all = histogram.count.map(|count| (f64::INFINITY, count));
        if !is_sorted || all.is_none() || buckets.last().copied() != all || !histogram.has_sum {
            return wrong("not a whole histogram");
        }
    }
    Ok(())
}

/// The samples of one set of labels.
#[derive(Default)]
struct Histogram {
    /// The end of each, and its count.
    buckets: Vec<(f64, f64)>,
    has_sum: bool,
    count: Option<f64>,
}

/// What a document has to say about a metric: name, unit, kind and help.
pub type Row = [String; 4];

/// The rows of the tables of metrics in a document. Their first column is the name, in quotes of
/// code.
pub fn documented(document: &str) -> BTreeSet<Row> {
    let rows = document.lines().filter_map(|line| {
        let cells: Vec<_> = line
            .strip_prefix("| `")?
            .split('|')
            .map(str::trim)
            .collect();
        let name = cells[0].strip_suffix('`')?;
        name.starts_with("tourbillon_").then(|| {
            let [_, unit, kind, .., help, ""] = cells[..] else {
                panic!("the row has other columns: {line}");
            };
            [name, unit, kind, help].map(str::to_owned)
        })
    });
    let rows: Vec<Row> = rows.collect();
    let number = rows.len();
    let rows: BTreeSet<Row> = rows.into_iter().collect();
    assert_eq!(rows.len(), number, "a row twice");
    rows
}

/// The rows that a table of these metrics must have.
pub fn exported(metrics: &Metrics) -> BTreeSet<Row> {
    let row = |metric: &tourbillon::metrics::Metric| {
        let kind = match metric.value {
            MetricValue::Counter(_) => "counter",
            MetricValue::Gauge(_) => "gauge",
            MetricValue::Histogram(_) => "histogram",
            _ => panic!("an unknown kind: {metric:?}"),
        };
        let (is_total, is_counter) = (metric.name.ends_with("_total"), kind == "counter");
        assert_eq!(is_total, is_counter, "{}", metric.name);
        let has_unit = metric.name.contains("_seconds");
        assert_eq!(metric.unit.is_some(), has_unit, "{}", metric.name);
        let help = metric.help;
        assert!(
            help.ends_with('.') && !help.contains(['\\', '"', '\n', '|']),
            "{help}"
        );
        [metric.name, metric.unit.unwrap_or(""), kind, help].map(str::to_owned)
    };
    metrics.iter().map(row).collect()
}

/// Holds the tables of a document to what is exported.
#[track_caller]
pub fn assert_documented(metrics: &Metrics, document: &str) {
    let (exported, documented) = (exported(metrics), documented(document));
    let lines = |rows: Vec<&Row>| {
        let lines = rows
            .into_iter()
            .map(|[name, unit, kind, help]| format!("| `{name}` | {unit} | {kind} | {help} |\n"));
        lines.collect::<String>()
    };
    let missing = lines(exported.difference(&documented).collect());
    let wrong = lines(documented.difference(&exported).collect());
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "the table lacks\n{missing}and should not have\n{wrong}"
    );
}

/// Checks the format of Prometheus by `promtool`, which must be installed.
#[track_caller]
pub fn assert_promtool_takes(metrics: &Metrics) {
    let mut text = String::new();
    metrics.prometheus(&mut text);
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed");
    let mut stdin = promtool.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).expect("it reads all");
    drop(stdin);
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert_eq!((output.status.code(), &*said), (Some(0), ""), "{text}");
}

/// Reads the text of OpenMetrics, which must keep the rules of the format.
#[track_caller]
pub fn families(metrics: &Metrics) -> Vec<Family> {
    let text = metrics.to_string();
    read(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"))
}
