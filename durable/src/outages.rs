//! Which parts of the work with the store have stopped, and the events at the beginning and the end of an outage.
//!
//! - **OUTAGE-1** An outage begins with the first part that stops, and ends when every part works again. Each
//!   has one event, and none comes between them.
//! - **OUTAGE-2** A part has stopped when a call of it fails, for whatever reason, or has no answer after
//!   [`SLOW`]. It works again when a call of it has succeeded within that time.
//! - **OUTAGE-3** A replaced store has an event of its own, which is sent once in an outage. It is not sent again after a
//!   call that succeeds on an older database while others fail: that database is still not the right one.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::event_sink::EventSink;
use crate::events::{Event, StoreWork};
use crate::stats::Counters;
use crate::store::StoreError;
use crate::sync::{Arc, Mutex};

/// A call without an answer for this long is an outage.
pub(crate) const SLOW: Duration = Duration::from_secs(1);

/// After this number of looks without another declaration there is nobody to declare gone any more.
const LOOKS: u8 = 2;

/// The parts of the work that have stopped.
pub(crate) struct Outages {
    stopped: Mutex<StoppedWork>,
    counters: Arc<Counters>,
    events: EventSink,
}

#[derive(Debug, Default)]
struct StoppedWork {
    parts: BTreeSet<StoreWork>,
    /// The good looks since the last declaration that failed.
    looks: u8,
    /// Whether it was told that the store is another one, since all parts worked.
    is_replaced: bool,
}

impl Outages {
    pub(crate) fn new(counters: &Arc<Counters>, events: &EventSink) -> Arc<Self> {
        Arc::new(Outages {
            stopped: Mutex::default(),
            counters: Arc::clone(counters),
            events: events.clone(),
        })
    }

    /// A call of this work has failed.
    pub(crate) fn failed(&self, work: StoreWork, why: &dyn fmt::Display) {
        let mut stopped = self.stopped.lock();
        if work == StoreWork::DeclareGone {
            stopped.looks = 0;
        }
        let begins = stopped.parts.is_empty();
        if stopped.parts.insert(work) {
            self.counters.stopped_work.set(stopped.parts.len() as u64);
        }
        if begins {
            // Under the lock, so that the events have the order of the changes. It never waits.
            self.events.send(|| Event::StoreDown {
                work,
                error: why.to_string(),
            });
        }
    }

    /// A call of this work has succeeded.
    pub(crate) fn worked(&self, work: StoreWork) {
        let mut stopped = self.stopped.lock();
        if stopped.parts.is_empty() {
            stopped.is_replaced = false;
            return;
        }
        stopped.parts.remove(&work);
        if work == StoreWork::Look && stopped.parts.contains(&StoreWork::DeclareGone) {
            // The node that was to be declared gone may be back, or others have declared it.
            stopped.looks += 1;
            if stopped.looks >= LOOKS {
                stopped.parts.remove(&StoreWork::DeclareGone);
            }
        }
        self.counters.stopped_work.set(stopped.parts.len() as u64);
        if stopped.parts.is_empty() {
            stopped.is_replaced = false;
            self.events.send(|| Event::StoreUp);
        }
    }

    /// Takes the end of any call, and tells once in an outage that the store is another one.
    pub(crate) fn notice<T>(&self, result: &Result<T, StoreError>) {
        let Err(error @ StoreError::Replaced(_)) = result else {
            return;
        };
        self.counters.replaced.increment();
        let mut stopped = self.stopped.lock();
        if !std::mem::replace(&mut stopped.is_replaced, true) {
            let error = error.to_string();
            self.events.send(|| Event::StoreReplaced { error });
        }
    }

    /// Whether this work has stopped.
    pub(crate) fn has(&self, work: StoreWork) -> bool {
        self.stopped.lock().parts.contains(&work)
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
    outages: Arc<Outages>,
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
            let why = format!("no answer for {SLOW:?}");
            self.outages.failed(self.work, &why);
        }
    }

    /// The call has ended.
    pub(crate) fn ended<E: fmt::Display>(&self, error: Option<&E>) {
        let before = std::mem::replace(&mut *self.progress.lock(), Progress::Ended);
        match error {
            Some(error) => self.outages.failed(self.work, error),
            // Else an outage would end and begin with each of many slow calls. What is done only once
            // has no other call to wait for.
            None if before == Progress::Slow && self.work.is_repeated() => {}
            None => self.outages.worked(self.work),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreError;
    use crate::sync::channel::{Receiver, unbounded};

    fn outages() -> (Arc<Outages>, Arc<Counters>, Receiver<Event>) {
        let (sender, events) = unbounded();
        let listener = move |event: &Event| drop(sender.send(event.clone()));
        let sink = EventSink::start(Some(Box::new(listener))).expect("a thread");
        let counters = Arc::new(Counters::default());
        (Outages::new(&counters, &sink), counters, events)
    }

    fn refused() -> StoreError {
        StoreError::Refused("no".to_owned())
    }

    /// All events, after the end of the thread that passes them on.
    fn all(outages: Arc<Outages>, events: &Receiver<Event>) -> Vec<Event> {
        drop(outages);
        events.iter().collect()
    }

    fn down(work: StoreWork, error: &str) -> Event {
        let error = error.to_owned();
        Event::StoreDown { work, error }
    }

    #[test]
    fn an_outage_has_one_begin_and_ends_with_its_last_part() {
        let (outages, counters, events) = outages();
        outages.worked(StoreWork::Look);
        outages.failed(StoreWork::Claim, &refused());
        outages.failed(StoreWork::Claim, &refused());
        outages.worked(StoreWork::Look);
        outages.failed(StoreWork::Beat, &refused());
        assert_eq!(counters.stopped_work.get(), 2);
        outages.worked(StoreWork::Claim);
        assert_eq!(counters.stopped_work.get(), 1);
        outages.worked(StoreWork::Beat);
        assert_eq!(counters.stopped_work.get(), 0);
        outages.worked(StoreWork::Beat);
        let expected = down(StoreWork::Claim, &refused().to_string());
        assert_eq!(all(outages, &events), [expected, Event::StoreUp]);
    }

    #[test]
    fn a_declaration_that_is_not_needed_any_more_ends_with_the_second_look() {
        let (outages, _, events) = outages();
        outages.failed(StoreWork::DeclareGone, &refused());
        outages.worked(StoreWork::Look);
        outages.failed(StoreWork::DeclareGone, &refused());
        outages.worked(StoreWork::Look);
        assert!(outages.has(StoreWork::DeclareGone));
        outages.worked(StoreWork::Look);
        assert!(!outages.has(StoreWork::DeclareGone));
        assert_eq!(all(outages, &events).len(), 2);
    }

    #[test]
    fn slow_calls_are_one_outage_until_a_quick_one() {
        let (outages, _, events) = outages();
        for _ in 0..3 {
            let look = Attempt::new(&outages, StoreWork::Look);
            look.is_slow();
            look.ended(None::<&StoreError>);
            assert!(outages.has(StoreWork::Look));
        }
        let quick = Attempt::new(&outages, StoreWork::Look);
        quick.ended(None::<&StoreError>);
        // The timer of a call may come after its end.
        quick.is_slow();
        assert!(!outages.has(StoreWork::Look));
        drop(quick);
        let expected = down(StoreWork::Look, "no answer for 1s");
        assert_eq!(all(outages, &events), [expected, Event::StoreUp]);
    }

    #[test]
    fn a_store_that_is_replaced_is_told_once_in_an_outage_whatever_succeeds_meanwhile() {
        let (outages, counters, events) = outages();
        let replaced = StoreError::Replaced("older".to_owned());
        for _ in 0..2 {
            for _ in 0..3 {
                outages.notice(&Err::<(), _>(replaced.clone()));
                outages.failed(StoreWork::Beat, &replaced);
                outages.notice(&Ok(()));
                outages.worked(StoreWork::Look);
            }
            outages.worked(StoreWork::Beat);
        }
        assert_eq!(counters.replaced.get(), 6);
        let error = replaced.to_string();
        let told = [
            Event::StoreReplaced {
                error: error.clone(),
            },
            down(StoreWork::Beat, &error),
            Event::StoreUp,
        ];
        assert_eq!(all(outages, &events), [told.clone(), told].concat());
    }

    #[test]
    fn what_is_done_once_may_be_slow() {
        let (outages, _, events) = outages();
        let join = Attempt::new(&outages, StoreWork::Join);
        join.is_slow();
        join.ended(None::<&StoreError>);
        drop(join);
        assert_eq!(all(outages, &events).len(), 2);
    }
}
