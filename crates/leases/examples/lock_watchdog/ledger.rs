//! Records which holder relied on the lock, and when. All times are of one clock.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use crate::cable::Grant;

/// All grants of a run, by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    holdings: BTreeMap<u64, Holding>,
}

#[derive(Debug)]
struct Holding {
    grant: Grant,
    /// The last time at which its holder called `is_held()` and got true. The time was read before
    /// the call, so at that time or later the holder relied on the lock.
    last_yes: Option<Time>,
    /// Whether its holder was killed, and released nothing.
    killed: bool,
}

/// The result of the comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdict {
    /// Grants whose holder still relied on them when the next grant had begun.
    pub(crate) overlaps: u64,
    /// Grants whose last yes came while the call that was granted next was under way. Which of the
    /// two came first is unknown.
    pub(crate) undecided: u64,
    /// Grants that came before a grant with a smaller token.
    pub(crate) out_of_order: u64,
    /// The least time between the last yes of a killed holder and the call that was granted next.
    pub(crate) closest: Option<Duration>,
}

impl Ledger {
    /// Enters a new grant. Returns false if its token was there before.
    pub(crate) fn enter(&mut self, grant: Grant) -> bool {
        let holding = Holding {
            grant,
            last_yes: None,
            killed: false,
        };
        self.holdings.insert(grant.token, holding).is_none()
    }

    /// Records that the holder of this token relied on it.
    pub(crate) fn yes(&mut self, token: u64, asked: Time) {
        if let Some(holding) = self.holdings.get_mut(&token) {
            holding.last_yes = holding.last_yes.max(Some(asked));
        }
    }

    /// Records that the holder of this token releases nothing.
    pub(crate) fn killed(&mut self, token: u64) {
        if let Some(holding) = self.holdings.get_mut(&token) {
            holding.killed = true;
        }
    }

    pub(crate) fn last_yes(&self, token: u64) -> Option<Time> {
        self.holdings.get(&token)?.last_yes
    }

    /// Compares each grant with the one of the next token.
    ///
    /// There is an overlap if the next holder's acquire lies before the last yes. The time of the
    /// acquire can't be read: the store granted it between the time at which the call was sent and
    /// the time at which its answer came, both read right at the store. Of these two
    ///
    /// - the *answer* proves an overlap. If the answer came before the last call of `is_held`, the
    ///   lock had certainly been granted to the next holder, and the earlier holder relied on it
    ///   afterwards. These overlaps are counted. The answer is the earliest time that proves one;
    /// - the *sending* proves that there was no overlap, if it lies after the last yes.
    ///
    /// If the sending counted, a call that was merely slow would be an overlap. The cases between
    /// the two are `undecided`, and are reported. So a run without any has proved that nothing
    /// overlapped.
    pub(crate) fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::default();
        let next = self.holdings.values().skip(1);
        for (before, after) in self.holdings.values().zip(next) {
            if after.grant.answered <= before.grant.sent {
                verdict.out_of_order += 1;
            }
            let Some(yes) = before.last_yes else {
                continue;
            };
            if after.grant.answered <= yes {
                verdict.overlaps += 1;
            } else if after.grant.sent <= yes {
                verdict.undecided += 1;
            } else if before.killed {
                let distance = after.grant.sent.since(yes);
                let closest = verdict
                    .closest
                    .map_or(distance, |least| least.min(distance));
                verdict.closest = Some(closest);
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(holdings: &[(u64, u64, u64, &[u64])]) -> Ledger {
        let mut ledger = Ledger::default();
        for &(token, sent, answered, yes) in holdings {
            assert!(ledger.enter(Grant {
                token,
                sent: Time::from_nanos(sent),
                answered: Time::from_nanos(answered),
            }));
            ledger.killed(token);
            for &asked in yes {
                ledger.yes(token, Time::from_nanos(asked));
            }
        }
        ledger
    }

    #[test]
    fn who_believes_after_the_next_one_was_granted_overlaps() {
        let verdict = |last_yes| {
            let ledger = ledger(&[(7, 0, 10, &[11, last_yes, 12]), (9, 100, 110, &[111])]);
            ledger.verdict()
        };
        for (last_yes, overlaps, undecided, closest) in [
            (50, 0, 0, Some(50)),
            (99, 0, 0, Some(1)),
            (100, 0, 1, None),
            (109, 0, 1, None),
            (110, 1, 0, None),
            (500, 1, 0, None),
        ] {
            let expected = Verdict {
                overlaps,
                undecided,
                out_of_order: 0,
                closest: closest.map(Duration::from_nanos),
            };
            assert_eq!(verdict(last_yes), expected, "{last_yes}");
        }
    }

    #[test]
    fn each_pair_counts_once_in_the_order_of_tokens() {
        let all = [
            (1, 0, 1, &[1, 30][..]),
            (2, 10, 11, &[12]),
            (3, 20, 21, &[40]),
            (4, 39, 41, &[]),
            (5, 50, 51, &[60]),
        ];
        let mut turned = all;
        turned.reverse();
        for holdings in [all, turned] {
            let verdict = ledger(&holdings).verdict();
            assert_eq!((verdict.overlaps, verdict.undecided), (1, 1));
            assert_eq!(verdict.closest, Some(Duration::from_nanos(8)));
            assert_eq!(verdict.out_of_order, 0);
        }
    }

    #[test]
    fn tokens_that_go_back_are_noticed() {
        let mut ledger = ledger(&[(2, 0, 1, &[]), (1, 10, 11, &[12])]);
        assert_eq!(ledger.verdict().out_of_order, 1);
        assert!(!ledger.enter(Grant {
            token: 2,
            sent: Time::ZERO,
            answered: Time::ZERO,
        }));
        // A report about an unknown grant is ignored.
        ledger.yes(99, Time::MAX);
        assert_eq!(ledger.verdict().overlaps, 1);
    }
}
