//! A claim that goes by a clock that was read too early.

use super::{Claimed, KeyHash, Stripe};
use crate::tick::{TickSize, Time};

const fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// A ticket for key 7, due at 10.
fn queued() -> (Stripe<u32, char>, u32) {
    let mut stripe = Stripe::new(TickSize::from_nanos(1), at(10), 0, None);
    let hash = KeyHash(7);
    let admission = stripe.admit(hash, &7, false).unwrap();
    stripe.arm(admission, hash, 7, 'a', at(10), at(10));
    let ticket = stripe.take_aftermath().ticket.unwrap();
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
    stripe.close();
    stripe.make_all_due(at(9));
    assert_eq!(started(&mut stripe, ticket, at(9)), at(9));
}
