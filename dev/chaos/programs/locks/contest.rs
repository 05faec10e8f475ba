use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use chaos::clock::{Moment, nanos, now};
use chaos::command_line::Stop;
use chaos::crew::{Heard, Member, Process, hear};
use chaos::judge::{Apart, Grant, Judge, Violation};
use tourbillon_leases::LeaseStore;

use crate::holder::{self, Call, Millis, Order, Word};

/// The number of renewals before the holder is ended.
const RENEWALS: u64 = 2;
/// One round of this number ends with a release instead of a kill.
const ORDERLY: u64 = 4;
/// The longest wait for a message. No step takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Contest {
    order: Order,
    /// The store of holders that are threads; the others are processes.
    threads: Option<Arc<dyn LeaseStore>>,
    began: Moment,
    heard: Receiver<(usize, Heard<Word>)>,
    tell: Sender<(usize, Heard<Word>)>,
    started: usize,
    /// The holders that have not ended.
    seats: Vec<Seated>,
    grants: Vec<Grant>,
    /// What the contest knows about the lock.
    lock: Lock,
}

/// A holder in one of the two seats. When it is killed, another holder takes the seat, with the
/// same name and another number.
struct Seated {
    number: usize,
    seat: char,
    member: Member<Call>,
    killed: bool,
    gone: bool,
}

#[derive(Clone, Copy, Default)]
struct Lock {
    /// The holder that was granted the lock last.
    number: usize,
    token: u64,
    granted: Moment,
    renewals: u64,
}

/// What the judge found.
#[derive(Debug)]
pub(crate) struct Verdict {
    rounds: u64,
    takeovers: u64,
    overlaps: usize,
    tokens: Vec<String>,
    /// Last yeses while the call that was granted next was under way.
    undecided: usize,
    /// The least time between the last yes of a killed holder and the call that was granted next.
    closest: Option<u64>,
}

impl Verdict {
    fn of(rounds: u64, takeovers: u64, mut grants: Vec<Grant>) -> Verdict {
        grants.sort_by_key(|grant| grant.token);
        let pairs = grants.windows(2).filter_map(|pair| {
            let apart = Apart::of(&pair[0], &pair[1])?;
            Some((apart, pair[0].given_back))
        });
        let pairs: Vec<_> = pairs.collect();
        let closest = pairs.iter().filter_map(|pair| match *pair {
            (Apart::By(time), false) => Some(time),
            _ => None,
        });
        let closest = closest.min();
        let undecided = pairs.iter().filter(|pair| pair.0 == Apart::Unknown);
        let undecided = undecided.count();
        let (mut overlaps, mut tokens) = (0, Vec::new());
        for violation in Judge::default().judge(grants) {
            match violation {
                Violation::Overlap(_) => overlaps += 1,
                other => tokens.push(other.what().to_owned()),
            }
        }
        Verdict {
            rounds,
            takeovers,
            overlaps,
            tokens,
            undecided,
            closest,
        }
    }

    pub(crate) fn is_well(&self) -> bool {
        self.overlaps == 0 && self.tokens.is_empty()
    }

    /// Prints the last lines.
    pub(crate) fn tell(&self) {
        if let Some(closest) = self.closest {
            say!(
                "from the last yes of one that was killed to the call that was granted next: {} at least",
                Millis(Duration::from_nanos(closest))
            );
        }
        if self.undecided > 0 {
            say!(
                "last yeses while the call that was granted next was under way, which proves nothing: {}",
                self.undecided
            );
        }
        for fault in &self.tokens {
            complain!("locks: {fault}");
        }
        let Verdict {
            rounds,
            takeovers,
            overlaps,
            ..
        } = self;
        say!("rounds {rounds} takeovers {takeovers} overlaps {overlaps}");
    }
}

impl Contest {
    pub(crate) fn new(order: Order, threads: Option<Arc<dyn LeaseStore>>) -> Self {
        let (tell, heard) = channel();
        Contest {
            order,
            threads,
            began: now(),
            heard,
            tell,
            started: 0,
            seats: Vec::new(),
            grants: Vec::new(),
            lock: Lock::default(),
        }
    }

    pub(crate) fn run(mut self, rounds: u64) -> Result<Verdict, Stop> {
        self.start('A')?;
        self.start('B')?;
        let mut takeovers = 0;
        for round in 1..=rounds {
            self.until("a lock that is renewed", |contest| {
                contest.lock.renewals >= RENEWALS
            })?;
            self.listen_for(self.pause(round))?;
            let (before, time) = (self.lock, now());
            if round % ORDERLY == 0 {
                self.seated(before.number).member.tell(Call::Release);
                self.until("the next holder", |contest| {
                    contest.lock.token != before.token
                })?;
                let after = since(time, self.lock.granted);
                let what = format!("goes on, {after} after it was asked to be given back");
                self.line(now(), self.lock.number, &what);
            } else {
                self.take_over(before, time)?;
                takeovers += 1;
            }
        }
        self.end()?;
        Ok(Verdict::of(rounds, takeovers, self.grants))
    }

    /// Kills the holder, and waits until the other one has held the lock for a while.
    fn take_over(&mut self, before: Lock, time: Moment) -> Result<(), Stop> {
        let is_thread = self.threads.is_some();
        let death = match (self.order.careless, is_thread) {
            (true, _) => "is cut off from the store, and does not care",
            (false, true) => "is killed: cut off from the store, and gives nothing back",
            (false, false) => "is killed, by SIGKILL",
        };
        self.line(time, before.number, death);
        if let Some(grant) = self.granted(before.token) {
            grant.given_back = false;
        }
        let cut = self.order.careless;
        let holder = self.seated(before.number);
        holder.killed = true;
        let seat = holder.seat;
        // A dead holder could do no harm. So one that does not care is only cut off, and goes on.
        match holder
            .member
            .as_process()
            .filter(|_| !cut)
            .map(Process::kill)
        {
            Some(killed) => {
                killed.map_err(|error| Stop::Failed(format!("can't kill a holder: {error}")))?;
            }
            None => holder.member.tell(Call::Cut),
        }
        // A greater token means that the other holder was granted the lock.
        self.until("a takeover", |contest| contest.lock.token > before.token)?;
        let granted = self.lock.granted;
        let mut what = format!("takes over, {} after the kill", since(time, granted));
        if let Some((_, yes)) = self.granted(before.token).and_then(|grant| grant.believed) {
            what += &format!(", {} after {seat}'s last yes", since(yes, granted));
        }
        self.line(now(), self.lock.number, &what);
        // Meanwhile the killed holder, if it lives, is still asked whether it holds the lock.
        self.until("a renewal", |contest| contest.lock.renewals > 0)?;
        self.finish(before.number)?;
        self.start(seat)
    }

    /// Ends all holders, first the one that holds the lock, since the other one waits for it.
    fn end(&mut self) -> Result<(), Stop> {
        self.finish(self.lock.number)?;
        while let Some(next) = self.seats.first() {
            self.finish(next.number)?;
        }
        Ok(())
    }

    /// Ends a holder, and waits for its end.
    fn finish(&mut self, number: usize) -> Result<(), Stop> {
        self.seated(number).member.leave();
        self.until("the end of a holder", |contest| contest.seated(number).gone)?;
        let fault = self.seated(number).member.bury();
        self.seats.retain(|seated| seated.number != number);
        fault.map_or(Ok(()), |fault| {
            Err(Stop::Failed(format!("a holder: {fault}")))
        })
    }

    /// Starts a holder, which waits for the lock at once.
    fn start(&mut self, seat: char) -> Result<(), Stop> {
        self.started += 1;
        let number = self.started;
        let order = Order {
            name: seat.to_string(),
            ..self.order.clone()
        };
        let tell = self.tell.clone();
        let member: io::Result<_> = match self.threads.clone() {
            None => Member::process(number, &order, tell),
            Some(store) => Ok(Member::thread(number, tell, move |calls, say| {
                holder::run(&order, store, calls, say)
            })),
        };
        let cannot = |error| Stop::Failed(format!("can't start a holder: {error}"));
        self.seats.push(Seated {
            number,
            seat,
            member: member.map_err(cannot)?,
            killed: false,
            gone: false,
        });
        self.line(now(), number, "is there, and wants the lock");
        Ok(())
    }

    fn seated(&mut self, number: usize) -> &mut Seated {
        let mut all = self.seats.iter_mut();
        all.find(|seated| seated.number == number)
            .expect("who speaks has not been sent away")
    }

    fn granted(&mut self, token: u64) -> Option<&mut Grant> {
        self.grants.iter_mut().rfind(|grant| grant.token == token)
    }

    /// Listens until `done` returns true.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) -> Result<(), Stop> {
        let limit = now() + nanos(PATIENCE);
        while !done(self) {
            let Some((number, heard)) = hear(&self.heard, limit) else {
                let why = format!("waited for {what} for {PATIENCE:?}, in vain");
                return Err(Stop::Failed(why));
            };
            self.hears(number, heard)?;
        }
        Ok(())
    }

    /// Listens for this time.
    fn listen_for(&mut self, time: Duration) -> Result<(), Stop> {
        let until = now() + nanos(time);
        while let Some((number, heard)) = hear(&self.heard, until) {
            self.hears(number, heard)?;
        }
        Ok(())
    }

    /// Returns the pause before the end of a round, so that the end comes at any point between two
    /// renewals.
    fn pause(&self, round: u64) -> Duration {
        // The fractions of the multiples of the golden ratio are spread evenly, for any number of
        // rounds.
        let part = (round as f64 * 0.618_034).fract();
        (self.order.lease / 3).mul_f64(part)
    }

    fn hears(&mut self, number: usize, heard: Heard<Word>) -> Result<(), Stop> {
        let seat = self.seated(number).seat;
        let (at, what) = match heard {
            Heard::Gone(Some(why)) => {
                return Err(Stop::Failed(format!("{seat} can't go on: {why}")));
            }
            Heard::Gone(None) => {
                self.seated(number).gone = true;
                return Ok(());
            }
            Heard::Word(Word::Yes { token, asked }) => {
                if let Some(grant) = self.granted(token) {
                    grant.believed.get_or_insert((asked, asked)).1 = asked;
                }
                return Ok(());
            }
            Heard::Word(Word::Holds {
                token,
                sent,
                answered,
            }) => {
                self.grants.push(Grant {
                    holder: seat.to_string(),
                    token,
                    sent: Some(sent),
                    granted: answered,
                    believed: None,
                    at_server: None,
                    given_back: true,
                });
                if token > self.lock.token {
                    self.lock = Lock {
                        number,
                        token,
                        granted: answered,
                        renewals: 0,
                    };
                }
                (answered, format!("holds the lock, token {token}"))
            }
            Heard::Word(Word::Renewed { at, renewals, left }) => {
                if number == self.lock.number {
                    self.lock.renewals = renewals;
                }
                let left = Millis(left);
                (at, format!("renewed, {renewals}: good for another {left}"))
            }
            Heard::Word(Word::Lost { asked, why }) => {
                let seated = self.seated(number);
                if !seated.killed {
                    // The machine or the server stood still. The holder releases the lock, as any
                    // holder does.
                    seated.member.tell(Call::Release);
                }
                (asked, format!("lost it, by its own clock: {why}"))
            }
            Heard::Word(Word::Trouble { at, what } | Word::Released { at, how: what }) => {
                (at, what)
            }
        };
        self.line(at, number, &what);
        Ok(())
    }

    fn line(&mut self, at: Moment, number: usize, what: &str) {
        let seat = self.seated(number).seat;
        let at = at.saturating_sub(self.began);
        let at = Duration::from_nanos(at).as_secs_f64();
        say!("{at:>8.3} s  {seat}  {what}");
    }
}

fn since(earlier: Moment, later: Moment) -> Millis {
    Millis(Duration::from_nanos(later.saturating_sub(earlier)))
}
