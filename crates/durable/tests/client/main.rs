//! The calls of a client: answers, refusals, faults of the store, group commit and futures.

mod answers;
mod awaited;
mod commit;
mod faults;
mod refusals;
