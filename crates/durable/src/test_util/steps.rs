//! What a test holds in its hand.

use std::fmt;
use std::time::{Duration, SystemTime};

use tourbillon::ManualClock;

use super::drive::{Drive, DrivenNode, Order};
use crate::calls::{Alarm, CallError, Sent, StartError, sent};
use crate::durable::{Durable, DurableBuilder, QueueBuilder};
use crate::run::is_within_any;
use crate::store::{Store, StoreError};
use crate::sync::channel::{Sender, bounded, unbounded};
use crate::sync::{Arc, RunsOn, thread};

/// Moves the clocks of [`Durable`] timers, and lets their nodes work meanwhile.
///
/// Between its calls nothing runs, and no time passes. A call has ended when nothing is left to do
/// at the time that it has reached:
///
/// - Each timer that was due by then and that one of these nodes may run has run, and its end is in
///   the store. So have those that handlers have scheduled meanwhile, retries whose time has come,
///   and timers that transactions or SQL functions have scheduled.
/// - A handler that is a closure runs on the thread of its node, one after the other, in the order
///   of the due times. A future runs on its runtime, and the call waits for its end.
/// - What needs more time goes on with the next call: retries, a [pace](QueueBuilder::pace), the
///   takeover from a dead node, attempts during an outage. Timers of paused queues, of queues
///   without a handler here, and with a locked row wait.
///
/// On the way the clock stops at each due time, so no run is [late](crate::Due::lateness). Clones
/// drive the same nodes. When the last one is dropped, the timers stand still, and can be stopped.
///
/// # What it takes from production, and what not
///
/// The store, its transactions, the claims and the fences are those of production. The nodes poll
/// and beat by the local clock, which stands still while nothing is due: to advance by a year costs
/// as much as what is due within it. Dead letters are not deleted by their age. A backoff has the
/// same random part in each run of the test.
///
/// A handler must not wait for another handler, or for a later time: a closure would wait for
/// itself. A call to the store that hangs for a second is left alone, and time goes on without it.
///
/// # Panics
///
/// Its calls panic within a handler: what they drive waits for that handler.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use tourbillon_durable::test_util::DurableSteps;
/// use tourbillon_durable::{Due, Durable, Ending, Memory, WallClock};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let day = Duration::from_secs(24 * 60 * 60);
/// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
/// let (timers, steps): (Durable, DurableSteps) = Durable::builder(store)
///     .handle("report", move |_: &Due<()>| Ending::Again(day))
///     .start_stepped()?;
/// timers.schedule("report", "daily", day, &()).wait()?;
/// steps.advance(365 * day).wait()?;
/// assert_eq!(timers.stats().succeeded, 365);
/// assert_eq!(steps.now().wait()?, UNIX_EPOCH + 365 * day);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DurableSteps {
    orders: Sender<Order>,
    alarm: Alarm,
    hand: ManualClock,
}

impl DurableSteps {
    fn start(store: Arc<dyn Store>) -> Result<Self, StartError> {
        let hand = ManualClock::new();
        let (orders, receiver) = unbounded::<Order>();
        let (told, is_good) = bounded(1);
        let moved = hand.clone();
        thread::spawn("steps", move || {
            let drive = match Drive::new(store, moved) {
                Ok(drive) => drive,
                // The starting thread waits for it.
                Err(error) => return drop(told.send(Err(error))),
            };
            drop(told.send(Ok(())));
            drive.work(&receiver);
        })
        .map_err(StartError::Spawn)?;
        let is_good = is_good.recv();
        is_good
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the thread has ended".to_owned())))
            .map_err(StartError::Store)?;
        Ok(DurableSteps {
            orders,
            alarm: Alarm::new(RunsOn::default()),
            hand,
        })
    }

    /// Sends an order. The thread carries them out in turn.
    fn order<R: Send + 'static>(
        &self,
        carry_out: impl FnOnce(&mut Drive) -> Result<R, StoreError> + Send + 'static,
    ) -> Sent<R> {
        assert!(
            !is_within_any(),
            "timers can't be driven from inside one of their handlers: let the test do it"
        );
        let (reply, answer) = Sent::value(&self.alarm);
        // The thread lives as long as this sender.
        drop(self.orders.send(Box::new(move |drive| {
            sent::send(reply, carry_out(drive).map_err(CallError::from));
        })));
        answer
    }

    /// Returns the time that the store's clock shows.
    ///
    /// # Errors
    ///
    /// As for [`advance`](Self::advance).
    pub fn now(&self) -> Sent<SystemTime> {
        self.order(|drive| Ok(drive.now().into()))
    }

    /// Lets this time pass, and stops wherever something is due. Zero only lets everything end that
    /// is due now. The time ends with the year 9999.
    ///
    /// # Errors
    ///
    /// The store's clock could not be moved, since the store can't be reached. What stands between a
    /// node and the store is no error: time passes, and the node tries again.
    ///
    /// # Panics
    ///
    /// Panics if it is called within a handler.
    ///
    /// # Blocking
    ///
    /// Never. The answer comes when all has ended: see the [type](Self). Handlers that are futures
    /// need their runtime, so a test whose only thread is that runtime awaits the answer.
    pub fn advance(&self, by: Duration) -> Sent<()> {
        self.order(move |drive| drive.advance(by, true))
    }

    /// Lets time pass until `to`. A time that has passed only lets everything end that is due now.
    ///
    /// # Errors
    ///
    /// As for [`advance`](Self::advance).
    ///
    /// # Panics
    ///
    /// Panics if it is called within a handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Memory, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let noon = UNIX_EPOCH + Duration::from_secs(12 * 60 * 60);
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let (timers, steps) = Durable::builder(store)
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start_stepped()?;
    /// timers.schedule("mail", "anna", noon, "anna@example.com").wait()?;
    /// steps.advance_to(noon).wait()?;
    /// assert!(timers.get("mail", "anna").wait()?.is_none()); // it has run
    /// # Ok(())
    /// # }
    /// ```
    pub fn advance_to(&self, to: SystemTime) -> Sent<()> {
        self.order(move |drive| drive.advance_to(to.into(), true))
    }

    /// Sets the store's clock to `to`, without a stop on the way, and lets everything end that is
    /// due then. So all that was due in between is late, as if no process had run meanwhile. A time
    /// that has passed sets the clock back, as a time server may do.
    ///
    /// # Errors
    ///
    /// As for [`advance`](Self::advance).
    ///
    /// # Panics
    ///
    /// Panics if it is called within a handler.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Late, Memory, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = Duration::from_secs(60 * 60);
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let (timers, steps) = Durable::builder(store)
    ///     .handle("offer", |_: &Due<u64>| ())
    ///     .late(Late::ExpireAfter(hour))
    ///     .start_stepped()?;
    /// timers.schedule("offer", "7", hour, &7).wait()?;
    /// steps.jump_to(UNIX_EPOCH + 3 * hour).wait()?; // nothing ran for three hours
    /// assert_eq!(timers.stats().expired, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn jump_to(&self, to: SystemTime) -> Sent<()> {
        self.order(move |drive| drive.jump_to(to.into(), true))
    }

    /// Ends the node of these timers as if its process had died: what it runs is never settled, and
    /// other nodes take over when its [lease](DurableBuilder::node_lease) is over. The calls of
    /// `timers` fail from now on.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Memory, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let handler = |due: &Due<String>| println!("to {}", due.payload());
    /// let node = Durable::builder(store.clone()).handle("mail", handler);
    /// let (timers, steps) = node.start_stepped()?;
    /// let hour = Duration::from_secs(60 * 60);
    /// timers.schedule("mail", "anna", hour, "anna@example.com").wait()?;
    /// steps.crash(&timers);
    ///
    /// let timers = Durable::builder(store).handle("mail", handler).start_beside(&steps)?;
    /// steps.advance(hour).wait()?;
    /// assert_eq!(timers.stats().succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn crash(&self, timers: &Durable) {
        timers.crash();
    }

    /// Lets the process of these timers die right after the next end of a handler: the effect has
    /// happened, and the store does not know that the run has ended. See [`crash`](Self::crash).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Memory, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (charge, charges) = std::sync::mpsc::channel();
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let handler = move |due: &Due<u64>| {
    ///     drop(charge.send((due.crashes(), due.token()))); // the effect
    /// };
    /// let (timers, steps) = Durable::builder(store.clone())
    ///     .handle("charge", handler.clone())
    ///     .start_stepped()?;
    /// timers.schedule("charge", "order:7", Duration::ZERO, &7).wait()?;
    /// steps.crash_after_run(&timers);
    /// steps.advance(Duration::ZERO).wait()?;
    ///
    /// let other = Durable::builder(store).handle("charge", handler).start_beside(&steps)?;
    /// steps.advance(Duration::from_secs(30)).wait()?; // its lease is over
    /// let (first, second) = (charges.try_recv()?, charges.try_recv()?);
    /// assert_eq!((first.0, second.0), (0, 1));
    /// assert_eq!(first.1, second.1); // the receiver can tell that it has it already
    /// # drop((timers, other));
    /// # Ok(())
    /// # }
    /// ```
    pub fn crash_after_run(&self, timers: &Durable) {
        if let Some((node, _)) = timers.node_and_queues() {
            node.crash_after_run();
        }
    }
}

impl fmt::Debug for DurableSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DurableSteps").finish_non_exhaustive()
    }
}

/// Starts in virtual time.
impl DurableBuilder {
    /// Starts like [`start`](Self::start), in virtual time: time passes only by the calls of the
    /// [`DurableSteps`]. Needs the feature `test-util`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start), and [`StartError::Store`] if no test can move the store's
    /// clock. `Memory` and `Sqlite` need a [`WallClock::manual`](crate::WallClock::manual).
    ///
    /// # Blocking
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Examples
    ///
    /// ```
    /// use tourbillon_durable::{Due, Durable, Memory};
    ///
    /// // By the system's clock, which no test can move.
    /// let refused = Durable::builder(Memory::new()).handle("mail", |_: &Due<u64>| ());
    /// assert!(refused.start_stepped().is_err());
    /// ```
    pub fn start_stepped(self) -> Result<(Durable, DurableSteps), StartError> {
        let mut plan = self.plan()?;
        let steps = DurableSteps::start(Arc::clone(&plan.store))?;
        plan.hand = Some(steps.hand.clone());
        let timers = steps.start_node(plan)?;
        Ok((timers, steps))
    }

    /// Starts another process of the same test, on the same store: it shares the virtual time of
    /// these steps. Needs the feature `test-util`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Blocking
    ///
    /// As for [`start`](Self::start).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Memory, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let (shop, steps) = Durable::builder(store.clone()).start_stepped()?; // it only schedules
    /// let worker = Durable::builder(store)
    ///     .handle("mail", |due: &Due<String>| println!("to {}", due.payload()))
    ///     .start_beside(&steps)?;
    /// let minute = Duration::from_secs(60);
    /// shop.schedule("mail", "anna", minute, "anna@example.com").wait()?;
    /// steps.advance(minute).wait()?;
    /// assert_eq!(worker.stats().succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_beside(self, steps: &DurableSteps) -> Result<Durable, StartError> {
        let mut plan = self.plan()?;
        plan.hand = Some(steps.hand.clone());
        steps.start_node(plan)
    }
}

impl DurableSteps {
    fn start_node(&self, mut plan: crate::run::Plan) -> Result<Durable, StartError> {
        // Old dead letters are looked for by the clock of the machine.
        plan.keep_dead_for = Duration::MAX;
        let lease = plan.node_lease;
        let timers = Durable::start(plan)?;
        if let Some((sender, queues)) = timers.node_and_queues() {
            let (joined, has_joined) = bounded(1);
            let join: Order = Box::new(move |drive| {
                drive.join(DrivenNode::new(sender, queues, lease));
                // The caller waits for it.
                let _ = joined.send(());
            });
            drop(self.orders.send(join));
            // The thread lives as long as the sender.
            let _ = has_joined.recv();
        }
        Ok(timers)
    }
}

/// Starts in virtual time.
impl QueueBuilder {
    /// Starts in virtual time: see [`DurableBuilder::start_stepped`].
    ///
    /// # Errors
    ///
    /// As for [`DurableBuilder::start_stepped`].
    ///
    /// # Blocking
    ///
    /// As for [`DurableBuilder::start`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use tourbillon_durable::{Due, Durable, Memory, QueueBuilder, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let builder: QueueBuilder = Durable::builder(store).handle("mail", |_: &Due<u64>| ());
    /// let (timers, steps) = builder.running(1).start_stepped()?;
    /// timers.schedule("mail", "7", Duration::ZERO, &7).wait()?;
    /// steps.advance(Duration::ZERO).wait()?;
    /// assert_eq!(timers.stats().succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_stepped(self) -> Result<(Durable, DurableSteps), StartError> {
        self.into_builder().start_stepped()
    }

    /// Starts another process of the same test: see [`DurableBuilder::start_beside`].
    ///
    /// # Errors
    ///
    /// As for [`DurableBuilder::start_beside`].
    ///
    /// # Blocking
    ///
    /// As for [`DurableBuilder::start`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::UNIX_EPOCH;
    /// # use tourbillon_durable::{Due, Durable, Memory, QueueBuilder, WallClock};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Memory::with_clock(WallClock::manual(UNIX_EPOCH));
    /// let node = |name| -> QueueBuilder {
    ///     Durable::builder(store.clone()).name(name).handle("mail", |_: &Due<u64>| ())
    /// };
    /// let (timers, steps) = node("shop 1").start_stepped()?;
    /// let other = node("shop 2").start_beside(&steps)?;
    /// assert_eq!(timers.nodes().wait()?.len(), 2);
    /// # drop(other);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_beside(self, steps: &DurableSteps) -> Result<Durable, StartError> {
        self.into_builder().start_beside(steps)
    }
}
