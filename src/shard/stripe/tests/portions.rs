//! Operations that iterate over all entries, a portion of the slots at a time.

use crate::shard::stripe::{KeyHash, Moving, Stripe};
use crate::tick::{TickSize, Time};

const NOW: Time = Time::from_nanos(10);
const LATER: Time = Time::from_nanos(20);

/// Returns a stripe with the keys 0, 1 and 2 in the slots of these numbers.
fn three() -> Stripe<u32, char> {
    let mut stripe = Stripe::new(TickSize::from_nanos(1), NOW, 0, None);
    for (key, value) in (0..).zip('a'..='c') {
        let hash = KeyHash(u64::from(key));
        let admission = stripe.admit(hash, &key, false).unwrap();
        let id = stripe.arm(admission, hash, key, value, LATER, NOW).id;
        assert_eq!(id.slot, key);
    }
    stripe
}

#[test]
fn all_pending_payloads_are_shown_in_portions() {
    let stripe = three();
    for (from, goes_on, expected) in [(0, Some(2), "ab"), (2, None, "c"), (1, None, "bc")] {
        let mut shown = String::new();
        let next = stripe.for_each_range(from, 2, |slot, key, value, deadline| {
            assert_eq!((slot, deadline), (*key, LATER));
            shown.push(*value);
        });
        assert_eq!((next, shown.as_str()), (goes_on, expected));
    }
}

#[test]
fn what_is_not_kept_is_cancelled_in_portions() {
    let mut stripe = three();
    let mut out = Vec::new();
    let next = stripe.retain_range(0, 2, |_, value, _| *value != 'a', &mut out);
    assert_eq!(
        (next, out.as_slice()),
        (Some(2), &[(Some(0), Some('a'))][..])
    );
    let next = stripe.retain_range(2, 2, |_, _, _| false, &mut out);
    assert_eq!((next, out.len()), (None, 2));
    let counters = stripe.counters();
    assert_eq!((counters.pending, counters.cancelled), (1, 2));
    assert!(stripe.get(KeyHash(1), &1).is_some());
}

#[test]
fn what_is_to_run_now_is_moved_once() {
    let mut stripe = three();
    let mut kept = Vec::new();
    for expected in [
        Moving::Moved { before: LATER },
        Moving::Unchanged { deadline: NOW },
    ] {
        let keep = |payload: &mut char, deadline| kept.push((*payload, deadline));
        assert_eq!(stripe.run_now(KeyHash(1), &1, NOW, keep), expected);
    }
    assert_eq!(kept, [('b', LATER)]);
}
