//! Panels with a bar for each system, the best one first.

use super::canvas::{AXIS, Align, At, Canvas, GRID, Look, Scale, picture, tick_label};
use crate::figures::row::digits;

/// A system in a panel.
pub(super) struct Bar {
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
    pub(super) bars: Vec<Bar>,
}

/// What the bars look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marks {
    /// Dots on a logarithmic axis.
    Dots,
    /// Bars from zero.
    Bars,
}

pub(super) struct Bars<'a> {
    pub(super) title: &'a str,
    pub(super) notes: &'a str,
    pub(super) unit: &'a str,
    pub(super) marks: Marks,
    /// Whether all panels have the same axis, so that they can be compared.
    pub(super) alike: bool,
    pub(super) panels: Vec<Panel>,
}

/// Around the area of a panel.
const LEFT: i32 = 176;
const RIGHT: i32 = 64;
const TOP: i32 = 40;
const BOTTOM: i32 = 48;
const ROW: i32 = 22;

impl Bars<'_> {
    pub(super) fn svg(&self) -> String {
        let most = self.panels.iter().map(|panel| panel.bars.len()).max();
        let height = TOP + most.unwrap_or(0) as i32 * ROW + BOTTOM;
        let heading = (self.title, self.notes);
        let draw = |canvas: &_, panel: &_, at, width| self.panel(canvas, panel, at, width);
        picture(heading, &self.panels, height, draw)
    }

    fn panel(&self, canvas: &Canvas, panel: &Panel, (x, y): At, width: i32) {
        let (left, right) = (x + LEFT, x + width - RIGHT);
        let (top, bottom) = (y + TOP, y + TOP + panel.bars.len() as i32 * ROW);
        let panels = match self.alike {
            true => &*self.panels,
            false => std::slice::from_ref(panel),
        };
        let all = panels.iter().flat_map(|panel| &panel.bars);
        let all = all.flat_map(|bar| {
            let (from, to) = bar.range.unwrap_or((bar.value, bar.value));
            [bar.value, from, to]
        });
        let scale = match self.marks {
            Marks::Dots => Scale::log(all, (left, right)),
            Marks::Bars => Scale::from_zero(all, (left, right)),
        };
        canvas.bold(&panel.title, (x + 22, y + 18), 14.0);
        for tick in scale.ticks(38) {
            let x = scale.pixel(tick);
            canvas.line(&[(x, top), (x, bottom)], GRID, 1);
            canvas.note(&tick_label(tick), (x, bottom + 14), Align::Middle);
        }
        canvas.line(&[(left, bottom), (right, bottom)], AXIS, 1);
        let middle = i32::midpoint(left, right);
        canvas.note(self.unit, (middle, bottom + 32), Align::Middle);
        let mut bars: Vec<&Bar> = panel.bars.iter().collect();
        bars.sort_by(|a, b| a.value.total_cmp(&b.value));
        for (number, bar) in (0..).zip(bars) {
            self.bar(canvas, bar, &scale, (left, top + number * ROW + ROW / 2));
        }
    }

    fn bar(&self, canvas: &Canvas, bar: &Bar, scale: &Scale, (left, y): At) {
        let Look { ink, ours } = bar.look;
        let at = scale.pixel(bar.value);
        let mut end = at + 6;
        match self.marks {
            Marks::Bars => {
                let half = if ours { 7 } else { 4 };
                canvas.bar((left, y - half), (at, y + half), ink);
            }
            Marks::Dots => {
                if let Some((from, to)) = bar.range {
                    let (from, to) = (scale.pixel(from), scale.pixel(to));
                    canvas.line(&[(from, y), (to, y)], ink, if ours { 3 } else { 1 });
                    canvas.line(&[(to, y - 4), (to, y + 4)], ink, 1);
                    end = end.max(to + 3);
                }
                canvas.dot((at, y), if ours { 5 } else { 4 }, ink);
            }
        }
        let mut value = digits(bar.value);
        if bar.early {
            value += ", some early";
        }
        canvas.name(&bar.name, (left - 10, y), Align::End, 12.5, bar.look);
        canvas.name(&value, (end + 4, y), Align::Start, 12.5, bar.look);
    }
}
