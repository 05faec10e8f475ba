//! Whether an engine is alive and ready. A reading takes no stripe's lock, and adds nothing to the
//! way of a timer: it goes by what is published for the tickers, and by what they note.
//!
//! - A ticker *stalls* if its moment has come and it has taken no step since. Its moment is its
//!   promise while it sleeps, and the least due moment while it is awake.
//! - Tickets are *old* by what the growth logic has found. That is exact also if the ticker has not
//!   looked since: whether a ticket of then waits still follows from the number of claims.

use std::time::Duration;

use super::{Engine, ExecutorKind, Frontend, Lifecycle};
use crate::executor::Headcount;
use crate::health::{Finding, FindingKind, Health, Impact};
use crate::tick::Time;

/// From when on a ticker that takes no step counts as stalled.
const STALLED: Duration = Duration::from_secs(10);

/// From when on a pool counts as blocked if no worker takes a task.
const BLOCKED: Duration = Duration::from_secs(10);

/// From when on tasks that wait, and timers that are due, are worth a warning.
const LATE: Duration = Duration::from_secs(1);

impl<F: Frontend> Engine<F> {
    pub(crate) fn health(&self) -> Health {
        let mut findings = Vec::new();
        let now = self.now();
        let mut find = |kind, impact, since: Option<Time>, detail: String| {
            let since = since.map(|since| now.since(since));
            let mut finding = Finding::new(kind, impact, since);
            finding.source = self.name().map(str::to_owned);
            finding.detail = detail;
            findings.push(finding);
        };
        if self.is_forked() {
            // FORK-1: nothing else may be asked here.
            let detail = "nothing of it runs in a forked copy of the process".to_owned();
            find(FindingKind::Forked, Impact::NotReady, None, detail);
            return Health::from_iter(findings);
        }
        if self.lifecycle() != Lifecycle::Running {
            let since = self.closing().begun();
            find(
                FindingKind::ShutDown,
                Impact::NotReady,
                since,
                String::new(),
            );
        }
        if self.closing().is_stopped() {
            // Its tickers have ended, and what is published for them is out of date.
            return Health::from_iter(findings);
        }
        let stalled = (0..self.shards().shards()).filter_map(|shard| self.stalled(shard, now));
        if let Some(since) = stalled.min() {
            let detail = match self.executor_kind {
                ExecutorKind::Inline => "timers are due, and a task on the ticker goes on",
                ExecutorKind::Pool | ExecutorKind::Foreign(_) => {
                    "timers are due, and the ticker takes no step"
                }
            };
            let detail = detail.to_owned();
            find(
                FindingKind::TickerStalled,
                Impact::NotAlive,
                Some(since),
                detail,
            );
        } else if let Some((since, detail)) = self.overdue(now) {
            find(FindingKind::Overdue, Impact::Warning, Some(since), detail);
        }
        if let Some((kind, impact, since, detail)) = self.old_tickets(now) {
            find(kind, impact, Some(since), detail);
        }
        Health::from_iter(findings)
    }

    /// Returns since when a ticker should have taken a step, if that is long.
    fn stalled(&self, shard: usize, now: Time) -> Option<Time> {
        let bell = &self.shards().shard(shard).bell;
        let moment = match bell.promised() {
            Some(moment) => moment,
            None => self.shards().shard(shard).least_due(),
        };
        let since = moment.max(self.signs[shard].stepped());
        (moment != Time::MAX && now.since(since) >= STALLED).then_some(since)
    }

    /// Returns since when a timer is due that was not handed over, if that is long, and why.
    fn overdue(&self, now: Time) -> Option<(Time, String)> {
        let dues = (0..self.shards().shards()).map(|shard| self.shards().shard(shard));
        let first = dues.min_by_key(|shard| shard.least_due())?;
        let since = first.least_due();
        if since == Time::MAX || now.since(since) < LATE {
            return None;
        }
        let detail = if self.pace.is_some() {
            "the pace holds them back".to_owned()
        } else if !first.backlog.recovered() {
            let waiting = first.backlog.unclaimed();
            format!("{waiting} tasks wait for a worker, and no more are handed over until then")
        } else {
            "the ticker is behind".to_owned()
        };
        Some((since, detail))
    }

    /// Returns since when tasks wait for workers, if that is long.
    fn old_tickets(&self, now: Time) -> Option<(FindingKind, Impact, Time, String)> {
        let pool = self.pool();
        let claims = pool.claims();
        let gone = claims.wrapping_add(pool.helped());
        let found = self.signs.iter().filter_map(|signs| signs.found());
        let old: Vec<_> = found.filter(|old| old.wait_still(gone)).collect();
        let since = old.iter().map(|old| old.since).min()?;
        let taken = old.iter().filter_map(|old| old.none_claimed(claims)).min();
        let waiting = match &self.executor_kind {
            ExecutorKind::Foreign(_) => pool.queued_hint(),
            ExecutorKind::Pool | ExecutorKind::Inline => self.shards().unclaimed(),
        };
        if let Some(taken) = taken.filter(|taken| now.since(*taken) >= BLOCKED) {
            let headcount = Headcount::of(pool);
            let more = match pool.free_slots() {
                0 => ", and there may be no more",
                _ => "",
            };
            let detail = format!("{waiting} tasks wait; {headcount}{more}");
            let kind = FindingKind::WorkersBlocked;
            return Some((kind, Impact::NotReady, taken, detail));
        }
        (now.since(since) >= LATE).then(|| {
            let detail = format!("{waiting} tasks wait for a worker");
            (FindingKind::QueueDelay, Impact::Warning, since, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timer;
    use crate::sync::Arc;
    use crate::tickers::TickerStep;

    fn seen(health: &Health) -> Vec<(FindingKind, Option<Duration>)> {
        let findings = health.findings().iter();
        findings.map(|found| (found.kind, found.since)).collect()
    }

    /// Without workers: what they would do is done by hand.
    #[test]
    fn tasks_that_no_worker_takes_are_found_by_the_age_of_those_that_wait_still() {
        let ((server, mut tickers), hand) = Timer::builder().shards(1).stepped_parts(7).unwrap();
        let engine = server.engine();
        let timer = Timer::of(Arc::clone(&server));
        let mut step = || {
            let ticker = &mut tickers[0];
            while let TickerStep::Worked = engine.ticker_step(&server, ticker, &mut |_| true) {}
        };
        let second = Duration::from_secs(1);
        let _first = timer.after(second, || ()).unwrap();
        let _second = timer.after(second, || ()).unwrap();
        hand.advance(second);
        step();
        hand.advance(second - Duration::from_nanos(1));
        step();
        assert!(engine.health().findings().is_empty());
        hand.advance(Duration::from_nanos(1));
        // Also if the ticker does not look again.
        assert_eq!(
            seen(&engine.health()),
            [(FindingKind::QueueDelay, Some(second))]
        );
        hand.advance(second * 9);
        step();
        let ten = Some(second * 10);
        assert_eq!(seen(&engine.health()), [(FindingKind::WorkersBlocked, ten)]);
        assert!(!engine.health().is_ready() && engine.health().is_alive());

        // One that is taken is a sign of life, and the other one waits still.
        let mut worker = engine.pool().take_slot().unwrap();
        assert!(worker.step(server.as_ref()));
        assert_eq!(
            seen(&engine.health()),
            [(FindingKind::QueueDelay, Some(second * 10))]
        );
        // One that has come meanwhile is not old, and the ticker has not looked since.
        let _third = timer.after(Duration::ZERO, || ()).unwrap();
        assert!(worker.step(server.as_ref()));
        assert!(engine.health().findings().is_empty(), "{}", engine.health());
        while worker.step(server.as_ref()) {}
        step();
        hand.advance(second * 3_600);
        assert!(engine.health().findings().is_empty(), "{}", engine.health());
    }

    #[test]
    fn a_ticker_whose_moment_has_passed_is_stalled_and_a_jump_of_the_clock_is_none() {
        let ((server, mut tickers), hand) = Timer::builder().shards(1).stepped_parts(7).unwrap();
        let engine = server.engine();
        let timer = Timer::of(Arc::clone(&server));
        let second = Duration::from_secs(1);
        let mut step = || {
            let ticker = &mut tickers[0];
            while let TickerStep::Worked = engine.ticker_step(&server, ticker, &mut |_| true) {}
        };
        step();
        hand.advance(second * 86_400);
        let _timer = timer.after(second * 5, || ()).unwrap();
        assert!(engine.health().findings().is_empty());
        hand.advance(second * 6);
        assert_eq!(
            seen(&engine.health()),
            [(FindingKind::Overdue, Some(second))]
        );
        hand.advance(second * 9);
        assert_eq!(
            seen(&engine.health()),
            [(FindingKind::TickerStalled, Some(second * 10))]
        );
        step();
        assert!(engine.health().is_alive());
    }

    #[test]
    fn timers_behind_a_full_queue_are_overdue() {
        let ((server, mut tickers), hand) = Timer::builder().shards(1).stepped_parts(7).unwrap();
        let engine = server.engine();
        let timer = Timer::of(Arc::clone(&server));
        let second = Duration::from_secs(1);
        // The bound is 65,536.
        let all = 70_000;
        let timers: Vec<_> = (0..all)
            .map(|_| timer.after(second, || ()).unwrap())
            .collect();
        hand.advance(second);
        let mut step = || {
            let ticker = &mut tickers[0];
            while let TickerStep::Worked = engine.ticker_step(&server, ticker, &mut |_| true) {}
        };
        step();
        // The ticker would hand over more, if that was light, once the workers are stuck.
        hand.advance(second);
        let health = engine.health();
        let expected = [FindingKind::Overdue, FindingKind::QueueDelay];
        let kinds = health.findings().iter().map(|found| found.kind);
        assert!(kinds.eq(expected), "{health}");
        assert!(
            health
                .to_string()
                .contains("no more are handed over until then"),
            "{health}"
        );
        assert!(health.is_ready());
        drop(timers);
    }
}
