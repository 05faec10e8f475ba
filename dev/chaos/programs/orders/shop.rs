//! A shop: it creates orders at a steady rate, and its customers pay most of them in time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use chaos::random::Random;

use crate::database::{Fault, PAY_WITHIN, Shop};

/// A shop that was held up makes up for this time.
const MADE_UP: Duration = Duration::from_millis(100);

/// What the customers of a shop did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sales {
    /// Payments that came after the order was cancelled, and were refused.
    pub(crate) refused: u64,
}

/// Runs a shop that creates an order in each `interval`, until `closing` is set and the last
/// customer has paid.
pub(crate) fn run(
    shop: &mut dyn Shop,
    interval: Duration,
    closing: &AtomicBool,
) -> Result<Sales, Fault> {
    let mut sales = Sales::default();
    let mut payments: BinaryHeap<Reverse<(Instant, i64)>> = BinaryHeap::new();
    let mut next_order = Instant::now();
    loop {
        let closed = closing.load(Relaxed);
        let next_payment = payments.peek().map(|Reverse((at, _))| *at);
        let next = match (closed, next_payment) {
            (true, None) => return Ok(sales),
            (true, Some(payment)) => payment,
            (false, payment) => payment.map_or(next_order, |payment| payment.min(next_order)),
        };
        let now = Instant::now();
        if next > now {
            // Not for long, so that a shop that closes is noticed.
            thread::sleep((next - now).min(Duration::from_millis(20)));
            continue;
        }
        if next_payment == Some(next) {
            if let Some(Reverse((_, order))) = payments.pop()
                && !shop.pay(order)?
            {
                sales.refused += 1;
            }
            continue;
        }
        let order = shop.order()?;
        if let Some(after) = pays_after(order) {
            payments.push(Reverse((Instant::now() + after, order)));
        }
        // A slow disk makes fewer orders, and no long bursts.
        next_order = (next_order + interval).max(now - MADE_UP);
    }
}

/// When the customer of an order pays. One in five never does. One in ten pays at the last moment,
/// so that payment and timer compete.
fn pays_after(order: i64) -> Option<Duration> {
    // The same order always has the same chance.
    let chance = Random::new(order.unsigned_abs()).number();
    let part = (chance >> 32) as f64 / f64::from(u32::MAX);
    match chance % 10 {
        0 | 1 => None,
        2 => Some(PAY_WITHIN.mul_f64(0.98 + 0.04 * part)),
        _ => Some(PAY_WITHIN.mul_f64(0.05 + 0.75 * part)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_customers_pay_in_time_and_some_at_the_last_moment_or_never() {
        let all: Vec<_> = (1..=1_000).map(pays_after).collect();
        let never = all.iter().filter(|after| after.is_none()).count();
        let in_time = all
            .iter()
            .flatten()
            .filter(|after| **after < PAY_WITHIN.mul_f64(0.9));
        let in_time = in_time.count();
        assert!((150..250).contains(&never), "{never}");
        assert!((650..750).contains(&in_time), "{in_time}");
    }
}
