use std::collections::BTreeSet;

use roxmltree::{Document, Node};

use super::lines::apart;
use super::*;
use crate::mode::Mode;
use crate::report::tests::{figure, in_modes, report};
use crate::report::{Figure, digits};

fn stored(file: &str) -> Report {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let json = std::fs::read_to_string(path).expect("it lies there");
    serde_json::from_str(&json).expect("its form is known")
}

fn svg<'p>(plots: &'p [Plot], name: &str) -> &'p str {
    let plot = plots.iter().find(|plot| plot.name == name);
    &plot.unwrap_or_else(|| panic!("no plot {name}")).svg
}

fn parsed(svg: &str) -> Document<'_> {
    Document::parse(svg).expect("it is XML")
}

fn count(document: &Document<'_>, tag: &str) -> usize {
    let nodes = document.descendants();
    nodes.filter(|node| node.has_tag_name(tag)).count()
}

/// Tags have a name space here.
trait Tagged {
    fn has_tag_name(&self, tag: &str) -> bool;
}

impl Tagged for Node<'_, '_> {
    fn has_tag_name(&self, tag: &str) -> bool {
        self.tag_name().name() == tag
    }
}

fn texts(document: &Document<'_>) -> Vec<String> {
    document
        .descendants()
        .filter(|node| Tagged::has_tag_name(node, "text"))
        .filter_map(|node| Some(node.text()?.trim().to_owned()))
        .collect()
}

/// A figure for each workload with plots, and for each of these systems.
fn everything() -> Report {
    let mut figures = Vec::new();
    for (number, system) in ["tourbillon", "a <peer> & more", "heap"]
        .into_iter()
        .enumerate()
    {
        let value = 3.0 + number as f64;
        for workload in ["W1", "W1k", "W4", "W4i", "W5", "W7", "S3"] {
            figures.push(figure(workload, system, value));
        }
        let mut none_is_long = figure("W5", system, 0.5);
        NONE_IS_LONG.clone_into(&mut none_is_long.case);
        figures.push(none_is_long);
        for keys in [1_000, 1_000_000] {
            let mut one = figure("W2", system, value);
            let mut two = in_modes(
                "W2",
                system,
                &[(Mode::Near, 2.0 * value), (Mode::Far, value)],
            );
            (one.keys, two.keys) = (keys, keys);
            figures.extend([one, two]);
        }
    }
    report(figures)
}

#[test]
fn every_figure_is_drawn() {
    let report = everything();
    let plots = of(&report);
    let names: Vec<&str> = plots.iter().map(|plot| &*plot.name).collect();
    let all = [
        "touch-keys",
        "touch-threads",
        "pair-keys",
        "touch-keys-other-modes",
        "touch-threads-other-modes",
        "mass",
        "memory",
        "lateness",
    ];
    assert_eq!(names, all);
    let views = |workloads: &[&str]| -> usize {
        let of_each = workloads
            .iter()
            .map(|workload| report.views(workload).count());
        of_each.sum()
    };
    let dots = |name| count(&parsed(svg(&plots, name)), "circle");
    let touches = dots("touch-keys") + dots("touch-keys-other-modes");
    assert_eq!(touches, views(&["W2"]));
    assert_eq!(dots("touch-keys-other-modes"), touches / 3);
    assert_eq!(dots("pair-keys"), views(&["W1", "W1k"]));
    assert_eq!(dots("mass"), views(&["W4", "W4i"]));
    assert_eq!(dots("lateness"), views(&["W5"]));
    // What one thread does stands in both, once for each of the three systems and two sizes.
    for name in ["touch-threads", "touch-threads-other-modes"] {
        assert_eq!(dots(name), 2 * 3 * 2);
    }
    // Those of the page and the frame are no bars.
    let bars = count(&parsed(svg(&plots, "memory")), "rect") - 1;
    assert_eq!(bars, views(&["W7", "S3"]));
    for plot in &plots {
        let texts = texts(&parsed(&plot.svg)).join("\n");
        for system in ["tourbillon", "a <peer> & more", "heap"] {
            assert!(texts.contains(system), "{system} in {}", plot.name);
        }
    }
}

#[test]
fn the_figures_of_the_repository_are_drawn() {
    for (file, workloads) in [
        (
            "figures.json",
            &["W1", "W1k", "W2", "W4", "W4i", "W5", "W7"][..],
        ),
        ("sessions.json", &["S3"]),
    ] {
        let report = stored(file);
        let plots = of(&report);
        let drawn: BTreeSet<String> = plots
            .iter()
            .flat_map(|plot| texts(&parsed(&plot.svg)))
            .collect();
        for workload in workloads {
            for view in report.views(workload) {
                let system = view.system();
                let has = |text: &String| text == system || text.starts_with(&format!("{system} "));
                assert!(drawn.iter().any(has), "{system} of {workload} in {file}");
            }
        }
    }
}

#[test]
fn a_system_has_no_line_in_a_mode_that_it_was_not_measured_in() {
    let mut figures = vec![in_modes(
        "W2",
        "one",
        &[(Mode::Near, 2.0), (Mode::Far, 1.0)],
    )];
    figures.push(in_modes("W2", "other", &[(Mode::Near, 3.0)]));
    figures.extend(["one", "other"].map(|system| figure("W2", system, 1.5)));
    let plots = of(&report(figures));
    let texts = |name| texts(&parsed(svg(&plots, name)));
    assert!(texts("touch-threads").contains(&"other 3.00".to_owned()));
    let far = texts("touch-threads-other-modes");
    assert!(far.contains(&"one 1.00".to_owned()), "{far:?}");
    assert!(!far.iter().any(|text| text.starts_with("other")), "{far:?}");
}

#[test]
fn rounds_in_an_unknown_mode_are_not_drawn() {
    let mut changed = in_modes("W2", "one", &[(Mode::Near, 2.0), (Mode::Far, 7.0)]);
    changed.rounds[1].mode = None;
    let plots = of(&report(vec![changed, figure("W2", "one", 1.5)]));
    let names: Vec<&str> = plots.iter().map(|plot| &*plot.name).collect();
    assert_eq!(names, ["touch-keys", "touch-threads"]);
    let drawn = texts(&parsed(svg(&plots, "touch-threads")));
    assert!(drawn.contains(&"one 2.00".to_owned()), "{drawn:?}");
}

#[test]
fn what_was_early_says_so() {
    let mut early = figure("W4", "wheel", 0.0);
    early.rounds[0].early = 3;
    let plots = of(&report(vec![early, figure("W4", "heap", 0.5)]));
    let texts = texts(&parsed(svg(&plots, "mass")));
    let marked: Vec<&String> = texts.iter().filter(|text| text.contains("early")).collect();
    assert_eq!(marked, ["0.00, some early"]);
}

#[test]
fn a_label_says_the_figure_of_the_end_of_its_line() {
    let mut small = figure("W2", "heap", 9.0);
    let mut large = figure("W2", "heap", 2.5);
    (small.keys, large.keys) = (1_000, 1_000_000);
    let plots = of(&report(vec![large, small]));
    let texts = texts(&parsed(svg(&plots, "touch-keys")));
    assert!(
        texts.contains(&format!("heap {}", digits(2.5))),
        "{texts:?}"
    );
}

#[test]
fn a_line_that_ends_early_says_where_and_is_not_joined_to_its_name() {
    let drawn = |keys_of_last: &[u64]| {
        let heap = [(1_000, 9.0), (1_000_000, 2.5)].map(|(keys, y)| (keys, "heap", y));
        let last = keys_of_last.iter().map(|keys| (*keys, "netty", 4.0));
        let figures = heap
            .into_iter()
            .chain(last)
            .map(|(keys, system, y)| Figure {
                keys,
                ..figure("W2", system, y)
            });
        let plots = of(&report(figures.collect()));
        let document = parsed(svg(&plots, "touch-keys"));
        (texts(&document), count(&document, "polyline"))
    };
    let (names, early) = drawn(&[1_000]);
    assert!(names.contains(&format!("netty {} at 1 k", digits(4.0))));
    let (names, late) = drawn(&[1_000_000]);
    assert!(names.contains(&format!("netty {}", digits(4.0))));
    let (_, none) = drawn(&[]);
    assert_eq!((early, late), (none, none + 1));
}

#[test]
fn every_colour_has_one_on_dark() {
    for plot in of(&everything()) {
        let document = parsed(&plot.svg);
        let style = document
            .descendants()
            .find(|node| Tagged::has_tag_name(node, "style"))
            .and_then(|node| node.text())
            .expect("there are styles");
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
fn a_report_without_figures_has_no_plots() {
    assert!(of(&report(Vec::new())).is_empty());
    let never_ran = Figure {
        rounds: Vec::new(),
        ..figure("W4i", "heap", 1.0)
    };
    assert!(of(&report(vec![never_ran])).is_empty());
}

#[test]
fn nothing_pending_has_a_place_before_the_least() {
    let mut figures = Vec::new();
    for keys in [0, 1_000_000] {
        let mut one = figure("W1k", "heap", 80.0);
        one.keys = keys;
        figures.push(one);
    }
    let plots = of(&report(figures));
    let document = parsed(svg(&plots, "pair-keys"));
    let texts = texts(&document);
    assert!(
        ["0", "1 M"]
            .iter()
            .all(|label| texts.iter().any(|text| text == label))
    );
    let mut places: Vec<i32> = document
        .descendants()
        .filter_map(|node| node.attribute("cx")?.parse().ok())
        .collect();
    places.sort_unstable();
    assert!(places[0] < places[1], "{places:?}");
}

#[test]
fn labels_are_apart_and_near_their_lines() {
    assert!(apart(&[], 10, (0, 100)).is_empty());
    assert_eq!(apart(&[5, 50, 90], 10, (0, 100)), [5, 50, 90]);
    assert_eq!(apart(&[50, 50, 50], 10, (0, 100)), [40, 50, 60]);
    assert_eq!(apart(&[0, 1, 2, 99], 10, (0, 100)), [0, 10, 20, 99]);
    let many = apart(&[10, 12, 30, 31, 33, 95, 96], 10, (0, 100));
    assert!(many.windows(2).all(|two| two[1] - two[0] >= 10), "{many:?}");
    assert!(many[0] >= 0 && many[6] <= 100, "{many:?}");
}
