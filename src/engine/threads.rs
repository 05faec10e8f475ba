//! The tickers of an engine on the threads that serve it, and the end of the engine. Nothing is
//! decided here: a ticker takes the steps of `ticker_step`.

use super::{
    Asked, Attended, Concluding, Ending, Engine, Frontend, FrontendTypes, Server, Shutdown,
    TickerState,
};
use crate::bounded_channel::{BoundedReceiver, bounded_channel};
use crate::clock::Clock;
use crate::job::{catch_panic, drop_each};
use crate::runtime::{Alive, Life, NotServed, ServedEngine, Threads};
use crate::shard::{ReentrancyGuard, when_unlocked};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, OnceLock, thread};
use crate::tick::Time;
use crate::tickers::{TickerStep, Ticks};

/// The threads that serve an engine, and the life of its tickers on them.
#[derive(Debug)]
pub(crate) struct EngineThreads {
    /// Present from the start on.
    threads: OnceLock<Arc<Threads>>,
    tickers: Life,
}

/// One ticker of an engine, for the thread that serves it.
struct EngineTicker<F: Frontend> {
    server: Arc<Server<F>>,
    state: TickerState,
    // After the fields above, which they outlive.
    _served: Arc<ServedEngine>,
    _alive: Option<Alive>,
}

impl<F: Frontend> Ticks for EngineTicker<F> {
    fn clock(&self) -> &Clock {
        self.server.engine().clock()
    }

    fn step(&mut self) -> Option<TickerStep> {
        let engine = self.server.engine();
        supervise(&engine.faults().ticker, || {
            Engine::step_with_threads(&self.server, &mut self.state)
        })
    }

    fn stop(self: Box<Self>) {
        // With the last owner, values of the user are dropped here.
        let _ = catch_panic(|| drop(self));
    }

    fn is_forked(&self) -> bool {
        self.server.engine().is_forked()
    }
}

/// Closes an engine when it is dropped.
pub(crate) struct Owner<F: FrontendTypes> {
    engine: Arc<Engine<F>>,
    /// [`Engine::abandon_anywhere`]. It is a field since `Drop` would need the bounds of
    /// [`Frontend`], and with it every struct that has an owner.
    abandon: fn(&Arc<Engine<F>>),
}

impl<F: Frontend> Owner<F> {
    pub(crate) fn new(engine: &Arc<Engine<F>>) -> Self {
        Owner {
            engine: Arc::clone(engine),
            abandon: Engine::abandon_anywhere,
        }
    }
}

impl<F: FrontendTypes> Drop for Owner<F> {
    fn drop(&mut self) {
        (self.abandon)(&self.engine);
    }
}

/// Builds the report of a front end. It gets `None` for every caller except the first one that
/// shuts down.
pub(crate) type MakeReport<F, R> =
    fn(Option<Ending<<F as FrontendTypes>::Key, <F as FrontendTypes>::Payload>>) -> R;

impl EngineThreads {
    pub(super) fn new() -> Self {
        EngineThreads {
            threads: OnceLock::new(),
            tickers: Life::new(),
        }
    }
}

impl<F: Frontend> Engine<F> {
    /// Has `threads` serve the engine.
    pub(super) fn start(
        server: &Arc<Server<F>>,
        ticker_states: Vec<TickerState>,
        threads: Arc<Threads>,
    ) -> Result<(), NotServed> {
        let engine = server.engine();
        let served = threads.serve(ticker_states, |state, ring, served| {
            engine.shards().shard(state.shard()).bell.rings(ring);
            Box::new(EngineTicker {
                server: Arc::clone(server),
                state,
                _served: served,
                _alive: engine.threads.tickers.sign(),
            })
        });
        if !engine.shares_workers {
            // Nobody else comes, so the tickers' threads end with the engine.
            threads.close();
        }
        // The cell was empty: an engine starts once.
        let _ = engine.threads.threads.set(threads);
        served
    }

    /// Takes a step of a ticker, and of a shutdown that has no thread.
    fn step_with_threads(server: &Arc<Server<F>>, state: &mut TickerState) -> TickerStep {
        let engine = server.engine();
        let step = engine.ticker_step(server, state, &mut |workers| {
            let all_started = engine.threads.threads.get().is_some_and(|threads| {
                (0..workers.count).all(|_| threads.start_worker(workers.spare).is_ok())
            });
            if !all_started {
                // Relaxed: a count.
                engine.faults().spawn.fetch_add(1, Ordering::Relaxed);
            }
            all_started
        });
        if engine.is_forked() {
            // A task that this thread ran forked, and has returned in the copy.
            return TickerStep::Stop;
        }
        match (engine.attend_as_ticker(state), step) {
            (Attended::LookAgain(look_again), TickerStep::SleepUntil(at)) => {
                TickerStep::SleepUntil(at.min(look_again))
            }
            (Attended::Last(concluding), _) => {
                // The threads end soon, and this one must not wait for them.
                engine.threads.tickers.close();
                engine.answer(concluding);
                TickerStep::Stop
            }
            (_, step) => step,
        }
    }

    /// Does steps 2 to 6 of `closing.rs` for the caller that began the shutdown, then joins the
    /// threads.
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

    /// Reports the end of a shutdown that has no thread.
    fn answer(&self, concluding: Concluding<F>) {
        let Concluding { asked, ending } = concluding;
        self.closing().finish();
        (asked.answer)(ending);
    }

    /// Takes part in the shutdown if it has no thread, until that is over. For a thread that waits
    /// for the report.
    pub(crate) fn help_to_end(&self) {
        if !self.is_forked()
            && let Some(concluding) = self.attend_to_the_end()
        {
            self.join(concluding.ending.still_running == 0);
            self.answer(concluding);
        }
    }

    /// Begins a shutdown on behalf of any front end. The receiver gets the report.
    ///
    /// The rest runs on a thread of its own, so the caller may be anywhere: in a task of this
    /// engine, in a future, or on a thread that has more to shut down. If the system starts no
    /// thread, the rest is left to the tickers.
    pub(crate) fn shut_down<R: Send + 'static>(
        server: &Arc<Server<F>>,
        mode: Shutdown,
        report: MakeReport<F, R>,
    ) -> BoundedReceiver<R> {
        let engine = server.engine();
        if engine.is_forked() {
            // Nothing is left here that could end.
            let (_, receive) = bounded_channel(1);
            return receive;
        }
        // The limit of a drain counts from a moment before anybody can see that the engine is
        // closing.
        let begun = engine.now();
        // Under a lock this panics before anything has changed. But if the thread panics already, a
        // second panic would end the process; then the guard is inert, and the shutdown begins.
        drop(ReentrancyGuard::begin());
        let is_first = engine.closing().begin(mode == Shutdown::HandBack);
        if is_first {
            engine.closing().began_at(begun);
        }
        // When this call returns, nothing may be accepted any more. The thread that ends the engine
        // may start later, and another caller that began the shutdown may not be this far.
        engine.close_gates();
        let (send, receive) = bounded_channel(1);
        if !is_first {
            // The channel has room for one report, and its receiver is held here.
            let _ = send.send(report(None));
            return receive;
        }
        let asked = Asked {
            mode,
            begun,
            answer: Box::new(move |ending| {
                // The caller may have dropped its receiver, so the report may come back.
                let _ = send.send(report(Some(ending)));
            }),
        };
        #[cfg(all(feature = "test-util", feature = "tokio"))]
        if let Some(follower) = engine.follower() {
            if let Err(asked) = follower.ask(asked) {
                // Nobody steps this engine any more, so nothing runs.
                let ending = engine.wind_down(Shutdown::HandBack, begun, &mut |_| ());
                engine.closing().finish();
                (asked.answer)(ending);
            }
            engine.shards().shard(0).bell.ring_for(Time::ZERO);
            return receive;
        }
        // Kept here too: a thread that does not start drops what it was given.
        let asked = Arc::new(Mutex::new(Some(asked)));
        let (for_thread, to_end) = (Arc::clone(server), Arc::clone(&asked));
        let thread = thread::Builder::new()
            .name("tb-shutdown".to_owned())
            .spawn(move || {
                let asked = to_end.lock().take();
                if let Some(asked) = asked {
                    let engine = for_thread.engine();
                    let ending = engine.wait_and_end(asked.mode, asked.begun);
                    // Before the report, since this may be the last owner but the caller.
                    let _ = catch_panic(|| drop(for_thread));
                    (asked.answer)(ending);
                }
            });
        if thread.is_err() {
            let left = asked.lock().take();
            if let Some(asked) = left {
                engine.leave_to_tickers(asked);
            }
        }
        receive
    }

    /// Returns whether only the driver of this engine can shut it down: the thread that steps it.
    pub(crate) fn is_shut_down_by_driver(&self) -> bool {
        #[cfg(all(feature = "test-util", feature = "tokio", not(loom)))]
        if self.follower().is_some() {
            return false;
        }
        self.stepped
    }

    /// Does steps 2 to 6 and blocks the calling thread where a step waits.
    fn wait_and_end(&self, mode: Shutdown, begun: Time) -> Ending<F::Key, F::Payload> {
        self.end(mode, begun, &mut |limit| {
            self.wait_until_quiet(limit);
        })
    }

    /// Waits for the threads that are in no user code. A thread whose user code outlasted the limit
    /// is not waited for; it ends when that code ends.
    ///
    /// No limit is needed here. When all runs are completed, a thread that is in no user code
    /// enters none again (USER-3), and it ends at its next check.
    fn join(&self, workers_too: bool) {
        // Without threads, whoever steps the engine keeps its worker slots.
        let Some(threads) = self.threads.threads.get() else {
            return;
        };
        let user_code_on_tickers = self.is_inline() || F::LIGHT && self.frontend.has_light();
        let tickers_too = workers_too || !user_code_on_tickers;
        if tickers_too {
            self.threads.tickers.wait(None);
        }
        if !self.shares_workers {
            threads.join(tickers_too, workers_too);
        } else if workers_too {
            // Since the stop, no worker comes into the pool any more.
            self.pool().wait_until_left();
        }
    }

    /// Abandons the engine from the drop of an owner. Such a drop may happen anywhere, also in user
    /// code under the lock of another engine, where no other lock may be taken.
    pub(crate) fn abandon_anywhere(this: &Arc<Self>) {
        let engine = Arc::clone(this);
        when_unlocked(move || engine.abandon());
    }

    /// Closes the engine without waiting. Pending timers count as cancelled and are dropped.
    pub(crate) fn abandon(&self) {
        if self.is_forked() || !self.closing().begin(false) {
            return;
        }
        self.closing().began_at(self.now());
        self.close_gates();
        let mut taken = self.take_pending(false);
        self.stop();
        self.threads.tickers.close();
        self.closing().finish();
        self.frontend.keep_back(&mut taken, false);
        // Payloads are user code, so they are dropped here, where no lock is held.
        drop_each(taken.into_iter().map(|(key, _, payload)| (key, payload)));
    }
}

/// Takes a step. If it panics, the panic is counted and the step has failed; the panic hook has
/// reported it. So a broken ticker is neither silent nor gone.
fn supervise(panics: &AtomicU64, step: impl FnOnce() -> TickerStep) -> Option<TickerStep> {
    let step = catch_panic(step);
    if step.is_err() {
        // Relaxed: a count.
        panics.fetch_add(1, Ordering::Relaxed);
    }
    step.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c138_a_ticker_that_panics_is_counted_and_goes_on() {
        let panics = AtomicU64::new(0);
        let steps = [1, 2, 3].map(|round| {
            supervise(&panics, || {
                assert!(round > 2, "round {round}");
                TickerStep::Stop
            })
        });
        assert_eq!(steps, [None, None, Some(TickerStep::Stop)]);
        // Relaxed: one thread.
        assert_eq!(panics.load(Ordering::Relaxed), 2);
    }
}
