//! What a watchdog keeps is named by keys, and those are user code.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tourbillon_leases::{Batch, KeepAlive, Outcome, blocking};

const LEASE: Duration = Duration::from_secs(30);

struct Key {
    number: u32,
    clone_panics: Arc<AtomicBool>,
}

impl Clone for Key {
    fn clone(&self) -> Self {
        assert!(!self.clone_panics.load(SeqCst), "key {}", self.number);
        Key {
            number: self.number,
            clone_panics: Arc::clone(&self.clone_panics),
        }
    }
}

/// It costs events of its own, and neither its renewals nor those of the others in its batch.
#[test]
fn a_key_whose_clone_panics_is_renewed_like_the_others() {
    for seed in 0..5 {
        let renewed = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let counts = Arc::clone(&renewed);
        let (keep_alive, steps) = KeepAlive::<Key>::builder()
            .build_stepped(
                seed,
                blocking(move |batch: &Batch<Key>| {
                    for key in batch.keys() {
                        counts[key.number as usize].fetch_add(1, SeqCst);
                    }
                    Ok(vec![Outcome::Renewed; batch.len()])
                }),
            )
            .unwrap();
        let events = keep_alive.events(1_000);
        let panics = Arc::new(AtomicBool::new(false));
        let kept: Vec<_> = (0..3)
            .map(|number| {
                let clone_panics = match number {
                    1 => Arc::clone(&panics),
                    _ => Arc::default(),
                };
                let key = Key {
                    number,
                    clone_panics,
                };
                keep_alive.keep(key, LEASE).unwrap()
            })
            .collect();
        panics.store(true, SeqCst);
        for _ in 0..300 {
            steps.advance(Duration::from_secs(1));
            assert!(kept.iter().all(|kept| kept.is_kept()));
        }
        for renewed in renewed.iter() {
            let renewed = renewed.load(SeqCst);
            assert!((27..=33).contains(&renewed), "{renewed}");
        }
        assert_eq!(keep_alive.stats().given_up, 0);
        assert!(events.try_iter().all(|event| event.key.number != 1));
    }
}
