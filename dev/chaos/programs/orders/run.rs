//! A run: shops take orders while workers are killed, the last orders end, and the journals are
//! counted.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::Options;
use crate::database::{Audit, Books, Cancellation, Database, Fault, NODE_LEASE, Place};
use crate::screen::{Lateness, Screen, millis};
use crate::shop::{self, Sales};
use crate::terminal;
use crate::web::Web;
use crate::worker::Crew;

/// The number of shop threads. SQLite has one writer, so more of them would only wait.
const SHOPS: u32 = 2;

/// The time between two kills.
const KILL_EVERY: Duration = Duration::from_millis(1_500);

/// When the number of open orders does not fall for this time, the run has failed.
const STALLED: Duration = Duration::from_secs(15);

/// The time between two polls of everything.
const STEP: Duration = Duration::from_millis(50);

#[allow(clippy::needless_pass_by_value, reason = "`map_err` gives it by value")]
fn fault(error: impl ToString) -> String {
    error.to_string()
}

/// Runs all of it, and returns what the journals say. An error is the reason why it did not reach
/// its end.
pub(crate) fn run(
    place: &Place,
    database: &dyn Database,
    options: &Options,
) -> Result<Audit, String> {
    let ended = terminal::asked(&[SIGINT, SIGTERM]).map_err(fault)?;
    database.prepare().map_err(fault)?;
    let mut books = database.books().map_err(fault)?;
    let crew = Crew::start(place, options.sabotage, options.workers);
    let web = match options.web {
        true => Some(Web::start(database).map_err(|error| format!("no page: {error}"))?),
        false => None,
    };
    if let Some(web) = &web {
        say!("the page: http://{}/", web.address);
    }
    let mut err = io::stderr();
    let is_terminal = err.is_terminal();
    let mut stage = Stage {
        crew: crew.map_err(|error| format!("no worker can be started: {error}"))?,
        books: books.as_mut(),
        screen: Screen::new(&mut err, is_terminal, terminal::columns),
        cancellations: Vec::new(),
        web,
    };

    let closing = AtomicBool::new(false);
    let interval = Duration::from_secs(1) * SHOPS / options.orders_per_second;
    let refused = thread::scope(|scope| {
        // The shops close also if this thread returns early.
        let _close = Close(&closing);
        let mut shops = Vec::new();
        for _ in 0..SHOPS {
            let mut shop = database.shop().map_err(fault)?;
            let closing = &closing;
            shops.push(scope.spawn(move || shop::run(shop.as_mut(), interval, closing)));
        }
        stage.trade(&shops, Duration::from_secs(options.seconds()), &ended)?;
        closing.store(true, Relaxed);
        let mut refused = 0;
        for shop in shops {
            while !shop.is_finished() {
                stage.step()?;
            }
            refused += sales(shop).map_err(fault)?.refused;
        }
        Ok::<_, String>(refused)
    })?;
    stage.drain()?;
    stage.show()?;
    stage.screen.close();

    let Stage {
        crew,
        books,
        cancellations,
        ..
    } = stage;
    let kills = crew.kills;
    crew.stop()?;
    let audit = books.audit().map_err(fault)?;
    conclude(&cancellations, kills, refused);
    Ok(audit)
}

/// Writes what is worth to be known besides the last line.
fn conclude(cancellations: &[Cancellation], kills: u32, refused: u64) {
    say!("workers killed by SIGKILL: {kills}");
    let (first, again): (Vec<_>, Vec<_>) = cancellations
        .iter()
        .copied()
        .partition(|cancellation| cancellation.attempt == 1);
    for (name, group) in [
        ("cancelled by their first run", first),
        (
            "cancelled by a later run, since the first was killed",
            again,
        ),
    ] {
        match Lateness::of(&group) {
            Some(Lateness { p50, p99, max }) => say!(
                "{name}: {}, lateness p50 {} p99 {} max {}",
                group.len(),
                millis(p50),
                millis(p99),
                millis(max)
            ),
            None => say!("{name}: 0"),
        }
    }
    say!("payments that came after the order was cancelled, and were refused: {refused}");
}

fn sales(shop: ScopedJoinHandle<'_, Result<Sales, Fault>>) -> Result<Sales, String> {
    match shop.join() {
        Ok(sales) => sales.map_err(|error| format!("a shop has failed: {error}")),
        Err(_) => Err("a shop has panicked".to_owned()),
    }
}

struct Close<'a>(&'a AtomicBool);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Everything that a run watches.
struct Stage<'a> {
    crew: Crew,
    books: &'a mut dyn Books,
    screen: Screen<'a>,
    /// The cancellations of this run.
    cancellations: Vec<Cancellation>,
    /// With a page, workers are killed by its button alone.
    web: Option<Web>,
}

impl Stage<'_> {
    /// The shops take orders, and workers are killed.
    fn trade(
        &mut self,
        shops: &[ScopedJoinHandle<'_, Result<Sales, Fault>>],
        time: Duration,
        ended: &AtomicBool,
    ) -> Result<(), String> {
        let start = Instant::now();
        let mut last_kill = start;
        while start.elapsed() < time {
            if ended.load(Relaxed) {
                self.screen
                    .note("no further orders; the last ones are paid or cancelled");
                break;
            }
            // A shop that has ended has failed, and says why when it is joined.
            if shops.iter().any(ScopedJoinHandle::is_finished) {
                break;
            }
            let kills = match &self.web {
                Some(web) => web.asks_for_a_kill(),
                None => last_kill.elapsed() >= KILL_EVERY,
            };
            if kills {
                last_kill = Instant::now();
                let killed = self.crew.kill_one().map_err(fault)?;
                self.tell(&match killed {
                    Some(number) => format!(
                        "worker {number} was killed: the others take its runs when its lease of {NODE_LEASE:?} ends; \
                         another worker starts"
                    ),
                    None => "a worker is still starting: nobody was killed".to_owned(),
                });
            }
            self.step()?;
        }
        Ok(())
    }

    /// Waits until each order is paid or cancelled.
    fn drain(&mut self) -> Result<(), String> {
        let mut least = i64::MAX;
        let mut since = Instant::now();
        loop {
            let open = self.books.audit().map_err(fault)?.neither;
            if open == 0 {
                return Ok(());
            }
            if open < least {
                (least, since) = (open, Instant::now());
            }
            if since.elapsed() > STALLED {
                self.screen.note(&format!(
                    "{open} orders are neither paid nor cancelled, and nothing happens any more"
                ));
                return Ok(());
            }
            self.step()?;
        }
    }

    /// Tells those who look at the page.
    fn tell(&self, line: &str) {
        if let Some(web) = &self.web {
            web.tell(line);
        }
    }

    fn step(&mut self) -> Result<(), String> {
        for line in self.crew.listen()? {
            self.screen.note(&line);
            self.tell(&line);
        }
        if self.screen.is_due() {
            self.show()?;
        }
        thread::sleep(STEP);
        Ok(())
    }

    fn show(&mut self) -> Result<(), String> {
        let progress = self.books.progress().map_err(fault)?;
        self.cancellations.extend_from_slice(&progress.fresh);
        let (workers, kills) = (self.crew.ready(), self.crew.kills);
        self.screen.line(&progress, workers, kills);
        Ok(())
    }
}
