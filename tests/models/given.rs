//! Calls that are given a moment, which may be old, or ahead of the clock: nothing runs before its
//! deadline, and nothing waits for longer than until the tick of its deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::steps::T;
use proptest::prelude::*;
use proptest::sample::select;
use tourbillon::{Clock, ExpiryMap, Firing, ManualClock, Reschedule, Scheduler, Time, Touch, When};

const S: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const NANO: Duration = Duration::from_nanos(1);

/// More keys than a stripe stages.
const KEYS: u64 = 80;

/// A moment that a caller gives, seen from the clock.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Behind(Duration),
    Ahead(Duration),
    Never(Duration),
}

impl Moment {
    fn at(self, now: Time) -> Time {
        match self {
            Moment::Behind(by) => now - by,
            Moment::Ahead(by) => now + by,
            Moment::Never(before) => Time::MAX - before,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Call {
    From(Moment, Duration),
    At(Moment),
    Move(Moment),
    Delay(Duration),
    Cancel,
}

#[derive(Clone, Debug)]
enum Step {
    Call(u64, Call),
    /// The same call for this many keys, so that a stripe files what it has staged.
    Burst(u64, Call),
    Advance(Duration),
}

fn moments() -> impl Strategy<Value = Moment> {
    let spans = [Duration::ZERO, NANO, T, 5 * S, HOUR];
    prop_oneof![
        select(spans.to_vec()).prop_map(Moment::Behind),
        select(spans.to_vec()).prop_map(Moment::Ahead),
        select(vec![Duration::ZERO, NANO, HOUR]).prop_map(Moment::Never),
    ]
}

fn delays() -> impl Strategy<Value = Duration> {
    select(vec![Duration::ZERO, NANO, T, S, HOUR, Duration::MAX])
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let call = prop_oneof![
        4 => (moments(), delays()).prop_map(|(moment, delay)| Call::From(moment, delay)),
        1 => moments().prop_map(Call::At),
        1 => moments().prop_map(Call::Move),
        2 => delays().prop_map(Call::Delay),
        1 => Just(Call::Cancel),
    ];
    let step = prop_oneof![
        4 => (0..KEYS, call.clone()).prop_map(|(key, call)| Step::Call(key, call)),
        1 => (1..KEYS, call).prop_map(|(keys, call)| Step::Burst(keys, call)),
        3 => select(vec![NANO, T, S, 5 * S, HOUR]).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 1..40)
}

/// The deadlines that the calls have returned, and when each was set.
#[derive(Default)]
struct Due(BTreeMap<u64, (Time, Time)>);

impl Due {
    fn set(&mut self, key: u64, deadline: Time, now: Time) {
        self.0.insert(key, (deadline, now));
    }

    /// Checks the moment of a run.
    fn ran(&mut self, key: u64, at: Time) -> Result<(), TestCaseError> {
        let found = self.0.remove(&key);
        prop_assert!(found.is_some(), "{key} ran at {at:?} and was not armed");
        let (deadline, set) = found.unwrap_or_default();
        // Only a manual clock comes to its end, and then everything is due.
        prop_assert!(
            deadline != Time::MAX || at == Time::MAX,
            "{key} ran at {at:?}, and never was due"
        );
        prop_assert!(deadline <= at, "{key} ran at {at:?}, before {deadline:?}");
        prop_assert!(
            at <= deadline.max(set) + T,
            "{key} ran at {at:?}, long after {deadline:?}, which was set at {set:?}"
        );
        Ok(())
    }

    /// Checks that nothing has been left behind. A tick that does not end before the end of time
    /// never comes.
    fn left_at(&self, now: Time) -> Result<(), TestCaseError> {
        for (key, (deadline, set)) in &self.0 {
            let last = *deadline.max(set) + T;
            prop_assert!(
                last == Time::MAX || last > now,
                "{key} was due at {deadline:?} and has not run at {now:?}"
            );
        }
        Ok(())
    }
}

fn each(step: &Step, mut call: impl FnMut(u64, Call)) -> Duration {
    match *step {
        Step::Call(key, what) => call(key, what),
        Step::Burst(keys, what) => (0..keys).for_each(|key| call(key, what)),
        Step::Advance(by) => return by,
    }
    Duration::ZERO
}

fn check_timers(steps: &[Step], start: Time) -> Result<(), TestCaseError> {
    let hand = ManualClock::starting_at(start);
    let builder = Scheduler::<u64>::builder().shards(1).stripes(2);
    let stepped = builder
        .clock(Clock::manual(&hand))
        .build_stepped(1)
        .unwrap();
    let timers = stepped.handle();
    let run: fn(&Firing<'_, u64>) = |_| ();
    let mut due = Due::default();
    for step in steps.iter().chain([&Step::Advance(2 * HOUR)]) {
        let by = each(step, |key, call| {
            let now = timers.now();
            let set = match call {
                Call::From(moment, delay) => timers
                    .schedule(key, When::after(moment.at(now), delay), run)
                    .map(|armed| armed.deadline),
                Call::At(moment) => timers
                    .schedule(key, moment.at(now), run)
                    .map(|armed| armed.deadline),
                Call::Delay(delay) => timers.schedule(key, delay, run).map(|armed| armed.deadline),
                Call::Move(moment) => {
                    let to = moment.at(now);
                    if let Reschedule::Moved { .. } = timers.reschedule(&key, to) {
                        due.set(key, to, now);
                    }
                    return;
                }
                Call::Cancel => {
                    if timers.cancel(&key).is_cancelled() {
                        due.0.remove(&key);
                    }
                    return;
                }
            };
            due.set(key, set.unwrap(), now);
        });
        for fired in stepped.advance(by) {
            due.ran(fired.key, fired.at)?;
        }
        due.left_at(stepped.now())?;
    }
    Ok(())
}

fn check_entries(steps: &[Step], start: Time, lifetime: bool) -> Result<(), TestCaseError> {
    let hand = ManualClock::starting_at(start);
    let gone = Arc::new(Mutex::new(Vec::new()));
    let mut builder = ExpiryMap::<u64, ()>::builder().time_to_idle(S);
    if lifetime {
        builder = builder.time_to_live(5 * S);
    }
    let collect = Arc::clone(&gone);
    let stepped = builder
        .shards(1)
        .stripes(2)
        .clock(Clock::manual(&hand))
        .build_stepped(1, move |map, expired| {
            collect.lock().unwrap().push((expired.key, map.now()));
        })
        .unwrap();
    let map = stepped.map();
    let mut due = Due::default();
    for step in steps.iter().chain([&Step::Advance(2 * HOUR)]) {
        let by = each(step, |key, call| {
            let now = map.now();
            let set = match call {
                Call::From(moment, _) => {
                    let at = moment.at(now);
                    Some(map.entry(key).at(at).insert(()).unwrap().deadline)
                }
                Call::At(moment) | Call::Move(moment) => match map.touch_at(&key, moment.at(now)) {
                    Touch::Touched { deadline } => Some(deadline),
                    _ => None,
                },
                Call::Delay(_) => Some(map.insert(key, ()).unwrap().deadline),
                Call::Cancel => {
                    if map.remove(&key).value().is_some() {
                        due.0.remove(&key);
                    }
                    None
                }
            };
            if let Some(deadline) = set {
                due.set(key, deadline, now);
            }
        });
        stepped.advance(by);
        for (key, at) in gone.lock().unwrap().drain(..) {
            due.ran(key, at)?;
        }
        due.left_at(stepped.now())?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_timer_runs_before_its_deadline_whatever_moment_is_given(steps in steps()) {
        check_timers(&steps, Time::ZERO)?;
        check_timers(&steps, Time::ZERO + 7 * HOUR + NANO)?;
        check_timers(&steps, Time::MAX - S)?;
    }

    #[test]
    fn no_entry_expires_before_its_deadline_whatever_moment_is_given(steps in steps()) {
        for lifetime in [false, true] {
            check_entries(&steps, Time::ZERO, lifetime)?;
            check_entries(&steps, Time::ZERO + 7 * HOUR + NANO, lifetime)?;
        }
    }
}
