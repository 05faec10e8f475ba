//! PostgreSQL clusters of the tests' own, with the tables of the timers.

#![allow(dead_code, unused_imports, reason = "each test uses a part of the kit")]

use tourbillon_durable::Postgres;

pub(crate) use chaos::servers::postgres::*;

/// A database of the shared cluster whose tables are made, and empty.
pub(crate) fn lent() -> Lent {
    chaos::servers::postgres::lent(|url| {
        Postgres::connect(url).expect("the tables are made");
    })
}
