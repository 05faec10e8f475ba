//! The trace context of the caller, in the meta of its timers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use kit::{quiet, wait};
use tourbillon_durable::{Due, Durable, Memory, Meta};

const HOUR: Duration = Duration::from_secs(3_600);
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

thread_local! {
    /// The context of the present caller.
    static PRESENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn present() -> Option<String> {
    PRESENT.with_borrow(Clone::clone)
}

fn set(traceparent: &str) {
    PRESENT.set(Some(traceparent.to_owned()));
}

fn meta_of(timers: &Durable, key: &str) -> Option<Meta> {
    let timer = timers.get("q", key).wait().expect("the store answers");
    timer.expect("it was scheduled").meta
}

fn traceparent_of(timers: &Durable, key: &str) -> Option<String> {
    meta_of(timers, key).as_ref().and_then(Meta::traceparent)
}

fn meta(members: &[(&str, &str)]) -> Meta {
    let members: BTreeMap<_, _> = members.iter().copied().collect();
    Meta::new(&members).expect("an object")
}

#[test]
fn each_call_that_schedules_carries_the_context_of_its_thread() {
    let timers = Durable::builder(Memory::new())
        .trace_context(present)
        .start()
        .unwrap();
    timers.schedule("q", "none", HOUR, &1).wait().unwrap();
    assert_eq!(meta_of(&timers, "none"), None);
    set(PARENT);
    timers.schedule("q", "one", HOUR, &1).wait().unwrap();
    let absent = timers.schedule_if_absent("q", "two", HOUR, &2);
    assert!(absent.wait().unwrap().is_scheduled());
    let many = [("three", HOUR, 3), ("four", HOUR, 4)];
    timers.schedule_many("q", many).wait().unwrap();
    for key in ["one", "two", "three", "four"] {
        assert_eq!(
            traceparent_of(&timers, key).as_deref(),
            Some(PARENT),
            "{key}"
        );
    }
    // A move is no new timer, so it keeps the context of the first caller.
    set(OTHER);
    timers.reschedule("q", "one", HOUR * 2).wait().unwrap();
    assert_eq!(traceparent_of(&timers, "one").as_deref(), Some(PARENT));
    timers.schedule("q", "one", HOUR, &1).wait().unwrap();
    assert_eq!(traceparent_of(&timers, "one").as_deref(), Some(OTHER));
    let thread = std::thread::scope(|scope| {
        let call = || timers.schedule("q", "one", HOUR, &1).wait();
        scope.spawn(call).join()
    });
    thread.unwrap().unwrap();
    assert_eq!(meta_of(&timers, "one"), None, "that thread has no context");
}

#[test]
fn the_meta_of_a_call_keeps_its_members_and_its_own_context_wins() {
    set(PARENT);
    let timers = Durable::builder(Memory::new())
        .trace_context(present)
        .start()
        .unwrap();
    let schedule = |key: &str, meta: &Meta| timers.meta(meta).schedule("q", key, HOUR, &1).wait();
    schedule("tenant", &meta(&[("tenant", "acme")])).unwrap();
    let both = meta_of(&timers, "tenant").unwrap();
    let members: BTreeMap<String, String> = both.parse().unwrap();
    assert_eq!(
        (members["tenant"].as_str(), members["traceparent"].as_str()),
        ("acme", PARENT)
    );
    let own = meta(&[("traceparent", OTHER)]);
    schedule("own", &own).unwrap();
    assert_eq!(meta_of(&timers, "own"), Some(own));
    // Also one of another form.
    let own = meta(&[("traceparent", "mine")]);
    schedule("mine", &own).unwrap();
    assert_eq!(meta_of(&timers, "mine"), Some(own));
    assert_eq!(traceparent_of(&timers, "mine"), None);
    // A meta that fills its limit is left as it is.
    let full = meta(&[("k", &"x".repeat(8_192 - 8))]);
    schedule("full", &full).unwrap();
    assert_eq!(meta_of(&timers, "full"), Some(full));
}

#[test]
fn a_context_that_panics_or_has_another_form_makes_no_call_fail() {
    quiet::hush();
    let timers = Durable::builder(Memory::new())
        .trace_context(|| match present().as_deref() {
            Some("panic") => panic!("{}: no context", quiet::WANTED),
            other => other.map(str::to_owned),
        })
        .start()
        .unwrap();
    let long = "0".repeat(1 << 20);
    for wrong in [
        "panic",
        "",
        "00",
        "\"},{\"",
        "\0",
        &PARENT.to_uppercase(),
        &long,
    ] {
        set(wrong);
        timers.schedule("q", "k", HOUR, &1).wait().unwrap();
        assert_eq!(
            meta_of(&timers, "k"),
            None,
            "{:?}",
            &wrong[..wrong.len().min(9)]
        );
    }
}

#[test]
fn a_run_and_its_retries_have_the_context_and_give_their_own_to_what_they_schedule() {
    let (sender, receiver) = mpsc::channel();
    let shared: std::sync::Arc<std::sync::OnceLock<Durable>> = std::sync::Arc::default();
    let own = std::sync::Arc::clone(&shared);
    let timers = Durable::builder(Memory::new())
        .trace_context(present)
        // As a tracing library would do it: the run is a part of its caller's trace.
        .around(|run| {
            let context = run.meta().and_then(Meta::traceparent);
            move |next: tourbillon_durable::NextLayer<'_>| {
                let before = PRESENT.replace(context.clone());
                let ran = next.run();
                PRESENT.set(before);
                ran
            }
        })
        .handle("first", move |due: &Due<()>| {
            if due.attempt() == 1 {
                return Err("the first one fails".to_owned());
            }
            let timers = own.wait();
            timers
                .schedule("second", "k", Duration::ZERO, &())
                .wait()
                .unwrap();
            Ok(())
        })
        .retry(tourbillon_durable::RetryPolicy::fixed(
            Duration::from_millis(1),
        ))
        .handle("second", move |due: &Due<()>| {
            sender.send(due.meta().and_then(Meta::traceparent)).unwrap();
        })
        .start()
        .unwrap();
    shared.set(timers.clone()).unwrap();
    set(PARENT);
    timers
        .schedule("first", "k", Duration::ZERO, &())
        .wait()
        .unwrap();
    assert_eq!(wait::next(&receiver).as_deref(), Some(PARENT));
}

#[cfg(feature = "sqlite")]
#[test]
fn a_context_survives_a_restart_in_a_file() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.join(format!("trace-context-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let open = || tourbillon_durable::Sqlite::open(folder.join("timers.db")).unwrap();
    set(PARENT);
    let timers = Durable::builder(open())
        .trace_context(present)
        .start()
        .unwrap();
    timers
        .schedule("q", "k", Duration::ZERO, &())
        .wait()
        .unwrap();
    timers.stop(HOUR).wait().unwrap();
    drop(timers);
    let (sender, receiver) = mpsc::channel();
    let timers = Durable::builder(open())
        .handle("q", move |due: &Due<()>| {
            sender.send(due.meta().and_then(Meta::traceparent)).unwrap();
        })
        .start()
        .unwrap();
    assert_eq!(wait::next(&receiver).as_deref(), Some(PARENT));
    timers.stop(HOUR).wait().unwrap();
    drop(timers);
    std::fs::remove_dir_all(&folder).unwrap();
}
