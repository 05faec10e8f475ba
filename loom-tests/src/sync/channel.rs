//! A stand-in for crossbeam's bounded channel: a mutex and a condition variable. Its capacity is at
//! least 1.

use std::collections::VecDeque;

use super::Arc;

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    senders: usize,
    receivers: usize,
}

#[derive(Debug)]
struct Channel<T> {
    capacity: usize,
    state: super::Mutex<State<T>>,
    /// Notified of each change. Models have few threads, so waking all of them is cheap enough.
    changed: loom::sync::Condvar,
}

impl<T> Channel<T> {
    fn wait<'a>(&self, state: super::MutexGuard<'a, State<T>>) -> super::MutexGuard<'a, State<T>> {
        self.changed.wait(state).unwrap()
    }
}

#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Channel<T>>);

#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Channel<T>>);

/// The error of a send without receivers, with the item.
#[derive(Debug)]
pub(crate) struct SendError<T>(pub(crate) T);

/// The error of a receive: all senders are gone, and the channel is empty.
#[derive(Debug)]
pub(crate) struct RecvError;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TryRecvError {
    Empty,
    Disconnected,
}

pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "the stand-in has no rendezvous");
    let channel = Arc::new(Channel {
        capacity,
        state: super::Mutex::new(State {
            items: VecDeque::new(),
            senders: 1,
            receivers: 1,
        }),
        changed: loom::sync::Condvar::new(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, item: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        while state.receivers > 0 && state.items.len() == self.0.capacity {
            state = self.0.wait(state);
        }
        if state.receivers == 0 {
            return Err(SendError(item));
        }
        state.items.push_back(item);
        self.0.changed.notify_all();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                self.0.changed.notify_all();
                return Ok(item);
            }
            if state.senders == 0 {
                return Err(RecvError);
            }
            state = self.0.wait(state);
        }
    }

    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        if let Some(item) = state.items.pop_front() {
            self.0.changed.notify_all();
            return Ok(item);
        }
        Err(if state.senders == 0 {
            TryRecvError::Disconnected
        } else {
            TryRecvError::Empty
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.0.state.lock().items.len()
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().receivers += 1;
        Receiver(Arc::clone(&self.0))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.state.lock().receivers -= 1;
        self.0.changed.notify_all();
    }
}
