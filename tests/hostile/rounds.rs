//! Closures that repeat and call the scheduler from their drop, wherever that happens; and keys
//! that are being shut while their rounds arm them again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kit::steps::{SEEDS, T, narrow, stepped};
use kit::wait;
use tourbillon::{Cancel, Handle, Next, Period, Round, ScheduleError, Scheduler, Shutdown};

fn rate() -> Period {
    Period::fixed_rate(10 * T)
}

/// Arms a repetition of its own where it is dropped, and looks around.
struct Echo {
    timers: Handle<u64>,
    key: u64,
    refused: Arc<AtomicUsize>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        let timers = &self.timers;
        let _ = (timers.stats(), timers.len(), timers.pending().count());
        timers.cancel_many(&[self.key, self.key + 100_000]);
        let _ = timers.reschedule(&(self.key - 500), 2_000 * T);
        match timers.repeat(self.key, rate(), |_| ()) {
            Ok(armed) => assert!(timers.by_id(armed.id).get().is_some()),
            Err(refused) => {
                assert!(matches!(refused, ScheduleError::Closed(_)));
                self.refused.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

#[test]
fn a_repeating_closures_drop_may_call_the_scheduler_wherever_it_happens() {
    for seed in SEEDS {
        for scheduler in [narrow(seed), stepped(seed)] {
            let timers = scheduler.handle();
            let refused = Arc::new(AtomicUsize::new(0));
            let echo = |key| Echo {
                timers: timers.clone(),
                key,
                refused: Arc::clone(&refused),
            };
            // Its second round does this.
            type Deed = fn(&Round<'_, u64>) -> Next;
            let arm = |key: u64, deed: Deed| {
                let echo = echo(key + 500);
                let armed = timers.repeat(key, rate(), move |round| {
                    let _ = &echo;
                    if round.number() == 2 {
                        deed(round)
                    } else {
                        Next::Again
                    }
                });
                armed.unwrap();
            };
            let echoes = |count| {
                assert_eq!((timers.len(), timers.cancel_all()), (count, count));
                assert!(timers.is_empty() && timers.stats().panicked == 0);
            };
            // Between two rounds: cancelled, by key and by id, replaced.
            (1..=4).for_each(|key| arm(key, |_| Next::Again));
            scheduler.advance(15 * T);
            assert!(timers.cancel(&1).is_cancelled());
            let id = timers.get(&2).unwrap().id;
            assert!(timers.by_id(id).cancel().is_cancelled());
            timers.schedule(3, T, |_| ()).unwrap();
            timers.repeat(4, rate(), |_| ()).unwrap();
            echoes(3 + 1 + 2);
            // During one: cancelled, replaced in both ways; and it stops.
            arm(1, |round| {
                assert_eq!(round.handle().cancel(round.key()), Cancel::Running);
                Next::Again
            });
            arm(2, |round| {
                round.handle().schedule(2, 1_000 * T, |_| ()).unwrap();
                Next::Again
            });
            arm(3, |round| {
                let other = round
                    .handle()
                    .repeat(3, Period::fixed_rate(1_000 * T), |_| ());
                assert!(other.unwrap().after_run);
                Next::Again
            });
            arm(4, |_| Next::Stop);
            scheduler.advance(25 * T);
            echoes(4 + 2);
            // Refused.
            let own = echo(700);
            let zero = Period::fixed_rate(Duration::ZERO);
            let error = timers.repeat(200, zero, move |_| {
                let _ = &own;
            });
            drop(error);
            echoes(1);
            // A period's own function.
            let own = echo(800);
            let three = Period::schedule(move |so_far| {
                let _ = &own;
                (so_far.rounds < 3).then(|| so_far.now + T)
            });
            timers.repeat(300, three, |_| ()).unwrap();
            scheduler.advance(5 * T);
            echoes(1);
            // With the scheduler, or handed back from it.
            (1..=2).for_each(|key| arm(key, |_| Next::Again));
            scheduler.advance(5 * T);
            if seed.is_multiple_of(2) {
                drop(scheduler);
            } else {
                let report = scheduler.shutdown(Shutdown::HandBack);
                assert_eq!(report.handed_back.len(), 2);
                drop(report);
            }
            assert_eq!(refused.load(Ordering::SeqCst), 2);
            let stats = timers.stats();
            assert_eq!((stats.pending, stats.panicked), (0, 0));
            assert!(stats.balances());
        }
    }
}

/// Two parties that arm each other again: while somebody waits for the end of a key, nobody can.
#[test]
fn c086_a_round_can_not_keep_a_key_that_is_being_shut() {
    for _ in 0..20 {
        let scheduler = Scheduler::<u64>::builder().workers(2).build().unwrap();
        let timers = scheduler.handle();
        let (send, started) = mpsc::channel();
        let first = rate().first(Duration::ZERO);
        let armed = timers.repeat(1, first, move |round| {
            send.send(()).unwrap();
            let timers = round.handle();
            wait::until("the refusal", || {
                let run = timers.repeat(1, rate(), |_| ());
                matches!(run, Err(ScheduleError::Closing(_)))
            });
            // Nor does it go on by what it answers.
            Next::After(Duration::ZERO)
        });
        armed.unwrap();
        wait::next(&started);
        let answer = timers.cancel_and_wait(&1).wait().unwrap();
        assert!(matches!(
            answer,
            Cancel::Running | Cancel::Cancelled { running: true, .. }
        ));
        assert!(timers.is_empty() && !timers.contains(&1));
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.running, stats.panicked), (1, 0, 0));
        assert!(stats.balances());
    }
}
