//! One lock and its rounds.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use chaos::clock::{Moment, Offset, millis, nanos, now};
use chaos::crew::{Heard, Member, Process, hear};
use chaos::journal;
use chaos::judge::{Grant, Judge, Violation};
use chaos::proxy::Proxy;
use tourbillon_leases::Leases;

use super::holder::{self, Call, How, Order, Sabotage, Word};
use super::plan::{LONGEST, OnHolder, OnServer, Round};
use super::server_judge::ServerJudge;
use super::site::Kind;
use super::tally::Tally;
use super::watch::Watch;

/// What a machine that is busy, and whatever befalls it, adds to the way of a request.
const LATE: Duration = Duration::from_millis(500);
/// The same where nothing delays requests, and every one was answered. With four servers and forty
/// processes on two cores a server stands still for some tens of milliseconds now and then. What is
/// renewed for nobody goes on for longer.
const LATE_IN_CALM: Duration = Duration::from_millis(100);
/// Who has not answered after this time hangs.
const HANGS: Duration = Duration::from_secs(30);

/// What the rounds of one server know of it in a step.
#[derive(Default)]
pub(crate) struct Course {
    /// Locks that somebody holds.
    pub(crate) held: AtomicUsize,
    /// When the fault began; 0 before.
    pub(crate) began: AtomicU64,
    /// When it was over; 0 before.
    pub(crate) over: AtomicU64,
}

impl Course {
    /// How long what befell the server has lasted, once it is over.
    fn lasted(&self) -> Duration {
        let (began, over) = (&self.began, &self.over);
        let lasted = over
            .load(Ordering::Acquire)
            .saturating_sub(began.load(Ordering::Relaxed));
        Duration::from_nanos(lasted)
    }
}

pub(crate) struct Arena {
    kind: Kind,
    ports: Vec<u16>,
    lock: String,
    folder: PathBuf,
    sabotage: Option<Sabotage>,
    judge: Judge,
    server_judge: ServerJudge,
    /// Acquires when everybody rests.
    leases: Leases,
}

/// One grant, as its holder told it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) token: u64,
    pub(crate) owner: String,
    pub(crate) granted: Moment,
    pub(crate) ended: Option<(Moment, How)>,
}

/// A holder of a round, as who conducts it sees it.
pub(crate) struct Holder {
    pub(crate) member: Member<Call>,
    folder: PathBuf,
    /// The name of the journal of its beliefs.
    beliefs: String,
    pub(crate) grants: Vec<Told>,
    rests: bool,
    gone: bool,
}

impl Holder {
    /// By its own words.
    fn holds(&self) -> bool {
        let last = self.grants.last();
        !self.gone && last.is_some_and(|grant| grant.ended.is_none())
    }
}

/// A thread that hangs can't be ended, and is not waited for.
impl Drop for Holder {
    fn drop(&mut self) {
        self.member.leave();
        journal::remove(&self.folder, &self.beliefs);
    }
}

/// A round, and what came of it.
pub(crate) struct Report {
    pub(crate) log: Vec<String>,
    pub(crate) violations: Vec<Violation>,
}

/// A round under way.
struct Play<'a> {
    kind: Kind,
    start: Moment,
    plan: &'a Round,
    holders: Vec<Holder>,
    heard: Receiver<(usize, Heard<Word>)>,
    paths: Vec<Proxy>,
    course: &'a Course,
    /// This lock counts as held there.
    counted: bool,
    /// Nobody has said that a request was not answered in time.
    was_answered: bool,
    report: Report,
}

impl Arena {
    pub(crate) fn new(
        (kind, ports): (Kind, Vec<u16>),
        lock: String,
        folder: PathBuf,
        sabotage: Option<Sabotage>,
    ) -> Result<Self, String> {
        let leases = Leases::builder(holder::store(kind, &ports, sabotage))
            .lease(LONGEST)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Arena {
            kind,
            ports,
            lock,
            folder,
            sabotage,
            judge: Judge::default(),
            server_judge: ServerJudge::default(),
            leases,
        })
    }

    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// Plays a round, judges it, and adds it up.
    pub(crate) fn round(
        &mut self,
        plan: &Round,
        server: OnServer,
        course: &Course,
        watch: &Watch,
        tally: &mut Tally,
    ) -> Report {
        let offset = Offset::read();
        let mut play = match self.begin(plan, course) {
            Ok(play) => play,
            Err(error) => {
                let what = format!("a round could not begin: {error}");
                return Report {
                    log: Vec::new(),
                    violations: vec![Violation::Broken(what)],
                };
            }
        };
        play.note(&format!(
            "lease {:?}, {:?}, {server:?}",
            plan.lease, plan.fault
        ));
        play.go(server);
        play.rest();
        let own = self.acquire_in_the_end(&mut play, server);
        play.leave();
        let offset = Some(offset).filter(|offset| offset.agrees(Offset::read()));
        let start = play.start;
        // A token that is no time of this round is the one before and one more.
        let at_server = |token| {
            let at = offset.map(|offset| offset.moment(token));
            at.filter(|at| (start..now()).contains(at))
        };
        let mut grants = play.grants(at_server);
        grants.extend(own.map(|own| Grant {
            at_server: at_server(own.token),
            ..own
        }));
        grants.sort_by_key(|grant| grant.granted);
        tally.round(plan.fault, server, &grants, &play.holders);
        play.report.violations.extend(self.judge.judge(grants));
        // What was under way at the end may be for as long as a call may take.
        let call = plan.lease / 6;
        let late = match (plan.fault, server) {
            (OnHolder::Nothing | OnHolder::Kill, OnServer::Nothing | OnServer::Flush(_))
                if play.was_answered =>
            {
                call + LATE_IN_CALM
            }
            _ => call + plan.fault.lasts() + server.lasts().max(course.lasted()) + LATE,
        };
        for holder in &play.holders {
            for told in &holder.grants {
                let ended = told
                    .ended
                    .as_ref()
                    .map(|(at, _)| *at)
                    .or(holder.member.killed());
                if let Some(at) = ended {
                    self.server_judge.ended(&told.owner, at + nanos(late));
                }
            }
        }
        let seen = watch.take(&self.lock);
        let found = self.server_judge.judge(&seen, offset);
        play.report.violations.extend(found);
        tally.seen(&seen);
        std::mem::replace(&mut play.report, Report::empty())
    }

    /// What the server told after the last round.
    pub(crate) fn rest_of(&mut self, watch: &Watch) -> Vec<Violation> {
        let seen = watch.take(&self.lock);
        self.server_judge.judge(&seen, Some(Offset::read()))
    }

    fn begin<'a>(&self, plan: &'a Round, course: &'a Course) -> std::io::Result<Play<'a>> {
        let (tell, heard) = channel();
        let mut paths = Vec::new();
        let mut holders = Vec::new();
        for (number, &(process, seed)) in plan.holders.iter().enumerate() {
            let mut ports = self.ports.clone();
            if let OnHolder::Path(..) = plan.fault {
                let path = Proxy::before(
                    (Ipv4Addr::LOCALHOST, ports[0]).into(),
                    if number == 0 {
                        plan.slow
                    } else {
                        Duration::ZERO
                    },
                )?;
                ports = vec![path.port()];
                paths.push(path);
            }
            let order = Order {
                kind: self.kind,
                ports,
                lock: self.lock.clone(),
                lease: plan.lease,
                seed,
                folder: self.folder.clone(),
                beliefs: format!("{}-{number}", self.lock),
                sabotage: self.sabotage,
            };
            let (folder, beliefs) = (order.folder.clone(), order.beliefs.clone());
            let member = if process {
                Member::process(number, &order, tell.clone())?
            } else {
                Member::thread(number, tell.clone(), move |told, say| {
                    holder::hold(&order, told, say)
                })
            };
            holders.push(Holder {
                member,
                folder,
                beliefs,
                grants: Vec::new(),
                rests: false,
                gone: false,
            });
        }
        Ok(Play {
            kind: self.kind,
            start: now(),
            plan,
            holders,
            heard,
            paths,
            course,
            counted: false,
            was_answered: true,
            report: Report::empty(),
        })
    }

    /// When everybody rests, the lock is free when what is left of a lease, and of the guard of a
    /// server that lost its data, has passed. This grant is judged as any other.
    fn acquire_in_the_end(&mut self, play: &mut Play<'_>, server: OnServer) -> Option<Grant> {
        let mut wait = play.plan.lease + self.kind.slack();
        if self.kind.empties(server) {
            wait += self.kind.guard();
        }
        let acquire = self.leases.lock(&self.lock).lease(play.plan.lease);
        let start = now();
        let guard = match acquire.within(wait).wait() {
            Ok(guard) => guard,
            Err(error) => {
                let what = format!(
                    "not free {} ms after all rested: {error}",
                    millis(now() - start)
                );
                play.violation(Violation::Leftover(what));
                return None;
            }
        };
        let granted = now();
        let mut grant = Grant {
            holder: "the end".to_owned(),
            token: guard.token(),
            sent: None,
            granted,
            believed: None,
            at_server: None,
            given_back: true,
        };
        let at = now();
        if guard.is_held() {
            grant.believed = Some((at, at));
        }
        play.note(&format!("the end has token {}", grant.token));
        // Where it fails the lease runs out, as for everybody.
        if let Err(error) = guard.release().wait() {
            play.note(&format!("the end could not give back: {error}"));
        }
        Some(grant)
    }
}

impl Report {
    fn empty() -> Self {
        Report {
            log: Vec::new(),
            violations: Vec::new(),
        }
    }
}

impl Play<'_> {
    fn note(&mut self, what: &str) {
        let at = millis(now() - self.start);
        self.report.log.push(format!("{at:>10} {what}"));
    }

    fn violation(&mut self, violation: Violation) {
        self.note(&format!("!! {}", violation.what()));
        self.report.violations.push(violation);
    }

    /// Lets them compete, and does to one of them what is planned.
    fn go(&mut self, server: OnServer) {
        let lease = nanos(self.plan.lease);
        let fault_at = self.start + nanos(self.plan.fault_after);
        // Nobody may come to hold when the server is away.
        let anyway_at = fault_at + 4 * lease;
        let mut pending = self.plan.fault != OnHolder::Nothing;
        let mut heals: Option<(Moment, usize)> = None;
        let mut told = BTreeSet::new();
        loop {
            let time = now();
            if pending && time >= fault_at {
                let wanted = |number: usize| match self.plan.fault {
                    OnHolder::Path(..) => number == 0 || self.plan.slow.is_zero(),
                    _ => self.holders[number].member.is_process(),
                };
                let holding = (0..self.holders.len())
                    .find(|&number| wanted(number) && self.holders[number].holds());
                // Of those that may be stopped or killed the first one is always there.
                let victim = holding.or((time >= anyway_at).then_some(0));
                if let Some(victim) = victim {
                    pending = false;
                    heals = self.harm(victim).map(|time| (now() + nanos(time), victim));
                }
            }
            if let Some((at, victim)) = heals
                && time >= at
            {
                heals = None;
                self.heal(victim);
            }
            let over = self.course.over.load(Ordering::Acquire);
            if server != OnServer::Nothing {
                let began = self.course.began.load(Ordering::Relaxed);
                for (at, what) in [(began, "begins"), (over, "is over")] {
                    if at != 0 && told.insert(what) {
                        let at = millis(at.saturating_sub(self.start));
                        self.note(&format!("-- {}: {what}, at {at}", server.name()));
                    }
                }
            }
            let mut end = self.start + nanos(self.plan.lasts);
            if over != 0 && self.kind.empties(server) {
                // Long enough to see who holds next.
                end = end.max(over + nanos(self.kind.guard()) + 2 * lease);
            }
            let all_done = !pending && heals.is_none() && over != 0;
            if all_done && time >= end {
                return;
            }
            if time > self.start + nanos(HANGS) + nanos(HANGS) {
                self.violation(Violation::Broken("the step does not end".to_owned()));
                return;
            }
            if let Some((number, heard)) = hear(&self.heard, time + 1_000_000) {
                self.hears(number, heard);
            }
        }
    }

    /// For how long.
    fn harm(&mut self, victim: usize) -> Option<Duration> {
        let name = self.holders[victim].member.name.clone();
        let holds = if self.holders[victim].holds() {
            ", which holds"
        } else {
            ""
        };
        self.note(&format!("-- {}: {name}{holds}", self.plan.fault.name()));
        match self.plan.fault {
            OnHolder::Nothing => None,
            OnHolder::Stop(time) => {
                self.stop(victim, true);
                Some(time)
            }
            OnHolder::Kill => {
                let process = self.holders[victim].member.as_process();
                if let Some(Err(error)) = process.map(Process::kill) {
                    self.violation(Violation::Broken(format!("{name}: {error}")));
                }
                None
            }
            OnHolder::Path(trouble, way, time) => {
                self.paths[victim].begin(trouble, way);
                Some(time)
            }
        }
    }

    fn stop(&mut self, victim: usize, stop: bool) {
        if let Some(process) = self.holders[victim].member.as_process() {
            process.stop(stop);
        }
    }

    fn heal(&mut self, victim: usize) {
        self.note("-- over");
        self.stop(victim, false);
        if let Some(path) = self.paths.get(victim) {
            path.end();
        }
    }

    fn hears(&mut self, number: usize, heard: Heard<Word>) {
        let name = self.holders[number].member.name.clone();
        let start = self.start;
        match heard {
            Heard::Word(Word::Granted { at, token, owner }) => {
                self.note(&format!(
                    "{name} has token {token}, since {}",
                    millis(at.saturating_sub(start))
                ));
                self.holders[number].grants.push(Told {
                    token,
                    owner,
                    granted: at,
                    ended: None,
                });
            }
            Heard::Word(Word::Ended { at, how }) => {
                self.note(&format!(
                    "{name} ended at {}: {how:?}",
                    millis(at.saturating_sub(start))
                ));
                self.was_answered &= how != How::ReleaseFailed;
                if let Some(grant) = self.holders[number].grants.last_mut() {
                    grant.ended = Some((at, how));
                }
            }
            Heard::Word(Word::Refused { at, why }) => {
                let at = millis(at.saturating_sub(start));
                self.was_answered = false;
                self.note(&format!("{name} was refused at {at}: {why}"));
            }
            Heard::Word(Word::GaveUp { at }) => {
                let at = millis(at.saturating_sub(start));
                self.note(&format!("{name} dropped its acquire at {at}"));
            }
            Heard::Word(Word::Broken { what }) => {
                self.violation(Violation::Broken(format!("{name}: {what}")));
            }
            Heard::Word(Word::Rests { kept, armed }) => {
                self.note(&format!("{name} rests"));
                self.holders[number].rests = true;
                if (kept, armed) != (0, 0) {
                    let what = format!("{name} rests, keeps {kept} and has {armed} timers");
                    self.violation(Violation::Leftover(what));
                }
            }
            Heard::Gone(error) => {
                self.holders[number].gone = true;
                if let Some(error) = error {
                    self.violation(Violation::Broken(format!("{name}: {error}")));
                }
            }
        }
        let held = self.holders.iter().any(Holder::holds);
        if held != self.counted {
            self.counted = held;
            // Only a hint when to begin.
            if held {
                self.course.held.fetch_add(1, Ordering::Relaxed);
            } else {
                self.course.held.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Until nobody holds or wants anything.
    fn rest(&mut self) {
        self.note("all are to rest");
        for holder in &mut self.holders {
            holder.member.tell(Call::Rest);
        }
        self.until(|holder| holder.rests || holder.gone, "rest");
    }

    fn leave(&mut self) {
        for holder in &mut self.holders {
            holder.member.leave();
        }
        self.until(|holder| holder.gone, "leave");
        for number in 0..self.holders.len() {
            if !self.holders[number].gone {
                continue;
            }
            let error = self.holders[number].member.bury();
            let holder = &self.holders[number];
            let name = holder.member.name.clone();
            if let Some(error) = error {
                self.violation(Violation::Broken(format!("{name}: {error}")));
            } else if !holder.rests && holder.member.killed().is_none() {
                let what = format!("{name} left before it was told to");
                self.violation(Violation::Broken(what));
            }
        }
    }

    fn until(&mut self, done: impl Fn(&Holder) -> bool, what: &str) {
        let limit = now() + nanos(HANGS);
        while !self.holders.iter().all(&done) {
            if let Some((number, heard)) = hear(&self.heard, limit) {
                self.hears(number, heard);
            } else if now() >= limit {
                let hang: Vec<_> = self
                    .holders
                    .iter()
                    .filter(|&holder| !done(holder))
                    .collect();
                let names: Vec<_> = hang
                    .iter()
                    .map(|holder| holder.member.name.clone())
                    .collect();
                let names = names.join(", ");
                self.violation(Violation::Broken(format!("{names}: does not {what}")));
                return;
            }
        }
    }

    fn grants(&self, at_server: impl Fn(u64) -> Option<Moment>) -> Vec<Grant> {
        let mut grants = Vec::new();
        for holder in &self.holders {
            let beliefs = holder::beliefs(&holder.folder, &holder.beliefs);
            for (place, told) in holder.grants.iter().enumerate() {
                let given_back = |(_, how): &(Moment, How)| {
                    matches!(how, How::Released | How::ReleaseFailed | How::Dropped)
                };
                grants.push(Grant {
                    holder: holder.member.name.clone(),
                    token: told.token,
                    sent: None,
                    granted: told.granted,
                    believed: beliefs.get(&place).copied(),
                    at_server: at_server(told.token),
                    given_back: told.ended.as_ref().is_some_and(given_back),
                });
            }
        }
        grants
    }
}

impl Drop for Play<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.course.held.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
