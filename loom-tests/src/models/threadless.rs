//! A shutdown for which the system starts no thread. The ticker takes its steps, and so does a
//! thread that waits for the report. Each step is taken once, and somebody concludes the shutdown.
//! `src/engine/threadless.rs` has the rules.
//!
//! If nobody takes a step that need not wait, loom reports a deadlock.
//!
//! Teeth:
//! - `teeth/threadless-bell-rings-first.patch`: THREADLESS-2, the ticker goes to sleep before the
//!   work is left.
//! - `teeth/threadless-ticker-is-not-registered.patch`: THREADLESS-2, the ticker sleeps through the
//!   end of the last run.
//! - `teeth/threadless-waiter-looks-first.patch`: the same for the thread that waits.
//! - `teeth/threadless-wakes-nobody.patch`: THREADLESS-2, somebody else has put the work back.

use std::sync::atomic::{AtomicUsize as Count, Ordering::Relaxed};

use loom::thread;

use super::check;
use crate::engine::{Asked, Attended, Concluding, Shutdown};
use crate::rig::{Ledger, Rig, RigTicker, START, Size, at};
use crate::sync::Arc;
use crate::tick::Time;
use crate::tickers::TickerStep;

const DUE: u64 = START + 1;

/// A shutdown that counts the reports, and the timers that came back.
#[derive(Clone, Debug, Default)]
struct Reported(Arc<(Count, Count)>);

impl Reported {
    fn asked(&self, mode: Shutdown) -> Asked<Ledger> {
        let reported = self.clone();
        Asked {
            mode,
            begun: at(DUE),
            answer: Box::new(move |ending| {
                assert_eq!(ending.still_running, 0);
                let (reports, back) = &*reported.0;
                reports.fetch_add(1, Relaxed);
                back.fetch_add(ending.taken.len(), Relaxed);
            }),
        }
    }

    /// Checks that there is one report, and that the task ran or came back.
    fn settle_up(&self, rig: &Rig) {
        let (reports, back) = &*self.0;
        assert_eq!(reports.load(Relaxed), 1);
        assert_eq!(rig.ledger().ran(0) + back.load(Relaxed), 1);
        assert_eq!(rig.balance().pending, 0);
    }
}

/// Creates a rig whose task is due, with its ticket in the queue of the worker.
fn handed_over() -> (Rig, RigTicker) {
    let (rig, mut ticker_state) = Rig::new(&Size::default());
    rig.arm(0, 0, at(DUE)).unwrap();
    rig.hand.set(at(DUE));
    rig.tick(&mut ticker_state, || rig.queued() == 1);
    (rig, ticker_state)
}

fn conclude(concluding: Concluding<Ledger>) {
    let Concluding { asked, ending } = concluding;
    (asked.answer)(ending);
}

/// Runs the thread of a ticker: as `Engine::tick`, and what follows it.
fn tick(rig: &Rig, mut ticker_state: RigTicker) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || {
        loop {
            let step = rig
                .engine()
                .ticker_step(&rig.server, &mut ticker_state, &mut |_| true);
            let look_again = match rig.engine().attend_as_ticker(&mut ticker_state) {
                Attended::Nothing => Time::MAX,
                Attended::LookAgain(at) => at,
                Attended::Last(concluding) => return conclude(concluding),
            };
            match step {
                TickerStep::Worked => {}
                TickerStep::SleepUntil(at) => {
                    let at = at.min(look_again);
                    ticker_state.park_until(at);
                }
                TickerStep::Stop => return,
            }
        }
    })
}

fn serve(rig: &Rig) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    let mut worker = rig.worker();
    thread::spawn(move || {
        worker.step(rig.server.as_ref());
    })
}

/// Nobody waits for the report, or a task awaits it.
#[test]
fn the_ticker_goes_on_with_it() {
    check(2, || {
        let (rig, ticker_state) = handed_over();
        let reported = Reported::default();
        let (ticker, worker) = (tick(&rig, ticker_state), serve(&rig));
        assert!(rig.engine().closing().begin(false));
        rig.engine()
            .leave_to_tickers(reported.asked(Shutdown::HandBack));
        ticker.join().unwrap();
        worker.join().unwrap();
        reported.settle_up(&rig);
    });
}

/// The ticker is in user code all the time.
#[test]
fn who_waits_goes_on_with_it() {
    check(3, || {
        let (rig, _busy) = handed_over();
        let reported = Reported::default();
        let worker = serve(&rig);
        assert!(rig.engine().closing().begin(false));
        rig.engine()
            .leave_to_tickers(reported.asked(Shutdown::HandBack));
        let concluding = rig.engine().attend_to_the_end();
        conclude(concluding.expect("nobody else does it"));
        worker.join().unwrap();
        reported.settle_up(&rig);
    });
}

#[test]
fn who_waits_and_the_ticker_take_each_step_once() {
    check(2, || {
        let (rig, ticker_state) = handed_over();
        let reported = Reported::default();
        assert!(rig.engine().closing().begin(false));
        rig.engine()
            .leave_to_tickers(reported.asked(Shutdown::HandBack));
        let ticker = tick(&rig, ticker_state);
        if let Some(concluding) = rig.engine().attend_to_the_end() {
            conclude(concluding);
        }
        ticker.join().unwrap();
        reported.settle_up(&rig);
        assert_eq!(rig.balance().handed_back, 1);
    });
}
