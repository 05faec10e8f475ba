//! Processes that are slower than the period of their schedules.

use std::time::Duration;

use kit::wait;
use tourbillon_durable::store::Store;
use tourbillon_durable::{CronSchedule, Due, Durable, DurableEvent, Memory, Missed, WallClock};

use crate::watched::{Seen, Watched};
use crate::worlds::{SECOND, Told, december};

/// Each claim takes five seconds, and the schedule runs each second.
fn overloaded<S: Store + Clone>(store: S, clock: &WallClock, schedule: CronSchedule) {
    let late = clock.clone();
    let store = Watched::new(store, move |seen| {
        if let Seen::Claim(claim) = seen
            && !claim.timers.is_empty()
        {
            late.advance(5 * SECOND);
        }
    });
    let (told, missed) = (Told::default(), Told::default());
    let node = Durable::builder(store)
        .poll_interval(Duration::from_millis(10))
        .on_event({
            let missed = missed.clone();
            move |event| {
                if let DurableEvent::Missed { next, .. } = event {
                    missed.add(*next);
                }
            }
        })
        .handle("report", {
            let told = told.clone();
            move |due: &Due<String>| {
                let times = [due.scheduled_for(), due.due(), due.planned()];
                told.add((times, due.attempt(), due.crashes()));
            }
        });
    let node = node.cron("each", schedule, "all").start().unwrap();
    for run in 1..=10 {
        // If this process stands still between a claim and its run, an occurrence that is not due by
        // the store's clock may be chosen. It waits for that clock.
        wait::until("it has run", || {
            clock.advance(SECOND / 100);
            told.all().len() >= run
        });
    }
    let runs = told.all();
    for (times, attempt, crashes) in &runs {
        assert_eq!(*times, [times[0]; 3], "{runs:?}");
        assert_eq!((*attempt, *crashes), (1, 0));
    }
    // Each run is of another occurrence. An event tells of those between two runs.
    let distinct: std::collections::BTreeSet<_> = runs.iter().map(|run| run.0[0]).collect();
    assert_eq!(distinct.len(), runs.len(), "{runs:?}");
    assert!(runs[9].0[0] >= december() + 9 * 5 * SECOND, "{runs:?}");
    let missed = missed.wait_for(10);
    assert!(
        runs.iter().all(|run| missed.contains(&run.0[0])),
        "{missed:?}"
    );
    drop(node);
}

fn each(schedule: impl Fn() -> CronSchedule) {
    let clock = WallClock::manual(december());
    overloaded(Memory::with_clock(clock.clone()), &clock, schedule());
    #[cfg(feature = "sqlite")]
    {
        let folder = crate::folder::Folder::new("overload");
        let clock = WallClock::manual(december());
        let store = tourbillon_durable::Sqlite::open(folder.path().join("timers.db")).unwrap();
        overloaded(store.with_clock(clock.clone()), &clock, schedule());
    }
}

fn each_second() -> CronSchedule {
    CronSchedule::new("* * * * * *", "UTC").unwrap()
}

#[test]
fn the_latest_occurrence_runs_though_each_claim_is_later_than_the_next_one() {
    each(each_second);
}

#[test]
fn an_occurrence_within_its_grace_runs_though_each_claim_finds_an_older_one() {
    each(|| each_second().grace(2 * SECOND));
    each(|| each_second().grace(SECOND).missed(Missed::Once));
}
