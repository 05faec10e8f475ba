//! Pauses of schedules and of their queues, and schedules that no process names.

use std::time::{Duration, SystemTime};

use kit::wait;
use tourbillon_durable::store::{Claim, Epoch, NewNode, StoreTime, Wanted};
use tourbillon_durable::{
    Cron, CronSchedule, Due, Durable, Missed, Overlap, Paging, StoredState, TimerFilter,
};

use crate::worlds::{DAY, Told, World, december, each};

const HOUR: Duration = Duration::from_secs(3_600);

fn daily() -> CronSchedule {
    CronSchedule::new("0 6 * * *", "UTC").unwrap()
}

fn teller(world: &World, told: &Told<SystemTime>, schedule: CronSchedule) -> Durable {
    let told = told.clone();
    let node = world
        .node()
        .handle("report", move |due: &Due<()>| told.add(due.scheduled_for()));
    node.cron("daily", schedule, &()).start().unwrap()
}

fn morning(day: u32) -> SystemTime {
    december() + 6 * HOUR + DAY * day
}

/// Waits until the schedule waits for an occurrence.
fn waits_for(timers: &Durable, occurrence: SystemTime) {
    wait::until("the next occurrence waits", || {
        let timer = timers.get("report", "daily").wait().unwrap().unwrap();
        let schedule = timer.schedule().unwrap().unwrap();
        timer.state != StoredState::Running && schedule.occurrence == Some(occurrence)
    });
}

#[test]
fn a_paused_schedule_makes_up_what_its_policy_says() {
    for (missed, made_up) in [(Missed::Skip, 0), (Missed::AtMost(2), 2), (Missed::All, 4)] {
        each(|world| {
            let told = Told::default();
            let timers = teller(world, &told, daily().missed(missed).grace(HOUR));
            world.clock.advance(6 * HOUR);
            told.wait_for(1);
            waits_for(&timers, morning(1));
            assert!(timers.pause_schedule("report", "daily").wait().unwrap());
            let timer = timers.get("report", "daily").wait().unwrap().unwrap();
            assert_eq!(timer.state, StoredState::Paused);
            assert!(timer.schedule().unwrap().unwrap().paused);
            world.clock.advance(4 * DAY + 2 * HOUR);
            // A start in between changes nothing.
            drop(timers);
            let timers = teller(world, &told, daily().missed(missed).grace(HOUR));
            assert!(timers.resume_schedule("report", "daily").wait().unwrap());
            let expected: Vec<_> = [0].into_iter().chain(5 - made_up..5).map(morning).collect();
            assert_eq!(told.wait_for(expected.len()), expected);
            waits_for(&timers, morning(5));
            world.clock.advance(22 * HOUR);
            let all = told.wait_for(expected.len() + 1);
            assert_eq!(all.last(), Some(&morning(5)));
            assert_eq!(all.len(), expected.len() + 1);
        });
    }
}

#[test]
fn a_paused_schedule_runs_once_if_it_is_told_to() {
    each(|world| {
        let told = Told::default();
        let timers = teller(world, &told, daily());
        timers.pause_schedule("report", "daily").wait().unwrap();
        assert!(timers.run_now("report", "daily").wait().unwrap().is_moved());
        let now: SystemTime = world.clock.now();
        assert_eq!(told.wait_for(1), [now]);
        wait::until("it is held again", || {
            let timer = timers.get("report", "daily").wait().unwrap().unwrap();
            timer.state == StoredState::Paused && timer.planned == morning(0)
        });
        timers.resume_schedule("report", "daily").wait().unwrap();
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(2), [now, morning(0)]);
    });
}

#[test]
fn a_run_of_a_paused_schedule_takes_the_place_of_no_missed_occurrence() {
    for overlap in [Overlap::Wait, Overlap::Skip, Overlap::Replace] {
        each(|world| {
            let told = Told::default();
            let schedule = daily().missed(Missed::All).overlap(overlap);
            let held = Told::default();
            let holds = held.clone();
            let telling = told.clone();
            let node = world.node().handle("report", move |due: &Due<()>| {
                holds.add(due.is_held());
                telling.add(due.scheduled_for());
            });
            let timers = node.cron("daily", schedule, &()).start().unwrap();
            timers.pause_schedule("report", "daily").wait().unwrap();
            world.clock.advance(DAY);
            let now: SystemTime = world.clock.now();
            timers.run_now("report", "daily").wait().unwrap();
            assert_eq!(told.wait_for(1), [now]);
            assert_eq!(held.all(), [true]);
            wait::until("it is held again", || {
                let timer = timers.get("report", "daily").wait().unwrap().unwrap();
                timer.state == StoredState::Paused
            });
            timers.resume_schedule("report", "daily").wait().unwrap();
            assert_eq!(told.wait_for(2), [morning(0), now]);
        });
    }
}

#[test]
fn a_paused_queue_pauses_its_schedules() {
    each(|world| {
        let told = Told::default();
        let timers = teller(world, &told, daily());
        timers.pause("report").wait().unwrap();
        world.clock.advance(3 * DAY);
        wait::until("the schedule is paused", || {
            let timer = timers.get("report", "daily").wait().unwrap().unwrap();
            timer.state == StoredState::Paused
        });
        assert_eq!(told.all(), []);
        timers.resume("report").wait().unwrap();
        // Without a grace the latest one is not missed.
        assert_eq!(told.wait_for(1), [morning(2)]);
        waits_for(&timers, morning(3));
        assert_eq!(told.all(), [morning(2)]);
    });
}

#[test]
fn a_schedule_that_no_process_names_goes_on_and_is_flagged() {
    each(|world| {
        let told = Told::default();
        let client = world.client();
        let made = Cron::new("@hourly", "UTC").unwrap();
        client.schedule("report", "made", made, &()).wait().unwrap();
        let flags = || {
            let nodes = client.nodes().wait().unwrap();
            let filter = TimerFilter::all().schedules();
            let all = client.list(filter, &Paging::first(10)).wait().unwrap();
            let mut flags: Vec<_> = all
                .into_iter()
                .map(|timer| (timer.key.clone(), timer.is_unnamed(&nodes)))
                .collect();
            flags.sort();
            flags
        };
        let named = teller(world, &told, daily());
        let is = |daily| vec![("daily".to_owned(), daily), ("made".to_owned(), false)];
        wait::until("the process names it", || flags() == is(false));
        // A process of a version without it handles the queue.
        let tells = told.clone();
        let later = world
            .node()
            .handle("report", move |due: &Due<()>| {
                tells.add(due.scheduled_for());
            })
            .start()
            .unwrap();
        wait::until("both are there", || {
            client.nodes().wait().unwrap().len() == 2
        });
        assert_eq!(flags(), is(false));
        named.stop(Duration::from_secs(10)).wait().unwrap();
        wait::until("no process names it", || flags() == is(true));
        world.clock.advance(7 * HOUR);
        wait::until("it goes on", || told.all().contains(&morning(0)));
        waits_for(&client, morning(1));
        assert!(
            client
                .cancel("report", "daily")
                .wait()
                .unwrap()
                .is_cancelled()
        );
        assert_eq!(flags(), [("made".to_owned(), false)]);
        // A process that names it stores it again.
        let named = teller(world, &told, daily());
        wait::until("the process names it", || flags() == is(false));
        drop((later, named));
    });
}

#[test]
fn schedules_are_made_in_batches() {
    each(|world| {
        let timers = world.client();
        let zones = ["UTC", "America/New_York", "Asia/Tokyo"];
        let batch: Vec<_> = zones
            .iter()
            .map(|zone| (*zone, Cron::new("0 9 * * *", zone).unwrap(), *zone))
            .collect();
        for sent in timers.schedule_many("remind", batch).wait().unwrap() {
            assert_eq!(sent.unwrap().replaced, None);
        }
        let filter = TimerFilter::queue("remind").schedules();
        let made = timers.list(filter, &Paging::first(10)).wait().unwrap();
        let made: Vec<_> = made.iter().map(|timer| (&*timer.key, timer.due)).collect();
        let nine = |hours| december() + hours * HOUR;
        assert_eq!(
            made,
            [
                ("UTC", nine(9)),
                ("America/New_York", nine(14)),
                ("Asia/Tokyo", nine(24))
            ]
        );
    });
}

#[test]
fn an_occurrence_whose_processes_die_is_given_up_and_the_schedule_goes_on() {
    each(|world| {
        let client = world.client();
        client
            .schedule("report", "daily", daily(), &())
            .wait()
            .unwrap();
        world.clock.advance(6 * HOUR);
        let mut connection = world.store().connect().unwrap();
        for epoch in [Epoch(1), Epoch(2)] {
            let node = NewNode {
                epoch,
                name: "dies".into(),
                queues: vec!["report".into()],
                schedules: Default::default(),
            };
            connection.join(&node).unwrap();
            let claim = Claim {
                epoch,
                deadline: StoreTime::LATEST,
                timers: vec![Wanted {
                    queue: "report".into(),
                    key: "daily".into(),
                    crash_limit: 10,
                }],
                adopt: Vec::new(),
            };
            assert_eq!(connection.claim(&claim).unwrap().runs.len(), 1);
            connection.leave(epoch).unwrap();
        }
        let told = Told::default();
        let tells = told.clone();
        let node = world
            .node()
            .handle("report", move |due: &Due<()>| {
                tells.add(due.scheduled_for());
            })
            .crash_limit(2)
            .start()
            .unwrap();
        waits_for(&client, morning(1));
        let letters = client.dead("report", 0, 10).wait().unwrap();
        assert_eq!(letters.len(), 1, "{letters:?}");
        assert!(
            letters[0].key.starts_with("daily@2026-12-01T06:00:00"),
            "{letters:?}"
        );
        assert!(letters[0].error.contains("ended 2 times"), "{letters:?}");
        let timer = client.get("report", "daily").wait().unwrap().unwrap();
        let last = timer.schedule().unwrap().unwrap().last.unwrap();
        assert_eq!(last.scheduled_for, Some(morning(0)));
        assert_eq!(last.outcome.as_deref(), Some("dead"));
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(1), [morning(1)]);
        drop(node);
    });
}
