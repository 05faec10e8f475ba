//! Draws sessions with the popularity of the web: the k-th most popular session is touched about
//! 1/k as often as the first.

use crate::rng::Rng;

/// Draws ranks from `0..n`. Rank `k - 1` has the probability `ln((k + 1) / k) / ln(n + 1)`, which
/// tends to `1 / (k ln n)`.
///
/// That is the density 1/x on `1..=n+1`, cut into whole numbers. Its distribution function has an
/// inverse, so a draw costs one exponential and needs no table. An alias table for a million ranks
/// would miss the cache at every draw, and would disturb the measurement.
#[derive(Debug)]
pub(crate) struct Zipf {
    ranks: u64,
    log_end: f64,
}

impl Zipf {
    /// Creates a distribution of `ranks` ranks, which is not zero.
    pub(crate) fn new(ranks: u64) -> Self {
        Zipf {
            ranks,
            log_end: (ranks as f64 + 1.0).ln(),
        }
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let unit = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = (unit * self.log_end).exp() as u64;
        // Rounding may reach n + 1 at the upper end.
        rank.clamp(1, self.ranks) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_their_share() {
        const DRAWS: u32 = 200_000;
        let ranks = 1_000;
        let zipf = Zipf::new(ranks);
        let mut rng = Rng::new(11);
        let mut drawn = vec![0_u32; 1_000];
        for _ in 0..DRAWS {
            drawn[zipf.draw(&mut rng) as usize] += 1;
        }
        for k in [1, 2, 3, 10] {
            let share = f64::from(drawn[k - 1]) / f64::from(DRAWS);
            let expected = ((k as f64 + 1.0) / k as f64).ln() / (ranks as f64 + 1.0).ln();
            assert!(
                (share / expected - 1.0).abs() < 0.1,
                "rank {k}: {share} for {expected}"
            );
        }
        assert!(drawn[500..].iter().any(|&count| count > 0));
    }

    #[test]
    fn one_rank_is_drawn_always() {
        let zipf = Zipf::new(1);
        let mut rng = Rng::new(0);
        assert!((0..1_000).all(|_| zipf.draw(&mut rng) == 0));
    }
}
