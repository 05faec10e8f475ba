//! Tells followers who leads.
//!
//! All receivers of a candidate share one look at the store in each second. It is a task in the
//! background, and has no handle of the leases.
//!
//! - **LEADERS-1** A receiver gets the newest state in the end. A state for which it has no room is
//!   not kept: each look compares the newest state with the one that this receiver was sent last,
//!   and sends it if they differ.
//! - **LEADERS-2** While there are channels, a task runs that looks. One is spawned with the first
//!   channel. A task that ends drops the channels, under the lock under which a new one is added,
//!   unless a later task has begun.

use std::collections::VecDeque;
use std::time::Duration;

use tourbillon::Time;

use super::{Candidate, Election};
use crate::manager::{LockError, StoreFailures, UnownedLeases};
use crate::store::{Holder, StoreError};
use crate::sync::channel::{Receiver, Sender, TrySendError, bounded};
use crate::sync::{Arc, Mutex, Weak};

/// The number of states for which a receiver has room.
const ROOM: usize = 16;
/// The number of channels of a candidate. Receivers that are dropped stay until the next change, so
/// there has to be a bound.
const MOST_CHANNELS: usize = 1_024;
/// The longest pause between two looks at the store.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest one: a lease that no store grants must not make a loop of the looks.
const LEAST_PAUSE: Duration = Duration::from_millis(10);

/// The leader of an election. [`Election::leaders`] tells of it.
///
/// # Examples
///
/// ```
/// use tourbillon_leases::{Leader, Leases, MemoryStore};
///
/// # let store = MemoryStore::new();
/// let leases = Leases::builder(store).holder_data("http://10.0.0.7:8080").build()?;
/// let election = leases.election("scheduler");
/// let leaders = election.leaders()?;
/// let leadership = election.lead().wait()?;
/// // The first state may be that nobody leads.
/// let leader: Leader = leaders.iter().flatten().next().expect("it is told");
/// assert_eq!((leader.data.as_str(), leader.token), ("http://10.0.0.7:8080", leadership.token()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The owner, which begins with the [instance](crate::LeasesBuilder::instance) of its leases.
    pub owner: String,
    /// What the leader says about itself, such as its address; see
    /// [`LeasesBuilder::holder_data`](crate::LeasesBuilder::holder_data).
    pub data: String,
    /// The token of the term. A later term has a greater one.
    pub token: u64,
}

impl Leader {
    fn of(holder: Holder) -> Self {
        Leader {
            owner: holder.owner,
            data: holder.data,
            token: holder.token,
        }
    }
}

impl Election {
    /// Returns a channel of who leads: the present leader or `None`, and then each change. It needs
    /// no campaign, so processes that only follow may call it, too.
    ///
    /// The leases look at the store once a second, or three times in a lease of less than three
    /// seconds. The channel gets a state that differs from the last one that it got. A term that
    /// begins and ends between two looks is not told. While the channel is full, the states in between
    /// are left out, and the newest one follows when there is room. A look that fails changes nothing;
    /// [`health`](Self::health) tells of it. A store that can't tell
    /// [who holds a name](crate::LeaseStore::holder_of) refuses each look.
    ///
    /// The answer may be outdated when it arrives, as that of [`leader`](Self::leader). A leader
    /// asks [`is_leader`](crate::Leadership::is_leader).
    ///
    /// The channel is disconnected when the last clone of this election is dropped, and within a
    /// second when the leases are closed, or when a look that is under way has ended. In a forked copy
    /// of the process it stays silent. The looks end at the first change after the last receiver is
    /// dropped. So make one receiver for a process, and not one for each request. A candidate has at
    /// most 1,024 channels, and a further one ends the oldest.
    ///
    /// # Errors
    ///
    /// [`LockError`] for a name that no lock can have, in a forked copy of the process, or if the
    /// leases are closed or have no threads.
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_leases::{Leases, MemoryStore};
    ///
    /// # let leases = Leases::new(MemoryStore::new())?;
    /// let election = leases.election("scheduler"); // keep it for as long as you follow
    /// let leaders = election.leaders()?;
    /// match leaders.recv()? {
    ///     Some(leader) => println!("{} leads with token {}", leader.owner, leader.token),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn leaders(&self) -> Result<Receiver<Option<Leader>>, LockError> {
        // First, so that a copy of the process takes no lock.
        let leases = self.leases.unowned(&self.name)?;
        let (sender, receiver) = bounded(ROOM);
        if let Some(run) = self.candidate.lookout.add(sender) {
            let watcher = Watcher {
                candidate: Arc::downgrade(&self.candidate),
                run,
            };
            let pause = (self.lease_length() / 3).clamp(LEAST_PAUSE, PAUSE);
            let looks = look(leases.clone(), watcher, self.name.clone(), pause);
            if !leases.spawn(looks) {
                let name = self.name.clone();
                return Err(LockError::Closed { name });
            }
        }
        Ok(receiver)
    }
}

/// Looks who leads, until nobody wants to know it.
async fn look(leases: UnownedLeases, watcher: Watcher, name: String, pause: Duration) {
    while let Some(seen) = leases.holder(&name).await {
        let seen = match seen {
            Ok(holder) => Ok(holder.map(Leader::of)),
            Err(LockError::Store { error, .. }) if error != StoreError::Forked => Err(error),
            // It can never succeed, or there are no workers any more.
            Err(_) => return,
        };
        let Some(now) = leases.now() else {
            return;
        };
        // Held for this moment only: the drop of the last election ends the channels.
        let Some(candidate) = watcher.candidate.upgrade() else {
            return;
        };
        let is_wanted = candidate.lookout.saw(seen, now);
        drop(candidate);
        if !is_wanted || !leases.sleep(pause).await {
            return;
        }
    }
}

/// A task that looks. Its drop ends the channels, also if it never runs again (LEADERS-2).
struct Watcher {
    candidate: Weak<Candidate>,
    run: u64,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(candidate) = self.candidate.upgrade() {
            candidate.lookout.end(self.run);
        }
    }
}

/// The receivers of a candidate, and what they know.
#[derive(Default)]
pub(super) struct Lookout {
    state: Mutex<LookoutState>,
    /// What the looks hear of the store.
    failing: StoreFailures,
}

#[derive(Default)]
struct LookoutState {
    /// The number of the task that looks, or that looked last.
    run: u64,
    /// What the last look has seen. `None` before the first one.
    present: Option<Option<Leader>>,
    /// The oldest is the first.
    channels: VecDeque<Told>,
}

/// A channel, and the state that it was sent last.
struct Told {
    sender: Sender<Option<Leader>>,
    last: Option<Option<Leader>>,
}

impl Told {
    /// Sends the present state, unless it was sent last. Returns false if the receiver is gone.
    fn tell(&mut self, present: &Option<Leader>) -> bool {
        if self.last.as_ref() == Some(present) {
            return true;
        }
        match self.sender.try_send(present.clone()) {
            Ok(()) => self.last = Some(present.clone()),
            // The next look tries again (LEADERS-1).
            Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => return false,
        }
        true
    }
}

impl Lookout {
    /// Adds a channel, and tells it what is known. Returns the number of the task to spawn, if none
    /// looks.
    fn add(&self, sender: Sender<Option<Leader>>) -> Option<u64> {
        let mut state = self.state.lock();
        let mut told = Told { sender, last: None };
        if let Some(present) = &state.present {
            told.tell(present);
        }
        let is_first = state.channels.is_empty();
        if state.channels.len() >= MOST_CHANNELS {
            state.channels.pop_front();
        }
        state.channels.push_back(told);
        is_first.then(|| {
            state.run += 1;
            state.run
        })
    }

    /// Tells all channels what a look has seen. Returns whether there are any.
    fn saw(&self, seen: Result<Option<Leader>, StoreError>, now: Time) -> bool {
        self.failing.note(seen.as_ref().err(), now);
        let mut state = self.state.lock();
        let LookoutState {
            present, channels, ..
        } = &mut *state;
        if let Ok(leader) = seen {
            *present = Some(leader);
        }
        // Also after a look that failed: a channel may have room again.
        if let Some(present) = present {
            channels.retain_mut(|told| told.tell(present));
        }
        !channels.is_empty()
    }

    /// Ends the channels of a task, unless a later one has begun.
    fn end(&self, run: u64) {
        let mut state = self.state.lock();
        if state.run == run {
            state.channels.clear();
            // The next task may look much later.
            state.present = None;
            self.failing.note(None, Time::default());
        }
    }

    /// Returns how the store fails the looks.
    pub(super) fn failing(&self) -> &StoreFailures {
        &self.failing
    }
}
