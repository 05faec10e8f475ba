use std::collections::BTreeSet;

use roxmltree::{Document, Node};

use super::lines::apart;
use super::*;
use crate::figures::row::digits;
use crate::figures::row::tests::{in_modes, row, run, stored, with_keys};

/// Draws the rows, and returns the plot with this name.
fn drawn(rows: Vec<Row>, name: &str) -> String {
    let mut plots = of(&run(rows)).into_iter();
    let plot = plots.find(|plot| plot.name == name);
    plot.unwrap_or_else(|| panic!("no plot {name}")).svg
}

fn parsed(svg: &str) -> Document<'_> {
    Document::parse(svg).expect("it is XML")
}

/// Tags have a name space here.
fn tagged<'a>(document: &'a Document<'a>, tag: &str) -> Vec<Node<'a, 'a>> {
    let nodes = document.descendants();
    nodes.filter(|node| node.tag_name().name() == tag).collect()
}

fn texts(svg: &str) -> Vec<String> {
    let document = parsed(svg);
    let texts = tagged(&document, "text").into_iter();
    texts
        .filter_map(|node| Some(node.text()?.trim().to_owned()))
        .collect()
}

const SYSTEMS: [&str; 3] = ["tourbillon", "a <peer> & more", "heap"];

/// A row for each workload with plots, and for each of the systems.
fn everything() -> Run {
    let mut rows = Vec::new();
    for (system, value) in SYSTEMS.into_iter().zip([3.0, 4.0, 5.0]) {
        let workloads = ["W1", "W1k", "W4", "W4i", "W5", "W7", "S3"];
        rows.extend(workloads.map(|workload| row(workload, system, value)));
        let mut none_is_long = row("W5", system, 0.5);
        NONE_IS_LONG.clone_into(&mut none_is_long.case);
        rows.push(none_is_long);
        for keys in [1_000, 1_000_000] {
            let modes = [(Mode::Near, &[2.0 * value][..]), (Mode::Far, &[value])];
            let touches = in_modes("W2", system, &modes).into_iter();
            let touches = touches.chain([row("W2", system, value)]);
            rows.extend(touches.map(|row| with_keys(keys, row)));
        }
    }
    run(rows)
}

#[test]
fn every_row_is_drawn() {
    let run = everything();
    let plots = of(&run);
    let rows =
        |workloads: &[&str]| -> usize { workloads.iter().map(|name| run.of(name).count()).sum() };
    // Of the touches two thirds are near or have no mode. What one thread does stands in both plots
    // by threads, once for each of the three systems and two sizes.
    let expected = [
        ("touch-keys", 2 * rows(&["W2"]) / 3),
        ("touch-threads", 2 * 3 * 2),
        ("pair-keys", rows(&["W1", "W1k"])),
        ("touch-keys-other-modes", rows(&["W2"]) / 3),
        ("touch-threads-other-modes", 2 * 3 * 2),
        ("mass", rows(&["W4", "W4i"])),
        // The frame and the page are rectangles, too.
        ("memory", rows(&["W7", "S3"]) + 1),
        ("lateness", rows(&["W5"])),
    ];
    let marks = plots.iter().map(|plot| {
        let tag = ["circle", "rect"][usize::from(plot.name == "memory")];
        (&*plot.name, tagged(&parsed(&plot.svg), tag).len())
    });
    assert_eq!(marks.collect::<Vec<_>>(), expected);
    for plot in &plots {
        let texts = texts(&plot.svg).join("\n");
        for system in SYSTEMS {
            assert!(texts.contains(system), "{system} in {}", plot.name);
        }
    }
}

#[test]
fn the_figures_of_the_repository_are_drawn() {
    let timers = ["W1", "W1k", "W2", "W4", "W4i", "W5", "W7"];
    for (file, workloads) in [("figures.jsonl", &timers[..]), ("sessions.jsonl", &["S3"])] {
        let run = stored(file);
        let texts: BTreeSet<String> = of(&run).iter().flat_map(|plot| texts(&plot.svg)).collect();
        for row in workloads.iter().flat_map(|workload| run.of(workload)) {
            let system = &row.system;
            let has = |text: &String| text == system || text.starts_with(&format!("{system} "));
            assert!(texts.iter().any(has), "{system} in {file}");
        }
    }
}

#[test]
fn a_system_has_no_line_in_a_mode_that_it_was_not_measured_in() {
    let mut rows = in_modes("W2", "one", &[(Mode::Near, &[2.0]), (Mode::Far, &[1.0])]);
    rows.extend(in_modes("W2", "other", &[(Mode::Near, &[3.0])]));
    rows.extend(in_modes("W2", "third", &[(Mode::Unknown, &[7.0])]));
    rows.extend(["one", "other", "third"].map(|system| row("W2", system, 1.5)));
    let near = texts(&drawn(rows.clone(), "touch-threads"));
    let far = texts(&drawn(rows, "touch-threads-other-modes"));
    let has = |texts: &[String], text: &str| texts.iter().any(|other| other == text);
    assert!(
        has(&near, "one 2.00") && has(&near, "other 3.00"),
        "{near:?}"
    );
    assert!(has(&far, "one 1.00"), "{far:?}");
    assert!(!far.iter().any(|text| text.starts_with("other")), "{far:?}");
    for text in near.iter().chain(&far) {
        assert!(!text.starts_with("third"), "its mode is unknown");
    }
}

#[test]
fn early_timers_are_marked() {
    let mut early = row("W4", "wheel", 0.0);
    early.early = 3;
    let texts = texts(&drawn(vec![early, row("W4", "heap", 0.5)], "mass"));
    let marked: Vec<&String> = texts.iter().filter(|text| text.contains("early")).collect();
    assert_eq!(marked, ["0.00, some early"]);
}

#[test]
fn a_label_has_the_figure_of_the_end_of_its_line_and_where_it_ends_early() {
    let drawn = |keys_of_last: &[u64]| {
        let heap = [(1_000_000, 2.5), (1_000, 9.0)].map(|(keys, y)| (keys, "heap", y));
        let last = keys_of_last.iter().map(|keys| (*keys, "netty", 4.0));
        let points = heap.into_iter().chain(last);
        let rows = points.map(|(keys, system, y)| with_keys(keys, row("W2", system, y)));
        let svg = drawn(rows.collect(), "touch-keys");
        let lines = tagged(&parsed(&svg), "polyline").len();
        (texts(&svg), lines)
    };
    let (names, early) = drawn(&[1_000]);
    assert!(
        names.contains(&format!("heap {}", digits(2.5))),
        "{names:?}"
    );
    assert!(names.contains(&format!("netty {} at 1 k", digits(4.0))));
    let (names, late) = drawn(&[1_000_000]);
    assert!(names.contains(&format!("netty {}", digits(4.0))));
    // A line that ends early is not joined to its name.
    let (_, none) = drawn(&[]);
    assert_eq!((early, late), (none, none + 1));
}

#[test]
fn every_colour_has_one_on_dark() {
    for plot in of(&everything()) {
        let document = parsed(&plot.svg);
        let style = tagged(&document, "style")[0].text().expect("styles");
        for node in document.descendants() {
            for kind in ["fill", "stroke"] {
                let Some(color) = node.attribute(kind).filter(|color| *color != "none") else {
                    continue;
                };
                let rule = format!("[{kind}=\"{color}\"] {{ {kind}: #");
                assert!(style.contains(&rule), "{color} in {}", plot.name);
            }
        }
    }
}

#[test]
fn a_run_without_figures_has_no_plots() {
    assert!(of(&run(Vec::new())).is_empty());
    let mut never_ran = row("W4i", "heap", 1.0);
    never_ran.figures.values_mut().for_each(Vec::clear);
    assert!(of(&run(vec![never_ran])).is_empty());
}

#[test]
fn nothing_pending_has_a_place_before_the_least() {
    let rows = [0, 1_000_000].map(|keys| with_keys(keys, row("W1k", "heap", 80.0)));
    let svg = drawn(rows.into(), "pair-keys");
    let texts = texts(&svg);
    let has = |label: &str| texts.iter().any(|text| text == label);
    assert!(has("0") && has("1 M"));
    let document = parsed(&svg);
    let places = tagged(&document, "circle").into_iter();
    let places: BTreeSet<i32> = places
        .filter_map(|node| node.attribute("cx")?.parse().ok())
        .collect();
    assert_eq!(places.len(), 2);
}

#[test]
fn labels_are_apart_and_near_their_lines() {
    for (wanted, expected) in [
        (&[][..], &[][..]),
        (&[5, 50, 90], &[5, 50, 90]),
        (&[50, 50, 50], &[40, 50, 60]),
        (&[0, 1, 2, 99], &[0, 10, 20, 99]),
    ] {
        assert_eq!(apart(wanted, 10, (0, 100)), expected);
    }
    let many = apart(&[10, 12, 30, 31, 33, 95, 96], 10, (0, 100));
    assert!(many.windows(2).all(|two| two[1] - two[0] >= 10), "{many:?}");
    assert!(many[0] >= 0 && many[6] <= 100, "{many:?}");
}
