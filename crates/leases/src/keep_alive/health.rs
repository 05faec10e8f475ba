//! Whether the renewals are alive and ready.

use std::time::Duration;

use tourbillon::{Finding, FindingKind, Health, Impact, Time};

use super::KeepAlive;
use super::cadence;
use super::lease_state::LeaseStatus;

/// From when on a store that fails makes what needs it not ready.
pub(in super::super) const FAILS: Duration = Duration::from_secs(10);

/// Something that is the case for some of the keys.
struct Found {
    keys: usize,
    since: Time,
}

impl Found {
    const NONE: Found = Found {
        keys: 0,
        since: Time::MAX,
    };

    fn add(&mut self, since: Time) {
        self.keys += 1;
        self.since = self.since.min(since);
    }
}

impl<K: Clone + Send + Sync + 'static> KeepAlive<K> {
    /// Returns whether the renewals are alive and ready, and the reasons if not:
    ///
    /// - [`StoreFails`](FindingKind::StoreFails): the last renewal of a key has failed. A warning, and
    ///   not ready after 10 s without a success of that key.
    /// - [`RenewalAtRisk`](FindingKind::RenewalAtRisk): a key has a third of its lease left or less,
    ///   and was not renewed. A warning.
    /// - [`ShutDown`](FindingKind::ShutDown): it was closed.
    /// - What the schedulers find on which it runs; see [`Handle::health`](tourbillon::Handle::health).
    ///
    /// A key that is lost is no reason any more: it has an event.
    ///
    /// # Complexity
    ///
    /// Linear in the number of keys that are kept, as for [`stats`](Self::stats).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tourbillon_leases::{KeepAlive, Outcome};
    /// # let sessions = KeepAlive::<u64>::builder()
    /// #     .build(async |batch| Ok(vec![Outcome::Renewed; batch.len()]))?;
    /// let session = sessions.keep(7, Duration::from_secs(30))?;
    /// assert!(sessions.health().is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        if self.is_forked() {
            return Health::from_iter([self.finding(FindingKind::Forked, Impact::NotReady, None)]);
        }
        let mut findings = Vec::new();
        if self.is_closed() {
            findings.push(self.finding(FindingKind::ShutDown, Impact::NotReady, None));
        }
        let now = self.now();
        let (mut risky, mut failing) = (Found::NONE, Found::NONE);
        let (mut error, mut first_end) = (String::new(), Time::MAX);
        for registration in self.renewal_loop.registrations() {
            let LeaseStatus::Held { until, .. } = registration.lease_state.look(now) else {
                continue;
            };
            if !registration.renewed {
                continue;
            }
            let risk = cadence::at_risk(until, registration.lease);
            if risk <= now {
                risky.add(risk);
                first_end = first_end.min(until);
            }
            if let Some((since, why)) = &registration.plan.lock().failing {
                failing.add(*since);
                error.clone_from(why);
            }
        }
        if failing.keys > 0 {
            let since = now.since(failing.since);
            let mut finding = self.finding(FindingKind::StoreFails, fails(since), Some(since));
            finding.detail = format!("renewals of {} keys fail: {error}", failing.keys);
            findings.push(finding);
        }
        if risky.keys > 0 {
            let since = Some(now.since(risky.since));
            let mut finding = self.finding(FindingKind::RenewalAtRisk, Impact::Warning, since);
            let left = first_end.since(now);
            finding.detail = format!("{} keys, the first ends in {left:.1?}", risky.keys);
            findings.push(finding);
        }
        for (what, health) in self.renewal_loop.timers.health() {
            findings.extend(health.into_iter().map(|mut finding| {
                finding.source.clone_from(&self.renewal_loop.source);
                finding.detail = format!("{what}: {}", finding.detail);
                finding
            }));
        }
        Health::from_iter(findings)
    }

    /// Makes a finding of these renewals.
    pub(in super::super) fn finding(
        &self,
        kind: FindingKind,
        impact: Impact,
        since: Option<Duration>,
    ) -> Finding {
        let mut finding = Finding::new(kind, impact, since);
        finding.source.clone_from(&self.renewal_loop.source);
        finding
    }
}

/// Returns what a failure for this long means.
pub(in super::super) fn fails(since: Duration) -> Impact {
    if since >= FAILS {
        Impact::NotReady
    } else {
        Impact::Warning
    }
}
