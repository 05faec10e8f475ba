//! A program that writes what its timers are busy with when it gets the signal SIGUSR1, also while its
//! workers are blocked: from another terminal, `pkill -USR1 dump_on_signal`. Here it signals itself,
//! writes one dump, and ends.
//!
//! ```sh
//! cargo run --release --example dump_on_signal
//! ```

use std::error::Error;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use signal_hook::consts::SIGUSR1;
use signal_hook::iterator::Signals;
use signal_hook::low_level::raise;
use tourbillon::Scheduler;

fn main() -> Result<(), Box<dyn Error>> {
    let scheduler = Scheduler::<&str>::builder().name("jobs").build()?;
    let timers = scheduler.handle();

    // The signal only wakes this thread, so it may do what a handler of a signal must not.
    let mut signals = Signals::new([SIGUSR1])?;
    let (watched, (dumped, dumps)) = (timers.clone(), mpsc::channel());
    let watcher = signals.handle();
    let thread = thread::spawn(move || {
        for _ in signals.forever() {
            // A server would write it to its log.
            let _ = write!(io::stdout(), "{}", watched.dump());
            let _ = dumped.send(());
        }
    });

    // A task that hangs, and one that is due in half an hour.
    let (release, released) = mpsc::channel::<()>();
    let (hangs, hanging) = mpsc::channel();
    timers.schedule("report", Duration::ZERO, move |_| {
        let _ = hangs.send(());
        let _ = released.recv();
    })?;
    timers.schedule("cleanup", Duration::from_secs(1800), |_| ())?;
    hanging.recv()?;

    raise(SIGUSR1)?;
    dumps.recv()?;
    drop(release);
    watcher.close();
    thread
        .join()
        .map_err(|_| "the thread of the signals panicked")?;
    Ok(())
}
