//! Requests to the store: to acquire a name, and to give it back.

use std::time::Duration;

use tourbillon::Time;

use super::background::QueuedItem;
use crate::keep_alive::KeepOptions;
use crate::store::{Claim, Holding, Mode, OwnedSecret};
use crate::sync::channel::Sender;

/// A checked request to acquire a name.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) secret: OwnedSecret,
    pub(super) lease: Duration,
    pub(super) mode: Mode,
    pub(super) keep: KeepOptions,
    /// How long the lock stays locked from its grant on, whatever its holder does.
    pub(super) at_least: Duration,
}

impl Request {
    /// Returns what the store is asked, by a caller that does not wait.
    pub(super) fn claim(&self) -> Claim<'_> {
        Claim::new(&self.name, &self.owner, self.secret.get(), self.lease).in_mode(self.mode)
    }

    /// Returns the release of a name that may have been granted without an answer, or may still be
    /// granted.
    pub(super) fn give_back(&self) -> PendingRelease {
        PendingRelease {
            name: self.name.clone(),
            secret: self.secret,
            lease: self.lease,
            mode: self.mode,
            sure: false,
            stays: None,
        }
    }
}

/// How long a caller waits for a lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitPolicy {
    /// It asks once and does not wait.
    None,
    Until(Time),
    Endless,
}

/// The options of one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptOptions {
    /// Whether the caller will wait if the name is held, so that the store has to announce the
    /// release.
    pub(super) waits: bool,
    /// How long the caller has waited.
    pub(super) waited: Duration,
    /// The moment from which a grant is of no use to the caller.
    pub(super) until: Time,
    /// Whether an earlier attempt may still be granted.
    pub(super) unsure: bool,
    /// Whether the drop of the guard may wait for the store.
    pub(super) drop_waits: bool,
}

/// A name to give back.
pub(super) struct PendingRelease {
    pub(super) name: String,
    pub(super) secret: OwnedSecret,
    pub(super) lease: Duration,
    pub(super) mode: Mode,
    /// Whether no attempt with this secret may still be granted. Then the answer that the name
    /// is not held with it means that it is given back.
    pub(super) sure: bool,
    /// Until when the name stays locked for others, if that was asked for.
    pub(super) stays: Option<Time>,
}

impl PendingRelease {
    /// Returns what the store is asked at `now`.
    pub(super) fn holding(&self, now: Time) -> Holding<'_> {
        let rest = self.stays.map_or(Duration::ZERO, |stays| stays.since(now));
        Holding::new(&self.name, self.secret.get())
            .after(rest)
            .in_mode(self.mode)
    }
}

/// A pending release in the background queue.
pub(super) struct Queued {
    pub(super) back: PendingRelease,
    /// The moment until which the release is useful.
    pub(super) until: Time,
    /// The number of attempts so far.
    pub(super) tried: u32,
    /// Whether the name is held for certain. The first release that is answered ends that holding,
    /// and not a grant that may still follow.
    pub(super) held: bool,
    /// Counts the release until the store has answered.
    pub(super) entered: Option<QueuedItem>,
    /// Dropped when the release has been tried once.
    pub(super) tells: Option<Sender<()>>,
}
