//! Where keys go: hashers that leave numbers as they are must not crowd one stripe.

use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use tourbillon::Scheduler;

/// Leaves a number as it is.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed here");
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[test]
fn an_identity_hasher_crowds_no_stripe() {
    const STRIPES: usize = 64;
    const KEYS: u64 = 64 * 200;
    for seed in 0..20 {
        for step in [1, 2, 64, 4_096, 1 << 16, 1 << 32, 1 << 48] {
            // As many shards as stripes: the pending ones of a shard are those of a stripe.
            let scheduler = Scheduler::<u64>::builder()
                .hasher(BuildHasherDefault::<Identity>::default())
                .stripes(STRIPES)
                .shards(STRIPES)
                .build_stepped(seed)
                .unwrap();
            let timers = scheduler.handle();
            for number in 0..KEYS {
                let key = number.wrapping_mul(step);
                timers
                    .schedule(key, Duration::from_secs(60), |_| ())
                    .unwrap();
            }
            let keys = timers.len() as u64;
            let fair = keys / STRIPES as u64;
            let most = timers
                .stats()
                .shards
                .iter()
                .map(|shard| shard.pending)
                .max();
            assert!(
                most.is_some_and(|most| most <= 4 * fair + 16),
                "step {step}: {most:?} of {keys} in one of {STRIPES} stripes"
            );
        }
    }
}

#[test]
fn the_default_hasher_spreads_numbers_and_text() {
    let numbers = Scheduler::<u64>::builder().stripes(64).shards(64);
    let numbers = numbers.build_stepped(1).unwrap();
    let texts = Scheduler::<String>::builder().stripes(64).shards(64);
    let texts = texts.build_stepped(1).unwrap();
    for number in 0..12_800 {
        let delay = Duration::from_secs(60);
        numbers.handle().schedule(number, delay, |_| ()).unwrap();
        let text = format!("session-{number}");
        texts.handle().schedule(text, delay, |_| ()).unwrap();
    }
    for stats in [numbers.handle().stats(), texts.handle().stats()] {
        assert!(
            stats
                .shards
                .iter()
                .all(|shard| (100..400).contains(&shard.pending))
        );
    }
}
