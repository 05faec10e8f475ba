//! The times of renewals: pure functions of the lease, the present time and a random number.
//!
//! A renewal is due a third of the lease after the last successful request was sent. Jitter moves
//! it by up to a fifth of that third, earlier or later, and is drawn anew every time. So leases
//! that were taken at one moment spread. Renewals that fall due within a fiftieth of the interval, or
//! within 250 ms if that is shorter, are sent together. They fall due at multiples of a quarter of that
//! time, so that their rounds share the wake-ups of threads. Each is moved to the multiple before it,
//! so the mean interval is shorter than a third of the lease by half of such a quarter: a quarter of a
//! percent, or less.

use std::time::Duration;

use tourbillon::Time;

/// The shortest lease. On a busy machine the wake-up of a thread can take longer than a shorter
/// lease lasts.
pub(crate) const SHORTEST: Duration = Duration::from_millis(50);

/// Returns the shortest lease for a margin. A margin set by the user may be at most a third of the
/// lease.
pub(super) fn shortest(margin: Option<Duration>) -> Duration {
    margin.map_or(SHORTEST, |margin| SHORTEST.max(margin.saturating_mul(3)))
}

/// Returns the mean time between two renewals.
pub(super) fn interval(lease: Duration) -> Duration {
    lease / 3
}

/// Returns how long a due renewal waits for others to share its batch.
pub(super) fn window(lease: Duration) -> Duration {
    (interval(lease) / 50).min(Duration::from_millis(250))
}

/// Returns how long one call may take. Two calls fit into one interval, so a call that hangs leaves
/// time for another one.
pub(crate) fn call_limit(lease: Duration) -> Duration {
    lease / 6
}

/// Returns the default margin: a hundredth for the drift of two clocks during the lease, and 2 ms
/// for a clock that counts milliseconds.
pub(super) fn margin(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// Returns the moment from which a third of the lease or less is left.
pub(super) fn at_risk(until: Time, lease: Duration) -> Time {
    until - lease / 3
}

/// Returns how late a renewal may begin without the event [`What::Late`](super::What::Late).
pub(super) fn late(lease: Duration) -> Duration {
    lease / 6
}

/// Returns when the next renewal is due after one that was sent at `sent` and succeeded.
pub(super) fn next(sent: Time, lease: Duration, random: u64) -> Time {
    let due = (sent + spread(interval(lease), random)).as_nanos();
    Time::from_nanos(due - due % grid(lease))
}

/// Returns the nanoseconds between two moments at which renewals fall due.
fn grid(lease: Duration) -> u64 {
    let nanos = window(lease).as_nanos() / 4;
    // The window is short, so this fits.
    (nanos as u64).max(1)
}

/// Returns when the next attempt is due after `failed` failed attempts in a row.
///
/// The first retry comes soon, since most failures are broken connections. The pauses then double
/// up to a third of the interval, or to a quarter of the remaining time if that is less, so several
/// attempts follow. Up to a fifth is added or taken off at random, within that end.
pub(super) fn retry(now: Time, until: Time, lease: Duration, failed: u32, random: u64) -> Time {
    let interval = interval(lease);
    let pause = (interval / 20) * (1 << failed.saturating_sub(1).min(3));
    let longest = (interval / 3).min(until.since(now) / 4);
    let pause = spread_within(pause.min(longest), longest, random);
    // Near the end of the lease a quarter of the remaining time approaches zero. The floor of 1 ms
    // keeps the retries from spinning.
    now + pause.max(Duration::from_millis(1))
}

/// Returns a duration around `mean`, up to a fifth shorter or longer.
pub(crate) fn spread(mean: Duration, random: u64) -> Duration {
    spread_within(mean, Duration::MAX, random)
}

/// Returns a duration around `mean`, up to a fifth shorter or longer. It is drawn evenly from the
/// part of that which is not longer than `longest`. `mean` is not longer, either.
fn spread_within(mean: Duration, longest: Duration, random: u64) -> Duration {
    // The upper 32 bits of the random number are a fraction of 2^32. It selects a point between
    // four fifths and six fifths of the mean, in 128-bit arithmetic so that nothing overflows.
    let fraction = random >> 32;
    let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let (mean, longest) = (nanos(mean), nanos(longest));
    let least = mean - mean / 5;
    let width = (u128::from(mean) * 2 / 5).min(u128::from(longest - least));
    let above = (width * u128::from(fraction)) >> 32;
    Duration::from_nanos(least.saturating_add(above as u64))
}

/// Returns a number that looks random for each seed, by the finalizer of splitmix64 (Steele, Lea,
/// Flood 2014).
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
        // Each is up to 50 ms earlier, so that others share its moment.
        let grid = Duration::from_nanos(grid(LEASE));
        assert_eq!(grid, Duration::from_millis(50));
        assert!(least >= Duration::from_secs(8) - grid && most <= Duration::from_secs(12));
        assert!(least < Duration::from_millis(8_010) && most >= Duration::from_secs(12) - 2 * grid);
        let mean = sum / 10_000 + grid / 2;
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

    #[test]
    fn a_retry_is_jittered_within_its_end_and_does_not_pile_up_there() {
        let end = interval(LEASE) / 3;
        for (until, end) in [(100 * LEASE, end), (LEASE / 10, LEASE / 40)] {
            let (now, until) = (Time::ZERO, Time::ZERO + until);
            for failed in 1..50 {
                let pause = |random| retry(now, until, LEASE, failed, random).since(now);
                assert!(pause(u64::MAX) <= end && pause(0) < pause(u64::MAX));
            }
            let late = |random| retry(now, until, LEASE, 9, random).since(now);
            assert_eq!(late(0), end - end / 5);
            let middle = late(1 << 63).abs_diff(end - end / 10);
            assert!(middle < Duration::from_millis(1), "{middle:?}");
        }
    }
}
