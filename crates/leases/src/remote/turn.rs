//! Who drives the runtime of a store: its own thread, or a thread that waits for the only call.
//!
//! The own thread, the keeper, drives as a rule. A call that it makes for a thread costs two
//! hand-overs: to the keeper, and back. A thread that makes one call after the other saves both if it
//! drives itself while it waits. Several threads would only take the runtime out of each other's hands.
//!
//! - **TURN-1** The runtime is lent to one thread at a time, only while the keeper does not drive,
//!   and only while at most one counted task runs. Tasks that may be late are not counted. So the
//!   thread gets the runtime at once, and its call ends at its limit even if the keeper is slow.
//!   The keeper steps aside after [`ALONE`] pending polls in a row, each of a call that is alone,
//!   as soon as no counted task is left.
//! - **TURN-2** The thread that drives runs every task. The keeper drives again at once when the
//!   runtime is given back with counted tasks, and when a task begins that no thread drives. In any
//!   case it drives again within twice [`LINGER`] after the last call. So other events, such as a
//!   closed connection or a dropped value, are noticed by then.
//! - **TURN-3** All decisions are made under one lock. No thread drives, rings or parks while it
//!   holds this lock. The keeper sleeps without a limit only while the runtime is lent. It is
//!   unparked when the runtime is given back.

use std::task::{Context, Poll};
use std::time::Duration;

use tourbillon::ClockUnparker;

use crate::store::Bell;
use crate::sync::{Arc, Mutex};

/// How long the keeper waits for the next call of a thread that drives.
pub(crate) const LINGER: Duration = Duration::from_millis(10);

/// The pending polls in a row, each of a call that is alone, before the keeper steps aside. With fewer
/// of them two threads would take the runtime out of each other's hands too often.
const ALONE: u32 = if cfg!(loom) { 0 } else { 32 };

/// What the keeper does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeeperState {
    Drives,
    /// It waits for [`LINGER`].
    Naps,
    /// It waits until it is unparked.
    Sleeps,
}

/// What the keeper is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Drive,
    /// Wait for [`LINGER`], and ask again.
    Nap,
    /// Wait until it is unparked, and ask again.
    Sleep,
    End,
}

/// Decides which thread drives a runtime.
pub(crate) struct Turn {
    state: Mutex<TurnState>,
    /// Rings for the keeper while it drives.
    bell: Arc<Bell>,
    /// Unparks the keeper.
    keeper: ClockUnparker,
}

struct TurnState {
    keeper: KeeperState,
    /// Whether a thread drives in the place of the keeper.
    is_lent: bool,
    /// Whether it was lent, or the keeper stepped aside, since the last [`next`](Turn::next).
    was_lent: bool,
    /// Whether the keeper has to drive now.
    is_wanted: bool,
    /// Counted tasks that have begun and not ended.
    tasks: usize,
    /// The number of further pending polls of a lone call before the keeper steps aside.
    left: u32,
    /// Whether the keeper, which drives, stops as soon as no counted task is left.
    steps_aside: bool,
    has_ended: bool,
}

impl Turn {
    /// The keeper drives.
    pub(crate) fn new(keeper: ClockUnparker) -> Self {
        Turn {
            state: Mutex::new(TurnState {
                keeper: KeeperState::Drives,
                is_lent: false,
                was_lent: false,
                is_wanted: false,
                tasks: 0,
                left: ALONE,
                steps_aside: false,
                has_ended: false,
            }),
            bell: Arc::new(Bell::default()),
            keeper,
        }
    }

    /// Counts a task until the result is dropped.
    pub(crate) fn begins(self: &Arc<Self>) -> Counted {
        self.state.lock().tasks += 1;
        Counted(Arc::clone(self))
    }

    /// Makes the keeper drive, unless a thread does.
    pub(crate) fn wants(&self) {
        let mut state = self.state.lock();
        let wakes = state.keeper != KeeperState::Drives && !state.is_lent;
        state.is_wanted |= wakes;
        drop(state);
        if wakes {
            self.keeper.unpark();
        }
    }

    /// Lends the runtime to this thread until the result is dropped (TURN-1). Otherwise the thread has to
    /// [ask](Self::wants) for somebody else who drives.
    pub(crate) fn lend(&self) -> Option<Lent<'_>> {
        let mut state = self.state.lock();
        if state.is_lent || state.has_ended || state.tasks > 1 {
            state.left = ALONE;
            state.steps_aside = false;
            return None;
        }
        if state.keeper != KeeperState::Drives {
            state.is_lent = true;
            return Some(Lent(self));
        }
        match state.left {
            0 => state.steps_aside = true,
            _ => state.left -= 1,
        }
        // If its task has ended meanwhile, the keeper stops now.
        let rings = state.steps_aside && state.tasks == 0;
        drop(state);
        if rings {
            self.ring();
        }
        None
    }

    /// Ends the keeper.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.ring();
        self.keeper.unpark();
    }

    fn ring(&self) {
        std::task::Wake::wake(Arc::clone(&self.bell));
    }

    /// Ready when the keeper, which drives, has to stop.
    pub(crate) fn poll_stops(&self, context: &Context<'_>) -> Poll<()> {
        while self.bell.poll(context).is_ready() {
            let mut state = self.state.lock();
            if state.steps_aside && state.tasks == 0 {
                state.keeper = KeeperState::Naps;
                state.was_lent = true;
                return Poll::Ready(());
            }
            if state.has_ended {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Returns what the keeper, which does not drive, is to do next.
    pub(crate) fn next(&self) -> Next {
        let mut state = self.state.lock();
        let is_wanted = std::mem::take(&mut state.is_wanted);
        let was_lent = std::mem::take(&mut state.was_lent);
        let (keeper, next) = if state.has_ended {
            (KeeperState::Drives, Next::End)
        } else if state.is_lent {
            (KeeperState::Sleeps, Next::Sleep)
        } else if was_lent && !is_wanted {
            (KeeperState::Naps, Next::Nap)
        } else {
            state.left = ALONE;
            state.steps_aside = false;
            (KeeperState::Drives, Next::Drive)
        };
        state.keeper = keeper;
        next
    }
}

/// A task that counts while it is there.
pub(crate) struct Counted(Arc<Turn>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.tasks -= 1;
        let rings = state.steps_aside && state.tasks == 0;
        drop(state);
        if rings {
            self.0.ring();
        }
    }
}

/// The runtime is lent while this is there.
pub(crate) struct Lent<'a>(&'a Turn);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_lent = false;
        state.was_lent = true;
        state.is_wanted |= state.tasks > 0;
        let wakes = state.is_wanted || state.keeper == KeeperState::Sleeps;
        drop(state);
        if wakes {
            self.0.keeper.unpark();
        }
    }
}
