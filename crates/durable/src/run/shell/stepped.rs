//! A node that works turn by turn, while a test moves its clock.
//!
//! The node has its thread, its lanes and its store as in production. But the thread takes messages
//! only within a *turn*, and runs closures itself, one after the other. A turn ends when nothing is
//! left to do at this time. Between two turns the node stands still, and messages wait.
//!
//! Only an end is taken at once: a stop goes on without turns, so that nobody has to drive it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use super::{Message, NodeSender, Shell};
use crate::node::{Input, Mono, Stopped};
use crate::store::Epoch;
use crate::sync::channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// A call to the store that takes longer, by a clock that nobody moves, is left alone until it has
/// an answer: time goes on without it. A test may let a store hang.
const HANGS: Duration = Duration::from_secs(10);

/// A turn of the node.
pub(crate) struct Turn {
    /// Whether the node polls first, as the store's clock was moved.
    polls: bool,
    /// Whether the turn ends only with the runs whose handlers are futures.
    waits: bool,
    /// Dropped without an answer if the node ends.
    reply: Sender<Rest>,
}

/// The state of a node after a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// The time until the node has something to do if nothing else happens. Each node counts its
    /// time from its own start.
    pub(crate) wakes_in: Option<Duration>,
    /// How many runs have begun so far.
    pub(crate) began: u64,
    pub(crate) epoch: Epoch,
}

/// What a node remembers of its turns.
#[derive(Default)]
pub(super) struct Steps {
    /// Messages that came between two turns.
    backlog: VecDeque<Message>,
    /// The calls to the store that have no answer yet.
    pub(super) asked: usize,
    /// Whether they are left alone.
    hangs: bool,
    pub(super) began: u64,
    ended: u64,
    crashes_after_run: bool,
    /// What the node's time is ahead of the clock: a stop does not wait for anybody to move it.
    pub(super) ahead: Mono,
}

impl Steps {
    fn is_answered(&self) -> bool {
        self.asked == 0 || self.hangs
    }

    /// Notes a message that is about to be taken.
    fn notes(&mut self, message: &Message) {
        match message {
            Message::Input(Input::Reply { .. }) => {
                self.asked = self.asked.saturating_sub(1);
                self.hangs = false;
            }
            Message::Input(Input::Finished { .. }) => self.ended += 1,
            _ => {}
        }
    }
}

impl NodeSender {
    /// Lets the node work. `None` if it has ended.
    pub(crate) fn turn(&self, polls: bool, waits: bool) -> Option<Rest> {
        let (reply, rest) = bounded(1);
        self.tell(Message::Turn(Turn {
            polls,
            waits,
            reply,
        }));
        rest.recv().ok()
    }

    /// Lets the process of the node die right after its next run.
    pub(crate) fn crash_after_run(&self) {
        self.tell(Message::CrashAfterRun);
    }
}

impl Shell {
    /// Works in turns until the node has stopped, or crashes.
    pub(super) fn work_in_turns(&mut self, receiver: &Receiver<Message>) -> Option<Stopped> {
        loop {
            let taken = match receiver.recv().ok()? {
                Message::Turn(turn) => self.turn(&turn, receiver),
                Message::CrashAfterRun => {
                    self.steps().crashes_after_run = true;
                    continue;
                }
                Message::Crash => return None,
                stop @ Message::Input(Input::Stop { .. }) => self.stop(stop, receiver),
                message => {
                    self.steps().backlog.push_back(message);
                    continue;
                }
            };
            if let ControlFlow::Break(end) = taken {
                return end;
            }
        }
    }

    fn steps(&mut self) -> &mut Steps {
        self.steps.get_or_insert_default()
    }

    fn turn(&mut self, turn: &Turn, receiver: &Receiver<Message>) -> ControlFlow<Option<Stopped>> {
        self.take(Message::Input(Input::Wake))?;
        if turn.polls {
            self.take(Message::Input(Input::PollNow))?;
        }
        while let Some(message) = self.next(turn.waits, receiver) {
            self.take_one(message, receiver)?;
        }
        self.show();
        let (now, wake) = (self.clock.now(), self.node.next_wake());
        let rest = Rest {
            wakes_in: wake.map(|wake| wake.saturating_sub(now)),
            began: self.steps().began,
            epoch: self.node.epoch(),
        };
        // Nobody waits for it if the test has ended.
        let _ = turn.reply.send(rest);
        ControlFlow::Continue(())
    }

    /// The next message of a turn. `None` at its end.
    fn next(&mut self, waits: bool, receiver: &Receiver<Message>) -> Option<Message> {
        loop {
            let now = self.clock.now();
            let wakes = self.node.next_wake().is_some_and(|wake| wake <= now);
            let steps = self.steps();
            let kept = steps.backlog.pop_front();
            if let Some(message) = kept.or_else(|| receiver.try_recv().ok()) {
                return Some(message);
            }
            if !steps.is_answered() {
                match receiver.recv_timeout(HANGS) {
                    Ok(message) => return Some(message),
                    Err(RecvTimeoutError::Timeout) => steps.hangs = true,
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
                continue;
            }
            if wakes {
                return Some(Message::Input(Input::Wake));
            }
            let goes_on = steps.began > steps.ended;
            return (waits && goes_on).then(|| receiver.recv().ok())?;
        }
    }

    /// Takes a message of a turn, or of a stop.
    fn take_one(
        &mut self,
        message: Message,
        receiver: &Receiver<Message>,
    ) -> ControlFlow<Option<Stopped>> {
        let is_end = matches!(message, Message::Input(Input::Finished { .. }));
        let steps = self.steps();
        steps.notes(&message);
        match message {
            Message::CrashAfterRun => steps.crashes_after_run = true,
            _ if is_end && steps.crashes_after_run => return ControlFlow::Break(None),
            stop @ Message::Input(Input::Stop { .. }) => return self.stop(stop, receiver),
            message => return self.take(message),
        }
        ControlFlow::Continue(())
    }

    /// Stops without turns. Where the node only waits for time to pass, it passes for this node.
    fn stop(
        &mut self,
        stop: Message,
        receiver: &Receiver<Message>,
    ) -> ControlFlow<Option<Stopped>> {
        self.take(stop)?;
        loop {
            let message = match self.next(true, receiver) {
                Some(message) => message,
                None => {
                    let (now, wake) = (self.clock.now(), self.node.next_wake());
                    let Some(wake) = wake else {
                        return ControlFlow::Break(None);
                    };
                    self.steps().ahead = wake.saturating_sub(now);
                    Message::Input(Input::Wake)
                }
            };
            match message {
                // A second one may shorten the grace.
                Message::Input(Input::Stop { .. }) => self.take(message)?,
                message => self.take_one(message, receiver)?,
            }
        }
    }
}
