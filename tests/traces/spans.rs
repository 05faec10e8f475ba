//! A span for each run.

use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use kit::traces::{self, Span};
use kit::{quiet, wait};
use tourbillon::{Expired, ExpiryMap, Period, Scheduler, Timer};
use tracing::Level;

const NOW: Duration = Duration::ZERO;

/// The closed spans with this name, when there are as many.
#[track_caller]
fn closed(name: &str, count: usize) -> Vec<Span> {
    let traces = traces::listen();
    wait::until("the spans are closed", || {
        let spans = traces.spans("name", name);
        spans.iter().filter(|(_, span)| span.is_closed).count() == count
    });
    let spans = traces.spans("name", name);
    assert_eq!(spans.len(), count, "{spans:?}");
    spans.into_iter().map(|(_, span)| span).collect()
}

#[test]
fn a_task_runs_in_a_span_that_says_whose_it_is_and_hides_the_key() {
    traces::listen();
    let scheduler = Scheduler::<&str>::builder().name("hides").build().unwrap();
    let (sender, within) = mpsc::channel();
    let task = move |_: &tourbillon::Firing<'_, &str>| sender.send(traces::current()).unwrap();
    scheduler.handle().schedule("secret", NOW, task).unwrap();
    let within = wait::next(&within).expect("a span");
    let spans = closed("hides", 1);
    let span = &spans[0];
    assert_eq!(traces::listen().spans("name", "hides")[0].0, within);
    assert_eq!(
        (span.level, span.target, span.name),
        (Level::DEBUG, "tourbillon", "run")
    );
    assert_eq!(span.fields["type"], "scheduler");
    assert!(span.fields.contains_key("lateness"));
    assert!(!span.fields.contains_key("key"), "{span:?}");
    assert_eq!((span.entered, span.exited), (1, 1));
}

#[test]
fn a_key_is_shown_if_that_was_asked_for() {
    traces::listen();
    let scheduler = Scheduler::<&str>::builder().name("shows").trace_keys();
    let scheduler = scheduler.build().unwrap();
    scheduler.handle().schedule("visible", NOW, |_| ()).unwrap();
    assert_eq!(closed("shows", 1)[0].fields["key"], "\"visible\"");
    let map = ExpiryMap::<u64, &str>::builder();
    let map = map.name("map shows").trace_keys().time_to_live(NOW);
    let map = map.build(|_, _| ()).unwrap();
    map.insert(7, "value").unwrap();
    let spans = closed("map shows", 1);
    assert_eq!(
        (&*spans[0].fields["key"], &*spans[0].fields["type"]),
        ("7", "map")
    );
}

#[test]
fn each_round_of_a_repeating_task_has_a_span() {
    traces::listen();
    let scheduler = Scheduler::<u8>::builder()
        .name("rounds")
        .build_stepped(1)
        .unwrap();
    let second = Duration::from_secs(1);
    let beat = Period::fixed_rate(second);
    scheduler.handle().repeat(1, beat, |_| ()).unwrap();
    assert_eq!(scheduler.advance(second * 3).len(), 3);
    for span in closed("rounds", 3) {
        assert_eq!((span.entered, span.exited), (1, 1));
    }
}

#[test]
fn tasks_of_a_timer_have_spans_and_its_sleeps_have_none() {
    traces::listen();
    let timer = Timer::builder().name("timer").build().unwrap();
    let (sender, ran) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(timer.sleep(NOW)).unwrap();
    let _ = timer.after(NOW, move || sender.send(()).unwrap()).unwrap();
    wait::next(&ran);
    let spans = closed("timer", 1);
    assert_eq!(spans[0].fields["type"], "timer");
    assert!(!spans[0].fields.contains_key("key"));
}

#[test]
fn a_future_is_in_its_span_at_each_poll_and_on_no_other_thread() {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let scheduler = Scheduler::<u8>::builder().name("futures").build().unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let (sender, within) = mpsc::channel();
    timers
        .schedule(1, NOW, async move |_| {
            let first = traces::current();
            tokio::task::yield_now().await;
            sender.send((first, traces::current())).unwrap();
        })
        .unwrap();
    let (first, second) = wait::next(&within);
    assert!(first.is_some() && first == second);
    let spans = closed("futures", 1);
    assert_eq!((spans[0].entered, spans[0].exited), (2, 2));
    assert_eq!(spans[0].fields["type"], "scheduler");
}

#[test]
fn futures_of_a_map_and_of_rounds_have_one_span_each() {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let map = ExpiryMap::<u8, u8>::builder()
        .name("map of futures")
        .time_to_live(NOW);
    let handle = async |_, expired: Expired<u8, u8>| {
        tokio::task::yield_now().await;
        assert_eq!(expired.value, 7);
    };
    let map = map.build_on_tokio(runtime.handle().clone(), 1, handle);
    let map = map.unwrap();
    map.insert(1, 7).unwrap();
    let spans = closed("map of futures", 1);
    assert_eq!((spans[0].entered, spans[0].exited), (2, 2));

    let scheduler = Scheduler::<u8>::builder()
        .name("rounds of futures")
        .build()
        .unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let period = Period::fixed_delay(Duration::from_millis(1));
    let (sender, rounds) = mpsc::channel();
    timers
        .repeat(1, period, move |round| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(round.number());
                if round.number() == 2 {
                    round.handle().cancel(&1);
                }
            }
        })
        .unwrap();
    assert_eq!((wait::next(&rounds), wait::next(&rounds)), (1, 2));
    closed("rounds of futures", 2);
}

#[test]
fn a_future_that_never_ends_closes_its_span_with_its_runtime() {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let scheduler = Scheduler::<u8>::builder().name("pending").build().unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let (sender, started) = mpsc::channel();
    timers
        .schedule(1, NOW, async move |_| {
            sender.send(()).unwrap();
            std::future::pending::<()>().await;
        })
        .unwrap();
    wait::next(&started);
    runtime.shutdown_background();
    let spans = closed("pending", 1);
    assert_eq!((spans[0].entered, spans[0].exited), (1, 1));
    let report = scheduler.shutdown(tourbillon::Shutdown::HandBack).wait();
    assert_eq!(report.unwrap().still_running, 0);
}

#[test]
fn a_subscriber_that_panics_keeps_no_run_from_its_end() {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    for call in ["new_span", "enter", "exit", "try_close", "event"] {
        let scheduler = Scheduler::<u8>::builder().name(traces::panics_at(call));
        let scheduler = scheduler.build().unwrap();
        let timers = scheduler.handle();
        let (sender, runs) = mpsc::channel();
        let (other, third) = (sender.clone(), sender.clone());
        timers
            .schedule(1, NOW, move |_| sender.send(1).unwrap())
            .unwrap();
        assert_eq!(wait::next(&runs), 1, "{call}");
        let futures = timers.on_tokio(runtime.handle().clone());
        futures
            .schedule(2, NOW, async move |_| {
                tokio::task::yield_now().await;
                other.send(2).unwrap();
            })
            .unwrap();
        assert_eq!(wait::next(&runs), 2, "{call}");
        timers
            .schedule(3, NOW, move |_| panic!("{}: {call}", quiet::WANTED))
            .unwrap();
        wait::until("the panic is counted", || timers.stats().panicked == 1);
        timers
            .schedule(4, NOW, move |_| third.send(4).unwrap())
            .unwrap();
        assert_eq!(wait::next(&runs), 4, "{call}");
        wait::until("all are complete", || timers.stats().running == 0);
        let stats = timers.stats();
        assert_eq!((stats.ran, stats.panicked), (4, 1), "{call}");
    }
}

#[test]
fn a_key_whose_debug_panics_costs_its_run_the_span_alone() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key;
    impl fmt::Debug for Key {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("{}: in Debug", quiet::WANTED)
        }
    }
    traces::listen();
    let scheduler = Scheduler::<Key>::builder().name("bad key").trace_keys();
    let scheduler = scheduler.build().unwrap();
    let (sender, runs) = mpsc::channel();
    scheduler
        .handle()
        .schedule(Key, NOW, move |_| sender.send(()).unwrap())
        .unwrap();
    wait::next(&runs);
    assert!(traces::listen().spans("name", "bad key").is_empty());
}
