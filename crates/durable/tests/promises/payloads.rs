//! 10 *queues do not hold each other up*, with payloads of many megabytes in one of them.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use kit::gate::Gate;
use kit::wait;
use tourbillon_durable::{Due, Durable, DurableBuilder, Paging};

use crate::watched::{Seen, Watched};
use crate::worlds::World;

const MINUTE: Duration = Duration::from_secs(60);
const LIMIT: usize = 16 << 20;
/// The length of a large payload as JSON.
const LENGTH: usize = 10 << 20;
const LARGE: usize = 4;
const SMALL: usize = 100;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn large() -> String {
    "x".repeat(LENGTH - 2)
}

fn client(world: &impl World) -> Durable {
    let builder = Durable::builder(world.store());
    builder.payload_limit(LIMIT).start().unwrap()
}

fn schedule_large(client: &Durable) {
    let payload = large();
    for number in 0..LARGE {
        client
            .schedule("large", &number.to_string(), ms(0), &payload)
            .wait()
            .unwrap();
    }
}

fn schedule_small(client: &Durable, name: &str) {
    let many = (0..SMALL).map(|number| (format!("{name}-{number}"), ms(0), String::new()));
    client.schedule_many("small", many).wait().unwrap();
}

/// The claims of a node: how many timers of each queue they have.
#[derive(Clone, Default)]
struct Claims(Arc<Mutex<Vec<(usize, usize)>>>);

impl Claims {
    /// A node whose claims they are.
    fn node(&self, world: &impl World) -> DurableBuilder {
        let claims = Arc::clone(&self.0);
        let store = Watched::new(world.store(), move |seen| {
            if let Seen::Claim(claim) = seen {
                let timers = claim.timers.iter().map(|timer| &timer.queue);
                let queues: Vec<_> = timers
                    .chain(claim.adopt.iter().map(|run| &run.queue))
                    .collect();
                let large = queues.iter().filter(|queue| &****queue == "large").count();
                // A node tries a claim of nothing when it starts.
                if !queues.is_empty() {
                    claims.lock().unwrap().push((large, queues.len() - large));
                }
            }
        });
        Durable::builder(store)
            .poll_interval(ms(50))
            .payload_limit(LIMIT)
    }

    /// Each claim has one large payload, or small ones. The small ones do not wait for all large
    /// ones.
    fn are_bounded_and_take_turns(&self) {
        let claims = self.0.lock().unwrap();
        let is_bounded = |claim: &(usize, usize)| claim.0 == 0 || *claim == (1, 0);
        assert!(claims.iter().all(is_bounded), "{claims:?}");
        let first_small = claims.iter().position(|claim| claim.1 > 0);
        assert!(first_small.is_some_and(|at| at < 2), "{claims:?}");
    }
}

pub(crate) fn large_payloads_do_not_hold_up_small_ones(world: &impl World) {
    let client = client(world);
    schedule_large(&client);
    schedule_small(&client, "before");
    let (claims, gate) = (Claims::default(), Gate::default());
    let pass = gate.clone();
    let node = claims
        .node(world)
        .node_lease(MINUTE)
        .handle("large", move |due: &Due<String>| {
            assert_eq!(due.payload().len(), LENGTH - 2);
            pass.pass();
        })
        .handle("small", |_: &Due<String>| ())
        .running(1_000)
        .start()
        .unwrap();
    // No large run ends before that.
    let small = |rounds: u64| {
        wait::until("the small ones have run", || {
            node.stats().succeeded == rounds * SMALL as u64
        });
    };
    small(1);
    gate.crowd(LARGE);
    schedule_small(&client, "meanwhile");
    small(2);
    claims.are_bounded_and_take_turns();
    // Whoever reads them all gets a page for each.
    let mut read = 0;
    let mut paging = Paging::first(10);
    loop {
        let page = client.list("large", &paging).wait().unwrap();
        let Some(last) = page.last() else {
            break;
        };
        assert_eq!((page.len(), last.payload.len()), (1, LENGTH));
        read += 1;
        paging = Paging::after(last, 10);
    }
    assert_eq!(read, LARGE);
    gate.open();
    wait::until("the large ones have run", || {
        node.stats().succeeded == (LARGE + 2 * SMALL) as u64
    });
    assert_eq!(node.stats().failed, 0);
}

pub(crate) fn large_runs_of_a_dead_node_do_not_hold_up_small_ones(world: &impl World) {
    let node_lease = ms(1_500);
    let client = client(world);
    schedule_large(&client);
    schedule_small(&client, "k");
    let gate = Gate::default();
    let (pass, also) = (gate.clone(), gate.clone());
    let first = Durable::builder(world.store())
        .poll_interval(ms(50))
        .node_lease(node_lease)
        .payload_limit(LIMIT)
        .handle("large", move |_: &Due<String>| pass.pass())
        .handle("small", move |_: &Due<String>| also.pass())
        .running(1_000)
        .start()
        .unwrap();
    gate.crowd(LARGE + SMALL);
    let (claims, held) = (Claims::default(), Gate::default());
    let (large_pass, (sender, ran)) = (held.clone(), mpsc::channel());
    let of_large = sender.clone();
    let second = claims
        .node(world)
        .node_lease(node_lease)
        .handle("large", move |due: &Due<String>| {
            of_large.send((due.crashes(), due.payload().len())).unwrap();
            large_pass.pass();
        })
        .handle("small", move |due: &Due<String>| {
            sender.send((due.crashes(), due.payload().len())).unwrap();
        })
        .running(1_000)
        .start()
        .unwrap();
    first.crash();
    // Also the small ones, while no large run ends.
    let mut runs: Vec<(u32, usize)> = (0..LARGE + SMALL).map(|_| wait::next(&ran)).collect();
    claims.are_bounded_and_take_turns();
    runs.sort_unstable();
    let (small, large) = runs.split_at(SMALL);
    assert!(small.iter().all(|run| *run == (1, 0)), "{small:?}");
    assert!(large.iter().all(|run| *run == (1, LENGTH - 2)), "{large:?}");
    held.open();
    gate.open();
    wait::until("all is settled", || {
        second.stats().succeeded == (LARGE + SMALL) as u64
    });
}
