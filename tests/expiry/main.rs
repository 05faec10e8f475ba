//! `ExpiryMap`: deadlines, answers, delivery, groups, and the end of a map.

mod batches;
mod calls;
mod channel;
mod compute;
mod deadlines;
mod end;
mod entry;
mod eviction;
mod find_or_insert;
mod groups;
#[cfg(feature = "tokio")]
mod limits;
mod removals;
mod rename;
#[cfg(feature = "serde")]
mod snapshot;
mod stats;
mod toucher;
