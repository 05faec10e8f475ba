//! What the servers tell of their locks, and the keys that they have in the end. The holders' words
//! are judged by [`chaos::judge`].

use std::collections::HashMap;

use chaos::clock::{Moment, Offset, millis};
use chaos::judge::Violation;

use super::holder::BESIDE;
use super::watch::Seen;

/// Judges what the server of one lock tells, over all of its rounds.
#[derive(Default)]
pub(crate) struct ServerJudge {
    /// Who holds no more, and after which moment nothing of it may be renewed.
    ended: HashMap<String, Moment>,
    /// Of each server.
    last_tokens: Vec<u64>,
}

impl ServerJudge {
    pub(crate) fn ended(&mut self, owner: &str, at: Moment) {
        self.ended.insert(owner.to_owned(), at);
    }

    /// Of each server in its order. Without an offset its clock can't be compared.
    pub(crate) fn judge(&mut self, seen: &[Vec<Seen>], offset: Option<Offset>) -> Vec<Violation> {
        self.last_tokens.resize(seen.len(), 0);
        let mut found = Vec::new();
        let numbered = seen.iter().enumerate();
        for (server, seen) in
            numbered.flat_map(|(number, all)| all.iter().map(move |one| (number, one)))
        {
            let last_token = &mut self.last_tokens[server];
            match seen {
                Seen::Grant { owner, token } => {
                    if *token <= *last_token {
                        found.push(Violation::Token(format!(
                            "a server granted token {token} to {owner} after {last_token}"
                        )));
                    }
                    *last_token = *token;
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

/// Whether a key says that a server has lost nothing. It stays for ever.
fn is_marker(key: &str) -> bool {
    let tag = key.strip_prefix("tourbillon:{");
    let tag = tag.and_then(|rest| rest.strip_suffix("}:marker"));
    tag.is_some_and(|tag| tag.parse::<u16>().is_ok())
}

/// Of the keys of a server those that should be gone when nobody holds one of its locks: all but
/// the marker, the last token of each lock, and that of each lock [beside](super::holder) it.
pub(crate) fn left_over(keys: &[String], locks: &[String]) -> Vec<Violation> {
    let tokens: Vec<_> = locks
        .iter()
        .map(|lock| format!("tourbillon:{{{lock}}}:token"))
        .collect();
    keys.iter()
        .filter(|&key| !is_marker(key) && !tokens.contains(key) && !is_token_beside(key))
        .map(|key| Violation::Leftover(format!("the key {key} is left")))
        .collect()
}

fn is_token_beside(key: &str) -> bool {
    let beside = BESIDE.iter().any(|mark| {
        let begin = format!("tourbillon:{{{mark}");
        key.starts_with(&begin)
    });
    beside && key.ends_with("}:token")
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let well = [well.to_vec(), vec![grant(4), renewal("a:1", 0)]];
        assert_eq!(judge.judge(&well, Some(offset)), []);
        let late = [Vec::new(), vec![renewal("a:1", 1)]];
        assert_eq!(judge.judge(&late, None), []);
        let found = judge.judge(&late, Some(offset));
        assert!(matches!(found[..], [Violation::Leftover(_)]), "{found:?}");
        // In a later round, by a server that has forgotten.
        let forgot = [vec![grant(6), grant(1), grant(2)], vec![grant(5)]];
        let found = judge.judge(&forgot, Some(offset));
        assert!(
            matches!(found[..], [Violation::Token(_), Violation::Token(_)]),
            "{found:?}"
        );
    }

    #[test]
    fn keys_that_are_left_are_found_and_the_marker_is_none() {
        let keys = [
            "tourbillon:{0}:marker",
            "tourbillon:{a}:token",
            "tourbillon:{a}:lock",
            "tourbillon:{b}:token",
            "tourbillon:{x}:marker",
            "tourbillon:{0}:marker:x",
            "tourbillon:{!a-0}:token",
            "tourbillon:{~a-0}:lock",
        ];
        let found = left_over(&keys.map(str::to_owned), &["a".to_owned()]);
        let found: Vec<_> = found.iter().map(Violation::what).collect();
        let expected = [2, 3, 4, 5, 7].map(|at: usize| format!("the key {} is left", keys[at]));
        assert_eq!(found, expected);
    }
}
