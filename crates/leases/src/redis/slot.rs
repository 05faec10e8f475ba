//! The place of one connection, which is made anew when it is of no more use.
//!
//! - **LINK-1** A call that times out gives its connection up, if nothing was received on it since the
//!   call was sent. The next call makes another one. So a connection whose packets vanish costs only
//!   the calls that are sent before the first of them times out. If anything was received since the
//!   call was sent, the connection stays: the server is slow, and a new connection would not help. A
//!   call that comes at the limit of an earlier call checks the connection itself, since the earlier
//!   call may have been dropped, or may not have run yet.
//! - **LINK-2** No call is sent on a connection on which none was sent for longer than
//!   [`LONGEST_IDLE`]. A device between client and server may have forgotten such a connection, and
//!   may drop everything that is sent on it.
//! - **LINK-3** A connection that is given up goes on with the calls that it has. It is closed with
//!   the last of them. So none of them gets the answer of another call, and none is sent twice,
//!   except after the end of a connection that was there before the call.
//! - **LINK-4** A call that times out gives up the attempt to connect. So does a call that has spent a
//!   part of its own time on the attempt of another call. An attempt that was given up and succeeds
//!   after all is still used, unless a later attempt has succeeded first.

use std::time::{Duration, Instant};

use redis::Value;
use tokio::time::timeout;
use tourbillon::{Clock, Time};

use super::errors::CallFault;
use super::link::{Link, LinkState};
use super::scripts::Call;
use super::server::Server;
use crate::remote::Limit;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// The longest time without a call after which a connection is used again.
const LONGEST_IDLE: Duration = Duration::from_secs(60);

/// A call waits for this part of its time for the attempt of another call to connect. Such an attempt
/// may hang where a new one does not, and hold up a renewal.
const PATIENCE: u32 = 4;

/// For whom a call is made. Each destination has a connection for either.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Whose {
    /// Callers, of whom there may be any number, with batches of any size.
    Callers,
    /// Renewals and releases. They must not wait behind the calls of users.
    Holders,
}

impl Whose {
    /// The most calls of a batch that are sent together. Callers take turns on their connection.
    pub(super) fn portion(self) -> usize {
        match self {
            Whose::Callers => 100,
            Whose::Holders => 1_000,
        }
    }
}

/// The place of one connection.
pub(super) struct Slot {
    server: Arc<Server>,
    /// The most calls that are sent together. The server answers others between two such portions.
    portion: usize,
    /// Measures the idle time. This clock goes on while the machine is suspended.
    clock: Clock,
    place: Mutex<SlotPlace>,
}

struct SlotPlace {
    link: Option<Arc<Link>>,
    /// When the last call took it.
    used: Time,
}

impl Slot {
    pub(super) fn new(server: Arc<Server>, portion: usize, clock: Clock) -> Self {
        let used = clock.now();
        Slot {
            server,
            portion,
            clock,
            place: Mutex::new(SlotPlace { link: None, used }),
        }
    }

    /// Calls scripts, and returns the answer of each. Call this within a runtime.
    ///
    /// If the connection was open before the call and turns out to be closed, the calls without an
    /// answer are sent once more on a new one. The server may have executed the first request, too. The
    /// second one has the same secret, so nobody gets a wrong result:
    ///
    /// - a second acquire grants again;
    /// - a second renewal renews again;
    /// - a second release finds nothing, and says so.
    ///
    /// There is one exception. If the first request of an acquire arrives after its lock was
    /// released, nobody holds the name, and it stays locked for a lease.
    pub(super) async fn call(
        &self,
        calls: &[Call],
        limit: Limit,
    ) -> Result<Vec<Value>, StoreError> {
        let (mut answers, mut repeats) = (Vec::with_capacity(calls.len()), true);
        loop {
            if limit.is_near() {
                return Err(CallFault::late(&*self.server).into());
            }
            let (link, before) = self.take(limit);
            let patience = match before {
                Some(LinkState::Connecting) => limit.left() / PATIENCE,
                _ => limit.left(),
            };
            let fault = match timeout(patience, link.opened(limit)).await {
                Ok(Ok(open)) => {
                    if before != Some(LinkState::Open) {
                        self.keep(&link);
                    }
                    let begun = Instant::now();
                    let rest = &calls[answers.len()..];
                    let called = link.call(&open, rest, self.portion, limit, &mut answers);
                    match timeout(limit.left(), called).await {
                        Ok(Ok(())) => {
                            if answers.iter().any(is_demoted) {
                                self.give_up(&link);
                            }
                            return Ok(answers);
                        }
                        Ok(Err(fault)) => {
                            self.give_up(&link);
                            fault
                        }
                        Err(_) => {
                            if open.received.nothing_since(begun) {
                                self.give_up(&link);
                            }
                            CallFault::late(&*self.server)
                        }
                    }
                }
                Ok(Err(fault)) => {
                    self.give_up(&link);
                    fault
                }
                Err(_) => {
                    self.give_up(&link);
                    if before == Some(LinkState::Connecting) {
                        continue;
                    }
                    CallFault::late(&*self.server)
                }
            };
            match (fault, before) {
                // It was closed, perhaps since long ago.
                (CallFault::Lost(_), Some(LinkState::Open)) if repeats => repeats = false,
                // The attempt of a call that had less time.
                (CallFault::Late(_), Some(LinkState::Connecting)) => {}
                (fault, _) => return Err(fault.into()),
            }
        }
    }

    /// Returns the connection, and its state if it was there before. Makes one if there is none.
    fn take(&self, limit: Limit) -> (Arc<Link>, Option<LinkState>) {
        let now = self.clock.now();
        let mut place = self.place.lock();
        let idle = now.since(std::mem::replace(&mut place.used, now));
        if let Some(link) = &place.link
            && idle <= LONGEST_IDLE
            && !link.is_silent()
            && !link.is_replaced()
        {
            return (Arc::clone(link), Some(link.state()));
        }
        let link = Arc::new(Link::new(&self.server, limit));
        let before = place.link.replace(Arc::clone(&link));
        // Unlock first, since closing a connection takes system calls.
        drop(place);
        drop(before);
        (link, None)
    }

    /// Puts an open connection back if it was given up, and none is open in its place (LINK-4).
    fn keep(&self, link: &Arc<Link>) {
        let mut place = self.place.lock();
        let is_worse = |here: &Arc<Link>| here.state() != LinkState::Open;
        let before = match place.link.as_ref().is_none_or(is_worse) {
            true => place.link.replace(Arc::clone(link)),
            false => None,
        };
        drop(place);
        drop(before);
    }

    /// Makes the next call connect anew, if this is still the connection.
    fn give_up(&self, link: &Arc<Link>) {
        let mut place = self.place.lock();
        let is_here = |here: &mut Arc<Link>| Arc::ptr_eq(here, link);
        let given_up = place.link.take_if(is_here);
        drop(place);
        drop(given_up);
    }
}

/// Whether a server has become a replica. Its connection is closed: after a failover the name of the
/// host may lead to another server.
fn is_demoted(answer: &Value) -> bool {
    match answer {
        // Servers before version 7 have the code in the text of an `ERR`.
        Value::ServerError(error) => {
            let words = error.details().unwrap_or_default();
            error.code() == "READONLY" || words.contains("-READONLY")
        }
        _ => false,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
