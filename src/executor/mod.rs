//! Where expired timers run: a pool of workers that steal tickets from the tickers' deques, from
//! one shared injector and from each other; or an executor of the user's own.
//!
//! Nothing in here knows what a timer is. What travels is a [`Ticket`](crate::job::Ticket), and
//! what a worker does with one is [`Claim::serve`](crate::job::Claim::serve).
//!
//! | file | what it says |
//! |---|---|
//! | `queue.rs` | which queues there are and in which order a worker looks at them |
//! | `sleep.rs` | how a worker goes to sleep without missing a ticket, and who wakes whom |
//! | `worker.rs` | one step of a worker, and the loop around it |
//! | `pool.rs` | which seats are taken, feeders, the injector, stop |
//! | `seat.rs` | what belongs to a seat, and what is noted of its thread |
//! | `growth.rs` | when to start more workers |
//! | `crew.rs` | what can be seen of the workers, for that |
//! | `foreign.rs` | executors of the user |

mod crew;
mod foreign;
mod growth;
mod pool;
mod queue;
mod seat;
mod sleep;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker;

pub(crate) use crew::PoolCrew;
pub use foreign::{Executor, Job};
pub(crate) use growth::{Growth, GrowthWatch};
pub(crate) use pool::{Feeder, Pool, PoolConfig};
pub(crate) use worker::Worker;
