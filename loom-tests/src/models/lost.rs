//! Loss versus release. Exactly one of the two happens, and a loss is reported once. A thread or
//! task that waits for the loss learns how the lease ended.
//! `crates/leases/src/keep_alive/lease_state/` has the rules, and `lost.rs` in the same folder has
//! the future.
//!
//! If a waiting thread or task is not notified, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/lost-channel-registers-in-a-second-hold.patch`
//! - `teeth/lost-future-looks-once.patch`: the future leaves its waker and does not check again.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};
use std::task::{Context, Waker};

use loom::thread;

use super::check;
use crate::clock::{Clock, ManualClock};
use crate::leases::keep_alive::lease_state::{LeaseState, LeaseStatus, Loss, Stopped};
use crate::leases::keep_alive::lost::Lost;
use crate::rig::{START, at, block_on};
use crate::sync::Arc;
use crate::tick::Time;

const UNTIL: u64 = START + 10;

#[derive(Clone)]
struct Held {
    lease_state: Arc<LeaseState>,
    clock: Clock,
    /// A counter of std, not of loom: it must not order anything.
    told: Arc<Count>,
}

impl Held {
    fn new() -> Self {
        let hand = ManualClock::starting_at(at(START));
        let told = Arc::new(Count::new(0));
        let tells = Arc::clone(&told);
        let on_loss = Box::new(move |_| {
            tells.fetch_add(1, Relaxed);
        });
        let lease_state = LeaseState::new(at(START), at(UNTIL), Time::MAX, None, on_loss);
        Held {
            lease_state: Arc::new(lease_state),
            clock: Clock::manual(&hand),
            told,
        }
    }

    fn lost(&self) -> Lost {
        Lost::new(&self.lease_state, &self.clock)
    }

    /// Checks the lease when it has run out.
    fn expires(&self) -> Option<Loss> {
        match self.lease_state.look(at(UNTIL)) {
            LeaseStatus::Lost(loss) => Some(loss),
            LeaseStatus::Stopped => None,
            LeaseStatus::Held { .. } => unreachable!("its time has come"),
        }
    }

    /// Releases the lease, as its holder does.
    fn stops(&self) -> Option<Loss> {
        match self.lease_state.stop(at(START)) {
            Stopped::Now => None,
            Stopped::Lost(loss) => Some(loss),
            Stopped::Before => unreachable!("nobody else stops it"),
        }
    }

    /// Checks that the callback was called once for a loss, and that all agree how the lease ended.
    fn check(&self, ended: Option<Loss>) {
        assert_eq!(self.lost().loss(), ended);
        assert_eq!(self.told.load(Relaxed), usize::from(ended.is_some()));
    }
}

/// The two ways in which a lease ends, for another thread.
const ENDS: [fn(&Held) -> Option<Loss>; 2] = [Held::expires, Held::stops];

fn on_another_thread(
    held: &Held,
    end: fn(&Held) -> Option<Loss>,
) -> thread::JoinHandle<Option<Loss>> {
    let held = held.clone();
    thread::spawn(move || end(&held))
}

#[test]
fn it_ends_once_and_all_agree_how() {
    check(3, || {
        let held = Held::new();
        let channel = held.lease_state.loss_channel();
        let expiry = on_another_thread(&held, Held::expires);
        let refusal = on_another_thread(&held, |held| {
            held.lease_state.end(Loss::NotHeld);
            held.lost().loss()
        });
        let ended = held.stops();
        assert_eq!(channel.recv().ok(), ended);
        assert_eq!(expiry.join().unwrap(), ended);
        assert_eq!(refusal.join().unwrap(), ended);
        held.check(ended);
    });
}

#[test]
fn a_channel_learns_of_the_end_whenever_it_is_made() {
    for end in ENDS {
        check(3, move || {
            let held = Held::new();
            let ends = on_another_thread(&held, end);
            let heard = held.lease_state.loss_channel().recv().ok();
            assert_eq!(ends.join().unwrap(), heard);
            held.check(heard);
        });
    }
}

#[test]
fn a_task_learns_of_the_end() {
    for end in ENDS {
        check(3, move || {
            let held = Held::new();
            let ends = on_another_thread(&held, end);
            let heard = block_on(held.lost());
            assert_eq!(ends.join().unwrap(), heard);
            held.check(heard);
        });
    }
}

/// The future is polled before with another waker, as if it had moved from another task. Another
/// task gives up waiting.
#[test]
fn a_task_that_took_over_learns_of_the_end() {
    for end in ENDS {
        check(3, move || {
            let held = Held::new();
            let (mut lost, mut other) = (held.lost(), held.lost());
            let mut nobody = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut other).poll(&mut nobody).is_pending());
            let ends = on_another_thread(&held, end);
            let _ = Pin::new(&mut lost).poll(&mut nobody);
            drop(other);
            let heard = block_on(lost);
            assert_eq!(ends.join().unwrap(), heard);
            held.check(heard);
        });
    }
}
