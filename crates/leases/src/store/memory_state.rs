//! What a store in memory knows of its names. Every call has the time as an argument, and is made under
//! the lock of the store.

use std::collections::HashMap;
use std::time::Duration;

use ahash::RandomState;
use tourbillon::Time;

use super::group::{Group, GroupRelease};
use super::{
    Acquired, Claim, Detach, Detached, HeldLock, Holder, Holding, LockPage, LockPaging, Mode,
    Renewal, Resume, Resumed, Secret,
};

/// Every name that is held or reserved.
#[derive(Default)]
pub(super) struct MemoryState {
    /// The names that one holder has alone.
    pub(super) held: HashMap<String, Held, RandomState>,
    /// The names that are shared, or held with permits.
    groups: HashMap<String, Group, RandomState>,
    /// Names that nobody holds. Until this time only callers that are due get them.
    pub(super) reserved: HashMap<String, Time, RandomState>,
    /// At this number of names, those whose lease or reservation has run out are removed.
    crowd: usize,
    /// The last token. All names share one sequence, so a free name needs no memory for its token.
    token: u64,
}

/// A name that somebody holds alone.
pub(super) struct Held {
    pub(super) owner: String,
    /// What proves who holds it. `None` if the name is released and stays locked for a while.
    pub(super) secret: Option<Box<str>>,
    pub(super) until: Time,
    token: u64,
    /// What the holder says about itself, if it says something.
    data: Option<Box<str>>,
    /// When the longest wait for it began.
    pub(super) next: Option<Time>,
    /// The last time that it was detached. It stays for a resume that is repeated.
    pub(super) detached: Option<Box<DetachedHold>>,
}

/// What a detach writes beside a name.
pub(super) struct DetachedHold {
    /// `None` when it is used up.
    ticket: Option<Box<str>>,
    lease: Duration,
    terms: String,
}

impl Held {
    pub(super) fn is_held_with(&self, secret: Secret<'_>) -> bool {
        self.secret.as_deref() == Some(secret.reveal())
    }

    fn shown(&self, now: Time) -> Holder {
        let remaining = self.until.since(now);
        Holder::new(self.owner.clone(), self.token, remaining)
            .with_data(self.data.as_deref().unwrap_or_default())
    }
}

impl MemoryState {
    /// Answers a claim for a name that is shared or held with permits. Returns `None` if this one is
    /// not. Also returns whether others may join the holders.
    pub(super) fn join(&mut self, claim: &Claim<'_>, now: Time) -> Option<(Acquired, bool)> {
        // Programs without shared locks look up nothing here.
        if self.groups.is_empty() {
            return None;
        }
        let group = self.groups.get_mut(claim.name)?;
        if group.is_alive(now) {
            return Some(group.ask(claim, now, &mut self.token));
        }
        self.groups.remove(claim.name);
        None
    }

    /// Grants a free name. Also returns whether others may join the holder.
    pub(super) fn begin(&mut self, claim: &Claim<'_>, now: Time) -> (Acquired, bool) {
        // Twice the number of live names as the next threshold makes the clean-up cost constant
        // time per grant on average.
        if self.names() + self.reserved.len() >= self.crowd {
            self.held.retain(|_, held| now < held.until);
            self.groups.retain(|_, group| group.is_alive(now));
            self.reserved.retain(|_, until| now < *until);
            self.crowd = (2 * (self.names() + self.reserved.len())).max(1_024);
        }
        self.token += 1;
        let token = self.token;
        if claim.mode != Mode::Exclusive {
            let group = Group::new(claim, now, token);
            let granted = (group.granted(0), group.has_room());
            // A lease that has run out may still be there.
            self.held.remove(claim.name);
            self.groups.insert(claim.name.to_owned(), group);
            return granted;
        }
        let held = Held {
            owner: claim.owner.to_owned(),
            secret: Some(claim.secret.reveal().into()),
            until: now + claim.lease,
            token,
            data: (!claim.data.is_empty()).then(|| claim.data.into()),
            next: None,
            detached: None,
        };
        self.held.insert(claim.name.to_owned(), held);
        (Acquired::granted(token), false)
    }

    /// Renews one lease. Returns whether it is held with this secret.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Time) -> bool {
        if renewal.mode != Mode::Exclusive {
            let group = self.groups.get_mut(renewal.name);
            return group.is_some_and(|group| group.is_alive(now) && group.renew(renewal, now));
        }
        match self.held.get_mut(renewal.name) {
            Some(held) if now < held.until && held.is_held_with(renewal.secret) => {
                let until = now + renewal.lease;
                if !renewal.never_shortens || held.until < until {
                    held.until = until;
                }
                true
            }
            _ => false,
        }
    }

    /// Releases the place of one holder of several. Returns whether a waiting caller has to be woken,
    /// or `None` if no place is held with this secret.
    pub(super) fn release_place(&mut self, held: &Holding<'_>, now: Time) -> Option<bool> {
        let group = self.groups.get_mut(held.name)?;
        group.is_alive(now);
        match group.release(held, now)? {
            // The waiting caller asks again, and learns when the place will be free.
            GroupRelease::Rests => Some(true),
            GroupRelease::Others { room } => Some(room),
            GroupRelease::Last(reserved) => {
                self.groups.remove(held.name);
                if let Some(until) = reserved {
                    self.reserved.insert(held.name.to_owned(), until);
                }
                Some(true)
            }
        }
    }

    /// Forgets who waits for a name, since nobody does any more.
    pub(super) fn forget_waits(&mut self, name: &str) {
        if let Some(held) = self.held.get_mut(name) {
            held.next = None;
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.forget_waits();
        }
        self.reserved.remove(name);
    }

    /// Writes a ticket beside a name.
    pub(super) fn detach(&mut self, detach: &Detach<'_>, now: Time) -> Detached {
        match self.held.get_mut(detach.name) {
            Some(held) if now < held.until && held.is_held_with(detach.secret) => {
                held.detached = Some(Box::new(DetachedHold {
                    ticket: Some(detach.ticket.reveal().into()),
                    lease: detach.lease,
                    terms: detach.terms.to_owned(),
                }));
                Detached::Detached
            }
            _ => Detached::NotHeld,
        }
    }

    /// Uses up a ticket, and gives the name to another owner.
    pub(super) fn resume(&mut self, resume: &Resume<'_>, now: Time) -> Option<Resumed> {
        let held = self.held.get_mut(resume.name)?;
        let again = held.is_held_with(resume.secret);
        let detached = held.detached.as_mut()?;
        let fits = detached.ticket.as_deref() == Some(resume.ticket.reveal());
        if now >= held.until || !(again || fits) {
            return None;
        }
        if !again {
            detached.ticket = None;
            held.owner = resume.owner.to_owned();
            held.secret = Some(resume.secret.reveal().into());
            held.data = (!resume.data.is_empty()).then(|| resume.data.into());
        }
        // A call that is repeated must not shorten what a later one has extended.
        held.until = held.until.max(now + detached.lease);
        Some(Resumed::new(held.token, detached.terms.clone()))
    }

    /// Returns who holds a name.
    pub(super) fn find(&self, name: &str, now: Time) -> Option<Holder> {
        if let Some(held) = self.held.get(name).filter(|held| now < held.until) {
            return Some(held.shown(now));
        }
        self.groups.get(name)?.shown(now)
    }

    /// Returns the locks of one page.
    pub(super) fn page(&self, prefix: &str, paging: &LockPaging, now: Time) -> LockPage {
        let after = paging.after.as_deref();
        let is_of_page =
            |name: &str| name.starts_with(prefix) && after.is_none_or(|after| name > after);
        let held = self.held.iter().filter(|(_, held)| now < held.until);
        let groups = self.groups.iter();
        let groups = groups.filter(|(_, group)| group.is_held(now));
        let names = held.map(|(name, _)| name);
        let names = names.chain(groups.map(|(name, _)| name));
        let mut found: Vec<&String> = names.filter(|name| is_of_page(name)).collect();
        let limit = paging.limit.max(1);
        let more = found.len() > limit;
        if more {
            found.select_nth_unstable(limit);
            found.truncate(limit);
        }
        found.sort_unstable();
        let next = found.last().filter(|_| more).map(|last| (*last).clone());
        let shown = |name: &String| Some(HeldLock::new(name.clone(), self.find(name, now)?));
        LockPage::new(found.into_iter().filter_map(shown).collect(), next, paging)
    }

    /// Forgets all leases, and returns their names.
    pub(super) fn forget(&mut self) -> Vec<String> {
        let held = std::mem::take(&mut self.held).into_keys();
        let groups = std::mem::take(&mut self.groups).into_keys();
        held.chain(groups).collect()
    }

    /// Returns the number of names that are held, or were when they were looked at last.
    pub(super) fn names(&self) -> usize {
        self.held.len() + self.groups.len()
    }
}
