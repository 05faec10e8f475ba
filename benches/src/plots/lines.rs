//! Panels with a line for each system, whose name stands at its end.

use super::canvas::{
    AXIS, Align, At, Canvas, GRID, HEAD, Look, NOTE, Scale, TEXT, picture, tick_label,
};
use crate::report::digits;

/// A system in a panel.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) look: Look,
    /// From left to right.
    pub(super) points: Vec<(u64, f64)>,
}

pub(super) struct Panel {
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
}

pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    pub(super) notes: &'a str,
    /// What the upward axis is.
    pub(super) up: &'a str,
    /// What the axis to the right is.
    pub(super) right: &'a str,
    /// How its values are written.
    pub(super) label: fn(u64) -> String,
    pub(super) panels: Vec<Panel>,
}

/// Of one panel among others, and of one alone.
const WIDTH: i32 = 490;
const ALONE: i32 = 760;
const HEIGHT: i32 = 330;
/// Around the area of a panel.
const LEFT: i32 = 58;
const RIGHT: i32 = 176;
const TOP: i32 = 50;
const BOTTOM: i32 = 46;
/// The labels of lines are at least so far apart.
const LABEL: i32 = 15;

impl Lines<'_> {
    pub(super) fn svg(&self) -> String {
        let columns = self.panels.len().clamp(1, 2) as i32;
        // As many labels as there are systems need their place.
        let most = self.panels.iter().map(|panel| panel.lines.len()).max();
        let labels = most.unwrap_or(0) as i32 * LABEL;
        let height = HEIGHT.max(labels + TOP + BOTTOM);
        let rows = (self.panels.len() as i32 + columns - 1) / columns;
        let width = if columns == 1 { ALONE } else { WIDTH };
        let size = (columns * width + 10, HEAD + rows * height);
        picture(self.title, self.notes, size, |canvas| {
            // All panels have the same axes, so that they can be compared.
            let values = || self.all().map(|(_, value)| value);
            for (number, panel) in (0..).zip(&self.panels) {
                let (x, y) = (number % columns * width, HEAD + number / columns * height);
                let frame = Frame {
                    from: (x + LEFT, y + TOP),
                    to: (x + width - RIGHT, y + height - BOTTOM),
                };
                let up = Scale::log(values(), (frame.to.1, frame.from.1));
                let right = Positions::of(self.all().map(|(at, _)| at), &frame);
                self.panel(canvas, panel, &frame, &up, &right);
            }
        })
    }

    fn all(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        lines.flat_map(|line| line.points.iter().copied())
    }

    fn panel(
        &self,
        canvas: &Canvas<'_>,
        panel: &Panel,
        frame: &Frame,
        up: &Scale,
        right: &Positions,
    ) {
        let Frame { from, to } = *frame;
        canvas.bold(
            &panel.title,
            (from.0 - 36, from.1 - 36),
            Align::Left,
            14.0,
            TEXT,
        );
        canvas.text(self.up, (from.0 - 36, from.1 - 16), Align::Left, 12.0, NOTE);
        for tick in up.ticks(22) {
            let y = up.pixel(tick);
            canvas.line(vec![(from.0, y), (to.0, y)], GRID, 1);
            canvas.text(&tick_label(tick), (from.0 - 8, y), Align::Right, 12.0, NOTE);
        }
        canvas.line(vec![(from.0, to.1), (to.0, to.1)], AXIS, 1);
        for at in right.labelled() {
            let x = right.pixel(at);
            canvas.line(vec![(x, to.1), (x, to.1 + 4)], AXIS, 1);
            canvas.text(&(self.label)(at), (x, to.1 + 14), Align::Centre, 12.0, NOTE);
        }
        let middle = i32::midpoint(from.0, to.0);
        canvas.text(self.right, (middle, to.1 + 32), Align::Centre, 12.0, NOTE);
        // Ours last: above the others.
        for ours in [false, true] {
            for line in panel.lines.iter().filter(|line| line.look.ours == ours) {
                let pixels = line.points.iter();
                let pixels: Vec<At> = pixels
                    .map(|(at, value)| (right.pixel(*at), up.pixel(*value)))
                    .collect();
                let (width, radius) = if ours { (3, 4) } else { (1, 3) };
                for pixel in &pixels {
                    canvas.dot(*pixel, radius, line.look.ink);
                }
                if pixels.len() > 1 {
                    canvas.line(pixels, line.look.ink, width);
                }
            }
        }
        self.names(canvas, panel, frame, up, right);
    }

    /// The names, each beside the end of its line, or as near as the others let it. A line that ends
    /// before the right edge says where. It is not joined to its name, since that would look like more of it.
    fn names(
        &self,
        canvas: &Canvas<'_>,
        panel: &Panel,
        frame: &Frame,
        up: &Scale,
        right: &Positions,
    ) {
        let mut ends: Vec<(&Line, u64, f64)> = panel
            .lines
            .iter()
            .filter_map(|line| line.points.last().map(|(at, value)| (line, *at, *value)))
            .collect();
        ends.sort_by_key(|(_, _, value)| up.pixel(*value));
        let wanted: Vec<i32> = ends.iter().map(|(_, _, value)| up.pixel(*value)).collect();
        let placed = apart(&wanted, LABEL, (frame.from.1, frame.to.1));
        let x = frame.to.0 + 20;
        for ((line, at, value), y) in ends.into_iter().zip(placed) {
            let ink = line.look.ink;
            let mut text = format!("{} {}", line.name, digits(value));
            if right.values.last() == Some(&at) {
                let end = (right.pixel(at) + 6, up.pixel(value));
                canvas.line(vec![end, (x - 4, y)], ink, 1);
            } else {
                text += &format!(" at {}", (self.label)(at));
            }
            if line.look.ours {
                canvas.bold(&text, (x, y), Align::Left, 12.5, ink);
            } else {
                canvas.text(&text, (x, y), Align::Left, 12.0, ink);
            }
        }
    }
}

/// The corners of a panel's area.
struct Frame {
    from: At,
    to: At,
}

/// Where the values of the axis to the right are: by their logarithm, and none at all a step before the
/// first.
struct Positions {
    values: Vec<u64>,
    scale: Scale,
}

impl Positions {
    fn of(values: impl Iterator<Item = u64>, frame: &Frame) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        values.dedup();
        let places = values.iter().map(|value| place(&values, *value));
        let low = places.clone().fold(f64::INFINITY, f64::min);
        let high = places.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if high > low {
            (low, high)
        } else {
            (low - 1.0, low + 1.0)
        };
        let pixels = (frame.from.0 + 14, frame.to.0 - 8);
        Positions {
            scale: Scale::between(low, high, pixels),
            values,
        }
    }

    fn pixel(&self, value: u64) -> i32 {
        self.scale.pixel(place(&self.values, value))
    }

    /// Those that have room for their label.
    fn labelled(&self) -> Vec<u64> {
        const ROOM: i32 = 34;
        let mut labelled: Vec<u64> = Vec::new();
        for value in &self.values {
            let room = |last: &u64| self.pixel(*value) - self.pixel(*last) >= ROOM;
            if labelled.last().is_none_or(room) {
                labelled.push(*value);
            }
        }
        labelled
    }
}

fn place(values: &[u64], value: u64) -> f64 {
    let decades = |value: u64| (value as f64).log10();
    let first = values.iter().copied().find(|value| *value > 0).unwrap_or(1);
    match value {
        0 => decades(first) - 1.0,
        _ => decades(value),
    }
}

/// Positions near the wanted ones, which are in order, at least `gap` apart and within the bounds if they
/// have room there.
pub(super) fn apart(wanted: &[i32], gap: i32, bounds: (i32, i32)) -> Vec<i32> {
    // Runs of labels that touch each other, each centred on what its labels want.
    let mut runs: Vec<Vec<i32>> = Vec::new();
    let first = |run: &[i32]| {
        let length = (run.len() as i32 - 1) * gap;
        let mean = run.iter().sum::<i32>() / run.len() as i32;
        (mean - length / 2).min(bounds.1 - length).max(bounds.0)
    };
    for place in wanted {
        runs.push(vec![*place]);
        while let [.., before, last] = &runs[..] {
            if first(before) + before.len() as i32 * gap <= first(last) {
                break;
            }
            let last = runs.pop().expect("there are two");
            runs.last_mut().expect("there are two").extend(last);
        }
    }
    let places = runs.iter().flat_map(|run| {
        let first = first(run);
        (0..run.len() as i32).map(move |number| first + number * gap)
    });
    places.collect()
}
