//! The threads on which a [`BlockingStore`](crate::BlockingStore) makes awaited calls.
//!
//! A thread starts when a call needs it, and ends when it was idle for a while.
//!
//! - **THREADS-1** While a thread idles, or another one may start, no call waits in a lane that has
//!   room. Queuing such a call wakes an idle thread, or starts one. A thread looks at the queues
//!   after each call, and before it idles. The future of the call is woken after that look, so that
//!   the next call of its task finds the thread idle.
//! - **THREADS-2** A call leaves the queue in one of two ways, both under the lock. A thread takes
//!   it and makes it, or the drop of its future removes it and it is not made.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tourbillon::{Clock, ClockParker, ClockUnparker};

use super::call_answer::{AnswerReceiver, call_answer};
use super::{Destination, StoreError};
use crate::sync::{Arc, Mutex, Origin, catch_panic};

/// How long a thread idles before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Makes a call. The drop of the returned value hands the answer over.
type ThreadCall = Box<dyn FnOnce() -> Box<dyn Send> + Send>;

/// The calls that share a bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Lane {
    To(Destination),
    /// Calls that list names. They take long, and nobody needs them urgently.
    Lists,
}

/// The number of calls that may run at one time.
#[derive(Clone, Copy)]
pub(crate) struct CallBounds {
    /// In all lanes together. This is also the greatest number of threads.
    pub(crate) all: usize,
    pub(crate) of_one: usize,
    pub(crate) lists: usize,
}

/// The calls that wait, and the threads that make them.
pub(crate) struct CallThreads {
    bounds: CallBounds,
    state: Mutex<ThreadsState>,
    /// Measures how long a thread idles.
    clock: Clock,
    /// A forked copy of the process has none of the threads, and the lock may stay locked there.
    origin: Origin,
}

#[derive(Default)]
struct ThreadsState {
    /// The lanes that have calls.
    lanes: BTreeMap<Lane, LaneState>,
    next: u64,
    /// The number of threads that have not ended, with those that are about to begin.
    threads: usize,
    idle: Vec<(u64, ClockUnparker)>,
    closed: bool,
}

#[derive(Default)]
struct LaneState {
    /// The calls that wait, in the order in which they came (THREADS-1, THREADS-2).
    waiting: BTreeMap<u64, ThreadCall>,
    running: usize,
}

impl ThreadsState {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes the first call whose lane has room.
    fn take(&mut self, bounds: CallBounds) -> Option<(Lane, ThreadCall)> {
        let open = self.lanes.iter_mut();
        let open = open.filter(|(lane, state)| state.running < bounds.of(**lane));
        let first = open.filter_map(|(lane, state)| {
            let (number, _) = state.waiting.first_key_value()?;
            Some((*number, *lane, state))
        });
        let (_, lane, state) = first.min_by_key(|(number, ..)| *number)?;
        let (_, call) = state.waiting.pop_first()?;
        state.running += 1;
        Some((lane, call))
    }

    /// Notes that a call of a lane has ended.
    fn ended(&mut self, lane: Lane) {
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.running -= 1;
        }
        self.sweep(lane);
    }

    /// Takes a call that waits.
    fn remove(&mut self, lane: Lane, number: u64) -> Option<ThreadCall> {
        let call = self.lanes.get_mut(&lane)?.waiting.remove(&number);
        self.sweep(lane);
        call
    }

    /// Forgets a lane without calls.
    fn sweep(&mut self, lane: Lane) {
        let state = self.lanes.get(&lane);
        if state.is_some_and(|state| state.waiting.is_empty() && state.running == 0) {
            self.lanes.remove(&lane);
        }
    }
}

impl CallBounds {
    fn of(self, lane: Lane) -> usize {
        match lane {
            Lane::To(_) => self.of_one,
            Lane::Lists => self.lists,
        }
    }
}

impl CallThreads {
    pub(crate) fn new(clock: Clock, bounds: CallBounds) -> Self {
        CallThreads {
            bounds,
            state: Mutex::new(ThreadsState::default()),
            clock,
            origin: Origin::here(),
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Hands a call over to a thread. `start` must start a thread that [serves](Self::serve), or
    /// return false if the system refuses it. No lock is held while `start` runs.
    ///
    /// A call that panics makes the future panic.
    pub(crate) fn hand_over<T: Send + 'static>(
        self: &Arc<Self>,
        lane: Lane,
        call: impl FnOnce() -> T + Send + 'static,
        start: impl FnOnce(Arc<Self>) -> bool,
    ) -> HandedOver<T> {
        let (mut sender, receiver) = call_answer();
        let run = move || -> Box<dyn Send> {
            sender.send(catch_panic(call));
            Box::new(sender)
        };
        HandedOver {
            receiver,
            _queued: CallPlace {
                number: self.put(lane, Box::new(run), start),
                lane,
                threads: Arc::clone(self),
            },
        }
    }

    /// Queues a call, and wakes or starts a thread for it. Returns the number of the call.
    fn put(
        self: &Arc<Self>,
        lane: Lane,
        call: ThreadCall,
        start: impl FnOnce(Arc<Self>) -> bool,
    ) -> u64 {
        let mut state = self.state.lock();
        let number = state.number();
        let own = state.lanes.entry(lane).or_default();
        own.waiting.insert(number, call);
        if own.running >= self.bounds.of(lane) {
            return number;
        }
        if let Some((_, idle)) = state.idle.pop() {
            drop(state);
            idle.unpark();
        } else if state.threads < self.bounds.all {
            state.threads += 1;
            drop(state);
            if !start(Arc::clone(self)) {
                self.ends_unstarted();
            }
        }
        number
    }

    /// Notes that a thread could not be started. If there is none at all, the queued calls fail.
    fn ends_unstarted(&self) {
        let left = {
            let mut state = self.state.lock();
            state.threads -= 1;
            match state.threads {
                0 => std::mem::take(&mut state.lanes),
                _ => BTreeMap::new(),
            }
        };
        // Without the lock: the drop of the calls wakes their futures.
        drop(left);
    }

    /// Makes calls on this thread until there was none for a while, or the store is gone.
    pub(crate) fn serve(&self) {
        let parker = ClockParker::new(&self.clock);
        let mut has_idled = false;
        // The answer of the last call. Its drop may run code of a caller.
        let mut answer = None;
        let hand_over = |answer: Option<Box<dyn Send>>| catch_panic(|| drop(answer));
        let mut state = self.state.lock();
        loop {
            if let Some((lane, call)) = state.take(self.bounds) {
                drop(state);
                let _ = hand_over(answer.take());
                answer = catch_panic(call).ok();
                state = self.state.lock();
                state.ended(lane);
                has_idled = false;
                continue;
            }
            if has_idled || state.closed {
                break;
            }
            let number = state.number();
            state.idle.push((number, parker.unparker()));
            drop(state);
            let _ = hand_over(answer.take());
            let until = self.clock.now() + IDLE;
            parker.park_until(until);
            state = self.state.lock();
            // A thread that was woken by a call is not in the list any more.
            let place = state.idle.iter().position(|(of, _)| *of == number);
            if let Some(at) = place {
                state.idle.swap_remove(at);
                has_idled = self.clock.now() >= until;
            }
        }
        state.threads -= 1;
        drop(state);
        let _ = hand_over(answer);
    }

    /// Ends the idle threads, and the others when no call is left for them.
    pub(crate) fn close(&self) {
        if self.is_forked() {
            return;
        }
        let idle = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        for (_, thread) in idle {
            thread.unpark();
        }
    }
}

/// The future of a call that was handed over. If it is dropped before a thread has taken the call,
/// the call is not made.
pub(crate) struct HandedOver<T> {
    /// Dropped before the queued call, whose drop would wake the task.
    receiver: AnswerReceiver<Result<T, String>>,
    _queued: CallPlace,
}

/// The place of a call in its queue. The drop removes the call, unless a thread has taken it.
struct CallPlace {
    threads: Arc<CallThreads>,
    lane: Lane,
    number: u64,
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        if !self.threads.is_forked() {
            let call = self.threads.state.lock().remove(self.lane, self.number);
            // Without the lock: the call owns the store, and values of a caller.
            drop(call);
        }
    }
}

impl<T> Future for HandedOver<T> {
    type Output = Result<T, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.receiver.poll(context).map(|answer| match answer {
            Some(Ok(answer)) => Ok(answer),
            // The hook has reported it where it happened.
            Some(Err(panic)) => std::panic::resume_unwind(Box::new(panic)),
            None if self.receiver.is_forked() => Err(StoreError::Forked),
            None => {
                let what = "the system refuses a thread for the call";
                Err(StoreError::Unavailable(what.to_owned()))
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::{Receiver, channel};
    use std::task::Waker;

    use tourbillon::ManualClock;

    use super::*;

    const BOUNDS: CallBounds = CallBounds {
        all: 4,
        of_one: 3,
        lists: 1,
    };

    fn start(threads: Arc<CallThreads>) -> bool {
        std::thread::spawn(move || threads.serve());
        true
    }

    fn count(threads: &CallThreads) -> usize {
        threads.state.lock().threads
    }

    fn running(threads: &CallThreads) -> usize {
        let state = threads.state.lock();
        state.lanes.values().map(|lane| lane.running).sum()
    }

    fn waiting(threads: &CallThreads) -> usize {
        let state = threads.state.lock();
        state.lanes.values().map(|lane| lane.waiting.len()).sum()
    }

    fn until(what: &str, holds: impl Fn() -> bool) {
        for _ in 0..60_000 {
            if holds() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("{what}: not in a minute");
    }

    /// Hands over a call that ends when the other end of this channel is dropped.
    fn hang(threads: &Arc<CallThreads>, to: u64, gate: Receiver<()>) -> HandedOver<()> {
        let call = move || {
            let _ = gate.recv();
        };
        threads.hand_over(Lane::To(Destination::new(to)), call, start)
    }

    #[test]
    fn one_destination_leaves_a_thread_to_the_others() {
        let hand = ManualClock::new();
        let threads = Arc::new(CallThreads::new(Clock::manual(&hand), BOUNDS));
        let (gates, calls): (Vec<_>, Vec<_>) = (0..5)
            .map(|_| {
                let (gate, end) = channel();
                (gate, hang(&threads, 0, end))
            })
            .unzip();
        until("three run", || running(&threads) == 3);
        let ran = Arc::new(AtomicUsize::new(0));
        let other = |number: usize| {
            let ran = Arc::clone(&ran);
            threads.hand_over(
                Lane::To(Destination::new(1)),
                move || ran.fetch_add(number, SeqCst),
                start,
            )
        };
        let answer = other(1);
        until("it has run", || ran.load(SeqCst) == 1);
        drop(answer);
        assert_eq!(waiting(&threads), 2);
        // Queued calls whose futures are dropped are not made.
        drop(calls);
        assert_eq!(waiting(&threads), 0);
        drop(gates);
        until("all threads idle", || {
            let state = threads.state.lock();
            state.idle.len() == state.threads
        });
        // Idle threads end after a while.
        until("they end", || {
            hand.advance(IDLE);
            count(&threads) == 0
        });
        let _answer = other(2);
        until("another one starts", || ran.load(SeqCst) == 3);
        threads.close();
        until("it ends with the store", || count(&threads) == 0);
    }

    #[test]
    fn calls_that_follow_each_other_have_one_thread() {
        let clock = Clock::manual(&ManualClock::new());
        let threads = Arc::new(CallThreads::new(clock.clone(), BOUNDS));
        for number in 0..1_000 {
            let answer = threads.hand_over(Lane::Lists, move || number, start);
            assert_eq!(crate::store::block_on(&clock, 0, answer), Ok(number));
        }
        assert_eq!(count(&threads), 1);
        threads.close();
    }

    /// Counts how often it wakes somebody.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn a_future_that_is_dropped_does_not_wake_its_task() {
        let clock = Clock::manual(&ManualClock::new());
        let threads = Arc::new(CallThreads::new(clock, BOUNDS));
        let wakes = Arc::new(Wakes::default());
        // Its thread never begins.
        let mut handed = threads.hand_over(Lane::Lists, || 7, |_| true);
        let waker = Waker::from(Arc::clone(&wakes));
        let polled = Pin::new(&mut handed).poll(&mut Context::from_waker(&waker));
        assert_eq!(polled, Poll::Pending);
        drop(handed);
        assert_eq!((waiting(&threads), wakes.0.load(SeqCst)), (0, 0));
    }

    #[test]
    fn without_a_thread_a_call_fails() {
        let clock = Clock::manual(&ManualClock::new());
        let threads = Arc::new(CallThreads::new(clock, BOUNDS));
        let mut refused = threads.hand_over(Lane::Lists, || 7, |_| false);
        let polled = Pin::new(&mut refused).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(
            polled,
            Poll::Ready(Err(StoreError::Unavailable(_)))
        ));
        assert_eq!(count(&threads), 0);
    }
}
