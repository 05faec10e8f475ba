//! Panels with a line for each system, whose name stands at its end.

use super::canvas::{AXIS, Align, At, Canvas, GRID, Look, Scale, picture, tick_label};
use crate::figures::row::digits;

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
        // As many labels as there are systems need their place.
        let most = self.panels.iter().map(|panel| panel.lines.len()).max();
        let labels = most.unwrap_or(0) as i32 * LABEL;
        let height = HEIGHT.max(labels + TOP + BOTTOM);
        let draw = |canvas: &_, panel: &_, (x, y): At, width: i32| {
            // All panels have the same axes, so that they can be compared.
            let from = (x + LEFT, y + TOP);
            let to = (x + width - RIGHT, y + height - BOTTOM);
            let axes = Axes {
                from,
                to,
                up: Scale::log(self.all().map(|(_, value)| value), (to.1, from.1)),
                right: Positions::of(self.all().map(|(at, _)| at), (from.0 + 14, to.0 - 8)),
            };
            self.panel(canvas, panel, &axes);
        };
        picture((self.title, self.notes), &self.panels, height, draw)
    }

    fn all(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        lines.flat_map(|line| line.points.iter().copied())
    }

    fn panel(&self, canvas: &Canvas, panel: &Panel, axes: &Axes) {
        let Axes {
            from,
            to,
            up,
            right,
        } = axes;
        canvas.bold(&panel.title, (from.0 - 36, from.1 - 36), 14.0);
        canvas.note(self.up, (from.0 - 36, from.1 - 16), Align::Start);
        for tick in up.ticks(22) {
            let y = up.pixel(tick);
            canvas.line(&[(from.0, y), (to.0, y)], GRID, 1);
            canvas.note(&tick_label(tick), (from.0 - 8, y), Align::End);
        }
        canvas.line(&[(from.0, to.1), (to.0, to.1)], AXIS, 1);
        for at in right.labelled() {
            let x = right.pixel(at);
            canvas.line(&[(x, to.1), (x, to.1 + 4)], AXIS, 1);
            canvas.note(&(self.label)(at), (x, to.1 + 14), Align::Middle);
        }
        let middle = i32::midpoint(from.0, to.0);
        canvas.note(self.right, (middle, to.1 + 32), Align::Middle);
        // Ours last: above the others.
        for ours in [false, true] {
            for line in panel.lines.iter().filter(|line| line.look.ours == ours) {
                let (width, radius) = if ours { (3, 4) } else { (1, 3) };
                let pixel = |(at, value): &(u64, f64)| (right.pixel(*at), up.pixel(*value));
                let pixels: Vec<At> = line.points.iter().map(pixel).collect();
                for pixel in &pixels {
                    canvas.dot(*pixel, radius, line.look.ink);
                }
                if pixels.len() > 1 {
                    canvas.line(&pixels, line.look.ink, width);
                }
            }
        }
        self.names(canvas, panel, axes);
    }

    /// The names, each beside the end of its line, or as near as the others let it. A line that
    /// ends before the right edge says where. It is not joined to its name, since that would look
    /// like more of it.
    fn names(&self, canvas: &Canvas, panel: &Panel, axes: &Axes) {
        let (up, right) = (&axes.up, &axes.right);
        let lines = panel.lines.iter();
        let mut ends: Vec<(&Line, u64, f64)> = lines
            .filter_map(|line| line.points.last().map(|(at, value)| (line, *at, *value)))
            .collect();
        ends.sort_by_key(|(_, _, value)| up.pixel(*value));
        let wanted: Vec<i32> = ends.iter().map(|(_, _, value)| up.pixel(*value)).collect();
        let placed = apart(&wanted, LABEL, (axes.from.1, axes.to.1));
        let x = axes.to.0 + 20;
        for ((line, at, value), y) in ends.into_iter().zip(placed) {
            let mut text = format!("{} {}", line.name, digits(value));
            if right.values.last() == Some(&at) {
                let end = (right.pixel(at) + 6, up.pixel(value));
                canvas.line(&[end, (x - 4, y)], line.look.ink, 1);
            } else {
                text += &format!(" at {}", (self.label)(at));
            }
            let size = if line.look.ours { 12.5 } else { 12.0 };
            canvas.name(&text, (x, y), Align::Start, size, line.look);
        }
    }
}

/// The corners of a panel's area, and what lies where in it.
struct Axes {
    from: At,
    to: At,
    up: Scale,
    right: Positions,
}

/// Where the values of the axis to the right are: by their logarithm, and none at all a step before
/// the first.
struct Positions {
    values: Vec<u64>,
    scale: Scale,
}

impl Positions {
    fn of(values: impl Iterator<Item = u64>, pixels: (i32, i32)) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        values.dedup();
        let places = values.iter().map(|value| place(&values, *value));
        let low = places.clone().fold(f64::INFINITY, f64::min);
        let high = places.fold(f64::NEG_INFINITY, f64::max);
        let scale = match high > low {
            true => Scale::between(low, high, pixels),
            false => Scale::between(low - 1.0, low + 1.0, pixels),
        };
        Positions { values, scale }
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

/// Positions near the wanted ones, which are in order, at least `gap` apart and within the bounds
/// if they have room there.
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
