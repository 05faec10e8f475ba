//! Whether two believed at one time that they hold a lock, and whether its tokens increase.
//!
//! All moments are nanoseconds of the clock that the processes of a machine share. A holder notes
//! the moment at which the acquire returned, and every moment at which `is_held` said yes, read
//! before it asked: between the first and the last one it *believes*. The server's own moment of a
//! grant comes with the token, which is that moment in microseconds, unless the server's clock was
//! set back.
//!
//! - **JUDGE-1** No two beliefs touch. By the holders' own words alone: the earlier one's last yes
//!   lies before the later one's acquire returned.
//! - **JUDGE-2** Who was granted a lower token said yes for the last time before the server granted
//!   the higher one. That is earlier than the return of the acquire by the way of the answer, so
//!   this is the stricter of the two, and holds for a grant that nobody came to believe in as well.
//!   Where the server's moment is unknown, the return of the later acquire takes its place.
//!   It is right only since the grant follows the release, or the end of the lease, at the server.
//!   (The moment before the later one's request was sent would be too strict: the earlier one may
//!   hold, and give back, while the request is under way.)
//! - **JUDGE-3** Tokens increase in the order of the grants. Whose acquire returned before another
//!   one said yes for the first time was granted earlier: it can't be that the other one's lease
//!   had ended by then. Of others nobody knows the order from outside; the servers' words are
//!   judged for that where they can be heard.

use crate::clock::{Moment, millis};

/// What reading two clocks at one moment, and microseconds, may be wrong by.
const BLUR: u64 = 200_000;

/// One grant, and what its holder made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Who holds it.
    pub holder: String,
    /// Its fencing token.
    pub token: u64,
    /// When its request was sent, if that is known.
    pub sent: Option<Moment>,
    /// When the acquire returned.
    pub granted: Moment,
    /// The first and the last moment of a yes.
    pub believed: Option<(Moment, Moment)>,
    /// When the server granted it, if its clock can be compared.
    pub at_server: Option<Moment>,
    /// Given back on purpose, as opposed to lost or killed.
    pub given_back: bool,
}

/// What must not be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
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
    /// What was found, for people.
    pub fn what(&self) -> &str {
        match self {
            Violation::Overlap(what)
            | Violation::Token(what)
            | Violation::Leftover(what)
            | Violation::Broken(what) => what,
        }
    }
}

/// Of one lock, over all of its rounds.
#[derive(Default, Debug)]
pub struct Judge {
    grants: Vec<Grant>,
}

impl Judge {
    /// Judges grants among each other and against all that came before.
    pub fn judge(&mut self, new: Vec<Grant>) -> Vec<Violation> {
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
    let (granted, by) = match after.at_server {
        Some(granted) => (granted + BLUR, "the server had granted"),
        // By their tokens it came later, also if nobody came to believe in it.
        None if before.granted <= after.granted => (after.granted, "the return of an acquire of"),
        None => return None,
    };
    (before.token != after.token && last > granted).then(|| {
        Violation::Overlap(format!(
            "{} (token {}) believed for {} ms after {by} token {} to {}",
            before.holder,
            before.token,
            millis(last - granted),
            after.token,
            after.holder
        ))
    })
}

/// How far two grants are apart that follow each other by their tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Apart {
    /// The last yes came when the next acquire had returned: an overlap.
    Never,
    /// It came while the next request was under way: which of the two was first is unknown.
    Unknown,
    /// Between the last yes and the next request lies this time, in nanoseconds.
    By(u64),
}

impl Apart {
    /// Compares the holders' words; `None` if the first one never said yes, or if it is unknown
    /// when the next request was sent.
    pub fn of(before: &Grant, after: &Grant) -> Option<Apart> {
        let ((_, last), sent) = (before.believed?, after.sent?);
        Some(match () {
            () if after.granted <= last => Apart::Never,
            () if sent <= last => Apart::Unknown,
            () => Apart::By(sent - last),
        })
    }
}

fn token(one: &Grant, other: &Grant) -> Option<Violation> {
    if one.token == other.token {
        let (token, first, second) = (one.token, &one.holder, &other.holder);
        let what = format!("token {token} was granted twice: {first}, {second}");
        return Some(Violation::Token(what));
    }
    let before = |one: &Grant, other: &Grant| {
        let first = other.believed.map(|(first, _)| first);
        // Also if the other one's request was not even sent then.
        let sent = other.sent.is_some_and(|sent| one.granted <= sent);
        sent || first.is_some_and(|first| one.granted < first)
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
            sent: None,
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

    /// As [`grant`], with the moment of the request.
    fn asked(token: u64, sent: u64, granted: u64, last: Option<u64>) -> Grant {
        let believed = last.map(|last| (granted, last));
        let sent = Some(sent * MS);
        Grant {
            sent,
            ..grant("a", token, granted, believed)
        }
    }

    #[test]
    fn two_grants_are_apart_by_what_is_sure() {
        for (last, apart, overlaps) in [
            (50, Apart::By(50 * MS), 0),
            (99, Apart::By(MS), 0),
            (100, Apart::Unknown, 0),
            (109, Apart::Unknown, 0),
            (110, Apart::Never, 1),
            (500, Apart::Never, 1),
        ] {
            for next in [Some(111), Some(900)] {
                let pair = [asked(7, 0, 10, Some(last)), asked(9, 100, 110, next)];
                assert_eq!(Apart::of(&pair[0], &pair[1]), Some(apart), "{last}");
                assert_eq!(kinds(&pair), (overlaps, 0), "{last}");
            }
        }
        assert_eq!(
            Apart::of(&asked(1, 0, 1, None), &asked(2, 2, 3, None)),
            None
        );
    }

    #[test]
    fn a_grant_that_nobody_believed_in_shows_overlaps_too() {
        let log = [asked(1, 0, 1, Some(30)), asked(2, 10, 11, None)];
        assert_eq!(kinds(&log), (1, 0));
        // It came back before the other one said yes: no overlap, but the tokens are in the wrong
        // order.
        let log = [asked(1, 0, 15, Some(16)), asked(2, 10, 11, None)];
        assert_eq!(kinds(&log), (0, 1));
    }

    #[test]
    fn tokens_that_go_back_are_found_without_a_yes() {
        let log = [asked(2, 0, 1, None), asked(1, 10, 11, None)];
        assert_eq!(kinds(&log), (0, 1));
        let log = [asked(2, 0, 12, None), asked(1, 10, 11, None)];
        assert_eq!(kinds(&log), (0, 0));
    }
}
