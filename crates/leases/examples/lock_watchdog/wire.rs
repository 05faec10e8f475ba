//! The messages between a holder's process and its parent process: one line each, through a pipe.

use std::str::SplitWhitespace;
use std::time::Duration;

use tourbillon::Time;

use crate::cable::Grant;
use crate::holder::{Order, Said};

pub(crate) fn order_line(order: Order) -> &'static str {
    match order {
        Order::Cut => "cut",
        Order::Release => "release",
        Order::End => "end",
    }
}

pub(crate) fn order(line: &str) -> Option<Order> {
    let all = [Order::Cut, Order::Release, Order::End];
    all.into_iter().find(|order| order_line(*order) == line)
}

/// Returns `None` for [`Said::Gone`], which is reported by the end of the pipe.
pub(crate) fn said_line(said: &Said) -> Option<String> {
    let line = match said {
        Said::Holds(grant) => {
            let (sent, answered) = (grant.sent.as_nanos(), grant.answered.as_nanos());
            format!("holds {} {sent} {answered}", grant.token)
        }
        Said::Yes { token, asked } => format!("yes {token} {}", asked.as_nanos()),
        Said::Renewed { at, renewals, left } => {
            format!("renewed {} {renewals} {}", at.as_nanos(), left.as_nanos())
        }
        Said::Lost { asked, why } => format!("lost {} {}", asked.as_nanos(), one_line(why)),
        Said::Trouble { at, what } => format!("trouble {} {}", at.as_nanos(), one_line(what)),
        Said::Released { at, how } => format!("released {} {}", at.as_nanos(), one_line(how)),
        Said::Fails(why) => format!("fails {}", one_line(why)),
        Said::Gone => return None,
    };
    Some(line)
}

pub(crate) fn said(line: &str) -> Option<Said> {
    let (what, rest) = line.split_once(' ')?;
    let mut words = rest.split_whitespace();
    let said = match what {
        "holds" => Said::Holds(Grant {
            token: number(&mut words)?,
            sent: time(&mut words)?,
            answered: time(&mut words)?,
        }),
        "yes" => Said::Yes {
            token: number(&mut words)?,
            asked: time(&mut words)?,
        },
        "renewed" => Said::Renewed {
            at: time(&mut words)?,
            renewals: number(&mut words)?,
            left: Duration::from_nanos(number(&mut words)?),
        },
        "lost" => Said::Lost {
            asked: time(&mut words)?,
            why: text(words),
        },
        "trouble" => Said::Trouble {
            at: time(&mut words)?,
            what: text(words),
        },
        "released" => Said::Released {
            at: time(&mut words)?,
            how: text(words),
        },
        "fails" => Said::Fails(text(words)),
        _ => return None,
    };
    Some(said)
}

fn number(words: &mut SplitWhitespace<'_>) -> Option<u64> {
    words.next()?.parse().ok()
}

fn time(words: &mut SplitWhitespace<'_>) -> Option<Time> {
    number(words).map(Time::from_nanos)
}

fn text(words: SplitWhitespace<'_>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

fn one_line(text: &str) -> String {
    self::text(text.split_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_through() {
        let at = Time::from_nanos(u64::MAX - 1);
        let grant = Grant {
            token: u64::MAX,
            sent: Time::ZERO,
            answered: at,
        };
        let text = || "no answer: within 8 ms".to_owned();
        for one in [
            Said::Holds(grant),
            Said::Yes {
                token: 7,
                asked: at,
            },
            Said::Renewed {
                at,
                renewals: 3,
                left: Duration::from_millis(4),
            },
            Said::Lost {
                asked: at,
                why: text(),
            },
            Said::Trouble { at, what: text() },
            Said::Released { at, how: text() },
            Said::Fails(text()),
        ] {
            let line = said_line(&one).expect("a line");
            assert_eq!(said(&line), Some(one), "{line}");
        }
        assert_eq!(said_line(&Said::Gone), None);
        let two = Said::Fails("one\ntwo".to_owned());
        assert_eq!(said_line(&two).as_deref(), Some("fails one two"));
    }

    #[test]
    fn orders_come_through() {
        for one in [Order::Cut, Order::Release, Order::End] {
            assert_eq!(order(order_line(one)), Some(one));
        }
    }

    #[test]
    fn what_is_half_a_line_is_none() {
        for line in [
            "",
            "yes",
            "yes 7",
            "yes 7 x",
            "holds 1 2",
            "perhaps 1 2",
            "ye",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
        assert_eq!(order("stop"), None);
    }
}
