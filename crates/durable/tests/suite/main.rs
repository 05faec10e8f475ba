//! The cases that every store must pass.
//!
//! A case is a function that gets a fresh store. Each case is a test of each store, so that a store
//! that fails shows by name. Where a case needs time to go by, it moves the store's clock, or waits
//! until the store's own clock shows the time.

mod calls;
mod claims;
mod client;
mod letters;
mod nodes;
mod pauses;
mod polls;
mod races;
mod reads;
mod schedules;
mod settles;
mod steps;
mod stores;

#[cfg(feature = "postgres")]
#[path = "../kit/postgres.rs"]
mod cluster;
#[cfg(feature = "sqlite")]
#[path = "../kit/folder.rs"]
mod folder;

/// Makes tests of all cases that need no clock which a test can move. `$store` is a function that
/// makes a fresh store.
macro_rules! cases {
    ($store:path $(, $attribute:meta)?) => {
        tests! {
            $store, [$(#[$attribute])?],
            calls: [
                schedule_stores_a_timer,
                schedule_replaces_a_waiting_timer,
                schedule_replaces_a_timer_that_failed_and_its_counts,
                schedule_during_a_run_waits_for_its_end,
                schedule_lifts_the_cancel_of_a_run,
                schedule_replaces_what_a_gone_node_ran,
                schedule_replaces_what_followed_a_gone_nodes_run,
                schedule_finds_nothing_where_a_gone_nodes_run_was_cancelled,
                if_absent_schedules_where_there_is_no_timer,
                if_absent_leaves_a_timer_that_waits_or_runs,
                if_absent_leaves_what_a_gone_node_ran,
                if_absent_schedules_where_a_gone_nodes_run_was_cancelled,
                reschedule_moves_a_timer_and_forgets_its_failures,
                reschedule_moves_to_an_earlier_time,
                reschedule_of_nothing_is_not_found,
                reschedule_of_a_run_answers_running,
                reschedule_moves_the_timer_that_waits_for_a_run,
                reschedule_moves_what_a_gone_node_ran,
                cancel_deletes_a_timer_that_waits,
                cancel_of_a_run_ends_the_timer_with_it,
                cancel_deletes_what_a_gone_node_ran,
                a_due_time_in_the_past_is_now,
                far_due_times_are_the_latest_one,
                due_times_are_kept_to_the_microsecond,
                answers_have_the_order_of_their_calls,
                an_empty_batch_has_no_answers,
                a_thousand_calls_travel_in_one_batch,
                a_key_may_have_any_character,
                a_key_of_two_queues_is_two_timers,
                payloads_come_back_as_they_were_given,
                numbers_of_any_length_keep_their_digits,
                a_meta_goes_with_its_timer,
                every_meta_comes_back,
                a_timer_keeps_its_shard,
                crashes_are_forgotten_by_a_new_timer,
            ]
            reads: [
                an_empty_store_has_nothing_to_read,
                get_reads_one_timer_of_one_queue,
                a_list_has_the_order_of_due_times_and_keys,
                pages_show_each_timer_once,
                a_page_ends_where_its_payloads_are_long_enough,
                a_list_has_the_timers_of_its_range,
                a_list_has_one_queue_and_not_more_than_its_limit,
                a_list_shows_runs_but_not_what_a_gone_node_left_cancelled,
                counts_are_those_of_each_queue,
                counts_end_at_the_greatest_number,
                a_list_of_all_queues_has_one_order,
                a_list_has_the_keys_with_a_prefix,
                each_timer_is_in_the_list_of_its_state,
                nodes_are_listed_until_they_are_forgotten,
            ]
            polls: [
                a_poll_has_the_order_of_due_times,
                a_poll_shows_all_of_a_timer_that_a_claim_needs,
                a_poll_tells_the_length_of_each_payload,
                the_limit_of_a_range_cuts_only_what_there_is,
                each_range_has_its_own_queue_limit_and_cut,
                a_range_ends_before_its_distance_from_the_clock,
                a_range_begins_at_its_mark,
                a_poll_hides_what_another_node_runs_and_shows_its_own,
                a_poll_shows_what_gone_nodes_ran,
                a_band_shows_each_queue_that_has_timers_in_its_shard,
                the_limit_of_a_band_counts_timers_and_cuts_only_what_there_is,
                a_band_shows_what_a_range_of_each_queue_would_show,
                a_poll_shows_the_queues_of_a_node_as_they_are_now,
                a_poll_lists_the_nodes_that_are_not_gone,
                a_poll_lists_the_paused_queues,
                a_poll_writes_nothing,
                writes_before_a_horizon_are_in_a_complete_poll,
                no_call_writes_a_due_time_of_the_past,
            ]
            claims: [
                a_claim_starts_a_run_of_a_due_timer,
                a_claim_leaves_what_is_not_due_or_not_there,
                no_claim_is_early_by_the_stores_clock,
                a_claim_takes_nothing_of_a_paused_queue,
                a_pause_leaves_runs_alone,
                a_node_that_is_gone_or_unknown_claims_nothing,
                a_timer_that_runs_is_not_claimed,
                a_claim_counts_the_crash_of_a_gone_node,
                a_timer_whose_nodes_die_too_often_becomes_a_dead_letter,
                a_claim_decides_what_gone_nodes_left_behind,
                what_follows_or_a_cancel_spares_the_dead_letter,
                a_claim_after_its_deadline_does_nothing,
                adoption_returns_a_run_whose_answer_was_lost,
                adoption_needs_the_fence,
                adoption_starts_nothing_that_is_over,
                a_lost_run_that_is_followed_is_found_when_it_is_due_or_cancelled,
                what_follows_a_gone_nodes_run_replaces_it,
                a_thousand_timers_are_claimed_and_settled_at_once,
                a_key_that_is_claimed_twice_in_one_call_runs_once,
                each_timer_has_the_crash_limit_of_its_claim,
                attempts_never_fall_within_a_generation,
            ]
            settles: [
                done_deletes_the_timer,
                again_is_a_new_timer,
                retry_waits_and_counts_the_failure,
                retry_waits_its_span,
                dead_is_a_dead_letter,
                a_timer_that_is_given_back_has_not_failed,
                every_end_makes_room_for_what_follows,
                every_end_deletes_a_cancelled_timer,
                a_settlement_needs_the_whole_fence,
                a_second_settlement_is_fenced,
                a_gone_node_settles_nothing,
                a_run_that_was_replaced_after_its_nodes_end_is_fenced,
                good_and_fenced_settlements_share_a_batch,
            ]
            schedules: [
                the_end_of_an_occurrence_goes_on_to_the_next,
                an_occurrence_that_has_passed_is_due_at_once_and_keeps_its_time,
                an_end_without_a_next_one_leaves_the_mark,
                a_dead_occurrence_is_a_letter_beside_its_schedule,
                what_follows_or_a_cancel_wins_over_the_next_occurrence,
                a_schedule_whose_nodes_die_too_often_is_still_claimed,
                a_declaration_is_stored_once,
                a_declaration_that_differs_replaces_the_definition,
                a_declaration_of_a_lower_revision_changes_nothing,
                a_declaration_during_a_run_follows_it,
                a_declaration_lifts_a_cancel,
                schedules_and_other_ends_share_a_batch,
            ]
            steps: [
                a_step_keeps_the_claim_for_a_later_occurrence,
                a_run_that_was_stepped_ends_as_the_later_occurrence,
                a_step_to_what_is_not_due_or_paused_waits,
                what_follows_or_a_cancel_wins_over_a_step,
                a_crash_after_a_step_is_one_of_the_later_occurrence,
                a_step_needs_the_whole_fence_and_a_schedule,
                steps_and_other_ends_share_a_batch,
            ]
            pauses: [
                a_paused_schedule_waits_until_it_is_resumed,
                only_a_schedule_is_paused,
                a_pause_during_a_run_holds_what_follows,
                a_pause_ends_with_the_cancel_of_its_schedule,
                a_resume_during_a_run_holds_nothing,
                what_a_gone_node_left_paused_is_held,
                a_declaration_leaves_a_pause,
                a_revision_that_is_no_number_counts_as_none,
                a_list_has_the_schedules_alone,
                a_node_tells_the_schedules_of_its_program,
            ]
            nodes: [
                a_second_join_sets_the_queues_and_nothing_else,
                a_beat_is_counted_until_the_node_is_gone,
                a_silent_node_is_declared_gone_once,
                only_a_living_node_declares_another_one_gone,
                the_claims_of_a_node_end_with_it,
                to_leave_twice_or_unknown_is_harmless,
                epochs_and_beats_have_all_their_bits,
            ]
            letters: [
                dead_letters_have_the_order_of_their_numbers,
                dead_letters_are_found_by_queue_prefix_and_age,
                a_dead_letter_says_whether_its_key_has_a_timer,
                letters_are_discarded_by_their_numbers,
                old_letters_are_discarded_from_the_first_one_on,
                a_key_may_have_many_dead_letters_and_a_timer,
                revive_makes_a_new_timer_that_is_due,
                revive_leaves_a_timer_that_is_there,
                revive_of_an_unknown_letter_finds_nothing,
                revive_takes_the_place_of_what_a_gone_node_left_cancelled,
                the_number_of_a_dead_letter_never_comes_back,
            ]
            races: [
                each_timer_is_claimed_by_one_node,
                a_cancel_and_a_claim_agree,
                a_schedule_and_a_settlement_lose_no_timer,
                a_new_key_is_inserted_once,
                eight_writers_get_the_truth,
                replacements_of_one_key_form_a_chain,
                a_node_that_was_declared_gone_claims_nothing_more,
                a_dead_letter_is_revived_once,
                old_letters_are_discarded_once,
            ]
        }
    };
}

/// Makes tests of the cases that move the store's clock.
macro_rules! cases_of_the_clock {
    ($store:path) => {
        tests! {
            $store, [],
            polls: [
                a_range_ends_exactly_before_its_distance,
            ]
            claims: [
                a_timer_is_due_at_its_time_and_not_before,
                a_crash_is_counted_though_the_clock_was_set_back,
            ]
            nodes: [
                a_gone_node_is_kept_a_day_and_until_nothing_refers_to_it,
                a_clock_that_is_set_back_ends_no_run,
            ]
        }
    };
}

macro_rules! tests {
    ($store:path, $attributes:tt, $($group:ident: [$($case:ident,)+])+) => {
        $(mod $group { $(test! { $attributes $store, $group, $case })+ })+
    };
}

macro_rules! test {
    ([$($attribute:tt)*] $store:path, $group:ident, $case:ident) => {
        #[test]
        $($attribute)*
        fn $case() {
            crate::$group::$case(&$store());
        }
    };
}

mod memory {
    cases! { crate::stores::memory }

    mod clock {
        cases_of_the_clock! { crate::stores::memory }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    cases! { crate::stores::sqlite }

    mod clock {
        cases_of_the_clock! { crate::stores::sqlite }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    cases! {
        crate::stores::postgres,
        cfg_attr(not(has_postgres), ignore = "needs a PostgreSQL server: apt-get install postgresql")
    }
}
