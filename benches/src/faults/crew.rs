//! The holders of a round, as who conducts it sees them.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::clock::{Moment, now};
use super::holder::{self, Call, HOLDER, How, Order, Word};
use crate::machine;

/// What comes from a holder.
#[derive(Clone, Debug)]
pub(crate) enum Heard {
    Word(Word),
    /// It has ended; the reason, if that is an error.
    Gone(Option<String>),
}

/// One grant, as the holder told it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) token: u64,
    pub(crate) owner: String,
    pub(crate) granted: Moment,
    pub(crate) ended: Option<(Moment, How)>,
}

enum Body {
    Process {
        child: Child,
        orders: Option<ChildStdin>,
    },
    Thread(Sender<Call>),
}

pub(crate) struct Holder {
    pub(crate) name: String,
    body: Body,
    ears: Option<JoinHandle<()>>,
    beliefs: PathBuf,
    pub(crate) grants: Vec<Told>,
    pub(crate) rests: bool,
    pub(crate) gone: bool,
    /// When it was killed, if it was.
    pub(crate) killed: Option<Moment>,
}

impl Holder {
    pub(crate) fn process(
        number: usize,
        order: &Order,
        heard: Sender<(usize, Heard)>,
    ) -> io::Result<Self> {
        let text = serde_json::to_string(order)?;
        let mut child = Command::new(std::env::current_exe()?)
            .args([HOLDER, &text])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let words = child.stdout.take().map(BufReader::new);
        let ears = thread::spawn(move || {
            for line in words.into_iter().flat_map(BufReader::lines) {
                let word = line.ok().and_then(|line| serde_json::from_str(&line).ok());
                let Some(word) = word else { break };
                let _ = heard.send((number, Heard::Word(word)));
            }
            let _ = heard.send((number, Heard::Gone(None)));
        });
        let name = format!("process {}", child.id());
        Ok(Holder::new(
            name,
            Body::Process { child, orders },
            ears,
            order,
        ))
    }

    pub(crate) fn thread(number: usize, order: &Order, heard: Sender<(usize, Heard)>) -> Self {
        let (tell, told) = channel();
        let own = order.clone();
        let ears = thread::spawn(move || {
            let say = |word| {
                let _ = heard.send((number, Heard::Word(word)));
            };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                holder::hold(&own, &told, &say)
            }));
            let error = match ended {
                Ok(ended) => ended.err().map(|error| error.to_string()),
                Err(_) => Some("it panicked".to_owned()),
            };
            let _ = heard.send((number, Heard::Gone(error)));
        });
        Holder::new(format!("thread {number}"), Body::Thread(tell), ears, order)
    }

    fn new(name: String, body: Body, ears: JoinHandle<()>, order: &Order) -> Self {
        Holder {
            name,
            body,
            ears: Some(ears),
            beliefs: order.beliefs.clone(),
            grants: Vec::new(),
            rests: false,
            gone: false,
            killed: None,
        }
    }

    pub(crate) fn is_process(&self) -> bool {
        matches!(self.body, Body::Process { .. })
    }

    /// By its own words.
    pub(crate) fn holds(&self) -> bool {
        let last = self.grants.last();
        !self.gone && last.is_some_and(|grant| grant.ended.is_none())
    }

    pub(crate) fn tell(&mut self, call: Call) {
        // Who has ended is not told, and has said so.
        match &mut self.body {
            Body::Process { orders, .. } => match call {
                Call::Rest => {
                    let _ = orders.as_mut().map(|orders| orders.write_all(b"rest\n"));
                }
                Call::Leave => *orders = None,
            },
            Body::Thread(orders) => {
                let _ = orders.send(call);
            }
        }
    }

    pub(crate) fn stop(&self, stop: bool) {
        if let Body::Process { child, .. } = &self.body {
            machine::pause(child, stop);
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Body::Process { child, .. } = &mut self.body {
            let _ = child.kill();
            let _ = child.wait();
            self.killed = Some(now());
        }
    }

    /// Waits for the end of one that is gone. What went wrong, if it was not killed.
    pub(crate) fn bury(&mut self) -> Option<String> {
        if let Some(ears) = self.ears.take() {
            let _ = ears.join();
        }
        let Body::Process { child, .. } = &mut self.body else {
            return None;
        };
        match child.wait() {
            Ok(status) if status.success() || self.killed.is_some() => None,
            Ok(status) => Some(format!("it ended with {status}")),
            Err(error) => Some(error.to_string()),
        }
    }

    pub(crate) fn beliefs(&self) -> Vec<Option<(Moment, Moment)>> {
        holder::beliefs(&self.beliefs)
    }
}

/// Nothing outlives a round, however that ends. A thread that hangs can't be ended, and is not
/// waited for.
impl Drop for Holder {
    fn drop(&mut self) {
        self.tell(Call::Leave);
        if let Body::Process { child, .. } = &mut self.body {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_file(&self.beliefs);
    }
}

/// The next thing that is heard, if something is before that moment.
pub(crate) fn hear(heard: &Receiver<(usize, Heard)>, until: Moment) -> Option<(usize, Heard)> {
    let left = Duration::from_nanos(until.saturating_sub(now()));
    heard.recv_timeout(left).ok()
}
