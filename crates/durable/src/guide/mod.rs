//! Guides: one page for each task, with code that compiles, and the documents of the crate.
//!
//! | page | content |
//! |---|---|
//! | [`order_timeouts`] | "pay within 15 minutes, or the order is cancelled": the whole story, reminders, work that repeats |
//! | [`webhooks`] | calls to the outside, tried again until they succeed: retries, idempotency, dead letters |
//! | [`schedules`] | work by the calendar, once for all processes: missed and overlapping occurrences, deploys, zones |
//! | [`transactions`] | timers in a transaction of your own, for each driver and for SQL; effects exactly once |
//! | [`traces`] | what runs and how it ended: events of runs, layers, the trace of the caller, the crate `tracing` |
//! | [`postgres`] | setting up a server: the URL, roles and rights, connections, poolers, TLS, the doorbell |
//! | [`support`] | why a timer has not run; hurry, cancel, revive and discard, in Rust and in SQL |
//! | [`testing`] | tests in virtual time: each kind of handler, retries, crashes, late timers, schedules, stores that fail |
//! | [`operation`] | for those who run it: what to watch, growth, backups, outages, dead nodes, updates |
//! | [`coming_from`] | Quartz, db-scheduler, tokio-cron-scheduler, APScheduler, Celery beat, Sidekiq and Oban, side by side with this crate |
//! | [`promises`] | what you can rely on, what a commit is worth, limits, forks |
//! | [`figures`] | rates, lateness and takeover, and a comparison with other systems |
//! | [`design`] | why the promises hold, and what was decided against |
//! | [`changelog`] | what changed |

// Where the feature is off, a page has no links to what it adds.
#![cfg_attr(not(feature = "cron"), allow(rustdoc::broken_intra_doc_links))]

#[doc = include_str!("order_timeouts.md")]
pub mod order_timeouts {}

#[doc = include_str!("webhooks.md")]
pub mod webhooks {}

#[doc = include_str!("schedules.md")]
pub mod schedules {}

#[doc = include_str!("transactions.md")]
pub mod transactions {}

#[doc = include_str!("traces.md")]
pub mod traces {}

#[doc = include_str!("postgres.md")]
pub mod postgres {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("support.md")]
pub mod support {}

#[doc = include_str!("coming_from.md")]
pub mod coming_from {}

// The documents name each other by files. Of two definitions of a link the first one holds, so these
// lead to the pages.

/// [postgres]: crate::guide::postgres
/// [support]: crate::guide::support
/// [rights]: crate::guide::postgres#roles-and-rights
/// [connections]: crate::guide::postgres#how-many-connections-a-process-needs
/// [doorbell]: crate::guide::postgres#the-doorbell
/// [promises]: crate::guide::promises#promises
/// [worth]: crate::guide::promises#what-a-commit-is-worth
/// [moved]: crate::guide::figures#a-key-that-is-moved-often
/// [measured]: crate::guide::figures#many-queues
#[doc = include_str!("../../docs/operation.md")]
pub mod operation {}

/// [many]: crate::guide::operation#many-queues
/// [doorbell]: crate::guide::postgres#the-doorbell
#[doc = include_str!("../../docs/promises.md")]
pub mod promises {}

/// [queues]: crate::guide::operation#many-queues
/// [vacuum]: crate::guide::operation#vacuum-and-open-transactions
#[doc = include_str!("../../docs/figures.md")]
pub mod figures {}

#[doc = include_str!("../../DESIGN.md")]
pub mod design {}

#[doc = include_str!("../../CHANGELOG.md")]
pub mod changelog {}
