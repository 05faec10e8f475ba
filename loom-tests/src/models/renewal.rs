//! Renewal versus release, and a late answer versus a new acquire.
//! `crates/leases/src/keep_alive/lease_state/` has the rules, LEASE-1 to LEASE-4.
//!
//! If a waiting holder is not woken, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/lease-state-begins-in-two-holds.patch`: a renewal is sent after the release.
//! - `teeth/lease-state-waiter-registers-in-a-second-hold.patch`
//! - `teeth/lease-state-outcome-wakes-nobody.patch`
//! - `teeth/lease-state-completes-in-two-holds.patch`: a late answer revives a lost lease.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::keep_alive::lease_state::{
    InFlight, InFlightStatus, LeaseState, LeaseStatus, Loss, RenewalOutcome, Stopped,
};
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// The time by which a call has to end.
const LIMIT: u64 = START + 5;
/// The end of the lease before and after its renewal.
const UNTIL: u64 = START + 10;
const RENEWED: u64 = START + 20;

/// The state of one lease, and the store that gets its requests.
#[derive(Clone)]
struct Lease {
    lease_state: Arc<LeaseState>,
    clock: Clock,
    hand: ManualClock,
    /// How often the loss was reported. A counter of std, not of loom: it must not order anything.
    told: Arc<Count>,
    /// Set when the holder has returned from its release. From then on nothing may be sent.
    released: Arc<Mutex<bool>>,
}

impl Lease {
    fn new() -> Self {
        Self::acquired(&ManualClock::starting_at(at(START)), at(UNTIL))
    }

    fn acquired(hand: &ManualClock, until: Time) -> Self {
        let told = Arc::new(Count::new(0));
        let tells = Arc::clone(&told);
        let on_loss = Box::new(move |_| {
            tells.fetch_add(1, Relaxed);
        });
        let lease_state = LeaseState::new(hand.now(), until, Time::MAX, None, on_loss);
        Lease {
            lease_state: Arc::new(lease_state),
            clock: Clock::manual(hand),
            hand: hand.clone(),
            told,
            released: Arc::new(Mutex::new(false)),
        }
    }

    fn begin_renewal(&self, limit: u64) -> Option<InFlight> {
        self.lease_state.begin_renewal(self.clock.now(), at(limit))
    }

    fn complete_renewal(&self, in_flight: InFlight, outcome_of_renewal: RenewalOutcome) -> bool {
        self.lease_state
            .complete_renewal(in_flight, self.clock.now(), outcome_of_renewal)
    }

    fn look(&self) -> LeaseStatus {
        self.lease_state.look(self.clock.now())
    }

    /// Renews the lease, as a flush does.
    fn renew(&self, limit: u64) {
        if let Some(in_flight) = self.begin_renewal(limit) {
            for what in ["sent", "answered"] {
                assert!(!*self.released.lock(), "{what} after the release");
            }
            self.complete_renewal(in_flight, RenewalOutcome::Renewed { until: at(RENEWED) });
        }
    }

    /// Releases the lease, as the holder does.
    fn release(&self) {
        assert_eq!(self.lease_state.stop(self.clock.now()), Stopped::Now);
        self.lease_state.wait_for_in_flight(&self.clock);
        *self.released.lock() = true;
        assert_eq!(self.begin_renewal(RENEWED), None);
    }

    fn told(&self) -> usize {
        self.told.load(Relaxed)
    }
}

#[test]
fn nothing_is_sent_after_the_release() {
    check(3, || {
        let lease = Lease::new();
        let flush = {
            let lease = lease.clone();
            thread::spawn(move || lease.renew(LIMIT))
        };
        lease.release();
        flush.join().unwrap();
        assert_eq!(lease.look(), LeaseStatus::Stopped);
        assert_eq!(lease.told(), 0);
    });
}

/// The answer comes while two threads wait for it: the holder, and a thread that stopped the lease
/// before.
#[test]
fn the_answer_wakes_all_who_wait_for_it() {
    check(3, || {
        let lease = Lease::new();
        let in_flight = lease.begin_renewal(LIMIT).unwrap();
        lease.lease_state.stop(at(START));
        let other = {
            let lease = lease.clone();
            thread::spawn(move || lease.lease_state.wait_for_in_flight(&lease.clock))
        };
        let flush = {
            let lease = lease.clone();
            thread::spawn(move || lease.complete_renewal(in_flight, RenewalOutcome::Failed))
        };
        lease.lease_state.wait_for_in_flight(&lease.clock);
        assert!(!flush.join().unwrap());
        other.join().unwrap();
    });
}

#[test]
fn a_call_that_hangs_delays_the_release_until_its_limit_and_no_longer() {
    check(3, || {
        let lease = Lease::new();
        let in_flight = lease.begin_renewal(LIMIT).unwrap();
        let clock = {
            let lease = lease.clone();
            thread::spawn(move || {
                lease.hand.set(at(LIMIT));
                // A check at this time finds the call overdue.
                let found = lease.lease_state.in_flight_status(lease.clock.now());
                assert_eq!(found, InFlightStatus::GivenUp);
            })
        };
        lease.release();
        assert_eq!(lease.hand.now(), at(LIMIT));
        clock.join().unwrap();
        assert!(!lease.complete_renewal(in_flight, RenewalOutcome::NotHeld));
        assert_eq!(lease.look(), LeaseStatus::Stopped);
    });
}

/// The answer to a call that was given up does not count as the answer to the next call.
#[test]
fn a_late_answer_lands_beside_the_next_flight() {
    check(3, || {
        let lease = Lease::new();
        let in_flight = lease.begin_renewal(LIMIT).unwrap();
        lease.hand.set(at(LIMIT));
        assert_eq!(
            lease.lease_state.in_flight_status(at(LIMIT)),
            InFlightStatus::GivenUp
        );
        let late = {
            let lease = lease.clone();
            thread::spawn(move || {
                lease.complete_renewal(in_flight, RenewalOutcome::Failed);
            })
        };
        let flush = {
            let lease = lease.clone();
            thread::spawn(move || lease.renew(UNTIL))
        };
        lease.release();
        late.join().unwrap();
        flush.join().unwrap();
    });
}

/// The lease runs out by the clock while its renewal is under way. If the holder sees that, it
/// acquires the name anew. No later answer changes either of the two leases, and no loss is
/// reported twice.
fn a_late_answer(outcome_of_renewal: RenewalOutcome) {
    check(3, move || {
        let old = Lease::new();
        let in_flight = old.begin_renewal(LIMIT).unwrap();
        let flush = {
            let old = old.clone();
            thread::spawn(move || old.complete_renewal(in_flight, outcome_of_renewal))
        };
        old.hand.set(at(UNTIL));
        let seen = old.look();
        let new = match seen {
            LeaseStatus::Lost(_) => Some(Lease::acquired(&old.hand, at(RENEWED))),
            LeaseStatus::Held { until, .. } => {
                assert_eq!(until, at(RENEWED));
                None
            }
            LeaseStatus::Stopped => unreachable!("nobody stopped it"),
        };
        let goes_on = flush.join().unwrap();
        // A lost lease stays lost, for the same reason. An answer that comes then is ignored.
        assert_eq!(old.look(), seen);
        assert_eq!(goes_on, new.is_none());
        assert_eq!(old.lease_state.renewals(), u64::from(goes_on));
        assert_eq!(old.told(), usize::from(new.is_some()));
        if let Some(new) = new {
            assert!(matches!(new.look(), LeaseStatus::Held { .. }));
            assert_eq!((new.told(), new.lease_state.renewals()), (0, 0));
            new.release();
        }
    });
}

#[test]
fn a_late_success_revives_nothing() {
    a_late_answer(RenewalOutcome::Renewed { until: at(RENEWED) });
}

#[test]
fn a_late_refusal_ends_nothing_but_its_own_term() {
    a_late_answer(RenewalOutcome::NotHeld);
}

/// The same after a release: the next holder has a lease of its own from the first moment.
#[test]
fn an_answer_after_the_release_ends_nothing() {
    check(3, || {
        let old = Lease::new();
        let in_flight = old.begin_renewal(LIMIT).unwrap();
        let flush = {
            let old = old.clone();
            thread::spawn(move || old.complete_renewal(in_flight, RenewalOutcome::NotHeld))
        };
        let stopped = old.lease_state.stop(at(START));
        let new = Lease::acquired(&old.hand, at(UNTIL));
        assert!(!flush.join().unwrap());
        // The event that came first decides.
        match stopped {
            Stopped::Now => assert_eq!((old.look(), old.told()), (LeaseStatus::Stopped, 0)),
            _ => assert_eq!(stopped, Stopped::Lost(Loss::NotHeld)),
        }
        assert_eq!(old.told(), usize::from(stopped != Stopped::Now));
        assert!(matches!(new.look(), LeaseStatus::Held { .. }));
        assert_eq!(new.told(), 0);
    });
}
