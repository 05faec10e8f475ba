//! Who competes for a lock: a thread, or a process of this program.
//!
//! What it says is said at once; when it believes is written into a file, since a process that is
//! killed says nothing any more. A file that was written is the system's.

use std::fs::File;
use std::io::{self, BufRead, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tourbillon_leases::{
    Claim, LeaseGuard, LeaseStore, Leases, LockError, RedisStore, RedisStoreBuilder, ReleaseError,
    Secret,
};

use super::clock::{Moment, nanos, now};
use crate::machine::end_with_the_parent;
use crate::rng::Rng;

/// What a process of this kind is called with.
pub(crate) const HOLDER: &str = "holder";

/// Between two questions whether it is held.
const ASK: Duration = Duration::from_micros(500);
/// How long what goes on in the background after the last release may take.
const REST: Duration = Duration::from_secs(10);

/// What is done wrong on purpose, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Sabotage {
    /// A server that was killed grants at once when it is back.
    Unguarded,
    /// Holders don't ask whether they still hold.
    Deaf,
    /// What was released is renewed for some time.
    Leak,
}

/// Whom to compete with for what.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) port: u16,
    pub(crate) lock: String,
    pub(crate) lease: Duration,
    pub(crate) seed: u64,
    pub(crate) beliefs: PathBuf,
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

/// What a holder is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Hold nothing any more.
    Rest,
    Leave,
}

/// The store that everybody uses.
pub(crate) fn store(port: u16, sabotage: Option<Sabotage>) -> RedisStore {
    let store = RedisStore::builder(&format!("redis://127.0.0.1:{port}/"));
    let store = store.longest_lease(super::plan::LONGEST);
    let store = match sabotage {
        Some(Sabotage::Unguarded) => RedisStoreBuilder::durable(store),
        _ => store,
    };
    store.build().expect("the URL is right")
}

/// A process: its order is an argument, what it is told its input, what it says its output.
pub(crate) fn serve(order: &str) -> io::Result<()> {
    end_with_the_parent();
    let order: Order = serde_json::from_str(order)?;
    let (tell, told) = channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if line.is_ok_and(|line| line == "rest") && tell.send(Call::Rest).is_ok() {
                continue;
            }
            break;
        }
        // Also when there is no parent any more.
        let _ = tell.send(Call::Leave);
    });
    let say = |word: Word| {
        let mut line = serde_json::to_string(&word).expect("words are plain data");
        line.push('\n');
        let mut out = io::stdout().lock();
        // Without a parent there is nobody to tell.
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    };
    hold(&order, &told, &say)
}

/// The first and the last moment of each grant, as they are in the file.
pub(crate) fn beliefs(path: &Path) -> Vec<Option<(Moment, Moment)>> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let believed = bytes.chunks(16).map(|pair| {
        let first = number(pair.get(..8)?);
        // Ended between the first and the last: it is the first.
        let last = pair.get(8..).map_or(0, number).max(first);
        (first != 0).then_some((first, last))
    });
    believed.collect()
}

/// Competes until it is told to rest, and leaves when it is told to.
pub(crate) fn hold(order: &Order, told: &Receiver<Call>, say: &dyn Fn(Word)) -> io::Result<()> {
    let leases = Leases::builder(store(order.port, order.sabotage))
        .lease(order.lease)
        .build()
        .map_err(io::Error::other)?;
    let mut holder = Holder {
        order,
        told,
        say,
        leases,
        rng: Rng::new(order.seed),
        beliefs: File::create(&order.beliefs)?,
        grants: 0,
        runtime: tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?,
        rests: None,
    };
    while !holder.rests() {
        if let Some(guard) = holder.acquire() {
            holder.keep(guard)?;
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
    while holder.rests != Some(Call::Leave) {
        holder.rests = Some(holder.told.recv().unwrap_or(Call::Leave));
    }
    Ok(())
}

struct Holder<'a> {
    order: &'a Order,
    told: &'a Receiver<Call>,
    say: &'a dyn Fn(Word),
    leases: Leases,
    rng: Rng,
    beliefs: File,
    grants: u64,
    runtime: tokio::runtime::Runtime,
    rests: Option<Call>,
}

impl Holder<'_> {
    fn rests(&mut self) -> bool {
        match self.told.try_recv() {
            Ok(call) => self.rests = Some(call),
            Err(TryRecvError::Disconnected) => self.rests = Some(Call::Leave),
            Err(TryRecvError::Empty) => {}
        }
        self.rests.is_some()
    }

    /// So many hundredths of a lease.
    fn part(&mut self, most: u64) -> Duration {
        self.order.lease * self.rng.below(most + 1) as u32 / 100
    }

    fn acquire(&mut self) -> Option<LeaseGuard> {
        let pause = Duration::from_millis(self.rng.below(20));
        thread::sleep(pause);
        let patience = self.part(200);
        let acquire = match self.rng.below(100) {
            0..70 => self.leases.acquire(&self.order.lock),
            70..90 => self
                .leases
                .acquire(&self.order.lock)
                .fixed_lease(self.order.lease),
            _ => self
                .leases
                .acquire(&self.order.lock)
                .max_hold(self.order.lease * 3 / 2),
        };
        let answer = match self.rng.below(100) {
            0..50 => acquire.try_lock_for(patience),
            50..65 => acquire.lock(),
            65..80 => acquire.try_lock(),
            _ => {
                let awaited = async { tokio::time::timeout(patience, acquire.lock_async()).await };
                if let Ok(answer) = self.runtime.block_on(awaited) {
                    answer
                } else {
                    (self.say)(Word::GaveUp { at: now() });
                    return None;
                }
            }
        };
        // The first thing after the return.
        let at = now();
        match answer {
            Ok(guard) => {
                (self.say)(Word::Granted {
                    at,
                    token: guard.fencing_token(),
                    owner: guard.id().owner().to_owned(),
                });
                Some(guard)
            }
            Err(LockError::Held { .. } | LockError::TimedOut { .. }) => None,
            Err(error) => {
                let why = error.to_string();
                (self.say)(Word::Refused { at, why });
                None
            }
        }
    }

    /// Believes for some time, or until it is lost, and ends it in one way or another.
    fn keep(&mut self, guard: LeaseGuard) -> io::Result<()> {
        let place = self.grants * 16;
        self.grants += 1;
        // Most of them longer than until the first renewal, some for some leases.
        let most = if self.rng.below(3) == 0 { 500 } else { 120 };
        let until = now() + nanos(self.part(most));
        let mut first = None;
        loop {
            // Read before the question.
            let at = now();
            if !guard.is_held() {
                break;
            }
            self.believe(place, &mut first, at)?;
            if at >= until || self.rests() {
                let how = self.give_back(guard);
                (self.say)(Word::Ended { at: now(), how });
                return Ok(());
            }
            thread::sleep(ASK);
        }
        if self.order.sabotage == Some(Sabotage::Deaf) {
            let until = now() + nanos(self.order.lease * 3);
            while now() < until {
                self.believe(place, &mut first, now())?;
                thread::sleep(ASK);
            }
        }
        let at = now();
        let reason = guard.lost().loss();
        let how = How::Lost(reason.map_or_else(String::new, |loss| format!("{loss:?}")));
        (self.say)(Word::Ended { at, how });
        if reason.is_none() || guard.is_held() {
            let what = format!("lost, and then not: {reason:?}, {}", guard.is_held());
            (self.say)(Word::Broken { what });
        }
        if self.rng.below(2) == 0 {
            drop(guard);
        } else if let Ok(()) = guard.release() {
            let what = "a release of what was lost says that it was held".to_owned();
            (self.say)(Word::Broken { what });
        }
        Ok(())
    }

    fn believe(&mut self, place: u64, first: &mut Option<Moment>, at: Moment) -> io::Result<()> {
        let mut bytes = [at.to_le_bytes(); 2].concat();
        let mut place = place;
        if first.is_some() {
            place += 8;
            bytes.truncate(8);
        }
        first.get_or_insert(at);
        self.beliefs.seek(SeekFrom::Start(place))?;
        self.beliefs.write_all(&bytes)
    }

    fn give_back(&mut self, guard: LeaseGuard) -> How {
        let answer = match self.rng.below(100) {
            0..55 => guard.release(),
            55..75 => self.runtime.block_on(guard.release_async()),
            _ => {
                drop(guard);
                return How::Dropped;
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
            let store = store(order.port, None);
            for _ in 0..20 {
                // By the same secret it is granted again.
                let claim = Claim::new(&order.lock, "leak", Secret::new("leak"), order.lease);
                let _ = store.acquire(&claim, order.lease);
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
        let path = std::env::temp_dir().join(format!("tourbillon-beliefs-{}", std::process::id()));
        let number = u64::to_le_bytes;
        // The second was granted and never believed in, the last was killed between two writes.
        let numbers = [number(5), number(9), number(0), number(0), number(12)];
        std::fs::write(&path, numbers.concat()).unwrap();
        let found = beliefs(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found, [Some((5, 9)), None, Some((12, 12))]);
        assert_eq!(beliefs(&path), []);
    }
}
