//! Real threads on the system clock; in the end the totals must balance.
//!
//! A test crate of its own, because a test sets the panic hook. `STRESS_SECS` sets how long it
//! runs.

mod expiry;
mod fifty;
mod scheduler;

use std::time::Duration;

/// How long most tests make calls.
fn duration() -> Duration {
    duration_or(1.0)
}

fn duration_or(seconds: f64) -> Duration {
    let chosen = std::env::var("STRESS_SECS").ok();
    let seconds = chosen.map_or(seconds, |text| {
        text.parse().expect("STRESS_SECS in seconds")
    });
    Duration::from_secs_f64(seconds)
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
