//! A progress bar in one line of a terminal.

use std::io::Write;
use std::time::{Duration, Instant};

/// The shortest time between two updates. The eye would not see more of them.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest bar.
const WIDTH: usize = 40;
/// The columns of a line without its label and its bar: a space, two brackets, `100 %` with a space
/// in front, and the last column, which stays free so that the line does not wrap.
const BESIDE: usize = 10;

/// A progress bar. Its drop clears the line for the next output. Without a terminal it shows
/// nothing.
pub(crate) struct Bar<'a> {
    label: &'static str,
    total: u64,
    width: usize,
    err: &'a mut dyn Write,
    shown: bool,
    /// The count at which the clock is read again. Reading it for each step would cost more than
    /// the step.
    next_look: u64,
    next_draw: Option<Instant>,
}

impl<'a> Bar<'a> {
    /// Creates a bar for a terminal with this number of columns, or for no terminal.
    pub(crate) fn new(
        label: &'static str,
        total: u64,
        err: &'a mut dyn Write,
        terminal: Option<usize>,
    ) -> Self {
        // Small inputs are finished before a bar could be seen.
        let next_draw = terminal.map(|_| Instant::now() + PAUSE);
        let room = terminal.map_or(0, |columns| columns.saturating_sub(label.len() + BESIDE));
        Bar {
            label,
            total,
            width: room.min(WIDTH),
            err,
            shown: false,
            next_look: 0,
            next_draw,
        }
    }

    pub(crate) fn show(&mut self, done: u64) {
        let Some(next_draw) = self.next_draw else {
            return;
        };
        if done < self.next_look {
            return;
        }
        self.next_look = done + self.total / 1_000;
        let now = Instant::now();
        if now >= next_draw {
            self.next_draw = Some(now + PAUSE);
            self.draw(done);
        }
    }

    fn draw(&mut self, done: u64) {
        self.shown = true;
        // A pipe has no size, and a file may grow while it is read.
        let total = self.total.max(done).max(1);
        let part = |of: u64| (u128::from(done) * u128::from(of) / u128::from(total)) as u64;
        let full = part(self.width as u64) as usize;
        let empty = self.width - full;
        let percent = part(100);
        let label = self.label;
        let _ = write!(
            self.err,
            "\r{label} [{:#<full$}{:.<empty$}] {percent:>3} %",
            "", ""
        );
        let _ = self.err.flush();
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(self.err, "\r\x1b[K");
            let _ = self.err.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_and_is_wiped() {
        let mut err = Vec::new();
        let mut bar = Bar::new("reading", 200, &mut err, Some(80));
        bar.draw(0);
        bar.draw(50);
        bar.draw(200);
        bar.draw(300);
        drop(bar);
        let bars = |full: usize| format!("[{}{}]", "#".repeat(full), ".".repeat(40 - full));
        let expected = [(0, "  0"), (10, " 25"), (40, "100"), (40, "100")]
            .map(|(full, percent)| format!("\rreading {} {percent} %", bars(full)))
            .concat();
        assert_eq!(String::from_utf8(err).expect("text"), expected + "\r\x1b[K");
    }

    #[test]
    fn a_bar_fits_into_its_terminal() {
        for columns in [20, 40, 57, 58, 80] {
            let mut err = Vec::new();
            let mut bar = Bar::new("replaying", 200, &mut err, Some(columns));
            bar.draw(100);
            drop(bar);
            let drawn = String::from_utf8(err).expect("text");
            let drawn = drawn.trim_start_matches('\r').split('\r').next();
            let length = drawn.map_or(0, str::len);
            assert_eq!(length, (columns - 1).min(58), "{columns}");
        }
    }

    #[test]
    fn off_a_terminal_there_is_no_bar() {
        let mut err = Vec::new();
        let mut bar = Bar::new("reading", 200, &mut err, None);
        (0..=200).for_each(|done| bar.show(done));
        drop(bar);
        assert!(err.is_empty());
    }
}
