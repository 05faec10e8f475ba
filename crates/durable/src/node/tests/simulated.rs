//! Simulations of several nodes over one store.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::node::tests::world::{Fate, START, UserCall, World, options};
use crate::node::{MOST_AWAKE, Node, NodeConfig, StoreCall};
use crate::store::{ClaimedRun, Epoch, Offset, Outcome};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Nodes with few queues, and nodes whose parts sleep, as with thousands of queues. See NODE-17.
pub(super) fn awake_and_asleep(queues: &[(&str, usize, Option<u32>)]) -> [NodeConfig; 2] {
    [MOST_AWAKE, 0].map(|most_awake| NodeConfig {
        most_awake,
        ..options(queues)
    })
}

fn quick(_: &ClaimedRun, _: u32) -> (Duration, Outcome) {
    (millis(5), Outcome::Done)
}

#[test]
fn timers_of_three_nodes_run_within_milliseconds() {
    for config in awake_and_asleep(&[("a", 8, None), ("b", 8, None)]) {
        let mut world = World::new(config, 3, 1, quick, |_, _, _| Fate::Fine);
        for number in 0..40_u64 {
            let queue = ["a", "b"][number as usize % 2];
            let at = secs(3) + millis(100 * number);
            let call = UserCall::Schedule(queue, format!("k{number}"), secs(5));
            world.user_at(at, call);
        }
        world.run(secs(20));
        assert_eq!(world.timers(), 0);
        assert_eq!(world.ledger.starts, 40);
        world.ledger.check_all_ran();
        let late = world.ledger.latest_unclaimed;
        assert!(late < millis(10), "{late:?}");
    }
}

#[test]
fn timers_that_a_program_without_a_node_schedules_run_at_once_with_the_doorbell() {
    // NODE-15
    let lateness = |bell: bool, config: &NodeConfig| {
        let config = config.clone();
        let mut world = World::new(config, 3, 1, quick, |_, _, _| Fate::Fine);
        // Node 0 gets hints of what users schedule, so it is not there.
        world.run(secs(1));
        world.crash(0);
        world.bell = bell.then_some(0);
        for number in 0..40_u64 {
            let at = secs(30) + millis(770 * number);
            let call = UserCall::Schedule("a", format!("k{number}"), millis(20));
            world.user_at(at, call);
        }
        world.run(secs(70));
        world.ledger.check_all_ran();
        world.ledger.latest_unclaimed
    };
    for config in awake_and_asleep(&[("a", 8, None)]) {
        let (without, with) = (lateness(false, &config), lateness(true, &config));
        // They are found by the next poll, whether their part sleeps or not.
        assert!(
            without > millis(500) && without < millis(1_010),
            "{without:?}"
        );
        // The way of a claim.
        assert!(with < millis(2), "{with:?}");
    }
}

#[test]
fn only_what_is_due_within_five_seconds_after_a_death_is_late() {
    // A dead node may come back as another one, which has to learn of its death, too.
    for config in awake_and_asleep(&[("a", 64, None)]) {
        only_what_is_due_soon_is_late(&config);
    }
}

fn only_what_is_due_soon_is_late(config: &NodeConfig) {
    let killed = [&[1][..], &[0], &[1, 2], &[0, 2]];
    for (number, killed) in killed.into_iter().enumerate() {
        // Against beats and polls: at different moments of both.
        for step in 0..24 {
            let back = [None, Some(secs(2)), Some(millis(4_500)), Some(secs(8))];
            let back = back[(number + step as usize) % back.len()];
            let died = secs(20) + millis(211 * step);
            let mut world = World::new(config.clone(), 3, step, quick, |_, _, _| Fate::Fine);
            for number in 0..480_u64 {
                // Before the death, and after it.
                let ahead = if number % 2 == 0 { secs(9) } else { secs(3) };
                let due = died + millis(25 * number + 7);
                let call = UserCall::Schedule("a", format!("k{number}"), ahead);
                world.user_at(due - ahead, call);
            }
            if let Some(after) = back {
                for node in killed {
                    world.birth_at(died + after, *node);
                }
            }
            world.run(died);
            let death = world.store_now();
            for node in killed {
                world.crash(*node);
            }
            world.run(died + secs(40));
            world.ledger.check_all_ran();
            assert_eq!(world.ledger.starts, 480);
            assert_eq!(world.ledger.crashes, 0);
            for (due, late) in &world.ledger.unclaimed {
                assert!(
                    *late < millis(100) || *due < death + secs(5),
                    "{killed:?} at {died:?}, back after {back:?}: due {:?} after it, {late:?} late",
                    due.since(death)
                );
            }
        }
    }
}

/// Some runs outlast the late beat of their node.
fn some_long(run: &ClaimedRun, _: u32) -> (Duration, Outcome) {
    let lasts = match run.run.key.starts_with("long") {
        true => secs(17),
        false => millis(5),
    };
    (lasts, Outcome::Done)
}

/// What one node asks for.
#[derive(Clone, Default, Debug)]
struct Asked {
    polls: usize,
    /// The shards that it reads as its own, in all polls.
    shards: usize,
    /// Those of its last poll of everything, one bit each.
    own: u64,
}

/// Lets one beat of the second of three nodes reach the store late. Returns what each node asked
/// for from then on.
fn with_a_late_beat(sent: Duration, late: Duration) -> Vec<Asked> {
    const TIMERS: u64 = 400;
    let until = sent + secs(30);
    let late_node: Rc<Cell<Option<Epoch>>> = Rc::default();
    let asked: Rc<RefCell<BTreeMap<Epoch, Asked>>> = Rc::default();
    let (victim, counted) = (Rc::clone(&late_node), Rc::clone(&asked));
    let config = options(&[("a", 64, None)]);
    let fate = move |_, time: Duration, call: &StoreCall| {
        match call {
            StoreCall::Beat(epoch) if time >= sent && victim.get() == Some(*epoch) => {
                victim.set(None);
                return Fate::Slow(late);
            }
            StoreCall::Poll(poll) if time >= sent => {
                let mut counted = counted.borrow_mut();
                let asked = counted.entry(poll.epoch).or_default();
                let ahead = |until| matches!(until, Offset::Ahead(span) if !span.is_zero());
                let own = poll.ranges.iter().filter(|range| ahead(range.until));
                let own = own.fold(0_u64, |own, range| own | 1 << range.shard);
                asked.polls += 1;
                asked.shards += own.count_ones() as usize;
                if poll.complete {
                    asked.own = own;
                }
            }
            _ => {}
        }
        Fate::Fine
    };
    let mut world = World::new(config, 3, 5, some_long, fate);
    for number in 0..TIMERS {
        let kind = if number % 10 == 0 { "long" } else { "k" };
        let due = sent - secs(2) + millis(50 * number + 7);
        let call = UserCall::Schedule("a", format!("{kind}{number}"), secs(9));
        world.user_at(due - secs(9), call);
    }
    world.run(sent - millis(1));
    let epochs = |world: &World| -> Vec<Epoch> {
        let machines = world.nodes.iter().filter_map(|node| node.machine.as_ref());
        machines.map(Node::epoch).collect()
    };
    let nodes = epochs(&world);
    late_node.set(Some(nodes[1]));
    world.run(until);
    assert_eq!(late_node.get(), None, "the beat was sent");
    // Nobody was declared gone.
    assert_eq!(epochs(&world), nodes);
    world.run(until + secs(20));
    world.ledger.check_all_ran();
    let ledger = &world.ledger;
    let claimed_twice = ledger.crashes + ledger.adopted + ledger.fenced;
    assert_eq!((u64::from(ledger.starts), claimed_twice), (TIMERS, 0));
    // The node knows what is due within a second after the beat, and the others have noticed soon
    // after that.
    let beat = START + sent;
    for (due, lateness) in &ledger.unclaimed {
        let is_near = *due > beat && *due < beat + secs(5);
        assert!(
            *lateness < millis(if is_near { 700 } else { 20 }),
            "{late:?}: due {:?} after the beat, {lateness:?} late",
            due.since(beat)
        );
    }
    let asked = asked.borrow();
    nodes.iter().map(|node| asked[node].clone()).collect()
}

#[test]
fn a_beat_that_is_only_late_costs_at_most_twice_the_polls_and_no_second_claim() {
    let shards = |nodes: &[Asked]| -> usize { nodes.iter().map(|asked| asked.shards).sum() };
    for step in 0..6 {
        let sent = secs(20) + millis(511 * step);
        let usual = with_a_late_beat(sent, Duration::ZERO);
        // The last one comes a second before the node's lease ends.
        for late in [200, 300, 700, 1_500, 2_900, 3_100, 6_000, 11_000] {
            let nodes = with_a_late_beat(sent, millis(late));
            for (asked, usual) in nodes.iter().zip(&usual) {
                assert!(
                    asked.polls <= 2 * usual.polls,
                    "{late} ms: {asked:?}, usually {usual:?}"
                );
                assert_eq!(asked.own, usual.own, "the shards go back to their owner");
            }
            assert!(
                shards(&nodes) <= 2 * shards(&usual),
                "{late} ms: {nodes:?}, usually {usual:?}"
            );
            // The others notice a beat that is later than their patience.
            let by_others = [&nodes[0], &nodes[2]].map(|asked| asked.shards);
            let usually = [&usual[0], &usual[2]].map(|asked| asked.shards);
            let noticed = by_others.iter().sum::<usize>() > usually.iter().sum();
            assert!(noticed || late < 1_500, "{late} ms: {nodes:?}");
        }
    }
}

// === the enumerated simulation ===

fn by_key(run: &ClaimedRun, starts: u32) -> (Duration, Outcome) {
    let kind = run.run.key.trim_end_matches(|c: char| c.is_ascii_digit());
    let first = run.fails == 0;
    match kind {
        // An error, and a panic that counts as one.
        "error" if run.fails < 2 => (millis(30), Outcome::Retry(millis(400))),
        "dead" if first => (millis(3), Outcome::Retry(millis(900))),
        "dead" => (millis(3), Outcome::Dead("no more".into())),
        "again" if starts < 4 => (millis(40), Outcome::Again(millis(700))),
        "back" if starts == 1 => (millis(1), Outcome::GiveBack(secs(1))),
        "long" => (secs(3), Outcome::Done),
        "longer" if starts == 1 => (secs(19), Outcome::Done),
        _ => (millis(20), Outcome::Done),
    }
}

/// When each node has its part of the shards.
const READY: Duration = secs(5);

/// All operations on about twenty timers.
fn scenario(world: &mut World) {
    let schedule = |queue, key: &str, after| UserCall::Schedule(queue, key.into(), after);
    let cancel = |key: &str| UserCall::Cancel("a", key.into());
    let moved = |key: &str, after| UserCall::Reschedule("a", key.into(), after);
    for number in 0..6 {
        let after = secs(3) + millis(370 * number);
        let call = schedule("a", &format!("plain{number}"), after);
        world.user_at(READY + secs(1) + millis(number), call);
    }
    for (key, after) in [
        ("cancel1", secs(6)),
        ("cancel2", secs(5)),
        ("move1", secs(4)),
        ("move2", secs(30)),
        ("error1", secs(4)),
        ("dead1", secs(4)),
        ("again1", secs(3)),
        ("back1", secs(3)),
        ("long1", secs(4)),
        ("long2", secs(4)),
        ("long3", secs(4)),
        ("longer1", secs(4)),
    ] {
        world.user_at(READY + secs(1), schedule("a", key, after));
    }
    world.user_at(READY + secs(3), cancel("cancel1"));
    // Against the claim, which is under way at this moment.
    world.user_at(
        READY + secs(6) + Duration::from_micros(300),
        cancel("cancel2"),
    );
    world.user_at(READY + secs(4), moved("move1", secs(6)));
    world.user_at(READY + secs(4), moved("move2", millis(300)));
    // During the run: a timer that follows, and is moved; a cancel; a move of nothing.
    world.user_at(READY + secs(6), schedule("a", "long1", secs(1)));
    world.user_at(READY + secs(7), moved("long1", secs(4)));
    world.user_at(READY + secs(6), cancel("long2"));
    world.user_at(READY + secs(6), moved("long3", secs(1)));
    // A queue that is paused while its timers come due, and one with a pace.
    world.user_at(READY + secs(4), UserCall::SetPaused("b", true));
    world.user_at(READY + secs(2), schedule("b", "held1", secs(3)));
    world.user_at(READY + secs(5), schedule("b", "held2", millis(500)));
    world.user_at(READY + secs(8), UserCall::SetPaused("b", false));
    for number in 0..8 {
        let call = schedule("c", &format!("paced{number}"), secs(2));
        world.user_at(READY + secs(7), call);
    }
    // A node is stopped while it has runs, and comes back.
    world.user_at(READY + secs(6), UserCall::Stop(2, secs(1)));
    world.birth_at(READY + secs(9), 2);
    world.user_at(READY + secs(9), schedule("a", "plain7", millis(100)));
    world.user_at(READY + secs(10), schedule("a", "plain8", secs(3)));
}

/// What a run of the scenario has shown.
#[derive(Default, Debug)]
struct Shown {
    calls: usize,
    runs: usize,
    adopted: u32,
    crashes: u32,
    fenced: u32,
    unclaimed: Duration,
    takeover: Duration,
}

/// The runs of the undisturbed scenario that the stopping node leaves to the others.
const CRASHES: u32 = 2;

impl Shown {
    fn more_crashes(&self) -> bool {
        self.crashes as usize > CRASHES as usize * self.runs + 20
    }

    fn add(&mut self, other: &Shown) {
        self.runs += 1;
        self.adopted += other.adopted;
        self.crashes += other.crashes;
        self.fenced += other.fenced;
        self.unclaimed = self.unclaimed.max(other.unclaimed);
        self.takeover = self.takeover.max(other.takeover);
    }
}

/// The last operation of the scenario, and the time after which all must have ended: a run of 19 s
/// that is taken over after 20 s, and a suspect that waits for it.
const SCENARIO_QUEUES: [(&str, usize, Option<u32>); 3] =
    [("a", 16, None), ("b", 4, None), ("c", 2, Some(4))];
const SCENARIO: Duration = secs(11 + READY.as_secs());
const BOUND: Duration = secs(75 + READY.as_secs());

fn play(fate_of: Option<(usize, Fate)>, bell: bool, config: &NodeConfig) -> Shown {
    let config = config.clone();
    let mut world = World::new(config, 3, 7, by_key, move |number, _, _| match fate_of {
        Some((call, fate)) if call == number => fate,
        _ => Fate::Fine,
    });
    world.bell = bell.then_some(4);
    scenario(&mut world);
    world.run(SCENARIO);
    while world.timers() > 0 && world.time < BOUND {
        let next = world.time + secs(1);
        world.run(next);
    }
    assert_eq!(world.left(), Vec::<String>::new(), "{fate_of:?}");
    world.ledger.check_all_ran();
    Shown {
        calls: world.calls,
        runs: 1,
        adopted: world.ledger.adopted,
        crashes: world.ledger.crashes,
        fenced: world.ledger.fenced,
        unclaimed: world.ledger.latest_unclaimed,
        takeover: world.ledger.latest_takeover,
    }
}

/// Plays the scenario once for each call of the undisturbed run, with this fate of the call. Near
/// timers ring the doorbell of all nodes.
fn play_all(fate: Fate) -> Shown {
    let mut all = Shown::default();
    for config in awake_and_asleep(&SCENARIO_QUEUES) {
        let clean = play(None, true, &config);
        for call in 0..clean.calls {
            let shown = std::panic::catch_unwind(|| play(Some((call, fate)), true, &config));
            let shown = shown.unwrap_or_else(|_| {
                let most = config.most_awake;
                panic!(
                    "call {call} of {}, {most} parts awake: {fate:?}",
                    clean.calls
                )
            });
            all.add(&shown);
        }
    }
    println!("{fate:?}: {all:?}");
    all
}

#[test]
fn the_undisturbed_scenario_is_punctual() {
    for (bell, config) in [false, true].into_iter().flat_map(|bell| {
        let configs = awake_and_asleep(&SCENARIO_QUEUES).into_iter();
        configs.map(move |config| (bell, config))
    }) {
        let shown = play(None, bell, &config);
        assert!(shown.unclaimed < millis(20), "{shown:?}");
        // The node that stops leaves its long runs to the others, which counts as a crash.
        assert_eq!(
            (shown.adopted, shown.crashes, shown.fenced),
            (0, CRASHES, 0)
        );
        assert!(shown.calls > 100, "{shown:?}");
    }
}

#[test]
fn a_crash_before_any_call_keeps_every_promise() {
    let shown = play_all(Fate::CrashBefore);
    assert!(shown.unclaimed < secs(3), "{shown:?}");
    assert!(
        shown.takeover < secs(20) && shown.more_crashes(),
        "{shown:?}"
    );
}

#[test]
fn a_crash_after_any_call_keeps_every_promise() {
    let shown = play_all(Fate::CrashAfter);
    assert!(shown.unclaimed < secs(3), "{shown:?}");
    assert!(
        shown.takeover < secs(20) && shown.more_crashes(),
        "{shown:?}"
    );
}

#[test]
fn a_lost_answer_to_any_call_keeps_every_promise() {
    let shown = play_all(Fate::LoseAnswer);
    assert!(shown.unclaimed < secs(3), "{shown:?}");
    assert!(shown.adopted > 0 && shown.fenced > 0, "{shown:?}");
}

#[test]
fn an_error_of_any_call_keeps_every_promise() {
    let shown = play_all(Fate::Fail);
    assert!(shown.unclaimed < secs(3), "{shown:?}");
    assert_eq!(shown.adopted, 0);
}

#[test]
fn any_call_that_is_carried_out_long_after_its_error_keeps_every_promise() {
    let shown = play_all(Fate::Late(millis(1_300)));
    assert!(shown.unclaimed < secs(3) && shown.fenced > 0, "{shown:?}");
}

#[test]
fn a_pause_longer_than_the_term_after_any_call_keeps_every_promise() {
    let shown = play_all(Fate::Pause(secs(21)));
    assert!(
        shown.takeover < secs(20) && shown.more_crashes(),
        "{shown:?}"
    );
    assert!(shown.fenced > 0, "{shown:?}");
}
