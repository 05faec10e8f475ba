//! Holders that are threads, on the embedded store. A holder is killed by cutting its connection to
//! the store. From then on it renews nothing and releases nothing. It can still be asked whether it
//! holds the lock.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tourbillon::Clock;
use tourbillon_leases::{LeaseStore, MemoryStore};

use crate::contest::{Contestant, Message, Place};
use crate::holder::{self, Order, Said, Setting};

/// The lock for which they compete.
const LOCK: &str = "lock";

pub(crate) struct Threads {
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) lease: Duration,
    pub(crate) careless: bool,
}

impl Threads {
    pub(crate) fn new(clock: &Clock, lease: Duration, careless: bool) -> Self {
        Threads {
            clock: clock.clone(),
            store: Arc::new(MemoryStore::with_clock(clock.clone())),
            lease,
            careless,
        }
    }
}

impl Place for Threads {
    fn start(
        &self,
        number: usize,
        name: &str,
        messages: &Sender<Message>,
    ) -> io::Result<Box<dyn Contestant>> {
        let setting = Setting {
            name: name.to_owned(),
            lock: LOCK.to_owned(),
            lease: self.lease,
            clock: self.clock.clone(),
            store: Arc::clone(&self.store),
            careless: self.careless,
        };
        let (orders, ordered) = channel();
        let messages = messages.clone();
        let run = move || {
            let mut say = |said: Said| {
                // The receiver is gone, so this error can't be reported either.
                let _ = messages.send(Message { number, said });
            };
            holder::run(&setting, &ordered, &mut say);
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Box::new(Thread {
            orders,
            thread: Some(thread),
        }))
    }

    fn death(&self) -> &'static str {
        if self.careless {
            "is cut off from the store, and does not care"
        } else {
            "is killed: cut off from the store, and gives nothing back"
        }
    }
}

struct Thread {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Contestant for Thread {
    fn order(&mut self, order: Order) {
        // A holder that has ended reports that itself.
        let _ = self.orders.send(order);
    }

    fn kill(&mut self) -> io::Result<()> {
        self.order(Order::Cut);
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other("a holder has panicked")),
            _ => Ok(()),
        }
    }
}
