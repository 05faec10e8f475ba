//! Execution of expired timers: a pool of workers that steal tickets from the tickers' deques, from
//! one shared injector and from each other; or an executor of the user.
//!
//! No code in here knows about timers. It passes [`Ticket`](crate::job::Ticket)s on, and a worker
//! serves a ticket with [`Claim::serve`](crate::job::Claim::serve).
//!
//! | file | contents |
//! |---|---|
//! | `queue.rs` | the queues, and the order in which a worker looks at them |
//! | `sleep.rs` | how a worker goes to sleep without missing a ticket, and which threads wake it |
//! | `worker.rs` | one step of a worker, and the loop around it |
//! | `pool.rs` | worker slots, the tickers' queues, the injector, stopping |
//! | `slot.rs` | the state of a worker slot, and what is known of its thread |
//! | `growth/` | when to start more workers |
//! | `crew.rs` | what a ticker can observe of the workers, for that decision |
//! | `foreign.rs` | executors of the user |

mod crew;
mod foreign;
mod growth;
mod pool;
mod queue;
mod sleep;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;
mod worker;

pub(crate) use crew::PoolCrew;
pub use foreign::{Executor, Job};
pub(crate) use growth::{Growth, GrowthWatch};
pub(crate) use pool::{Pool, PoolConfig, TickerQueue};
pub(crate) use worker::Worker;
