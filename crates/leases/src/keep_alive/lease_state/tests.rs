//! Compares the state of a lease with a model for all sequences of up to five operations. The model
//! has no lock and no waiters, and states LEASE-1 to LEASE-4 directly.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

use crossbeam_channel::TryRecvError;
use tourbillon::ManualClock;

use super::*;
use crate::sync::Arc;

const UNTIL: u64 = 4;
const CAP: u64 = 7;
const FEED: u64 = 3;
/// How long a renewal may be in flight.
const LIMIT: u64 = 2;
/// How long a lease is held after the request that renews it.
const LEASE: u64 = 4;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Look,
    Depart,
    /// Answers the renewal that began last, of those without an answer.
    Land(Answer),
    /// Answers the renewal that began first, of those without an answer.
    LandFirst(Answer),
    InFlightStatus,
    Stop,
    Feed,
    End,
    Flush(u64),
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
    Op::InFlightStatus,
    Op::Stop,
    Op::Feed,
    Op::End,
    Op::Flush(1),
    Op::Flush(3),
];

/// A lease without its mechanics.
#[derive(Clone, Debug)]
struct Model {
    now: u64,
    until: u64,
    fed_until: u64,
    ended: Option<LeaseStatus>,
    renewals: u64,
    /// The renewals without an answer: when each began, and whether it still counts as in flight.
    in_flights: Vec<(u64, bool)>,
}

impl Model {
    fn ends(&self) -> u64 {
        self.until.min(CAP).min(self.fed_until)
    }

    /// Ends the lease by the clock, before anything else (LEASE-1).
    fn settle(&mut self) {
        if self.ended.is_none() && self.now >= self.ends() {
            let loss = match self.ends() {
                end if end == self.until => Loss::Expired,
                CAP => Loss::HeldTooLong,
                _ => Loss::NotFed,
            };
            self.ended = Some(LeaseStatus::Lost(loss));
        }
    }

    fn lease_status(&self) -> LeaseStatus {
        self.ended.unwrap_or(LeaseStatus::Held {
            until: at(self.until),
            ends: at(self.ends()),
        })
    }

    fn in_flight_status(&mut self) -> Option<&mut (u64, bool)> {
        self.in_flights.iter_mut().find(|(_, counts)| *counts)
    }
}

struct Pair {
    model: Model,
    lease_state: LeaseState,
    /// The renewals without an answer, in the model's order.
    in_flights: Vec<InFlight>,
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
        let lease_state = LeaseState::new(at(0), at(UNTIL), at(CAP), feed, on_loss);
        Pair {
            channel: lease_state.loss_channel(),
            lease_state,
            in_flights: Vec::new(),
            told,
            model: Model {
                now: 0,
                until: UNTIL,
                fed_until: FEED,
                ended: None,
                renewals: 0,
                in_flights: Vec::new(),
            },
        }
    }

    fn step(&mut self, op: Op) {
        let now = at(self.model.now);
        match op {
            Op::Flush(by) => self.model.now += by,
            Op::Look => {
                self.model.settle();
                assert_eq!(self.lease_state.look(now), self.model.lease_status());
            }
            Op::Depart => self.begin_renewal(now),
            Op::Land(answer) => {
                if let Some(last) = self.in_flights.len().checked_sub(1) {
                    self.complete_renewal(last, now, answer);
                }
            }
            Op::LandFirst(answer) => {
                if !self.in_flights.is_empty() {
                    self.complete_renewal(0, now, answer);
                }
            }
            Op::InFlightStatus => {
                let moment = self.model.now;
                let expected = match self.model.in_flight_status() {
                    None => InFlightStatus::Nothing,
                    Some((sent, _)) if moment < *sent + LIMIT => {
                        InFlightStatus::Until(at(*sent + LIMIT))
                    }
                    Some((_, counts)) => {
                        *counts = false;
                        InFlightStatus::GivenUp
                    }
                };
                assert_eq!(self.lease_state.in_flight_status(now), expected);
            }
            Op::Stop => {
                self.model.settle();
                let expected = match self.model.ended {
                    None => Stopped::Now,
                    Some(LeaseStatus::Lost(loss)) => Stopped::Lost(loss),
                    Some(_) => Stopped::Before,
                };
                self.model.ended.get_or_insert(LeaseStatus::Stopped);
                assert_eq!(self.lease_state.stop(now), expected);
            }
            Op::Feed => {
                self.model.settle();
                let lives = self.model.ended.is_none();
                if lives {
                    self.model.fed_until = self.model.now + FEED;
                }
                assert_eq!(self.lease_state.feed(now), lives);
            }
            Op::End => {
                let lost = LeaseStatus::Lost(Loss::Closed);
                self.model.ended.get_or_insert(lost);
                self.lease_state.end(Loss::Closed);
            }
        }
    }

    /// Begins a renewal, unless the lease has ended or another one is in flight (LEASE-2).
    fn begin_renewal(&mut self, now: Time) {
        let departs = if self.model.in_flight_status().is_some() {
            false
        } else {
            self.model.settle();
            self.model.ended.is_none()
        };
        let in_flight = self
            .lease_state
            .begin_renewal(now, now + Duration::from_nanos(LIMIT));
        assert_eq!(in_flight.is_some(), departs);
        if let Some(in_flight) = in_flight {
            self.in_flights.push(in_flight);
            self.model.in_flights.push((self.model.now, true));
        }
    }

    /// Answers a renewal, which changes nothing about an ended lease (LEASE-3).
    fn complete_renewal(&mut self, which: usize, now: Time, answer: Answer) {
        let in_flight = self.in_flights.remove(which);
        let (sent, _) = self.model.in_flights.remove(which);
        let until = sent + LEASE;
        self.model.settle();
        if self.model.ended.is_none() {
            match answer {
                Answer::Renewed => {
                    self.model.until = self.model.until.max(until);
                    self.model.renewals += 1;
                }
                Answer::NotHeld => self.model.ended = Some(LeaseStatus::Lost(Loss::NotHeld)),
                Answer::Failed => {}
            }
        }
        let outcome_of_renewal = match answer {
            Answer::Renewed => RenewalOutcome::Renewed { until: at(until) },
            Answer::NotHeld => RenewalOutcome::NotHeld,
            Answer::Failed => RenewalOutcome::Failed,
        };
        let goes_on = self
            .lease_state
            .complete_renewal(in_flight, now, outcome_of_renewal);
        assert_eq!(goes_on, self.model.ended.is_none());
    }

    /// Checks what holds at all times. Runs only at the end of a sequence, since a check itself may
    /// end the lease.
    fn check(&mut self) {
        assert_eq!(self.lease_state.renewals(), self.model.renewals);
        // The loss was reported exactly once (LEASE-4).
        let lost = match self.model.ended {
            Some(LeaseStatus::Lost(loss)) => Some(loss),
            _ => None,
        };
        assert_eq!(self.told.load(SeqCst), usize::from(lost.is_some()));
        let heard = match self.model.ended {
            None => Err(TryRecvError::Empty),
            Some(LeaseStatus::Lost(loss)) => Ok(loss),
            Some(_) => Err(TryRecvError::Disconnected),
        };
        assert_eq!(self.channel.try_recv(), heard);
        // The lease ends, however late the first check comes (LEASE-1).
        self.model.now += CAP;
        self.step(Op::Look);
        assert!(!matches!(
            self.model.lease_status(),
            LeaseStatus::Held { .. }
        ));
        let lost = matches!(self.model.lease_status(), LeaseStatus::Lost(_));
        assert_eq!(self.told.load(SeqCst), usize::from(lost));
        // No renewal can be in flight any more, so this returns at once.
        let clock = Clock::manual(&ManualClock::starting_at(at(self.model.now)));
        self.lease_state.wait_for_in_flight(&clock);
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
            let run = catch_panic(|| {
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
    let lease_state = LeaseState::new(at(0), at(100), Time::MAX, feed, Box::new(|_| {}));
    assert!(lease_state.feed(at(2)));
    // This feed read the clock before the other one.
    assert!(lease_state.feed(at(0)));
    assert!(matches!(lease_state.look(at(4)), LeaseStatus::Held { .. }));
    assert_eq!(lease_state.look(at(5)), LeaseStatus::Lost(Loss::NotFed));
}

#[test]
fn a_waker_that_panics_leaves_no_other_asleep() {
    struct PanickingWaker;
    impl Wake for PanickingWaker {
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
        let lease_state = LeaseState::new(at(0), at(1), Time::MAX, None, panics);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let wakers = [
            Waker::from(Arc::new(PanickingWaker)),
            Waker::from(Arc::clone(&count)),
            Waker::from(Arc::new(PanickingWaker)),
            Waker::from(Arc::clone(&count)),
        ];
        for waker in &wakers {
            lease_state.leave_waker(&mut None, waker);
        }
        if stopped {
            assert_eq!(lease_state.stop(at(0)), Stopped::Now);
        } else {
            assert_eq!(lease_state.look(at(1)), LeaseStatus::Lost(Loss::Expired));
        }
        assert_eq!(count.0.load(SeqCst), 2);
    }
}
