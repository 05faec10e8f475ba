//! A stripe that had nothing to do for long.

use super::{KeyHash, Stripe};
use crate::tick::{TickSize, Time};
use std::time::Duration;

#[test]
fn c042_the_first_arming_after_an_idle_hour_lies_on_the_lowest_level() {
    let tick = Duration::from_millis(1);
    for origin in [0, 64 * 12_345] {
        let size = TickSize::from_nanos(1_000_000);
        let mut stripe = Stripe::new(size, Time::ZERO, origin, None);
        let mut now = Time::ZERO;
        for key in 0..10_u32 {
            // Nobody has looked at it in this hour: a ticker without a due moment sleeps.
            now = now + Duration::from_secs(3_600);
            let hash = KeyHash(u64::from(key));
            let admission = stripe.admit(hash, &key, false).unwrap();
            let deadline = now + tick * 5;
            stripe.arm(admission, hash, key, (), deadline, now);
            // Due at its own tick and not at an earlier one, at which it would cascade.
            assert_eq!(stripe.take_aftermath().lowered, Some(deadline));
            assert_eq!(stripe.next_due(), deadline);
            stripe.cancel(hash, &key);
            // The ticker comes, finds nothing, and has no other moment to come at.
            assert_eq!(stripe.republish(), Time::MAX);
        }
    }
}
