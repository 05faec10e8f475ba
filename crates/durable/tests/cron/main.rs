//! Timers with schedules, on nodes, by a clock that the test moves.

#![cfg(feature = "cron")]

#[cfg(feature = "postgres")]
#[path = "../kit/postgres.rs"]
mod cluster;
#[cfg(feature = "sqlite")]
#[path = "../kit/folder.rs"]
mod folder;
#[cfg(feature = "postgres")]
mod killed;
mod million;
#[cfg(feature = "postgres")]
mod on_postgres;
mod overload;
mod pauses;
mod runs;
#[path = "../kit/watched.rs"]
mod watched;
mod worlds;
