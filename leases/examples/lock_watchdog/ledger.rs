//! Who believed to hold the lock, and when. All moments are of one clock.

use std::collections::BTreeMap;
use std::time::Duration;

use tourbillon::Time;

use crate::cable::Grant;

/// All holdings of a run, by their tokens.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    holdings: BTreeMap<u64, Holding>,
}

#[derive(Debug)]
struct Holding {
    grant: Grant,
    /// The last moment at which its holder asked `is_held()` and got a yes. The moment was read before
    /// the question, so at that moment or later the holder believed to hold the lock.
    last_yes: Option<Time>,
    /// Its holder was killed, and gave nothing back.
    killed: bool,
}

/// What the ledger shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Verdict {
    /// Holdings whose holder still believed in them when the next one had begun.
    pub(crate) overlaps: u64,
    /// Holdings that were believed in for the last time while the call that was granted next was
    /// under way, so that nobody knows which came first.
    pub(crate) undecided: u64,
    /// Holdings that were granted before one with a smaller token.
    pub(crate) out_of_order: u64,
    /// The least time between the last yes of one that was killed and the call that was granted next.
    pub(crate) closest: Option<Duration>,
}

impl Ledger {
    /// Enters a new holding. False if its token was there before.
    pub(crate) fn enter(&mut self, grant: Grant) -> bool {
        let holding = Holding {
            grant,
            last_yes: None,
            killed: false,
        };
        self.holdings.insert(grant.token, holding).is_none()
    }

    /// The holder of this token believed in it.
    pub(crate) fn yes(&mut self, token: u64, asked: Time) {
        if let Some(holding) = self.holdings.get_mut(&token) {
            holding.last_yes = holding.last_yes.max(Some(asked));
        }
    }

    /// The holder of this token gives nothing back.
    pub(crate) fn killed(&mut self, token: u64) {
        if let Some(holding) = self.holdings.get_mut(&token) {
            holding.killed = true;
        }
    }

    pub(crate) fn last_yes(&self, token: u64) -> Option<Time> {
        self.holdings.get(&token)?.last_yes
    }

    /// Compares each holding with the one of the next token.
    ///
    /// An overlap: the next holder's acquire lies before the last yes. The acquire has no moment that
    /// could be read: the store granted it somewhere between the moment at which the call was sent and
    /// the one at which its answer was there, both read right at the store. Of these two
    ///
    /// - the *answer* proves an overlap: if it was there before the last question, the lock had been
    ///   granted to the next one, for certain, and the earlier one believed in it afterwards. This
    ///   is what counts. It is the earliest moment of which that can be said;
    /// - the *sending* proves that there was none, if it lies after the last yes.
    ///
    /// Counting from the sending would make overlaps of calls that were merely slow. What lies between
    /// is `undecided`, and is told, so that a run without one has proved that nothing overlapped.
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
        // Of a holding that nobody knows nothing is believed.
        ledger.yes(99, Time::MAX);
        assert_eq!(ledger.verdict().overlaps, 1);
    }
}
