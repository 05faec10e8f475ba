use std::collections::BTreeSet;

use roxmltree::{Document, Node};

use super::lines::apart;
use super::*;
use crate::figures::row::tests::{in_modes, row, run, with_keys};

/// Draws the rows, and returns the plot with this name.
fn drawn(rows: Vec<Row>, name: &str) -> String {
    let mut plots = of(&run(rows)).into_iter();
    let plot = plots.find(|plot| plot.name == name);
    plot.unwrap_or_else(|| panic!("no plot {name}")).svg
}

/// The values of an attribute of all elements with a tag.
fn attributes(svg: &str, tag: &str, attribute: &str) -> Vec<String> {
    of_tag(svg, tag, |node| Some(node.attribute(attribute)?.to_owned()))
}

fn texts(svg: &str) -> Vec<String> {
    of_tag(svg, "text", |node| Some(node.text()?.trim().to_owned()))
}

fn of_tag(svg: &str, tag: &str, take: impl Fn(Node<'_, '_>) -> Option<String>) -> Vec<String> {
    let document = Document::parse(svg).expect("it is XML");
    let all = document.descendants();
    let of_tag = all.filter(|node| node.tag_name().name() == tag);
    of_tag.filter_map(take).collect()
}

#[test]
fn every_row_is_drawn() {
    let mut rows = Vec::new();
    for (system, value) in [("tourbillon", 3.0), ("a <peer> & more", 4.0), ("heap", 5.0)] {
        let workloads = ["W1", "W1x", "W4", "W4i", "W4h", "W5", "W7", "S3"];
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
    // Of the touches two thirds are near or have no mode. What one thread does stands in both plots
    // by threads, once for each of the three systems and two sizes.
    let expected = [
        ("touch-keys", 12),
        ("touch-threads", 12),
        ("pair-keys", 6),
        ("touch-keys-other-modes", 6),
        ("touch-threads-other-modes", 12),
        ("mass", 9),
        // The page is a rectangle, too.
        ("memory", 7),
        ("lateness", 6),
    ];
    let plots = of(&run(rows));
    let marks = plots.iter().map(|plot| {
        let (tag, attribute) = [("circle", "r"), ("rect", "x")][usize::from(plot.name == "memory")];
        let texts = texts(&plot.svg).join("\n");
        assert!(texts.contains("a <peer> & more"), "{}", plot.name);
        (&*plot.name, attributes(&plot.svg, tag, attribute).len())
    });
    assert_eq!(marks.collect::<Vec<_>>(), expected);
    let mut never_ran = row("W4i", "heap", 1.0);
    never_ran.figures.values_mut().for_each(Vec::clear);
    assert!(of(&run(vec![never_ran])).is_empty());
}

#[test]
fn a_system_has_no_line_in_a_mode_that_it_was_not_measured_in() {
    let mut rows = in_modes("W2", "one", &[(Mode::Near, &[2.0]), (Mode::Far, &[1.0])]);
    rows.extend(in_modes("W2", "other", &[(Mode::Near, &[3.0])]));
    rows.extend(in_modes("W2", "third", &[(Mode::Unknown, &[7.0])]));
    rows.extend(["one", "other", "third"].map(|system| row("W2", system, 1.5)));
    let near = texts(&drawn(rows.clone(), "touch-threads")).join("\n");
    let far = texts(&drawn(rows, "touch-threads-other-modes")).join("\n");
    assert!(near.contains("one 2.00"), "{near}");
    assert!(near.contains("other 3.00"), "{near}");
    assert!(far.contains("one 1.00"), "{far}");
    assert!(!far.contains("\nother "), "{far}");
    assert!(!(near + &far).contains("third"), "its mode is unknown");
}

#[test]
fn a_label_has_the_figure_of_the_end_of_its_line_and_where_it_ends_early() {
    let heap = [(0, 9.0), (1_000, 9.0), (1_000_000, 2.5)].map(|(keys, y)| (keys, "heap", y));
    let points = heap.into_iter().chain([(1_000, "netty", 4.0)]);
    let rows = points.map(|(keys, system, y)| with_keys(keys, row("W2", system, y)));
    let svg = drawn(rows.collect(), "touch-keys");
    let texts = texts(&svg);
    assert!(texts.iter().any(|text| text == "heap 2.50"), "{texts:?}");
    let early = |text: &String| text == "netty 4.00 at 1 k";
    assert!(texts.iter().any(early), "{texts:?}");
    // Nothing pending has a place before the least.
    let places: BTreeSet<String> = attributes(&svg, "circle", "cx").into_iter().collect();
    assert_eq!(places.len(), 3);
    let mut early = row("W4", "wheel", 0.0);
    early.early = 3;
    let mass = drawn(vec![early, row("W4", "heap", 0.5)], "mass");
    assert_eq!(mass.matches("0.00, some early").count(), 1);
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
