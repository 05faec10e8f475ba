//! The live line on stderr. On a terminal it is updated in place; otherwise each second has a line.
//! A reader that has gone is no fault.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::database::{Cancellation, Progress};

pub(crate) struct Screen<'a> {
    err: &'a mut dyn Write,
    in_place: bool,
    columns: fn() -> usize,
    /// Whether a line is shown that the next one will replace.
    shown: bool,
    start: Instant,
    last: Instant,
}

impl<'a> Screen<'a> {
    pub(crate) fn new(err: &'a mut dyn Write, in_place: bool, columns: fn() -> usize) -> Self {
        let start = Instant::now();
        Screen {
            err,
            in_place,
            columns,
            shown: false,
            start,
            last: start,
        }
    }

    /// Whether it is time for the next line.
    pub(crate) fn is_due(&self) -> bool {
        let interval = Duration::from_millis(if self.in_place { 250 } else { 1_000 });
        self.last.elapsed() >= interval
    }

    pub(crate) fn line(&mut self, progress: &Progress, workers: usize, kills: u32) {
        self.last = Instant::now();
        let Progress {
            orders,
            paid,
            cancelled,
            fresh,
        } = progress;
        let open = (orders - paid - cancelled).max(0);
        let late = match Lateness::of(fresh) {
            Some(late) => format!("late p50 {} max {}", millis(late.p50), millis(late.max)),
            None => "late -".to_owned(),
        };
        let line = format!(
            "{:5.1} s  orders {orders}  paid {paid}  cancelled {cancelled}  open {open}  \
             workers {workers}  killed {kills}  {late}",
            self.start.elapsed().as_secs_f64()
        );
        if self.in_place {
            let width = (self.columns)().saturating_sub(1);
            let line: String = line.chars().take(width).collect();
            let _ = write!(self.err, "\r{line}\x1b[K");
            self.shown = true;
        } else {
            let _ = writeln!(self.err, "{line}");
        }
        let _ = self.err.flush();
    }

    /// Writes a line that stays.
    pub(crate) fn note(&mut self, text: &str) {
        self.close();
        let _ = writeln!(self.err, "{text}");
    }

    /// Keeps the current line.
    pub(crate) fn close(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = writeln!(self.err);
        }
    }
}

/// How late cancellations were.
pub(crate) struct Lateness {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Lateness {
    pub(crate) fn of<'a>(
        cancellations: impl IntoIterator<Item = &'a Cancellation>,
    ) -> Option<Lateness> {
        let mut all: Vec<Duration> = cancellations
            .into_iter()
            .map(|cancellation| cancellation.lateness)
            .collect();
        all.sort_unstable();
        let at = |part: usize| all[(all.len() - 1) * part / 100];
        (!all.is_empty()).then(|| Lateness {
            p50: at(50),
            p99: at(99),
            max: at(100),
        })
    }
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_sorted_and_may_be_missing() {
        assert!(Lateness::of(&[]).is_none());
        let all: Vec<_> = (0..=100)
            .rev()
            .map(|millis| Cancellation {
                lateness: Duration::from_millis(millis),
                attempt: 1,
            })
            .collect();
        let late = Lateness::of(&all).expect("some");
        let shown = [late.p50, late.p99, late.max].map(millis);
        assert_eq!(shown, ["50.0 ms", "99.0 ms", "100.0 ms"]);
    }

    #[test]
    fn on_a_terminal_the_line_is_replaced_and_cut() {
        let progress = Progress::default();
        let mut err = Vec::new();
        let mut screen = Screen::new(&mut err, true, || 20);
        screen.line(&progress, 3, 0);
        screen.note("a note");
        let text = String::from_utf8(err).expect("text");
        assert_eq!(text, "\r  0.0 s  orders 0  \x1b[K\na note\n");
    }
}
