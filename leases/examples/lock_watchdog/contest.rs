//! The rounds: who holds the lock is killed, or gives it back, and the other one has it next.

use std::fmt;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tourbillon::{Clock, Time};

use crate::holder::{Millis, Order, Said};
use crate::ledger::{Ledger, Verdict};

/// Where holders live.
pub(crate) trait Place {
    /// Starts one, which queues for the lock at once.
    fn start(
        &self,
        number: usize,
        name: &str,
        messages: &Sender<Message>,
    ) -> io::Result<Box<dyn Contestant>>;

    /// What happens to one that is killed.
    fn death(&self) -> &'static str;
}

/// A holder, from outside.
pub(crate) trait Contestant {
    fn order(&mut self, order: Order);

    /// It renews nothing from now on, and gives nothing back. If nothing is left of it, it says that it
    /// is gone.
    fn kill(&mut self) -> io::Result<()>;

    /// Waits for the end of one that is gone.
    fn wait(&mut self) -> io::Result<()>;
}

/// What a holder said.
pub(crate) struct Message {
    pub(crate) number: usize,
    pub(crate) said: Said,
}

/// How it went.
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

/// Why it did not go on.
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

/// The lock is renewed so often before the holder's end.
const RENEWALS: u64 = 2;
/// One round in so many ends in good order.
const ORDERLY: u32 = 4;
/// Nothing takes so long, on the busiest machine.
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
    /// Those that have not ended.
    contestants: Vec<Seated>,
    ledger: Ledger,
    /// What is known of the lock.
    lock: Lock,
}

/// A holder in one of the two seats. One that was killed gets a successor there, of the same name and
/// another number.
struct Seated {
    number: usize,
    seat: char,
    contestant: Box<dyn Contestant>,
    killed: bool,
    gone: bool,
}

#[derive(Clone, Copy, Default)]
struct Lock {
    /// Who was granted it last.
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

    /// Kills the holder, and waits until the other one has had the lock for a while.
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
        self.until("a takeover", |contest| contest.lock.token > before.token)?;
        let granted = self.lock.granted;
        let mut what = format!("takes over, {} after the kill", Millis(granted.since(now)));
        if let Some(yes) = self.ledger.last_yes(before.token) {
            what += &format!(", {} after {seat}'s last yes", Millis(granted.since(yes)));
        }
        self.line(self.clock.now(), self.lock.number, &what)?;
        // Meanwhile the one that was killed is still asked what it believes, if it lives.
        self.until("a renewal", |contest| contest.lock.renewals > 0)?;
        self.finish(before.number)?;
        self.start(seat)
    }

    /// Ends all of them: the holder first, for which the other one waits.
    fn end(&mut self) -> Result<(), Failure> {
        let holder = self.lock.number;
        self.finish(holder)?;
        while let Some(next) = self.contestants.first() {
            let number = next.number;
            self.finish(number)?;
        }
        Ok(())
    }

    /// Ends one, and waits for that.
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

    /// Listens until `done`.
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

    /// Listens for so long.
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

    /// Until the end of a round, so that it comes at any moment between two renewals.
    fn pause(&self, round: u32) -> Duration {
        // Multiples of the golden section lie about evenly, however many they are.
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
                    // The machine stood still, or the server. It is given back, as any holder does.
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
