//! Parts of queues that sleep: what a node asks for, and that nothing is lost by it. See NODE-17.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use crate::node::tests::world::{Fate, UserCall, World, options};
use crate::node::{NodeConfig, StoreCall};
use crate::store::{Band, ClaimedRun, Offset, Outcome, Poll, SHARDS};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Runs that last for long are those of a key that says so.
fn handler(run: &ClaimedRun, _: u32) -> (Duration, Outcome) {
    let lasts = if run.run.key.starts_with("long") {
        secs(30)
    } else {
        millis(5)
    };
    (lasts, Outcome::Done)
}

/// The polls that the nodes have sent, with their times.
type Sent = Rc<RefCell<Vec<(Duration, Poll)>>>;

/// A world that notes all polls.
fn watched(config: NodeConfig, nodes: usize) -> (World, Sent) {
    let sent = Sent::default();
    let seen = Rc::clone(&sent);
    let world = World::new(config, nodes, 5, handler, move |_, time, call| {
        if let StoreCall::Poll(poll) = call {
            seen.borrow_mut().push((time, poll.clone()));
        }
        Fate::Fine
    });
    (world, sent)
}

fn asleep(queues: &[(&str, usize, Option<u32>)]) -> NodeConfig {
    NodeConfig {
        most_awake: 0,
        ..options(queues)
    }
}

/// So many queues that the parts of a node that is alone sleep without any setting of a test.
fn many_queues() -> Vec<&'static str> {
    // The names live as long as the program.
    let name = |number| -> &'static str { Box::leak(format!("queue-{number}").into_boxed_str()) };
    (0..1_000).map(name).collect()
}

#[test]
fn a_node_with_a_thousand_queues_asks_for_what_is_due_and_not_for_each_queue() {
    let names = many_queues();
    let queues: Vec<_> = names.iter().map(|name| (*name, 4, None)).collect();
    let (mut world, sent) = watched(options(&queues), 2);
    // The node 0 gets hints of what users schedule, so it is not there.
    world.run(secs(1));
    world.crash(0);
    for name in &names {
        let call = UserCall::Schedule(name, "tomorrow".into(), secs(86_400));
        world.user_at(secs(2), call);
    }
    world.run(secs(40));
    sent.borrow_mut().clear();
    world.run(secs(60));
    let idle: Vec<Poll> = sent.borrow_mut().drain(..).map(|(_, poll)| poll).collect();
    for poll in &idle {
        // Eight queues, in turn, are read whole.
        assert!(poll.ranges.len() <= 8 * 64, "{} ranges", poll.ranges.len());
        assert!(poll.bands.len() <= 65, "{} bands", poll.bands.len());
    }
    assert!((18..25).contains(&idle.len()), "{} polls", idle.len());

    // What a process without a node schedules starts in time all the same.
    for number in 0..100 {
        let key = format!("ahead:{number}");
        let call = UserCall::Schedule(names[number * 7], key, secs(3));
        world.user_at(secs(60) + millis(37 * number as u64), call);
    }
    world.run(secs(70));
    assert_eq!(world.ledger.starts, 100);
    let late = world.ledger.latest_unclaimed;
    assert!(late < millis(10), "{late:?}");
    let sent = sent.borrow();
    let most = sent.iter().map(|(_, poll)| poll.ranges.len()).max();
    assert!(most < Some(8 * 64 + 100), "{most:?}");
}

/// The shards of a queue that the last poll of everything has asked for, without what its turn has
/// added.
fn asked(sent: &Sent, queue: &str) -> BTreeSet<u16> {
    let sent = sent.borrow();
    let mut polls = sent.iter().rev().map(|(_, poll)| poll);
    let poll = polls.find(|poll| poll.complete && !poll.bands.is_empty());
    let ranges = poll.into_iter().flat_map(|poll| &poll.ranges);
    let ranges = ranges.filter(|range| &*range.queue == queue && range.mark.is_some());
    ranges.map(|range| range.shard).collect()
}

#[test]
fn a_part_is_awake_while_it_has_something_due_or_running_and_sleeps_again() {
    let (mut world, sent) = watched(asleep(&[("a", 4, None), ("b", 4, None)]), 1);
    world.run(secs(10));
    assert_eq!(asked(&sent, "a"), BTreeSet::new());
    world.user_at(secs(10), UserCall::Schedule("a", "long1".into(), secs(6)));
    world.run(secs(12) + millis(500));
    assert_eq!(
        asked(&sent, "a").len(),
        0,
        "it is due in more than three seconds"
    );
    world.run(secs(15) + millis(500));
    assert_eq!(asked(&sent, "a").len(), 1);
    world.run(secs(40));
    assert_eq!(
        (asked(&sent, "a").len(), world.ledger.starts),
        (1, 1),
        "it runs"
    );
    world.run(secs(55));
    assert_eq!(asked(&sent, "a").len(), 0);
    assert_eq!((asked(&sent, "b").len(), world.timers()), (0, 0));
}

#[test]
fn the_mark_of_a_shard_follows_the_clock_but_not_past_what_only_an_owner_takes_yet() {
    let (mut world, sent) = watched(asleep(&[("a", 4, None)]), 1);
    world.run(secs(30));
    let now = world.store_now();
    let behind = |band: &Band| band.mark.map(|mark| now.since(mark));
    let sent = sent.borrow();
    let last = sent
        .iter()
        .map(|(_, poll)| poll)
        .rfind(|poll| poll.complete);
    let bands = &last.expect("polls").bands;
    let marked = bands.iter().filter_map(behind);
    // A beat each three seconds, a poll each second, and the margin.
    let late: Vec<_> = marked.filter(|behind| *behind > secs(6)).collect();
    assert_eq!(late, [Duration::ZERO; 0]);
    let unmarked = bands.iter().filter(|band| band.mark.is_none());
    // The one of the shard whose turn it is.
    assert_eq!(unmarked.count(), 1);
    assert_eq!(bands.len(), usize::from(SHARDS) + 1);
    assert!(
        bands
            .iter()
            .all(|band| band.until == Offset::Ahead(secs(3)) || band.mark.is_none())
    );
}

#[test]
fn a_queue_that_goes_on_after_a_pause_is_read_from_the_beginning() {
    let (mut world, _) = watched(asleep(&[("a", 4, None), ("b", 4, None)]), 1);
    world.user_at(secs(5), UserCall::SetPaused("a", true));
    world.user_at(secs(6), UserCall::Schedule("a", "held".into(), secs(4)));
    // The mark of its shard moves past it.
    world.run(secs(60));
    assert_eq!(world.ledger.starts, 0);
    world.user_at(secs(60), UserCall::SetPaused("a", false));
    world.run(secs(61));
    assert_eq!(world.ledger.starts, 1);
}

#[test]
fn a_shard_whose_band_is_cut_is_polled_in_all_queues_and_nothing_is_late() {
    // For some seconds, another queue has more timers than a band shows.
    let (mut world, sent) = watched(asleep(&[("a", 4, None)]), 1);
    world.run(secs(10));
    for number in 0..12_000_u64 {
        let call = UserCall::Schedule("strange", format!("s{number}"), secs(4));
        world.user_at(secs(10) + millis(number % 1_000), call);
    }
    for number in 0..50_u64 {
        let call = UserCall::Schedule("a", format!("k{number}"), secs(5));
        world.user_at(secs(11) + millis(number * 80), call);
    }
    world.run(secs(40));
    assert_eq!(world.ledger.starts, 50);
    let late = world.ledger.latest_unclaimed;
    assert!(late < millis(10), "{late:?}");
    let sent = sent.borrow();
    let full = sent
        .iter()
        .filter(|(_, poll)| poll.complete && poll.bands.len() < 60);
    let times: Vec<Duration> = full.map(|(time, _)| *time).collect();
    assert!((8..40).contains(&times.len()), "{times:?}");
}

#[test]
fn a_band_that_is_cut_moves_no_mark_past_what_it_has_not_shown() {
    let (mut world, _) = watched(asleep(&[("a", 4, None)]), 1);
    // It leaves, so that no end of it drops the marks later.
    world.user_at(secs(1), UserCall::Stop(0, Duration::ZERO));
    // Nobody is there while all this becomes due, and what a queue of nobody has is older.
    for number in 0..12_000 {
        let call = UserCall::Schedule("strange", format!("s{number}"), secs(1));
        world.user_at(secs(2), call);
    }
    for number in 0..50 {
        let call = UserCall::Schedule("a", format!("k{number}"), secs(2));
        world.user_at(secs(5), call);
    }
    world.birth_at(secs(60), 0);
    world.run(secs(70));
    assert_eq!(world.ledger.starts, 50);
}

#[test]
fn the_band_of_a_shard_in_turn_finds_what_a_wrong_mark_hides() {
    let (mut world, _) = watched(asleep(&[("a", 4, None)]), 2);
    world.bounds = false;
    // The node 0 gets hints of what users schedule, so it is not there.
    world.run(secs(1));
    world.crash(0);
    // Against ROW-2, somebody writes a due time that has passed.
    let back = 30_000_000;
    world.user_at(secs(60), UserCall::SetClock(-back));
    world.user_at(
        secs(60),
        UserCall::Schedule("a", "hidden".into(), millis(1)),
    );
    world.user_at(secs(60), UserCall::SetClock(back));
    world.run(secs(60) + millis(900));
    assert_eq!(world.ledger.starts, 0, "no mark hides it");
    world.run(secs(60 + 66));
    assert_eq!(world.ledger.starts, 1);
}

#[test]
fn a_store_that_knows_no_bands_is_asked_for_each_part() {
    let (mut world, sent) = watched(asleep(&[("a", 4, None)]), 1);
    world.without_surveys = true;
    for number in 0..20_u64 {
        let call = UserCall::Schedule("a", format!("k{number}"), secs(7));
        world.user_at(secs(3) + millis(number * 130), call);
    }
    world.run(secs(30));
    assert_eq!(world.ledger.starts, 20);
    let late = world.ledger.latest_unclaimed;
    assert!(late < millis(10), "{late:?}");
    let sent = sent.borrow();
    let full = sent
        .iter()
        .filter(|(_, poll)| poll.ranges.len() >= 64)
        .count();
    assert!(full >= 20, "{full}");
}
