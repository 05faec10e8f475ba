//! A stripe that is idle for long, or that is only touched.

use crate::shard::stripe::{KeyHash, Stripe};
use crate::tick::{TickSize, Time};
use crate::wheel::{Budget, CoreProgress, WheelPosition};
use std::time::Duration;

#[test]
fn c042_the_first_arming_after_an_idle_hour_lies_on_the_lowest_level() {
    let tick = Duration::from_millis(1);
    for origin in [0, 64 * 12_345] {
        let size = TickSize::from_nanos(1_000_000);
        let mut stripe = Stripe::new(size, Time::ZERO, origin, None);
        let mut now = Time::ZERO;
        for key in 0..10_u32 {
            // The ticker has not looked at it in this hour, because it sleeps without a due moment.
            now = now + Duration::from_secs(3_600);
            let hash = KeyHash(u64::from(key));
            let admission = stripe.admit(hash, &key, false).unwrap();
            let deadline = now + tick * 5;
            stripe.arm(admission, hash, key, (), deadline, now);
            // Due at its own tick and not at an earlier one, at which it would cascade.
            assert_eq!(stripe.take_deferred().lowered, Some(deadline));
            assert_eq!(stripe.next_due(), deadline);
            stripe.cancel(hash, &key);
            // The ticker finds nothing to do, and has no further moment to wake at.
            assert_eq!(stripe.republish(), Time::MAX);
        }
    }
}

/// Far timers in the wheel do not hold it back: a staged timer is collected in its tick, without a
/// cascade.
#[test]
fn a_wheel_with_nothing_to_do_on_the_way_is_at_the_present() {
    let ms = Duration::from_millis(1);
    for origin in [0, 12_345] {
        let size = TickSize::from_nanos(1_000_000);
        let mut stripe = Stripe::new(size, Time::ZERO, origin, None);
        let arm = |stripe: &mut Stripe<u32, ()>, key: u32, deadline, now| {
            let hash = KeyHash(u64::from(key));
            let admission = stripe.admit(hash, &key, false).unwrap();
            stripe.arm(admission, hash, key, (), deadline, now);
        };
        let far = Time::ZERO + ms * 3_600_000;
        for key in 0..40 {
            arm(&mut stripe, key, far, Time::ZERO);
        }
        let now = Time::ZERO + ms * 100_000;
        arm(&mut stripe, 100, now + ms * 10, now);
        let mut budget = Budget {
            expired: 10,
            allowed: usize::MAX,
            cascaded: 0,
        };
        let mut tickets = Vec::new();
        let progress = stripe.collect(now + ms * 10, &mut budget, &mut tickets);
        assert_eq!(progress, CoreProgress::Done);
        assert_eq!(tickets.len(), 1);
    }
}

/// A touch, which moves a deadline later, is one write. The entry stays where it is filed or
/// staged, and the ticker is not notified.
#[test]
fn c148_a_touch_leaves_an_entry_where_it_is() {
    let ms = Duration::from_millis(1);
    for origin in [0, 12_345] {
        let size = TickSize::from_nanos(1_000_000);
        let mut stripe = Stripe::new(size, Time::ZERO, origin, None);
        let idle = ms * 60_000;
        for key in 0..100_u32 {
            let hash = KeyHash(u64::from(key));
            let admission = stripe.admit(hash, &key, false).unwrap();
            stripe.arm(admission, hash, key, (), Time::ZERO + idle, Time::ZERO);
        }
        let lies = |stripe: &Stripe<u32, ()>, slot| {
            let armed = stripe.table.armed(slot).unwrap();
            (armed.wheel_position, armed.position)
        };
        let before: Vec<_> = (0..100).map(|slot| lies(&stripe, slot)).collect();
        assert!(
            before
                .iter()
                .any(|(wheel_position, _)| *wheel_position == WheelPosition::STAGED)
        );
        assert!(
            before
                .iter()
                .any(|(wheel_position, _)| *wheel_position != WheelPosition::STAGED)
        );
        stripe.take_deferred();
        let due = stripe.next_due();
        for touch in 1..50 {
            let now = Time::ZERO + ms * touch;
            for slot in 0..100 {
                let _ = stripe.reschedule_slot(slot, now + idle, now, false);
                assert_eq!(lies(&stripe, slot), before[slot as usize]);
            }
        }
        assert_eq!(stripe.take_deferred().lowered, None);
        assert_eq!(stripe.next_due(), due);
    }
}
