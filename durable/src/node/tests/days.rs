//! A long simulation with random faults. The seed is printed, and the same seed gives the same run.

use std::time::Duration;

use crate::node::StoreCall;
use crate::node::numbers::Numbers;
use crate::node::tests::world::{Fate, UserCall, World, options};
use crate::store::{ClaimedRun, Outcome};

const QUEUES: [&str; 3] = ["a", "b", "c"];

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// Most runs are short and succeed. It depends on the key and the attempt alone.
fn handler(run: &ClaimedRun, starts: u32) -> (Duration, Outcome) {
    let number: u64 = run.run.key[1..].parse().expect("a number");
    let lasts = match number % 97 {
        0 => secs(20),
        1..=5 => secs(2),
        other => Duration::from_millis(other),
    };
    let outcome = match number % 31 {
        0 if run.fails < 2 => Outcome::Retry(Duration::from_millis(number % 3_000)),
        1 if starts < 3 => Outcome::Again(Duration::from_millis(number % 2_000)),
        2 if starts == 1 => Outcome::GiveBack(secs(1)),
        3 => Outcome::Dead("no more".into()),
        _ => Outcome::Done,
    };
    (lasts, outcome)
}

/// The faults of one run.
struct Faults {
    random: Numbers,
    /// The number of calls for each one that has a fault.
    every: u64,
}

impl Faults {
    fn fate(&mut self, call: &StoreCall) -> Fate {
        if !self.random.next().is_multiple_of(self.every) {
            return Fate::Fine;
        }
        let span = Duration::from_millis(self.random.next() % 25_000);
        // Beats and looks are most of the calls. Claims and settlements shall have their share.
        let rare = !matches!(call, StoreCall::Claim(_) | StoreCall::Settle(_));
        match self.random.next() % 12 {
            0 => Fate::CrashBefore,
            1 => Fate::CrashAfter,
            2 => Fate::Pause(span),
            3..=5 => Fate::LoseAnswer,
            6..=7 => Fate::Late(span),
            _ if rare => Fate::Fine,
            _ => Fate::Fail,
        }
    }
}

/// Plays `span` of virtual time with faults, and then waits until all has ended.
fn play(seed: u64, nodes: usize, span: Duration, timers: u64, every: u64) -> World {
    let mut random = Numbers::new(seed);
    let mut faults = Faults {
        random: Numbers::new(random.next()),
        every,
    };
    let mut config = options(&[("a", 64, None), ("b", 8, None), ("c", 16, Some(200))]);
    for queue in &mut config.queues {
        // Nodes die so often here that a limit would end timers that do no harm.
        queue.crash_limit = 1_000;
    }
    let end = span;
    let mut world = World::new(
        config,
        nodes,
        random.next(),
        handler,
        move |_, time, call| match time < end {
            true => faults.fate(call),
            false => Fate::Fine,
        },
    );
    world.bounds = false;
    let at = |random: &mut Numbers| {
        Duration::from_micros(random.next() % u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    };
    for number in 0..timers {
        let time = at(&mut random);
        let queue = QUEUES[number as usize % 3];
        // Some keys are used more than once.
        let key = format!("k{}", number - number % 5 % 2);
        let after = Duration::from_millis(match random.next() % 10 {
            0 => 0,
            1..=3 => random.next() % 2_000,
            _ => random.next() % 60_000,
        });
        world.user_at(time, UserCall::Schedule(queue, key.clone(), after));
        let later = time + Duration::from_millis(random.next() % 60_000);
        match random.next() % 20 {
            0..=2 => world.user_at(later, UserCall::Cancel(queue, key)),
            3..=4 => world.user_at(later, UserCall::Reschedule(queue, key, after)),
            _ => {}
        }
    }
    let minutes = span.as_secs() / 60;
    for _ in 0..=minutes {
        let time = at(&mut random);
        world.user_at(time, UserCall::SetPaused("b", true));
        world.user_at(time + secs(7), UserCall::SetPaused("b", false));
        let node = random.next() as usize % nodes;
        world.user_at(
            at(&mut random),
            UserCall::Stop(node, secs(random.next() % 20)),
        );
        let micros = (random.next() % 6_000_000).cast_signed() - 3_000_000;
        world.user_at(at(&mut random), UserCall::SetClock(micros));
        // An outage of the whole store, now and then longer than the term.
        let outage = Duration::from_millis(random.next() % 25_000);
        world.user_at(at(&mut random), UserCall::Outage(outage));
    }
    // Dead and stopped nodes come back.
    let mut time = secs(10);
    while time < span + secs(20) {
        for node in 0..nodes {
            world.birth_at(time, node);
        }
        time += secs(10);
    }
    world.run(span);
    let mut waited = 0;
    while world.timers() > 0 && waited < 60 {
        let next = world.time + secs(5);
        world.run(next);
        waited += 1;
    }
    assert_eq!(world.left(), Vec::<String>::new(), "seed {seed}");
    world.ledger.check_all_ran();
    let ledger = &world.ledger;
    println!(
        "seed {seed}: {nodes} nodes, {} schedules, {} starts, {} calls, {} crashes, {} adopted, {} fenced",
        ledger.ops.len(),
        ledger.starts,
        world.calls,
        ledger.crashes,
        ledger.adopted,
        ledger.fenced
    );
    world
}

/// A number from the environment.
fn setting(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn random_faults_break_no_promise() {
    let seed = setting("SIMULATION_SEED", 1);
    let world = play(seed, 5, secs(60), 1_500, 60);
    assert!(world.ledger.crashes > 0 && world.ledger.fenced > 0);
}

/// The long form: `SIMULATION_MINUTES` of virtual time with `SIMULATION_NODES` nodes and
/// `SIMULATION_TIMERS` timers. Run it with `--release`.
#[test]
#[ignore = "it takes minutes: run it with --release and --ignored"]
fn random_faults_break_no_promise_for_a_long_time() {
    let seed = setting("SIMULATION_SEED", 1);
    let minutes = setting("SIMULATION_MINUTES", 10);
    let nodes = usize::try_from(setting("SIMULATION_NODES", 100)).expect("few nodes");
    let timers = setting("SIMULATION_TIMERS", 1_000 * minutes);
    println!("seed {seed}");
    let world = play(seed, nodes, secs(60 * minutes), timers, 2_000);
    assert!(world.ledger.starts > 0);
}
