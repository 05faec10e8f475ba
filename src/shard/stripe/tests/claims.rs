//! Claims with a clock that was read too early, and operations between the end of a run and its
//! completion.

use crate::shard::stripe::{Cancelling, Claimed, EntryId, KeyHash, Moving, Start, Stripe};
use crate::tick::{TickSize, Time};

const fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// Returns a stripe with a ticket for key 7, due at 10.
fn queued() -> (Stripe<u32, char>, u32) {
    let mut stripe = Stripe::new(TickSize::from_nanos(1), at(10), 0, None);
    let hash = KeyHash(7);
    let admission = stripe.admit(hash, &7, false).unwrap();
    stripe.arm(admission, hash, 7, 'a', at(10), at(10));
    let ticket = stripe.take_deferred().ticket.unwrap();
    (stripe, ticket)
}

fn started(stripe: &mut Stripe<u32, char>, ticket: u32, now: Time) -> Time {
    match stripe.claim(ticket, now) {
        Claimed::Run { started, .. } => started,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_never_starts_before_its_deadline_by_its_own_account() {
    for (now, start) in [(9, 10), (10, 10), (11, 11)] {
        let (mut stripe, ticket) = queued();
        assert_eq!(started(&mut stripe, ticket, at(now)), at(start));
    }
}

#[test]
fn but_for_a_shutdown_that_runs_everything_at_once() {
    let (mut stripe, ticket) = queued();
    stripe.close(false);
    stripe.make_all_due(at(9));
    assert_eq!(started(&mut stripe, ticket, at(9)), at(9));
}

#[test]
fn a_ticket_stands_for_a_payload_only_while_that_is_queued() {
    let (mut stripe, ticket) = queued();
    assert!(stripe.has_queued(ticket, |payload| *payload == 'a'));
    assert!(!stripe.has_queued(ticket, |_| false));
    let moved = stripe.reschedule(KeyHash(7), &7, || (at(20), at(10)), false);
    assert_eq!(moved, Moving::Moved { before: at(10) });
    assert!(!stripe.has_queued(ticket, |_| true));
}

/// Returns a run whose next round is armed, and which is not complete.
fn between_rounds() -> (Stripe<u32, char>, EntryId) {
    let (mut stripe, ticket) = queued();
    let Claimed::Run { id, value, .. } =
        stripe.claim_at(ticket, at(10), |_, due| Start::Round(due))
    else {
        panic!("it was queued");
    };
    let next = Some(at(20));
    assert_eq!(stripe.arm_next_round(id, value, next), None);
    (stripe, id)
}

#[test]
fn a_cancel_by_id_that_comes_after_a_round_and_before_its_settling_ends_the_repetition() {
    let (mut stripe, id) = between_rounds();
    assert!(matches!(
        stripe.cancel_id(id),
        Cancelling::Cancelled { run: Some(run), .. } if run == id
    ));
    stripe.complete(id, false, || at(11));
    assert!(stripe.get(KeyHash(7), &7).is_none());
    assert_eq!(
        (stripe.counters().pending, stripe.counters().cancelled),
        (0, 1)
    );
}

#[test]
fn a_move_by_id_that_comes_after_a_round_and_before_its_settling_moves_the_next_one() {
    let (mut stripe, id) = between_rounds();
    let moved = stripe.reschedule_id(id, at(30), at(11), false);
    assert_eq!(moved, Moving::Moved { before: at(20) });
    stripe.complete(id, false, || at(11));
    assert_eq!(stripe.get(KeyHash(7), &7).unwrap().deadline, at(30));
}
