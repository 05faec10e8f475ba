//! Warnings of tasks.

use std::sync::mpsc;
use std::time::Duration;

use kit::traces::{self, Told};
use kit::{quiet, wait};
use tourbillon::{Clock, ExpiryMap, ManualClock, Scheduler, Timer};
use tracing::Level;

const NOW: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);

/// The warnings with this name, when there is one.
#[track_caller]
fn warnings(name: &str) -> Vec<Told> {
    let traces = traces::listen();
    wait::until("there is a warning", || {
        !traces.events("name", name).is_empty()
    });
    traces.events("name", name)
}

#[test]
fn a_panic_is_a_warning_with_its_text() {
    traces::listen();
    let scheduler = Scheduler::<&str>::builder().name("panics").build().unwrap();
    let timers = scheduler.handle();
    timers
        .schedule("secret", NOW, |_| panic!("{}: a panic", quiet::WANTED))
        .unwrap();
    let told = warnings("panics");
    assert_eq!((told[0].level, told[0].target), (Level::WARN, "tourbillon"));
    assert_eq!(told[0].fields["message"], "a task has panicked");
    assert_eq!(told[0].fields["panic"], "wanted: a panic");
    assert_eq!(told[0].fields["type"], "scheduler");
    assert!(!told[0].fields.contains_key("key"));
    assert!(told[0].within.is_some(), "it is in the span of the run");

    let map = ExpiryMap::<u8, u8>::builder()
        .name("map panics")
        .trace_keys();
    let map = map.time_to_live(NOW);
    let map = map
        .build(|_, _| panic!("{}: of a map", quiet::WANTED))
        .unwrap();
    map.insert(1, 1).unwrap();
    let told = warnings("map panics");
    assert_eq!(
        (&*told[0].fields["key"], &*told[0].fields["panic"]),
        ("1", "wanted: of a map")
    );

    let timer = Timer::builder().name("timer panics").build().unwrap();
    let _ = timer
        .after(NOW, || panic!("{}: of a timer", quiet::WANTED))
        .unwrap();
    let traces = traces::listen();
    let text = "wanted: of a timer";
    wait::until("it is told", || !traces.events("panic", text).is_empty());
    // The name is that of the span around it.
    let spans = traces.spans("name", "timer panics");
    assert_eq!(traces.events("panic", text)[0].within, Some(spans[0].0));
}

#[test]
fn a_panic_of_a_future_is_a_warning() {
    traces::listen();
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(1).build().unwrap();
    let scheduler = Scheduler::<u8>::builder()
        .name("future panics")
        .build()
        .unwrap();
    let timers = scheduler.handle().on_tokio(runtime.handle().clone());
    let task = async |_| panic!("{}: in a future", quiet::WANTED);
    timers.schedule(1, NOW, task).unwrap();
    assert_eq!(
        warnings("future panics")[0].fields["panic"],
        "wanted: in a future"
    );
}

#[test]
fn a_task_at_the_bound_or_above_is_slow_by_the_schedulers_clock() {
    traces::listen();
    let hand = ManualClock::new();
    let scheduler = Scheduler::<u64>::builder()
        .name("slow")
        .slow_task(SECOND)
        .trace_keys();
    let scheduler = scheduler.clock(Clock::manual(&hand)).build().unwrap();
    let timers = scheduler.handle();
    for millis in [999, 1_000, 1_001] {
        let (hand, (sender, ended)) = (hand.clone(), mpsc::channel());
        let task = move |_: &tourbillon::Firing<'_, u64>| {
            hand.advance(Duration::from_millis(millis));
            sender.send(()).unwrap();
        };
        timers.schedule(millis, NOW, task).unwrap();
        wait::next(&ended);
        wait::until("it is complete", || timers.stats().running == 0);
    }
    let told = traces::listen().events("name", "slow");
    let keys: Vec<&str> = told.iter().map(|told| &*told.fields["key"]).collect();
    assert_eq!(keys, ["1000", "1001"]);
    assert_eq!(told[0].fields["message"], "a task was slow");
    assert_eq!(told[0].fields["took"], "1s");
}

#[test]
fn a_bound_of_zero_reports_each_task_and_a_huge_one_none() {
    traces::listen();
    for (name, bound, expected) in [("all slow", NOW, 3), ("none slow", Duration::MAX, 0)] {
        let scheduler = Scheduler::<u8>::builder().name(name).slow_task(bound);
        let scheduler = scheduler.build_stepped(1).unwrap();
        for key in 0..3 {
            scheduler.handle().schedule(key, SECOND, |_| ()).unwrap();
        }
        scheduler.advance(SECOND);
        assert_eq!(traces::listen().events("name", name).len(), expected);
    }
}

#[test]
fn a_task_of_an_inline_scheduler_is_in_a_span_on_its_ticker() {
    let traces = traces::listen();
    let scheduler = Scheduler::<u8>::builder()
        .name("inline")
        .inline()
        .build()
        .unwrap();
    let (sender, within) = mpsc::channel();
    let task = move |_: &tourbillon::Firing<'_, u8>| sender.send(traces::current()).unwrap();
    scheduler.handle().schedule(1, NOW, task).unwrap();
    let within = wait::next(&within).expect("a span");
    assert_eq!(traces.spans("name", "inline")[0].0, within);
}
