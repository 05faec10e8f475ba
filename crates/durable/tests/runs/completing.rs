//! Runs that end within a transaction of the user's.

use std::sync::mpsc;

use kit::wait;
use tourbillon_durable::store::{Connection, Outcome, Settle, Settled, Settlement, Store};
use tourbillon_durable::{
    Awaited, CompleteError, CompletesRun, Completion, Due, DurableEvent, Ending, Memory,
    RetryPolicy, RunEvent, RunOutcome,
};

use super::setup::{NOW, node, settled, soon};

/// A transaction on a memory: it ends the run at once, or not at all.
struct Transaction {
    connection: Box<dyn Connection>,
    commits: bool,
}

impl Transaction {
    fn begin(store: &Memory, commits: bool) -> Self {
        Transaction {
            connection: store.connect().unwrap(),
            commits,
        }
    }
}

impl CompletesRun for &mut Transaction {
    type Answer = Result<(), CompleteError>;

    fn complete(self, run: &Completion<'_>) -> Result<(), CompleteError> {
        if !self.commits {
            return Ok(());
        }
        let (epoch, run) = run.parts();
        let settlement = Settlement {
            run,
            outcome: Outcome::Done,
        };
        let settle = Settle {
            epoch,
            settlements: vec![settlement],
        };
        match self.connection.settle(&settle)?.remove(0)? {
            Settled::Fenced => Err(CompleteError::Fenced),
            _ => Ok(()),
        }
    }
}

/// A transaction whose calls are awaited.
struct AwaitedTransaction(Transaction);

impl CompletesRun for AwaitedTransaction {
    type Answer = Awaited<'static, Result<(), CompleteError>>;

    fn complete(mut self, run: &Completion<'_>) -> Self::Answer {
        let (epoch, run) = run.parts();
        Awaited::new(async move { self.0.complete(&Completion::of("", epoch, &run)) })
    }
}

fn awaited<T>(answer: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(answer)
}

#[test]
fn an_end_that_was_not_awaited_is_none() {
    let store = Memory::new();
    let own = store.clone();
    let timers = node(&store)
        .handle("q", move |due: &Due<()>| {
            let end = due.complete_in(AwaitedTransaction(Transaction::begin(&own, true)));
            match due.attempt() {
                1 => drop(end),
                _ => awaited(end)?,
            }
            Ok::<_, CompleteError>(())
        })
        .retry(soon(2))
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    wait::until("the second run succeeds", || timers.stats().succeeded == 1);
    assert_eq!(timers.stats().failed, 1);
}

#[test]
fn a_run_that_its_transaction_has_ended_has_succeeded() {
    let store = Memory::new();
    let own = store.clone();
    let (sender, events) = mpsc::channel();
    let timers = node(&store)
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle("q", move |due: &Due<()>| {
            due.complete_in(&mut Transaction::begin(&own, true))?;
            // What it asks for is ignored: the timer is gone.
            Ok::<_, CompleteError>(Ending::Again(NOW))
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    wait::until("it has succeeded", || timers.stats().succeeded == 1);
    assert_eq!(timers.get("q", "k").wait().unwrap(), None);
    timers.stop(NOW).wait().unwrap();
    let stats = timers.stats();
    assert_eq!(
        (stats.runs, stats.fenced, stats.failed, stats.retried),
        (1, 0, 0, 0)
    );
    drop(timers);
    assert_eq!(wait::all(&events), []);
}

#[test]
fn a_transaction_that_was_not_committed_is_an_error_of_the_run() {
    let store = Memory::new();
    let own = store.clone();
    let timers = node(&store)
        .handle("q", move |due: &Due<()>| {
            due.complete_in(&mut Transaction::begin(&own, due.attempt() == 3))
        })
        .retry(soon(20))
        .handle("never", |due: &Due<()>| {
            due.complete_in(&mut Transaction::begin(&Memory::new(), false))
        })
        .retry(RetryPolicy::never())
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    settled(&timers, "q", "k");
    wait::until("it has succeeded", || timers.stats().succeeded == 1);
    let stats = timers.stats();
    assert_eq!((stats.runs, stats.failed, stats.retried), (3, 2, 2));
    timers.schedule("never", "k", NOW, &()).wait().unwrap();
    wait::until("it is dead", || timers.stats().dead == 1);
    let letters = timers.dead("never", 0, 1).wait().unwrap();
    assert!(
        letters[0].error.contains("not committed"),
        "{}",
        letters[0].error
    );
}

#[test]
fn a_fenced_run_is_no_error_of_the_handler() {
    let store = Memory::new();
    let own = store.clone();
    let (sender, events) = mpsc::channel();
    let timers = node(&store)
        .on_event(move |event| sender.send(event.clone()).unwrap())
        .handle(
            "q",
            move |due: &Due<()>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                due.complete_in(&mut Transaction::begin(&own, true))?;
                // The first one has ended the run: the second one finds the row gone.
                due.complete_in(&mut Transaction::begin(&own, true))?;
                Ok(())
            },
        )
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &()).wait().unwrap();
    let event = wait::next(&events);
    assert!(
        matches!(&event, DurableEvent::Fenced { key, attempt: 1, .. } if key == "k"),
        "{event:?}"
    );
    let stats = timers.stats();
    assert_eq!((stats.fenced, stats.failed, stats.succeeded), (1, 0, 0));
    assert_eq!(timers.get("q", "k").wait().unwrap(), None);
}

#[test]
fn what_follows_takes_the_place_of_a_completed_run() {
    let store = Memory::new();
    let own = store.clone();
    let (sender, receiver) = mpsc::channel();
    let client = tourbillon_durable::Durable::builder(store.clone())
        .start()
        .unwrap();
    let other = client.clone();
    let timers = node(&store)
        .handle("q", move |due: &Due<u32>| {
            sender.send(*due.payload()).unwrap();
            if *due.payload() == 1 {
                assert!(other.schedule("q", "k", NOW, &2).wait().unwrap().running);
            }
            due.complete_in(&mut Transaction::begin(&own, true))
        })
        .start()
        .unwrap();
    timers.schedule("q", "k", NOW, &1).wait().unwrap();
    assert_eq!((wait::next(&receiver), wait::next(&receiver)), (1, 2));
    wait::until("both have succeeded", || timers.stats().succeeded == 2);
}

#[test]
fn the_end_of_a_completed_and_of_a_fenced_run_are_told_as_such() {
    let store = Memory::new();
    let own = store.clone();
    let (sender, ends) = mpsc::channel();
    let timers = node(&store)
        .on_run(move |event| {
            if let RunEvent::Ended {
                outcome,
                next_attempt,
                ..
            } = event
            {
                sender.send((outcome.clone(), *next_attempt)).unwrap();
            }
        })
        .handle("q", move |due: &Due<u32>| {
            for _ in 0..*due.payload() {
                due.complete_in(&mut Transaction::begin(&own, true))?;
            }
            Ok::<_, CompleteError>(Ending::Again(NOW))
        })
        .start()
        .unwrap();
    timers.schedule("q", "once", NOW, &1).wait().unwrap();
    assert_eq!(wait::next(&ends), (RunOutcome::Completed, None));
    timers.schedule("q", "twice", NOW, &2).wait().unwrap();
    assert_eq!(wait::next(&ends), (RunOutcome::Fenced, None));
}
