//! Threads around the steps, and their end. Nothing here decides anything: a ticker thread loops
//! over `ticker_step`, a worker thread over the executor's loop.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use super::{Ending, Engine, Face, Seat, Server, Shutdown, Step};
use crate::executor::Worker;
use crate::job::{contain, drop_each};
use crate::outlet::{Intake, outlet};
use crate::shard::{NoCalls, when_unlocked};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, bounded};
use crate::sync::{Arc, Mutex, park_for, thread};
use crate::tick::Time;

/// Nobody ever sends: a thread's end is its sender's drop, and the receiver sees the last one.
type Alive = Sender<Infallible>;

/// Who is told when threads have ended.
#[derive(Debug)]
pub(crate) struct Threads(Mutex<Option<Started>>);

#[derive(Debug)]
struct Started {
    tickers: Alive,
    workers: Alive,
    tickers_gone: Receiver<Infallible>,
    workers_gone: Receiver<Infallible>,
}

/// Makes a face's report; of nothing for everybody but the first who shuts down.
type MakeReport<F, R> = fn(Option<Ending<<F as Face>::Key, <F as Face>::Payload>>) -> R;

impl Threads {
    pub(super) fn new() -> Self {
        Threads(Mutex::new(None))
    }
}

impl<F: Face> Engine<F> {
    /// Starts the tickers and the first workers. After an error nothing runs.
    pub(crate) fn start(server: &Arc<Server<F>>, seats: Vec<Seat>) -> io::Result<()> {
        let engine = server.engine();
        let (tickers, tickers_gone) = bounded(0);
        let (workers, workers_gone) = bounded(0);
        *engine.threads.0.lock() = Some(Started {
            tickers,
            workers,
            tickers_gone,
            workers_gone,
        });
        let started = seats
            .into_iter()
            .try_for_each(|seat| Self::start_ticker(server, seat))
            .and_then(|()| (0..engine.workers()).try_for_each(|_| Self::start_worker(server)));
        if started.is_err() {
            engine.stop();
        }
        started
    }

    fn start_ticker(server: &Arc<Server<F>>, mut seat: Seat) -> io::Result<()> {
        let alive = server.engine().alive(|started| &started.tickers);
        let server = Arc::clone(server);
        thread::Builder::new()
            .name(format!("tb-tick-{}", seat.shard()))
            .spawn(move || {
                let engine = server.engine();
                supervise(&engine.faults().ticker, || {
                    Self::tick(&server, &mut seat);
                });
                drop(alive);
            })
            .map(drop)
    }

    fn tick(server: &Arc<Server<F>>, seat: &mut Seat) {
        let engine = server.engine();
        loop {
            let step = engine.ticker_step(server, seat, &mut |count| {
                for _ in 0..count {
                    if Self::start_worker(server).is_err() {
                        // Relaxed: a count.
                        engine.faults().spawn.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                }
            });
            match step {
                Step::Worked => {}
                Step::SleepUntil(at) => engine.clock().park_until(seat.parker(), Some(at)),
                Step::Stop => break,
            }
        }
    }

    /// With inline execution the tickers have taken all seats, and this starts nothing.
    fn start_worker(server: &Arc<Server<F>>) -> io::Result<()> {
        let engine = server.engine();
        // First a sign of life, then a seat: once the threads are being joined nobody starts.
        let Some(alive) = engine.alive(|started| &started.workers) else {
            return Ok(());
        };
        let Some(worker) = engine.pool().seat() else {
            return Ok(());
        };
        let server = Arc::clone(server);
        thread::Builder::new()
            .name(format!("tb-work-{}", worker.number()))
            .spawn(move || {
                Worker::run(worker, server.as_ref(), server.engine().clock());
                drop(server);
                drop(alive);
            })
            .map(drop)
    }

    fn alive(&self, which: impl Fn(&Started) -> &Alive) -> Option<Alive> {
        self.threads
            .0
            .lock()
            .as_ref()
            .map(|started| which(started).clone())
    }

    /// Steps 2 to 6 of `closing.rs`, for the caller who began, and the end of the threads.
    pub(crate) fn end(
        &self,
        mode: Shutdown,
        begun: Time,
        wait: &mut dyn FnMut(Time),
    ) -> Ending<F::Key, F::Payload> {
        let ending = self.wind_down(mode, begun, wait);
        self.join(ending.still_running == 0);
        self.closing().finish();
        ending
    }

    /// The whole shutdown, for whichever face. From inside a task the report comes later.
    pub(crate) fn shut_down<R: Send + 'static>(
        server: &Arc<Server<F>>,
        mode: Shutdown,
        report: MakeReport<F, R>,
    ) -> Result<R, Intake<R>> {
        let engine = server.engine();
        // Before anybody can see that it is closing.
        let begun = engine.now();
        // From under a lock this panics before anything has changed; unless the thread panics
        // already, and then the end comes later.
        let later = NoCalls::begin().is_inert();
        if !engine.closing().begin() {
            // Who began may not have come to it yet, and nothing is accepted after this call.
            engine.close_gates();
            return Ok(report(None));
        }
        if !engine.is_inside() && !later {
            return Ok(report(Some(engine.wait_and_end(mode, begun))));
        }
        Err(Self::end_elsewhere(server, mode, begun, report))
    }

    /// The same without waiting for it.
    pub(crate) fn begin_shutdown<R: Send + 'static>(
        server: &Arc<Server<F>>,
        mode: Shutdown,
        report: MakeReport<F, R>,
    ) -> Intake<R> {
        let engine = server.engine();
        let begun = engine.now();
        // As above.
        drop(NoCalls::begin());
        if engine.closing().begin() {
            return Self::end_elsewhere(server, mode, begun, report);
        }
        engine.close_gates();
        let (send, receive) = outlet(1);
        // There is room for one, and somebody to receive it.
        let _ = send.send(report(None));
        receive
    }

    /// The end, waited for by a thread of its own.
    fn end_elsewhere<R: Send + 'static>(
        server: &Arc<Server<F>>,
        mode: Shutdown,
        begun: Time,
        report: MakeReport<F, R>,
    ) -> Intake<R> {
        // Whoever called refuses what is armed from now on.
        server.engine().close_gates();
        let (send, receive) = outlet(1);
        let send = Arc::new(send);
        let (for_thread, to) = (Arc::clone(server), Arc::clone(&send));
        let thread = thread::Builder::new()
            .name("tb-shutdown".to_owned())
            .spawn(move || {
                // Nobody may have kept the ticket.
                let _ = to.send(report(Some(for_thread.engine().wait_and_end(mode, begun))));
            });
        if thread.is_err() {
            // Without a thread nothing can be waited for, not even threads, of which this may be
            // one: what has not started comes back at once.
            let server = Arc::clone(server);
            when_unlocked(move || {
                let engine = server.engine();
                let ending = engine.wind_down(Shutdown::HandBack, begun, &mut |_| ());
                *engine.threads.0.lock() = None;
                engine.closing().finish();
                let _ = send.send(report(Some(ending)));
            });
        }
        receive
    }

    fn wait_and_end(&self, mode: Shutdown, begun: Time) -> Ending<F::Key, F::Payload> {
        self.end(mode, begun, &mut |limit| {
            self.wait_until_quiet(limit);
        })
    }

    /// Waits for the threads that have nothing left to do; not for those in user code that outlasted
    /// the limit, which end with it. So this needs no limit of its own: a thread that is in no user
    /// code when everything is settled will be in none again (USER-3), and ends at its next look.
    fn join(&self, workers_too: bool) {
        let Some(started) = self.threads.0.lock().take() else {
            return;
        };
        drop((started.tickers, started.workers));
        // Disconnected is the only thing that can be received.
        let tickers_too = if self.is_inline() {
            workers_too
        } else {
            self.outside().hand_overs == 0
        };
        if tickers_too {
            let _ = started.tickers_gone.recv();
        }
        if workers_too {
            let _ = started.workers_gone.recv();
        }
    }

    /// For the drop of an owner, which may happen anywhere: also in user code under the lock of
    /// another engine, where no other lock can be taken.
    pub(crate) fn abandon_anywhere(this: &Arc<Self>) {
        let engine = Arc::clone(this);
        when_unlocked(move || engine.abandon());
    }

    /// Closes without waiting for anything: what has not started counts as cancelled.
    pub(crate) fn abandon(&self) {
        if !self.closing().begin() {
            return;
        }
        self.close_gates();
        let taken = self.take_pending(false);
        self.stop();
        *self.threads.0.lock() = None;
        self.closing().finish();
        // Payloads are user code's: dropped here, with no lock held.
        drop_each(taken.into_iter().map(|(key, _, payload)| (key, payload)));
    }
}

/// Runs `body` until it returns. A panic is counted, told on stderr by the panic hook, and the body
/// starts again after a pause: a broken ticker is never silent and never gone.
fn supervise(panics: &AtomicU64, mut body: impl FnMut()) {
    while contain(&mut body).is_err() {
        // Relaxed: a count.
        panics.fetch_add(1, Ordering::Relaxed);
        // Lest a panic that comes again at once burns a core.
        park_for(&crate::sync::Parker::new(), Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c138_a_ticker_that_panics_is_counted_and_goes_on() {
        let panics = AtomicU64::new(0);
        let mut rounds = 0;
        supervise(&panics, || {
            rounds += 1;
            assert!(rounds > 2, "round {rounds}");
        });
        assert_eq!(rounds, 3);
        // Relaxed: one thread.
        assert_eq!(panics.load(Ordering::Relaxed), 2);
    }
}
