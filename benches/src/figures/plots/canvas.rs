//! What plots are drawn on: an SVG with a background of its own, whose colours follow the reader's
//! choice of light or dark.
//!
//! Colours are attributes. A style sheet in the picture replaces each of them when the reader
//! prefers dark, so a colour has to be one of [`Ink`].

use std::cell::RefCell;
use std::fmt;

/// A pixel.
pub(super) type At = (i32, i32);

/// A colour on light and the one on dark in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ink {
    light: u32,
    dark: u32,
}

const fn ink(light: u32, dark: u32) -> Ink {
    Ink { light, dark }
}

const PAGE: Ink = ink(0xffffff, 0x0d1117);
const BORDER: Ink = ink(0xd0d7de, 0x30363d);
pub(super) const GRID: Ink = ink(0xe4e8ec, 0x222830);
pub(super) const AXIS: Ink = ink(0x8c98a4, 0x6e7680);
const TEXT: Ink = ink(0x1f2328, 0xe6edf3);
const NOTE: Ink = ink(0x4d5761, 0xa9b4bf);
/// Ours, in strong colours.
const OURS: [Ink; 5] = [
    ink(0x0969da, 0x58a6ff),
    ink(0xc2410c, 0xff9b4a),
    ink(0x1a7f37, 0x4ad068),
    ink(0x9a1fb0, 0xe08af5),
    ink(0x007d8a, 0x3dd6e0),
];
/// The others, in muted ones.
const PEERS: [Ink; 8] = [
    ink(0x7a5c2e, 0xc9a86a),
    ink(0x3d7585, 0x7fb8c8),
    ink(0x99496a, 0xd993ae),
    ink(0x4d7a4d, 0x8fbf8f),
    ink(0x6a63a6, 0xa9a3e0),
    ink(0x6f7018, 0xb9ba5f),
    ink(0x6b7280, 0xa3abb6),
    ink(0x8a5a44, 0xd0a08a),
];

impl Ink {
    fn all() -> impl Iterator<Item = Ink> {
        let rest = [PAGE, BORDER, GRID, AXIS, TEXT, NOTE];
        rest.into_iter().chain(OURS).chain(PEERS)
    }
}

impl fmt::Display for Ink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:06X}", self.light)
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
        let ink = inks[number % inks.len()];
        Look { ink, ours }
    }
}

const FONTS: &str = "system-ui, &apos;Segoe UI&apos;, &apos;DejaVu Sans&apos;, sans-serif";
const HEAD: i32 = 66;
/// Of one panel among others, and of one alone.
const WIDTH: i32 = 490;
const ALONE: i32 = 760;
const EDGE: i32 = 22;

/// A picture that is being drawn: the elements so far.
pub(super) struct Canvas(RefCell<String>);

/// On which side of its text a place is.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Start,
    Middle,
    End,
}

impl Canvas {
    fn add(&self, element: fmt::Arguments<'_>) {
        *self.0.borrow_mut() += &format!("{element}\n");
    }

    pub(super) fn line(&self, points: &[At], ink: Ink, width: u32) {
        let points: String = points.iter().map(|(x, y)| format!("{x},{y} ")).collect();
        self.add(format_args!(
            r#"<polyline fill="none" opacity="1" stroke="{ink}" stroke-width="{width}" points="{points}"/>"#
        ));
    }

    pub(super) fn dot(&self, (x, y): At, radius: i32, ink: Ink) {
        self.add(format_args!(
            r#"<circle cx="{x}" cy="{y}" r="{radius}" opacity="1" fill="{ink}" stroke="none" stroke-width="1"/>"#
        ));
    }

    /// A rectangle from one corner to the other.
    pub(super) fn bar(&self, (x, y): At, to: At, ink: Ink) {
        let (width, height) = (to.0 - x, to.1 - y);
        self.add(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" opacity="1" fill="{ink}" stroke="none"/>"#
        ));
    }

    /// A title that begins there.
    pub(super) fn bold(&self, text: &str, at: At, size: f64) {
        self.write(text, at, Align::Start, size, TEXT, true);
    }

    pub(super) fn note(&self, text: &str, at: At, align: Align) {
        self.write(text, at, align, 12.0, NOTE, false);
    }

    /// The name of a system, or its figure.
    pub(super) fn name(&self, text: &str, at: At, align: Align, size: f64, look: Look) {
        self.write(text, at, align, size, look.ink, look.ours);
    }

    /// In the middle of its height.
    fn write(&self, text: &str, (x, y): At, align: Align, size: f64, ink: Ink, bold: bool) {
        let anchor = ["start", "middle", "end"][align as usize];
        let weight = if bold { r#" font-weight="bold""# } else { "" };
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x}" y="{y}" dy="0.5ex" text-anchor="{anchor}" font-family="{FONTS}" font-size="{size}" opacity="1" fill="{ink}"{weight}>
{text}
</text>"#
        ));
    }
}

/// Draws a picture with a heading and these panels, two in a row, and returns it as SVG. `draw`
/// gets the upper left corner of a panel and its width.
pub(super) fn picture<P>(
    (title, notes): (&str, &str),
    panels: &[P],
    height: i32,
    draw: impl Fn(&Canvas, &P, At, i32),
) -> String {
    let columns = panels.len().clamp(1, 2) as i32;
    let rows = (panels.len() as i32 + columns - 1) / columns;
    let each = [ALONE, WIDTH][columns as usize - 1];
    let (width, height_of_all) = (columns * each + 10, HEAD + rows * height);
    let canvas = Canvas(RefCell::default());
    // The colours on dark, and a description for those who do not see the picture.
    let styles = Ink::all().map(|ink| {
        let dark = ink.dark;
        format!(
            "[fill=\"{ink}\"] {{ fill: #{dark:06X}; }} [stroke=\"{ink}\"] {{ stroke: #{dark:06X}; }}\n"
        )
    });
    canvas.add(format_args!(
        r#"<svg role="img" width="{width}" height="{height_of_all}" viewBox="0 0 {width} {height_of_all}" xmlns="http://www.w3.org/2000/svg">
<title>{}</title>
<desc>{}</desc>
<style>
@media (prefers-color-scheme: dark) {{
{}}}
</style>"#,
        escaped(title),
        escaped(notes),
        styles.collect::<String>()
    ));
    canvas.bar((0, 0), (width, height_of_all), PAGE);
    let (right, bottom) = (width - 1, height_of_all - 1);
    let border = [(0, 0), (right, 0), (right, bottom), (0, bottom), (0, 0)];
    canvas.line(&border, BORDER, 1);
    canvas.bold(title, (EDGE, 25), 17.0);
    canvas.note(notes, (EDGE, 47), Align::Start);
    for (number, panel) in (0..).zip(panels) {
        let corner = (number % columns * each, HEAD + number / columns * height);
        draw(&canvas, panel, corner, each);
    }
    canvas.0.into_inner() + "</svg>\n"
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

/// From values to pixels.
pub(super) struct Scale {
    log: bool,
    pixels: (i32, i32),
    low: f64,
    high: f64,
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
            log: true,
            ..Scale::between(low, high, pixels)
        }
    }

    /// From zero to the greatest of the values.
    pub(super) fn from_zero(values: impl IntoIterator<Item = f64>, pixels: (i32, i32)) -> Self {
        let high = values.into_iter().fold(0.0, f64::max).max(1e-9) * 1.05;
        Scale::between(0.0, high, pixels)
    }

    pub(super) fn between(low: f64, high: f64, pixels: (i32, i32)) -> Self {
        Scale {
            log: false,
            pixels,
            low,
            high,
        }
    }

    pub(super) fn pixel(&self, value: f64) -> i32 {
        let place = |value: f64| if self.log { value.ln() } else { value };
        let (low, high) = (place(self.low), place(self.high));
        let part = (place(value.clamp(self.low, self.high)) - low) / (high - low);
        let (from, to) = self.pixels;
        // A place that is a whole pixel stays there, whatever the digits behind the point are.
        match f64::from(to - from) * part {
            right if to > from => from + (right + 1e-3).floor() as i32,
            left => from + (left - 1e-3).ceil() as i32,
        }
    }

    /// Round values in it, at least so many pixels apart.
    pub(super) fn ticks(&self, apart: i32) -> Vec<f64> {
        let choices = match self.log {
            true => self.log_ticks(),
            false => self.linear_ticks(),
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
            let powers = powers.map(|power| 10_f64.powi(power));
            let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
            all.filter(|tick| (self.low..=self.high).contains(tick))
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
