//! The promises of durable timers, each with a test of its name, on each store.
//!
//! A node that is dropped by `crash` ends without leaving, as if its process had been killed; what
//! its handlers do after that is what a process does that stood still and goes on.

#[cfg(feature = "postgres")]
#[path = "../kit/postgres.rs"]
mod cluster;
mod defaults;
mod exactness;
#[cfg(feature = "sqlite")]
#[path = "../kit/folder.rs"]
mod folder;
mod keeping;
mod payloads;
mod sizes;
mod takeover;
#[path = "../kit/watched.rs"]
mod watched;
mod worlds;

/// The test of one promise on a store.
macro_rules! promise_on {
    ([$(#[$also:meta])?], $world:expr, $file:ident, $promise:ident) => {
        #[test]
        $(#[$also])?
        fn $promise() {
            crate::$file::$promise(&$world);
        }
    };
}

/// Runs the tests of all promises on a store.
macro_rules! promises_on {
    ($store:ident, $world:expr, $also:tt, $($file:ident :: $promise:ident),* $(,)?) => {
        mod $store {
            $(promise_on!($also, $world, $file, $promise);)*
        }
    };
}

macro_rules! all_promises_on {
    ($store:ident, $world:expr $(, $also:meta)?) => {
        promises_on!(
            $store,
            $world,
            [$(#[$also])?],
            keeping::accepted_is_kept,
            keeping::never_early,
            keeping::the_answer_is_the_truth,
            keeping::a_store_may_be_chosen_at_run_time,
            exactness::one_key_one_run,
            exactness::a_node_that_lost_its_term_settles_nothing,
            exactness::exactly_once_effect_through_complete_in,
            takeover::timers_of_a_dead_node_run_soon_if_unclaimed,
            takeover::timers_of_a_dead_node_run_after_its_term_if_claimed,
            takeover::a_crash_counts_towards_the_crash_limit,
            sizes::idle_costs_one_read_a_poll_and_one_write_a_beat,
            sizes::memory_holds_what_starts_soon,
            sizes::queues_do_not_hold_each_other_up,
            payloads::large_payloads_do_not_hold_up_small_ones,
            payloads::large_runs_of_a_dead_node_do_not_hold_up_small_ones,
        );
    };
}

all_promises_on!(memory, crate::worlds::MemoryWorld::default());
#[cfg(feature = "sqlite")]
all_promises_on!(sqlite, crate::worlds::SqliteWorld::new());
#[cfg(feature = "postgres")]
all_promises_on!(
    postgres,
    crate::worlds::PostgresWorld::new(),
    cfg_attr(
        not(has_postgres),
        ignore = "needs: apt-get install postgresql"
    )
);
