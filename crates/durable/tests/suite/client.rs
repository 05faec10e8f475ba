//! A store that a case has for itself, and short forms of its calls.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tourbillon_durable::store::{
    Action, Answer, Call, Claim, Claimed, ClaimedRun, Connection, DeadLetter, DeadPage, Epoch,
    NewNode, Offset, Outcome, Page, Payload, Poll, QueueCounts, Range, Run, SHARDS, Seen, Settle,
    Settled, Settlement, Store, StoreSnapshot, StoreTime, Timer, Wanted,
};
use tourbillon_durable::{DueAt, WallClock};

/// The queue of most cases.
pub(crate) const QUEUE: &str = "q";

/// The crash limit of [`Client::claim`].
pub(crate) const CRASH_LIMIT: u32 = 3;

/// A fresh store.
pub(crate) struct Bench {
    pub(crate) store: Box<dyn Store>,
    /// The store's clock, if a test can move it.
    pub(crate) clock: Option<WallClock>,
    /// What lives as long as the store: a folder, a server.
    pub(crate) _kept: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl Bench {
    pub(crate) fn client(&self) -> Client {
        Client {
            connection: self.store.connect().expect("the store can be reached"),
        }
    }

    /// Lets the store's clock go on by `span`. Where no test can move it, this waits until the
    /// store shows the time.
    pub(crate) fn pass(&self, span: Duration) {
        if let Some(clock) = &self.clock {
            clock.advance(span);
            return;
        }
        let mut client = self.client();
        let end = client.now() + span;
        kit::wait::until("the store's clock goes on", || client.now() >= end);
    }

    pub(crate) fn clock(&self) -> &WallClock {
        self.clock
            .as_ref()
            .expect("the case is for clocks that a test can move")
    }
}

/// A connection. Every call must succeed.
pub(crate) struct Client {
    pub(crate) connection: Box<dyn Connection>,
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn payload(text: &str) -> Payload {
    format!("{{\"text\":\"{text}\"}}").into()
}

/// Stores may change the spaces and the order of the names of a payload.
#[track_caller]
pub(crate) fn assert_json(stored: &str, given: &str) {
    let parse = |text: &str| -> serde_json::Value {
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    };
    assert_eq!(parse(stored), parse(given));
}

pub(crate) fn call(queue: &str, key: &str, action: Action) -> Call {
    Call {
        queue: queue.into(),
        key: key.into(),
        action,
    }
}

pub(crate) fn schedule(when: DueAt) -> Action {
    let payload = payload("first");
    Action::Schedule { when, payload }
}

pub(crate) fn schedule_text(when: DueAt, text: &str) -> Action {
    let payload = payload(text);
    Action::Schedule { when, payload }
}

pub(crate) fn if_absent(when: DueAt) -> Action {
    let payload = payload("second");
    Action::ScheduleIfAbsent { when, payload }
}

pub(crate) fn reschedule(when: DueAt) -> Action {
    Action::Reschedule { when }
}

/// Due at the time of the call.
pub(crate) const NOW: DueAt = DueAt::After(Duration::ZERO);

pub(crate) fn range(queue: &str, shard: u16) -> Range {
    Range {
        queue: queue.into(),
        shard,
        mark: None,
        until: Offset::Ahead(Duration::from_secs(3_600)),
        limit: 10_000,
    }
}

impl Client {
    // === users ===

    #[track_caller]
    pub(crate) fn write(&mut self, calls: &[Call]) -> Vec<Answer> {
        let answers = self.connection.write(calls).expect("the store writes");
        assert_eq!(answers.len(), calls.len());
        let taken = |answer| match answer {
            Ok(answer) => answer,
            Err(refusal) => panic!("{refusal:?}"),
        };
        answers.into_iter().map(taken).collect()
    }

    #[track_caller]
    pub(crate) fn call_in(&mut self, queue: &str, key: &str, action: Action) -> Answer {
        self.write(&[call(queue, key, action)])[0]
    }

    #[track_caller]
    pub(crate) fn call(&mut self, key: &str, action: Action) -> Answer {
        self.call_in(QUEUE, key, action)
    }

    /// Calls, and returns the store's clock before and after it.
    #[track_caller]
    pub(crate) fn timed(&mut self, key: &str, action: Action) -> (StoreTime, Answer, StoreTime) {
        let before = self.now();
        let answer = self.call(key, action);
        (before, answer, self.now())
    }

    /// Schedules a timer that is due now, and returns its shard.
    #[track_caller]
    pub(crate) fn due(&mut self, key: &str) -> u16 {
        match self.call(key, schedule(NOW)) {
            Answer::Scheduled { shard, .. } => shard,
            answer => panic!("{answer:?}"),
        }
    }

    /// Schedules a timer that is due at `time`, and returns its shard.
    #[track_caller]
    pub(crate) fn due_at(&mut self, key: &str, time: StoreTime) -> u16 {
        match self.call(key, schedule(DueAt::from(time))) {
            Answer::Scheduled { shard, due, .. } => {
                assert_eq!(due, time);
                shard
            }
            answer => panic!("{answer:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn get_in(&mut self, queue: &str, key: &str) -> Option<Timer> {
        self.connection.get(queue, key).expect("the store reads")
    }

    #[track_caller]
    pub(crate) fn get(&mut self, key: &str) -> Option<Timer> {
        self.get_in(QUEUE, key)
    }

    /// The timer of a key that has one.
    #[track_caller]
    pub(crate) fn timer(&mut self, key: &str) -> Timer {
        self.get(key)
            .unwrap_or_else(|| panic!("no timer of {key:?}"))
    }

    #[track_caller]
    pub(crate) fn list(&mut self, page: &Page) -> Vec<Timer> {
        self.connection.list(page).expect("the store reads")
    }

    /// The keys of a page.
    #[track_caller]
    pub(crate) fn keys(&mut self, page: &Page) -> Vec<String> {
        let timers = self.list(page);
        timers.into_iter().map(|timer| timer.key).collect()
    }

    #[track_caller]
    pub(crate) fn counts(&mut self) -> Vec<QueueCounts> {
        self.connection.counts().expect("the store counts")
    }

    #[track_caller]
    pub(crate) fn dead(&mut self) -> Vec<DeadLetter> {
        self.connection
            .dead(&DeadPage::first(QUEUE, 1_000))
            .expect("the store reads")
    }

    #[track_caller]
    pub(crate) fn set_paused(&mut self, queue: &str, paused: bool) {
        self.connection
            .set_paused(queue, paused)
            .expect("the store writes");
    }

    // === nodes ===

    #[track_caller]
    pub(crate) fn now(&mut self) -> StoreTime {
        self.poll(Epoch(0), Vec::new()).now
    }

    #[track_caller]
    pub(crate) fn poll(&mut self, epoch: Epoch, ranges: Vec<Range>) -> StoreSnapshot {
        let poll = Poll {
            epoch,
            ranges,
            bands: Vec::new(),
            complete: true,
        };
        self.connection.poll(&poll).expect("the store reads")
    }

    /// What a node sees of a timer.
    #[track_caller]
    pub(crate) fn seen_in(&mut self, epoch: Epoch, queue: &str, key: &str) -> Option<Seen> {
        let ranges = (0..SHARDS).map(|shard| range(queue, shard)).collect();
        let snapshot = self.poll(epoch, ranges);
        assert_eq!(snapshot.cut, Vec::<usize>::new());
        let mut rows = snapshot.rows.into_iter().filter(|seen| &*seen.key == key);
        let seen = rows.next();
        assert_eq!(rows.next(), None, "seen twice");
        seen
    }

    #[track_caller]
    pub(crate) fn seen(&mut self, epoch: Epoch, key: &str) -> Option<Seen> {
        self.seen_in(epoch, QUEUE, key)
    }

    #[track_caller]
    pub(crate) fn join(&mut self, epoch: i64) -> Epoch {
        self.join_for(epoch, &[QUEUE])
    }

    #[track_caller]
    pub(crate) fn join_for(&mut self, epoch: i64, queues: &[&str]) -> Epoch {
        let node = NewNode {
            epoch: Epoch(epoch),
            name: format!("node {epoch}"),
            queues: queues.iter().map(|queue| Arc::from(*queue)).collect(),
            schedules: Default::default(),
        };
        self.connection.join(&node).expect("the store writes");
        node.epoch
    }

    /// The node's beat after one more.
    #[track_caller]
    pub(crate) fn beats(&mut self, epoch: Epoch) -> bool {
        self.connection
            .beat(epoch)
            .expect("the store writes")
            .is_some()
    }

    #[track_caller]
    pub(crate) fn leave(&mut self, epoch: Epoch) {
        self.connection.leave(epoch).expect("the store writes");
    }

    #[track_caller]
    pub(crate) fn declare_gone(&mut self, asking: Epoch, epoch: Epoch, beat: i64) -> bool {
        let declared = self.connection.declare_gone(asking, epoch, beat);
        declared.expect("the store writes")
    }

    #[track_caller]
    pub(crate) fn claim_of(&mut self, claim: &Claim) -> Claimed {
        self.connection.claim(claim).expect("the store writes")
    }

    #[track_caller]
    pub(crate) fn claim_in<K: AsRef<str>>(
        &mut self,
        epoch: Epoch,
        queue: &str,
        keys: &[K],
    ) -> Claimed {
        self.claim_of(&claim(epoch, queue, keys))
    }

    #[track_caller]
    pub(crate) fn claim<K: AsRef<str>>(&mut self, epoch: Epoch, keys: &[K]) -> Claimed {
        self.claim_in(epoch, QUEUE, keys)
    }

    /// Claims one timer, which must succeed.
    #[track_caller]
    pub(crate) fn run(&mut self, epoch: Epoch, key: &str) -> ClaimedRun {
        let claimed = self.claim(epoch, &[key]);
        assert!(!claimed.gone);
        assert_eq!(claimed.runs.len(), 1, "{key:?} was not claimed");
        claimed.runs.into_iter().next().expect("there is one")
    }

    /// Claims one timer as soon as it is due and nobody has locked it. In the meantime the clock
    /// goes on by steps of a millisecond.
    #[track_caller]
    pub(crate) fn run_soon(&mut self, bench: &Bench, epoch: Epoch, key: &str) -> ClaimedRun {
        let mut run = None;
        kit::wait::until("the timer can be claimed", || {
            run = self.claim(epoch, &[key]).runs.pop();
            if run.is_none() {
                bench.pass(ms(1));
            }
            run.is_some()
        });
        run.expect("it was claimed")
    }

    /// Schedules a timer that is due now, and claims it.
    #[track_caller]
    pub(crate) fn running(&mut self, epoch: Epoch, key: &str) -> Run {
        self.due(key);
        self.run(epoch, key).run
    }

    #[track_caller]
    pub(crate) fn settle_all(&mut self, epoch: Epoch, ends: Vec<(Run, Outcome)>) -> Vec<Settled> {
        let length = ends.len();
        let settlements = ends.into_iter();
        let settlements = settlements.map(|(run, outcome)| Settlement { run, outcome });
        let settle = Settle {
            epoch,
            settlements: settlements.collect(),
        };
        let settled = self.connection.settle(&settle).expect("the store writes");
        assert_eq!(settled.len(), length);
        let settled = settled.into_iter();
        settled
            .map(|settled| settled.expect("not refused"))
            .collect()
    }

    #[track_caller]
    pub(crate) fn settle(&mut self, epoch: Epoch, run: &Run, outcome: &Outcome) -> Settled {
        let mut settled = Settled::Locked;
        kit::wait::until("the row is not locked", || {
            settled = self.settle_all(epoch, vec![(run.clone(), outcome.clone())])[0];
            settled != Settled::Locked
        });
        settled
    }
}

/// A claim without a deadline.
pub(crate) fn claim<K: AsRef<str>>(epoch: Epoch, queue: &str, keys: &[K]) -> Claim {
    let wanted = keys.iter().map(|key| Wanted {
        queue: queue.into(),
        key: key.as_ref().into(),
        crash_limit: CRASH_LIMIT,
    });
    Claim {
        epoch,
        deadline: StoreTime::LATEST,
        timers: wanted.collect(),
        adopt: Vec::new(),
    }
}
