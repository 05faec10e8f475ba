//! Long simulations with random faults. The seed is printed, and the same seed gives the same run.
//!
//! A day of 100 nodes and a million timers:
//!
//! ```text
//! cargo test --release -p tourbillon-durable --all-features --lib -- --ignored --nocapture
//! within_a_day
//! ```
//!
//! `SIMULATION_SEED`, `SIMULATION_NODES` and `SIMULATION_TIMERS` in the environment change the seed
//! and the sizes. The test fails at the first promise that is broken. At its end it prints:
//!
//! - how much virtual time was played, and how long that took. Idle stretches of the day are
//!   skipped.
//! - what the nodes did: the starts of timers, calls to the store, and runs that a crash has cut
//!   off or whose end was refused.
//! - the number of faults of each kind.
//!
//! `for_a_long_time` in place of `within_a_day` plays `SIMULATION_MINUTES` without skipping
//! anything. With odd seeds the store has a doorbell, which makes most of the events.

use std::time::{Duration, Instant};

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
    /// See [`Plan`].
    every: u64,
}

impl Faults {
    fn fate(&mut self, call: &StoreCall) -> Fate {
        if !self.random.next().is_multiple_of(self.every) {
            return Fate::Fine;
        }
        let span = Duration::from_millis(self.random.next() % 25_000);
        // Beats and polls are most of the calls. Claims and settlements shall have their share.
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

/// The size and the faults of one simulation.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    nodes: usize,
    span: Duration,
    timers: u64,
    /// The number of calls for each one that has a fault.
    every: u64,
    /// The calls of users come in this number of bursts, and idle stretches between them are
    /// skipped. Without it they come at any time.
    bursts: Option<u64>,
}

/// How long a burst lasts.
const BURST: u64 = 20;

impl Plan {
    /// A random time of the day.
    fn at(&self, random: &mut Numbers) -> Duration {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        match self.bursts {
            Some(bursts) => {
                let start = self.span / bursts as u32 * (random.next() % bursts) as u32;
                start + Duration::from_micros(random.next() % micros(secs(BURST)))
            }
            None => Duration::from_micros(random.next() % micros(self.span)),
        }
    }

    /// The delay of a timer. On a day with bursts a few timers wait for hours.
    fn delay(&self, random: &mut Numbers) -> Duration {
        if self.bursts.is_some() && random.next().is_multiple_of(10_000) {
            return secs(random.next() % 20_000);
        }
        Duration::from_millis(match random.next() % 10 {
            0 => 0,
            1..=3 => random.next() % 2_000,
            _ => random.next() % 60_000,
        })
    }

    /// What users do.
    fn calls(&self, random: &mut Numbers, world: &mut World) {
        for number in 0..self.timers {
            let time = self.at(random);
            let queue = QUEUES[number as usize % 3];
            // Some keys are used more than once.
            let key = format!("k{}", number - number % 5 % 2);
            let after = self.delay(random);
            world.user_at(time, UserCall::Schedule(queue, key.clone(), after));
            let later = time + Duration::from_millis(random.next() % 60_000);
            match random.next() % 20 {
                0..=2 => world.user_at(later, UserCall::Cancel(queue, key)),
                3..=4 => world.user_at(later, UserCall::Reschedule(queue, key, after)),
                _ => {}
            }
        }
    }

    /// What befalls nodes and the store, about once a minute in which something happens.
    fn upsets(&self, random: &mut Numbers, world: &mut World) {
        let minutes = self.bursts.unwrap_or(self.span.as_secs() / 60);
        for _ in 0..=minutes {
            let time = self.at(random);
            world.user_at(time, UserCall::SetPaused("b", true));
            world.user_at(time + secs(7), UserCall::SetPaused("b", false));
            let node = random.next() as usize % self.nodes;
            let grace = secs(random.next() % 20);
            world.user_at(self.at(random), UserCall::Stop(node, grace));
            let micros = (random.next() % 6_000_000).cast_signed() - 3_000_000;
            world.user_at(self.at(random), UserCall::SetClock(micros));
            // An outage of the whole store, now and then longer than the lease.
            let outage = Duration::from_millis(random.next() % 25_000);
            world.user_at(self.at(random), UserCall::Outage(outage));
            world.user_at(self.at(random), UserCall::Storm("a", 200));
        }
    }
}

/// Plays the plan with faults, and then waits until all has ended.
fn play(plan: Plan) -> World {
    let began = Instant::now();
    let Plan {
        seed, nodes, span, ..
    } = plan;
    let mut random = Numbers::new(seed);
    let mut faults = Faults {
        random: Numbers::new(random.next()),
        every: plan.every,
    };
    let mut config = options(&[("a", 64, None), ("b", 8, None), ("c", 16, Some(200))]);
    // With every second pair of seeds the parts sleep.
    if seed % 4 < 2 {
        config.most_awake = 0;
    }
    for queue in &mut config.queues {
        // Nodes die so often here that a limit would end timers that do no harm.
        queue.crash_limit = 1_000;
    }
    let mut world = World::new(
        config,
        nodes,
        random.next(),
        handler,
        move |_, time, call| match time < span {
            true => faults.fate(call),
            false => Fate::Fine,
        },
    );
    world.bounds = false;
    // With every second seed the store has a doorbell.
    world.bell = (seed % 2 == 1).then_some(4);
    world.reborn = Some(secs(10));
    world.skipped = plan.bursts.map(|_| Duration::ZERO);
    plan.calls(&mut random, &mut world);
    plan.upsets(&mut random, &mut world);
    // The last calls of users come within a minute after the span. Some timers are due hours later.
    world.run(span + secs(60));
    let last = world.day() + world.last_due().since(world.store_now());
    world.run(last);
    let mut waited = 0;
    while world.timers() > 0 && waited < 60 {
        let next = world.day() + secs(5);
        world.run(next);
        waited += 1;
    }
    assert_eq!(world.left(), Vec::<String>::new(), "seed {seed}");
    world.ledger.check_all_ran();
    let ledger = &world.ledger;
    println!(
        "seed {seed}: {nodes} nodes, {:.0?} of {:.0?} played in {:.1?}",
        world.time,
        world.day(),
        began.elapsed(),
    );
    println!(
        "  {} schedules, {} starts, {} calls of nodes, {} events",
        ledger.ops.len(),
        ledger.starts,
        world.calls,
        world.played,
    );
    println!(
        "  {} runs cut off by a crash, {} adopted, {} fenced",
        ledger.crashes, ledger.adopted, ledger.fenced,
    );
    for (name, count) in &world.faults {
        println!("  {count} {name}");
    }
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
    let world = play(Plan {
        seed,
        nodes: 5,
        span: secs(60),
        timers: 1_500,
        every: 60,
        bursts: None,
    });
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
    let world = play(Plan {
        seed,
        nodes,
        span: secs(60 * minutes),
        timers,
        every: 2_000,
        bursts: None,
    });
    assert!(world.ledger.starts > 0);
}

/// A day: by default 100 nodes and a million timers in bursts, between which idle stretches are
/// skipped.
#[test]
#[ignore = "it takes minutes: run it with --release and --ignored"]
fn random_faults_break_no_promise_within_a_day() {
    let seed = setting("SIMULATION_SEED", 1);
    let nodes = usize::try_from(setting("SIMULATION_NODES", 100)).expect("few nodes");
    let plan = Plan {
        seed,
        nodes,
        span: secs(24 * 3_600),
        timers: setting("SIMULATION_TIMERS", 1_000_000),
        every: 2_000,
        bursts: Some(50),
    };
    println!("seed {seed}");
    let world = play(plan);
    assert!(world.day() >= plan.span && world.time < plan.span / 4);
    assert!(world.ledger.crashes > 0 && world.ledger.fenced > 0 && world.ledger.adopted > 0);
}

#[test]
fn an_hour_with_idle_stretches_is_played_within_minutes() {
    let plan = Plan {
        seed: setting("SIMULATION_SEED", 1),
        nodes: 3,
        span: secs(3_600),
        timers: 300,
        every: 100,
        bursts: Some(4),
    };
    let world = play(plan);
    assert!(
        world.day() >= plan.span && world.time < plan.span / 4,
        "{:?}",
        world.time
    );
}
