//! Execution of expired timers: workers that steal tickets from the tickers' deques, from an
//! injector and from each other; or an executor of the user.
//!
//! No code in here knows about timers. It passes [`Ticket`](crate::job::Ticket)s on, and a worker
//! serves a ticket with [`Claim::serve`](crate::job::Claim::serve).
//!
//! | file | contents |
//! |---|---|
//! | `queue.rs` | the queues of a pool, and the order in which a worker looks at them |
//! | `marks.rs` | which deques have tickets |
//! | `pool.rs` | the queues and worker slots of one engine, and when they are made known |
//! | `worker.rs` | one step of a worker in a pool |
//! | `workers.rs` | which pools have tickets, which workers sleep, and why no ticket is missed |
//! | `worker_thread.rs` | the loop of a worker's thread |
//! | `growth/` | when to start more workers |
//! | `crew.rs` | what a ticker can observe of the workers, for that decision |
//! | `foreign.rs` | executors of the user |

mod crew;
mod foreign;
mod growth;
mod marks;
mod pool;
mod queue;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker;
mod worker_thread;
mod workers;

pub(crate) use crew::{Headcount, PoolCrew};
pub use foreign::{Executor, Job};
pub(crate) use growth::{Growth, GrowthWatch, NewWorkers, OldTickets};
pub(crate) use pool::{Pool, PoolConfig, PoolWorkers, TickerQueue};
pub(crate) use worker::Worker;
pub(crate) use worker_thread::WorkerThread;
