//! A model of names that are shared, held with permits, or held alone, and random calls that compare a
//! store with it. The model is as simple as it can be: a list of holders.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use kit::wait::until;
use kit::wakes::Wakes;
use tourbillon_leases::{
    Acquired, Claim, Holding, LeaseStore, Mode, Outcome, Released, Renewal, Secret,
};

use crate::calls::wait;

const LIMIT: Duration = Duration::from_secs(5);
const MS: Duration = Duration::from_millis(1);
const ZERO: Duration = Duration::ZERO;

/// A store and its clock.
pub(crate) trait ModeWorld {
    fn store(&self) -> &dyn LeaseStore;
    /// The time since any moment.
    fn now(&self) -> Duration;
    fn pass(&self, time: Duration);
    /// By how much the clock of the store, or the time of a call, may differ from what the model thinks.
    /// If something ends within that time, the model gives the name up and takes another one. Zero for a
    /// clock that only the test moves.
    fn slack(&self) -> Duration;

    fn habits(&self) -> Habits {
        Habits::default()
    }
}

/// What stores do in their own ways.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// The shortest and the longest reservation.
    pub(crate) reservation: (Duration, Duration),
    /// A caller in another mode that asks again within this time changes nothing.
    pub(crate) same_ask: Duration,
    /// How long a waiting caller is to wait at most before it asks again, by how long it has waited.
    pub(crate) interval: fn(Duration) -> Duration,
}

impl Default for Habits {
    fn default() -> Self {
        Habits {
            reservation: (5 * MS, 25 * MS),
            same_ask: ZERO,
            interval: |_| Duration::MAX,
        }
    }
}

/// How the calls are chosen.
#[derive(Clone, Copy)]
pub(crate) struct Choices<'a> {
    /// The number of steps in all, most of which make one call, and the number for each name.
    pub(crate) steps: (usize, usize),
    pub(crate) leases: &'a [Duration],
    /// How many of a hundred claims are by callers that wait.
    pub(crate) waits: u64,
    /// The times that pass between calls, of which one does in so many of a thousand cases.
    pub(crate) passes: (&'a [Duration], u64),
}

/// What was seen, so that a test can tell that it has seen enough.
#[derive(Default, Debug)]
pub(crate) struct Seen {
    pub(crate) steps: usize,
    pub(crate) granted: usize,
    pub(crate) held: usize,
    pub(crate) joined: usize,
    /// Grants of a place that another holder had before.
    pub(crate) places_again: usize,
    /// Readers and permits that were refused since somebody in another mode waits.
    pub(crate) behind_others: usize,
    /// Claims that were refused since the name, or a place, is reserved.
    pub(crate) reserved: usize,
    pub(crate) run_out: usize,
    /// Names that were given up, since something ended at the moment of a call.
    pub(crate) unsure: usize,
}

#[derive(Clone, Debug)]
struct ModelHolder {
    owner: String,
    /// `None` if it is released, and its place stays taken.
    secret: Option<String>,
    place: u32,
    token: u64,
    until: Duration,
    lease: Duration,
    extended: bool,
}

/// One name.
#[derive(Default, Debug)]
struct Model {
    mode: Mode,
    holders: Vec<ModelHolder>,
    last_token: u64,
    places: u32,
    /// When the longest wait began.
    since: Option<Duration>,
    /// When a waiting caller in another mode has asked last.
    asked: Option<Duration>,
    /// Until when the name, or a free place of it, is for callers that are due.
    reserved: Option<Duration>,
}

#[derive(PartialEq, Debug)]
enum Expected {
    /// With the same token and place as before, or a new token of an exclusive lock.
    Again(usize),
    New,
    Joins(u32),
    Held(Duration),
}

impl Model {
    fn run_out(&mut self, now: Duration) -> usize {
        let before = self.holders.len();
        self.holders.retain(|holder| now < holder.until);
        if before > 0 && self.holders.is_empty() {
            (self.since, self.asked, self.reserved) = (None, None, None);
        }
        before - self.holders.len()
    }

    /// Whether something ends at about this time.
    fn is_unsure(&self, from: Duration, to: Duration, slack: Duration, same_ask: Duration) -> bool {
        let ends = self.holders.iter().map(|holder| holder.until);
        let asked = self.asked.map(|asked| asked + Claim::RECENT);
        let due = self.since.map(|since| since + Claim::TURN);
        let noted = self.asked.filter(|_| !same_ask.is_zero());
        let noted = noted.map(|asked| asked + same_ask);
        let ends = ends.chain(asked).chain(due).chain(self.reserved);
        let mut ends = ends.chain(noted);
        // On a busy machine a call may take long.
        let takes_long = to - from > slack;
        let before = from.saturating_sub(slack);
        !slack.is_zero() && (takes_long || ends.any(|end| before <= end && end <= to + slack))
    }

    fn expects(&self, claim: &Claim<'_>, now: Duration, seen: &mut Seen) -> Expected {
        let reserved = self
            .reserved
            .filter(|until| now < *until && !claim.is_due());
        if self.holders.is_empty() {
            seen.reserved += usize::from(reserved.is_some());
            return reserved.map_or(Expected::New, |until| Expected::Held(until - now));
        }
        let ends = || self.holders.iter().map(|holder| holder.until);
        let (first, last) = (ends().min().unwrap(), ends().max().unwrap());
        if claim.mode != self.mode {
            return Expected::Held(last - now);
        }
        let own = |holder: &ModelHolder| holder.secret.as_deref() == Some(claim.secret_text());
        if let Some(at) = self.holders.iter().position(own) {
            return Expected::Again(at);
        }
        let recent = self.asked.map(|asked| asked + Claim::RECENT);
        if let Some(recent) = recent.filter(|recent| now < *recent) {
            seen.behind_others += 1;
            return Expected::Held(last.min(recent) - now);
        }
        match self.mode {
            Mode::Exclusive => Expected::Held(last - now),
            Mode::Permit { of } => {
                let free = |place: &u32| self.holders.iter().all(|holder| holder.place != *place);
                match (0..of).find(free) {
                    None => Expected::Held(first - now),
                    Some(place) => {
                        seen.reserved += usize::from(reserved.is_some());
                        reserved.map_or(Expected::Joins(place), |until| Expected::Held(until - now))
                    }
                }
            }
            _ => Expected::Joins(0),
        }
    }

    fn is_refused(&mut self, claim: &Claim<'_>, now: Duration, same_ask: Duration) {
        if claim.waits && !self.holders.is_empty() {
            let since = now.saturating_sub(claim.waited);
            self.since = Some(self.since.map_or(since, |before| before.min(since)));
            let is_noted = self.asked.is_some_and(|asked| now < asked + same_ask);
            if self.mode != Mode::Exclusive && claim.mode != self.mode && !is_noted {
                self.asked = Some(now);
            }
        }
    }

    fn is_granted(&mut self, claim: &Claim<'_>, now: Duration, token: u64, place: u32) {
        if self.holders.is_empty() {
            (self.since, self.asked, self.places) = (None, None, 0);
        }
        self.reserved = None;
        if !claim.waited.is_zero() {
            // The model has one store. So this may be the wait that is noted.
            self.since = None;
        }
        self.mode = claim.mode;
        self.last_token = self.last_token.max(token);
        self.places = self.places.max(place + 1);
        self.holders.push(ModelHolder {
            owner: claim.owner.to_owned(),
            secret: Some(claim.secret_text().to_owned()),
            place,
            token,
            until: now + claim.lease,
            lease: claim.lease,
            extended: false,
        });
    }

    fn position(&self, secret: &str) -> Option<usize> {
        let own = |holder: &ModelHolder| holder.secret.as_deref() == Some(secret);
        self.holders.iter().position(own)
    }

    fn release(
        &mut self,
        secret: &str,
        rest: Duration,
        now: Duration,
        reservation: (Duration, Duration),
    ) -> Released {
        let Some(at) = self.position(secret) else {
            return Released::NotHeld;
        };
        if !rest.is_zero() {
            let holder = &mut self.holders[at];
            holder.secret = None;
            holder.owner.push_str(" (released)");
            holder.until = now + rest;
            return Released::Released;
        }
        self.holders.remove(at);
        let waited = self.since.map(|since| now.saturating_sub(since));
        let due = waited.filter(|waited| *waited >= Claim::TURN);
        let (least, most) = reservation;
        let reserved = due.map(|waited| now + (waited / 4).clamp(least, most));
        let asked = self.asked.filter(|asked| now < *asked + Claim::RECENT);
        if self.holders.is_empty() {
            (self.since, self.asked, self.reserved) = (None, None, reserved);
        } else if self.mode != Mode::Shared && asked.is_none() && reserved.is_some() {
            (self.since, self.reserved) = (None, reserved);
        }
        Released::Released
    }
}

/// Checks that a grant of a permit wakes the next caller if there is room for it, also if the grant is
/// repeated. `listens` says whether the store wakes all callers when it begins to listen.
pub(crate) fn grants_wake_the_next_caller(store: &dyn LeaseStore, listens: bool) {
    let wakes = Wakes::new();
    let waker = Waker::from(Arc::clone(&wakes));
    let watch = store.watch("x", &waker).expect("it can announce");
    until("it listens", || wakes.count() > 0 || !listens);
    for (owner, woken) in [("a", 1), ("a", 1), ("b", 0), ("a", 0), ("b", 0)] {
        watch.looks();
        let before = wakes.count();
        let claim = Claim::new("x", owner, Secret::new(owner), 10_000 * MS);
        let claim = claim.in_mode(Mode::Permit { of: 2 });
        let answer = wait(store.acquire(store.destination("x"), &[claim], LIMIT)).unwrap();
        assert!(matches!(answer[..], [Ok(Acquired::Granted { .. })]));
        assert_eq!(wakes.count() - before, woken, "{owner}");
    }
}

/// Checks that a caller that has a place by now reserves no place for its store.
pub(crate) fn a_wait_that_is_over_reserves_nothing(store: &dyn LeaseStore) {
    let to = store.destination("x");
    let claim = |owner| {
        let claim = Claim::new("x", owner, Secret::new(owner), 10_000 * MS);
        claim.in_mode(Mode::Permit { of: 2 })
    };
    let is_granted = |claim: Claim<'_>| {
        let answer = wait(store.acquire(to, &[claim], LIMIT)).unwrap();
        matches!(answer[..], [Ok(Acquired::Granted { .. })])
    };
    let release = |owner: &str| {
        let held = Holding::new("x", Secret::new(owner)).in_mode(Mode::Permit { of: 2 });
        let answer = wait(store.release(to, &[held], LIMIT)).unwrap();
        assert_eq!(answer, [Ok(Released::Released)]);
    };
    assert!(is_granted(claim("a")) && is_granted(claim("b")));
    // It is not due yet when it gets the place.
    assert!(!is_granted(claim("c").waiting().waited(MS)));
    release("b");
    until("it has the place", || {
        is_granted(claim("c").waiting().waited(2 * MS))
    });
    std::thread::sleep(2 * Claim::TURN);
    release("c");
    assert!(is_granted(claim("d")));
}

trait SecretText {
    fn secret_text(&self) -> &str;
}

impl SecretText for Claim<'_> {
    /// The tests use the owner as the secret.
    fn secret_text(&self) -> &str {
        self.owner
    }
}

/// A small generator of numbers.
struct Dice(u64);

impl Dice {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.next(all.len() as u64)).unwrap()]
    }

    fn percent(&mut self, share: u64) -> bool {
        self.next(100) < share
    }
}

/// Makes random calls, and compares their answers with those of the model.
pub(crate) fn compare(world: &dyn ModeWorld, seed: u64, choices: Choices<'_>) -> Seen {
    let (mut dice, mut seen) = (Dice(seed | 1), Seen::default());
    let (all, of_one) = choices.steps;
    for number in 0.. {
        if seen.steps >= all {
            break;
        }
        let name = format!("modes {seed} {number}");
        let mut trial = Trial {
            world,
            name: &name,
            model: Model::default(),
            dice: &mut dice,
            seen: &mut seen,
            choices,
            callers: vec![None; 6],
            number: 0,
            log: Vec::new(),
        };
        for _ in 0..of_one {
            if !trial.step() {
                trial.seen.unsure += 1;
                break;
            }
        }
    }
    seen
}

/// The calls for one name.
struct Trial<'a> {
    world: &'a dyn ModeWorld,
    name: &'a str,
    model: Model,
    dice: &'a mut Dice,
    seen: &'a mut Seen,
    choices: Choices<'a>,
    /// The owner of each caller, which is its secret, too, and how it has asked.
    callers: Vec<Option<(String, Mode, Duration)>>,
    number: u64,
    log: Vec<String>,
}

impl Trial<'_> {
    /// Makes one call. Returns false if the answer could not be foreseen.
    fn step(&mut self) -> bool {
        let (passes, per_mille) = self.choices.passes;
        if self.dice.next(1_000) < per_mille {
            let time = self.dice.of(passes);
            self.log.push(format!("{time:?} pass"));
            self.world.pass(time);
        }
        self.seen.steps += 1;
        let caller = usize::try_from(self.dice.next(self.callers.len() as u64)).unwrap();
        let now = self.world.now();
        self.seen.run_out += self.model.run_out(now);
        let held = self.callers[caller].clone();
        let held = held.filter(|(owner, ..)| self.model.position(owner).is_some());
        match held {
            _ if self.dice.percent(6) => self.looks(),
            None => self.acquires(caller),
            Some((owner, mode, lease)) => match self.dice.next(100) {
                0..30 => self.renews(&owner, mode, lease, false),
                30..38 => self.renews(&owner, mode, lease * 2, true),
                38..50 => self.asks_again(owner, mode, lease),
                50..85 => self.releases(&owner, mode, ZERO),
                // Nobody renews or releases it any more.
                85..90 => {
                    self.releases(&owner, mode, lease / 4)
                        && self.renews(&owner, mode, lease, false)
                        && self.releases(&owner, mode, ZERO)
                }
                // The process has crashed.
                90..95 => {
                    self.callers[caller] = None;
                    true
                }
                // Nobody has this secret.
                _ => {
                    let other = format!("{owner} not");
                    self.renews(&other, mode, lease, false) && self.releases(&other, mode, ZERO)
                }
            },
        }
    }

    fn mode(&mut self) -> Mode {
        match self.dice.next(20) {
            0..9 => Mode::Shared,
            9..13 => Mode::Permit { of: 2 },
            13..17 => Mode::Permit { of: 3 },
            _ => Mode::Exclusive,
        }
    }

    fn acquires(&mut self, caller: usize) -> bool {
        let mut batch = Vec::new();
        let many = if self.dice.percent(10) { 3 } else { 1 };
        for _ in 0..many {
            self.number += 1;
            // Mostly as the others, or else everybody waits for the name.
            let mode = match self.dice.percent(60) && !self.model.holders.is_empty() {
                true => self.model.mode,
                false => self.mode(),
            };
            let lease = self.dice.of(self.choices.leases);
            let waits = self.dice.percent(self.choices.waits);
            let waited = match waits || self.dice.percent(20) {
                true => self.dice.of(&[ZERO, 40 * MS, 400 * MS]),
                false => ZERO,
            };
            batch.push((format!("owner {}", self.number), mode, lease, waits, waited));
        }
        let (owner, mode, lease, ..) = &batch[0];
        self.callers[caller] = Some((owner.clone(), *mode, *lease));
        self.asks(&batch)
    }

    /// Repeats a call whose answer was lost.
    fn asks_again(&mut self, owner: String, mode: Mode, lease: Duration) -> bool {
        let at = self.model.position(&owner).expect("it holds the name");
        // Stores differ in what they keep of an exclusive lock then.
        if mode == Mode::Exclusive
            && (self.model.holders[at].extended || self.model.since.is_some())
        {
            return true;
        }
        self.asks(&[(owner, mode, lease, false, ZERO)])
    }

    fn asks(&mut self, batch: &[(String, Mode, Duration, bool, Duration)]) -> bool {
        let claims: Vec<_> = batch
            .iter()
            .map(|(owner, mode, lease, waits, waited)| {
                let claim = Claim::new(self.name, owner, Secret::new(owner), *lease);
                let claim = claim.in_mode(*mode).waited(*waited).with_data("some data");
                if *waits { claim.waiting() } else { claim }
            })
            .collect();
        let (store, from) = (self.world.store(), self.world.now());
        let to = store.destination(self.name);
        let answers = wait(store.acquire(to, &claims, LIMIT)).unwrap();
        for (claim, answer) in claims.iter().zip(answers) {
            let answer = answer.unwrap();
            self.log.push(format!(
                "at {from:?} {} {:?} waits {} {:?}: {answer:?}",
                claim.owner, claim.mode, claim.waits, claim.waited
            ));
            if self.is_unsure(from) {
                return false;
            }
            self.compares(claim, from, answer);
        }
        true
    }

    fn compares(&mut self, claim: &Claim<'_>, now: Duration, answer: Acquired) {
        let expected = self.model.expects(claim, now, self.seen);
        let last = self.model.last_token;
        let fits = match (&expected, answer) {
            (Expected::Held(left), Acquired::Held { remaining }) => {
                self.seen.held += 1;
                let habits = self.world.habits();
                self.model.is_refused(claim, now, habits.same_ask);
                let is_shared =
                    !self.model.holders.is_empty() && self.model.mode != Mode::Exclusive;
                let left = match claim.waits {
                    true if is_shared => {
                        (*left).min((habits.interval)(claim.waited)).min(1_000 * MS)
                    }
                    true => (*left).min((habits.interval)(claim.waited)),
                    false => *left,
                };
                remaining.abs_diff(left) <= self.world.slack() * 2
            }
            (Expected::New, Acquired::Granted { token, place }) => {
                self.seen.granted += 1;
                self.model.is_granted(claim, now, token, place);
                token > last && place == 0
            }
            (Expected::Joins(free), Acquired::Granted { token, place }) => {
                self.seen.granted += 1;
                self.seen.joined += 1;
                self.seen.places_again += usize::from(*free < self.model.places && *free > 0);
                let shared = self.model.holders[0].token;
                self.model.is_granted(claim, now, token, place);
                let right_token = match claim.mode {
                    Mode::Shared => token == shared,
                    _ => token > last,
                };
                right_token && place == *free
            }
            (Expected::Again(at), Acquired::Granted { token, place }) => {
                let holder = &mut self.model.holders[*at];
                let right_token = match claim.mode {
                    Mode::Exclusive => token >= holder.token,
                    _ => token == holder.token,
                };
                let fits = right_token && place == holder.place;
                holder.token = token;
                holder.until = holder.until.max(now + claim.lease);
                self.model.last_token = last.max(token);
                fits
            }
            _ => false,
        };
        assert!(fits, "{expected:?}, and not {answer:?}: {}", self.told());
    }

    fn renews(&mut self, owner: &str, mode: Mode, lease: Duration, never_shortens: bool) -> bool {
        let (store, from) = (self.world.store(), self.world.now());
        let mut renewal = Renewal::new(self.name, Secret::new(owner), lease).in_mode(mode);
        if never_shortens {
            renewal = renewal.never_shortening();
        }
        let outcomes = wait(store.renew(store.destination(self.name), &[renewal], LIMIT)).unwrap();
        self.log.push(format!(
            "at {from:?} {owner} renews for {lease:?}: {outcomes:?}"
        ));
        if self.is_unsure(from) {
            return false;
        }
        let expected = match self.model.position(owner) {
            None => Outcome::NotHeld,
            Some(at) => {
                let holder = &mut self.model.holders[at];
                let until = from + lease;
                if !never_shortens || until > holder.until {
                    holder.until = until;
                    holder.extended = lease > holder.lease;
                }
                Outcome::Renewed
            }
        };
        assert_eq!(outcomes, [expected], "{}", self.told());
        true
    }

    fn releases(&mut self, owner: &str, mode: Mode, rest: Duration) -> bool {
        let (store, from) = (self.world.store(), self.world.now());
        let held = Holding::new(self.name, Secret::new(owner));
        let held = held.in_mode(mode).after(rest);
        let answers = wait(store.release(store.destination(self.name), &[held], LIMIT)).unwrap();
        self.log.push(format!(
            "at {from:?} {owner} releases, rest {rest:?}: {answers:?}"
        ));
        if self.is_unsure(from) {
            return false;
        }
        let reservation = self.world.habits().reservation;
        let expected = self.model.release(owner, rest, from, reservation);
        assert_eq!(answers, [Ok(expected)], "{}", self.told());
        true
    }

    /// Asks who holds the name.
    fn looks(&mut self) -> bool {
        let (store, from) = (self.world.store(), self.world.now());
        let holder = wait(store.holder_of(self.name, LIMIT)).unwrap();
        self.log.push(format!("at {from:?} {holder:?}"));
        if self.is_unsure(from) {
            return false;
        }
        let slack = self.world.slack() * 2;
        let last = self.model.holders.iter().map(|holder| holder.until).max();
        let fits = match (&holder, last) {
            (None, None) => true,
            (Some(holder), Some(last)) => {
                let is_shown = |one: &ModelHolder| {
                    one.owner == holder.owner
                        && one.token == holder.token
                        && one.until + slack >= last
                };
                holder.mode == self.model.mode
                    && holder.holders == self.model.holders.len()
                    && holder.data == "some data"
                    && holder.remaining.abs_diff(last - from) <= slack
                    && self.model.holders.iter().any(is_shown)
            }
            _ => false,
        };
        assert!(fits, "{holder:?}: {}", self.told());
        true
    }

    fn is_unsure(&self, from: Duration) -> bool {
        let (to, slack) = (self.world.now(), self.world.slack());
        let same_ask = self.world.habits().same_ask;
        self.model.is_unsure(from, to, slack, same_ask)
    }

    /// What has happened to the name.
    fn told(&self) -> String {
        format!("{:#?}\n{}", self.model, self.log.join("\n"))
    }
}
