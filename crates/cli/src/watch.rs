//! A table that is drawn again and again, in plain text: good over ssh, and at 80 x 24.

use std::io::{IsTerminal, Write};
use std::thread;
use std::time::{Duration, SystemTime};

use terminal_size::{Height, Width, terminal_size};

use crate::commands::Session;
use crate::failure::Failure;
use crate::show::{write_nodes, write_queues, write_timers};
use tourbillon_web::times::time;

/// The store is asked no more often.
const LEAST: Duration = Duration::from_millis(500);

/// Draws the table until it was drawn `times` times, or for ever. A store that fails is shown, and
/// asked again.
pub(crate) fn run(
    session: &Session,
    out: &mut impl Write,
    every: Duration,
    times: Option<u32>,
) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    for look in 1.. {
        let size = terminal_size().filter(|_| is_terminal);
        let (width, height) = size.map_or((80, 24), |(Width(width), Height(height))| {
            (usize::from(width), usize::from(height))
        });
        let mut screen = Vec::new();
        writeln!(
            screen,
            "tourbillon   {}   Ctrl-C ends it",
            time(SystemTime::now())
        )?;
        if let Err(failure) = draw(session, &mut screen, width, height) {
            writeln!(screen, "{failure}")?;
        }
        let text = String::from_utf8_lossy(&screen);
        // One line is left for the cursor, so that nothing moves up.
        let lines = text.lines().take(height.saturating_sub(1));
        if is_terminal {
            // Home; each line ends in "clear to the end"; then the rest of the screen. So nothing flickers.
            write!(out, "\x1b[H")?;
            for line in lines {
                write!(out, "{line}\x1b[K\r\n")?;
            }
            write!(out, "\x1b[J")?;
        } else {
            for line in lines {
                writeln!(out, "{line}")?;
            }
        }
        out.flush()?;
        if times == Some(look) {
            return Ok(());
        }
        thread::sleep(every.max(LEAST));
    }
    Ok(())
}

/// Queues, nodes, and as many timers as there is room for.
fn draw(session: &Session, out: &mut Vec<u8>, width: usize, height: usize) -> Result<(), Failure> {
    let (counts, nodes) = (session.counts()?, session.nodes()?);
    writeln!(out)?;
    // A third of the screen for each at most.
    let part = (height / 3).max(3);
    write_queues(out, &counts[..counts.len().min(part)], width)?;
    more(out, counts.len(), part, "queues")?;
    writeln!(out)?;
    write_nodes(out, &nodes[..nodes.len().min(part)], width)?;
    more(out, nodes.len(), part, "nodes")?;
    writeln!(out)?;
    let used = out.iter().filter(|byte| **byte == b'\n').count();
    let left = height.saturating_sub(used + 2).clamp(1, 1_000);
    let next = session.next(u32::try_from(left).unwrap_or(1_000))?;
    write_timers(out, &next, None, width)?;
    Ok(())
}

fn more(out: &mut Vec<u8>, all: usize, shown: usize, what: &str) -> Result<(), Failure> {
    if all > shown {
        writeln!(out, "and {} {what} more", all - shown)?;
    }
    Ok(())
}
