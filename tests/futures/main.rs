//! Futures and streams: sleeps, expired entries as a stream, and tasks on tokio.

mod async_handler;
mod blocked;
mod follow;
mod interval;
mod limits;
mod named;
mod retry;
mod sleep;
mod stepped;
mod streams;
mod together;
mod tokio_repeat;
mod tokio_tasks;
mod yields;
