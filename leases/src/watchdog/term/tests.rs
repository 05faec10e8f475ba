//! One term against a model without a lock and waiters, which states TERM-1 to TERM-4 directly: all
//! sequences of five operations.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

use crossbeam_channel::TryRecvError;
use tourbillon::ManualClock;

use super::*;
use crate::sync::Arc;

const UNTIL: u64 = 4;
const CAP: u64 = 7;
const FEED: u64 = 3;
/// A flight may be under way for so long, and a renewal is good for so long.
const LIMIT: u64 = 2;
const LEASE: u64 = 4;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Look,
    Depart,
    /// An answer to the flight that departed last, and has no answer yet.
    Land(Answer),
    /// To the one that departed first.
    LandFirst(Answer),
    UnderWay,
    Stop,
    Feed,
    End,
    Pass(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Renewed,
    NotHeld,
    Failed,
}

const OPS: [Op; 13] = [
    Op::Look,
    Op::Depart,
    Op::Land(Answer::Renewed),
    Op::Land(Answer::NotHeld),
    Op::Land(Answer::Failed),
    Op::LandFirst(Answer::Renewed),
    Op::LandFirst(Answer::NotHeld),
    Op::UnderWay,
    Op::Stop,
    Op::Feed,
    Op::End,
    Op::Pass(1),
    Op::Pass(3),
];

/// What a term is, without its mechanics.
#[derive(Clone, Debug)]
struct Model {
    now: u64,
    until: u64,
    fed_until: u64,
    ended: Option<Standing>,
    renewals: u64,
    /// Those without an answer: when they departed, and whether they still count as under way.
    flights: Vec<(u64, bool)>,
}

impl Model {
    fn ends(&self) -> u64 {
        self.until.min(CAP).min(self.fed_until)
    }

    /// TERM-1: by the clock, before anything else.
    fn settle(&mut self) {
        if self.ended.is_none() && self.now >= self.ends() {
            let loss = match self.ends() {
                end if end == self.until => Loss::Expired,
                CAP => Loss::HeldTooLong,
                _ => Loss::NotFed,
            };
            self.ended = Some(Standing::Lost(loss));
        }
    }

    fn standing(&self) -> Standing {
        self.ended.unwrap_or(Standing::Kept {
            until: at(self.until),
            ends: at(self.ends()),
        })
    }

    fn under_way(&mut self) -> Option<&mut (u64, bool)> {
        self.flights.iter_mut().find(|(_, counts)| *counts)
    }
}

struct Pair {
    model: Model,
    term: Term,
    /// In the model's order.
    flights: Vec<Flight>,
    told: Arc<AtomicUsize>,
    channel: Receiver<Loss>,
}

impl Pair {
    fn new() -> Self {
        let told = Arc::new(AtomicUsize::new(0));
        let tells = Arc::clone(&told);
        let on_loss = Box::new(move |_| {
            tells.fetch_add(1, SeqCst);
        });
        let feed = Some(Duration::from_nanos(FEED));
        let term = Term::new(at(0), at(UNTIL), at(CAP), feed, on_loss);
        Pair {
            channel: term.loss_channel(),
            term,
            flights: Vec::new(),
            told,
            model: Model {
                now: 0,
                until: UNTIL,
                fed_until: FEED,
                ended: None,
                renewals: 0,
                flights: Vec::new(),
            },
        }
    }

    fn step(&mut self, op: Op) {
        let now = at(self.model.now);
        match op {
            Op::Pass(by) => self.model.now += by,
            Op::Look => {
                self.model.settle();
                assert_eq!(self.term.look(now), self.model.standing());
            }
            Op::Depart => self.depart(now),
            Op::Land(answer) => {
                if let Some(last) = self.flights.len().checked_sub(1) {
                    self.land(last, now, answer);
                }
            }
            Op::LandFirst(answer) => {
                if !self.flights.is_empty() {
                    self.land(0, now, answer);
                }
            }
            Op::UnderWay => {
                let moment = self.model.now;
                let expected = match self.model.under_way() {
                    None => UnderWay::Nothing,
                    Some((sent, _)) if moment < *sent + LIMIT => UnderWay::Until(at(*sent + LIMIT)),
                    Some((_, counts)) => {
                        *counts = false;
                        UnderWay::GivenUp
                    }
                };
                assert_eq!(self.term.under_way(now), expected);
            }
            Op::Stop => {
                self.model.settle();
                let expected = match self.model.ended {
                    None => Stopped::Now,
                    Some(Standing::Lost(loss)) => Stopped::Lost(loss),
                    Some(_) => Stopped::Before,
                };
                self.model.ended.get_or_insert(Standing::Stopped);
                assert_eq!(self.term.stop(now), expected);
            }
            Op::Feed => {
                self.model.settle();
                let lives = self.model.ended.is_none();
                if lives {
                    self.model.fed_until = self.model.now + FEED;
                }
                assert_eq!(self.term.feed(now), lives);
            }
            Op::End => {
                let lost = Standing::Lost(Loss::Closed);
                self.model.ended.get_or_insert(lost);
                self.term.end(Loss::Closed);
            }
        }
    }

    /// TERM-2: nothing departs after the end, nor beside another one.
    fn depart(&mut self, now: Time) {
        let departs = if self.model.under_way().is_some() {
            false
        } else {
            self.model.settle();
            self.model.ended.is_none()
        };
        let flight = self.term.depart(now, now + Duration::from_nanos(LIMIT));
        assert_eq!(flight.is_some(), departs);
        if let Some(flight) = flight {
            self.flights.push(flight);
            self.model.flights.push((self.model.now, true));
        }
    }

    /// TERM-3: it changes nothing about what has ended.
    fn land(&mut self, which: usize, now: Time, answer: Answer) {
        let flight = self.flights.remove(which);
        let (sent, _) = self.model.flights.remove(which);
        let until = sent + LEASE;
        self.model.settle();
        if self.model.ended.is_none() {
            match answer {
                Answer::Renewed => {
                    self.model.until = self.model.until.max(until);
                    self.model.renewals += 1;
                }
                Answer::NotHeld => self.model.ended = Some(Standing::Lost(Loss::NotHeld)),
                Answer::Failed => {}
            }
        }
        let landing = match answer {
            Answer::Renewed => Landing::Renewed { until: at(until) },
            Answer::NotHeld => Landing::NotHeld,
            Answer::Failed => Landing::Failed,
        };
        let goes_on = self.term.land(flight, now, landing);
        assert_eq!(goes_on, self.model.ended.is_none());
    }

    /// What holds at all times, at the end of a sequence so that nothing is settled in between.
    fn check(&mut self) {
        assert_eq!(self.term.renewals(), self.model.renewals);
        // TERM-4.
        let lost = match self.model.ended {
            Some(Standing::Lost(loss)) => Some(loss),
            _ => None,
        };
        assert_eq!(self.told.load(SeqCst), usize::from(lost.is_some()));
        let heard = match self.model.ended {
            None => Err(TryRecvError::Empty),
            Some(Standing::Lost(loss)) => Ok(loss),
            Some(_) => Err(TryRecvError::Disconnected),
        };
        assert_eq!(self.channel.try_recv(), heard);
        // TERM-1: however late it is asked.
        self.model.now += CAP;
        self.step(Op::Look);
        assert!(!matches!(self.model.standing(), Standing::Kept { .. }));
        let lost = matches!(self.model.standing(), Standing::Lost(_));
        assert_eq!(self.told.load(SeqCst), usize::from(lost));
        // Nobody waits for what can't be under way any more.
        let clock = Clock::manual(&ManualClock::starting_at(at(self.model.now)));
        self.term.settled(&clock);
    }
}

#[test]
fn all_sequences_of_five_operations_are_those_of_the_model() {
    let mut sequences = 0;
    for length in 0..=5 {
        for mut number in 0..OPS.len().pow(length) {
            let mut sequence = Vec::new();
            for _ in 0..length {
                sequence.push(OPS[number % OPS.len()]);
                number /= OPS.len();
            }
            let run = contain(|| {
                let mut pair = Pair::new();
                sequence.iter().for_each(|op| pair.step(*op));
                pair.check();
            });
            if let Err(panic) = run {
                panic!("{sequence:?}: {panic}");
            }
            sequences += 1;
        }
    }
    assert_eq!(sequences, (0..=5).map(|n| OPS.len().pow(n)).sum::<usize>());
}

#[test]
fn a_feed_that_was_overtaken_takes_nothing_back() {
    let feed = Some(Duration::from_nanos(FEED));
    let term = Term::new(at(0), at(100), Time::MAX, feed, Box::new(|_| {}));
    assert!(term.feed(at(2)));
    // This one read the clock before that.
    assert!(term.feed(at(0)));
    assert!(matches!(term.look(at(4)), Standing::Kept { .. }));
    assert_eq!(term.look(at(5)), Standing::Lost(Loss::NotFed));
}

#[test]
fn a_waker_that_panics_leaves_no_other_asleep() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {
            panic!("a runtime's mistake");
        }
    }
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    for stopped in [false, true] {
        let panics = Box::new(|_| panic!("a key's drop"));
        let term = Term::new(at(0), at(1), Time::MAX, None, panics);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let wakers = [
            Waker::from(Arc::new(Bomb)),
            Waker::from(Arc::clone(&count)),
            Waker::from(Arc::new(Bomb)),
            Waker::from(Arc::clone(&count)),
        ];
        for waker in &wakers {
            term.leave_waker(&mut None, waker);
        }
        if stopped {
            assert_eq!(term.stop(at(0)), Stopped::Now);
        } else {
            assert_eq!(term.look(at(1)), Standing::Lost(Loss::Expired));
        }
        assert_eq!(count.0.load(SeqCst), 2);
    }
}
