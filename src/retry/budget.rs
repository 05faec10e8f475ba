//! A bound on the retries of many callers together.

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The parts into which a token is divided.
const PARTS: u64 = 1_000;

/// A bound on the retries of all calls that share it. It keeps a server that fails from being asked
/// several times as often as a server that works.
///
/// It is a bucket of tokens, which is full at first. Each retry takes one token. Each call puts a
/// part of a token back, when it begins. So in the long run there are at most that part of retries
/// for each call. A call that finds no token gives up.
///
/// Clones share the tokens.
///
/// # Examples
///
/// ```
/// use tourbillon::retry::RetryBudget;
///
/// // At most ten retries at once, and 20 % more calls in the long run.
/// let budget = RetryBudget::new(10, 0.2);
/// assert_eq!(budget.available(), 10);
/// ```
#[derive(Clone, Debug)]
pub struct RetryBudget(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    /// Parts of tokens.
    left: AtomicU64,
    most: u64,
    per_call: u64,
}

impl RetryBudget {
    /// Creates a budget of at most `most` tokens, to which each call adds the part `per_call` of a
    /// token. The part is rounded to a thousandth. A part below zero, or one that is not a number,
    /// counts as zero. Then no token ever comes back.
    #[must_use]
    pub fn new(most: u32, per_call: f64) -> Self {
        let most = u64::from(most) * PARTS;
        RetryBudget(Arc::new(Bucket {
            left: AtomicU64::new(most),
            most,
            // The conversion saturates, and makes zero of what is no number.
            per_call: (per_call * PARTS as f64).round() as u64,
        }))
    }

    /// Returns the number of retries that would be granted now.
    #[must_use]
    pub fn available(&self) -> u64 {
        // Relaxed: the count orders nothing else.
        self.0.left.load(Ordering::Relaxed) / PARTS
    }

    /// Adds the part of one call.
    pub(super) fn deposit(&self) {
        let Bucket { most, per_call, .. } = *self.0;
        self.change(|left| Some(left.saturating_add(per_call).min(most)));
    }

    /// Takes a token, if there is one.
    pub(super) fn withdraw(&self) -> bool {
        self.change(|left| left.checked_sub(PARTS))
    }

    fn change(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        let left = &self.0.left;
        // Relaxed: one read-modify-write is exact, and orders nothing else.
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_and_come_back_in_parts() {
        let budget = RetryBudget::new(2, 0.25);
        assert!(budget.withdraw() && budget.withdraw() && !budget.withdraw());
        for _ in 0..3 {
            budget.deposit();
        }
        assert!(!budget.withdraw(), "three quarters are no token");
        budget.deposit();
        assert!(budget.withdraw() && !budget.withdraw());
        for _ in 0..100 {
            budget.deposit();
        }
        assert_eq!(budget.available(), 2, "it holds no more than at first");
    }

    #[test]
    fn odd_parts_count_as_zero_or_as_full() {
        for (part, refilled) in [
            (-1.0, 0),
            (f64::NAN, 0),
            (0.0, 0),
            (f64::INFINITY, 3),
            (9.0, 3),
        ] {
            let budget = RetryBudget::new(3, part);
            while budget.withdraw() {}
            budget.deposit();
            assert_eq!(budget.available(), refilled, "{part}");
        }
        assert!(!RetryBudget::new(0, 1.0).withdraw());
    }

    #[test]
    fn no_token_is_given_twice() {
        let budget = RetryBudget::new(1_000, 0.0);
        let granted: usize = std::thread::scope(|scope| {
            let ask = || (0..1_000).filter(|_| budget.withdraw()).count();
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            callers
                .into_iter()
                .map(|caller| caller.join().unwrap())
                .sum()
        });
        assert_eq!(granted, 1_000);
    }
}
