//! Simulations of several nodes over one store.

use std::time::Duration;

use crate::node::tests::world::{Fate, UserCall, World, options};
use crate::store::{ClaimedRun, Outcome};

fn quick(_: &str, _: &ClaimedRun) -> (Duration, Outcome) {
    (Duration::from_millis(5), Outcome::Done)
}

#[test]
fn timers_of_three_nodes_run_within_milliseconds() {
    let config = options(&[("a", 8, None), ("b", 8, None)]);
    let mut world = World::new(config, 3, 1, quick, |_, _, _| Fate::Fine);
    for number in 0..40_u64 {
        let queue = ["a", "b"][number as usize % 2];
        let at = Duration::from_secs(3) + Duration::from_millis(100 * number);
        let call = UserCall::Schedule(queue, format!("k{number}"), Duration::from_secs(5));
        world.user_at(at, call);
    }
    world.run(Duration::from_secs(20), |_| false);
    assert_eq!(world.timers(), 0);
    assert_eq!(world.ledger.starts, 40);
    world.ledger.check_all_ran();
    let late = world.ledger.latest_unclaimed;
    assert!(late < Duration::from_millis(10), "{late:?}");
}
