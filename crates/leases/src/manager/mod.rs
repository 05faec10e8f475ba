//! The locks of a process: acquired, held, released, handed over. It calls a store, and has its
//! leases renewed by `keep_alive`. It knows no particular store.
//!
//! | file | what |
//! |---|---|
//! | `builder.rs`, `locks.rs`, `inner.rs` | [`Leases`], its options, and what handles and guards share |
//! | `acquisition.rs`, `acquire.rs`, `attempt.rs`, `many.rs`, `all.rs`, `stop.rs`, `pausing.rs` | how a lock is acquired: the options, the loop, one attempt, many names at once, and how a wait is ended |
//! | `guard.rs`, `id.rs`, `extending.rs` | the guard of a held lock |
//! | `releases.rs`, `background.rs`, `leaving.rs`, `request.rs`, `drop_wait.rs` | how a lock is given back, also when nobody waits for it |
//! | `hand_over.rs`, `ticket.rs` | how a lock goes to another process |
//! | `calling.rs`, `lease_future.rs`, `bell.rs`, `amid_wait.rs` | calls as futures, and what wakes them |
//! | `unowned.rs` | what runs in the background and does not keep the leases |
//! | `error.rs`, `fence.rs`, `listing.rs`, `stats.rs`, `metrics.rs`, `health.rs` | what a user is told, and may check |

mod acquire;
mod acquisition;
mod all;
mod amid_wait;
mod attempt;
mod background;
mod builder;
mod calling;
mod drop_wait;
mod error;
mod extending;
mod fence;
mod guard;
mod hand_over;
mod health;
mod id;
mod inner;
mod lease_future;
mod leaving;
mod listing;
mod locks;
mod many;
mod metrics;
mod pausing;
mod releases;
mod request;
mod stats;
mod stop;
mod ticket;
mod unowned;

pub use acquisition::Acquisition;
pub use all::LockAll;
pub use builder::LeasesBuilder;
pub use error::{LockError, ReleaseError};
pub use fence::{Fence, StaleToken};
pub use guard::LeaseGuard;
pub use hand_over::DetachError;
pub use id::LeaseId;
pub use lease_future::LeaseFuture;
pub use locks::Leases;
pub use stats::LeaseStats;
pub(crate) use stop::{StopSignal, StoreFailures};
pub use ticket::{LeaseTicket, ParseTicketError};
pub(crate) use unowned::UnownedLeases;
