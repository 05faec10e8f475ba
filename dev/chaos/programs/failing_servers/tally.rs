//! What is told in the end.

use std::collections::BTreeMap;
use std::fmt;

use chaos::clock::millis;
use chaos::judge::{Grant, Violation};

use super::arena::Holder;
use super::holder::How;
use super::plan::{OnHolder, OnServer};
use super::watch::Seen;

type Counts = BTreeMap<String, u64>;

/// Adds up rounds.
#[derive(Clone, Default, Debug)]
pub(crate) struct Tally {
    pub(crate) rounds: usize,
    pub(crate) grants: u64,
    takeovers: u64,
    /// From the last yes of who was killed or lost its lease to the next grant, with what befell
    /// them: in rounds without a fault, with one, and in those whose server was killed.
    longest: [(u64, String); 3],
    on_holder: Counts,
    on_server: Counts,
    ends: Counts,
    /// As the servers tell.
    seen_grants: u64,
    seen_renewals: u64,
    /// Grants that could be judged by the server's clock, too.
    by_server: u64,
    pub(crate) overlaps: u64,
    tokens: u64,
    leftovers: u64,
    broken: u64,
}

fn count(counts: &mut Counts, what: &str) {
    *counts.entry(what.to_owned()).or_default() += 1;
}

impl Tally {
    /// Grants in their order.
    pub(crate) fn round(
        &mut self,
        fault: OnHolder,
        server: OnServer,
        grants: &[Grant],
        holders: &[Holder],
    ) {
        self.rounds += 1;
        self.grants += grants.len() as u64;
        let by_server = grants.iter().filter(|grant| grant.at_server.is_some());
        self.by_server += by_server.count() as u64;
        count(&mut self.on_holder, fault.name());
        count(&mut self.on_server, server.name());
        for pair in grants.windows(2) {
            let [before, after] = pair else { continue };
            if before.holder == after.holder {
                continue;
            }
            self.takeovers += 1;
            if !before.given_back
                && let Some((_, last)) = before.believed
            {
                let kind = match (server, fault) {
                    (OnServer::Nothing, OnHolder::Nothing) => 0,
                    _ if server.empties() => 2,
                    _ => 1,
                };
                let wait = after.granted.saturating_sub(last);
                if wait > self.longest[kind].0 {
                    self.longest[kind] = (wait, format!("{}, {}", server.name(), fault.name()));
                }
            }
        }
        for holder in holders {
            for grant in &holder.grants {
                let end = match &grant.ended {
                    None if holder.member.killed().is_some() => "killed",
                    None => "unknown",
                    Some((_, How::Released)) => "released",
                    Some((_, How::ReleaseFailed)) => "release failed",
                    Some((_, How::NotHeld)) => "gone at the release",
                    Some((_, How::Dropped)) => "dropped",
                    Some((_, How::Lost(why))) => &format!("lost: {why}"),
                };
                count(&mut self.ends, end);
            }
        }
    }

    pub(crate) fn seen(&mut self, seen: &[Vec<Seen>]) {
        let all = seen.iter().flatten();
        let grants = all
            .clone()
            .filter(|seen| matches!(seen, Seen::Grant { .. }));
        let grants = grants.count() as u64;
        self.seen_grants += grants;
        self.seen_renewals += all.count() as u64 - grants;
    }

    pub(crate) fn violations(&mut self, violations: &[Violation]) {
        for violation in violations {
            *match violation {
                Violation::Overlap(_) => &mut self.overlaps,
                Violation::Token(_) => &mut self.tokens,
                Violation::Leftover(_) => &mut self.leftovers,
                Violation::Broken(_) => &mut self.broken,
            } += 1;
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.rounds += other.rounds;
        self.grants += other.grants;
        self.takeovers += other.takeovers;
        for (longest, others) in self.longest.iter_mut().zip(other.longest) {
            if others.0 > longest.0 {
                *longest = others;
            }
        }
        self.seen_grants += other.seen_grants;
        self.seen_renewals += other.seen_renewals;
        self.by_server += other.by_server;
        self.overlaps += other.overlaps;
        self.tokens += other.tokens;
        self.leftovers += other.leftovers;
        self.broken += other.broken;
        for (counts, others) in [
            (&mut self.on_holder, other.on_holder),
            (&mut self.on_server, other.on_server),
            (&mut self.ends, other.ends),
        ] {
            for (what, often) in others {
                *counts.entry(what).or_default() += often;
            }
        }
    }

    /// Nothing happened that must not; nothing that was to be seen was missed.
    pub(crate) fn is_well(&self) -> bool {
        let wrong = self.overlaps + self.tokens + self.leftovers + self.broken;
        wrong == 0 && self.rounds > 0 && self.seen_grants > 0 && self.seen_renewals > 0
    }

    /// Which of them were found: overlaps, wrong tokens, leftovers.
    pub(crate) fn found(&self) -> [u64; 3] {
        [self.overlaps, self.tokens, self.leftovers]
    }

    /// The last line.
    pub(crate) fn line(&self, seed: u64) -> String {
        let tokens = match self.tokens {
            0 => "ok".to_owned(),
            wrong => format!("wrong {wrong}"),
        };
        let broken = match self.broken {
            0 => String::new(),
            broken => format!(" broken {broken}"),
        };
        format!(
            "rounds {} overlaps {} tokens {tokens} leftovers {}{broken} seed {seed}",
            self.rounds, self.overlaps, self.leftovers
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &Counts| {
            let each: Vec<_> = counts
                .iter()
                .map(|(what, n)| format!("{what} {n}"))
                .collect();
            each.join(", ")
        };
        writeln!(
            f,
            "grants          {}, of them {} to another holder than the one before",
            self.grants, self.takeovers
        )?;
        let [calm, fault, kill] = &self.longest;
        writeln!(
            f,
            "longest wait    after a loss or a death: {} ms without a fault; {} ms with one ({}); \
             {} ms when the server lost its data ({})",
            millis(calm.0),
            millis(fault.0),
            fault.1,
            millis(kill.0),
            kill.1
        )?;
        writeln!(f, "rounds in which {}", list(&self.on_holder))?;
        writeln!(f, "rounds in which {}", list(&self.on_server))?;
        writeln!(f, "ends            {}", list(&self.ends))?;
        write!(
            f,
            "the servers     saw {} grants and {} renewals; {} grants are judged by their clocks, too",
            self.seen_grants, self.seen_renewals, self.by_server
        )
    }
}
