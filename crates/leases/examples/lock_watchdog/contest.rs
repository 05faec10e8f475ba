//! The rounds: the holder of the lock is killed or releases the lock, and the other one gets it
//! next.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tourbillon::{Clock, Time};

use crate::holder::{Millis, Order, Said};
use crate::ledger::{Ledger, Verdict};

/// A place where holders run.
pub(crate) trait Place {
    /// Starts a holder, which waits for the lock at once.
    fn start(
        &self,
        number: usize,
        name: &str,
        messages: &Sender<Message>,
    ) -> io::Result<Box<dyn Contestant>>;

    /// Returns what happens to a holder that is killed.
    fn death(&self) -> &'static str;
}

/// A holder, as the contest sees it.
pub(crate) trait Contestant {
    fn order(&mut self, order: Order);

    /// Kills the holder: from now on it renews nothing and releases nothing. If nothing is left of
    /// it, it reports that it is gone.
    fn kill(&mut self) -> io::Result<()>;

    /// Waits for the end of a holder that is gone.
    fn wait(&mut self) -> io::Result<()>;
}

/// A message of a holder.
pub(crate) struct Message {
    pub(crate) number: usize,
    pub(crate) said: Said,
}

/// The result of a contest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Summary {
    pub(crate) rounds: u32,
    pub(crate) takeovers: u32,
    pub(crate) verdict: Verdict,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            rounds,
            takeovers,
            verdict: Verdict { overlaps, .. },
        } = self;
        write!(
            f,
            "rounds {rounds} takeovers {takeovers} overlaps {overlaps}"
        )
    }
}

/// The reason why the contest stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Standard output can't be written.
    Output(io::Error),
    Contest(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}

/// The number of renewals before the holder is ended.
const RENEWALS: u64 = 2;
/// One round of this number ends with a release instead of a kill.
const ORDERLY: u32 = 4;
/// The longest wait for a message. No step takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Contest<'a> {
    place: &'a dyn Place,
    clock: Clock,
    lease: Duration,
    began: Time,
    out: &'a mut dyn Write,
    messages: Receiver<Message>,
    sender: Sender<Message>,
    started: usize,
    /// The holders that have not ended.
    contestants: Vec<Seated>,
    ledger: Ledger,
    /// What the contest knows about the lock.
    lock: Lock,
}

/// A holder in one of the two seats. When it is killed, another holder takes the seat, with the
/// same name and another number.
struct Seated {
    number: usize,
    seat: char,
    contestant: Box<dyn Contestant>,
    killed: bool,
    gone: bool,
}

#[derive(Clone, Copy, Default)]
struct Lock {
    /// The holder that was granted the lock last.
    number: usize,
    token: u64,
    granted: Time,
    renewals: u64,
}

impl<'a> Contest<'a> {
    pub(crate) fn new(
        place: &'a dyn Place,
        clock: &Clock,
        lease: Duration,
        out: &'a mut dyn Write,
    ) -> Self {
        let (sender, messages) = channel();
        Contest {
            place,
            clock: clock.clone(),
            lease,
            began: clock.now(),
            out,
            messages,
            sender,
            started: 0,
            contestants: Vec::new(),
            ledger: Ledger::default(),
            lock: Lock::default(),
        }
    }

    pub(crate) fn run(mut self, rounds: u32) -> Result<Summary, Failure> {
        self.start('A')?;
        self.start('B')?;
        let mut takeovers = 0;
        for round in 1..=rounds {
            self.until("a lock that is renewed", |contest| {
                contest.lock.renewals >= RENEWALS
            })?;
            self.listen_for(self.pause(round))?;
            let before = self.lock;
            let now = self.clock.now();
            if round % ORDERLY == 0 {
                self.order(before.number, Order::Release);
                self.until("the next holder", |contest| {
                    contest.lock.token != before.token
                })?;
                let after = self.lock.granted.since(now);
                self.line(
                    self.clock.now(),
                    self.lock.number,
                    &format!(
                        "goes on, {} after it was asked to be given back",
                        Millis(after)
                    ),
                )?;
            } else {
                self.take_over(before, now)?;
                takeovers += 1;
            }
        }
        self.end()?;
        Ok(Summary {
            rounds,
            takeovers,
            verdict: self.ledger.verdict(),
        })
    }

    /// Kills the holder, and waits until the other one has held the lock for a while.
    fn take_over(&mut self, before: Lock, now: Time) -> Result<(), Failure> {
        self.line(now, before.number, self.place.death())?;
        self.ledger.killed(before.token);
        let seat = {
            let holder = self.seated(before.number);
            holder.killed = true;
            let killed = holder.contestant.kill();
            killed.map_err(|error| Failure::Contest(format!("can't kill a holder: {error}")))?;
            holder.seat
        };
        // A greater token means that the other holder was granted the lock.
        self.until("a takeover", |contest| contest.lock.token > before.token)?;
        let granted = self.lock.granted;
        let mut what = format!("takes over, {} after the kill", Millis(granted.since(now)));
        if let Some(yes) = self.ledger.last_yes(before.token) {
            what += &format!(", {} after {seat}'s last yes", Millis(granted.since(yes)));
        }
        self.line(self.clock.now(), self.lock.number, &what)?;
        // Meanwhile the killed holder, if it lives, is still asked whether it holds the lock.
        self.until("a renewal", |contest| contest.lock.renewals > 0)?;
        self.finish(before.number)?;
        self.start(seat)
    }

    /// Ends all holders, first the one that holds the lock, since the other one waits for it.
    fn end(&mut self) -> Result<(), Failure> {
        let holder = self.lock.number;
        self.finish(holder)?;
        while let Some(next) = self.contestants.first() {
            let number = next.number;
            self.finish(number)?;
        }
        Ok(())
    }

    /// Ends a holder, and waits for its end.
    fn finish(&mut self, number: usize) -> Result<(), Failure> {
        self.order(number, Order::End);
        self.until("the end of a holder", |contest| contest.seated(number).gone)?;
        let ended = self.seated(number).contestant.wait();
        self.contestants.retain(|seated| seated.number != number);
        ended.map_err(|error| Failure::Contest(error.to_string()))
    }

    fn start(&mut self, seat: char) -> Result<(), Failure> {
        self.started += 1;
        let number = self.started;
        let started = self.place.start(number, &seat.to_string(), &self.sender);
        let contestant =
            started.map_err(|error| Failure::Contest(format!("can't start a holder: {error}")))?;
        self.contestants.push(Seated {
            number,
            seat,
            contestant,
            killed: false,
            gone: false,
        });
        self.line(self.clock.now(), number, "is there, and wants the lock")
    }

    fn seated(&mut self, number: usize) -> &mut Seated {
        let mut all = self.contestants.iter_mut();
        all.find(|seated| seated.number == number)
            .expect("who speaks has not been sent away")
    }

    fn order(&mut self, number: usize, order: Order) {
        self.seated(number).contestant.order(order);
    }

    /// Receives messages until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) -> Result<(), Failure> {
        let limit = self.clock.now() + PATIENCE;
        while !done(self) {
            let left = limit.since(self.clock.now());
            let message = self.messages.recv_timeout(left).map_err(|_| {
                Failure::Contest(format!("waited for {what} for {PATIENCE:?}, in vain"))
            })?;
            self.hear(message)?;
        }
        Ok(())
    }

    /// Receives messages for this time.
    fn listen_for(&mut self, time: Duration) -> Result<(), Failure> {
        let until = self.clock.now() + time;
        loop {
            let left = until.since(self.clock.now());
            match self.messages.recv_timeout(left) {
                Ok(message) => self.hear(message)?,
                Err(_) => return Ok(()),
            }
        }
    }

    /// Returns the pause before the end of a round, so that the end comes at any point between two
    /// renewals.
    fn pause(&self, round: u32) -> Duration {
        // The fractions of the multiples of the golden ratio are spread evenly, for any number of
        // rounds.
        let part = (f64::from(round) * 0.618_034).fract();
        (self.lease / 3).mul_f64(part)
    }

    fn hear(&mut self, Message { number, said }: Message) -> Result<(), Failure> {
        match said {
            Said::Yes { token, asked } => self.ledger.yes(token, asked),
            Said::Holds(grant) => {
                if !self.ledger.enter(grant) {
                    let why = format!("token {} was granted twice", grant.token);
                    return Err(Failure::Contest(why));
                }
                if grant.token > self.lock.token {
                    self.lock = Lock {
                        number,
                        token: grant.token,
                        granted: grant.answered,
                        renewals: 0,
                    };
                }
                let what = format!("holds the lock, token {}", grant.token);
                self.line(grant.answered, number, &what)?;
            }
            Said::Renewed { at, renewals, left } => {
                if number == self.lock.number {
                    self.lock.renewals = renewals;
                }
                let what = format!("renewed, {renewals}: good for another {}", Millis(left));
                self.line(at, number, &what)?;
            }
            Said::Trouble { at, what } => self.line(at, number, &what)?,
            Said::Lost { asked, why } => {
                self.line(asked, number, &format!("lost it, by its own clock: {why}"))?;
                if !self.seated(number).killed {
                    // The machine or the server stood still. The holder releases the lock, as any
                    // holder does.
                    self.order(number, Order::Release);
                }
            }
            Said::Released { at, how } => self.line(at, number, &how)?,
            Said::Fails(why) => {
                let seat = self.seated(number).seat;
                return Err(Failure::Contest(format!("{seat} can't go on: {why}")));
            }
            Said::Gone => self.seated(number).gone = true,
        }
        Ok(())
    }

    fn line(&mut self, at: Time, number: usize, what: &str) -> Result<(), Failure> {
        let seat = self.seated(number).seat;
        let at = at.since(self.began).as_secs_f64();
        writeln!(self.out, "{at:>8.3} s  {seat}  {what}")?;
        Ok(())
    }
}
