//! The holders of one name in the memory of a process, if it is shared or held with permits. The head of
//! `mode.rs` has the rules.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use ahash::RandomState;
use tourbillon::Time;

use super::{Acquired, Claim, Holder, Holding, Mode, Renewal};

/// The holders of one name, of which there is at least one between two calls of the store.
pub(super) struct Group {
    mode: Mode,
    /// The token of the first holder, which all readers share.
    token: u64,
    /// The holders by their places. Readers have places, too, which nobody sees.
    holders: Vec<Option<GroupHolder>>,
    /// The places without a holder, the lowest one first.
    free: BinaryHeap<Reverse<u32>>,
    /// The places by the secrets of their holders.
    places: HashMap<Box<str>, u32, RandomState>,
    /// The holders by the ends of their leases. So nothing has to look at all holders.
    ends: BTreeSet<(Time, u32)>,
    /// When the longest wait for the name began.
    next: Option<Time>,
    /// When a waiting caller in another mode has asked last (SHARE-3).
    asked: Option<Time>,
    /// Until this time only callers that are due get a free place.
    reserved: Option<Time>,
}

struct GroupHolder {
    owner: String,
    /// What proves who holds it. `None` if it is released and its place stays taken for a while.
    secret: Option<Box<str>>,
    until: Time,
    token: u64,
    data: Option<Box<str>>,
}

/// What a release leaves behind.
pub(super) enum GroupRelease {
    /// The place stays taken for a while.
    Rests,
    /// There are other holders. `room` says whether others may join them now.
    Others { room: bool },
    /// The name is free, and reserved until that time.
    Last(Option<Time>),
}

impl Group {
    /// Creates the group of a first holder.
    pub(super) fn new(claim: &Claim<'_>, now: Time, token: u64) -> Self {
        let mut group = Group {
            mode: claim.mode,
            token,
            holders: Vec::new(),
            free: BinaryHeap::new(),
            places: HashMap::default(),
            ends: BTreeSet::new(),
            next: None,
            asked: None,
            reserved: None,
        };
        group.add(claim, now, token);
        group
    }

    /// Removes the holders whose leases have run out. Returns whether there are others.
    pub(super) fn is_alive(&mut self, now: Time) -> bool {
        while let Some((until, place)) = self.ends.first().copied()
            && until <= now
        {
            self.remove(place);
        }
        !self.ends.is_empty()
    }

    /// Whether the name is held, by a clock that may be ahead of the last call.
    pub(super) fn is_held(&self, now: Time) -> bool {
        self.ends.last().is_some_and(|(until, _)| now < *until)
    }

    /// Grants a place, or says how long there is none. Also returns whether others may join.
    pub(super) fn ask(
        &mut self,
        claim: &Claim<'_>,
        now: Time,
        last_token: &mut u64,
    ) -> (Acquired, bool) {
        if claim.mode == self.mode
            && let Some(&place) = self.places.get(claim.secret.reveal())
        {
            // A call that is repeated must not shorten what a later one has extended.
            self.prolong(place, now + claim.lease, true);
            // The call before, which wakes the next one, may have failed.
            return (self.granted(place), self.has_room());
        }
        if let Some(until) = self.in_the_way(claim, now) {
            if claim.waits {
                let since = now - claim.waited;
                self.next = Some(self.next.map_or(since, |next| next.min(since)));
                if claim.mode != self.mode {
                    self.asked = Some(now);
                }
            }
            let longest = if claim.waits {
                Claim::AGAIN
            } else {
                Duration::MAX
            };
            let remaining = until.since(now).min(longest);
            return (Acquired::Held { remaining }, false);
        }
        self.reserved = None;
        // The wait that is noted may be over now. Others note theirs when they ask again.
        if !claim.waited.is_zero() {
            self.next = None;
        }
        let token = match self.mode {
            Mode::Shared => self.token,
            _ => {
                *last_token += 1;
                *last_token
            }
        };
        let place = self.add(claim, now, token);
        (self.granted(place), self.has_room())
    }

    /// Returns until when a claim can't be granted, if it can't be now.
    fn in_the_way(&self, claim: &Claim<'_>, now: Time) -> Option<Time> {
        let last = self.ends.last().map(|(until, _)| *until);
        if claim.mode != self.mode {
            return last;
        }
        if let Some(recent) = self.is_waited_for(now) {
            return last.map(|last| last.min(recent));
        }
        if !self.has_room() {
            return self.ends.first().map(|(until, _)| *until);
        }
        self.reserved
            .filter(|until| now < *until && !claim.is_due())
    }

    /// Returns until when a caller in another mode counts as waiting, if there is one.
    fn is_waited_for(&self, now: Time) -> Option<Time> {
        let recent = self.asked? + Claim::RECENT;
        (now < recent).then_some(recent)
    }

    pub(super) fn has_room(&self) -> bool {
        match self.mode {
            Mode::Permit { of } => self.ends.len() < usize::try_from(of).unwrap_or(usize::MAX),
            _ => true,
        }
    }

    pub(super) fn granted(&self, place: u32) -> Acquired {
        let holder = self.holders[place as usize].as_ref();
        Acquired::Granted {
            token: holder.map_or(self.token, |holder| holder.token),
            place: match self.mode {
                Mode::Permit { .. } => place,
                _ => 0,
            },
        }
    }

    /// Gives the lowest free place to a new holder (SHARE-2).
    fn add(&mut self, claim: &Claim<'_>, now: Time, token: u64) -> u32 {
        let until = now + claim.lease;
        let place = match self.free.pop() {
            Some(Reverse(place)) => place,
            None => {
                self.holders.push(None);
                u32::try_from(self.holders.len() - 1).expect("fewer holders than bytes of memory")
            }
        };
        self.holders[place as usize] = Some(GroupHolder {
            owner: claim.owner.to_owned(),
            secret: Some(claim.secret.reveal().into()),
            until,
            token,
            data: (!claim.data.is_empty()).then(|| claim.data.into()),
        });
        self.places.insert(claim.secret.reveal().into(), place);
        self.ends.insert((until, place));
        place
    }

    fn remove(&mut self, place: u32) {
        if let Some(holder) = self.holders[place as usize].take() {
            self.ends.remove(&(holder.until, place));
            if let Some(secret) = holder.secret {
                self.places.remove(&secret);
            }
            self.free.push(Reverse(place));
        }
    }

    /// Sets the end of a lease.
    fn prolong(&mut self, place: u32, until: Time, never_shortens: bool) {
        if let Some(holder) = &mut self.holders[place as usize]
            && !(never_shortens && until <= holder.until)
        {
            self.ends.remove(&(holder.until, place));
            self.ends.insert((until, place));
            holder.until = until;
        }
    }

    /// Renews one lease. Returns whether it is held with this secret.
    pub(super) fn renew(&mut self, renewal: &Renewal<'_>, now: Time) -> bool {
        let place = self.places.get(renewal.secret.reveal()).copied();
        if let Some(place) = place {
            self.prolong(place, now + renewal.lease, renewal.never_shortens);
        }
        place.is_some()
    }

    /// Releases one place. Returns `None` if none is held with this secret.
    pub(super) fn release(&mut self, held: &Holding<'_>, now: Time) -> Option<GroupRelease> {
        let place = self.places.remove(held.secret.reveal())?;
        if !held.rest.is_zero() {
            if let Some(holder) = &mut self.holders[place as usize] {
                // No secret, so that a renewal which arrives later does not find its lease.
                holder.secret = None;
                holder.owner.push_str(" (released)");
            }
            self.prolong(place, now + held.rest, false);
            return Some(GroupRelease::Rests);
        }
        self.remove(place);
        let waited = self.next.map(|since| now.since(since));
        let reserved = waited
            .filter(|waited| *waited >= Claim::TURN)
            .map(|waited| now + reservation(waited));
        if self.ends.is_empty() {
            return Some(GroupRelease::Last(reserved));
        }
        // A reader that goes makes no room, since there was room before.
        let room = self.mode != Mode::Shared && self.is_waited_for(now).is_none();
        if room && reserved.is_some() {
            self.reserved = reserved;
            self.next = None;
        }
        Some(GroupRelease::Others { room })
    }

    /// Forgets who waits, since nobody does.
    pub(super) fn forget_waits(&mut self) {
        (self.next, self.asked, self.reserved) = (None, None, None);
    }

    /// Returns the holder whose lease ends last, if one is held at `now`.
    pub(super) fn shown(&self, now: Time) -> Option<Holder> {
        let (until, place) = *self.ends.last().filter(|(until, _)| now < *until)?;
        // Few have run out, and nobody wants to count the others under the lock of the store.
        let over = self.ends.range(..=(now, u32::MAX)).count();
        let holders = self.ends.len() - over;
        let holder = self.holders[place as usize].as_ref()?;
        let shown = Holder::new(holder.owner.clone(), holder.token, until.since(now));
        let shown = shown.with_data(holder.data.as_deref().unwrap_or_default());
        Some(shown.in_mode(self.mode, holders))
    }
}

/// Returns how long a name is reserved for callers that are due: a quarter of the longest wait,
/// from 5 ms to 25 ms. So a slow caller gets more time the longer it waits.
pub(super) fn reservation(waited: Duration) -> Duration {
    const LEAST: Duration = Duration::from_millis(5);
    const MOST: Duration = Duration::from_millis(25);
    (waited / 4).clamp(LEAST, MOST)
}
