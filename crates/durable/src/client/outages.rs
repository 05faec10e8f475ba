//! Which parts of the work with the store have stopped, and the events at the beginning and the end
//! of an outage.
//!
//! - **OUTAGE-1** An outage begins with the first part that stops, and ends when every part works
//!   again. Each has one event, and none comes between them.
//! - **OUTAGE-2** A part has stopped when a call of it fails, for whatever reason, or has no answer
//!   after [`SLOW`]. It works again when a call of it has succeeded within that time.
//! - **OUTAGE-3** A replaced store has an event of its own, which is sent once in an outage. From
//!   then on only a call counts as a success that began after the last call that has found the
//!   store replaced: an earlier one may have been carried out before the exchange.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::time::{Duration, Instant};

use tourbillon::{Finding, FindingKind, Impact};

use crate::events::{Counters, DurableEvent, EventSink, StoreWork};
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// A call without an answer for this long is an outage.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

/// From when on a part that has stopped makes the timers not ready.
const NOT_READY: Duration = Duration::from_secs(10);

/// After this number of polls without another declaration there is nobody to declare gone any more.
const POLLS: u8 = 2;

/// The parts of the work that have stopped.
pub(crate) struct Outages {
    stopped: Mutex<StoppedWork>,
    counters: Arc<Counters>,
    events: EventSink,
}

#[derive(Debug, Default)]
struct StoppedWork {
    /// Since when, and why it has stopped.
    parts: BTreeMap<StoreWork, (Instant, String)>,
    /// The good polls since the last declaration that failed.
    polls: u8,
    /// Whether it was told that the store is another one, since all parts worked.
    is_replaced: bool,
    /// The number of calls that have found that.
    replaced: u64,
}

/// What had happened when a call began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    /// The number of calls that had found another store.
    replaced: u64,
}

impl Outages {
    pub(crate) fn new(counters: &Arc<Counters>, events: &EventSink) -> Arc<Self> {
        Arc::new(Outages {
            stopped: Mutex::default(),
            counters: Arc::clone(counters),
            events: events.clone(),
        })
    }

    /// A call begins now.
    pub(crate) fn begin(&self) -> Began {
        Began {
            replaced: self.stopped.lock().replaced,
        }
    }

    /// A call of this work has ended.
    pub(crate) fn ended(&self, work: StoreWork, began: Began, error: Option<&StoreError>) {
        // In one step: a success of another call must not come between the two events of an
        // exchange.
        let mut stopped = self.stopped.lock();
        match error {
            Some(error) => {
                self.note(&mut stopped, error);
                self.fail(&mut stopped, work, error);
            }
            None => self.work(&mut stopped, work, began),
        }
    }

    /// A call of this work has no answer yet.
    fn slow(&self, work: StoreWork) {
        let why = format!("no answer for {SLOW:?}");
        self.fail(&mut self.stopped.lock(), work, &why);
    }

    /// Takes the end of a call whose failure is no outage. An exchange of the store is told even
    /// then.
    pub(crate) fn notice(&self, error: Option<&StoreError>) {
        if let Some(error) = error {
            self.note(&mut self.stopped.lock(), error);
        }
    }

    fn fail(&self, stopped: &mut StoppedWork, work: StoreWork, why: &dyn fmt::Display) {
        if work == StoreWork::DeclareGone {
            stopped.polls = 0;
        }
        let begins = stopped.parts.is_empty();
        if let Entry::Vacant(new) = stopped.parts.entry(work) {
            new.insert((Instant::now(), why.to_string()));
            self.counters
                .node
                .stopped_work
                .set(stopped.parts.len() as u64);
        }
        if begins {
            // Under the lock, so that the events have the order of the changes. It never waits.
            self.events.send(|| DurableEvent::StoreDown {
                work,
                error: why.to_string(),
            });
        }
    }

    fn work(&self, stopped: &mut StoppedWork, work: StoreWork, began: Began) {
        if stopped.is_replaced && began.replaced != stopped.replaced {
            return;
        }
        if stopped.parts.is_empty() {
            stopped.is_replaced = false;
            return;
        }
        stopped.parts.remove(&work);
        if work == StoreWork::Poll && stopped.parts.contains_key(&StoreWork::DeclareGone) {
            // The node that was to be declared gone may be back, or others have declared it.
            stopped.polls += 1;
            if stopped.polls >= POLLS {
                stopped.parts.remove(&StoreWork::DeclareGone);
            }
        }
        self.counters
            .node
            .stopped_work
            .set(stopped.parts.len() as u64);
        if stopped.parts.is_empty() {
            stopped.is_replaced = false;
            self.events.send(|| DurableEvent::StoreUp);
        }
    }

    /// Tells once in an outage that the store is another one.
    fn note(&self, stopped: &mut StoppedWork, error: &StoreError) {
        if !matches!(error, StoreError::Replaced(_)) {
            return;
        }
        self.counters.node.replaced.increment();
        stopped.replaced += 1;
        if !std::mem::replace(&mut stopped.is_replaced, true) {
            let error = error.to_string();
            self.events.send(|| DurableEvent::StoreReplaced { error });
        }
    }

    /// Returns what has stopped, at this moment, for people and probes.
    pub(crate) fn findings(&self, now: Instant) -> Vec<Finding> {
        let stopped = self.stopped.lock();
        let parts = stopped.parts.iter().map(|(work, (since, why))| {
            let since = now.saturating_duration_since(*since);
            let impact = match work {
                // The others do without, until the node is known as gone.
                StoreWork::DeclareGone => Impact::Warning,
                _ if since < NOT_READY => Impact::Warning,
                _ => Impact::NotReady,
            };
            let mut finding = Finding::new(FindingKind::StoreFails, impact, Some(since));
            finding.detail = format!("{work:?}: {why}");
            finding
        });
        parts.collect()
    }

    /// Whether this work has stopped.
    pub(crate) fn has(&self, work: StoreWork) -> bool {
        self.stopped.lock().parts.contains_key(&work)
    }
}

impl fmt::Debug for Outages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outages")
            .field("stopped", &*self.stopped.lock())
            .finish_non_exhaustive()
    }
}

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Attempt {
    work: StoreWork,
    began: Began,
    outages: Arc<Outages>,
    /// Whether the call is under way, slow or ended. The lock of `Outages` is taken inside.
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    UnderWay,
    Slow,
    Ended,
}

impl Attempt {
    pub(crate) fn new(outages: &Arc<Outages>, work: StoreWork) -> Arc<Self> {
        Arc::new(Attempt {
            work,
            began: outages.begin(),
            outages: Arc::clone(outages),
            progress: Mutex::new(Progress::UnderWay),
        })
    }

    /// The time for the call is over. The call may have ended just now.
    pub(crate) fn is_slow(&self) {
        // The end of the call waits for this lock, so it is noted after this.
        let mut progress = self.progress.lock();
        if *progress == Progress::UnderWay {
            *progress = Progress::Slow;
            self.outages.slow(self.work);
        }
    }

    /// The call has ended.
    pub(crate) fn ended(&self, error: Option<&StoreError>) {
        let before = std::mem::replace(&mut *self.progress.lock(), Progress::Ended);
        // Else an outage would end and begin with each of many slow calls. What is done only once
        // has no other call to wait for.
        let is_late = before == Progress::Slow && self.work.is_repeated();
        if error.is_some() || !is_late {
            self.outages.ended(self.work, self.began, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::channel::{Receiver, unbounded};

    fn outages() -> (Arc<Outages>, Arc<Counters>, Receiver<DurableEvent>) {
        let (sender, events) = unbounded();
        let listener = move |event: &DurableEvent| drop(sender.send(event.clone()));
        let sink = EventSink::start(Some(Box::new(listener))).expect("a thread");
        let counters = Arc::new(Counters::default());
        (Outages::new(&counters, &sink), counters, events)
    }

    fn refused() -> StoreError {
        StoreError::Refused("no".to_owned())
    }

    /// All events, after the end of the thread that passes them on.
    fn all(outages: Arc<Outages>, events: &Receiver<DurableEvent>) -> Vec<DurableEvent> {
        drop(outages);
        events.iter().collect()
    }

    fn fails(outages: &Outages, work: StoreWork, error: &StoreError) {
        outages.ended(work, outages.begin(), Some(error));
    }

    fn works(outages: &Outages, work: StoreWork) {
        outages.ended(work, outages.begin(), None);
    }

    fn down(work: StoreWork, error: &str) -> DurableEvent {
        let error = error.to_owned();
        DurableEvent::StoreDown { work, error }
    }

    #[test]
    fn an_outage_has_one_begin_and_ends_with_its_last_part() {
        let (outages, counters, events) = outages();
        works(&outages, StoreWork::Poll);
        fails(&outages, StoreWork::Claim, &refused());
        fails(&outages, StoreWork::Claim, &refused());
        works(&outages, StoreWork::Poll);
        fails(&outages, StoreWork::Beat, &refused());
        assert_eq!(counters.node.stopped_work.get(), 2);
        works(&outages, StoreWork::Claim);
        assert_eq!(counters.node.stopped_work.get(), 1);
        works(&outages, StoreWork::Beat);
        assert_eq!(counters.node.stopped_work.get(), 0);
        works(&outages, StoreWork::Beat);
        let expected = down(StoreWork::Claim, &refused().to_string());
        assert_eq!(all(outages, &events), [expected, DurableEvent::StoreUp]);
    }

    #[test]
    fn what_has_stopped_is_a_warning_at_first_and_not_ready_after_10_s() {
        let (outages, _, _) = outages();
        let start = Instant::now();
        assert!(outages.findings(start).is_empty());
        fails(&outages, StoreWork::DeclareGone, &refused());
        fails(&outages, StoreWork::Claim, &refused());
        let other = StoreError::Unavailable("later".to_owned());
        fails(&outages, StoreWork::Claim, &other);
        let impacts = |after| {
            let findings = outages.findings(start + Duration::from_secs(after));
            let impacts: Vec<_> = findings.iter().map(|found| found.impact).collect();
            impacts
        };
        assert_eq!(impacts(9), [Impact::Warning; 2]);
        assert_eq!(impacts(3_600), [Impact::NotReady, Impact::Warning]);
        let claim = &outages.findings(start)[0];
        assert_eq!(claim.detail, format!("Claim: {}", refused()));
        works(&outages, StoreWork::Claim);
        assert_eq!(impacts(3_600), [Impact::Warning]);
    }

    #[test]
    fn a_declaration_that_is_not_needed_any_more_ends_with_the_second_poll() {
        let (outages, _, events) = outages();
        fails(&outages, StoreWork::DeclareGone, &refused());
        works(&outages, StoreWork::Poll);
        fails(&outages, StoreWork::DeclareGone, &refused());
        works(&outages, StoreWork::Poll);
        assert!(outages.has(StoreWork::DeclareGone));
        works(&outages, StoreWork::Poll);
        assert!(!outages.has(StoreWork::DeclareGone));
        assert_eq!(all(outages, &events).len(), 2);
    }

    #[test]
    fn slow_calls_are_one_outage_until_a_quick_one() {
        let (outages, _, events) = outages();
        for _ in 0..3 {
            let poll = Attempt::new(&outages, StoreWork::Poll);
            poll.is_slow();
            poll.ended(None);
            assert!(outages.has(StoreWork::Poll));
        }
        let quick = Attempt::new(&outages, StoreWork::Poll);
        quick.ended(None);
        // The timer of a call may come after its end.
        quick.is_slow();
        assert!(!outages.has(StoreWork::Poll));
        drop(quick);
        let expected = down(StoreWork::Poll, "no answer for 1s");
        assert_eq!(all(outages, &events), [expected, DurableEvent::StoreUp]);
    }

    #[test]
    fn a_store_that_is_replaced_is_told_once_in_an_outage_whatever_succeeds_meanwhile() {
        let (outages, counters, events) = outages();
        let replaced = StoreError::Replaced("older".to_owned());
        for _ in 0..2 {
            for _ in 0..3 {
                outages.notice(Some(&replaced));
                fails(&outages, StoreWork::Beat, &replaced);
                outages.notice(None);
                works(&outages, StoreWork::Poll);
            }
            works(&outages, StoreWork::Beat);
        }
        assert_eq!(counters.node.replaced.get(), 12);
        let error = replaced.to_string();
        let told = [
            DurableEvent::StoreReplaced {
                error: error.clone(),
            },
            down(StoreWork::Beat, &error),
            DurableEvent::StoreUp,
        ];
        assert_eq!(all(outages, &events), [told.clone(), told].concat());
    }

    #[test]
    fn a_success_from_before_an_exchange_says_nothing() {
        let (outages, _, events) = outages();
        let replaced = StoreError::Replaced("older".to_owned());
        // Of a user's call, which is no outage, and of a poll.
        for is_down in [false, true] {
            let early = Attempt::new(&outages, StoreWork::Poll);
            match is_down {
                false => outages.notice(Some(&replaced)),
                true => fails(&outages, StoreWork::Poll, &replaced),
            }
            early.ended(None);
            assert_eq!(outages.has(StoreWork::Poll), is_down);
            outages.notice(Some(&replaced));
            fails(&outages, StoreWork::Poll, &replaced);
            works(&outages, StoreWork::Poll);
        }
        let error = replaced.to_string();
        let told = [
            DurableEvent::StoreReplaced {
                error: error.clone(),
            },
            down(StoreWork::Poll, &error),
            DurableEvent::StoreUp,
        ];
        assert_eq!(all(outages, &events), [told.clone(), told].concat());
    }

    #[test]
    fn what_is_done_once_may_be_slow() {
        let (outages, _, events) = outages();
        let join = Attempt::new(&outages, StoreWork::Join);
        join.is_slow();
        join.ended(None);
        drop(join);
        assert_eq!(all(outages, &events).len(), 2);
    }
}
