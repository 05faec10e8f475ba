//! Renewal against release, and a late answer against a new acquire. `leases/watchdog/term.rs` has
//! the rules, TERM-1 to TERM-4.
//!
//! A holder that is not woken shows as a deadlock.
//!
//! Teeth:
//! - `teeth/term-departs-in-two-holds.patch`: a renewal is sent after the release.
//! - `teeth/term-settled-registers-in-a-second-hold.patch`
//! - `teeth/term-landing-wakes-nobody.patch`
//! - `teeth/term-lands-in-two-holds.patch`: a late answer revives what was lost.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::watchdog::term::{Flight, Landing, Loss, Standing, Stopped, Term, UnderWay};
use crate::rig::{START, at};
use crate::sync::{Arc, Mutex};
use crate::tick::Time;

/// Until when a call may take.
const LIMIT: u64 = START + 5;
/// Until when the lease lasts, and until when once it is renewed.
const UNTIL: u64 = START + 10;
const RENEWED: u64 = START + 20;

/// One term, and the store that its requests go to.
#[derive(Clone)]
struct Lease {
    term: Arc<Term>,
    clock: Clock,
    hand: ManualClock,
    /// How often the loss was told. Not loom's: it must order nobody.
    told: Arc<Count>,
    /// The holder believes that nothing is sent any more.
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
        let term = Term::new(hand.now(), until, Time::MAX, None, on_loss);
        Lease {
            term: Arc::new(term),
            clock: Clock::manual(hand),
            hand: hand.clone(),
            told,
            released: Arc::new(Mutex::new(false)),
        }
    }

    fn depart(&self, limit: u64) -> Option<Flight> {
        self.term.depart(self.clock.now(), at(limit))
    }

    fn land(&self, flight: Flight, landing: Landing) -> bool {
        self.term.land(flight, self.clock.now(), landing)
    }

    fn look(&self) -> Standing {
        self.term.look(self.clock.now())
    }

    /// What a pass does with a lease that is due.
    fn renew(&self, limit: u64) {
        if let Some(flight) = self.depart(limit) {
            for what in ["sent", "answered"] {
                assert!(!*self.released.lock(), "{what} after the release");
            }
            self.land(flight, Landing::Renewed { until: at(RENEWED) });
        }
    }

    /// What the holder does at the end.
    fn release(&self) {
        assert_eq!(self.term.stop(self.clock.now()), Stopped::Now);
        self.term.settled(&self.clock);
        *self.released.lock() = true;
        assert_eq!(self.depart(RENEWED), None);
    }

    fn told(&self) -> usize {
        self.told.load(Relaxed)
    }
}

#[test]
fn nothing_is_sent_after_the_release() {
    check(3, || {
        let lease = Lease::new();
        let pass = {
            let lease = lease.clone();
            thread::spawn(move || lease.renew(LIMIT))
        };
        lease.release();
        pass.join().unwrap();
        assert_eq!(lease.look(), Standing::Stopped);
        assert_eq!(lease.told(), 0);
    });
}

/// The answer comes while two wait for it: the holder, and who stopped it before.
#[test]
fn the_answer_wakes_all_who_wait_for_it() {
    check(3, || {
        let lease = Lease::new();
        let flight = lease.depart(LIMIT).unwrap();
        lease.term.stop(at(START));
        let other = {
            let lease = lease.clone();
            thread::spawn(move || lease.term.settled(&lease.clock))
        };
        let pass = {
            let lease = lease.clone();
            thread::spawn(move || lease.land(flight, Landing::Failed))
        };
        lease.term.settled(&lease.clock);
        assert!(!pass.join().unwrap());
        other.join().unwrap();
    });
}

#[test]
fn a_call_that_hangs_delays_the_release_until_its_limit_and_no_longer() {
    check(3, || {
        let lease = Lease::new();
        let flight = lease.depart(LIMIT).unwrap();
        let clock = {
            let lease = lease.clone();
            thread::spawn(move || {
                lease.hand.set(at(LIMIT));
                // A round finds it overdue, if it still looks.
                let found = lease.term.under_way(lease.clock.now());
                assert_eq!(found, UnderWay::GivenUp);
            })
        };
        lease.release();
        assert_eq!(lease.hand.now(), at(LIMIT));
        clock.join().unwrap();
        assert!(!lease.land(flight, Landing::NotHeld));
        assert_eq!(lease.look(), Standing::Stopped);
    });
}

/// The answer to a call that was given up is not taken for that to the next one.
#[test]
fn a_late_answer_lands_beside_the_next_flight() {
    check(3, || {
        let lease = Lease::new();
        let flight = lease.depart(LIMIT).unwrap();
        lease.hand.set(at(LIMIT));
        assert_eq!(lease.term.under_way(at(LIMIT)), UnderWay::GivenUp);
        let late = {
            let lease = lease.clone();
            thread::spawn(move || {
                lease.land(flight, Landing::Failed);
            })
        };
        let pass = {
            let lease = lease.clone();
            thread::spawn(move || lease.renew(UNTIL))
        };
        lease.release();
        late.join().unwrap();
        pass.join().unwrap();
    });
}

/// The lease runs out by the clock while its renewal is under way. The name is acquired anew if the
/// holder sees that; whatever the answer is then, it changes neither term, and no loss is told twice.
fn a_late_answer(landing: Landing) {
    check(3, move || {
        let old = Lease::new();
        let flight = old.depart(LIMIT).unwrap();
        let pass = {
            let old = old.clone();
            thread::spawn(move || old.land(flight, landing))
        };
        old.hand.set(at(UNTIL));
        let seen = old.look();
        let new = match seen {
            Standing::Lost(_) => Some(Lease::acquired(&old.hand, at(RENEWED))),
            Standing::Kept { until, .. } => {
                assert_eq!(until, at(RENEWED));
                None
            }
            Standing::Stopped => unreachable!("nobody stopped it"),
        };
        let goes_on = pass.join().unwrap();
        // Once lost it stays lost, for the same reason, and an answer that comes then is none.
        assert_eq!(old.look(), seen);
        assert_eq!(goes_on, new.is_none());
        assert_eq!(old.term.renewals(), u64::from(goes_on));
        assert_eq!(old.told(), usize::from(new.is_some()));
        if let Some(new) = new {
            assert!(matches!(new.look(), Standing::Kept { .. }));
            assert_eq!((new.told(), new.term.renewals()), (0, 0));
            new.release();
        }
    });
}

#[test]
fn a_late_success_revives_nothing() {
    a_late_answer(Landing::Renewed { until: at(RENEWED) });
}

#[test]
fn a_late_refusal_ends_nothing_but_its_own_term() {
    a_late_answer(Landing::NotHeld);
}

/// The same after a release: the next holder has a term of its own from the first moment.
#[test]
fn an_answer_after_the_release_ends_nothing() {
    check(3, || {
        let old = Lease::new();
        let flight = old.depart(LIMIT).unwrap();
        let pass = {
            let old = old.clone();
            thread::spawn(move || old.land(flight, Landing::NotHeld))
        };
        let stopped = old.term.stop(at(START));
        let new = Lease::acquired(&old.hand, at(UNTIL));
        assert!(!pass.join().unwrap());
        // The one that came first.
        match stopped {
            Stopped::Now => assert_eq!((old.look(), old.told()), (Standing::Stopped, 0)),
            _ => assert_eq!(stopped, Stopped::Lost(Loss::NotHeld)),
        }
        assert_eq!(old.told(), usize::from(stopped != Stopped::Now));
        assert!(matches!(new.look(), Standing::Kept { .. }));
        assert_eq!(new.told(), 0);
    });
}
