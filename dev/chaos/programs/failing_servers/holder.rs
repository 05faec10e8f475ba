//! Who competes for a lock: a thread, or a process of this program.
//!
//! What it says is said at once; when it believes is written into a journal, since a process that
//! is killed says nothing any more.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use chaos::clock::{Moment, nanos, now};
use chaos::journal::{self, Journal};
use chaos::random::Random;
use serde::{Deserialize, Serialize};
use tourbillon_leases::{
    Claim, Leadership, LeaseGuard, LeaseStore, Leases, LockError, PostgresStore, RedisStore,
    RedisStoreBuilder, ReleaseError, Secret, TermEnd,
};

use crate::calls::Calls;
use crate::site::Kind;

/// Between two questions whether it is held.
const ASK: Duration = Duration::from_micros(500);
/// How the names of locks begin that are acquired together with one for which all compete. They sort
/// before it and after it, so a call waits with the other lock or without it.
pub(crate) const BESIDE: [&str; 2] = ["!", "~"];
/// How long what goes on in the background after the last release may take.
const REST: Duration = Duration::from_secs(10);

/// What is done wrong on purpose, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Sabotage {
    /// A server that was killed, or the one in its place, grants at once.
    Unguarded,
    /// Holders don't ask whether they still hold.
    Deaf,
    /// What was released is renewed for some time.
    Leak,
}

/// Whom to compete with for what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) kind: Kind,
    /// Of all servers that it knows at first.
    pub(crate) ports: Vec<u16>,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    pub(crate) seed: u64,
    pub(crate) folder: PathBuf,
    /// The name of the journal of its beliefs: the number of a grant, and a moment of a yes.
    pub(crate) beliefs: String,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What a holder says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    Granted {
        at: Moment,
        token: u64,
        owner: String,
    },
    /// It holds no more: nothing of this owner is renewed from here on.
    Ended { at: Moment, how: How },
    /// It was not granted, and not for the reason that somebody else has it.
    Refused { at: Moment, why: String },
    /// It gave up an acquire that was under way.
    GaveUp { at: Moment },
    /// It has seen something that must not be.
    Broken { what: String },
    /// Told to, it has stopped: what it still keeps, and the timers that are armed.
    Rests { kept: usize, armed: usize },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum How {
    Released,
    /// The store did not answer.
    ReleaseFailed,
    /// The release found it gone.
    NotHeld,
    Dropped,
    /// With the reason.
    Lost(String),
}

/// What a holder is told, before it is told to leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Hold nothing any more.
    Rest,
}

/// The store that everybody uses.
pub(crate) fn store(kind: Kind, ports: &[u16], sabotage: Option<Sabotage>) -> Arc<dyn LeaseStore> {
    let url = kind.url(ports);
    if kind == Kind::Postgres {
        let store = PostgresStore::builder(&url);
        let store = store.longest_lease(super::plan::LONGEST).build();
        return Arc::new(store.expect("the URL is right"));
    }
    let store = RedisStore::builder(&url);
    let store = store.longest_lease(super::plan::LONGEST);
    let store = match sabotage {
        Some(Sabotage::Unguarded) if kind == Kind::Redis => RedisStoreBuilder::durable(store),
        _ => store,
    };
    Arc::new(store.build().expect("the URL is right"))
}

/// The first and the last moment of each grant that was believed in, by its number.
pub(crate) fn beliefs(folder: &Path, name: &str) -> HashMap<usize, (Moment, Moment)> {
    let mut beliefs = HashMap::new();
    let moments = journal::read::<(usize, Moment)>(folder, name);
    for (grant, at) in moments.expect("what holders have written is there") {
        beliefs.entry(grant).or_insert((at, at)).1 = at;
    }
    beliefs
}

/// Competes until it is told to rest, and leaves when it is told to.
pub(crate) fn hold(order: &Order, told: &Receiver<Call>, say: &dyn Fn(Word)) -> io::Result<()> {
    let leases = Leases::builder(store(order.kind, &order.ports, order.sabotage))
        .lease(order.lease)
        .build()
        .map_err(io::Error::other)?;
    let mut holder = Holder {
        order,
        told,
        say,
        leases,
        random: Random::new(order.seed),
        beliefs: Journal::create(&order.folder, &order.beliefs)?,
        grants: 0,
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?,
        rests: false,
    };
    while !holder.rests() {
        if let Some(held) = holder.acquire() {
            holder.keep(held);
        }
    }
    let start = now();
    let mut stats = holder.leases.stats();
    while (stats.kept, stats.armed) != (0, 0) && now() - start < nanos(REST) {
        thread::sleep(Duration::from_millis(2));
        stats = holder.leases.stats();
    }
    (holder.say)(Word::Rests {
        kept: stats.kept,
        armed: stats.armed,
    });
    // Here still, so that what it forgot goes on.
    while holder.told.recv().is_ok() {}
    Ok(())
}

/// The locks or the term that a holder has.
enum Held {
    /// The lock first, and what was acquired with it.
    Locks(Vec<LeaseGuard>),
    Term(Leadership),
}

impl Held {
    fn is_held(&self) -> bool {
        match self {
            Held::Locks(guards) => guards[0].is_held(),
            Held::Term(term) => term.is_leader(),
        }
    }

    fn token(&self) -> u64 {
        match self {
            Held::Locks(guards) => guards[0].token(),
            Held::Term(term) => term.token(),
        }
    }

    /// A term does not tell.
    fn owner(&self) -> String {
        match self {
            Held::Locks(guards) => guards[0].id().owner().to_owned(),
            Held::Term(_) => String::new(),
        }
    }
}

struct Holder<'a> {
    order: &'a Order,
    told: &'a Receiver<Call>,
    say: &'a dyn Fn(Word),
    leases: Leases,
    random: Random,
    beliefs: Journal,
    grants: usize,
    runtime: tokio::runtime::Runtime,
    rests: bool,
}

impl Holder<'_> {
    fn rests(&mut self) -> bool {
        self.rests |= self.told.try_recv() != Err(TryRecvError::Empty);
        self.rests
    }

    /// So many hundredths of a lease.
    fn part(&mut self, most: u64) -> Duration {
        self.order.lease * self.random.below(most + 1) as u32 / 100
    }

    fn acquire(&mut self) -> Option<Held> {
        let pause = Duration::from_millis(self.random.below(20));
        thread::sleep(pause);
        let patience = self.part(200);
        let answer = match self.random.below(100) {
            0..75 => self.lock(patience),
            75..90 => self.lock_all(patience),
            _ => self.lead(patience),
        };
        // The first thing after the return.
        let at = now();
        match answer {
            Some(Ok(held)) => {
                (self.say)(Word::Granted {
                    at,
                    token: held.token(),
                    owner: held.owner(),
                });
                Some(held)
            }
            None => {
                (self.say)(Word::GaveUp { at });
                None
            }
            Some(Err(LockError::Held { .. } | LockError::TimedOut { .. })) => None,
            Some(Err(error)) => {
                let why = error.to_string();
                (self.say)(Word::Refused { at, why });
                None
            }
        }
    }

    fn lock(&mut self, patience: Duration) -> Option<Result<Held, LockError>> {
        let (kind, way) = (self.random.below(100), self.random.below(100));
        let acquire = self.leases.lock(&self.order.lock);
        let acquire = match kind {
            0..70 => acquire,
            70..90 => acquire.lease(self.order.lease).not_renewed(),
            _ => acquire.max_hold(self.order.lease * 3 / 2),
        };
        let answer = match way {
            0..50 => acquire.within(patience).wait(),
            50..65 => acquire.wait(),
            65..80 => acquire.at_once().wait(),
            _ => self.awaited(patience, acquire)?,
        };
        Some(answer.map(|guard| Held::Locks(vec![guard])))
    }

    /// Together with another lock, for which nobody competes.
    fn lock_all(&mut self, patience: Duration) -> Option<Result<Held, LockError>> {
        let mark = BESIDE[self.random.below(2) as usize];
        let beside = format!("{mark}{}", self.order.beliefs);
        let way = self.random.below(100);
        let acquire = self.leases.lock_all([&self.order.lock, &beside]);
        let answer = match way {
            0..50 => acquire.within(patience).wait(),
            50..60 => acquire.wait(),
            60..75 => acquire.each().wait().into_iter().collect(),
            _ => self.awaited(patience, acquire)?,
        };
        Some(answer.map(Held::Locks))
    }

    fn lead(&mut self, patience: Duration) -> Option<Result<Held, LockError>> {
        let lead = self.leases.election(&self.order.lock).lead();
        let answer = match self.random.below(100) {
            0..30 => lead.wait(),
            _ => self.awaited(patience, lead)?,
        };
        Some(answer.map(Held::Term))
    }

    /// Awaits a call, and drops it if it takes longer.
    fn awaited<T>(&self, patience: Duration, call: impl IntoFuture<Output = T>) -> Option<T> {
        let timeout = async { tokio::time::timeout(patience, call.into_future()).await };
        self.runtime.block_on(timeout).ok()
    }

    /// Believes for some time, or until it is lost, and ends it in one way or another.
    fn keep(&mut self, held: Held) {
        let number = self.grants;
        self.grants += 1;
        // Most of them longer than until the first renewal, some for some leases.
        let most = if self.random.below(3) == 0 { 500 } else { 120 };
        let until = now() + nanos(self.part(most));
        loop {
            // Read before the question.
            let at = now();
            if !held.is_held() {
                break;
            }
            self.beliefs.write(&(number, at));
            if at >= until || self.rests() {
                let how = self.give_back(held);
                (self.say)(Word::Ended { at: now(), how });
                return;
            }
            thread::sleep(ASK);
        }
        if self.order.sabotage == Some(Sabotage::Deaf) {
            let until = now() + nanos(self.order.lease * 3);
            while now() < until {
                self.beliefs.write(&(number, now()));
                thread::sleep(ASK);
            }
        }
        let at = now();
        let again = held.is_held();
        let loss = match held {
            Held::Locks(mut guards) => {
                let guard = guards.swap_remove(0);
                let loss = guard.lost().loss();
                if self.random.below(2) == 0 {
                    drop(guard);
                } else if let Ok(()) = guard.release().wait() {
                    let what = "a release of what was lost says that it was held".to_owned();
                    (self.say)(Word::Broken { what });
                }
                loss
            }
            Held::Term(term) => match term.end().wait() {
                TermEnd::Lost(loss) => Some(loss),
                _ => None,
            },
        };
        let how = How::Lost(loss.map_or_else(String::new, |loss| format!("{loss:?}")));
        (self.say)(Word::Ended { at, how });
        if loss.is_none() || again {
            let what = format!("lost, and then not: {loss:?}, {again}");
            (self.say)(Word::Broken { what });
        }
    }

    fn give_back(&mut self, held: Held) -> How {
        let way = self.random.below(100);
        let answer = match (held, way) {
            (held, 75..) => {
                drop(held);
                return How::Dropped;
            }
            (Held::Term(term), _) => {
                let end = match way {
                    0..55 => term.end().wait(),
                    _ => self.runtime.block_on(term.end()),
                };
                match end {
                    TermEnd::Lost(loss) => Err(ReleaseError::Lost(loss)),
                    _ => Ok(()),
                }
            }
            (Held::Locks(guards), _) => {
                let release = self.leases.release_many(guards);
                let answers = match way {
                    0..55 => release.wait(),
                    _ => self.runtime.block_on(release),
                };
                answers.into_iter().next().expect("one for each lock")
            }
        };
        if self.order.sabotage == Some(Sabotage::Leak) {
            self.leak();
        }
        match answer {
            Ok(()) => How::Released,
            Err(ReleaseError::Lost(loss)) => How::Lost(format!("{loss:?}")),
            Err(ReleaseError::NotHeld) => How::NotHeld,
            Err(_) => How::ReleaseFailed,
        }
    }

    /// Takes the lock again, and keeps it for a while for nobody.
    fn leak(&self) {
        let order = self.order.clone();
        thread::spawn(move || {
            let store = store(order.kind, &order.ports, None);
            for _ in 0..20 {
                // By the same secret it is granted again.
                let claim = Claim::new(&order.lock, "leak", Secret::new("leak"), order.lease);
                let _ = Calls::acquire(&*store, &claim, order.lease);
                thread::sleep(order.lease / 3);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beliefs_are_read_as_they_were_left() {
        let folder = std::env::temp_dir();
        let name = format!("tourbillon-beliefs-{}", std::process::id());
        let journal = Journal::create(&folder, &name).unwrap();
        // The second was granted and never believed in, the last was killed after its first yes.
        for entry in [(0, 5), (0, 7), (0, 9), (2, 12)] {
            journal.write(&entry);
        }
        let found = beliefs(&folder, &name);
        journal::remove(&folder, &name);
        assert_eq!(found, HashMap::from([(0, (5, 9)), (2, (12, 12))]));
        assert_eq!(beliefs(&folder, &name), HashMap::new());
    }
}
