//! `Timer::reschedule_many` and `cancel_many` against the calls of single handles: two timers get
//! the same timers and the same calls, one of them by calls for many. All answers, all runs and all
//! counters are the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kit::steps::T;
use proptest::prelude::*;
use proptest::sample::select;
use tourbillon::test_util::SteppedTimer;
use tourbillon::{
    Cancel, Clock, ManualClock, Reschedule, Shutdown, Time, Timer, TimerHandle, When,
};

const NANO: Duration = Duration::from_nanos(1);
const S: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// What a call asks for. Times are seen from the clock.
#[derive(Clone, Copy, Debug)]
enum Asked {
    After(Duration),
    Ahead(Duration),
    Behind(Duration),
    Never,
    Window(Duration, Duration),
    /// So long from now, counted from a moment that the caller has read so long before. Not due yet:
    /// where a single call leaves a due timer to the tick, one for many has read the clock.
    Given(Duration, Duration),
}

impl Asked {
    fn when(self, now: Time) -> When {
        match self {
            Asked::After(delay) => delay.into(),
            Asked::Ahead(by) => (now + by).into(),
            Asked::Behind(by) => (now - by).into(),
            Asked::Never => Time::MAX.into(),
            Asked::Window(from, width) => (from..=from.saturating_add(width)).into(),
            Asked::Given(before, ahead) => {
                let given = now - before;
                When::after(given, now.since(given) + ahead)
            }
        }
    }
}

/// The timers of a call, as numbers of all that were ever started. The same one may come twice.
type Picked = Vec<usize>;

#[derive(Clone, Debug)]
enum Step {
    /// Starts this number of timers, in different stripes if there are several.
    Start(usize, Asked),
    /// Starts a timer that calls for itself while it runs.
    StartCalling(Asked),
    Reschedule(Picked, Asked),
    Cancel(Picked),
    /// Both for all timers, in an order that has nothing to do with stripes.
    RescheduleAll(usize, Asked),
    CancelAll(usize),
    /// The time passes, and what is due runs.
    Advance(Duration),
    /// The time passes, and nobody has had the time to run anything.
    Stall(Duration),
    ShutDown(Shutdown),
}

/// One of the two timers that are compared.
struct World {
    timer: Arc<Timer>,
    /// Its driver. Without one it has threads and many stripes, and its clock stands still.
    stepped: Option<SteppedTimer>,
    /// Whether it calls for many.
    many: bool,
    handles: Vec<Arc<TimerHandle>>,
    /// A timer that belongs to another `Timer`, which calls for many do not find.
    foreign: TimerHandle,
    ran: Arc<Mutex<Vec<Run>>>,
}

/// A run: when, of which timer, and what it was answered.
type Run = (Time, usize, Vec<Cancel>, Vec<Reschedule>);

/// The number of the timer that belongs to another one.
const FOREIGN: usize = usize::MAX;

fn lock<T>(list: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cancel(timer: &Timer, many: bool, handles: &[&TimerHandle]) -> Vec<Cancel> {
    if many {
        timer.cancel_many(handles.iter().copied())
    } else {
        handles.iter().map(|handle| handle.cancel()).collect()
    }
}

fn reschedule(timer: &Timer, many: bool, handles: &[&TimerHandle], when: When) -> Vec<Reschedule> {
    if many {
        timer.reschedule_many(handles.iter().copied(), when)
    } else {
        let each = handles.iter().map(|handle| handle.reschedule(when));
        each.collect()
    }
}

impl World {
    fn new(many: bool, stepped: bool, start: Time, other: &Timer) -> Self {
        let clock = Clock::manual(&ManualClock::starting_at(start));
        let builder = Timer::builder().clock(clock).workers(1);
        let (timer, stepped) = if stepped {
            let stepped = builder.build_stepped(1).unwrap();
            (stepped.timer(), Some(stepped))
        } else {
            (Arc::new(builder.build().unwrap()), None)
        };
        World {
            timer,
            stepped,
            many,
            handles: Vec::new(),
            foreign: other.after(HOUR, || ()).unwrap(),
            ran: Arc::default(),
        }
    }

    fn start(&mut self, asked: Asked, calls: bool) -> bool {
        let (number, many) = (self.handles.len(), self.many);
        let (ran, timer) = (Arc::clone(&self.ran), Arc::downgrade(&self.timer));
        let own: Arc<Mutex<Option<Arc<TimerHandle>>>> = Arc::default();
        let place = Arc::clone(&own);
        let task = move || {
            let (Some(timer), Some(own)) = (timer.upgrade(), lock(&own).take()) else {
                return;
            };
            let mut answers = (Vec::new(), Vec::new());
            if calls {
                answers.0 = cancel(&timer, many, &[&*own; 2]);
                answers.1 = reschedule(&timer, many, &[&*own; 2], S.into());
            }
            lock(&ran).push((timer.now(), number, answers.0, answers.1));
        };
        let Ok(handle) = self.timer.after(asked.when(self.timer.now()), task) else {
            return false;
        };
        let handle = Arc::new(handle);
        *lock(&place) = Some(Arc::clone(&handle));
        self.handles.push(handle);
        true
    }

    /// Calls with the handles of these numbers, and returns the answers. Only calls for many are
    /// given the foreign timer.
    fn call<A: Clone>(
        &self,
        numbers: &[usize],
        not_found: A,
        call: impl FnOnce(&[&TimerHandle]) -> Vec<A>,
    ) -> Vec<A> {
        let handles = numbers.iter().map(|number| match *number {
            FOREIGN => &self.foreign,
            number => &*self.handles[number],
        });
        if self.many {
            return call(&handles.collect::<Vec<_>>());
        }
        let is_own = |number: &&usize| **number != FOREIGN;
        let own: Vec<_> = numbers.iter().filter(is_own).collect();
        let own: Vec<_> = own.iter().map(|number| &*self.handles[**number]).collect();
        let mut answers = call(&own).into_iter();
        let each = numbers.iter().map(|number| match *number {
            FOREIGN => not_found.clone(),
            _ => answers.next().expect("an answer for each"),
        });
        each.collect()
    }

    /// Takes a step, and returns the answers as text.
    fn step(&mut self, step: &Step) -> String {
        let now = self.timer.now();
        let count = self.handles.len();
        match step {
            Step::Start(started, asked) => {
                format!(
                    "{:?}",
                    (0..*started)
                        .map(|_| self.start(*asked, false))
                        .collect::<Vec<_>>()
                )
            }
            Step::StartCalling(asked) => format!("{}", self.start(*asked, true)),
            Step::Reschedule(picked, asked) => {
                self.reschedule(&numbers(picked, count), asked.when(now))
            }
            Step::Cancel(picked) => self.cancel(&numbers(picked, count)),
            Step::RescheduleAll(by, asked) => {
                self.reschedule(&shuffled(*by, count), asked.when(now))
            }
            Step::CancelAll(by) => self.cancel(&shuffled(*by, count)),
            Step::Advance(by) => {
                if let Some(stepped) = &self.stepped {
                    stepped.advance(*by);
                }
                String::new()
            }
            Step::Stall(by) => {
                if let Some(stepped) = &self.stepped {
                    stepped.clock().advance(*by);
                }
                String::new()
            }
            Step::ShutDown(mode) => {
                let report = match &self.stepped {
                    Some(stepped) => stepped.shutdown(*mode),
                    None => self.timer.shutdown(Shutdown::HandBack).wait().unwrap(),
                };
                let mut deadlines: Vec<_> = report
                    .handed_back
                    .iter()
                    .map(|timer| timer.deadline)
                    .collect();
                deadlines.sort_unstable();
                format!("{deadlines:?} {}", report.already_closed)
            }
        }
    }

    fn reschedule(&self, numbers: &[usize], when: When) -> String {
        let answers = self.call(numbers, Reschedule::NotFound, |handles| {
            reschedule(&self.timer, self.many, handles, when)
        });
        format!("{answers:?}")
    }

    fn cancel(&self, numbers: &[usize]) -> String {
        let answers = self.call(numbers, Cancel::NotFound, |handles| {
            cancel(&self.timer, self.many, handles)
        });
        format!("{answers:?}")
    }

    /// All that can be seen of the timers.
    fn seen(&self) -> String {
        let fates = self.handles.iter().map(|handle| {
            let (expired, cancelled) = (handle.is_expired(), handle.is_cancelled());
            (expired, cancelled, handle.remaining())
        });
        let stats = self.timer.stats();
        let mut ran = lock(&self.ran);
        // Those of one tick run in no particular order.
        ran.sort_by_key(|run| (run.0, run.1));
        format!(
            "{:?} {ran:?} {:?} {:?}",
            fates.collect::<Vec<_>>(),
            (stats.scheduled, stats.ran, stats.cancelled, stats.pending),
            (stats.handed_back, self.timer.next_deadline()),
        )
    }
}

fn numbers(picked: &Picked, count: usize) -> Vec<usize> {
    let number = |pick: &usize| match pick.checked_rem(count + 1) {
        Some(number) if number < count => number,
        _ => FOREIGN,
    };
    picked.iter().map(number).collect()
}

/// All timers, every `by`-th one after the other; some come twice, others not at all.
fn shuffled(by: usize, count: usize) -> Vec<usize> {
    (0..count).map(|number| number * by % count).collect()
}

fn check(steps: &[Step], stepped: bool, start: Time) -> Result<(), TestCaseError> {
    let other = Timer::builder().build_stepped(1).unwrap();
    let other = other.timer();
    let [mut many, mut single] = [true, false].map(|many| World::new(many, stepped, start, &other));
    for step in steps.iter().chain([&Step::Advance(2 * HOUR)]) {
        prop_assert_eq!(many.step(step), single.step(step), "{:?}", step);
        prop_assert_eq!(many.seen(), single.seen(), "after {:?}", step);
    }
    prop_assert!(!many.foreign.is_cancelled());
    Ok(())
}

fn spans() -> impl Strategy<Value = Duration> {
    select(vec![Duration::ZERO, NANO, T, 5 * T, S, HOUR])
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![
        3 => spans().prop_map(Asked::After),
        1 => spans().prop_map(Asked::Ahead),
        1 => spans().prop_map(Asked::Behind),
        1 => Just(Asked::Never),
        1 => (spans(), spans()).prop_map(|(from, width)| Asked::Window(from, width)),
        1 => (spans(), select(vec![NANO, T, S])).prop_map(|(before, ahead)| {
            Asked::Given(before, ahead)
        }),
    ]
}

/// A due time that does not come while the clock stands still.
fn asked_of_the_future() -> impl Strategy<Value = Asked> {
    prop_oneof![
        select(vec![NANO, T, S, HOUR]).prop_map(Asked::After),
        select(vec![NANO, T, S, HOUR]).prop_map(Asked::Ahead),
        Just(Asked::Never),
        select(vec![Duration::ZERO, S, HOUR]).prop_map(|width| Asked::Window(S, width)),
    ]
}

fn calls<A: Strategy<Value = Asked> + Clone>(
    asked: A,
    most: usize,
) -> impl Strategy<Value = Step> + Clone {
    let picked = prop::collection::vec(any::<usize>(), 0..40);
    prop_oneof![
        4 => (1..most, asked.clone()).prop_map(|(count, asked)| Step::Start(count, asked)),
        4 => (picked.clone(), asked.clone()).prop_map(|(picked, asked)| {
            Step::Reschedule(picked, asked)
        }),
        3 => picked.prop_map(Step::Cancel),
        1 => (1_usize..1_000, asked).prop_map(|(by, asked)| Step::RescheduleAll(by, asked)),
        1 => (1_usize..1_000).prop_map(Step::CancelAll),
    ]
}

/// Every step, in a timer with one stripe, whose runs are the same each time.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passed = select(vec![NANO, T, 5 * T, S, HOUR]);
    let modes = [Shutdown::HandBack, Shutdown::RunNow];
    let step = prop_oneof![
        12 => calls(asked().boxed(), 80),
        2 => asked().prop_map(Step::StartCalling),
        4 => passed.clone().prop_map(Step::Advance),
        2 => passed.prop_map(Step::Stall),
        1 => select(modes.to_vec()).prop_map(Step::ShutDown),
    ];
    prop::collection::vec(step, 1..30)
}

/// Calls for timers in many stripes, of which none is due.
fn calls_without_runs() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => calls(asked_of_the_future().boxed(), 700),
        1 => Just(Step::ShutDown(Shutdown::HandBack)),
    ];
    prop::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_for_many_timers_do_what_calls_one_by_one_do(steps in steps()) {
        check(&steps, true, Time::ZERO)?;
        check(&steps, true, Time::ZERO + 7 * HOUR + NANO)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn calls_for_many_timers_in_many_stripes_do_the_same(steps in calls_without_runs()) {
        check(&steps, false, Time::ZERO + HOUR)?;
    }
}
