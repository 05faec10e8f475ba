//! The threads that call the store for a node, one for each lane, with a connection of its own
//! each.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use tourbillon::Handle;

use crate::client::{Attempt, ReconnectingConnection, SLOW, StoreHandle};
use crate::events::StoreWork;
use crate::node::{Lane, Reply, StoreCall};
use crate::store::{Claim, Connection, Epoch, Poll, Settle, StoreError, StoreTime};
use crate::sync::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use crate::sync::{Arc, thread};

/// What the wheel of a node wakes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Wake {
    /// The node itself.
    Node,
    /// The watch over the call of a lane, which has taken too long.
    Slow(Lane),
    /// The next attempt to listen to the store's doorbell.
    Listen,
}

/// The time from one look for old dead letters to the next one.
const DISCARD_INTERVAL: Duration = Duration::from_secs(60);

/// The same while there are more of them, and before the first look.
const DISCARD_PAUSE: Duration = Duration::from_secs(1);

/// The greatest number of dead letters that are deleted at one time: ends of runs wait meanwhile.
const DISCARDED_AT_ONCE: u32 = 100;

/// Gets the answer to a call of the node.
type Answered = dyn Fn(u64, &StoreCall, Result<Reply, StoreError>) + Send + Sync;

/// The threads that call the store. They end when this is dropped.
pub(crate) struct Lanes([(Lane, Sender<(u64, StoreCall)>); 3]);

/// The reason why the lanes could not be started.
#[derive(Debug)]
pub(crate) enum LanesError {
    Spawn(io::Error),
    Store(StoreError),
}

impl Lanes {
    /// Starts the threads. Each opens its connection and tries the calls that it will make.
    pub(crate) fn start(
        store_handle: &Arc<StoreHandle>,
        wake: &Handle<Wake>,
        keep_dead_for: Duration,
        answered: &Arc<Answered>,
    ) -> Result<Self, LanesError> {
        let mut tried = Vec::new();
        let mut start = |lane: Lane| -> io::Result<_> {
            let (sender, receiver) = unbounded();
            let (told, is_good) = oneshot::channel();
            let mut worker = LaneWorker {
                lane,
                receiver,
                keep_dead_for,
                discards_at: None,
                connection: ReconnectingConnection::new(store_handle),
                store_handle: Arc::clone(store_handle),
                wake: wake.clone(),
                answered: Arc::clone(answered),
            };
            let name = match lane {
                Lane::Watch => "watch",
                Lane::Claims => "claim",
                Lane::Settles => "settle",
            };
            thread::spawn(name, move || {
                let good = worker.connection.make(|connection| trial(lane, connection));
                let is_good = good.is_ok();
                // The starting thread waits for it.
                drop(told.send(good));
                if is_good {
                    if lane == Lane::Settles && keep_dead_for < Duration::MAX {
                        worker.discards_at = Some(Instant::now() + DISCARD_PAUSE);
                    }
                    worker.work();
                }
            })?;
            tried.push(is_good);
            Ok((lane, sender))
        };
        let [watch, claims, settles] = Lane::ALL;
        let mut start = |lane| start(lane).map_err(LanesError::Spawn);
        let lanes = Lanes([start(watch)?, start(claims)?, start(settles)?]);
        for is_good in tried {
            let ended = |_| Err(StoreError::Unavailable("a thread has ended".to_owned()));
            is_good
                .recv()
                .unwrap_or_else(ended)
                .map_err(LanesError::Store)?;
        }
        Ok(lanes)
    }

    pub(crate) fn send(&self, id: u64, call: StoreCall) {
        let lane = self.0.iter().find(|(lane, _)| *lane == call.lane());
        if let Some((_, sender)) = lane {
            drop(sender.send((id, call)));
        }
    }
}

/// The thread of one lane.
struct LaneWorker {
    lane: Lane,
    receiver: Receiver<(u64, StoreCall)>,
    keep_dead_for: Duration,
    /// The next look for old dead letters.
    discards_at: Option<Instant>,
    connection: ReconnectingConnection,
    store_handle: Arc<StoreHandle>,
    wake: Handle<Wake>,
    answered: Arc<Answered>,
}

impl LaneWorker {
    fn work(&mut self) {
        loop {
            if self.discards_at.is_some_and(|at| at <= Instant::now()) {
                self.discard_old();
            }
            match self.next() {
                Ok((id, call)) => {
                    let result = self.watched(work(&call), |connection| call.make(connection));
                    (self.answered)(id, &call, result);
                }
                Err(RecvTimeoutError::Timeout) => self.try_again(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The next call. While a part of the work has stopped, the wait for it ends after a while, and
    /// so it does when old dead letters are to be looked for.
    fn next(&self) -> Result<(u64, StoreCall), RecvTimeoutError> {
        let slow = self.stopped().map(|_| SLOW);
        let discards = self.discards_at;
        let discards = discards.map(|at| at.saturating_duration_since(Instant::now()));
        match slow.into_iter().chain(discards).min() {
            Some(wait) => self.receiver.recv_timeout(wait),
            None => self
                .receiver
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    /// The work that has stopped and that the node does not come back to unless there is something
    /// to do.
    fn stopped(&self) -> Option<StoreWork> {
        let work = match self.lane {
            Lane::Watch => return None,
            Lane::Claims => StoreWork::Claim,
            Lane::Settles => StoreWork::Settle,
        };
        self.store_handle.outages().has(work).then_some(work)
    }

    /// There is nothing to claim or to settle that would show the end of an outage.
    fn try_again(&mut self) {
        if let Some(work) = self.stopped() {
            let lane = self.lane;
            drop(self.watched(work, |connection| trial(lane, connection)));
        }
    }

    /// Deletes dead letters that were kept long enough. If the store refuses it, it is tried again
    /// with the next look, and nothing waits for it.
    fn discard_old(&mut self) {
        let keep = self.keep_dead_for;
        // In an outage it would end what only a settlement can end.
        if self.stopped().is_some() {
            self.discards_at = Some(Instant::now() + DISCARD_INTERVAL);
            return;
        }
        let discarded = self.watched(StoreWork::Settle, |connection| {
            match connection.discard_old(keep, DISCARDED_AT_ONCE) {
                Err(StoreError::Refused(_)) => Ok(0),
                discarded => discarded,
            }
        });
        let pause = match discarded {
            Ok(discarded) if discarded == u64::from(DISCARDED_AT_ONCE) => DISCARD_PAUSE,
            _ => DISCARD_INTERVAL,
        };
        self.discards_at = Some(Instant::now() + pause);
    }

    /// Makes a call, and notes how it ends.
    fn watched<R>(
        &mut self,
        work: StoreWork,
        make: impl FnOnce(&mut dyn Connection) -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let attempt = Attempt::new(self.store_handle.outages(), work);
        let (key, slow) = (Wake::Slow(self.lane), Arc::clone(&attempt));
        // A wheel that is shut down watches nothing: the node has ended.
        drop(self.wake.schedule(key, SLOW, move |_| slow.is_slow()));
        let result = self.connection.make(make);
        self.wake.cancel(&key);
        attempt.ended(result.as_ref().err());
        result
    }
}

fn work(call: &StoreCall) -> StoreWork {
    match call {
        StoreCall::Join(_) => StoreWork::Join,
        StoreCall::Beat(_) => StoreWork::Beat,
        StoreCall::Poll(_) => StoreWork::Poll,
        StoreCall::DeclareGone { .. } => StoreWork::DeclareGone,
        StoreCall::Leave(_) => StoreWork::Leave,
        StoreCall::Claim(_) => StoreWork::Claim,
        StoreCall::Settle(_) => StoreWork::Settle,
    }
}

/// Makes the calls of a lane so that they change nothing: for an epoch that no node has, and
/// without timers.
fn trial(lane: Lane, connection: &mut dyn Connection) -> Result<(), StoreError> {
    let epoch = Epoch(i64::try_from(RandomState::new().hash_one(0) >> 1).unwrap_or(i64::MAX));
    match lane {
        Lane::Watch => {
            connection.beat(epoch)?;
            connection.poll(&Poll {
                epoch,
                ranges: Vec::new(),
                bands: Vec::new(),
                complete: false,
            })?;
        }
        Lane::Claims => {
            connection.claim(&Claim {
                epoch,
                deadline: StoreTime::LATEST,
                timers: Vec::new(),
                adopt: Vec::new(),
            })?;
        }
        Lane::Settles => {
            let settlements = Vec::new();
            connection.settle(&Settle { epoch, settlements })?;
        }
    }
    Ok(())
}
