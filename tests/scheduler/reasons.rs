//! Errors that hand something back, on their way through `?`.

use std::cell::Cell;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tourbillon::keyed::Debounce;
use tourbillon::wheel::{FullError, Tick, Wheel};
use tourbillon::{
    EntryError, ExpiryMap, InsertError, InsertRefusal, InsideTaskError, Next, Period, Report,
    ScheduleError, Scheduler, Shutdown, SleepError, TimeoutError, Timer, WaitError,
};

const S: Duration = Duration::from_secs(1);

/// What `anyhow` and most programs pass on.
type Any = Box<dyn Error + Send + Sync>;

/// What can be sent, and not shared. It counts its drops by its reference.
#[derive(Clone, Debug)]
struct Task {
    _not_sync: Cell<u8>,
    _held: Arc<()>,
}

fn task(held: &Arc<()>) -> Task {
    Task {
        _not_sync: Cell::new(0),
        _held: Arc::clone(held),
    }
}

fn run(task: &Task) {
    let _ = task;
}

#[test]
fn a_refused_task_is_dropped_and_its_reason_is_an_error_for_every_call() {
    let (held, scheduler) = (Arc::new(()), Scheduler::<u64>::new().unwrap());
    let timers = scheduler.handle();
    let timer = Timer::new().unwrap();
    let debounce = Debounce::builder(&timers, S).build(|_, _: Task| ());
    scheduler.shutdown(Shutdown::HandBack).wait().unwrap();
    timer.shutdown(Shutdown::HandBack).wait().unwrap();
    type Call<'a> = &'a dyn Fn(Task) -> Result<(), Any>;
    let calls: [(&str, Call<'_>); 5] = [
        ("schedule", &|task| {
            let armed = timers.schedule(7, S, move |_| run(&task));
            armed.map_err(ScheduleError::into_reason)?;
            Ok(())
        }),
        ("if absent", &|task| {
            let armed = timers.schedule_if_absent(7, S, move |_| run(&task));
            armed.map_err(ScheduleError::into_reason)?;
            Ok(())
        }),
        ("repeat", &|task| {
            let round = move |_: &tourbillon::Round<'_, u64>| {
                run(&task);
                Next::Again
            };
            let armed = timers.repeat(7, Period::fixed_rate(S), round);
            armed.map_err(ScheduleError::into_reason)?;
            Ok(())
        }),
        ("after", &|task| {
            let armed = timer.after(S, move || run(&task));
            let _ = armed.map_err(ScheduleError::into_reason)?;
            Ok(())
        }),
        ("debounce", &|task| {
            debounce.call(7, task).map_err(ScheduleError::into_reason)?;
            Ok(())
        }),
    ];
    for (name, call) in calls {
        let reason = call(task(&held)).expect_err(name);
        assert_eq!(Arc::strong_count(&held), 1, "{name}: the task is dropped");
        assert_eq!(reason.to_string(), "the scheduler is closed", "{name}");
        let reason = reason.downcast::<ScheduleError<()>>().expect(name);
        assert!(matches!(*reason, ScheduleError::Closed(())), "{name}");
    }
}

#[test]
fn each_reason_keeps_its_variant_and_its_text() {
    let all = || {
        [
            ScheduleError::Full(Cell::new(1)),
            ScheduleError::Closed(Cell::new(1)),
            ScheduleError::Closing(Cell::new(1)),
            ScheduleError::Occupied(Cell::new(1)),
            ScheduleError::ZeroPeriod(Cell::new(1)),
            ScheduleError::NoRound(Cell::new(1)),
            ScheduleError::UnderLock(Cell::new(1)),
        ]
    };
    for (error, same) in all().into_iter().zip(all()) {
        let reason = same.into_reason();
        assert_eq!(error.to_string(), reason.to_string());
        assert_eq!(format!("{error:?}"), format!("{reason:?}"));
        assert_eq!(error.is_transient(), reason.is_transient());
    }
}

#[test]
fn a_refused_entry_is_dropped_and_its_reason_is_an_error() {
    let held = Arc::new(());
    let map = ExpiryMap::<u64, Task>::builder()
        .max_pending(1)
        .build(|_, _| ())
        .unwrap();
    let insert = |key, task| -> Result<(), Any> {
        map.insert(key, task).map_err(InsertError::into_reason)?;
        Ok(())
    };
    let get = |key, task: Option<Task>| -> Result<(), Any> {
        let made = || task.ok_or("not made").map_err(std::io::Error::other);
        map.entry(key)
            .or_try_insert_with(made)
            .map_err(EntryError::into_reason)?;
        Ok(())
    };
    insert(1, task(&held)).unwrap();
    let reason = insert(2, task(&held)).unwrap_err();
    assert_eq!(reason.downcast_ref(), Some(&InsertRefusal::Full));
    let text = reason.to_string();
    assert!(text.contains("max_pending"), "{text}");
    let reason = get(2, Some(task(&held))).unwrap_err();
    assert_eq!(reason.source().unwrap().to_string(), text);
    let reason = get(2, None).unwrap_err();
    assert_eq!(reason.source().unwrap().to_string(), "not made");
    assert_eq!(Arc::strong_count(&held), 2, "the first entry is in the map");
    // The error itself says the same.
    let error = map.insert(2, task(&held)).unwrap_err();
    assert_eq!(error.to_string(), text);
    assert_eq!(error.into_reason(), InsertRefusal::Full);
    map.shutdown(Shutdown::HandBack).wait().unwrap();
    let reason = insert(2, task(&held)).unwrap_err();
    assert_eq!(reason.to_string(), "the map is closed");
}

#[test]
fn all_other_errors_can_be_passed_on_as_they_are() {
    fn passes<E: Error + Send + Sync + 'static>() {}
    passes::<InsideTaskError<Report<u64>>>();
    passes::<ScheduleError<()>>();
    passes::<EntryError<(), (), std::io::Error>>();
    passes::<WaitError>();
    passes::<SleepError>();
    passes::<TimeoutError>();
    passes::<tourbillon::BuildError>();
    passes::<tourbillon::retry::RetryError<std::io::Error>>();
    passes::<FullError<()>>();
    // A full wheel can't be made in a test: it has four billion values.
    let _: fn(FullError<Sender<Cell<u8>>>) -> FullError<()> = FullError::into_reason;
    let mut wheel = Wheel::new();
    let insert = |wheel: &mut Wheel<Sender<u8>>| -> Result<(), Any> {
        wheel
            .try_insert(Tick::new(1), channel().0)
            .map_err(FullError::into_reason)?;
        Ok(())
    };
    assert!(insert(&mut wheel).is_ok());
}

#[cfg(feature = "serde")]
#[test]
fn a_snapshot_of_a_newer_version_is_dropped_and_its_format_kept() {
    use tourbillon::{NewerFormatError, Snapshot};

    let newer = |map: &ExpiryMap<u64, Cell<u8>>| -> Result<(), Any> {
        let text = r#"{"format":999,"taken":0,"entries":[]}"#;
        let snapshot: Snapshot<u64, Cell<u8>> = serde_json::from_str(text)?;
        map.restore(snapshot)
            .map_err(NewerFormatError::into_reason)?;
        Ok(())
    };
    let map = ExpiryMap::builder().build(|_, _| ()).unwrap();
    let reason = newer(&map).unwrap_err();
    assert!(reason.to_string().contains("format 999"), "{reason}");
}
