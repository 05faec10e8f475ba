//! Keys that are moved again and again beside somebody's open transaction.

use std::time::{Duration, Instant};

use tourbillon_durable::Durable;

use crate::place::client;
use crate::{Failure, Here, Wish};

const QUEUE: &str = "moved";
const KEYS: u64 = 5;
const DAY: Duration = Duration::from_secs(86_400);

/// Moves five keys as fast as one caller can, without such a transaction and beside one.
pub(crate) fn moved(here: &Here, wish: &Wish) -> Result<(), Failure> {
    let place = here.postgres();
    let timers = Durable::builder(place.store()?).start()?;
    for key in 0..KEYS {
        timers
            .schedule(QUEUE, &format!("key:{key}"), DAY, &key)
            .wait()?;
    }
    for open in [false, true] {
        let mut other = client(&place.argument())?;
        if open {
            // The first query takes the snapshot.
            other.batch_execute("begin isolation level repeatable read; select 1")?;
        }
        let quarter = wish.sizes.held_open / 4;
        let mut rates = Vec::new();
        for _ in 0..4 {
            let start = Instant::now();
            let mut moves = 0_u64;
            while start.elapsed() < quarter {
                let key = format!("key:{}", moves % KEYS);
                // Each move changes the time.
                let due = DAY + Duration::from_millis(moves % 1_000);
                timers.reschedule(QUEUE, &key, due).wait()?;
                moves += 1;
            }
            rates.push(format!(
                "{:.0}",
                moves as f64 / start.elapsed().as_secs_f64()
            ));
        }
        if open {
            other.batch_execute("rollback")?;
        }
        say!(
            "D12 PostgreSQL, {KEYS} keys moved by one caller, {}: calls/s in each quarter of {:?}: {}",
            if open {
                "beside an open snapshot"
            } else {
                "without an open snapshot"
            },
            wish.sizes.held_open,
            rates.join(", ")
        );
    }
    Ok(())
}
