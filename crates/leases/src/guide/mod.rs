//! Guides: one page for each task, with code that compiles.
//!
//! | page | content |
//! |---|---|
//! | [`locks`] | a job that must not run twice, at once or in a row; writes that a former holder must not make |
//! | [`elections`] | one of several processes leads |
//! | [`metrics`] | all metrics by name, and how they reach Prometheus |
//! | [`coming_from_redisson`] | Redisson's locks, side by side with this crate |

#[doc = include_str!("locks.md")]
pub mod locks {}

#[doc = include_str!("elections.md")]
pub mod elections {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

#[doc = include_str!("coming_from_redisson.md")]
pub mod coming_from_redisson {}
