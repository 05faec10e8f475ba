//! The thread for all that reads, and for rare writes, so that a slow list delays no call that
//! schedules.

use std::fmt;
use std::io;

use super::store_handle::{ReconnectingConnection, StoreHandle};
use crate::calls::{Alarm, CallError, ReplySender, Sent, sent};
use crate::store::{Connection, StoreError};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::channel::{Sender, unbounded};
use crate::sync::{Arc, thread};

/// The number of reads that may wait.
const MOST_WAITING: usize = 4_096;

/// A read, with the way to its caller.
type Read = Box<dyn FnOnce(&mut ReconnectingConnection) + Send>;

enum ReadMessage {
    Read(Read),
    Close,
}

/// The thread that reads.
pub(crate) struct Reader {
    sender: Sender<ReadMessage>,
    waiting: Arc<AtomicUsize>,
    give_up: Arc<AtomicBool>,
    alarm: Alarm,
}

impl Reader {
    /// Starts the thread, which keeps `alive`.
    pub(crate) fn start(
        store_handle: &Arc<StoreHandle>,
        alarm: &Alarm,
        alive: Sender<()>,
    ) -> io::Result<Self> {
        let (sender, receiver) = unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let give_up = Arc::new(AtomicBool::new(false));
        let mut connection = ReconnectingConnection::reading(store_handle);
        let (left, gives_up) = (Arc::clone(&waiting), Arc::clone(&give_up));
        thread::spawn("read", move || {
            // A read that is dropped answers that the timers are stopped: one that came after the
            // close, and all that wait when they are given up.
            while let Ok(ReadMessage::Read(read)) = receiver.recv() {
                // Relaxed, twice: the number need not be exact, and a thread that sees the mark
                // late makes one call more.
                let before = left.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(before > 0, "a read is counted before it is sent");
                if gives_up.load(Ordering::Relaxed) {
                    break;
                }
                read(&mut connection);
            }
            drop(receiver);
            drop(alive);
        })?;
        Ok(Reader {
            sender,
            waiting,
            give_up,
            alarm: alarm.clone(),
        })
    }

    /// Sends a read. It never blocks.
    pub(crate) fn send<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut dyn Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Sent<T> {
        // Relaxed, twice: the number is a bound on memory, and need not be exact.
        if self.waiting.load(Ordering::Relaxed) >= MOST_WAITING {
            return Sent::known(Err(CallError::Unavailable(format!(
                "{MOST_WAITING} reads wait for the store already"
            ))));
        }
        // Relaxed: see above.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let (reply, sent) = Sent::value(&self.alarm);
        let reply = Replying(Some(reply));
        let read: Read =
            Box::new(move |connection| reply.send(connection.call(read).map_err(CallError::from)));
        // If the thread has ended, the drop of the read answers.
        drop(self.sender.send(ReadMessage::Read(read)));
        sent
    }

    /// Ends the thread when the reads that wait are done.
    pub(crate) fn close(&self) {
        drop(self.sender.send(ReadMessage::Close));
    }

    /// Ends the thread without the reads that wait.
    pub(crate) fn give_up(&self) {
        // Relaxed: the message that follows orders it.
        self.give_up.store(true, Ordering::Relaxed);
        self.close();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: the number is only shown.
        let waiting = self.waiting.load(Ordering::Relaxed);
        f.debug_struct("Reader").field("waiting", &waiting).finish()
    }
}

/// Answers that the timers are stopped, if it is dropped without an answer.
struct Replying<T>(Option<ReplySender<T>>);

impl<T> Replying<T> {
    fn send(mut self, result: Result<T, CallError>) {
        self.send_once(result);
    }

    fn send_once(&mut self, result: Result<T, CallError>) {
        if let Some(reply) = self.0.take() {
            sent::send(reply, result);
        }
    }
}

impl<T> Drop for Replying<T> {
    fn drop(&mut self) {
        self.send_once(Err(CallError::Stopped));
    }
}
