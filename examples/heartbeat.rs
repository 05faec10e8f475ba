//! A node beats five times a second, and a watchdog waits for the beats. Once the node stands still
//! for a while. The watchdog raises its alarm. The missed beats are not made up for: the next beat
//! reports how many were missed.
//!
//! ```sh
//! cargo run --release --example heartbeat
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tourbillon::{Handle, Next, Period, Scheduler, Shutdown};

const BEAT: Duration = Duration::from_millis(200);
/// The time without a beat after which the watchdog raises its alarm.
const PATIENCE: Duration = Duration::from_millis(500);
/// The time for which the node stands still: three and a half beats.
const STALL: Duration = Duration::from_millis(700);
const BEATS: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Node,
    Watchdog,
}

enum Event {
    Beat { number: u64, missed: u64 },
    Alarm,
    Gone,
}

/// Arms the watchdog, or moves its alarm.
fn watch(timers: &Handle<Key>, events: &mpsc::Sender<Event>) {
    let events = events.clone();
    // Refused only by a scheduler that is shut down, which watches nobody any more.
    let _ = timers.schedule(Key::Watchdog, PATIENCE, move |_| {
        let _ = events.send(Event::Alarm);
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout();
    let scheduler = Scheduler::<Key>::builder().build()?;
    let timers = scheduler.handle();
    let (events, heard) = mpsc::channel();

    watch(&timers, &events);
    timers.repeat(Key::Node, Period::fixed_rate(BEAT), move |round| {
        let (number, missed) = (round.number(), round.missed());
        let _ = events.send(Event::Beat { number, missed });
        watch(round.handle(), &events);
        if number == 4 {
            // This stands for a long garbage collection, a swapped-out page, or a stopped process.
            thread::sleep(STALL);
        }
        if number < BEATS {
            return Next::Again;
        }
        round.handle().cancel(&Key::Watchdog);
        let _ = events.send(Event::Gone);
        Next::Stop
    })?;

    let (mut beats, mut all_missed, mut alarms) = (0, 0, 0);
    for event in heard {
        match event {
            Event::Beat { number, missed } => {
                writeln!(out, "beat {number}, {missed} missed")?;
                beats += 1;
                all_missed += missed;
            }
            Event::Alarm => {
                writeln!(out, "alarm: no beat for {PATIENCE:?}")?;
                alarms += 1;
            }
            Event::Gone => break,
        }
    }
    let alarm = if alarms == 1 { "alarm" } else { "alarms" };
    writeln!(out, "{beats} beats, {all_missed} missed, {alarms} {alarm}")?;
    let report = scheduler.shutdown(Shutdown::HandBack).wait()?;
    assert!(report.handed_back.is_empty() && timers.stats().balances());
    Ok(())
}
