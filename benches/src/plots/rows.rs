//! Panels with a row for each system, the best one first.

use super::canvas::{
    AXIS, Align, Canvas, GRID, HEAD, Look, NOTE, Scale, TEXT, picture, tick_label,
};
use crate::report::digits;

/// A system in a panel.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) look: Look,
    pub(super) value: f64,
    /// Whether timers ran before they were due, and so were not late.
    pub(super) early: bool,
    /// From here to there, if there is more to show than the value.
    pub(super) range: Option<(f64, f64)>,
}

pub(super) struct Panel {
    pub(super) title: String,
    pub(super) rows: Vec<Row>,
}

/// What the rows look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// Dots on a logarithmic axis.
    Dots,
    /// Bars from zero.
    Bars,
}

pub(super) struct Rows<'a> {
    pub(super) title: &'a str,
    pub(super) notes: &'a str,
    pub(super) unit: &'a str,
    pub(super) marks: Marks,
    /// Whether all panels have the same axis, so that they can be compared.
    pub(super) alike: bool,
    pub(super) panels: Vec<Panel>,
}

/// Of one panel among others, and of one alone.
const WIDTH: i32 = 490;
const ALONE: i32 = 760;
/// Around the area of a panel.
const LEFT: i32 = 176;
const RIGHT: i32 = 64;
const TOP: i32 = 40;
const BOTTOM: i32 = 48;
const ROW: i32 = 22;

impl Rows<'_> {
    pub(super) fn svg(&self) -> String {
        let columns = self.panels.len().clamp(1, 2) as i32;
        let most = self.panels.iter().map(|panel| panel.rows.len()).max();
        let height = TOP + most.unwrap_or(0) as i32 * ROW + BOTTOM;
        let rows = (self.panels.len() as i32 + columns - 1) / columns;
        let width = if columns == 1 { ALONE } else { WIDTH };
        let size = (columns * width + 10, HEAD + rows * height);
        picture(self.title, self.notes, size, |canvas| {
            for (number, panel) in (0..).zip(&self.panels) {
                let corner = (number % columns * width, HEAD + number / columns * height);
                self.panel(canvas, panel, corner, width);
            }
        })
    }

    fn panel(&self, canvas: &Canvas<'_>, panel: &Panel, (x, y): (i32, i32), width: i32) {
        let (left, right) = (x + LEFT, x + width - RIGHT);
        let (top, bottom) = (y + TOP, y + TOP + panel.rows.len() as i32 * ROW);
        let panels = if self.alike {
            &*self.panels
        } else {
            std::slice::from_ref(panel)
        };
        let all = panels.iter().flat_map(|panel| &panel.rows);
        let all = all.flat_map(|row| {
            let (from, to) = row.range.unwrap_or((row.value, row.value));
            [row.value, from, to]
        });
        let scale = match self.marks {
            Marks::Dots => Scale::log(all, (left, right)),
            Marks::Bars => Scale::from_zero(all, (left, right)),
        };
        canvas.bold(&panel.title, (x + 22, y + 18), Align::Left, 14.0, TEXT);
        for tick in scale.ticks(38) {
            let x = scale.pixel(tick);
            canvas.line(vec![(x, top), (x, bottom)], GRID, 1);
            canvas.text(
                &tick_label(tick),
                (x, bottom + 14),
                Align::Centre,
                12.0,
                NOTE,
            );
        }
        canvas.line(vec![(left, bottom), (right, bottom)], AXIS, 1);
        let middle = i32::midpoint(left, right);
        canvas.text(self.unit, (middle, bottom + 32), Align::Centre, 12.0, NOTE);
        let mut rows: Vec<&Row> = panel.rows.iter().collect();
        rows.sort_by(|a, b| a.value.total_cmp(&b.value));
        for (number, row) in (0..).zip(rows) {
            self.row(canvas, row, &scale, (left, top + number * ROW + ROW / 2));
        }
    }

    fn row(&self, canvas: &Canvas<'_>, row: &Row, scale: &Scale, (left, y): (i32, i32)) {
        let Look { ink, ours } = row.look;
        let at = scale.pixel(row.value);
        let mut end = at + 6;
        match self.marks {
            Marks::Bars => {
                let half = if ours { 7 } else { 4 };
                canvas.bar((left, y - half), (at, y + half), ink);
            }
            Marks::Dots => {
                if let Some((from, to)) = row.range {
                    let (from, to) = (scale.pixel(from), scale.pixel(to));
                    canvas.line(vec![(from, y), (to, y)], ink, if ours { 3 } else { 1 });
                    canvas.line(vec![(to, y - 4), (to, y + 4)], ink, 1);
                    end = end.max(to + 3);
                }
                canvas.dot((at, y), if ours { 5 } else { 4 }, ink);
            }
        }
        let mut value = digits(row.value);
        if row.early {
            value += ", some early";
        }
        let (name, size) = (&*row.name, 12.5);
        if ours {
            canvas.bold(name, (left - 10, y), Align::Right, size, ink);
            canvas.bold(&value, (end + 4, y), Align::Left, size, ink);
        } else {
            canvas.text(name, (left - 10, y), Align::Right, size, ink);
            canvas.text(&value, (end + 4, y), Align::Left, size, ink);
        }
    }
}
