//! Futures that are ready at once give their runtime a turn now and then, on every runtime.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::{pending, ready};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use kit::runtimes::{eventually, on_all};
use kit::wait::until;
use kit::wakes::{Wakes, poll, yields};
use tokio_stream::StreamExt;
use tourbillon::retry::{Backoff, Retry, RetryError};
use tourbillon::{
    Clock, ExpiryMap, ManualClock, Missed, Scheduler, Shutdown, SleepError, Time, TimeoutError,
    Timer,
};

const ZERO: Duration = Duration::ZERO;
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// A policy without a limit and without a wait.
fn at_once() -> Retry<&'static str> {
    Retry::new(Backoff::fixed(ZERO))
}

/// Fails, and ends the test if the loop around it never ends.
fn busy(begun: Instant) -> Result<(), &'static str> {
    assert!(begun.elapsed() < PATIENCE, "the call is tried without end");
    Err("busy")
}

#[test]
fn sleeps_that_are_over_yield() {
    let timer = Timer::new().unwrap();
    yields("zero", async || timer.sleep(ZERO).await);
    yields("past", async || timer.sleep(Time::ZERO).await);
    let mut sleep = timer.sleep(ZERO);
    yields("the same again", async || (&mut sleep).await);
    yields("reset", async || {
        sleep.reset(ZERO);
        (&mut sleep).await
    });
}

#[test]
fn sleeps_that_fail_yield() {
    let full = Timer::builder().max_pending(1).build().unwrap();
    let mut first = full.sleep(HOUR);
    assert!(poll(&mut first, &Wakes::new()).is_pending());
    yields("full", async || {
        assert_eq!(full.sleep(HOUR).await, Err(SleepError::Full));
    });
    let sleep = full.sleep(HOUR);
    let mut interval = full.interval(HOUR).first(full.now() + HOUR);
    drop((full, first));
    let mut sleep = sleep;
    yields("closed", async || {
        assert_eq!((&mut sleep).await, Err(SleepError::Closed));
    });
    yields("ticks of a closed timer", async || interval.tick().await);
    assert_eq!(next_at_once(&mut interval), Some(Err(SleepError::Closed)));
    yields("a stream that has ended", async || {
        assert_eq!(interval.next().await, None);
    });
}

/// Returns the next item of a stream that need not wait.
fn next_at_once<S: tokio_stream::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    let wakes = Wakes::new();
    loop {
        if let Poll::Ready(item) = poll(&mut pin!(stream.next()), &wakes) {
            return item;
        }
        assert!(wakes.count() > 0, "there is nothing to wait for");
    }
}

#[test]
fn intervals_yield_while_they_catch_up() {
    let hand = ManualClock::new();
    let timer = Timer::builder()
        .clock(Clock::manual(&hand))
        .build()
        .unwrap();
    let mut ticks = timer.interval(Duration::from_nanos(1));
    hand.advance(HOUR);
    yields("ticks", async || ticks.tick().await.unwrap());
    yields("a stream of ticks", async || ticks.next().await);
    // A tick that is put off is not lost: they go on where they stopped.
    let mut ticks = timer
        .interval(Duration::from_nanos(1))
        .missed(Missed::AtMost(1_000));
    hand.advance(HOUR);
    let mut last = next_at_once(&mut ticks).unwrap().unwrap();
    for _ in 1..1_000 {
        let next = next_at_once(&mut ticks).unwrap().unwrap();
        assert_eq!(next.since(last), Duration::from_nanos(1));
        last = next;
    }
}

#[test]
fn timeouts_yield_whatever_is_in_them() {
    let timer = Timer::new().unwrap();
    yields("ready", async || {
        timer.timeout(HOUR, ready(7)).await.unwrap()
    });
    yields("elapsed", async || {
        let never = timer.timeout(ZERO, pending::<()>());
        assert_eq!(never.await, Err(TimeoutError::Elapsed));
    });
    let closed = {
        let timer = Timer::new().unwrap();
        let _ = timer.shutdown(Shutdown::HandBack).wait();
        timer
    };
    yields("closed", async || {
        closed.timeout(HOUR, pending::<()>()).await
    });
}

#[test]
fn retries_yield_between_attempts_and_between_calls() {
    let timer = Timer::new().unwrap();
    yields("succeeds at once", async || {
        timer.retry(at_once(), || ready(Ok::<_, &str>(1))).await
    });
    yields("is given up at once", async || {
        let policy = at_once().attempts(1);
        timer.retry(policy, || ready(Err::<(), _>("busy"))).await
    });
    // By itself, without a loop around it.
    let attempts = Cell::new(0);
    let mut retrying = timer.retry(at_once(), || {
        attempts.set(attempts.get() + 1);
        assert!(attempts.get() < 1_000, "no turn for the runtime");
        ready(Err::<(), _>("busy"))
    });
    let wakes = Wakes::new();
    for turns in 1..=3 {
        assert!(poll(&mut retrying, &wakes).is_pending());
        assert_eq!(wakes.count(), turns);
        assert!(attempts.replace(0) >= 16);
    }
    drop(retrying);
    assert_eq!(timer.stats().pending, 0);
}

#[test]
fn streams_of_expired_entries_yield() {
    let hand = ManualClock::new();
    let (map, mut gone) = ExpiryMap::<u32, u32>::builder()
        .time_to_live(HOUR)
        .clock(Clock::manual(&hand))
        .build_stream(1_000)
        .unwrap();
    for key in 0..1_000 {
        map.insert(key, key).unwrap();
    }
    hand.advance(HOUR);
    until("all have expired", || map.stats().expired == 1_000);
    let mut keys = Vec::new();
    yields("expired entries", async || {
        keys.push(gone.next().await.expect("the map lives").key);
    });
    while keys.len() < 1_000 {
        keys.push(next_at_once(&mut gone).expect("the map lives").key);
    }
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..1_000), "none is lost in a turn");
    map.shutdown(Shutdown::HandBack).wait().unwrap();
    yields("the end", async || assert!(gone.next().await.is_none()));
}

#[test]
fn lookups_that_find_or_compute_at_once_yield() {
    let map = ExpiryMap::<u32, u32>::builder()
        .time_to_live(HOUR)
        .build(|_, _| ())
        .unwrap();
    yields("computed", async || {
        let found = map.entry(1).or_compute(|| ready(Ok::<_, &str>(7))).await;
        assert_eq!(found.unwrap().into_value(), 7);
        map.remove(&1);
    });
    yields("failed", async || {
        let refused = map.entry(1).or_compute(|| ready(Err("no"))).await;
        assert!(refused.is_err());
    });
    map.insert(1, 7).unwrap();
    yields("present", async || {
        map.entry(1).or_compute(|| ready(Err("no"))).await.unwrap()
    });
}

#[test]
fn waits_for_runs_and_shutdowns_that_are_over_yield() {
    let scheduler = Scheduler::<u32>::new().unwrap();
    let timers = scheduler.handle();
    yields("nothing runs", async || {
        timers.cancel_and_wait(&7).await.unwrap()
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (send, receive) = mpsc::channel();
    let on_tokio = timers.on_tokio(runtime.handle().clone());
    on_tokio
        .schedule(7, ZERO, async move |firing| send.send(firing).unwrap())
        .unwrap();
    let firing = runtime.block_on(async {
        let mut received = None;
        eventually("the task runs", || {
            received = receive.try_recv().ok();
            received.is_some()
        })
        .await;
        received.unwrap()
    });
    runtime.block_on(eventually("the run ends", || !timers.contains(&7)));
    yields("a run that has ended", async || firing.cancelled().await);
    scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    yields("a second shutdown", async || {
        scheduler.shutdown(Shutdown::HandBack).await
    });
}

#[test]
fn a_timeout_ends_at_its_limit_whatever_is_ready_in_it() {
    on_all(|| async {
        let timer = Timer::new().unwrap();
        let begun = Instant::now();
        let limit = Duration::from_millis(20);
        let retried = timer.retry(at_once(), || async move { busy(begun) });
        assert!(matches!(
            timer.timeout(limit, retried).await,
            Err(TimeoutError::Elapsed)
        ));
        let sleeps = async {
            while busy(begun).is_err() {
                timer.sleep(ZERO).await.unwrap();
            }
        };
        assert_eq!(
            timer.timeout(limit, sleeps).await,
            Err(TimeoutError::Elapsed)
        );
        let nested = async {
            while busy(begun).is_err() {
                let _ = timer.timeout(HOUR, timer.timeout(ZERO, ready(()))).await;
            }
        };
        assert_eq!(
            timer.timeout(limit, nested).await,
            Err(TimeoutError::Elapsed)
        );
        assert!(begun.elapsed() >= 3 * limit);
        assert_eq!(timer.stats().pending, 0);
    });
}

#[test]
fn select_drops_a_call_that_is_tried_without_end() {
    on_all(|| async {
        let timer = Timer::new().unwrap();
        let begun = Instant::now();
        tokio::select! {
            biased;
            _ = timer.retry(at_once(), || async move { busy(begun) }) => panic!("it never succeeds"),
            slept = timer.sleep(Duration::from_millis(20)) => slept.unwrap(),
        }
        assert_eq!(timer.stats().pending, 0);
    });
}

#[test]
fn other_tasks_of_the_thread_go_on() {
    on_all(|| async {
        let timer = Arc::new(Timer::new().unwrap());
        let begun = Instant::now();
        let others: Vec<_> = (0..3)
            .map(|_| {
                let timer = Arc::clone(&timer);
                tokio::spawn(
                    async move { timer.retry(at_once(), || async move { busy(begun) }).await },
                )
            })
            .collect();
        timer.sleep(Duration::from_millis(5)).await.unwrap();
        for task in others {
            task.abort();
            let ended = task.await.map_err(|error| error.is_cancelled());
            assert!(matches!(ended, Err(true)), "it is dropped at a turn");
        }
    });
}

/// A runtime of one thread that does nothing but poll what was woken, in the order of the wake-ups.
#[derive(Default)]
struct Plain {
    queue: Arc<Mutex<VecDeque<usize>>>,
    tasks: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>,
}

struct Woken {
    task: usize,
    queue: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.queue.lock().unwrap().push_back(self.task);
    }
}

impl Plain {
    fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.queue.lock().unwrap().push_back(self.tasks.len());
        self.tasks.push(Some(Box::pin(task)));
    }

    /// Polls until nothing is woken, and returns the number of polls.
    fn run(&mut self) -> usize {
        for polls in 0.. {
            let Some(task) = self.queue.lock().unwrap().pop_front() else {
                return polls;
            };
            let queue = Arc::clone(&self.queue);
            let waker = Waker::from(Arc::new(Woken { task, queue }));
            if let Some(future) = &mut self.tasks[task]
                && future
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_ready()
            {
                self.tasks[task] = None;
            }
        }
        unreachable!("the polls are not counted to their end")
    }
}

#[test]
fn tasks_take_turns_on_a_runtime_that_knows_no_budget() {
    let timer = Arc::new(Timer::new().unwrap());
    let mut runtime = Plain::default();
    // As many tasks as there are ready answers between two turns, and more: none is left out,
    // though each one hits the bound at the same place in each round.
    let others = Arc::new(Mutex::new(vec![0_u32; 130]));
    let stop = Arc::new(AtomicBool::new(false));
    for task in 0..130 {
        let (timer, others, stop) = (Arc::clone(&timer), Arc::clone(&others), Arc::clone(&stop));
        runtime.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                timer.sleep(ZERO).await.unwrap();
                {
                    let mut others = others.lock().unwrap();
                    others[task] += 1;
                    assert!(others[task] < 100_000, "{others:?}");
                    if others.iter().all(|answers| *answers >= 100) {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                tokio::task::yield_now().await;
            }
        });
    }
    assert!(runtime.run() >= 130 * 100);
    assert!(runtime.tasks.iter().all(Option::is_none));
}

#[test]
fn an_attempt_that_waits_is_not_put_off() {
    let stepped = Timer::builder().build_stepped(1).unwrap();
    let timer = stepped.timer();
    let mut attempts = 0;
    let outcome: Result<u32, RetryError<&str>> = stepped.run_until(timer.retry(at_once(), || {
        attempts += 1;
        let (sleep, attempt) = (timer.sleep(Duration::from_millis(1)), attempts);
        async move {
            sleep.await.unwrap();
            if attempt < 1_000 {
                Err("busy")
            } else {
                Ok(attempt)
            }
        }
    }));
    assert_eq!(outcome.unwrap(), 1_000);
    assert_eq!(stepped.now().since(Time::ZERO), Duration::from_secs(1));
}
