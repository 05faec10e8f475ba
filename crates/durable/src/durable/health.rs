//! Whether durable timers are alive and ready, as far as this process knows. The store is not asked.

use std::time::{Duration, Instant};

use tourbillon::{Finding, FindingKind, Health, Impact};

use super::{Durable, NodeLink};
use crate::run::NodeSigns;
use crate::store::StoreTime;
use crate::sync::Weak;

/// From when on a node whose thread does not go on counts as stalled.
const STALLED: Duration = Duration::from_secs(10);

/// From when on a timer that is due, and waits for its claim, is worth a warning.
const OVERDUE: Duration = Duration::from_secs(5);

impl Durable {
    /// Returns whether these timers are alive and ready, as far as this process knows, and the reasons
    /// if not:
    ///
    /// - [`StoreFails`](FindingKind::StoreFails): a [part of the work](crate::StoreWork) with the store
    ///   has stopped. A warning, and not ready after 10 s. One finding for each part. In a process
    ///   without handlers that is known from the calls of users.
    /// - [`NodeAlone`](FindingKind::NodeAlone): the node has not joined the others yet, or has shown
    ///   them no beat for as long as its lease is. It starts nothing. Not ready.
    /// - [`Overdue`](FindingKind::Overdue): a timer is due for 5 s, and this node knows it and has not
    ///   claimed it, since as many run as may, the pace holds it back, or the store refuses it. A
    ///   warning.
    /// - [`DoorbellDown`](FindingKind::DoorbellDown): timers of other processes are found by polls
    ///   alone. A warning.
    /// - [`TickerStalled`](FindingKind::TickerStalled): the node's own thread does not go on for 10 s.
    ///   Not alive.
    /// - [`ShutDown`](FindingKind::ShutDown): a stop has begun. Not ready.
    /// - What the pool finds that runs closures; see
    ///   [`Timer::health`](tourbillon::Timer::health).
    ///
    /// The store is not asked, so this is for a probe each second.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tourbillon_durable::{Durable, Memory};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let timers = Durable::builder(Memory::new()).start()?;
    /// let health = timers.health();
    /// assert!(health.is_alive() && health.is_ready(), "{health}");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("healthz", "probe"))]
    #[must_use]
    pub fn health(&self) -> Health {
        let inner = self.inner();
        if inner.origin.is_elsewhere() {
            // No lock may be taken here.
            let forked = Finding::new(FindingKind::Forked, Impact::NotReady, None);
            return Health::from_iter([forked]);
        }
        let mut health = Health::default();
        if inner.stop.is_begun() {
            let stops = Finding::new(FindingKind::ShutDown, Impact::NotReady, None);
            health.extend([stops]);
        }
        health.extend(inner.outages.findings(Instant::now()));
        if let Some(node) = &inner.node {
            of_node(&mut health, node);
        }
        health
    }
}

fn of_node(health: &mut Health, node: &NodeLink) {
    let signs = &node.signs;
    if !signs.has_ended() {
        health.extend(findings(signs, signs.now(), node.runs.store_clock.now()));
    }
    // It ends with the node.
    if let Some(pool) = node.pool.as_ref().and_then(Weak::upgrade) {
        health.extend(pool.health().into_iter().map(|mut finding| {
            finding.detail = format!("handlers: {}", finding.detail);
            finding
        }));
    }
}

/// Returns what a node that works finds, at this moment by the local clock and the store's.
fn findings(signs: &NodeSigns, now: Duration, store_now: StoreTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |kind, impact, since, detail: &str| {
        let mut finding = Finding::new(kind, impact, Some(since));
        finding.detail = detail.to_owned();
        findings.push(finding);
    };
    if let Some(since) = signs.late_for(now).filter(|since| *since >= STALLED) {
        let what = "the node's thread does not go on";
        find(FindingKind::TickerStalled, Impact::NotAlive, since, what);
    }
    if let Some(since) = signs.alone_for(now) {
        let what = "the node has no lease";
        find(FindingKind::NodeAlone, Impact::NotReady, since, what);
    }
    let overdue = signs.overdue_by(store_now);
    if let Some(since) = overdue.filter(|since| *since >= OVERDUE) {
        let what = "the first of them waits for its claim";
        find(FindingKind::Overdue, Impact::Warning, since, what);
    }
    if let Some(since) = signs.doorbell_down_for(now) {
        let what = "timers of others are found by polls";
        find(FindingKind::DoorbellDown, Impact::Warning, since, what);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::LocalClock;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_finds_what_lasts_too_long() {
        let signs = NodeSigns::new(LocalClock::start());
        let (start, due) = (signs.now(), StoreTime::from_micros(0));
        signs.lease(Some(start + 15 * SECOND));
        signs.wakes_at(Some(start));
        signs.first_due(Some(due));
        let after = |seconds: u32| {
            let store_now = StoreTime::from_micros(i64::from(seconds) * 1_000_000);
            let found = findings(&signs, start + seconds * SECOND, store_now);
            let found = found.into_iter();
            let found = found.map(|found| (found.kind, found.since.unwrap().as_secs()));
            found.collect::<Vec<_>>()
        };
        assert!(after(4).is_empty());
        assert_eq!(after(5), [(FindingKind::Overdue, 5)]);
        let stalled = (FindingKind::TickerStalled, 10);
        assert_eq!(after(10), [stalled, (FindingKind::Overdue, 10)]);
        assert_eq!(after(16)[1], (FindingKind::NodeAlone, 1));
        signs.lease(None);
        signs.wakes_at(None);
        signs.first_due(None);
        assert!(matches!(after(60)[..], [(FindingKind::NodeAlone, _)]));
    }

    #[test]
    fn a_lease_that_is_over_has_ended_when_it_ended() {
        let signs = NodeSigns::new(LocalClock::start());
        let start = signs.now();
        signs.lease(Some(Duration::ZERO));
        signs.lease(None);
        signs.lease(None);
        assert_eq!(signs.alone_for(start), Some(start));
        assert_eq!(signs.late_for(start), None);
        assert_eq!(signs.doorbell_down_for(start), None);
        signs.doorbell(true);
        assert!(signs.doorbell_down_for(signs.now()).is_some());
        signs.doorbell(false);
        assert_eq!(signs.doorbell_down_for(signs.now()), None);
    }
}
