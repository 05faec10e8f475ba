//! Guides: one page for each task, with code that compiles.
//!
//! | page | content |
//! |---|---|
//! | [`sessions`] | login sessions: idle time and lifetime, limits per user, sign-out everywhere, a deploy |
//! | [`request_timeouts`] | limits on how long a request may take, and answers that come too late |
//! | [`periodic_work`] | heartbeats and polls: missed rounds, panics, run now, pause and resume |
//! | [`calendars`] | work at dates: cron expressions, time zones, a clock that is set, a machine that was suspended |
//! | [`testing`] | tests in virtual time, without waiting |
//! | [`shutdown`] | how a program ends without losing a timer, and what happens when `main` returns |
//! | [`operation`] | what to watch, and what each number means |
//! | [`metrics`] | all metrics by name, and how they reach Prometheus |
//! | [`traces`] | spans and warnings for the crate `tracing` |
//! | [`panic_hooks`] | what calls do while a panic leaves a lock of this crate |
//! | [`speed`] | which type, call, build and machine to choose if timers take much of the time |
//! | [`recipes`] | silence alarms, late answers, retries with a budget, sessions with cookies, names and stacks of threads |
//! | [`coming_from`] | `DelayQueue`, `tokio::time`, moka and Netty's `HashedWheelTimer`, side by side with this crate |
//!
//! Two pages are documents of the repository: the [`design`] with its reasons, and the [`changelog`].
//!
//! Locks and elections, and Redisson's locks side by side with ours, have guides of their own: the
//! module `guide` of the crate `tourbillon-leases`. Schedulers with a database, such as Quartz, Sidekiq and
//! Oban, stand side by side with ours in the module `guide` of the crate `tourbillon-durable`.

// Where a feature is off, the pages have no links to what it adds.
#![cfg_attr(
    not(all(
        feature = "cron",
        feature = "serde",
        feature = "stream",
        feature = "tokio",
        feature = "test-util",
        feature = "tracing"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

#[doc = include_str!("sessions.md")]
pub mod sessions {}

#[doc = include_str!("request_timeouts.md")]
pub mod request_timeouts {}

#[doc = include_str!("periodic_work.md")]
pub mod periodic_work {}

#[doc = include_str!("calendars.md")]
pub mod calendars {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("shutdown.md")]
pub mod shutdown {}

#[doc = include_str!("speed.md")]
pub mod speed {}

#[doc = include_str!("recipes.md")]
pub mod recipes {}

#[doc = include_str!("coming_from.md")]
pub mod coming_from {}

#[doc = include_str!("operation.md")]
pub mod operation {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

#[cfg(any(not(doctest), feature = "tracing"))]
#[doc = include_str!("traces.md")]
pub mod traces {}

#[doc = include_str!("panic_hooks.md")]
pub mod panic_hooks {}

#[doc = include_str!("../../DESIGN.md")]
pub mod design {}

#[doc = include_str!("../../CHANGELOG.md")]
pub mod changelog {}
