//! The whole scheduler against a plain model: random calls in random order, over all ranges of the
//! wheel and near the ends of the clock; and all short sequences of calls, every one of them.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};
use tourbillon::{Clock, ManualClock, Scheduler, Time};

mod plain;
mod real;

use plain::{Answer, Call, Key, Model, Name, Ran, Script, Target, When, child, nanos};
use real::Real;

const KEYS: Key = 6;

#[derive(Clone, Debug)]
struct Setup {
    tick: Duration,
    start: u64,
    shards: usize,
    stripes: usize,
    workers: usize,
    inline: bool,
    bound: Option<usize>,
    seed: u64,
}

impl Setup {
    fn build(&self) -> (Real, Model) {
        let hand = ManualClock::starting_at(Time::from_nanos(self.start));
        let mut builder = Scheduler::<Key>::builder()
            .tick(self.tick)
            .shards(self.shards)
            .stripes(self.stripes)
            .workers(self.workers)
            .clock(Clock::manual(&hand));
        if self.inline {
            builder = builder.inline();
        }
        if let Some(bound) = self.bound {
            builder = builder.max_pending(bound);
        }
        let real = Real::new(builder.build_stepped(self.seed).unwrap());
        (real, Model::new(self.tick, self.start, self.bound))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Call(Target, Call),
    ScheduleMany(Vec<(Key, Duration, Script)>),
    RescheduleMany(Vec<Key>, Duration),
    CancelMany(Vec<Key>),
    RescheduleIds(Vec<usize>, Duration),
    CancelIds(Vec<usize>),
    CancelAll,
    ShrinkToFit,
    Settle,
    Advance(Duration),
    Jump(Duration),
    /// The clock moves and no ticker looks.
    Oversleep(Duration),
    /// The clock goes back.
    Back(Duration),
    Next,
}

struct Pair {
    real: Real,
    model: Model,
}

impl Pair {
    fn step(&mut self, step: Step, name: Name) -> TestCaseResult {
        let Pair { real, model } = self;
        let later = |by: Duration| model.now.saturating_add(nanos(by));
        match step {
            Step::Call(target, call) => {
                let id = match target {
                    Target::Id(back) => model.name_of(back),
                    _ => None,
                };
                let answer = real.call(target, id, call.clone(), name);
                prop_assert_eq!(answer, model.call(target, call, name));
                Ok(())
            }
            Step::ScheduleMany(timers) => {
                let answers = real.schedule_many(&timers, name);
                let mut expected = Vec::new();
                for (number, (key, delay, script)) in timers.into_iter().enumerate() {
                    let call = Call::Schedule(When::After(delay), script);
                    expected.push(model.call(Target::Key(key), call, child(name, number)));
                }
                prop_assert_eq!(answers, expected);
                Ok(())
            }
            Step::RescheduleMany(keys, delay) => {
                let answers = real.reschedule_many(&keys, delay);
                let call = Call::Reschedule(When::After(delay));
                let expected: Vec<_> = keys
                    .iter()
                    .map(|key| model.call(Target::Key(*key), call.clone(), 0))
                    .collect();
                prop_assert_eq!(answers, expected);
                Ok(())
            }
            Step::CancelMany(keys) => {
                let answers = real.cancel_many(&keys);
                let expected: Vec<_> = keys
                    .iter()
                    .map(|key| model.cancel(Target::Key(*key)))
                    .collect();
                prop_assert_eq!(answers, expected);
                Ok(())
            }
            Step::RescheduleIds(mut backs, delay) => {
                backs.retain(|back| model.name_of(*back).is_some());
                let names = backs.iter().filter_map(|back| model.name_of(*back));
                let answers = real.reschedule_ids(names, delay);
                let call = Call::Reschedule(When::After(delay));
                let expected: Vec<_> = backs
                    .iter()
                    .map(|back| model.call(Target::Id(*back), call.clone(), 0))
                    .collect();
                prop_assert_eq!(answers, expected);
                Ok(())
            }
            Step::CancelIds(mut backs) => {
                backs.retain(|back| model.name_of(*back).is_some());
                let names = backs.iter().filter_map(|back| model.name_of(*back));
                let answers = real.cancel_ids(names);
                let expected: Vec<_> = backs
                    .iter()
                    .map(|back| model.cancel(Target::Id(*back)))
                    .collect();
                prop_assert_eq!(answers, expected);
                Ok(())
            }
            Step::CancelAll => {
                prop_assert_eq!(real.cancel_all(), model.cancel_all());
                Ok(())
            }
            Step::ShrinkToFit => {
                real.scheduler.handle().shrink_to_fit();
                Ok(())
            }
            Step::Settle => self.settle(),
            Step::Advance(by) | Step::Jump(by) | Step::Oversleep(by)
                if model.behind().is_some() =>
            {
                // What was armed while the clock was back may wait until it has caught up.
                let to = model.behind().map_or(0, |high| high.max(later(by)));
                self.settle()?;
                self.jump(to)
            }
            Step::Next if model.behind().is_some() => self.settle(),
            Step::Advance(by) => {
                let fired = real.scheduler.advance(by);
                model.advance_to(later(by));
                self.compare_runs(real_ran(&self.real, &fired))
            }
            Step::Jump(by) => {
                let to = later(by);
                self.jump(to)
            }
            Step::Oversleep(by) => {
                let to = later(by);
                real.scheduler.clock().advance(by);
                model.set(to);
                Ok(())
            }
            Step::Back(by) => {
                self.settle()?;
                let to = self.model.now.saturating_sub(nanos(by));
                self.jump(to)
            }
            Step::Next => self.next(),
        }
    }

    fn settle(&mut self) -> TestCaseResult {
        let fired = self.real.scheduler.settle();
        self.model.settle();
        self.compare_runs(real_ran(&self.real, &fired))
    }

    fn jump(&mut self, to: u64) -> TestCaseResult {
        let fired = self.real.scheduler.jump_to(Time::from_nanos(to));
        self.model.jump_to(to);
        self.compare_runs(real_ran(&self.real, &fired))
    }

    fn next(&mut self) -> TestCaseResult {
        let Pair { real, model } = self;
        let fired = real.scheduler.advance_to_next();
        match model.next_due() {
            Some(due) => {
                prop_assert!(fired.is_some());
                model.jump_to(model.now.max(due));
            }
            None => {
                prop_assert_eq!(&fired, &None);
                // It may have looked at what has no tick to run in, near the clock's end.
                model.set(real.scheduler.now().as_nanos().max(model.now));
            }
        }
        self.compare_runs(real_ran(&self.real, &fired.unwrap_or_default()))
    }

    /// What ran, when, and what the tasks were answered.
    fn compare_runs(&mut self, mut fired: Vec<Ran>) -> TestCaseResult {
        let mut expected = std::mem::take(&mut self.model.ran);
        // Between keys of one moment there is no order; the runs of one key keep theirs.
        fired.sort_by_key(|ran| (ran.at, ran.key));
        expected.sort_by_key(|ran| (ran.at, ran.key));
        prop_assert_eq!(fired, expected);
        let mut told = self.real.told();
        told.sort_unstable();
        self.model.told.sort_unstable();
        prop_assert_eq!(told, std::mem::take(&mut self.model.told));
        Ok(())
    }

    fn compare_states(&self) -> TestCaseResult {
        let Pair { real, model } = self;
        prop_assert_eq!(real.scheduler.now().as_nanos(), model.now);
        prop_assert_eq!(real.counts(), model.counts);
        prop_assert_eq!(real.len() as u64, model.counts.pending);
        for key in 0..KEYS {
            prop_assert_eq!(real.get(key), model.get(Target::Key(key)), "key {}", key);
        }
        prop_assert_eq!(real.pending(), model.pending());
        Ok(())
    }

    /// What is pending comes back, and nothing is taken from then on.
    fn end(&mut self) -> TestCaseResult {
        self.settle()?;
        prop_assert_eq!(self.real.hand_back(), self.model.pending());
        let call = Call::Schedule(When::After(Duration::ZERO), Script::default());
        let answer = self.real.call(Target::Key(0), None, call, 0);
        prop_assert_eq!(answer, Answer::Closed);
        let answer = self.real.call(Target::Key(0), None, Call::Cancel, 0);
        prop_assert_eq!(answer, Answer::NotFound);
        prop_assert_eq!(self.real.scheduler.advance(Duration::MAX), vec![]);
        Ok(())
    }
}

fn real_ran(real: &Real, fired: &[tourbillon::test_util::Fired<Key>]) -> Vec<Ran> {
    real.ran(fired)
}

// === random sequences ===

/// Numbers of ticks where something happens: on level 0, around the borders of levels, and far.
fn tick_counts() -> BoxedStrategy<u64> {
    let border = (1_u32..=7, 0_u64..=4, 1_u64..=63)
        .prop_map(|(level, off, turns)| (turns * 64_u64.pow(level) + off).saturating_sub(2));
    let exact =
        (1_u32..=6, 0_u64..=4).prop_map(|(level, off)| (64_u64.pow(level) + off).saturating_sub(2));
    prop_oneof![
        6 => 0_u64..=3,
        6 => 0_u64..=130,
        3 => 0_u64..=10_000,
        3 => exact,
        2 => border,
        1 => any::<u64>(),
    ]
    .boxed()
}

/// A whole number of ticks, or a little more or less.
fn durations(tick: Duration) -> BoxedStrategy<Duration> {
    let size = nanos(tick);
    let inside = prop_oneof![
        4 => Just(0_u64),
        1 => Just(1),
        1 => Just(size - 1),
        2 => 0..size,
    ];
    prop_oneof![
        12 => (tick_counts(), inside).prop_map(move |(count, inside)| {
            Duration::from_nanos(count.saturating_mul(size).saturating_add(inside))
        }),
        2 => Just(Duration::ZERO),
        1 => Just(Duration::MAX),
    ]
    .boxed()
}

fn whens(tick: Duration) -> BoxedStrategy<When> {
    prop_oneof![
        5 => durations(tick).prop_map(When::After),
        1 => durations(tick).prop_map(When::At),
        1 => durations(tick).prop_map(When::Before),
    ]
    .boxed()
}

/// `bounded`: tasks arm nothing, since whether there is room depends on which runs first.
fn scripts(tick: Duration, depth: u32, bounded: bool) -> BoxedStrategy<Script> {
    if depth == 0 {
        return Just(Script::default()).boxed();
    }
    let target = || {
        prop_oneof![
            4 => Just(Target::Key(0)),
            1 => Just(Target::Run),
            2 => Just(Target::KeepGuard),
        ]
    };
    let arming = (
        whens(tick),
        scripts(tick, depth - 1, bounded),
        any::<bool>(),
    )
        .prop_map(|(when, script, if_absent)| match when {
            When::After(delay) if if_absent => (Target::Key(0), Call::IfAbsent(delay, script)),
            when => (Target::Key(0), Call::Schedule(when, script)),
        });
    let other = prop_oneof![
        2 => (target(), whens(tick)).prop_map(|(target, when)| (target, Call::Reschedule(when))),
        1 => (target(), durations(tick)).prop_map(|(target, by)| (target, Call::PullIn(by))),
        1 => target().prop_map(|target| (target, Call::Cancel)),
        1 => target().prop_map(|target| (target, Call::Get)),
        1 => Just((Target::Run, Call::IsCancelled)),
    ];
    let call = if bounded {
        other.boxed()
    } else {
        prop_oneof![3 => arming, 4 => other].boxed()
    };
    let calls = prop_oneof![
        3 => Just(Vec::new()),
        2 => prop::collection::vec(call, 1..5),
    ];
    (calls, prop::bool::weighted(0.1))
        .prop_map(|(calls, panics)| Script { calls, panics })
        .boxed()
}

fn steps(tick: Duration, bounded: bool) -> BoxedStrategy<Step> {
    let key = || 0..KEYS;
    let target = || {
        prop_oneof![
            3 => key().prop_map(Target::Key),
            1 => (0_usize..8).prop_map(Target::Id),
        ]
    };
    let keys = || prop::collection::vec(key(), 0..8);
    let backs = || prop::collection::vec(0_usize..8, 0..8);
    let script = || scripts(tick, 2, bounded);
    let call = |target, call| Step::Call(target, call);
    // With a bound, which ones of a batch are refused depends on their stripes.
    let most = if bounded { 1 } else { 8 };
    let timers = prop::collection::vec((key(), durations(tick), script()), 0..=most);
    prop_oneof![
        3 => timers.prop_map(Step::ScheduleMany),
        10 => (key(), whens(tick), script())
            .prop_map(move |(key, when, script)| call(Target::Key(key), Call::Schedule(when, script))),
        3 => (key(), durations(tick), script())
            .prop_map(move |(key, by, script)| call(Target::Key(key), Call::IfAbsent(by, script))),
        5 => (target(), whens(tick))
            .prop_map(move |(target, when)| call(target, Call::Reschedule(when))),
        3 => (target(), durations(tick)).prop_map(move |(target, by)| call(target, Call::PullIn(by))),
        3 => target().prop_map(move |target| call(target, Call::Cancel)),
        1 => target().prop_map(move |target| call(target, Call::Get)),
        1 => (keys(), durations(tick)).prop_map(|(keys, by)| Step::RescheduleMany(keys, by)),
        1 => keys().prop_map(Step::CancelMany),
        1 => (backs(), durations(tick)).prop_map(|(backs, by)| Step::RescheduleIds(backs, by)),
        1 => backs().prop_map(Step::CancelIds),
        1 => Just(Step::CancelAll),
        2 => Just(Step::ShrinkToFit),
        2 => Just(Step::Settle),
        5 => durations(tick).prop_map(Step::Advance),
        3 => durations(tick).prop_map(Step::Jump),
        2 => durations(tick).prop_map(Step::Oversleep),
        1 => durations(tick).prop_map(Step::Back),
        3 => Just(Step::Next),
    ]
    .boxed()
}

/// Zero, around a level's border, near the end of all time, or anywhere.
fn starts(tick: Duration) -> BoxedStrategy<u64> {
    let size = nanos(tick);
    let border =
        (1_u32..=6, 1_u64..=3, 0_u64..=4, 0..size).prop_map(move |(level, turns, off, inside)| {
            (turns * 64_u64.pow(level) + off)
                .saturating_sub(2)
                .saturating_mul(size)
                .saturating_add(inside)
        });
    let end = (tick_counts(), 0..size).prop_map(move |(count, inside)| {
        u64::MAX.saturating_sub(count.saturating_mul(size).saturating_add(inside))
    });
    prop_oneof![2 => Just(0), 3 => border, 2 => end, 1 => any::<u64>()].boxed()
}

fn setups() -> impl Strategy<Value = Setup> {
    let ticks = [1, 1_000, 1_000_000].map(Duration::from_micros);
    let sizes = (
        1_usize..=3,
        0_u32..=3,
        1_usize..=3,
        prop::bool::weighted(0.2),
    );
    let bound = prop::option::weighted(0.25, 1_usize..=5);
    (select(ticks.to_vec()), sizes, bound, any::<u64>()).prop_flat_map(
        |(tick, (shards, stripes, workers, inline), bound, seed)| {
            starts(tick).prop_map(move |start| Setup {
                tick,
                start,
                shards,
                stripes: (shards << stripes).next_power_of_two(),
                workers,
                inline,
                bound,
                seed,
            })
        },
    )
}

#[test]
fn the_scheduler_is_its_model() {
    let strategy = setups().prop_flat_map(|setup| {
        let steps = steps(setup.tick, setup.bound.is_some());
        (Just(setup), prop::collection::vec(steps, 1..80))
    });
    let cases = std::env::var("MODEL_CASES").map_or(400, |cases| cases.parse().unwrap());
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let result = runner.run(&strategy, |(setup, steps)| {
        let (real, model) = setup.build();
        let mut pair = Pair { real, model };
        for (number, step) in steps.into_iter().enumerate() {
            pair.step(step, child(0, number))?;
            pair.compare_states()?;
        }
        pair.end()
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

// === all short sequences ===

/// What is called, with two keys.
fn alphabet() -> Vec<Step> {
    let tick = Duration::from_millis(1);
    let armed = |delay, script| Call::Schedule(When::After(delay), script);
    // What runs at once arms its key again, for the next tick.
    let again = Script {
        calls: vec![(Target::Key(0), armed(tick, Script::default()))],
        panics: false,
    };
    let mut letters = Vec::new();
    for key in [0, 1] {
        for call in [
            armed(tick * 2, Script::default()),
            armed(tick * 70, Script::default()),
            armed(Duration::ZERO, again.clone()),
            Call::Reschedule(When::After(tick * 3)),
            Call::PullIn(tick),
            Call::Cancel,
        ] {
            letters.push(Step::Call(Target::Key(key), call));
        }
    }
    letters.push(Step::Advance(tick));
    letters
}

#[test]
fn all_short_sequences_are_as_in_the_model() {
    const LENGTH: usize = 5;
    let letters = alphabet();
    let advance = letters.len() - 1;
    let setup = Setup {
        tick: Duration::from_millis(1),
        start: 0,
        shards: 1,
        stripes: 2,
        workers: 1,
        inline: false,
        bound: None,
        seed: 5,
    };
    let (real, model) = setup.build();
    // One scheduler for all of them: each sequence ends with nothing pending, so the next one meets
    // a wheel at another place.
    let mut pair = Pair { real, model };
    let mut word = [0; LENGTH];
    let mut count = 0;
    loop {
        // The keys can be exchanged: the first that is named is key 0.
        let first = word.iter().position(|letter| *letter != advance);
        let symmetric = first.filter(|first| word[*first] >= advance / 2);
        let mut place = match symmetric {
            Some(first) => first,
            None => match sequence(&mut pair, &letters, &word) {
                Ok(place) => {
                    count += 1;
                    place
                }
                Err(error) => {
                    let steps: Vec<_> = word.iter().map(|letter| &letters[*letter]).collect();
                    panic!("{error}\nthe steps before {} ns: {steps:?}", pair.model.now);
                }
            },
        };
        // The next word that differs at this place or before.
        word[place + 1..].fill(0);
        while word[place] == advance {
            word[place] = 0;
            if place == 0 {
                assert!(count > 10_000, "{count} sequences");
                pair.compare_states().unwrap();
                pair.end().unwrap();
                return;
            }
            place -= 1;
        }
        word[place] += 1;
    }
}

/// Returns the place of the last letter, or of the first one that found nothing: what would follow
/// it is a shorter sequence.
fn sequence(
    pair: &mut Pair,
    letters: &[Step],
    word: &[usize],
) -> Result<usize, proptest::test_runner::TestCaseError> {
    let mut last = word.len() - 1;
    for (place, letter) in word.iter().enumerate() {
        let unknown = match &letters[*letter] {
            Step::Call(_, Call::Schedule(..)) => false,
            Step::Call(key, _) => pair.model.get(*key).is_none(),
            _ => false,
        };
        pair.step(letters[*letter].clone(), child(0, place))?;
        prop_assert_eq!(pair.real.len() as u64, pair.model.counts.pending);
        if unknown {
            last = place;
            break;
        }
    }
    for key in [0, 1] {
        prop_assert_eq!(pair.real.get(key), pair.model.get(Target::Key(key)));
    }
    // All of it ends: the longest delay, and what is armed at the end of it.
    pair.step(Step::Advance(Duration::from_millis(75)), 0)?;
    prop_assert_eq!(pair.real.len(), 0);
    pair.real.forget();
    pair.model.forget();
    Ok(last)
}
