//! Sleeps and spawns while all workers are blocked in tasks of the user.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use kit::gate::Gate;
use kit::wait::{next, until};
use tourbillon::{
    Executor, ExpiryMap, Handle, Job, Next, Period, Runtime, Scheduler, Shutdown, Timer,
    TimerBuilder,
};

const SHORT: Duration = Duration::from_millis(20);

/// A pool of one worker that cannot grow.
fn one_worker() -> TimerBuilder {
    Timer::builder().shards(2).workers(1).max_running(1)
}

/// Blocks as many workers as there are, and queues as many tasks behind them.
fn block(timer: &Timer, tasks: usize, ran: &Arc<AtomicUsize>) -> Gate {
    let gate = Gate::default();
    for _ in 0..tasks {
        let (gate, ran) = (gate.clone(), Arc::clone(ran));
        let task = move || {
            gate.pass();
            ran.fetch_add(1, Ordering::SeqCst);
        };
        let _ = timer.after(Duration::ZERO, task).unwrap();
    }
    gate
}

/// Runs `test` on a thread of its own. A test that hangs fails.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = channel();
    let thread = thread::spawn(move || {
        test();
        tell.send(()).unwrap();
    });
    next(&told);
    thread.join().unwrap();
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// A time limit, an interval, a sleep that is reset to the past, and a blocking sleep.
fn everything_that_sleeps(timer: &Timer) {
    run(async {
        let limited = timer.timeout(SHORT, std::future::pending::<()>()).await;
        assert!(limited.is_err());
        let mut beats = timer.interval(SHORT);
        for _ in 0..3 {
            let _ = beats.tick().await.unwrap();
        }
        let mut sleep = Box::pin(timer.sleep(Duration::from_secs(3_600)));
        let (woken, waker) = wakes();
        let mut context = Context::from_waker(&waker);
        assert!(sleep.as_mut().poll(&mut context).is_pending());
        sleep.reset(Duration::ZERO);
        until("it is woken", || woken.0.load(Ordering::SeqCst) > 0);
        assert_eq!(sleep.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    });
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn wakes() -> (Arc<Wakes>, Waker) {
    let wakes = Arc::new(Wakes::default());
    (Arc::clone(&wakes), Waker::from(wakes))
}

#[test]
fn sleeps_end_while_the_only_worker_is_blocked() {
    in_time(|| {
        let timer = one_worker().build().unwrap();
        let ran = Arc::default();
        let gate = block(&timer, 100, &ran);
        gate.crowd(1);
        everything_that_sleeps(&timer);
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        gate.open();
        until("each task ran", || {
            timer.stats().running == 0 && timer.stats().queued == 0
        });
        assert_eq!(ran.load(Ordering::SeqCst), 100);
        let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
        assert!(report.handed_back.is_empty() && timer.stats().balances());
    });
}

#[test]
fn sleeps_end_while_a_pool_has_grown_to_its_limit() {
    in_time(|| {
        let timer = Timer::builder().max_running(16).build().unwrap();
        let ran = Arc::default();
        let gate = block(&timer, 40, &ran);
        gate.crowd(16);
        everything_that_sleeps(&timer);
        gate.open();
        until("each task ran", || ran.load(Ordering::SeqCst) == 40);
    });
}

#[test]
fn sleeps_end_while_more_tasks_wait_than_may_be_under_way() {
    in_time(|| {
        let timer = one_worker().shards(1).build().unwrap();
        let ran = Arc::default();
        // Through the wheel, and more than the 65,536 tickets of the backlog.
        let gate = block(&timer, 1, &ran);
        gate.crowd(1);
        for _ in 0..70_000 {
            let ran = Arc::clone(&ran);
            let task = move || {
                ran.fetch_add(1, Ordering::SeqCst);
            };
            let _ = timer.after(Duration::from_millis(1), task).unwrap();
        }
        everything_that_sleeps(&timer);
        gate.open();
        until("each task ran", || ran.load(Ordering::SeqCst) == 70_001);
        assert!(timer.stats().balances());
    });
}

#[test]
fn tasks_that_waited_for_a_blocked_worker_run_in_their_order() {
    in_time(|| {
        let timer = one_worker().shards(1).stripes(1).build().unwrap();
        let gate = block(&timer, 1, &Arc::default());
        gate.crowd(1);
        let (tell, told) = channel();
        for number in 0..50 {
            let tell = tell.clone();
            let task = move || tell.send(number).unwrap();
            let _ = timer.after(Duration::ZERO, task).unwrap();
            if number == 25 {
                run(timer.sleep(SHORT)).unwrap();
            }
        }
        run(timer.sleep(SHORT)).unwrap();
        gate.open();
        let order: Vec<_> = (0..50).map(|_| next(&told)).collect();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    });
}

#[test]
fn a_waker_that_panics_is_counted_and_its_ticker_goes_on() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a waker"));
        }
    }
    in_time(|| {
        let timer = one_worker().build().unwrap();
        let gate = block(&timer, 1, &Arc::default());
        gate.crowd(1);
        let waker = Waker::from(Arc::new(Panics));
        let mut sleep = Box::pin(timer.sleep(SHORT));
        let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        until("it is counted", || timer.stats().panicked == 1);
        everything_that_sleeps(&timer);
        assert_eq!(timer.stats().ticker_panics, 0);
        gate.open();
    });
}

/// Takes every job and runs none.
struct Keeps(std::sync::Mutex<Vec<Job>>);

impl Executor for Keeps {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.lock().unwrap().push(job);
        Ok(())
    }
}

#[test]
fn sleeps_end_while_an_executor_runs_nothing() {
    in_time(|| {
        let executor = Arc::new(Keeps(std::sync::Mutex::default()));
        let timer = Timer::builder()
            .executor(Arc::clone(&executor))
            .build()
            .unwrap();
        let ran = Arc::default();
        let gate = block(&timer, 10, &ran);
        everything_that_sleeps(&timer);
        gate.open();
        until("each job came", || {
            std::mem::take(&mut *executor.0.lock().unwrap())
                .into_iter()
                .for_each(Job::run);
            ran.load(Ordering::SeqCst) == 10
        });
    });
}

/// Blocks in each call.
struct Blocks(Gate);

impl Executor for Blocks {
    fn execute(&self, job: Job) -> Result<(), Job> {
        self.0.pass();
        job.run();
        Ok(())
    }
}

#[test]
fn sleeps_end_while_an_executor_blocks_all_that_call_it() {
    in_time(|| {
        let gate = Gate::default();
        let timer = one_worker().executor(Blocks(gate.clone())).build().unwrap();
        let ran = Arc::default();
        let tasks = block(&timer, 10, &ran);
        tasks.open();
        gate.crowd(1);
        everything_that_sleeps(&timer);
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        gate.open();
        until("each task ran", || ran.load(Ordering::SeqCst) == 10);
    });
}

#[test]
fn a_waker_that_blocks_a_ticker_does_not_hold_a_shutdown_up() {
    struct Waits(Gate);
    impl Wake for Waits {
        fn wake(self: Arc<Self>) {
            self.0.pass();
        }
    }
    in_time(|| {
        let timer = one_worker().shutdown_limit(SHORT).build().unwrap();
        let tasks = block(&timer, 1, &Arc::default());
        tasks.crowd(1);
        // The ticker wakes the task in place of the worker, and does not come back.
        let gate = Gate::default();
        let waker = Waker::from(Arc::new(Waits(gate.clone())));
        let mut sleep = Box::pin(timer.sleep(SHORT));
        let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        gate.crowd(1);
        let report = timer.shutdown(Shutdown::HandBack).wait().unwrap();
        assert_eq!(report.still_running, 2);
        gate.open();
        tasks.open();
    });
}

/// Futures that are due at once, later, and again and again, and one whose end is awaited.
fn everything_that_is_spawned(timers: &Handle<u32>, runtime: &tokio::runtime::Runtime) {
    let on_tokio = timers.on_tokio(runtime.handle().clone());
    let (tell, told) = channel();
    for (key, delay) in [(100, Duration::ZERO), (101, SHORT)] {
        let tell = tell.clone();
        on_tokio
            .schedule(key, delay, async move |_| tell.send(key).unwrap())
            .unwrap();
    }
    let beat = tell.clone();
    let period = Period::fixed_rate(SHORT);
    on_tokio
        .repeat(102, period, move |round| {
            let tell = beat.clone();
            async move {
                tell.send(102).unwrap();
                if round.number() < 3 {
                    Next::Again
                } else {
                    Next::Stop
                }
            }
        })
        .unwrap();
    let mut ran: Vec<_> = (0..5).map(|_| next(&told)).collect();
    ran.sort_unstable();
    assert_eq!(ran, [100, 101, 102, 102, 102]);

    // What follows the end of a future: the next task of its key, and the one who waits for it.
    let begins = |key, go: tokio::sync::oneshot::Receiver<()>| {
        let tell = tell.clone();
        let task = async move |_| {
            tell.send(key).unwrap();
            go.await.unwrap();
        };
        on_tokio.schedule(103, Duration::ZERO, task).unwrap();
    };
    let (end, ended) = tokio::sync::oneshot::channel();
    let (end_next, next_ended) = tokio::sync::oneshot::channel();
    begins(103, ended);
    assert_eq!(next(&told), 103);
    begins(104, next_ended);
    end.send(()).unwrap();
    assert_eq!(next(&told), 104);
    let waits = timers.cancel_and_wait(&103);
    end_next.send(()).unwrap();
    waits.wait().unwrap();
}

fn tokio_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap()
}

/// Blocks the only worker that the scheduler may have, with more tasks behind it.
fn block_scheduler(timers: &Handle<u32>) -> Gate {
    let gate = Gate::default();
    for key in 0..20 {
        let gate = gate.clone();
        timers
            .schedule(key, Duration::ZERO, move |_| gate.pass())
            .unwrap();
    }
    gate.crowd(1);
    gate
}

#[test]
fn futures_are_spawned_while_the_only_worker_is_blocked() {
    in_time(|| {
        let runtime = tokio_runtime();
        let builder = Scheduler::<u32>::builder().workers(1).max_running(1);
        let scheduler = builder.build().unwrap();
        let timers = scheduler.handle();
        let gate = block_scheduler(&timers);
        everything_that_is_spawned(&timers, &runtime);
        assert_eq!(timers.stats().queued, 19);
        gate.open();
        until("all ran", || {
            timers.is_empty() && timers.stats().running == 0
        });
        assert!(timers.stats().balances());
    });
}

#[test]
fn sleeps_and_futures_go_on_while_all_workers_of_a_runtime_are_blocked() {
    in_time(|| {
        let tokio = tokio_runtime();
        let runtime = Runtime::builder().tickers(2).workers(2).max_workers(2);
        let runtime = runtime.build().unwrap();
        let on = || Timer::builder().runtime(&runtime).max_running(1);
        let timers: Vec<Timer> = (0..3).map(|_| on().build().unwrap()).collect();
        let ran = Arc::default();
        let blocks = |timer: &Timer| {
            let gate = block(timer, 20, &ran);
            gate.crowd(1);
            gate
        };
        let mut gates: Vec<Gate> = timers.iter().map(blocks).collect();
        let on = || Scheduler::<u32>::builder().runtime(&runtime).max_running(1);
        let schedulers: Vec<_> = (0..3).map(|_| on().build().unwrap()).collect();
        gates.extend(schedulers.iter().map(|one| block_scheduler(&one.handle())));
        let (tell, told) = channel();
        let map = ExpiryMap::<u32, u32>::builder().runtime(&runtime);
        let map =
            map.time_to_live(SHORT)
                .build_on_tokio(tokio.handle().clone(), 1, move |_, expired| {
                    let tell = tell.clone();
                    async move { tell.send(expired.value).unwrap() }
                });
        let map = map.unwrap();
        for (timer, scheduler) in timers.iter().zip(&schedulers) {
            everything_that_sleeps(timer);
            everything_that_is_spawned(&scheduler.handle(), &tokio);
            for key in 0..3 {
                map.insert(key, key).unwrap();
            }
            let mut ended: Vec<_> = (0..3).map(|_| next(&told)).collect();
            ended.sort_unstable();
            assert_eq!(ended, [0, 1, 2]);
        }
        // All the while each worker has been in the first task of one of them.
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        assert!(
            schedulers
                .iter()
                .all(|one| one.handle().stats().queued == 19)
        );
        assert!(gates.iter().all(|gate| gate.waiting() == 1));
        gates.iter().for_each(Gate::open);
        until("each task ran", || {
            let is_idle = |one: &Scheduler<u32>| one.handle().stats().running == 0;
            ran.load(Ordering::SeqCst) == 60
                && schedulers
                    .iter()
                    .all(|one| one.handle().is_empty() && is_idle(one))
        });
        assert!(timers.iter().all(|timer| timer.stats().balances()));
        assert!(schedulers.iter().all(|one| one.handle().stats().balances()));
    });
}
