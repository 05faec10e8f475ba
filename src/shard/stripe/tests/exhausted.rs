//! Slots whose generations are exhausted. Getting there takes weeks, so the tests set the
//! generation.

use crate::shard::entry::End;
use crate::shard::stripe::{
    Arming, Cancelling, Claimed, EXHAUSTED, EntryId, KeyHash, Moving, Start, Stripe,
};
use crate::tick::{TickSize, Time};

const NOW: Time = Time::from_nanos(1_000);
const LATER: Time = Time::from_nanos(9_000);

fn hash(key: u32) -> KeyHash {
    KeyHash(u64::from(key))
}

fn stripe() -> Stripe<u32, char> {
    Stripe::new(TickSize::from_nanos(1), NOW, 0, None)
}

fn arm(stripe: &mut Stripe<u32, char>, key: u32, value: char, at: Time) -> Arming<u32, char> {
    let admission = stripe.admit(hash(key), &key, false).unwrap();
    stripe.arm(admission, hash(key), key, value, at, NOW)
}

/// Arms a timer and sets the generation of its slot.
fn armed(stripe: &mut Stripe<u32, char>, generation: u32, at: Time) -> EntryId {
    let slot = arm(stripe, 1, 'a', at).id.slot;
    stripe.wear_out(slot, generation);
    let id = EntryId { slot, generation };
    assert_eq!(stripe.get(hash(1), &1).unwrap().id, id);
    id
}

fn claim(stripe: &mut Stripe<u32, char>) -> (EntryId, char) {
    let ticket = stripe.take_deferred().ticket.unwrap();
    match stripe.claim(ticket, NOW) {
        Claimed::Run { id, value, .. } => (id, value),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_generation_is_used_and_then_the_slot_no_more() {
    let mut stripe = stripe();
    let last = armed(&mut stripe, u32::MAX - 1, LATER);
    assert!(matches!(
        stripe.cancel_id(last),
        Cancelling::Cancelled { .. }
    ));
    let very_last = arm(&mut stripe, 2, 'b', LATER).id;
    assert_eq!(very_last.slot, last.slot);
    assert_eq!(very_last.generation, u32::MAX);
    stripe.cancel_id(very_last);
    assert_eq!(stripe.end_of(very_last), Some(End::Cancelled));
    for key in 3..9 {
        assert_ne!(arm(&mut stripe, key, 'c', LATER).id.slot, last.slot);
    }
    assert!(stripe.get_id(very_last).is_none());
    assert!(matches!(stripe.cancel_id(very_last), Cancelling::NotFound));
}

#[test]
fn a_replacement_that_finds_no_generation_takes_another_slot() {
    let mut stripe = stripe();
    let old = armed(&mut stripe, u32::MAX, LATER);
    let Arming {
        id,
        replaced,
        dropped,
        ..
    } = arm(&mut stripe, 1, 'b', LATER);
    assert_ne!(id.slot, old.slot);
    assert_eq!((replaced, dropped.1), (Some(LATER), Some('a')));
    assert_eq!(stripe.get(hash(1), &1).unwrap().id, id);
    let moved = stripe.reschedule_id(old, NOW, NOW, false);
    assert_eq!(moved, Moving::NotFound);
    let counters = stripe.counters();
    assert_eq!((counters.replaced, counters.pending), (1, 1));
    assert_eq!(counters.cancelled, 0);
}

/// The ticket of the old slot is under way, and finds nothing when it is claimed.
#[test]
fn a_queued_timer_is_replaced_into_another_slot() {
    let mut stripe = stripe();
    let old = armed(&mut stripe, u32::MAX, NOW);
    let ticket = stripe.take_deferred().ticket;
    assert_eq!(ticket, Some(old.slot));
    let new = arm(&mut stripe, 1, 'b', NOW).id;
    assert_ne!(new.slot, old.slot);
    assert!(matches!(stripe.claim(old.slot, NOW), Claimed::Nothing));
    assert_eq!(claim(&mut stripe), (new, 'b'));
    let counters = stripe.counters();
    assert_eq!((counters.ran, counters.replaced), (1, 1));
    assert_eq!((counters.pending, counters.queued), (0, 0));
}

#[test]
fn a_run_moves_out_of_an_exhausted_slot() {
    let mut stripe = stripe();
    let old = armed(&mut stripe, EXHAUSTED, NOW);
    let (run, value) = claim(&mut stripe);
    assert_eq!(value, 'a');
    assert_ne!(run.slot, old.slot, "it has the generations of another slot");
    assert!(run.generation < EXHAUSTED);
    assert!(stripe.is_running(run));
    assert_eq!(stripe.get(hash(1), &1).unwrap().id, run);
    assert!(stripe.get_id(old).is_none());

    // Arming during the run, and the run's end.
    let successor = arm(&mut stripe, 1, 'b', NOW);
    assert!(successor.after_run);
    assert_eq!(successor.id.slot, run.slot);
    let completed = stripe.complete(run, false, || NOW);
    assert!(completed.key.is_none(), "the key goes on");
    let (again, value) = claim(&mut stripe);
    assert_eq!((again, value), (successor.id, 'b'));
    assert_eq!(stripe.complete(again, false, || NOW).key, Some(1));
    assert!(stripe.get(hash(1), &1).is_none());

    // The old slot is not used again.
    for key in 3..9 {
        assert_ne!(arm(&mut stripe, key, 'c', LATER).id.slot, old.slot);
    }
}

#[test]
fn a_run_moves_to_a_slot_that_is_free_again_if_there_is_no_new_one() {
    let mut stripe = stripe();
    stripe.limit_slots(2);
    let other = arm(&mut stripe, 2, 'b', LATER).id;
    let old = armed(&mut stripe, EXHAUSTED, NOW);
    stripe.cancel_id(other);
    let (run, _) = claim(&mut stripe);
    assert_eq!((old.slot, run.slot), (1, other.slot));
    assert_ne!(run, other, "ENTRY-6: an id comes back");
    assert!(stripe.get_id(other).is_none());
    // The old slot is used no more, so there is none for another key.
    assert!(stripe.admit(hash(3), &3, false).is_err());
}

#[test]
fn a_run_stays_in_an_exhausted_slot_if_there_is_no_other_one() {
    let mut stripe = stripe();
    stripe.limit_slots(1);
    let old = armed(&mut stripe, EXHAUSTED, NOW);
    let (run, _) = claim(&mut stripe);
    assert_eq!(run, old);
    assert_eq!(stripe.complete(run, false, || NOW).key, Some(1));
}

/// After two billion armings during one run, no generation is left for the next round.
#[test]
fn a_repetition_that_finds_no_generation_ends() {
    let mut stripe = stripe();
    let slot = arm(&mut stripe, 1, 'a', NOW).id.slot;
    let ticket = stripe.take_deferred().ticket.unwrap();
    let claimed = stripe.claim_at(ticket, NOW, |_, due| Start::Round(due));
    let Claimed::Run { id, value, .. } = claimed else {
        panic!("{claimed:?}");
    };
    stripe.wear_out(slot, u32::MAX);
    let left = stripe.arm_next_round(id, value, Some(LATER));
    assert_eq!(left, Some('a'), "it comes out");
    assert_eq!(stripe.complete(id, false, || NOW).key, Some(1));
    let counters = stripe.counters();
    assert_eq!((counters.scheduled, counters.pending), (1, 0));
}

#[test]
fn just_before_it_is_exhausted_a_slot_is_an_ordinary_one() {
    let mut stripe = stripe();
    let old = armed(&mut stripe, EXHAUSTED - 1, NOW);
    let (run, _) = claim(&mut stripe);
    assert_eq!(run, old);
    stripe.complete(run, false, || NOW);
    assert_eq!(arm(&mut stripe, 2, 'b', LATER).id.slot, old.slot);
}
