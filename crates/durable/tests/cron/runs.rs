//! What runs, when, and how often.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use kit::wait;
use tourbillon_durable::store::Connection;
use tourbillon_durable::{
    CallError, CompleteError, CompletesRun, Completion, Cron, CronSchedule, DeadFilter, Due,
    Durable, DurableEvent, Ending, Invalid, Meta, Missed, Overlap, RetryPolicy, StartError,
};

use crate::worlds::{DAY, SECOND, Told, World, december, each};

const HOUR: Duration = Duration::from_secs(3_600);

fn daily() -> CronSchedule {
    CronSchedule::new("0 6 * * *", "UTC").unwrap()
}

/// A node that tells the times that its runs stand for.
fn teller(world: &World, told: &Told<SystemTime>, schedule: CronSchedule) -> Durable {
    let told = told.clone();
    let node = world.node().handle("report", move |due: &Due<String>| {
        assert_eq!((due.key(), &**due.payload()), ("daily", "all"));
        told.add(due.scheduled_for());
    });
    node.cron("daily", schedule, "all").start().unwrap()
}

fn mornings(days: std::ops::Range<u32>) -> Vec<SystemTime> {
    days.map(|day| december() + 6 * HOUR + DAY * day).collect()
}

#[test]
fn each_occurrence_runs_once_on_three_nodes() {
    each(|world| {
        let told = Told::default();
        let nodes = [(); 3].map(|()| teller(world, &told, daily()));
        for day in 1..=20 {
            world.clock.advance(DAY);
            told.wait_for(day);
        }
        // One more, so that a second run of an earlier one would have shown.
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(21), mornings(0..21));
        let next = mornings(21..22)[0];
        let client = world.client();
        wait::until("the next one waits", || {
            let timer = client.get("report", "daily").wait().unwrap().unwrap();
            (timer.due, timer.planned) == (next, next)
        });
        drop(nodes);
    });
}

#[test]
fn what_was_missed_is_left_out_or_made_up() {
    for (missed, run) in [
        (Missed::Skip, 1),
        (Missed::Once, 1),
        (Missed::AtMost(3), 3),
        (Missed::All, 10),
    ] {
        each(|world| {
            let told = Told::default();
            let schedule = daily().missed(missed).grace(HOUR);
            drop(teller(world, &told, schedule.clone()));
            // Nine mornings pass while nobody is there, and the tenth is half an hour ago.
            world.clock.advance(9 * DAY + 6 * HOUR + HOUR / 2);
            let _node = teller(world, &told, schedule);
            let expected = mornings(10 - run..10);
            assert_eq!(told.wait_for(expected.len()), expected);
            let missed = |event: &DurableEvent| match event {
                DurableEvent::Missed {
                    scheduled_for,
                    next,
                    ..
                } => Some([*scheduled_for, *next]),
                _ => None,
            };
            // An event tells which occurrences were left out.
            let told_missed = (run < 10).then(|| [mornings(0..1)[0], expected[0]]);
            wait::until("what was left out is told", || {
                let events = world.events.lock().unwrap();
                events.iter().find_map(missed) == told_missed
            });
            world.clock.advance(DAY);
            assert_eq!(told.wait_for(expected.len() + 1), mornings(10 - run..11));
        });
    }
}

#[test]
fn a_changed_definition_moves_the_pending_occurrence() {
    each(|world| {
        let told = Told::default();
        let old = teller(world, &told, daily().revision(1));
        world.clock.advance(12 * HOUR);
        told.wait_for(1);
        let evening = CronSchedule::new("0 18 * * *", "UTC").unwrap().revision(2);
        let new = teller(world, &told, evening);
        // A process of the old version starts again, and changes nothing.
        drop(old);
        let old = teller(world, &told, daily().revision(1));
        world.clock.advance(DAY);
        let evening = december() + 18 * HOUR;
        assert_eq!(told.wait_for(2), [mornings(0..1)[0], evening]);
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(3)[2], evening + DAY);
        drop((old, new));
    });
}

#[test]
fn a_failing_occurrence_is_given_up_and_the_schedule_goes_on() {
    each(|world| {
        let told = Told::default();
        let fails = Arc::new(AtomicBool::new(true));
        let node = world.node().handle("report", {
            let (told, fails) = (told.clone(), Arc::clone(&fails));
            move |due: &Due<String>| {
                if fails.load(Ordering::SeqCst) {
                    return Err("no printer");
                }
                told.add((due.key().to_owned(), due.scheduled_for()));
                Ok(())
            }
        });
        let retry = RetryPolicy::fixed(Duration::from_millis(1)).attempts(2);
        let node = node
            .retry(retry)
            .cron("daily", daily(), "all")
            .start()
            .unwrap();
        world.clock.advance(7 * HOUR);
        wait::until("it is given up", || {
            world.clock.advance(Duration::from_millis(5));
            node.stats().dead == 1
        });
        fails.store(false, Ordering::SeqCst);
        world.clock.advance(DAY);
        let second = ("daily".to_owned(), mornings(1..2)[0]);
        assert_eq!(told.wait_for(1), std::slice::from_ref(&second));
        let letters = node.dead(DeadFilter::all(), 0, 10).wait().unwrap();
        let key = "daily@2026-12-01T06:00:00Z";
        assert_eq!((letters.len(), &*letters[0].key), (1, key));
        // Revived, it has the time that it stands for, and the schedule is as it was.
        node.revive(letters[0].id).wait().unwrap();
        let first = (key.to_owned(), mornings(0..1)[0]);
        assert_eq!(told.wait_for(2), [second, first]);
        wait::until("it has ended", || {
            node.get("report", key).wait().unwrap().is_none()
        });
    });
}

#[test]
fn run_now_runs_in_addition() {
    each(|world| {
        let told = Told::default();
        let node = teller(world, &told, daily());
        let now = world.clock.now();
        node.run_now("report", "daily").wait().unwrap();
        let extra = told.wait_for(1)[0];
        assert_eq!(extra, now);
        wait::until("it waits again", || {
            let timer = node.get("report", "daily").wait().unwrap().unwrap();
            timer.due == mornings(0..1)[0]
        });
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(2), [now, mornings(0..1)[0]]);
    });
}

/// Ends a run by the store itself, without telling a next occurrence, as a program would that does
/// not know it.
struct Blind(Box<dyn Connection>);

impl CompletesRun for Blind {
    type Answer = Result<(), CompleteError>;

    fn complete(mut self, run: &Completion<'_>) -> Result<(), CompleteError> {
        use tourbillon_durable::store::{Outcome, Settle, Settled, Settlement};
        let (epoch, run) = run.parts();
        let outcome = Outcome::Done;
        let settlements = vec![Settlement { run, outcome }];
        match self.0.settle(&Settle { epoch, settlements })?.remove(0)? {
            Settled::Fenced => Err(CompleteError::Fenced),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_run_that_is_completed_without_a_next_occurrence_goes_on_all_the_same() {
    each(|world| {
        let told = Told::default();
        let node = world.node().handle("report", {
            let (told, store) = (told.clone(), world.store());
            move |due: &Due<String>| {
                due.complete_in(Blind(store.connect()?))?;
                told.add(due.scheduled_for());
                Ok::<_, CompleteError>(())
            }
        });
        let node = node.cron("daily", daily(), "all").start().unwrap();
        for day in 1..=3 {
            world.clock.advance(DAY);
            told.wait_for(day);
        }
        assert_eq!(told.all(), mornings(0..3));
        wait::until("they count as successes", || node.stats().succeeded == 3);
    });
}

#[test]
fn schedules_made_at_run_time_have_their_zones() {
    each(|world| {
        let told = Told::default();
        let node = world.node().handle("remind", {
            let told = told.clone();
            move |due: &Due<u32>| told.add((due.key().to_owned(), due.scheduled_for()))
        });
        let node = node.start().unwrap();
        for (customer, zone) in [("anna", "Europe/Berlin"), ("bob", "America/New_York")] {
            let nine = Cron::new("0 9 * * *", zone).unwrap();
            node.schedule("remind", customer, nine, &7).wait().unwrap();
        }
        // One that is there is left.
        let ten = Cron::new("0 10 * * *", "UTC").unwrap();
        let left = node
            .schedule_if_absent("remind", "anna", ten, &8)
            .wait()
            .unwrap();
        assert!(!left.is_scheduled());
        world.clock.advance(DAY);
        let anna = ("anna".to_owned(), december() + 8 * HOUR);
        let bob = ("bob".to_owned(), december() + 14 * HOUR);
        assert_eq!(told.wait_for(2), [anna.clone(), bob]);
        node.cancel("remind", "bob").wait().unwrap();
        world.clock.advance(DAY);
        assert_eq!(told.wait_for(3)[1], ("anna".to_owned(), anna.1 + DAY));
    });
}

#[test]
fn an_occurrence_asks_to_run_again_and_the_next_one_comes() {
    each(|world| {
        let told = Told::default();
        let node = world.node().handle("report", {
            let told = told.clone();
            move |due: &Due<String>| {
                told.add((due.scheduled_for(), due.planned()));
                match due.planned() == due.scheduled_for() {
                    true => Ending::Again(HOUR),
                    false => Ending::Done,
                }
            }
        });
        // Without any grace, the second part would be missed if it counted as late.
        let strict = daily().grace(SECOND);
        let _node = node.cron("daily", strict, "all").start().unwrap();
        world.clock.set(mornings(0..1)[0]);
        told.wait_for(1);
        wait::until("both parts have run", || {
            world.clock.advance(SECOND * 60);
            told.all().len() == 2
        });
        let told = told.all();
        let first = mornings(0..1)[0];
        assert_eq!(told[0], (first, first));
        assert_eq!(told[1].0, first);
        assert!(told[1].1 >= first + HOUR, "{told:?}");
    });
}

#[test]
fn a_replaced_run_is_no_longer_held() {
    each(|world| {
        let (go, gate) = mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let told = Told::default();
        let node = world.node().handle("report", {
            let told = told.clone();
            move |due: &Due<String>| {
                told.add((due.scheduled_for(), due.is_held()));
                if told.all().len() == 1 {
                    gate.lock().unwrap().recv().unwrap();
                    told.add((due.scheduled_for(), due.is_held()));
                    return Err("it has to stop");
                }
                Ok(())
            }
        });
        let others = Told::default();
        let schedule = daily().overlap(Overlap::Replace);
        let node = node.cron("daily", schedule, "all").handle("other", {
            let others = others.clone();
            move |due: &Due<String>| others.add(due.key().to_owned())
        });
        let node = node.start().unwrap();
        world.clock.set(mornings(0..1)[0]);
        told.wait_for(1);
        world.clock.set(mornings(1..2)[0]);
        // The node knows the time by the claim of another timer.
        node.schedule("other", "k", Duration::ZERO, "all")
            .wait()
            .unwrap();
        others.wait_for(1);
        go.send(()).unwrap();
        let [first, second] = [mornings(0..1)[0], mornings(1..2)[0]];
        assert_eq!(
            told.wait_for(3),
            [(first, false), (first, true), (second, true)]
        );
        wait::until("the first one is given up", || node.stats().dead == 1);
    });
}

#[test]
fn a_schedule_that_can_not_be_read_waits_and_is_told() {
    each(|world| {
        let told = Told::<SystemTime>::default();
        let node = teller(world, &told, daily());
        node.cancel("report", "daily").wait().unwrap();
        // As another program would have written it.
        let cron = r#"{"cron":{"expression":"0 6 * * *","zone":"Mars/Base"}}"#;
        let meta = Meta::of_json(cron);
        let mut connection = world.store().connect().unwrap();
        let payload = tourbillon_durable::store::Payload {
            meta: Some(meta),
            ..r#""all""#.into()
        };
        connection
            .write(&[tourbillon_durable::store::Call {
                queue: "report".into(),
                key: "daily".into(),
                action: tourbillon_durable::store::Action::Schedule {
                    when: Duration::ZERO.into(),
                    payload,
                },
            }])
            .unwrap();
        wait::until("it is told", || {
            world.events.lock().unwrap().iter().any(|event| {
                matches!(event, DurableEvent::Unreadable { error, .. } if error.contains("Mars/Base"))
            })
        });
        assert!(node.get("report", "daily").wait().unwrap().is_some());
        assert!(told.all().is_empty());
    });
}

#[test]
fn what_is_refused_is_told_at_the_start() {
    each(|world| {
        let node = || world.node().handle("report", |_: &Due<String>| ());
        let twice = node()
            .cron("daily", daily(), "all")
            .cron("daily", daily(), "all");
        assert!(matches!(
            twice.start(),
            Err(StartError::SameSchedule { queue, key }) if queue == "report" && key == "daily"
        ));
        let long = node()
            .cron("daily", daily(), &"x".repeat(100))
            .payload_limit(50);
        let Err(StartError::Schedule { key, error, .. }) = long.start() else {
            panic!("it has started");
        };
        assert_eq!(key, "daily");
        assert_eq!(error, CallError::Invalid(Invalid::PayloadSize(50)));
        let nameless = node().cron("", daily(), "all").start();
        let error = nameless.expect_err("it is refused").to_string();
        assert!(error.contains("a key of 0 bytes"), "{error}");
    });
    let own =
        std::collections::BTreeMap::from([("cron", std::collections::BTreeMap::<&str, u8>::new())]);
    assert_eq!(Meta::new(&own), Err(Invalid::MetaCron));
}
