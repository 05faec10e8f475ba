//! Limits of waits, and what becomes of calls that nobody waits for.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use kit::{runtimes, wait};
use tourbillon_durable::StoreError;
use tourbillon_durable::{CallError, Due, Durable, Memory, MemoryCall, MemoryFault, Sent};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const SHORT: Duration = Duration::from_millis(30);

/// A client whose store answers no call until it is healed.
fn hung() -> (Memory, Durable) {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    store.inject(|call| match call {
        MemoryCall::Connect => MemoryFault::None,
        _ => MemoryFault::Hang,
    });
    (store, timers)
}

fn schedule(timers: &Durable) -> Sent<tourbillon_durable::ScheduleAnswer> {
    timers.schedule("q", "k", HOUR, &1)
}

fn is_there(timers: &Durable) -> bool {
    timers.get("q", "k").wait().unwrap().is_some()
}

#[test]
fn a_wait_ends_at_its_limit_and_the_call_is_carried_out() {
    let (store, timers) = hung();
    let began = Instant::now();
    let error = schedule(&timers).within(SHORT).wait().unwrap_err();
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    assert_eq!(error, CallError::TimedOut(SHORT));
    assert!(error.may_pass());
    assert_eq!(timers.stats().scheduled, 0);
    store.heal();
    wait::until("it was carried out", || timers.stats().scheduled == 1);
    assert!(is_there(&timers));
}

#[test]
fn a_task_is_woken_at_its_limit_on_every_runtime() {
    runtimes::on_all(|| async {
        let (store, timers) = hung();
        let began = Instant::now();
        let answer = schedule(&timers).within(SHORT).await;
        assert_eq!(answer, Err(CallError::TimedOut(SHORT)));
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        // Each task has its own limit.
        let long = tokio::spawn(schedule(&timers).within(SECOND * 60));
        let short = tokio::spawn(schedule(&timers).within(SHORT));
        let error = short.await.unwrap().unwrap_err();
        assert_eq!(error, CallError::TimedOut(SHORT));
        assert!(!long.is_finished());
        store.heal();
        long.await.unwrap().unwrap();
    });
}

#[test]
fn an_answer_in_time_is_returned_whatever_the_limit() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    for limit in [SECOND * 60, Duration::MAX, Duration::from_secs(u64::MAX)] {
        schedule(&timers).within(limit).wait().unwrap();
        runtimes::on_all_in_turn(|runtime| {
            let answer = schedule(&timers).within(limit);
            runtime.block_on(answer).unwrap();
        });
    }
}

#[test]
fn a_limit_of_zero_asks_whether_the_answer_is_there() {
    let (store, timers) = hung();
    let zero = Err(CallError::TimedOut(Duration::ZERO));
    assert_eq!(schedule(&timers).within(Duration::ZERO).wait(), zero);
    runtimes::on_all_in_turn(|runtime| {
        let answer = runtime.block_on(schedule(&timers).within(Duration::ZERO));
        assert_eq!(answer, zero);
    });
    let (waited, awaited) = (schedule(&timers), schedule(&timers));
    store.heal();
    // Calls on one key are carried out in their order.
    schedule(&timers).wait().unwrap();
    waited.within(Duration::ZERO).wait().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    runtime.block_on(awaited.within(Duration::ZERO)).unwrap();
}

#[test]
fn an_answer_that_came_in_time_is_kept_for_a_late_wait() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let sent = schedule(&timers).within(SHORT);
    schedule(&timers).wait().unwrap();
    std::thread::sleep(SHORT * 2);
    sent.wait().unwrap();
}

#[test]
fn of_two_limits_the_first_end_holds() {
    let (_store, timers) = hung();
    let short = Err(CallError::TimedOut(SHORT));
    let both = [[SHORT, HOUR], [HOUR, SHORT], [Duration::MAX, SHORT]];
    for [first, second] in both {
        let sent = schedule(&timers).within(first).within(second);
        assert_eq!(sent.wait(), short);
        runtimes::on_all_in_turn(|runtime| {
            let sent = schedule(&timers).within(first).within(second);
            assert_eq!(runtime.block_on(sent), short);
        });
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn after_a_limit_the_answer_can_be_asked_for_again() {
    let (store, timers) = hung();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let mut sent = pin!(schedule(&timers).within(SHORT));
    assert!(sent.as_mut().poll(&mut context).is_pending());
    wait::until("the limit wakes the task", || {
        wakes.0.load(Ordering::SeqCst) > 0
    });
    let over = Poll::Ready(Err(CallError::TimedOut(SHORT)));
    assert_eq!(sent.as_mut().poll(&mut context), over);
    assert_eq!(sent.as_mut().poll(&mut context), over);
    store.heal();
    wait::until("the answer is there", || {
        sent.as_mut().poll(&mut context) != over
    });
}

#[test]
fn a_thread_waits_with_the_limit_of_what_a_task_has_polled() {
    let (_store, timers) = hung();
    let mut sent = schedule(&timers).within(SHORT);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(&mut sent).poll(&mut context).is_pending());
    assert_eq!(sent.wait(), Err(CallError::TimedOut(SHORT)));
    // And with one that comes after the poll.
    let mut sent = schedule(&timers);
    assert!(pin!(&mut sent).poll(&mut context).is_pending());
    let answer = sent.within(SHORT).wait();
    assert_eq!(answer, Err(CallError::TimedOut(SHORT)));
}

#[test]
fn what_is_refused_is_no_matter_of_time() {
    let timers = Durable::builder(Memory::new()).start().unwrap();
    let invalid = |key| timers.schedule("q", key, HOUR, &1).within(Duration::ZERO);
    assert!(matches!(invalid("").wait(), Err(CallError::Invalid(_))));
    runtimes::on_all_in_turn(|runtime| {
        let refused = runtime.block_on(invalid(""));
        assert!(matches!(refused, Err(CallError::Invalid(_))));
    });
}

#[test]
fn an_outage_in_the_middle_is_the_answer() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    let (hangs, began) = mpsc::channel();
    let cut = StoreError::Unavailable("the cable is cut".into());
    let (release, held) = mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    store.inject(move |call| match call {
        MemoryCall::Write(_) => {
            hangs.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
            MemoryFault::Fail(cut.clone())
        }
        _ => MemoryFault::None,
    });
    let sent = schedule(&timers).within(SECOND * 60);
    wait::next(&began);
    drop(release);
    let error = sent.wait().unwrap_err();
    assert_eq!(error, CallError::Unavailable("the cable is cut".into()));
    store.heal();
    schedule(&timers).within(SECOND * 60).wait().unwrap();
}

#[test]
fn what_was_sent_before_the_stop_has_an_answer_after_it() {
    let store = Memory::new();
    let timers = Durable::builder(store.clone()).start().unwrap();
    let (hangs, began) = mpsc::channel();
    store.inject(move |call| match call {
        MemoryCall::Write(_) => {
            hangs.send(()).unwrap();
            MemoryFault::Hang
        }
        _ => MemoryFault::None,
    });
    // The store has this call, and not the other ones.
    let first = schedule(&timers);
    wait::next(&began);
    let second = timers.schedule("q", "other", HOUR, &1);
    let limited = timers.schedule("q", "limited", HOUR, &1).within(HOUR);
    timers.crash();
    drop(timers);
    store.heal();
    assert!(first.wait().is_ok());
    let later = [second.wait(), limited.wait()];
    let ended = |answer: &Result<_, CallError>| matches!(answer, Ok(_) | Err(CallError::Stopped));
    assert!(later.iter().all(ended), "{later:?}");
}

#[test]
fn threads_wait_side_by_side_for_calls_of_one_client() {
    let (store, timers) = hung();
    let waits: Vec<_> = (0..8)
        .map(|number| {
            let sent = timers.schedule("q", &number.to_string(), HOUR, &number);
            let limit = if number % 2 == 0 { SHORT } else { HOUR };
            std::thread::spawn(move || sent.within(limit).wait())
        })
        .collect();
    std::thread::sleep(SHORT * 2);
    store.heal();
    for (number, wait) in waits.into_iter().enumerate() {
        let answer = wait.join().unwrap();
        // A thread with the short limit may be so late that the answer is there.
        assert!(answer.is_ok() || number % 2 == 0, "{number}: {answer:?}");
    }
}

#[test]
fn a_handler_may_wait_for_calls_on_its_own_queue() {
    let (tell, told) = mpsc::channel();
    let link = Arc::new(std::sync::OnceLock::<Durable>::new());
    let within = Arc::clone(&link);
    let timers = Durable::builder(Memory::new())
        .handle("q", move |due: &Due<u32>| {
            let timers = within.wait();
            let key = due.key();
            let next = timers.schedule("q", key, Duration::ZERO, &(due.payload() + 1));
            let running = next.within(SECOND * 60).wait().unwrap().running;
            tell.send((*due.payload(), running)).unwrap();
            if *due.payload() == 3 {
                timers.cancel("q", key).wait().unwrap();
            }
        })
        .running(1)
        .start()
        .unwrap();
    link.set(timers.clone()).unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &1)
        .wait()
        .unwrap();
    for number in 1..=3 {
        assert_eq!(wait::next(&told), (number, true));
    }
    wait::until("the cancel ends it", || !is_there(&timers));
    // The handler keeps a clone.
    timers.stop(SECOND).wait().unwrap();
}
