//! When a lease is renewed: pure functions of its length, the time and a random number.
//!
//! A third of the lease after the request that succeeded last was sent, and up to a fifth of that
//! third earlier or later, drawn anew every time: so leases that were taken at one moment spread, and
//! the mean is a third. What is due within a fiftieth of that goes out together.

use std::time::Duration;

use tourbillon::Time;

/// Shorter ones end by the wake-up of a thread on a busy machine.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);

/// The shortest lease with this margin, if one was chosen: a third of it has to be left for renewals.
pub(super) fn shortest(margin: Option<Duration>) -> Duration {
    margin.map_or(SHORTEST, |margin| SHORTEST.max(margin.saturating_mul(3)))
}

/// The mean distance of two renewals.
pub(super) fn interval(lease: Duration) -> Duration {
    lease / 3
}

/// For how long renewals wait for others that are due.
pub(super) fn window(lease: Duration) -> Duration {
    (interval(lease) / 50).min(Duration::from_millis(250))
}

/// How long one call may take: two fit between two renewals, so that one that hangs leaves time.
pub(crate) fn call_limit(lease: Duration) -> Duration {
    lease / 6
}

/// What two clocks may drift apart during a lease, and what a granularity of 1 ms may cost.
pub(super) fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// A third of the lease is left, or less.
pub(super) fn at_risk(until: Time, lease: Duration) -> Time {
    until - lease / 3
}

/// A renewal that begins later than this after it was due is told.
pub(super) fn late(lease: Duration) -> Duration {
    lease / 6
}

/// When the renewal after the one that was sent then is due.
pub(super) fn next(sent: Time, lease: Duration, random: u64) -> Time {
    sent + spread(interval(lease), random)
}

/// When the attempt after so many that failed is due. The first one soon, since what failed was
/// mostly a connection; then with pauses that grow to a third of the interval, and never more than a
/// quarter of what is left, so that there are always several more.
pub(super) fn retry(now: Time, until: Time, lease: Duration, failed: u32, random: u64) -> Time {
    let interval = interval(lease);
    let pause = (interval / 20) * (1 << failed.saturating_sub(1).min(3));
    let pause = pause.min(interval / 3).min(until.since(now) / 4);
    now + spread(pause, random).max(Duration::from_millis(1))
}

/// Up to a fifth shorter or longer.
pub(crate) fn spread(mean: Duration, random: u64) -> Duration {
    // The upper half of the bits, as a fraction of 2^32; two fifths of the mean are 819 of 2,048.
    let fraction = random >> 32;
    let nanos = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX);
    let width = u128::from(nanos) * 2 / 5;
    let above = (width * u128::from(fraction)) >> 32;
    Duration::from_nanos((nanos - nanos / 5).saturating_add(above as u64))
}

/// The finalizer of splitmix64 (Steele, Lea, Flood 2014): numbers that look random, of a seed.
pub(super) fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[test]
    fn the_jitter_is_symmetric_about_a_third() {
        let sent = Time::from_nanos(1_000);
        let mut sum = Duration::ZERO;
        let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
        for n in 0..10_000 {
            let after = next(sent, LEASE, splitmix64(n)).since(sent);
            sum += after;
            (least, most) = (least.min(after), most.max(after));
        }
        assert!(least >= Duration::from_secs(8) && most <= Duration::from_secs(12));
        assert!(least < Duration::from_millis(8_010) && most > Duration::from_millis(11_990));
        let mean = sum / 10_000;
        assert!(
            mean.abs_diff(Duration::from_secs(10)) < Duration::from_millis(50),
            "{mean:?}"
        );
    }

    #[test]
    fn attempts_are_early_and_many_until_the_end() {
        for lease in [SHORTEST, Duration::from_millis(300), LEASE] {
            let sent = Time::ZERO;
            let until = sent + lease - margin(lease);
            let mut now = next(sent, lease, u64::MAX);
            let first = retry(now, until, lease, 1, u64::MAX);
            // Before the next regular one would be, which row c157 asks for.
            assert!(first.since(now) < interval(lease) / 2);
            let mut attempts = 0;
            while now < until {
                attempts += 1;
                now = retry(now, until, lease, attempts, u64::MAX);
            }
            assert!((8..60).contains(&attempts), "{attempts} in {lease:?}");
        }
    }

    #[test]
    fn what_is_longest_does_not_overflow() {
        let never = next(Time::ZERO, Duration::MAX, u64::MAX);
        assert!(never > Time::ZERO);
        assert!(retry(Time::ZERO, Time::MAX, Duration::MAX, u32::MAX, 7) > Time::ZERO);
        assert_eq!(spread(Duration::ZERO, u64::MAX), Duration::ZERO);
    }
}
