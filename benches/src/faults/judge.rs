//! Whether two believed at one time that they hold a lock, and whether its tokens increase.
//!
//! All moments are nanoseconds of the clock that the processes of a machine share. A holder notes the
//! moment at which the acquire returned, and every moment at which `is_held` said yes, read before it
//! asked: between the first and the last one it *believes*. The server's own moment of a grant comes
//! with the token, which is that moment in microseconds, unless the server's clock was set back.
//!
//! - **JUDGE-1** No two beliefs touch. By the holders' own words alone: the earlier one's last yes
//!   lies before the later one's acquire returned.
//! - **JUDGE-2** Who was granted a lower token said yes for the last time before the server granted
//!   the higher one. That is earlier than the return of the acquire by the way of the answer, so
//!   this is the stricter of the two, and holds for a grant that nobody came to believe in as well.
//!   It is right only since the grant follows the release, or the end of the lease, at the server.
//!   (The moment before the later one's request was sent would be too strict: the earlier one may
//!   hold, and give back, while the request is under way.)
//! - **JUDGE-3** Tokens increase in the order of the grants. Whose acquire returned before another
//!   one said yes for the first time was granted earlier: it can't be that the other one's lease
//!   had ended by then. Of others nobody knows the order from outside; the servers' words are
//!   judged for that, see `watch`.

use std::collections::HashMap;

use super::clock::{Moment, Offset, millis};
use super::watch::Seen;

/// What reading two clocks at one moment, and microseconds, may be wrong by.
const BLUR: u64 = 200_000;

/// One grant, and what its holder made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Grant {
    pub(crate) holder: String,
    pub(crate) token: u64,
    /// When the acquire returned.
    pub(crate) granted: Moment,
    /// The first and the last moment of a yes.
    pub(crate) believed: Option<(Moment, Moment)>,
    /// When the server granted it, if its clock can be compared.
    pub(crate) at_server: Option<Moment>,
    /// Given back on purpose, as opposed to lost or killed.
    pub(crate) given_back: bool,
}

/// What must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Violation {
    /// JUDGE-1 and JUDGE-2.
    Overlap(String),
    /// JUDGE-3, and the server's words.
    Token(String),
    /// Renewed after the end, not free after its lease, or not forgotten by its holder.
    Leftover(String),
    /// Anything else: a holder that hangs or ends, an answer that is wrong by itself.
    Broken(String),
}

impl Violation {
    pub(crate) fn what(&self) -> &str {
        match self {
            Violation::Overlap(what)
            | Violation::Token(what)
            | Violation::Leftover(what)
            | Violation::Broken(what) => what,
        }
    }
}

/// Of one lock, over all of its rounds.
#[derive(Default)]
pub(crate) struct Judge {
    grants: Vec<Grant>,
}

impl Judge {
    /// Judges grants among each other and against all that came before.
    pub(crate) fn judge(&mut self, new: Vec<Grant>) -> Vec<Violation> {
        let mut found = Vec::new();
        for grant in new {
            for other in &self.grants {
                found.extend(overlap(other, &grant));
                found.extend(token(other, &grant));
            }
            self.grants.push(grant);
        }
        found
    }
}

/// Judges what the server of one lock tells, over all of its rounds.
#[derive(Default)]
pub(crate) struct ServerJudge {
    /// Who holds no more, and after which moment nothing of it may be renewed.
    ended: HashMap<String, Moment>,
    last_token: u64,
}

impl ServerJudge {
    pub(crate) fn ended(&mut self, owner: &str, at: Moment) {
        self.ended.insert(owner.to_owned(), at);
    }

    /// In the server's order. Without an offset its clock can't be compared.
    pub(crate) fn judge(&mut self, seen: &[Seen], offset: Option<Offset>) -> Vec<Violation> {
        let mut found = Vec::new();
        for seen in seen {
            match seen {
                Seen::Grant { owner, token } => {
                    if *token <= self.last_token {
                        found.push(Violation::Token(format!(
                            "the server granted token {token} to {owner} after {}",
                            self.last_token
                        )));
                    }
                    self.last_token = *token;
                }
                Seen::Renewal { owner, at } => {
                    let (Some(offset), Some(ended)) = (offset, self.ended.get(owner)) else {
                        continue;
                    };
                    let at = offset.moment(*at);
                    if at > *ended {
                        found.push(Violation::Leftover(format!(
                            "{owner} was renewed {} ms after the last moment at which that may be",
                            millis(at - ended)
                        )));
                    }
                }
            }
        }
        found
    }
}

/// The key that says that a server has lost nothing. It stays for ever.
const MARKER: &str = "tourbillon:{0}:marker";

/// Of the keys of a server those that should be gone when nobody holds one of its locks: all but the
/// marker, and the last token of each lock.
pub(crate) fn left_over(keys: &[String], locks: &[String]) -> Vec<Violation> {
    let tokens: Vec<_> = locks
        .iter()
        .map(|lock| format!("tourbillon:{{{lock}}}:token"))
        .collect();
    keys.iter()
        .filter(|&key| key != MARKER && !tokens.contains(key))
        .map(|key| Violation::Leftover(format!("the key {key} is left")))
        .collect()
}

fn overlap(one: &Grant, other: &Grant) -> Option<Violation> {
    if let (Some((_, last)), Some((_, others_last))) = (one.believed, other.believed)
        && one.granted <= others_last
        && other.granted <= last
    {
        let both = last.min(others_last) - one.granted.max(other.granted);
        return Some(Violation::Overlap(format!(
            "{} (token {}) and {} (token {}) both believed for {} ms",
            one.holder,
            one.token,
            other.holder,
            other.token,
            millis(both)
        )));
    }
    let (before, after) = if one.token < other.token {
        (one, other)
    } else {
        (other, one)
    };
    let (_, last) = before.believed?;
    let granted = after.at_server?;
    (before.token != after.token && last > granted + BLUR).then(|| {
        Violation::Overlap(format!(
            "{} (token {}) believed for {} ms after the server had granted token {} to {}",
            before.holder,
            before.token,
            millis(last - granted),
            after.token,
            after.holder
        ))
    })
}

fn token(one: &Grant, other: &Grant) -> Option<Violation> {
    if one.token == other.token {
        let (token, first, second) = (one.token, &one.holder, &other.holder);
        let what = format!("token {token} was granted twice: {first}, {second}");
        return Some(Violation::Token(what));
    }
    let before = |one: &Grant, other: &Grant| {
        let first = other.believed.map(|(first, _)| first);
        first.is_some_and(|first| one.granted < first)
    };
    let (earlier, later) = match (before(one, other), before(other, one)) {
        (true, false) => (one, other),
        (false, true) => (other, one),
        // Neither is known to be the earlier one; or each is, which is an overlap.
        _ => return None,
    };
    (earlier.token > later.token).then(|| {
        Violation::Token(format!(
            "{} got token {} before {} got token {}",
            earlier.holder, earlier.token, later.holder, later.token
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Granted and believed at these milliseconds.
    fn grant(holder: &str, token: u64, granted: u64, believed: Option<(u64, u64)>) -> Grant {
        Grant {
            holder: holder.to_owned(),
            token,
            granted: granted * MS,
            believed: believed.map(|(first, last)| (first * MS, last * MS)),
            at_server: None,
            given_back: false,
        }
    }

    fn kinds(grants: &[Grant]) -> (usize, usize) {
        let mut judge = Judge::default();
        // One by one, as if each came with a round of its own.
        let found: Vec<_> = grants
            .iter()
            .flat_map(|grant| judge.judge(vec![grant.clone()]))
            .collect();
        let overlaps = found
            .iter()
            .filter(|violation| matches!(violation, Violation::Overlap(_)));
        let overlaps = overlaps.count();
        (overlaps, found.len() - overlaps)
    }

    #[test]
    fn one_after_the_other_is_well() {
        let log = [
            grant("a", 1, 10, Some((10, 50))),
            grant("b", 2, 51, Some((52, 90))),
            // Granted, and lost before it was asked for: the process was stopped.
            grant("c", 3, 500, None),
            grant("a", 4, 400, Some((401, 600))),
        ];
        assert_eq!(kinds(&log), (0, 0));
        let mut backwards = log;
        backwards.reverse();
        assert_eq!(kinds(&backwards), (0, 0));
    }

    #[test]
    fn who_still_says_yes_after_the_next_acquire_overlaps() {
        for last in [51, 70, 200] {
            let log = [
                grant("a", 1, 10, Some((10, last))),
                grant("b", 2, 51, Some((52, 90))),
            ];
            assert_eq!(kinds(&log), (1, 0), "{last}");
            let [a, b] = log;
            assert_eq!(kinds(&[b, a]), (1, 0), "{last}");
        }
    }

    #[test]
    fn the_servers_clock_tells_of_overlaps_that_the_holders_do_not_see() {
        let mut later = grant("b", 2, 60, Some((60, 90)));
        later.at_server = Some(45 * MS);
        let log = [grant("a", 1, 10, Some((10, 50))), later.clone()];
        assert_eq!(kinds(&log), (1, 0));
        // Also if the later one never came to believe in it.
        later.believed = None;
        let log = [grant("a", 1, 10, Some((10, 50))), later.clone()];
        assert_eq!(kinds(&log), (1, 0));
        later.at_server = Some(50 * MS);
        let log = [grant("a", 1, 10, Some((10, 50))), later];
        assert_eq!(kinds(&log), (0, 0));
    }

    #[test]
    fn renewals_after_the_end_and_tokens_out_of_order_are_found_in_what_servers_tell() {
        let mut judge = ServerJudge::default();
        let grant = |token| Seen::Grant {
            owner: "a:1".to_owned(),
            token,
        };
        let offset = Offset::read();
        let wall = 2_000_000_000_000_000;
        let renewal = |owner: &str, after: u64| Seen::Renewal {
            owner: owner.to_owned(),
            at: wall + after,
        };
        judge.ended("a:1", offset.moment(wall));
        let well = [grant(5), renewal("a:1", 0), renewal("b:1", 9), grant(6)];
        assert_eq!(judge.judge(&well, Some(offset)), []);
        let late = [renewal("a:1", 1)];
        assert_eq!(judge.judge(&late, None), []);
        let found = judge.judge(&late, Some(offset));
        assert!(matches!(found[..], [Violation::Leftover(_)]), "{found:?}");
        // In a later round, by a server that has forgotten.
        let found = judge.judge(&[grant(6), grant(1), grant(2)], Some(offset));
        assert!(
            matches!(found[..], [Violation::Token(_), Violation::Token(_)]),
            "{found:?}"
        );
    }

    #[test]
    fn keys_that_are_left_are_found_and_the_marker_is_none() {
        let keys = [
            MARKER,
            "tourbillon:{a}:token",
            "tourbillon:{a}:lock",
            "tourbillon:{b}:token",
            "tourbillon:{1}:marker",
            "tourbillon:{0}:marker:x",
        ];
        let found = left_over(&keys.map(str::to_owned), &["a".to_owned()]);
        let found: Vec<_> = found.iter().map(Violation::what).collect();
        let expected = [2, 3, 4, 5].map(|at: usize| format!("the key {} is left", keys[at]));
        assert_eq!(found, expected);
    }

    #[test]
    fn tokens_that_do_not_increase_are_found() {
        let first = grant("a", 5, 10, Some((10, 50)));
        for (token, wrong) in [(4, 1), (5, 1), (6, 0)] {
            let second = grant("b", token, 60, Some((60, 90)));
            assert_eq!(kinds(&[first.clone(), second.clone()]), (0, wrong));
            assert_eq!(kinds(&[second, first.clone()]), (0, wrong));
        }
        // Many rounds later.
        let log = [
            first.clone(),
            grant("b", 6, 60, Some((60, 70))),
            grant("c", 3, 800, Some((800, 900))),
        ];
        assert_eq!(kinds(&log), (0, 2));
        // Its acquire returned late, after a pause: it may have been the first.
        let late = grant("b", 4, 100, None);
        assert_eq!(kinds(&[first, late]), (0, 0));
    }
}
