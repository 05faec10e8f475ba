//! What plots are drawn on: an SVG with a background of its own, whose colours follow the reader's
//! choice of light or dark.
//!
//! The drawing library writes colours as attributes. A style sheet in the picture replaces each of
//! them when the reader prefers dark, so a colour has to be one of [`Ink`].

use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A pixel.
pub(super) type At = (i32, i32);

/// A colour on light and the one on dark in its place, both as `#RRGGBB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ink {
    light: (u8, u8, u8),
    dark: (u8, u8, u8),
}

const fn ink(light: (u8, u8, u8), dark: (u8, u8, u8)) -> Ink {
    Ink { light, dark }
}

const PAGE: Ink = ink((0xff, 0xff, 0xff), (0x0d, 0x11, 0x17));
const BORDER: Ink = ink((0xd0, 0xd7, 0xde), (0x30, 0x36, 0x3d));
pub(super) const GRID: Ink = ink((0xe4, 0xe8, 0xec), (0x22, 0x28, 0x30));
pub(super) const AXIS: Ink = ink((0x8c, 0x98, 0xa4), (0x6e, 0x76, 0x80));
const TEXT: Ink = ink((0x1f, 0x23, 0x28), (0xe6, 0xed, 0xf3));
const NOTE: Ink = ink((0x4d, 0x57, 0x61), (0xa9, 0xb4, 0xbf));
/// Ours, in strong colours.
const OURS: [Ink; 5] = [
    ink((0x09, 0x69, 0xda), (0x58, 0xa6, 0xff)),
    ink((0xc2, 0x41, 0x0c), (0xff, 0x9b, 0x4a)),
    ink((0x1a, 0x7f, 0x37), (0x4a, 0xd0, 0x68)),
    ink((0x9a, 0x1f, 0xb0), (0xe0, 0x8a, 0xf5)),
    ink((0x00, 0x7d, 0x8a), (0x3d, 0xd6, 0xe0)),
];
/// The others, in muted ones.
const PEERS: [Ink; 8] = [
    ink((0x7a, 0x5c, 0x2e), (0xc9, 0xa8, 0x6a)),
    ink((0x3d, 0x75, 0x85), (0x7f, 0xb8, 0xc8)),
    ink((0x99, 0x49, 0x6a), (0xd9, 0x93, 0xae)),
    ink((0x4d, 0x7a, 0x4d), (0x8f, 0xbf, 0x8f)),
    ink((0x6a, 0x63, 0xa6), (0xa9, 0xa3, 0xe0)),
    ink((0x6f, 0x70, 0x18), (0xb9, 0xba, 0x5f)),
    ink((0x6b, 0x72, 0x80), (0xa3, 0xab, 0xb6)),
    ink((0x8a, 0x5a, 0x44), (0xd0, 0xa0, 0x8a)),
];

impl Ink {
    fn all() -> impl Iterator<Item = Ink> {
        let rest = [PAGE, BORDER, GRID, AXIS, TEXT, NOTE];
        rest.into_iter().chain(OURS).chain(PEERS)
    }

    fn color(self) -> RGBColor {
        let (red, green, blue) = self.light;
        RGBColor(red, green, blue)
    }
}

/// How a system looks in all plots of a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) ink: Ink,
    pub(super) ours: bool,
}

impl Look {
    /// Of the system with this number among ours, or among the peers.
    pub(super) fn of(number: usize, ours: bool) -> Self {
        let inks: &[Ink] = if ours { &OURS } else { &PEERS };
        Look {
            ink: inks[number % inks.len()],
            ours,
        }
    }
}

const FONTS: &str = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
/// What the library divides sizes by.
const EM: f64 = 1.24;
const HEAD: i32 = 66;
/// Of one panel among others, and of one alone.
const WIDTH: i32 = 490;
const ALONE: i32 = 760;
const EDGE: i32 = 22;

/// A picture that is being drawn.
pub(super) struct Canvas<'a> {
    root: DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
}

/// Nothing can go wrong in memory.
const DRAWN: &str = "a string takes everything";

impl Canvas<'_> {
    pub(super) fn line(&self, points: Vec<At>, ink: Ink, width: u32) {
        let style = ink.color().stroke_width(width);
        let line = PathElement::new(points, style);
        self.root.draw(&line).expect(DRAWN);
    }

    pub(super) fn dot(&self, at: At, radius: i32, ink: Ink) {
        let dot = Circle::new(at, radius, ink.color().filled());
        self.root.draw(&dot).expect(DRAWN);
    }

    /// A rectangle from one corner to the other.
    pub(super) fn bar(&self, from: At, to: At, ink: Ink) {
        let bar = Rectangle::new([from, to], ink.color().filled());
        self.root.draw(&bar).expect(DRAWN);
    }

    /// A title that begins there.
    pub(super) fn bold(&self, text: &str, at: At, size: f64) {
        self.write(text, at, HPos::Left, size, TEXT, true);
    }

    pub(super) fn note(&self, text: &str, at: At, align: HPos) {
        self.write(text, at, align, 12.0, NOTE, false);
    }

    /// The name of a system, or its figure.
    pub(super) fn name(&self, text: &str, at: At, align: HPos, size: f64, look: Look) {
        self.write(text, at, align, size, look.ink, look.ours);
    }

    /// In the middle of its height.
    fn write(&self, text: &str, at: At, align: HPos, size: f64, ink: Ink, bold: bool) {
        let font = match bold {
            true => FontStyle::Bold,
            false => FontStyle::Normal,
        };
        let color = ink.color();
        let style = TextStyle::from((FONTS, size * EM, font).into_font())
            .pos(Pos::new(align, VPos::Center))
            .color(&color);
        let text = Text::new(text.to_owned(), at, style);
        self.root.draw(&text).expect(DRAWN);
    }
}

/// Draws a picture with a heading and these panels, two in a row, and returns it as SVG. `draw`
/// gets the upper left corner of a panel and its width.
pub(super) fn picture<P>(
    (title, notes): (&str, &str),
    panels: &[P],
    height: i32,
    draw: impl Fn(&Canvas<'_>, &P, At, i32),
) -> String {
    let columns = panels.len().clamp(1, 2) as i32;
    let rows = (panels.len() as i32 + columns - 1) / columns;
    let width = [ALONE, WIDTH][columns as usize - 1];
    let size = (columns * width + 10, HEAD + rows * height);
    let mut svg = String::new();
    {
        let backend = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32));
        let root = backend.into_drawing_area();
        let canvas = Canvas { root };
        canvas.bar((0, 0), size, PAGE);
        let (right, bottom) = (size.0 - 1, size.1 - 1);
        let frame = vec![(0, 0), (right, 0), (right, bottom), (0, bottom), (0, 0)];
        canvas.line(frame, BORDER, 1);
        canvas.bold(title, (EDGE, 25), 17.0);
        canvas.note(notes, (EDGE, 47), HPos::Left);
        for (number, panel) in (0..).zip(panels) {
            let corner = (number % columns * width, HEAD + number / columns * height);
            draw(&canvas, panel, corner, width);
        }
        canvas.root.present().expect(DRAWN);
    }
    with_styles(&svg, title, notes)
}

/// With the colours on dark, and a description for those who do not see the picture.
fn with_styles(svg: &str, title: &str, notes: &str) -> String {
    let hex = |(red, green, blue): (u8, u8, u8)| format!("#{red:02X}{green:02X}{blue:02X}");
    let mut style = String::from("@media (prefers-color-scheme: dark) {\n");
    for ink in Ink::all() {
        let (light, dark) = (hex(ink.light), hex(ink.dark));
        style += &format!(
            "[fill=\"{light}\"] {{ fill: {dark}; }} [stroke=\"{light}\"] {{ stroke: {dark}; }}\n"
        );
    }
    style += "}\n";
    let (tag, rest) = svg
        .split_once('\n')
        .expect("the first line is the first tag");
    let tag = tag.replacen("<svg", "<svg role=\"img\"", 1);
    let (title, notes) = (escaped(title), escaped(notes));
    format!("{tag}\n<title>{title}</title>\n<desc>{notes}</desc>\n<style>\n{style}</style>\n{rest}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// From values to pixels.
pub(super) struct Scale {
    coord: Coord,
    pixels: (i32, i32),
    low: f64,
    high: f64,
}

enum Coord {
    Linear(RangedCoordf64),
    Log(plotters::coord::combinators::LogCoord<f64>),
}

/// Room beyond the least and the greatest value, as a factor.
const ROOM: f64 = 1.25;

impl Scale {
    /// A logarithmic one that has all of the values in it. What is not above zero lies at its low
    /// end.
    pub(super) fn log(values: impl IntoIterator<Item = f64>, pixels: (i32, i32)) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(|value| *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        (low, high) = (low / ROOM, high * ROOM);
        // One decade at least, or a difference of nothing would look like one.
        if high / low < 10.0 {
            let middle = (low * high).sqrt();
            (low, high) = (middle / 10_f64.sqrt(), middle * 10_f64.sqrt());
        }
        Scale {
            coord: Coord::Log((low..high).log_scale().into()),
            pixels,
            low,
            high,
        }
    }

    /// From zero to the greatest of the values.
    pub(super) fn from_zero(values: impl IntoIterator<Item = f64>, pixels: (i32, i32)) -> Self {
        let high = values.into_iter().fold(0.0, f64::max).max(1e-9) * 1.05;
        Scale::between(0.0, high, pixels)
    }

    pub(super) fn between(low: f64, high: f64, pixels: (i32, i32)) -> Self {
        Scale {
            coord: Coord::Linear((low..high).into()),
            pixels,
            low,
            high,
        }
    }

    pub(super) fn pixel(&self, value: f64) -> i32 {
        let value = value.clamp(self.low, self.high);
        match &self.coord {
            Coord::Linear(coord) => coord.map(&value, self.pixels),
            Coord::Log(coord) => coord.map(&value, self.pixels),
        }
    }

    /// Round values in it, at least so many pixels apart.
    pub(super) fn ticks(&self, apart: i32) -> Vec<f64> {
        let choices: Vec<Vec<f64>> = match &self.coord {
            Coord::Linear(_) => self.linear_ticks(),
            Coord::Log(_) => self.log_ticks(),
        };
        let fits = |ticks: &Vec<f64>| {
            let mut both = ticks.windows(2);
            both.all(|two| (self.pixel(two[1]) - self.pixel(two[0])).abs() >= apart)
        };
        choices.into_iter().find(fits).unwrap_or_default()
    }

    /// From many to few.
    fn linear_ticks(&self) -> Vec<Vec<f64>> {
        let power = 10_f64.powf((self.high - self.low).log10().floor() - 1.0);
        let steps = [2.0, 5.0, 10.0, 20.0, 50.0, 100.0].map(|factor| factor * power);
        let ticks = |step: f64| -> Vec<f64> {
            let first = (self.low / step).ceil() as i64;
            let last = (self.high / step).floor() as i64;
            let numbers = first..=last;
            numbers.map(|number| number as f64 * step).collect()
        };
        steps.map(ticks).to_vec()
    }

    /// From many to few.
    fn log_ticks(&self) -> Vec<Vec<f64>> {
        let from = self.low.log10().floor() as i32;
        let to = self.high.log10().ceil() as i32;
        let ticks = |factors: &[f64], step: i32| -> Vec<f64> {
            let powers = (from..=to).filter(|power| power.rem_euclid(step) == 0);
            powers
                .map(|power| 10_f64.powi(power))
                .flat_map(|power| factors.iter().map(move |factor| factor * power))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let mut choices = vec![ticks(&[1.0, 2.0, 5.0], 1), ticks(&[1.0, 3.0], 1)];
        choices.extend((1..=4).map(|step| ticks(&[1.0], step)));
        choices
    }
}

/// A number at an axis: short, and with as many digits as it needs.
pub(super) fn tick_label(value: f64) -> String {
    if value >= 10_000.0 {
        return crate::figures::row::short(value.round() as u64);
    }
    let digits = (0..4).find(|digits| {
        let shown: f64 = format!("{value:.digits$}").parse().unwrap_or(value);
        (shown - value).abs() <= 1e-6 * value.abs()
    });
    format!("{value:.digits$}", digits = digits.unwrap_or(4))
}
