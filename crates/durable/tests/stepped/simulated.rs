//! Days of schedules with random troubles, in virtual time: processes that die, stop and come back,
//! a clock that is set forward and back, changed definitions, pauses, and occurrences that fail.
//! Each occurrence has to become exactly what its policy says.
//!
//! `SIMULATION_SEED` and `SIMULATION_DAYS` in the environment change the seed and the length. The
//! same seed gives the same troubles, and other ids of the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use tourbillon_durable::test_util::DurableSteps;
use tourbillon_durable::{
    Cron, CronSchedule, Due, Durable, Memory, Missed, QueueBuilder, RetryPolicy,
};

use crate::support::{HOUR, MINUTE, SECOND, advance, at, memory};

/// The schedules, by their policies.
const POLICIES: [(&str, Missed); 3] = [
    ("all", Missed::All),
    ("once", Missed::Once),
    ("skip", Missed::Skip),
];
/// An occurrence that starts later than this was missed.
const GRACE: Duration = Duration::from_secs(10 * 60);
/// How long an occurrence that has failed waits.
const RETRY: Duration = Duration::from_secs(3 * 60);
/// After this time without troubles nothing is left to be made up, except a long backlog.
const CALM: Duration = Duration::from_secs(45 * 60);
/// The definitions. Each one replaces the one before, and after the last the first comes again.
const DEFINITIONS: [(&str, &str); 4] = [
    ("*/20 * * * *", "UTC"),
    ("7 * * * *", "Europe/Berlin"),
    ("*/15 8-18 * * MON-FRI", "America/New_York"),
    ("30 */2 * * *", "Australia/Lord_Howe"),
];

fn definition(revision: u32) -> Cron {
    let (expression, zone) = DEFINITIONS[revision as usize % DEFINITIONS.len()];
    Cron::new(expression, zone).expect("it can be read")
}

/// A run as its handler has seen it.
#[derive(PartialEq, Debug)]
struct Begun {
    key: String,
    date: SystemTime,
    attempt: u32,
    late: Duration,
}

/// Whether the first attempt of an occurrence fails: one of eight, always the same ones.
fn fails(date: SystemTime) -> bool {
    let since = date
        .duration_since(at(Duration::ZERO))
        .expect("it is later");
    mixed(since.as_secs()).is_multiple_of(8)
}

/// SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct World {
    random: u64,
    store: Memory,
    told: Sender<Begun>,
    seen: Receiver<Begun>,
    steps: DurableSteps,
    nodes: Vec<Durable>,
    revision: u32,
    paused: BTreeSet<&'static str>,
    now: SystemTime,
    /// The latest time that the clock has shown.
    latest: SystemTime,
    /// Until when an occurrence may be late, since there was trouble.
    troubled: SystemTime,
    /// The dates of the definitions so far: what has to run of `all`, and nothing else.
    dates: BTreeSet<SystemTime>,
    /// The dates that each schedule had to run in time.
    punctual: BTreeMap<&'static str, Vec<SystemTime>>,
    troubles: BTreeMap<&'static str, u32>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (told, seen) = channel();
        let store = memory();
        let builder = processes(&store, &told, 0);
        let (first, steps) = builder.start_stepped().expect("the clock is the test's");
        World {
            random: seed,
            store,
            told,
            seen,
            steps,
            nodes: vec![first],
            revision: 0,
            paused: BTreeSet::new(),
            now: at(Duration::ZERO),
            latest: at(Duration::ZERO),
            troubled: at(Duration::ZERO),
            dates: BTreeSet::new(),
            punctual: BTreeMap::new(),
            troubles: BTreeMap::new(),
        }
    }

    /// A random number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_add(1);
        mixed(self.random) % limit
    }

    fn trouble(&mut self, name: &'static str) {
        *self.troubles.entry(name).or_default() += 1;
        self.troubled = self.latest.max(self.now) + CALM;
    }

    fn dates_between(&self, from: SystemTime, to: SystemTime) -> Vec<SystemTime> {
        let dates = definition(self.revision).times_after(from);
        dates.take_while(|date| *date <= to).collect()
    }

    /// The clock goes on to this time, at its own pace or by a jump.
    fn passes(&mut self, to: SystemTime, is_calm: bool) {
        let dates = self.dates_between(self.latest, to);
        if is_calm {
            for (key, _) in POLICIES {
                let calm = dates.iter().filter(|date| **date > self.troubled);
                if !self.paused.contains(key) {
                    self.punctual.entry(key).or_default().extend(calm);
                }
            }
        }
        self.dates.extend(dates);
        (self.now, self.latest) = (to, self.latest.max(to));
    }

    fn advance(&mut self, by: Duration) {
        advance(&self.steps, by);
        self.passes(self.now + by, !self.nodes.is_empty());
        assert_eq!(self.steps.now().wait(), Ok(self.now));
    }

    fn jump(&mut self, to: SystemTime) {
        self.steps
            .jump_to(to)
            .wait()
            .expect("the clock is the test's");
        self.passes(to, false);
    }

    fn start(&mut self, revision: u32) {
        let builder = processes(&self.store, &self.told, revision);
        let node = builder.start_beside(&self.steps);
        self.nodes.push(node.expect("the store is there"));
    }

    fn minutes(&mut self, limit: u64) -> Duration {
        Duration::from_secs(60 * self.below(limit))
    }

    /// Takes out one of the processes. Some run.
    fn one_of_the_nodes(&mut self) -> Durable {
        let number = self.below(self.nodes.len() as u64);
        self.nodes.swap_remove(number as usize)
    }

    /// Lets everything end that was missed: some process runs, and nothing is paused.
    fn calm_down(&mut self) {
        for key in std::mem::take(&mut self.paused) {
            assert_eq!(self.caller().resume_schedule("q", key).wait(), Ok(true));
        }
        if self.nodes.is_empty() {
            self.start(self.revision);
        }
        let ahead = self.latest.duration_since(self.now).unwrap_or_default();
        self.advance(ahead);
        // Each occurrence that fails holds up those that `all` makes up, and would give way to a new
        // definition.
        loop {
            self.trouble("waits");
            self.advance(CALM + MINUTE);
            let is_calm = POLICIES.iter().all(|(key, _)| {
                let timer = self.nodes[0].get("q", key).wait();
                let timer = timer.expect("the store is there");
                timer.is_some_and(|timer| timer.due > self.now + RETRY)
            });
            if is_calm {
                return;
            }
        }
    }

    fn caller(&mut self) -> &Durable {
        if self.nodes.is_empty() {
            self.start(self.revision);
        }
        &self.nodes[0]
    }

    fn step(&mut self) {
        match self.below(20) {
            0 | 1 if self.nodes.len() < 3 => {
                // An older process may start again. It changes nothing.
                let older = self.below(3) == 0;
                self.start(self.revision.saturating_sub(u32::from(older)));
                self.trouble("starts");
            }
            2 if !self.nodes.is_empty() => {
                let node = self.one_of_the_nodes();
                self.steps.crash(&node);
                self.trouble("crashes");
            }
            3 if !self.nodes.is_empty() => {
                let node = self.one_of_the_nodes();
                self.steps.crash_after_run(&node);
                // It may live until then, and be the only one.
                let by = 2 * HOUR;
                advance(&self.steps, by);
                self.passes(self.now + by, false);
                self.trouble("crashes after a run");
                self.steps.crash(&node);
            }
            4 if !self.nodes.is_empty() => {
                let node = self.one_of_the_nodes();
                let stopped = node.stop(SECOND).wait();
                assert_eq!(stopped.map(|report| report.unfinished), Ok(0));
                self.trouble("stops");
            }
            5 => {
                let by = self.minutes(300);
                self.trouble("steps forward");
                self.jump(self.now + by);
                self.troubled = self.latest + CALM;
            }
            6 => {
                let by = self.minutes(120);
                self.trouble("steps back");
                self.jump((self.now - by).max(at(Duration::ZERO)));
            }
            7 => {
                self.calm_down();
                self.revision += 1;
                self.start(self.revision);
                self.trouble("changes");
            }
            8 => {
                let (key, _) = POLICIES[self.below(3) as usize];
                let is_paused = !self.paused.remove(key);
                let timers = self.caller();
                let changed = match is_paused {
                    true => timers.pause_schedule("q", key).wait(),
                    false => timers.resume_schedule("q", key).wait(),
                };
                assert_eq!(changed, Ok(true), "{key}");
                if is_paused {
                    self.paused.insert(key);
                }
                self.trouble("pauses and ends of pauses");
            }
            _ => {
                let by = self.minutes(200);
                self.advance(by);
            }
        }
    }
}

/// A process of this version of the program.
fn processes(store: &Memory, told: &Sender<Begun>, revision: u32) -> QueueBuilder {
    let told = told.clone();
    let mut queue = Durable::builder(store.clone())
        .handle("q", move |due: &Due<u32>| {
            let date = due.scheduled_for();
            let begun = Begun {
                key: due.key().to_owned(),
                date,
                attempt: due.attempt(),
                late: due.lateness(),
            };
            told.send(begun).expect("the test listens");
            match due.attempt() == 1 && fails(date) {
                true => Err("no printer"),
                false => Ok(()),
            }
        })
        .crash_limit(100)
        .retry(RetryPolicy::fixed(RETRY));
    for (key, missed) in POLICIES {
        let schedule = CronSchedule::from(definition(revision));
        let schedule = schedule.missed(missed).grace(GRACE).revision(revision);
        queue = queue.cron(key, schedule, &revision);
    }
    queue
}

/// Plays this many days, and compares.
fn play(seed: u64, days: u32) {
    let mut world = World::new(seed);
    let end = at(24 * HOUR * days);
    while world.latest < end {
        world.step();
    }
    world.calm_down();
    let begun: Vec<Begun> = world.seen.try_iter().collect();
    println!(
        "seed {seed}: {days} days, {} runs, {:?}",
        begun.len(),
        world.troubles
    );
    assert!(
        world.punctual["skip"].len() > 100,
        "the days have no calm hours"
    );
    for (key, missed) in POLICIES {
        let runs: Vec<&Begun> = begun.iter().filter(|begun| begun.key == key).collect();
        check(&world, &runs, (key, missed), &format!("seed {seed}, {key}"));
    }
}

fn check(world: &World, runs: &[&Begun], (key, missed): (&str, Missed), at: &str) {
    // In order, and none again but after a failure or a crash.
    for pair in runs.windows(2) {
        let order = |begun: &Begun| (begun.date, begun.attempt);
        assert!(order(pair[0]) < order(pair[1]), "{at}: {pair:?}");
    }
    // A process may die with an occurrence that it has claimed and not begun.
    let mut first = runs.to_vec();
    first.dedup_by_key(|begun| begun.date);
    let ran: BTreeSet<SystemTime> = first.iter().map(|begun| begun.date).collect();
    let strange: Vec<_> = ran.difference(&world.dates).collect();
    assert!(strange.is_empty(), "{at}: no dates: {strange:?}");
    // A failure is tried again.
    let failed = |begun: &&&Begun| begun.attempt == 1 && fails(begun.date);
    for begun in runs.iter().filter(failed) {
        let is_next = |other: &&Begun| other.date == begun.date && other.attempt > 1;
        assert!(runs.iter().any(is_next), "{at}: not tried again: {begun:?}");
    }
    // Occurrences that are made up delay the ones after them.
    let punctual = match missed {
        Missed::All => &[],
        _ => world.punctual[key].as_slice(),
    };
    for date in punctual {
        let run = first.iter().find(|begun| begun.date == *date);
        assert!(
            run.is_some_and(|run| run.late == Duration::ZERO),
            "{at}: {date:?}: {run:?}"
        );
    }
    // What a process that died had claimed is late, and not missed.
    let late = |begun: &&&Begun| begun.attempt == 1 && begun.late > GRACE;
    match missed {
        Missed::All => {
            let left: Vec<_> = world.dates.difference(&ran).collect();
            assert!(left.is_empty(), "{at}: left out: {left:?}");
        }
        Missed::Once => {
            // Only the latest one that was missed.
            for begun in first.iter().filter(late) {
                let missed = begun.date + begun.late - GRACE;
                let later = world.dates.range(begun.date..missed).nth(1);
                assert!(later.is_none(), "{at}: {begun:?}, and then {later:?}");
            }
        }
        _ => assert_eq!(first.iter().find(late), None, "{at}"),
    }
}

#[test]
fn each_occurrence_becomes_what_its_policy_says() {
    let setting = |name: &str, otherwise: u32| {
        let value = std::env::var(name).ok();
        value.map_or(otherwise, |value| value.parse().expect("a number"))
    };
    let (seed, days) = (
        setting("SIMULATION_SEED", 1),
        setting("SIMULATION_DAYS", 25),
    );
    play(u64::from(seed) << 32, days);
}
