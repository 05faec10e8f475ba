//! The stores that the cases run on.

use tourbillon_durable::{Memory, StoreTime, WallClock};

use crate::client::Bench;

/// A day of 2026, with microseconds.
fn clock() -> WallClock {
    WallClock::manual(StoreTime::from_micros(1_790_000_000_123_456))
}

pub(crate) fn memory() -> Bench {
    let clock = clock();
    Bench {
        store: Box::new(Memory::with_clock(clock.clone())),
        clock: Some(clock),
        _kept: Box::new(()),
    }
}

#[cfg(feature = "postgres")]
pub(crate) fn postgres() -> Bench {
    let database = crate::cluster::lent();
    let store = tourbillon_durable::Postgres::connect(&database.url());
    Bench {
        store: Box::new(store.expect("the cluster answers")),
        clock: None,
        _kept: Box::new(database),
    }
}
